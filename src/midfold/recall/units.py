"""Search units of a conversation, made of pieces of its messages.

1. A unit is a tool call with its result, or a user message with its answer: words spread over both are one hit.
2. Search, excerpts and unfolding use the same text (`original`), so a position in a hit can be unfolded from.
3. Text that a client wrapped around a user's words, and todo lists, are asides: pieces of separate units.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property, lru_cache
from typing import Literal, NamedTuple

from midfold.compaction.handoff import recognise
from midfold.compaction.local.digest import describe, is_digest
from midfold.compaction.local.identifiers import arguments_text
from midfold.compaction.local.tool_call import Action, clip, flat, squash
from midfold.recall.words import searchable
from midfold.transcript.message import Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from midfold.transcript.wrappers import read_user_text, without_reminders

Kind = Literal["errors", "edits", "tests", "decisions"]
KINDS: tuple[Kind, ...] = ("errors", "edits", "tests", "decisions")
MAX_STEP_CHARS = 160
_TESTS = re.compile(
    r"\b(?:py\.?test|unittest|tox|nox|jest|vitest|mocha|rspec|phpunit|ctest|runtests\.py"
    r"|(?:go|cargo|npm|pnpm|yarn|bun|nx|mvn|gradlew?|make|mise|dotnet|mix|deno|run)"
    r" (?:run )?[\w:-]{0,20}test\w*)\b"
)
_DECIDED = re.compile(
    r"\b(?:decid|decision|instead|because|rather than|chose|choose|prefer|must|should|never|always|don't|do not|agree"
    r"|reject|settled|keep|won't|will not|so that|therefore|approach)",
    re.IGNORECASE,
)


class Candidate(NamedTuple):
    """Message of a conversation and its position."""

    session: str
    position: int
    role: str
    at: int
    digest: bytes
    message: Message


REPORT = "report"
"""Kind of piece with the report of a finished background task: a result, although in a user message."""


class UnitPiece(NamedTuple):
    """Part of a message: its start in the original, and its kind."""

    found: Candidate
    start: int
    text: str
    what: str

    @property
    def name(self) -> str:
        """Return the kind for the reader of a hit."""
        return (
            self.what
            if self.what in ("its result", "answer", REPORT) or self.what.startswith("call")
            else self.found.role
        )


class Unit:
    """Pieces that belong together."""

    def __init__(
        self, pieces: Sequence[UnitPiece], call: ToolCall | None = None, result: ToolResult | None = None
    ) -> None:
        self.pieces = tuple(pieces)
        self.call, self.result = call, result

    @property
    def place(self) -> tuple[str, int, int]:
        """Return the start: session, position and character."""
        first = self.pieces[0]
        return first.found.session, first.found.position, first.start

    @cached_property
    def action(self) -> Action | None:
        """Return the action of a call, as in digests."""
        if self.call is None and self.result is None:
            return None
        return describe(self.call, self.result or ToolResult(self.call.id if self.call else "", ()))

    @property
    def is_aside(self) -> bool:
        """Return whether it is a todo list, or text that a client wrapped around a user's words."""
        return all(piece.what == "instructions" for piece in self.pieces) or bool(
            self.call and _is_list(self.call.name)
        )

    def is_kind(self, kind: str) -> bool:
        action = self.action
        if kind == "decisions":
            return action is None and not self.is_aside and any(_DECIDED.search(piece.text) for piece in self.pieces)
        if action is None:
            return False
        if kind == "errors":
            return action.outcome == "failed"
        if kind == "edits":
            return action.wrote
        return bool(_TESTS.search(self.call.arguments)) if self.call else False

    def has_tool(self, tool: str) -> bool:
        return self.call is not None and tool.casefold() in self.call.name.casefold()

    def has_path(self, path: str) -> bool:
        """Return whether a call's arguments contain this path."""
        return self.call is not None and path.casefold() in self.call.arguments.replace("\\/", "/").casefold()

    def line(self) -> str:
        """Return a one-line description, not redacted."""
        action = self.action
        if action is not None:
            text = f"[{action.tool}] {action.did}" + (f" -> {action.detail}" if action.detail else "")
        else:
            text = " / ".join(flat(piece.text[: 2 * MAX_STEP_CHARS]) for piece in self.pieces[:2])
        return clip(text, MAX_STEP_CHARS)


_LIST_TOOLS = "todowrite todoread todo todos updateplan plan writetodos taskcreate taskupdate tasklist "
_LISTS = frozenset(_LIST_TOOLS.split())


