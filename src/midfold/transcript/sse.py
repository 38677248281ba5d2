"""Server-sent events, from bytes as they arrive.

Rules of this file (the WHATWG description of event streams):
1. Lines end with LF, CR LF or CR; a line break may be split over two reads.
2. An empty line ends an event; several `data` lines are joined by line feeds; one space after the colon is dropped.
3. Lines that start with a colon are comments; unknown fields are ignored; a final event without its empty line is lost.
4. A byte order mark before the first line is dropped.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from midfold.transcript import jsonio

LONGEST_EVENT = 16_000_000
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class Event(NamedTuple):
    name: str
    data: str


class EventReader:
    """Feed it bytes; it gives the events that are whole."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self._begun = False
        self._name = ""
        self._data: list[str] = []
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[Event]:
        """The events that this chunk completes."""
        self._rest += chunk
        if (
            b"\n" not in chunk
            and b"\r" not in chunk
            and not self._rest.endswith(b"\r", 0, len(self._rest) - len(chunk))
        ):
            if len(self._rest) > LONGEST_EVENT:
                raise ValueError("a line of the event stream is longer than 16 MB")
            return
        lines, self._rest = _lines(self._rest)
        for line in lines:
            event = self._line(line)
            if event is not None:
                yield event

    @property
    def is_between_events(self) -> bool:
        """Whether the stream could end here without losing anything."""
        return not self._rest.strip() and not self._data and not self._name

    def _line(self, line: bytearray) -> Event | None:
        if not self._begun:
            self._begun, line = True, line.removeprefix(BYTE_ORDER_MARK)
        if not line:
            event = Event(self._name or "message", "\n".join(self._data)) if self._data else None
            self._name, self._data, self._size = "", [], 0
            return event
        field, _, value = line.partition(b":")
        text = value.removeprefix(b" ").decode("utf-8", "replace")
        if field == b"data":
            self._size += len(text)
            if self._size > LONGEST_EVENT:
                raise ValueError("an event of the stream is longer than 16 MB")
            self._data.append(text)
        elif field == b"event":
            self._name = text
        return None


def _lines(buffer: bytearray) -> tuple[list[bytearray], bytearray]:
    """The whole lines, and what is left. A CR at the very end may be half of a CR LF and is left, too."""
    held = b"\r" if buffer.endswith(b"\r") else b""
    lines = buffer.removesuffix(held).replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
    return lines[:-1], lines[-1] + held


_EVENT_END = re.compile(rb"(?>\r\n|\n|\r){2,}+")
MOST_LINES, MOST_VALUES = 10_000, 200_000
"""Of an event; one that may have more is not looked into, and passes as it came."""


class RawEvent(NamedTuple):
    """An event with the bytes it came in, its empty line included."""

    raw: bytes
    name: str
    data: str

    @property
    def value(self) -> dict[str, Any]:
        """Its data as an object; an empty one if it is none."""
        try:
            found = jsonio.decode(self.data) if self.data else None
        except jsonio.NotJSON:
            return {}
        return found if isinstance(found, dict) else {}

    def written(self, value: Any) -> bytes:
        """An event of the same name with another value."""
        name = f"event: {self.name}\n".encode() if self.name else b""
        return name + b"data: " + jsonio.encode(value) + b"\n\n"


class RawEvents:
    """Feed it bytes; it gives whole events with their bytes, of which none is lost: joined they are what came in."""

    def __init__(self) -> None:
        self._rest = bytearray()
        self.is_crowded = False
        """Whether an event was not looked into."""

    def feed(self, chunk: bytes) -> Iterator[RawEvent]:
        known = len(self._rest)
        self._rest += chunk
        start = 0
        for end in [found.end() for found in _EVENT_END.finditer(self._rest, max(0, known - 3))]:
            yield self._event(bytes(self._rest[start:end]))
            start = end
        del self._rest[:start]
        if len(self._rest) > LONGEST_EVENT:
            raise ValueError("an event of the stream is longer than 16 MB")

    def end(self) -> Iterator[RawEvent]:
        """What came after the last whole event."""
        if self._rest:
            yield self._event(bytes(self._rest))
            self._rest.clear()

    def _event(self, raw: bytes) -> RawEvent:
        if raw.count(b"\n") + raw.count(b"\r") > MOST_LINES or raw.count(b",") > MOST_VALUES:
            self.is_crowded = self.is_crowded or bool(raw.strip(b"\r\n"))
            return RawEvent(raw, "", "")
        return _raw_event(raw)


def _raw_event(raw: bytes) -> RawEvent:
    event = next(EventReader().feed(raw.strip(b"\r\n") + b"\n\n"), None)
    if event is None:
        return RawEvent(raw, "", "")
    named = re.search(rb"(?m)^event:", raw)
    return RawEvent(raw, event.name if named else "", event.data)
