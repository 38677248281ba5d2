"""Server-sent events, from bytes as they arrive, with the very bytes they came in.

Rules of this file (the WHATWG description of event streams):
1. Lines end with LF, CR LF or CR; a line break may be split over two reads.
2. An empty line ends an event; several `data` lines are joined by line feeds; one space after the colon is dropped.
3. Lines that start with a colon are comments; unknown fields are ignored.
4. A byte order mark before the first line is dropped.
5. No byte is lost: the bytes of all events, joined, are what came in. An event is decoded once, whoever looks at it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

from midfold.transcript import jsonio

LONGEST_EVENT = 16_000_000
MOST_LINES, MOST_VALUES = 10_000, 200_000
"""Of an event; one that may have more is not looked into, and passes as it came."""
BYTE_ORDER_MARK = "\ufeff"
_EVENT_END = re.compile(rb"(?:\n[\r\n]|\r\r|\r\n[\r\n])[\r\n]*+")
_USUAL = re.compile(r"(?:event: ([^\r\n]*+)\n)?data: ([^\r\n]*+)\n\n")
_UNREAD: Any = object()
Decode = Callable[[str], Any]


class StreamEvent:
    """An event with the bytes it came in, its empty line included; without data, what stands between events."""

    __slots__ = ("_decode", "_value", "data", "is_crowded", "name", "raw")

    def __init__(
        self, raw: bytes, name: str = "", data: str = "", decode: Decode = jsonio.decode, *, is_crowded: bool = False
    ) -> None:
        self.raw, self.name, self.data = raw, name, data
        self.is_crowded = is_crowded
        """Whether it has more in it than anybody looks into."""
        self._decode, self._value = decode, _UNREAD

    @property
    def value(self) -> dict[str, Any] | None:
        """Its data as an object; None if it is none."""
        if self._value is _UNREAD:
            self._value = None
            if self.data.lstrip()[:1] == "{":
                with suppress(jsonio.NotJSON):
                    self._value = self._decode(self.data)
        value: dict[str, Any] | None = self._value
        return value

    @property
    def is_end(self) -> bool:
        """Whether it says that the stream is over, as OpenAI's streams do."""
        return self.data.strip() == "[DONE]"


def event_bytes(name: str, value: Any) -> bytes:
    """An event as a stream writes it."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + jsonio.encode(value) + b"\n\n"


class EventReader:
    """Feed it bytes; it gives the events that are whole. `decode` reads the data of those that somebody looks into."""

    def __init__(self, decode: Decode = jsonio.decode) -> None:
        self._decode = decode
        self._rest = bytearray()
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[StreamEvent]:
        """The events that this chunk completes; raises ValueError for one that has no end."""
        known = len(self._rest)
        self._rest += chunk
        ends = [found.end() for found in _EVENT_END.finditer(self._rest, max(0, known - 3))]
        if ends:
            whole = bytes(self._rest)
            self._rest = self._rest[ends[-1] :]
            for start, end in pairwise((0, *ends)):
                yield self._event(whole[start:end])
        if len(self._rest) > LONGEST_EVENT:
            raise ValueError("an event of the stream is longer than 16 MB")

    def end(self) -> Iterator[StreamEvent]:
        """What came after the last whole event."""
        if self._rest:
            yield self._event(bytes(self._rest))
            self._rest.clear()

    def _event(self, raw: bytes) -> StreamEvent:
        if len(raw) > MOST_LINES and _is_crowded(raw):
            return StreamEvent(raw, is_crowded=bool(raw.strip(b"\r\n")))
        text = raw.decode("utf-8", "replace")
        if not self._begun:
            self._begun, text = True, text.removeprefix(BYTE_ORDER_MARK)
        usual = _USUAL.fullmatch(text)
        if usual is not None:
            return StreamEvent(raw, usual[1] or "", usual[2], self._decode)
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        name, data = "", list[str]()
        for line in text.split("\n"):
            field, _, value = line.partition(":")
            if field == "data":
                data.append(value.removeprefix(" "))
            elif field == "event":
                name = value.removeprefix(" ")
        return StreamEvent(raw, name, "\n".join(data), self._decode)


def _is_crowded(raw: bytes) -> bool:
    return raw.count(b"\n") + raw.count(b"\r") > MOST_LINES or raw.count(b",") > MOST_VALUES
