"""Messages of a session: their places in a view, paged reading, redacted display, and comparison of handoffs.

Places are known without reading the messages, so that a long conversation is read one page at a time.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple

from midfold.compaction.archive import handle_of
from midfold.compaction.handoff import recognise
from midfold.compaction.local import Action, is_digest
from midfold.compaction.local.digest import describe_with
from midfold.compaction.local.outcome import read_body as read_tool_output
from midfold.compaction.local.tool_call import read_call_alone
from midfold.compaction.local.tool_kinds import recognise as recognise_tool
from midfold.compaction.render_results import brief, render_result
from midfold.pages.api_types import (
    Fate,
    HandoffComparison,
    HandoffSection,
    MessageBlock,
    MessageLine,
    Original,
    ToolAct,
)
from midfold.store import SqlStore
from midfold.store.bodies import ROLES, read_body, read_linked
from midfold.store.protocol import CompactionRecord, SessionInfo, ViewPiece
from midfold.transcript import jsonio
from midfold.transcript.document import DIALECTS
from midfold.transcript.message import Media, Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from midfold.transcript.tokens import Meter

MAX_LINE_CHARS = 240
REDACTED_CHARS = 4_000
"""Characters redacted before a line is truncated, so that a secret across the cut is still found."""
MAX_BLOCK_CHARS = 60_000
MAX_ITEMS = 200
"""Maximum items per level of an outline."""
MAX_ARGUMENTS_CHARS = 200_000
MAX_ACTS = 6
"""Maximum tool calls or results that a line describes."""
NEAR = 8
"""Messages before a result that are searched for its call."""
_SPACE = re.compile(r"\s+")
_COUNTED = re.compile(r"(?:[-*] |\d{1,4}[.)] )")
"""List marker, ignored in comparisons so that a renumbered list counts as unchanged."""
Redact = Callable[[str], str]


class MessagePlace(NamedTuple):
    """Message of the history (`position`), its replacement (`position` and `body`), or one written by midfold
    (`body`).
    """

    position: int | None
    body: int | None = None


class StoredMessage(NamedTuple):
    """Message read from the store."""

    place: MessagePlace
    message: Message
    role: str
    at: int | None


Calls = dict[str, ToolCall]


def with_calls(found: Iterable[StoredMessage]) -> Iterator[tuple[StoredMessage, Calls]]:
    """Yield each message with the tool calls so far by id; for a repeated id, the latest call."""
    calls: Calls = {}
    for item in found:
        calls.update({part.id: part for part in item.message.parts if isinstance(part, ToolCall)})
        yield item, calls


def with_neighbours(places: Iterable[MessagePlace]) -> list[tuple[MessagePlace, bool]]:
    """Return the places, preceded by a few earlier ones from the history, which are marked False."""
    made: list[tuple[MessagePlace, bool]] = []
    last = -1
    for place in places:
        if place.position is not None:
            near = range(max(place.position - NEAR, last + 1), place.position)
            made += [(MessagePlace(position), False) for position in near]
            last = place.position
        made.append((place, True))
    return made


class MessageRuns:
    """Runs of messages, as left by a compaction."""

    def __init__(self, pieces: Iterable[ViewPiece]) -> None:
        self.pieces = [piece for piece in pieces if piece.count > 0]

    def __len__(self) -> int:
        return sum(piece.count for piece in self.pieces)

    def __iter__(self) -> Iterator[MessagePlace]:
        return iter(self.between(0, len(self)))

    def between(self, start: int, stop: int) -> list[MessagePlace]:
        """Return the places from start to stop, in time proportional to their number and the number of runs."""
        made: list[MessagePlace] = []
        begin = 0
        for piece in self.pieces:
            if begin >= stop:
                break
            low, high = max(start - begin, 0), min(stop - begin, piece.count)
            for offset in range(low, high):
                position = None if piece.first is None else piece.first + offset
                made.append(MessagePlace(position, piece.body))
            begin += piece.count
        return made


class MessageFates:
    """States of messages relative to a view: kept, replaced or absent."""

    def __init__(self, view: MessageRuns) -> None:
        self.kept: set[int] = set()
        self.instead: dict[int, int] = {}
        self.written: set[int] = set()
        for piece in view.pieces:
            if piece.body is None and piece.first is not None:
                self.kept.update(range(piece.first, piece.first + piece.count))
            elif piece.body is not None and piece.first is not None:
                self.instead[piece.first] = piece.body
            elif piece.body is not None:
                self.written.add(piece.body)

    @classmethod
    def of_view(cls, view: MessageRuns) -> MessageFates:
        """Return the states of a view's own messages: shortened or verbatim."""
        made = cls(view)
        made.instead = dict.fromkeys(made.instead, -1)
        return made

    def of(self, place: MessagePlace) -> Fate:
        if place.position is None:
            return "kept" if place.body in self.written else "folded"
        if place.body is None:
            return "kept" if place.position in self.kept else "changed" if place.position in self.instead else "folded"
        stands = self.instead.get(place.position)
        return "folded" if stands is None else "kept" if stands == place.body else "changed"


