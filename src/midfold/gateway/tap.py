"""Reads an answer on the side: what the provider says it cost. It never delays and never alters a byte.

Rules of this file:
1. Pieces are kept, not read, while the answer runs: the first few kilobytes and the last. They are read after the end.
2. An encoded answer is kept whole up to a limit, and read only if its encoding is known.
"""

from __future__ import annotations

import zlib
from collections import deque

from midfold.transcript.answers import usage_at_edges
from midfold.transcript.message import Usage

HEAD = 8_192
TAIL = 65_536
MOST_ENCODED = 4_000_000
MOST_DECODED, MOST_DECODED_LIGHT = 64_000_000, 4_000_000
LIGHT = 50_000
"""Bytes of an encoded answer that are decoded in a moment."""


class Tap:
    """One answer as it passes by."""

    __slots__ = ("_encoding", "_head", "_kept", "_pieces", "_usage", "size")

    def __init__(self, encoding: str = "") -> None:
        self._encoding = encoding
        self._head = bytearray()
        self._pieces: deque[bytes] = deque()
        self._kept = 0
        self._usage: Usage | None = None
        self.size = 0

    def feed(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if len(self._head) < HEAD and not self._encoding:
            self._head += chunk[: HEAD - len(self._head)]
        self._pieces.append(chunk)
        self._kept += len(chunk)
        most = MOST_ENCODED if self._encoding else TAIL
        while self._kept - len(self._pieces[0]) >= most:
            self._kept -= len(self._pieces.popleft())

    def usage(self) -> Usage | None:
        """What the answer has said; None if it said nothing, or cannot be read. It is over when this is asked."""
        if self._pieces:
            self._usage = self._read()
            self._pieces.clear()
        return self._usage

    @property
    def is_heavy(self) -> bool:
        """Whether it takes more than a moment to read: what is encoded may be many times as large."""
        return bool(self._encoding) and self._kept > LIGHT

    def _read(self) -> Usage | None:
        tail = b"".join(self._pieces)
        if not self._encoding:
            return usage_at_edges(bytes(self._head), tail)
        most = MOST_DECODED if self._kept > LIGHT else MOST_DECODED_LIGHT
        whole = decoded(tail, self._encoding, most) if self._kept == self.size else b""
        return usage_at_edges(whole, whole)


def decoded(data: bytes, encoding: str, most: int = 64_000_000) -> bytes:
    """A body without its encoding; nothing if it cannot be read. Bounded: a small body may hold a huge one."""
    if encoding in ("", "identity"):
        return data
    if encoding not in ("gzip", "x-gzip", "deflate"):
        return b""
    try:
        return zlib.decompressobj(47 if encoding != "deflate" else 15).decompress(data, most)
    except zlib.error:
        return b""
