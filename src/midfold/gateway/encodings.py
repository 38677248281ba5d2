"""Decode the content encodings of request bodies and of responses that the gateway reads.

1. Protection against decompression bombs: a request is decoded in small parts, and each is counted against the
   limits of one request and of all requests before the next is decoded.
2. gzip and deflate need only the standard library; zstd and br need the extra `compressed`. Without it such a
   request is refused with the name of the package, because it could not be compacted.
3. Responses are read if they are gzip or deflate: upstreams are not offered other encodings (see `routes`).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

from midfold.errors import TranscriptError, UnreadableEncoding

PLAIN = ("", "identity")
GZIP = ("gzip", "x-gzip")
MAX_DECODED_BYTES = 64_000_000
NOT_READABLE = "the body does not match its content-encoding"
INPUT_SLICE_BYTES = 1 << 16
"""Bytes of a compressed request that are fed to the decoder at once."""
MAX_STEP_BYTES = 1 << 20
"""Maximum bytes that one decoding step returns."""
ZSTD_SLICE_BYTES = 256
"""Bytes fed to zstd at once, because its decoder takes no output limit: 4 bytes can decode to a block of 128 KB."""
MAX_ZSTD_WINDOW_BYTES = 1 << 23
"""Maximum window size in bytes of zstd as a content encoding (RFC 9659)."""
MAX_FRAMES = 10_000
"""Maximum gzip members or zstd frames in one body, because each costs time."""

Hold = Callable[[int], None]
"""Callback that counts decoded bytes; raises if the memory limit is exceeded."""


class BodyTooLarge(Exception):
    """Body that is larger than its limit."""


def ignore_size(size: int) -> None:
    pass


def decode_body(data: bytes, encoding: str, max_bytes: int = MAX_DECODED_BYTES) -> bytes:
    """Return the first `max_bytes` bytes of a decoded response; empty if it cannot be decoded."""
    try:
        return incremental_decoder(encoding, max_bytes)(data)
    except zlib.error:
        return b""


def incremental_decoder(encoding: str, max_bytes: int = MAX_DECODED_BYTES) -> Callable[[bytes], bytes]:
    """Return an incremental decoder of responses; for unknown encodings it returns nothing. Raises zlib.error."""
    if encoding in PLAIN:
        return bytes
    if encoding not in (*GZIP, "deflate"):
        return lambda chunk: b""
    inflate = zlib.decompressobj(15 if encoding == "deflate" else 47)
    return lambda chunk: inflate.decompress(chunk, max_bytes)


def decode_request(data: bytes, encoding: str, max_bytes: int, hold: Hold = ignore_size) -> bytes:
    """Return a decoded request body; run it in a thread.

    Calls `hold` with the size of each part as soon as it is decoded, so that decompression bombs stop at the shared
    memory limit. Raises BodyTooLarge, UnreadableEncoding or TranscriptError, and whatever `hold` raises.
    """
    if encoding in PLAIN or not data:
        return data
    if encoding not in _DECODERS:
        raise UnreadableEncoding(f"content-encoding {encoding[:40]!r} is not supported; use gzip, deflate, zstd or br")
    pieces: list[bytes] = []
    for piece in _DECODERS[encoding](data):
        max_bytes -= len(piece)
        if max_bytes < 0:
            raise BodyTooLarge
        hold(len(piece))
        pieces.append(piece)
    return b"".join(pieces)


def _slices(data: bytes, size: int = INPUT_SLICE_BYTES) -> Iterator[bytes]:
    return (data[start : start + size] for start in range(0, len(data), size))


def _decode_gzip(data: bytes) -> Iterator[bytes]:
    """Yield the content of all members of a gzip body (RFC 1952, 2.2)."""
    return _inflate(data, 31, MAX_FRAMES)


def _decode_deflate(data: bytes) -> Iterator[bytes]:
    """Yield the content of a deflate body, with a zlib header (RFC 9110, 8.4.1.2) or, as some clients send it,
    without.

    No encoder writes a raw body that begins like a zlib header: it would be a stored block with nonzero padding.
    """
    has_header = data[0] & 15 == 8 and int.from_bytes(data[:2], "big") % 31 == 0
    return _inflate(data, 15 if has_header else -15, 1)


def _inflate(data: bytes, bits: int, max_members: int) -> Iterator[bytes]:
    """Yield at most `MAX_STEP_BYTES` bytes at a time; ignore data after the member if the format allows only one."""
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
                yield member.decompress(rest, MAX_STEP_BYTES)
                rest = member.unconsumed_tail or member.unused_data
        while not member.eof:
            piece = member.decompress(b"", MAX_STEP_BYTES)
            if not piece:
                raise TranscriptError(NOT_READABLE)
            yield piece
    except zlib.error:
        raise TranscriptError(NOT_READABLE) from None


def _decode_zstd(data: bytes) -> Iterator[bytes]:
    """Yield the content of all frames; a slice of `ZSTD_SLICE_BYTES` bytes decodes to at most 8 MB."""
    try:
        import zstandard
    except ImportError:
        raise UnreadableEncoding.lacking("zstd") from None
    decompressor = zstandard.ZstdDecompressor(max_window_size=MAX_ZSTD_WINDOW_BYTES)
    frame, left = decompressor.decompressobj(), MAX_FRAMES
    try:
        for part in _slices(data, ZSTD_SLICE_BYTES):
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
    """Yield at most about `MAX_STEP_BYTES` bytes at a time; ignore data after the end."""
    try:
        brotli: Any = import_module("brotli")
    except ImportError:
        raise UnreadableEncoding.lacking("br") from None
    reader = brotli.Decompressor()
    try:
        for rest in _slices(data):
            piece = reader.process(rest, output_buffer_limit=MAX_STEP_BYTES)
            while piece:
                yield piece
                piece = b"" if reader.is_finished() else reader.process(b"", output_buffer_limit=MAX_STEP_BYTES)
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
