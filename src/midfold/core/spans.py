"""Where the elements of a JSON array and the values of a JSON object stand in their bytes.

Rules of this file:
1. A span is exact: `source[start:end]` is one value, without the white space around it.
2. Every function is linear in the bytes and does not recurse, however deep the nesting.
3. msgspec finds the ends when it can; a scanner over quotes and brackets does when it refuses.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import msgspec
from msgspec import Raw

from midfold.core.jsonio import REFUSALS, NotJSON, decode

_elements = msgspec.json.Decoder(list[Raw])
_entries = msgspec.json.Decoder(dict[str, Raw])

_SPACE = re.compile(rb"[ \t\r\n]*")
_COMMA = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"', re.DOTALL)
_MARK = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[\[\]{}"]', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}\[{\"]+")


class Span(NamedTuple):
    start: int
    end: int


def elements(source: bytes | Raw) -> list[Raw]:
    """The elements of a JSON array, each over its exact bytes."""
    try:
        return _elements.decode(source)
    except REFUSALS:
        data = bytes(source)
        return [Raw(data[start:end]) for start, end in array_spans(data)]


def first_byte(source: Raw) -> bytes:
    """The byte that tells what kind of value it is; the others are not copied for it."""
    return bytes(memoryview(source)[:1])


def array_spans(source: bytes) -> list[Span]:
    """The spans of the elements of the array that `source` is; raises NotJSON if there is more after it."""
    position = _skip(source, _expect(source, _skip(source, 0), b"["))
    spans: list[Span] = []
    if source[position : position + 1] == b"]":
        return _whole(source, position + 1, spans)
    while True:
        begin = _skip(source, position)
        end = value_end(source, begin)
        spans.append(Span(begin, end))
        position = _skip(source, end)
        if source[position : position + 1] == b"]":
            return _whole(source, position + 1, spans)
        position = _expect(source, position, b",")


def _whole(source: bytes, end: int, spans: list[Span]) -> list[Span]:
    if _skip(source, end) != len(source):
        raise NotJSON("more after the array", end)
    return spans


def entries(source: bytes) -> dict[str, Raw]:
    """The values of a JSON object by key, each over its exact bytes; raises NotJSON if there is more after it."""
    try:
        return _entries.decode(source)
    except REFUSALS:
        spans = object_spans(source)
        end = _skip(source, spans[-1][2].end) if spans else _skip(source, _expect(source, _skip(source, 0), b"{"))
        rest = _skip(source, _expect(source, end, b"}"))
        if rest != len(source):
            raise NotJSON("more after the object", rest) from None
        return {decode(key): Raw(source[span.start : span.end]) for key, _, span in spans}


def object_spans(source: bytes, known: Mapping[str, Raw] | None = None) -> list[tuple[bytes, Span, Span]]:
    """The entries of the object that `source` begins with: (key's own bytes, span of key, span of value).

    `known` is what `entries` has found in it, where somebody has asked already.
    """
    try:
        measured = _entries.decode(source) if known is None else known
    except REFUSALS:
        measured = {}
    position = _expect(source, _skip(source, 0), b"{")
    spans: list[tuple[bytes, Span, Span]] = []
    position = _skip(source, position)
    if source[position : position + 1] == b"}":
        return spans
    while True:
        key_start = _skip(source, position)
        match = _STRING.match(source, key_start)
        if match is None:
            raise NotJSON("expected a key", key_start)
        value_start = _skip(source, _expect(source, _skip(source, match.end()), b":"))
        end = _measured_end(source, value_start, measured.get(decode(match.group())))
        spans.append((match.group(), Span(key_start, match.end()), Span(value_start, end)))
        position = _skip(source, end)
        if source[position : position + 1] == b"}":
            return spans
        position = _expect(source, position, b",")


def _measured_end(source: bytes, start: int, value: Raw | None) -> int:
    """Where a value ends: by its measured length where that fits (a repeated key has several), else by a scan."""
    if value is not None:
        length = memoryview(value).nbytes
        if length > 64 and source.startswith(value, start):
            return start + length
    return value_end(source, start)


def value_end(source: bytes, start: int) -> int:
    """Where the value that begins at `start` ends."""
    first = source[start : start + 1]
    if first == b'"':
        match = _STRING.match(source, start)
        if match is None:
            raise NotJSON("unterminated string", start)
        return match.end()
    if first not in (b"{", b"["):
        match = _SCALAR.match(source, start)
        if match is None:
            raise NotJSON("expected a value", start)
        return match.end()
    depth = 0
    for mark in _MARK.finditer(source, start):
        kind = mark.group()[:1]
        if kind in (b"{", b"["):
            depth += 1
        elif kind in (b"}", b"]"):
            depth -= 1
            if depth == 0:
                return mark.end()
        elif mark.end() - mark.start() == 1:
            raise NotJSON("unterminated string", mark.start())
    raise NotJSON("unterminated " + ("object" if first == b"{" else "array"), start)


def places(
    source: bytes | memoryview, elements: Sequence[Raw], opening: bytes = b"[", between: bytes = b","
) -> Iterator[tuple[int, int]]:
    """Where the elements of an array, or of lines, stand in it."""
    match = _COMMA.match if between else _SPACE.match
    position = _end(_SPACE, source, _end(_SPACE, source, 0) + len(opening))
    for element in elements:
        end = position + memoryview(element).nbytes
        yield position, end
        found = match(source, end)
        position = found.end() if found else end


def gaps(source: bytes, elements: Sequence[Raw], opening: bytes = b"[", between: bytes = b",") -> list[bytes]:
    """What stands before, between and after the elements of an array, or of lines: one more piece than elements."""
    pieces: list[bytes] = []
    last = 0
    for begin, end in places(source, elements, opening, between):
        pieces.append(source[last:begin])
        last = end
    pieces.append(source[last:])
    return pieces


def _end(pattern: re.Pattern[bytes], source: bytes | memoryview, position: int) -> int:
    match = pattern.match(source, position)
    return match.end() if match else position


def _skip(source: bytes, position: int) -> int:
    return _end(_SPACE, source, position)


def _expect(source: bytes, position: int, what: bytes) -> int:
    if source[position : position + 1] != what:
        raise NotJSON(f"expected {what.decode()!r}", position)
    return position + 1
