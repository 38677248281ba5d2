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
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec

from midfold.gateway.table import Made

MOST_HELD = 8_000_000
MOST_EVENTS = 8
_BLANK = re.compile(rb"\r?\n\r?\n")
_BEGINNING = re.compile(rb'\s*+\{\s*+"id"\s*+:\s*+"([A-Za-z0-9_.:-]{1,200})"')
Keep = Callable[[list[str]], Awaitable[None]]


class _Answer(msgspec.Struct, gc=False):
    id: Any = None
    output_file_id: Any = None
    error_file_id: Any = None
    file: Any = None
    response: Any = None


_decoder = msgspec.json.Decoder(_Answer)


def ids_in(data: bytes, made: Made) -> list[str]:
    """The ids that an answer, or an event of one, names."""
    try:
        found = _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return []
    named = [found.id]
    if made == "batch":
        named += [found.output_file_id, found.error_file_id]
    inner = {"upload": found.file, "response": found.response}.get(made)
    if isinstance(inner, dict):
        named.append(inner.get("id"))
    return [one for one in named if isinstance(one, str) and one]


class Issued:
    """One answer on its way; `keep` is told the ids."""

    def __init__(self, made: Made, *, is_stream: bool, encoding: str, keep: Keep) -> None:
        self._made, self._is_stream, self._keep = made, is_stream, keep
        self._inflate = _inflating(encoding)
        self._plain = bytearray()
        self._searched = 0
        self._events = 0

    async def through(self, chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """The same bytes. Their ids are kept when the last of them has passed."""
        held: list[bytes] = []
        ids: list[str] | None = None
        keeping: asyncio.Future[None] | None = None
        async for chunk in chunks:
            if ids is None:
                ids = self._read(chunk)
                keeping = asyncio.ensure_future(self._keep(ids)) if ids else None
            held.append(chunk)
            if self._is_stream or ids is not None:
                for one in held:
                    yield one
                held.clear()
        if ids is None and not self._is_stream:
            keeping = asyncio.ensure_future(self._keep(ids_in(bytes(self._plain), self._made)))
        if keeping is not None:
            await asyncio.shield(keeping)
        for one in held:
            yield one

    def _read(self, chunk: bytes) -> list[str] | None:
        """The ids, as far as the answer has come; None if there may be some further on."""
        try:
            self._plain += self._inflate(chunk)
        except zlib.error:
            return []
        if len(self._plain) > MOST_HELD:
            found = None if self._is_stream else _BEGINNING.match(self._plain)
            return [found[1].decode()] if found else []
        return self._first_event() if self._is_stream else None

    def _first_event(self) -> list[str] | None:
        while (end := self._blank_line()) is not None:
            event = bytes(self._plain[:end])
            del self._plain[:end]
            lines = [line[5:].strip() for line in event.splitlines() if line.startswith(b"data:")]
            if not lines:
                continue
            self._events += 1
            ids = ids_in(b"\n".join(lines), self._made)
            if ids or self._events >= MOST_EVENTS:
                return ids
        return None

    def _blank_line(self) -> int | None:
        """Where the first event ends; what was searched already is not searched again."""
        found = _BLANK.search(self._plain, self._searched)
        self._searched = 0 if found else max(0, len(self._plain) - 3)
        return found.end() if found else None


def _inflating(encoding: str) -> Callable[[bytes], bytes]:
    if encoding in ("", "identity"):
        return bytes
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return lambda chunk: b""
    inflate = zlib.decompressobj(15 if encoding == "deflate" else 47)
    return lambda chunk: inflate.decompress(chunk, MOST_HELD + 1)