class MessageReader:
    """Reader of one session's messages."""

    def __init__(self, store: SqlStore, info: SessionInfo) -> None:
        self.store, self.info = store, info
        self.dialect = DIALECTS[info.dialect]

    def pieces(self, seq: int) -> list[ViewPiece]:
        rows = self.store.database.rows("pieces", session=self.info.id, seq=seq)
        return [ViewPiece(first, count, body) for _, _, first, count, body in rows]

    def now(self, records: Iterable[CompactionRecord]) -> MessageRuns:
        """Return the current view."""
        seq = self.info.compaction
        upto = next((record.upto for record in records if record.seq == seq), 0)
        return MessageRuns([*(self.pieces(seq) if seq else ()), ViewPiece(upto, self.info.count - upto)])

    def after(self, record: CompactionRecord) -> MessageRuns:
        """Return the view right after this compaction."""
        return MessageRuns(self.pieces(record.seq))

    def before(self, record: CompactionRecord, records: Iterable[CompactionRecord]) -> MessageRuns:
        """Return the view before this compaction."""
        upto = next((base.upto for base in records if base.seq == record.base), 0)
        return MessageRuns([*(self.pieces(record.base) if record.base else ()), ViewPiece(upto, record.upto - upto)])

    def history(self) -> MessageRuns:
        return MessageRuns([ViewPiece(0, self.info.count)])

    def read(self, places: Iterable[MessagePlace]) -> list[StoredMessage]:
        """Read the messages at these places, adjacent ones in one query."""
        made: list[StoredMessage] = []
        numbered = list(enumerate(places))
        for key, group in groupby(numbered, lambda item: _run_key(*item)):
            run = [place for _, place in group]
            made += self._bodies(run) if key is None else self._run(run)
        return made

    def _run(self, run: list[MessagePlace]) -> Iterator[StoredMessage]:
        first = run[0].position or 0
        values = {"session": self.info.id, "start": first, "stop": first + len(run), "most": len(run)}
        for position, role, at, *stored in self.store.database.rows("messages", **values):
            message = read_linked(self.dialect, *stored)
            yield StoredMessage(MessagePlace(position), message, ROLES[role], at)

    def _bodies(self, run: list[MessagePlace]) -> Iterator[StoredMessage]:
        for place in run:
            row = self.store.database.row("body", id=place.body)
            if row is not None:
                message = read_body(self.dialect, *row)
                yield StoredMessage(place, message, message.role, None)


def _run_key(index: int, place: MessagePlace) -> int | None:
    """Return the same key for adjacent messages of the history; None for bodies."""
    return None if place.body is not None or place.position is None else place.position - index


class MessageFormatter:
    """Formatter of one session's messages."""

    def __init__(self, meter: Meter, redact: Redact) -> None:
        self.meter, self.redact = meter, redact

    def line(self, index: int, found: StoredMessage, fate: Fate, calls: Mapping[str, ToolCall]) -> MessageLine:
        message = found.message
        ours = recognise(message)
        return MessageLine(
            index=index,
            position=found.place.position,
            role=_role(message),
            at=found.at,
            tokens=self.tokens(message),
            handle=handle_of(message) if found.place.body is None else "",
            fate=fate,
            ours=ours.kind if ours else "",
            tools=tuple(dict.fromkeys(part.name for part in message.parts if isinstance(part, ToolCall))),
            acts=tuple(self.acts(message.parts, calls)),
            text=self.beginning(message),
        )

    def tokens(self, message: Message) -> int:
        return self.meter.tokens(self.meter.units(message), 1)

    def beginning(self, message: Message) -> str:
        """Return the start of a message's text in one line; for a handoff, of its summary."""
        ours = recognise(message)
        said = (_text_of(part).strip() for part in message.parts if not isinstance(part, ToolCall))
        return self._one_line(ours.body if ours else next(filter(None, said), ""))

    def _one_line(self, text: str) -> str:
        clean = _SPACE.sub(" ", self.redact(text[:REDACTED_CHARS])).strip()
        return clean if len(clean) <= MAX_LINE_CHARS else clean[: MAX_LINE_CHARS - 1].rstrip() + "…"

    def acts(self, parts: Sequence[Part], calls: Mapping[str, ToolCall]) -> Iterator[ToolAct]:
        """Describe tool calls and their results; a digest describes itself."""
        for part in [part for part in parts if isinstance(part, ToolCall | ToolResult)][:MAX_ACTS]:
            if isinstance(part, ToolCall):
                look = read_call_alone(part, self.redact)
                yield self._act(recognise_tool(look)(look), is_call=True)
            elif not is_digest(part.text):
                yield self._act(describe_with(calls.get(part.call_id), part, self.redact), is_call=False)

    def _act(self, action: Action, *, is_call: bool) -> ToolAct:
        return ToolAct(
            tool=self._one_line(action.tool),
            did=self._one_line(action.did),
            outcome="" if is_call else action.outcome,
            detail="" if is_call else self._one_line(action.detail),
        )

    def original(self, found: StoredMessage, calls: Mapping[str, ToolCall]) -> Original:
        message = found.message
        return Original(
            position=found.place.position,
            role=_role(message),
            at=found.at,
            tokens=self.tokens(message),
            handle=handle_of(message),
            blocks=tuple(self.block(part, calls) for part in message.parts),
        )

    def block(self, part: Part, calls: Mapping[str, ToolCall]) -> MessageBlock:
        act = next(self.acts((part,), calls), None)
        if isinstance(part, Text):
            return self._cut(MessageBlock(kind="text", title="", text=part.text))
        if isinstance(part, Thinking):
            said = part.text or "(encrypted by the provider)"
            return self._cut(MessageBlock(kind="thinking", title="thinking", text=said))
        if isinstance(part, ToolCall):
            return self._cut(MessageBlock(kind="tool call", title=part.name, text=_arguments(part.arguments), act=act))
        if isinstance(part, ToolResult):
            pictures = [_describe(item) for item in part.parts if isinstance(item, Media)]
            text = "\n".join(filter(None, (part.text, *pictures)))
            call = calls.get(part.call_id)
            name = part.name or (call.name if call is not None else "")
            limits = {"items": MAX_ITEMS, "string": REDACTED_CHARS, "max_chars": MAX_BLOCK_CHARS}
            bullets = self.redact(render_result(part, call, has_heading=True, **limits))
            shown = MessageBlock(
                kind="tool result", title=name, text=text, is_error=part.is_error, act=act, outline=bullets
            )
            return self._cut(shown)
        if isinstance(part, Media):
            return MessageBlock(kind="media", title=part.kind, text=_describe(part))
        body = part.body if isinstance(part, Opaque) else ""
        return self._cut(MessageBlock(kind="other", title=part.kind if isinstance(part, Opaque) else "", text=body))

    def _cut(self, block: MessageBlock) -> MessageBlock:
        """Redact a block and truncate it; some characters past the cut are redacted too."""
        whole = len(block.text)
        text = self.redact(block.text[: MAX_BLOCK_CHARS + REDACTED_CHARS])
        left_out = max(whole - MAX_BLOCK_CHARS, 0)
        return MessageBlock(
            kind=block.kind,
            title=self.redact(block.title[:REDACTED_CHARS]),
            text=text[:MAX_BLOCK_CHARS] if left_out else text,
            is_error=block.is_error,
            left_out=left_out,
            act=block.act,
            outline=block.outline,
        )


