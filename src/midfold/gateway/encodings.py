"""Bodies without their content coding: requests that clients compress, answers that are looked at on the side.

Rules of this file:
1. A small body may hold a huge one: nothing is read beyond the bytes that it may have.
2. gzip and deflate need nothing but Python. zstd and br are read where their packages are installed (the extra
   `compressed`); elsewhere such a request is refused with their name, because nobody could fold it.
3. Answers are looked at if they are gzip or deflate: clients are not offered others (see `routes`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from typing import Any

from midfold.errors import TranscriptError, UnreadableEncoding

PLAIN = ("", "identity")
GZIP = ("gzip", "x-gzip")
MOST_READ = 64_000_000
NOT_READABLE = "the body is not what its content-encoding says"


class BodyTooLarge(Exception):
    """The body is larger than may be read of it."""


def decode_body(data: bytes, encoding: str, most: int = MOST_READ) -> bytes:
    """The beginning of an answer without its coding; nothing if it cannot be read."""
    try:
        return inflating(encoding, most)(data)
    except zlib.error:
        return b""


def inflating(encoding: str, most: int = MOST_READ) -> Callable[[bytes], bytes]:
    """Takes the coding off an answer piece by piece; nothing is left of one that is not known. Raises zlib.error."""
    if encoding in PLAIN:
        return bytes
    if encoding not in (*GZIP, "deflate"):
        return lambda chunk: b""
    inflate = zlib.decompressobj(15 if encoding == "deflate" else 47)
    return lambda chunk: inflate.decompress(chunk, most)


def decode_request(data: bytes, encoding: str, most: int) -> bytes:
    """A request without its coding; in a thread. Raises BodyTooLarge, UnreadableEncoding or TranscriptError."""
    if encoding in PLAIN:
        return data
    if encoding in GZIP:
        decoded = _inflate_members(data, most)
    elif encoding == "deflate":
        decoded = _inflate_deflate(data, most)
    elif encoding in _OTHERS:
        decoded = _OTHERS[encoding](data, most)
    else:
        known = "gzip, deflate, zstd and br"
        raise UnreadableEncoding(f"a body with content-encoding {encoding[:40]!r} cannot be read here: {known} can be")
    if len(decoded) > most:
        raise BodyTooLarge
    return decoded


def _inflate_members(data: bytes, most: int) -> bytes:
    """gzip may have several members, one behind the other (RFC 1952, 2.2)."""
    pieces: list[bytes] = []
    left = most + 1
    while data and left > 0:
        inflate = zlib.decompressobj(31)
        piece = _inflate(inflate, data, left)
        pieces.append(piece)
        left -= len(piece)
        data = inflate.unused_data
    return b"".join(pieces)


def _inflate_deflate(data: bytes, most: int) -> bytes:
    """With the wrapper of zlib, as HTTP means it (RFC 9110, 8.4.1.2), or without, as some clients do."""
    try:
        return _inflate(zlib.decompressobj(15), data, most + 1)
    except TranscriptError:
        return _inflate(zlib.decompressobj(-15), data, most + 1)


def _inflate(inflate: Any, data: bytes, most: int) -> bytes:
    try:
        decoded: bytes = inflate.decompress(data, most)
    except zlib.error:
        raise TranscriptError(NOT_READABLE) from None
    if len(decoded) < most and not inflate.eof:
        raise TranscriptError(NOT_READABLE)
    return decoded


def _decode_zstd(data: bytes, most: int) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise UnreadableEncoding.lacking("zstd") from None
    try:
        with zstandard.ZstdDecompressor(max_window_size=1 << 27).stream_reader(data, read_across_frames=True) as reader:
            decoded: bytes = reader.read(most + 1)
        # A reader takes the end of the data for the end of a frame. What is known to be small can be read once more.
        left = data if len(decoded) <= most else b""
        while left:
            frame = zstandard.ZstdDecompressor(max_window_size=1 << 27).decompressobj()
            frame.decompress(left)
            if not frame.eof:
                raise TranscriptError(NOT_READABLE)
            left = frame.unused_data
        return decoded
    except (zstandard.ZstdError, MemoryError):
        raise TranscriptError(NOT_READABLE) from None


def _decode_br(data: bytes, most: int) -> bytes:
    try:
        brotli: Any = import_module("brotli")
    except ImportError:
        raise UnreadableEncoding.lacking("br") from None
    try:
        reader = brotli.Decompressor()
        decoded: bytes = reader.process(data, output_buffer_limit=most + 1)
        while len(decoded) <= most and not reader.is_finished():
            more: bytes = reader.process(b"", output_buffer_limit=most + 1 - len(decoded))
            if not more:
                raise TranscriptError(NOT_READABLE)
            decoded += more
        return decoded
    except (brotli.error, TypeError):
        raise TranscriptError(NOT_READABLE) from None


_OTHERS: dict[str, Callable[[bytes, int], bytes]] = {"zstd": _decode_zstd, "br": _decode_br}
