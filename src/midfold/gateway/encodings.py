"""Remove the content coding of requests that clients compress, and of answers that are read on the side.

Rules of this file:
1. A small body may hold a huge one: a request is decoded in small pieces, each counted against the limit of one request
   and the limit of all of them before the next one is made.
2. gzip and deflate need nothing but Python. zstd and br need the extra `compressed`; without it such a request is
   refused with the name of the package, because it could not be compacted.
3. Answers are read if they are gzip or deflate: clients are not offered others (see `routes`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from midfold.errors import TranscriptError, UnreadableEncoding

PLAIN = ("", "identity")
GZIP = ("gzip", "x-gzip")
MOST_READ = 64_000_000
NOT_READABLE = "the body is not what its content-encoding says"
SLICE = 1 << 16
"""Bytes of a compressed request that are decoded at once."""
PIECE = 1 << 20
"""Bytes that one step decodes at most."""
ZSTD_SLICE = 256
"""Of zstd, whose reader takes no limit: a block of 128 KB needs 4 bytes."""
ZSTD_WINDOW = 1 << 23
"""Bytes; the largest that zstd may use as a content coding (RFC 9659)."""
MAX_FRAMES = 10_000
"""gzip members or zstd frames in one body; each costs time of its own."""

Hold = Callable[[int], None]
"""Counts bytes that were decoded; raises where there is no memory for them."""


class BodyTooLarge(Exception):
    """The body is larger than may be read of it."""


def hold_nothing(size: int) -> None:
    pass


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


def decode_request(data: bytes, encoding: str, most: int, hold: Hold = hold_nothing) -> bytes:
    """Return a request body without its content coding; run it in a thread.

    Calls `hold` with the size of each piece as soon as it is decoded, so that a bomb ends where the memory of all
    requests does. Raises BodyTooLarge, UnreadableEncoding or TranscriptError, and whatever `hold` raises.
    """
    if encoding in PLAIN or not data:
        return data
    if encoding not in _DECODERS:
        known = "gzip, deflate, zstd and br"
        raise UnreadableEncoding(f"a body with content-encoding {encoding[:40]!r} cannot be read here: {known} can be")
    pieces: list[bytes] = []
    for piece in _DECODERS[encoding](data):
        most -= len(piece)
        if most < 0:
            raise BodyTooLarge
        hold(len(piece))
        pieces.append(piece)
    return b"".join(pieces)


def _slices(data: bytes, size: int = SLICE) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def _decode_gzip(data: bytes) -> Iterator[bytes]:
    """Yield the content of all members of a gzip body (RFC 1952, 2.2)."""
    return _inflate(data, 31, MAX_FRAMES)


def _decode_deflate(data: bytes) -> Iterator[bytes]:
    """Yield the content of a deflate body, with zlib's header (RFC 9110, 8.4.1.2) or, as some clients send it, without.

    No encoder writes a raw body that begins like a zlib header: it would be a stored block with padding that is not 0.
    """
    has_header = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return _inflate(data, 15 if has_header else -15, 1)


def _inflate(data: bytes, bits: int, max_members: int) -> Iterator[bytes]:
    """Yield at most `PIECE` bytes at a time; ignore what stands behind the only member of a format that has one."""
    member, left = zlib.decompressobj(bits), max_members - 1
    try:
        for part in _slices(data):
            rest = part
            while rest:
                if member.eof:
                    if max_members == 1:
                        return
                    if not left:
                        raise TranscriptError(NOT_READABLE)
                    member, left = zlib.decompressobj(bits), left - 1
                yield member.decompress(rest, PIECE)
                rest = member.unconsumed_tail or member.unused_data
        while not member.eof:
            piece = member.decompress(b"", PIECE)
            if not piece:
                raise TranscriptError(NOT_READABLE)
            yield piece
    except zlib.error:
        raise TranscriptError(NOT_READABLE) from None


def _decode_zstd(data: bytes) -> Iterator[bytes]:
    """Yield the content of all frames; a slice of `ZSTD_SLICE` bytes holds at most 8 MB of them."""
    try:
        import zstandard
    except ImportError:
        raise UnreadableEncoding.lacking("zstd") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=ZSTD_WINDOW)
    frame, left = decompressor.decompressobj(), MAX_FRAMES
    try:
        for part in _slices(data, ZSTD_SLICE):
            rest = part
            while rest:
                if frame.eof:
                    frame, left = decompressor.decompressobj(), left - 1
                if not left:
                    raise TranscriptError(NOT_READABLE)
                yield frame.decompress(rest)
                rest = frame.unused_data
        if not frame.eof:
            raise TranscriptError(NOT_READABLE)
    except (zstandard.ZstdError, MemoryError):
        raise TranscriptError(NOT_READABLE) from None


def _decode_br(data: bytes) -> Iterator[bytes]:
    """Yield at most about `PIECE` bytes at a time; ignore what stands behind the end."""
    try:
        brotli: Any = import_module("brotli")
    except ImportError:
        raise UnreadableEncoding.lacking("br") from None
    reader = brotli.Decompressor()
    try:
        for rest in _slices(data):
            piece = reader.process(rest, output_buffer_limit=PIECE)
            while piece:
                yield piece
                piece = b"" if reader.is_finished() else reader.process(b"", output_buffer_limit=PIECE)
            if reader.is_finished():
                return
    except (brotli.error, TypeError):
        raise TranscriptError(NOT_READABLE) from None
    raise TranscriptError(NOT_READABLE)


_DECODERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {
    **dict.fromkeys(GZIP, _decode_gzip),
    "deflate": _decode_deflate,
    "zstd": _decode_zstd,
    "br": _decode_br,
}
