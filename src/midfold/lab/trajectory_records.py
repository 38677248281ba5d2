"""A record of a trajectory file: its turns, their token counts, allowed cuts, and writing it again.

A record is an object with a list of turns, a bare list of turns, or lines of turns. Everything else in it is kept byte
for byte. Turns are counted individually and only on demand: a record far above its target is never counted whole.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

from msgspec import Raw

from midfold.compaction.local.identifiers import LONGEST_TEXT, readable
from midfold.errors import TranscriptError
from midfold.lab.sharegpt import ShareGPT, is_turn, read_turns
from midfold.lab.trajectory_settings import TurnKind
from midfold.transcript import jsonio
from midfold.transcript.document import Document, sniff, write
from midfold.transcript.jsonio import elements, entries
from midfold.transcript.laws import legal_cuts
from midfold.transcript.message import Message, ToolResult, Transcript, plain
from midfold.transcript.splice import message_bytes
from midfold.transcript.tokens import Meter, TokenCounter, estimate_text

_OPENING = re.compile(rb"\[\s*")
_COLON = re.compile(rb"\s*:\s*")
_BETWEEN = re.compile(rb"\s*,\s*")


def _place(data: bytes, key: str) -> int | None:
    """Return the position of a key's value if the key occurs only once in the data."""
    name = f'"{key}"'.encode()
    found = data.find(name)
    if found < 0 or data.find(name, found + 1) >= 0:
        return None
    colon = _COLON.match(data, found + len(name))
    return colon.end() if colon else None


def splice_record(
    data: bytes, key: str | None, array: Raw, wires: Sequence[Raw], spans: Sequence[range], added: bytes
) -> bytes | None:
    """Return `data` without the turns in `spans` and with `added` in place of the last, or None if it looks unusual.

    The array of turns is under `key`, or is the whole data. This is the fast path for records as programs write them,
    and re-encodes nothing that is kept; every cut is verified, and other records are left to `write`, which gives the
    same result.
    """
    turns = bytes(array)
    at = 0 if key is None else _place(data, key)
    if len(wires) < 2 or at is None or spans[-1].stop >= len(wires) or not data.startswith(turns, at):
        return None
    lengths = [memoryview(wire).nbytes for wire in wires]
    opening = _OPENING.match(turns)
    between = _BETWEEN.match(turns, opening.end() + lengths[0]) if opening else None
    if opening is None or between is None:
        return None
    gap = between.group()
    starts = list(accumulate((length + len(gap) for length in lengths), initial=opening.end()))
    if turns[starts[-1] - len(gap) :].strip() != b"]":
        return None
    for place in (place for span in spans for place in (span.start, span.stop)):
        before = opening.group() if place == 0 else gap
        if not turns.startswith(bytes(wires[place]), starts[place]) or not turns.endswith(before, 0, starts[place]):
            return None
    pieces = [data[:at]]
    last = 0
    for span in spans:
        pieces.append(turns[last : starts[span.start]])
        last = starts[span.stop]
    return b"".join([*pieces, added, gap, turns[last:], data[at + len(turns) :]])


LIST_KEYS = ("conversations", "messages", "conversation", "trajectory", "turns", "input")
MOST_CHARACTERS = 1_000
"""Maximum characters per token; no vocabulary has longer tokens."""
ID_KEYS = ("id", "conversation_id", "trajectory_id", "uuid", "prompt_index", "instance_id", "task_id")
KINDS: dict[str, TurnKind] = {"system": "system", "user": "human", "assistant": "gpt", "tool": "tool", "other": "other"}