@lru_cache(1_000)
def _is_list(tool: str) -> bool:
    return squash(tool) in _LISTS


def original(message: Message) -> str:
    """Return a message as text: role, text, tool calls with one line per argument, and results."""
    return "".join([f"[{message.role}]", *(f"\n{text}" for _, text in _texts(message))])


def _texts(message: Message) -> Iterator[tuple[Part, str]]:
    for part in message.parts:
        if isinstance(part, ToolCall):
            yield part, f"{part.name}\n{arguments_text(part.arguments)}"
        elif isinstance(part, Text | ToolResult | Thinking):
            if part.text:
                yield part, part.text
        elif isinstance(part, Opaque):
            yield part, searchable(part.body.encode("utf-8", "surrogatepass"))


class _PendingCall(NamedTuple):
    """Tool call without its result yet, and the pieces before it."""

    call: ToolCall
    pieces: tuple[UnitPiece, ...]


class _Reader:
    """Reader that groups messages in order into units."""

    def __init__(self) -> None:
        self.made: list[Unit] = []
        self._waiting: dict[str, _PendingCall] = {}
        self._user_pieces: list[UnitPiece] = []
        self._pieces: list[UnitPiece] = []

    def read(self, found: Candidate) -> None:
        is_user, place = found.message.role == "user", len(f"[{found.message.role}]\n")
        for part, text in _texts(found.message):
            piece = UnitPiece(found, place, text, "")
            place += len(text) + 1
            if isinstance(part, ToolCall):
                self._call(part, piece)
            elif isinstance(part, ToolResult):
                self._answer(part, piece)
            elif is_user:
                asides, words = _split_user_text(piece)
                self.made += [Unit([aside]) for aside in asides]
                self._pieces += words
            else:
                self._pieces.append(piece)
        if is_user and self._pieces:
            self.end()
            self._user_pieces, self._pieces = self._pieces, []
        else:
            self._reply()

    def _call(self, call: ToolCall, piece: UnitPiece) -> None:
        if self._user_pieces:
            self._reply()
        if call.id in self._waiting:
            earlier = self._waiting.pop(call.id)
            self.made.append(Unit(earlier.pieces, earlier.call))
        self._waiting[call.id] = _PendingCall(call, (*self._pieces, piece._replace(what=f"call {call.name}")))
        self._pieces = []

    def _answer(self, result: ToolResult, piece: UnitPiece) -> None:
        waiting = self._waiting.pop(result.call_id, None)
        pieces, call = (waiting.pieces, waiting.call) if waiting else ((), None)
        if not is_digest(result.text):
            what, text = "its result" if waiting else "result", without_reminders(piece.text)
            pieces = (*pieces, piece._replace(what=what, text=text)) if text else pieces
        if pieces:
            self.made.append(Unit(pieces, call, result))

    def _reply(self) -> None:
        """Close a user message with the answer after it."""
        if self._user_pieces or self._pieces:
            answers = [piece._replace(what="answer") if self._user_pieces else piece for piece in self._pieces]
            self.made.append(Unit([*self._user_pieces, *answers]))
            self._user_pieces, self._pieces = [], []

    def end(self) -> None:
        """Close everything open at the end or an interruption of a conversation."""
        self.made += [Unit(one.pieces, one.call) for one in self._waiting.values()]
        self._waiting.clear()
        if self._user_pieces:
            self.made.append(Unit(self._user_pieces))
            self._user_pieces = []


def units(found: Iterable[Candidate]) -> list[Unit]:
    """Return the units of messages in order; a result without its call is a separate unit."""
    reader = _Reader()
    last = ("", -1)
    for one in found:
        if (one.session, one.position - 1) != last:
            reader.end()
        last = (one.session, one.position)
        if recognise(one.message) is None:
            reader.read(one)
    reader.end()
    return reader.made


def _split_user_text(piece: UnitPiece) -> tuple[list[UnitPiece], list[UnitPiece]]:
    """Split a user's text into client-added blocks (including reports of background tasks) and the user's words."""
    read = read_user_text(piece.text)
    blocks = read.all_of("instructions", "environment", "notice", "report")
    if not blocks:
        return [], [piece]
    asides = []
    for block in blocks:
        at = max(piece.text.find(block.text), 0)
        what = REPORT if block.wrapper.meaning == "report" else "instructions"
        asides.append(UnitPiece(piece.found, piece.start + at, block.text, what))
    place = piece.text.find(read.words) if read.words else -1
    if read.words and place < 0:
        return asides, [piece]
    return asides, [UnitPiece(piece.found, piece.start + place, read.words, "")] if read.words else []
