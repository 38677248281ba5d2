"""The ids that a provider gives out in an answer, read as it passes.

Rules of this file:
1. Bytes are passed on as they came. An answer in one piece is held until it is complete and its ids are kept; a stream
   is never held, and its ids are kept before it ends.
2. What is too large to be read (an answer with pictures) is passed on, and only an id that it begins with is kept. What
   cannot be read is passed on, and its ids are nobody's.
"""

from __future__ import annotations

import asyncio
import re
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import msgspec

from midfold.gateway.table import Made
from midfold.transcript.sse import EventReader, StreamEvent

MOST_HELD = 8_000_000
MOST_EVENTS = 8
_BEGINNING = re.compile(rb'\s*+\{\s*+"id"\s*+:\s*+"([A-Za-z0-9_.:-]{1,200})"')
Keep = Callable[[list[str]], Awaitable[None]]


class _Answer(msgspec.Struct, gc=False):
    id: Any = None
    output_file_id: Any = None
    error_file_id: Any = None
    file: Any = None
    response: Any = None


_decoder = msgspec.json.Decoder(_Answer)


def ids_in(found: Mapping[str, Any], made: Made) -> list[str]:
    """The ids that an answer, or an event of one, names."""
    named = [found.get("id")]
    if made == "batch":
        named += [found.get("output_file_id"), found.get("error_file_id")]
    inner = {"upload": found.get("file"), "response": found.get("response")}.get(made)
    if isinstance(inner, dict):
        named.append(inner.get("id"))
    return [one for one in named if isinstance(one, str) and one]


def _fields(body: bytes) -> dict[str, Any]:
    try:
        return msgspec.structs.asdict(_decoder.decode(body))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return {}


class Issued:
    """One answer on its way; `keep` is told the ids."""

    def __init__(self, made: Made, *, is_stream: bool, encoding: str, keep: Keep) -> None:
        self._made, self._is_stream, self._keep = made, is_stream, keep
        self._inflate = _inflating(encoding)
        self._plain = bytearray()
        self._events = EventReader()
        self._size = self._seen = 0
        self._is_known = False
        """Whether nothing more is looked for."""
        self._keeping: asyncio.Future[None] | None = None

    async def through(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same bytes. Their ids are kept when the last of them has passed."""
        held: list[bytes] = []
        async for chunk in chunks:
            if not self._is_known:
                self._read(chunk)
            held.append(chunk)
            if self._is_stream or self._is_known:
                for one in held:
                    yield one
                held.clear()
        if not self._is_known and not self._is_stream:
            self._found(ids_in(_fields(bytes(self._plain)), self._made))
        await self.settle()
        for one in held:
            yield one

    def look(self, event: StreamEvent) -> None:
        """An event of a stream that somebody reads."""
        if self._is_known or not event.data:
            return
        self._seen += 1
        ids = ids_in(event.value or {}, self._made)
        if ids or self._seen >= MOST_EVENTS:
            self._found(ids)

    async def settle(self) -> None:
        """Waits until the ids are kept."""
        if self._keeping is not None:
            await asyncio.shield(self._keeping)

    def _found(self, ids: list[str]) -> None:
        self._is_known = True
        self._plain.clear()
        if ids:
            self._keeping = asyncio.ensure_future(self._keep(ids))

    def _read(self, chunk: bytes) -> None:
        try:
            plain = self._inflate(chunk)
        except zlib.error:
            self._found([])
            return
        self._size += len(plain)
        if not self._is_stream:
            self._plain += plain
        if self._size > MOST_HELD:
            found = _BEGINNING.match(self._plain)
            self._found([found[1].decode()] if found else [])
        elif self._is_stream:
            for event in self._events.feed(plain):
                self.look(event)


def _inflating(encoding: str) -> Callable[[bytes], bytes]:
    if encoding in ("", "identity"):
        return bytes
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return lambda chunk: b""
    inflate = zlib.decompressobj(15 if encoding == "deflate" else 47)
    return lambda chunk: inflate.decompress(chunk, MOST_HELD + 1)
