"""Read and write JSON as clients really send it.

msgspec rejects lone surrogates, NaN, 1e400 and bytes that are not UTF-8; agents send all of these. Input that msgspec
rejects is read by the standard library. Numbers that Python would change are kept as literal text in `msgspec.Raw`, so
writing a value never alters them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

_any = msgspec.json.Decoder()
_raw = msgspec.json.Decoder(Raw)

_SURROGATE = re.compile("[\ud800-\udfff]")
_INVALID_NUMBERS = (b"NaN", b"Infinity", b"-Infinity")
MAX_PATH_STEPS, MAX_KEY_CHARACTERS = 50, 100
"""Maximum steps of a path in an error message, and characters per key."""
PLAIN_DEPTH = 8
REFUSALS = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class NotJSON(ValueError):
    """Error for bytes that are not JSON; `offset` is the byte position, or None if nesting is too deep."""

    def __init__(self, reason: str, offset: int | None = None) -> None:
        self.reason, self.offset = reason, offset
        super().__init__(reason if offset is None else f"{reason} at byte {offset}")


def decode(data: bytes | str | Raw) -> Any:
    """Return the value of any JSON text a client may send; raise NotJSON only if it is not JSON at all."""
    try:
        return _any.decode(data)
    except (*REFUSALS, UnicodeEncodeError):
        return _decode_leniently(data)


def _decode_leniently(data: bytes | str | Raw) -> Any:
    text = data if isinstance(data, str) else bytes(data).decode("utf-8", "surrogateescape")
    text = text.removeprefix("\ufeff")
    try:
        return json.loads(text, strict=False, parse_float=_exact_float, parse_constant=_literal, parse_int=_integer)
    except json.JSONDecodeError as error:
        offset = len(text[: error.pos].encode("utf-8", "surrogateescape"))
        raise NotJSON(error.msg.lower(), offset) from None
    except RecursionError:
        raise NotJSON("nested too deeply to read") from None


def _exact_float(literal: str) -> float | Raw:
    value = float(literal)
    return value if math.isfinite(value) else _literal(literal)


def _integer(literal: str) -> int | Raw:
    # CPython refuses to convert integers of more than 4,300 digits; keep such literals unconverted.
    return int(literal) if len(literal) < 4000 else _literal(literal)


def _literal(literal: str) -> Raw:
    return Raw(literal.encode())


def encode(value: Any) -> bytes:
    """Return compact JSON of a value made of JSON types and `Raw`; other objects are written as their `str`."""
    try:
        data = msgspec.json.encode(value, enc_hook=str)
        if b"null" not in data or not _has_invalid_number(value):
            return data
    except (UnicodeEncodeError, TypeError, RecursionError):
        pass
    return "".join(_pieces(value)).encode("utf-8", "surrogateescape")


def encode_quickly(value: Any) -> bytes:
    """Encode like `encode`, except that NaN may become null; for hashing and measuring only."""
    try:
        return msgspec.json.encode(value, enc_hook=str)
    except (UnicodeEncodeError, TypeError, RecursionError):
        return encode(value)


def _has_invalid_number(value: Any) -> bool:
    """Return whether the value holds a NaN or infinity, which msgspec would write as null."""
    if isinstance(value, float):
        return not math.isfinite(value)
    if isinstance(value, Mapping):
        return any(_has_invalid_number(item) for item in value.values())
    if isinstance(value, list | tuple):
        return any(_has_invalid_number(item) for item in value)
    return False


def find_invalid_number(value: Any) -> tuple[str, str] | None:
    """Return path and literal of the first number that JSON does not allow, or None.

    Raw bytes are searched too. A literal that is only too large for Python is valid JSON.
    """
    if isinstance(value, Raw):
        data = bytes(value)
        if not any(literal in data for literal in _INVALID_NUMBERS):
            return None
        try:
            _any.decode(data)
        except (*REFUSALS, UnicodeEncodeError):
            return _find_invalid_number(_decode_leniently(data))
        return None
    return None if is_plain_json([value]) else _find_invalid_number(value)


def is_plain_json(values: list[Any]) -> bool:
    """Return quickly whether all values are plain JSON types; deeply nested values return False."""
    level: list[Any] = [values]
    for _ in range(PLAIN_DEPTH):
        below: list[Any] = []
        for holder in level:
            for item in holder.values() if type(holder) is dict else holder:
                kind = type(item)
                if kind is str:
                    continue
                if kind is dict or kind is list:
                    below.append(item)
                elif kind is float:
                    if not math.isfinite(item):
                        return False
                elif kind is not int and kind is not bool and item is not None:
                    return False
        if not below:
            return True
        level = below
    return False


class _Step(NamedTuple):
    """One step of a path, linked to its parent because keys may be long and shared by many values."""

    before: _Step | None
    key: Any
    is_named: bool


def _find_invalid_number(value: Any) -> tuple[str, str] | None:
    """Search iteratively, as the nesting may exceed the recursion limit; visit each container once."""
    todo: list[tuple[Any, _Step | None]] = [(value, None)]
    seen: set[int] = set()
    while todo:
        item, place = todo.pop()
        if isinstance(item, float) and not math.isfinite(item):
            return _path(place), json.dumps(item)
        if isinstance(item, Raw) and bytes(item) in _INVALID_NUMBERS:
            return _path(place), bytes(item).decode()
        if isinstance(item, Mapping | list | tuple) and id(item) not in seen:
            seen.add(id(item))
            named = isinstance(item, Mapping)
            inside = item.items() if isinstance(item, Mapping) else enumerate(item)
            todo += reversed([(one, _Step(place, key, named)) for key, one in inside])
    return None


def _path(last: _Step | None) -> str:
    steps: list[str] = []
    while last is not None and len(steps) < MAX_PATH_STEPS:
        key = str(last.key)[:MAX_KEY_CHARACTERS]
        steps.append(f".{key}" if last.is_named else f"[{key}]")
        last = last.before
    return "".join(reversed(steps))


class _Mark(NamedTuple):
    """Punctuation in the queue of values to write; `closes` is the id of the container it ends."""

    text: str
    closes: int = 0


def _pieces(value: Any) -> list[str]:
    """Write iteratively, so that depth is limited by memory instead of the stack; cut cycles."""
    out: list[str] = []
    todo: list[Any] = [value]
    open_containers: set[int] = set()
    while todo:
        item = todo.pop()
        if isinstance(item, _Mark):
            out.append(item.text)
            open_containers.discard(item.closes)
        elif not isinstance(item, Mapping | list | tuple):
            out.append(_scalar(item))
        elif id(item) in open_containers:
            out.append('"(cycle)"')
        else:
            open_containers.add(id(item))
            todo.extend(_reversed_entries(item))
    return out


def _reversed_entries(item: Any) -> list[Any]:
    keyed = isinstance(item, Mapping)
    entries: list[Any] = [_Mark("{" if keyed else "[")]
    for index, entry in enumerate(item.items() if keyed else item):
        comma = "," if index else ""
        if keyed:
            entries += (_Mark(f"{comma}{_quote(str(entry[0]))}:"), entry[1])
        else:
            entries += (_Mark(comma), entry)
    entries.append(_Mark("}" if keyed else "]", closes=id(item)))
    return entries[::-1]


def _scalar(item: Any) -> str:
    if isinstance(item, Raw):
        return bytes(item).decode("utf-8", "surrogateescape")
    if isinstance(item, float) and not math.isfinite(item):
        return json.dumps(item)
    if item is None or isinstance(item, bool | int | float):
        return msgspec.json.encode(item).decode()
    return _quote(item if isinstance(item, str) else str(item))


def _quote(text: str) -> str:
    """Return a JSON string as msgspec writes it, with lone surrogates escaped."""
    try:
        return msgspec.json.encode(text).decode()
    except UnicodeEncodeError:
        return _SURROGATE.sub(lambda found: f"\\u{ord(found.group()):04x}", json.dumps(text, ensure_ascii=False))


def whole(text: str) -> str:
    """Replace lone surrogates with U+FFFD, as UTF-8 and stores cannot hold them."""
    return text if text.isascii() else _SURROGATE.sub("\ufffd", text)


def encode_record(value: Any) -> bytes:
    """Encode a record, replacing lone surrogates (a client's tool names may contain some)."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_replace_nested(msgspec.to_builtins(value)))


def _replace_nested(value: Any) -> Any:
    if isinstance(value, dict):
        return {_replace_nested(key): _replace_nested(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_replace_nested(item) for item in value]
    return whole(value) if isinstance(value, str) else value


def text_of(value: Any) -> str:
    """Return the JSON text of a value as a string, for counting, comparing and hashing."""
    return encode(value).decode("utf-8", "surrogateescape")


def is_json(text: str | bytes) -> bool:
    """Return whether the text is JSON, without building the value if msgspec can decide."""
    try:
        _raw.decode(text)
    except (*REFUSALS, UnicodeEncodeError):
        try:
            _decode_leniently(text)
        except NotJSON:
            return False
    return True


# Byte positions of array elements and object values. A span is exact: `source[start:end]` is one value without
# surrounding white space. All functions are linear in the bytes and do not recurse. msgspec finds the ends; if it
# rejects the input, a scanner over quotes and brackets does.


_elements = msgspec.json.Decoder(list[Raw])
_entries = msgspec.json.Decoder(dict[str, Raw])

_SPACE = re.compile(rb"[ \t\r\n]*")
_COMMA = re.compile(rb"[ \t\r\n]*,[ \t\r\n]*")
_STRING = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"', re.DOTALL)
_MARK = re.compile(rb'"[^"\\]*+(?>(?:\\.[^"\\]*+)*)"|[\[\]{}"]', re.DOTALL)
_SCALAR = re.compile(rb"[^\s,\]}\[{\"]+")


class Span(NamedTuple):
    start: int
    end: int


def elements(source: bytes | Raw) -> list[Raw]:
    """Return the elements of a JSON array as their exact bytes."""
    try:
        return _elements.decode(source)
    except REFUSALS:
        data = bytes(source)
        return [Raw(data[start:end]) for start, end in array_spans(data)]


def first_byte(source: Raw) -> bytes:
    """Return the first byte, which identifies the JSON type, without copying the others."""
    return bytes(memoryview(source)[:1])


def array_spans(source: bytes) -> list[Span]:
    """Return the spans of the array's elements; raise NotJSON if anything follows the array."""
    position = _skip(source, _expect(source, _skip(source, 0), b"["))
    spans: list[Span] = []
    if source[position : position + 1] == b"]":
        return _require_end(source, position + 1, spans)
    while True:
        begin = _skip(source, position)
        end = value_end(source, begin)
        spans.append(Span(begin, end))
        position = _skip(source, end)
        if source[position : position + 1] == b"]":
            return _require_end(source, position + 1, spans)
        position = _expect(source, position, b",")


def _require_end(source: bytes, end: int, spans: list[Span]) -> list[Span]:
    if _skip(source, end) != len(source):
        raise NotJSON("unexpected data after the array", end)
    return spans


def entries(source: bytes) -> dict[str, Raw]:
    """Return the values of a JSON object by key as their exact bytes; raise NotJSON if anything follows it."""
    try:
        return _entries.decode(source)
    except REFUSALS:
        spans = object_spans(source)
        end = _skip(source, spans[-1][2].end) if spans else _skip(source, _expect(source, _skip(source, 0), b"{"))
        rest = _skip(source, _expect(source, end, b"}"))
        if rest != len(source):
            raise NotJSON("unexpected data after the object", rest) from None
        return {decode(key): Raw(source[span.start : span.end]) for key, _, span in spans}


def object_spans(source: bytes, known: Mapping[str, Raw] | None = None) -> list[tuple[bytes, Span, Span]]:
    """Return the entries of the object at the start of `source`: (key bytes, span of key, span of value).

    `known` is the result of `entries`, if already computed.
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
    """Return the end of a value by its known length if the bytes match (a repeated key has several values), else by a
    scan.
    """
    if value is not None:
        length = memoryview(value).nbytes
        if length > 64 and source.startswith(value, start):
            return start + length
    return value_end(source, start)


def value_end(source: bytes, start: int) -> int:
    """Return the end of the value that begins at `start`."""
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
    """Yield the start and end of each element in an array or in lines."""
    match = _COMMA.match if between else _SPACE.match
    position = _end(_SPACE, source, _end(_SPACE, source, 0) + len(opening))
    for element in elements:
        end = position + memoryview(element).nbytes
        yield position, end
        found = match(source, end)
        position = found.end() if found else end


def gaps(source: bytes, elements: Sequence[Raw], opening: bytes = b"[", between: bytes = b",") -> list[bytes]:
    """Return the bytes before, between and after the elements: one more piece than elements."""
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