class TrajectoryRecord(ABC):
    """The turns of one trajectory."""

    def __init__(self, document: Document, array: Raw, counter: TokenCounter, turn_tokens: int) -> None:
        self.document = document
        self._array = array
        self._counter = counter
        self._turn_tokens = turn_tokens
        self._tokens: list[int | None] = [None] * len(document.messages)

    def __len__(self) -> int:
        return len(self.document.messages)

    @property
    @abstractmethod
    def kinds(self) -> Sequence[TurnKind]: ...

    @property
    @abstractmethod
    def cuts(self) -> Sequence[int]:
        """The positions where turns may be separated, from 0 to their number."""

    @property
    @abstractmethod
    def fixed_tokens(self) -> int:
        """The tokens besides the turns: system prompt and tool definitions."""

    @abstractmethod
    def _count(self, place: int) -> int: ...

    @abstractmethod
    def raw(self, place: int) -> str:
        """Return the raw text of a turn, for searches and estimates."""

    def tokens(self, place: int) -> int:
        """Return the tokens of a turn."""
        known = self._tokens[place]
        if known is None:
            known = self._tokens[place] = self._count(place) + self._turn_tokens
        return known

    def total(self, places: range) -> int:
        return sum(map(self.tokens, places))

    def within(self, places: range, room: int) -> int | None:
        """Return the tokens of turns if they fit into `room`, else None, counting as little as possible."""
        if room < 0 or sum(map(len, map(self.raw, places))) > MOST_CHARACTERS * room:
            return None
        used = 0
        for place in places:
            used += self.tokens(place)
            if used > room:
                return None
        return used

    def rough(self, places: range) -> int:
        """Estimate the tokens of turns cheaply."""
        return estimate_text("\n".join(map(self.raw, places))) + len(places) * self._turn_tokens if places else 0

    def messages(self, places: range) -> Transcript:
        return self.document.messages[places.start : places.stop]

    def texts(self, place: int) -> list[tuple[int, str]]:
        """Return the readable texts of a turn, each with its kind of speaker."""
        return list(readable(self.document.messages[place], LONGEST_TEXT))

    def summary_tokens(self, text: str) -> int:
        """Return the tokens of a text as a turn."""
        return self._counter.count(text) + self._turn_tokens

    @property
    def most_tokens(self) -> int:
        """Upper bound of the tokens: no vocabulary makes more tokens of a text than it has bytes."""
        return len(self.document.source) + self._turn_tokens * len(self)

    def write(self, spans: Sequence[range], added: Message) -> bytes:
        """Return the record without the turns in `spans` and with `added` in place of the last."""
        wires = [message.wire for message in self.document.messages]
        new = message_bytes(added, self.document.dialect)
        key = None if self.document.body is None else self.document.list_key
        short = (
            None if self.document.lines else splice_record(self.document.source, key, self._array, wires, spans, new)
        )
        return short or bytes(write(self.document, messages=self.view(spans, added)))

    def view(self, spans: Sequence[range], added: Message) -> Transcript:
        """Return the kept turns with the new one among them."""
        gone = {place for span in spans for place in span}
        messages = self.document.messages
        head = tuple(messages[place] for place in range(spans[-1].start) if place not in gone)
        return (*head, added, *messages[spans[-1].stop :])


class ShareGPTRecord(TrajectoryRecord):
    def __init__(self, document: Document, array: Raw, counter: TokenCounter, turn_tokens: int) -> None:
        super().__init__(document, array, counter, turn_tokens)
        self._kinds, self._texts = read_turns(array, [message.wire for message in document.messages])

    @property
    def kinds(self) -> Sequence[TurnKind]:
        return self._kinds

    @property
    def cuts(self) -> Sequence[int]:
        """The cuts; none is before a tool's turn, which follows the turn that called it."""
        return [place for place, kind in enumerate(self._kinds) if kind != "tool" or not place] + [len(self)]

    @property
    def fixed_tokens(self) -> int:
        system = self.document.system
        return 0 if system is None else self.summary_tokens(system.text)

    def _count(self, place: int) -> int:
        return self._counter.count(self._texts[place])

    def raw(self, place: int) -> str:
        return self._texts[place]