def _role(message: Message) -> str:
    """Return the role; Anthropic's API sends tool results as user messages, shown as `tool`."""
    parts = message.parts
    return "tool" if parts and all(isinstance(part, ToolResult) for part in parts) else message.role


def _text_of(part: Part) -> str:
    if isinstance(part, Text | Thinking):
        return part.text
    if isinstance(part, ToolResult):
        pictures = (_describe(item) for item in part.parts if isinstance(item, Media))
        plain = read_tool_output(part)
        text = plain.text if plain.value is None else brief(part, max_chars=REDACTED_CHARS)
        return text[:REDACTED_CHARS] or next(pictures, "")
    return _describe(part) if isinstance(part, Media) else part.body if isinstance(part, Opaque) else ""


def _describe(media: Media) -> str:
    size = f", {len(media.data):,} characters" if not media.data.startswith(("http:", "https:")) else ""
    return f"[{media.kind} {media.mime or ''}{size}]".replace(" ]", "]")


def _arguments(text: str) -> str:
    """Return a call's arguments as `name: value` lines, or unchanged if they are not an object or very long."""
    if len(text) > MAX_ARGUMENTS_CHARS:
        return text
    try:
        value = jsonio.decode(text)
    except jsonio.NotJSON:
        return text
    if not isinstance(value, dict):
        return text
    return "\n".join(f"{key}: {item if isinstance(item, str) else _json(item)}" for key, item in value.items())


def _json(value: object) -> str:
    return jsonio.encode(value).decode("utf-8", "replace")


def compare_handoffs(old: str, new: str, seq: int) -> HandoffComparison:
    """Return the lines added and removed under each heading, in any order; `seq` wrote the old handoff."""
    before, after = _lines(old), _lines(new)
    sections: list[HandoffSection] = []
    for heading in dict.fromkeys((*after, *before)):
        was, now = before.get(heading, {}), after.get(heading, {})
        came, went = (tuple(line for line in one if line not in other) for one, other in ((now, was), (was, now)))
        if came or went:
            sections.append(HandoffSection(heading=heading, new=came, gone=went))
    came_in_all = sum(len(one.new) for one in sections)
    return HandoffComparison(
        seq=seq,
        new=came_in_all,
        gone=sum(len(one.gone) for one in sections),
        same=sum(map(len, after.values())) - came_in_all,
        sections=tuple(sections),
    )


def _lines(text: str) -> dict[str, dict[str, None]]:
    """Return the distinct lines under each heading, without list markers."""
    made: dict[str, dict[str, None]] = {}
    heading = ""
    for line in text.split("\n"):
        said = line.strip()
        if line.startswith("## "):
            heading = said.removeprefix("## ")
        elif said:
            counted = _COUNTED.match(said)
            made.setdefault(heading, {})[said[counted.end() :] if counted else said] = None
    return made
