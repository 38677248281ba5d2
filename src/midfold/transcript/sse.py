"""Parse server-sent events (WHATWG) from bytes as they arrive, keeping the original bytes.

Lines end with LF, CR LF or CR, and a line break may be split over two reads. An empty line ends an event. Several
`data` lines are joined by line feeds, and one space after the colon is dropped. Lines that start with a colon are
comments; unknown fields and a leading byte order mark are ignored. The bytes of all events, joined, equal the input.
Each event is decoded at most once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import pairwise
from typing import Any

from midfold.transcript import jsonio

MAX_EVENT_BYTES = 16_000_000
MAX_EVENT_LINES, MAX_EVENT_VALUES = 10_000, 200_000
"""Maximum lines and values of an event; a larger one is passed through unparsed."""
BYTE_ORDER_MARK = "\ufeff"
_EVENT_END = re.compile(rb"(?:\n[\r\n]|\r\r|\r\n[\r\n])[\r\n]*+")
_SIMPLE_EVENT = re.compile(r"(?:event: ([^\r\n]*+)\n)?data: ([^\r\n]*+)\n\n")
_UNREAD: Any = object()
Decode = Callable[[str], Any]


class StreamEvent:
    """Event with its original bytes, including the empty line; without data, the bytes between events."""

    __slots__ = ("_decode", "_value", "data", "exceeds_limits", "name", "raw")

    def __init__(
        self,
        raw: bytes,
        name: str = "",
        data: str = "",
        decode: Decode = jsonio.decode,
        *,
        exceeds_limits: bool = False,
    ) -> None:
        self.raw, self.name, self.data = raw, name, data
        self.exceeds_limits = exceeds_limits
        """True if it exceeds the limits and was not parsed."""
        self._decode, self._value = decode, _UNREAD

    @property
    def value(self) -> dict[str, Any] | None:
        """Return the data as an object, or None if it is not one."""
        if self._value is _UNREAD:
            self._value = None
            if self.data.lstrip()[:1] == "{":
                with suppress(jsonio.NotJSON):
                    self._value = self._decode(self.data)
        value: dict[str, Any] | None = self._value
        return value

    @property
    def is_end(self) -> bool:
        """Return whether the event marks the end of an OpenAI stream."""
        return self.data.strip() == "[DONE]"


def event_bytes(name: str, value: Any) -> bytes:
    """Return an event in stream format."""
    return (f"event: {name}\n".encode() if name else b"") + b"data: " + jsonio.encode(value) + b"\n\n"


class EventReader:
    """Incremental parser of events; `decode` parses event data on first use."""

    def __init__(self, decode: Decode = jsonio.decode) -> None:
        self._decode = decode
        self._rest = bytearray()
        self._begun = False

    def feed(self, chunk: bytes) -> Iterator[StreamEvent]:
        """Yield the events that this chunk completes; raise ValueError if one exceeds the size limit."""
        known = len(self._rest)
        self._rest += chunk
        ends = [found.end() for found in _EVENT_END.finditer(self._rest, max(0, known - 3))]
        if ends:
            whole = bytes(self._rest)
            self._rest = self._rest[ends[-1] :]
            for start, end in pairwise((0, *ends)):
                yield self._event(whole[start:end])
        if len(self._rest) > MAX_EVENT_BYTES:
            raise ValueError("a stream event is longer than 16 MB")

    def end(self) -> Iterator[StreamEvent]:
        """Yield the incomplete rest after the last event."""
        if self._rest:
            yield self._event(bytes(self._rest))
            self._rest.clear()

    def _event(self, raw: bytes) -> StreamEvent:
        if len(raw) > MAX_EVENT_LINES and _is_crowded(raw):
            return StreamEvent(raw, exceeds_limits=bool(raw.strip(b"\r\n")))
        text = raw.decode("utf-8", "replace")
        if not self._begun:
            self._begun, text = True, text.removeprefix(BYTE_ORDER_MARK)
        simple = _SIMPLE_EVENT.fullmatch(text)
        if simple is not None:
            return StreamEvent(raw, simple[1] or "", simple[2], self._decode)
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
    return raw.count(b"\n") + raw.count(b"\r") > MAX_EVENT_LINES or raw.count(b",") > MAX_EVENT_VALUES