class ChatRecord(TrajectoryRecord):
    """A record in a provider's format."""

    def __init__(self, document: Document, array: Raw, counter: TokenCounter, turn_tokens: int) -> None:
        super().__init__(document, array, counter, turn_tokens)
        self._meter = Meter(counter)

    @property
    def kinds(self) -> Sequence[TurnKind]:
        return [self._kind(message) for message in self.document.messages]

    @staticmethod
    def _kind(message: Message) -> TurnKind:
        if message.role == "user" and any(isinstance(part, ToolResult) for part in message.parts):
            return "tool"
        return KINDS[message.role]

    @property
    def cuts(self) -> Sequence[int]:
        return legal_cuts(self.document.messages)

    @property
    def fixed_tokens(self) -> int:
        beside = 0 if self.document.system is None else self._meter.units(self.document.system)
        return beside + self._meter.tool_units(self.document.tools)

    def _count(self, place: int) -> int:
        return self._meter.units(self.document.messages[place])

    def raw(self, place: int) -> str:
        return bytes(self.document.messages[place].wire).decode("utf-8", "replace")


def open_record(data: bytes, counter: TokenCounter, turn_tokens: int) -> TrajectoryRecord:
    """Open a record; raises TranscriptError that says what was expected."""
    document, array = _document(data)
    if document.dialect is ShareGPT:
        return ShareGPTRecord(document, array, counter, turn_tokens)
    return ChatRecord(document, array, counter, turn_tokens)


def _document(data: bytes) -> tuple[Document, Raw]:
    try:
        if data[:1] == b"[":
            return _of_list(data, None, Raw(data), "messages"), Raw(data)
        if data[:1] != b"{":
            jsonio.decode(data)
            raise TranscriptError("not a record: expected an object or a list")
        body = _entries(data)
        if not body and is_single_turn(data.partition(b"\n")[0]):
            return _of_lines(data)
        body = body or entries(data)
        key = _list_key(body)
        if key is None and _is_turn(body):
            return _of_lines(data)
        if key is None:
            raise TranscriptError(f"expected an object with a list of turns under one of {', '.join(LIST_KEYS)}")
        return _of_list(data, body, body[key], key), body[key]
    except jsonio.NotJSON as error:
        raise TranscriptError(f"not JSON: {error}") from None


def _of_lines(data: bytes) -> tuple[Document, Raw]:
    """Parse a trajectory with a turn on each line."""
    wires = [Raw(line) for whole in data.split(b"\n") if (line := whole.strip(b" \t\r"))]
    dialect = ShareGPT if is_turn(_value(wires[0])) else sniff(map(_value, wires))
    return Document(data, dialect, wires, lines=True), Raw(b"[" + b",".join(map(bytes, wires)) + b"]")


def is_single_turn(line: bytes) -> bool:
    """Return whether a line is a turn and not a record: it has a speaker, and no list of turns."""
    return _is_turn(_entries(line))


def is_record(value: Mapping[str, Any]) -> bool:
    """Return whether an object has a list of turns."""
    return any(isinstance(value.get(key), list) for key in LIST_KEYS)


def _is_turn(body: Mapping[str, Raw]) -> bool:
    return ("from" in body or "role" in body) and _list_key(body) is None


def _list_key(body: Mapping[str, Raw]) -> str | None:
    """Return the key of a record's list of turns, or None."""
    return next((key for key in LIST_KEYS if key in body and bytes(memoryview(body[key])[:1]) == b"["), None)


def _entries(line: bytes) -> dict[str, Raw]:
    try:
        return entries(line) if line[:1] == b"{" else {}
    except jsonio.NotJSON:
        return {}


def _of_list(data: bytes, body: Mapping[str, Any] | None, array: Raw, key: str) -> Document:
    wires = elements(array)
    first = _value(wires[0]) if wires else None
    dialect = ShareGPT if is_turn(first) else sniff(map(_value, wires), body)
    if wires and not isinstance(first, Mapping):
        raise TranscriptError(f"expected turns that are objects under {key!r}")
    return Document(data, dialect, wires, body, list_key=key)


def _value(wire: Raw) -> Any:
    try:
        return plain(wire)
    except jsonio.NotJSON:
        return None


def id_of(record: TrajectoryRecord) -> str | None:
    """Return the id of a record, or None."""
    for key in ID_KEYS:
        value = record.document.setting(key)
        if isinstance(value, str | int) and not isinstance(value, bool):
            return str(value)
    return None
