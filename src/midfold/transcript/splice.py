"""Write changed messages into their originals, keeping every unchanged byte or field."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from midfold.transcript import jsonio
from midfold.transcript.dialect import REMOVE, Dialect
from midfold.transcript.jsonio import elements, entries, object_spans
from midfold.transcript.message import Message, plain


def message_bytes(message: Message, dialect: type[Dialect]) -> bytes:
    """Return a message as JSON: its exact original bytes, or those with changed fields replaced."""
    wire = message.wire
    if type(wire) is dict:
        return jsonio.encode(wire)
    if isinstance(wire, Raw):
        return bytes(wire)
    if wire is None and isinstance(message.origin, Raw):
        origin = _read(message.origin)
        if isinstance(origin, Mapping):
            source = bytes(message.origin)
            changes = _changes(message, dialect, origin)
            return replace_values(source, _encode_changes(changes, source)) if changes else source
    return jsonio.encode(plain(message_value(message, dialect)))


def message_value(message: Message, dialect: type[Dialect]) -> Any:
    """Return a message as an object: the caller's own if unchanged, else a new dict."""
    if message.wire is not None:
        return plain(message.wire) if isinstance(message.wire, Raw) else message.wire
    origin = None if message.origin is None else _read(message.origin)
    known: Mapping[str, Any] = origin if isinstance(origin, Mapping) else {}
    merged = {**known, **_changes(message, dialect, known)}
    return {key: value for key, value in merged.items() if value is not REMOVE}


def _read(wire: Any) -> Any:
    try:
        return plain(wire)
    except jsonio.NotJSON:
        return None


def _changes(message: Message, dialect: type[Dialect], origin: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in dialect.fields(message, origin).items()
        if not (key in origin and origin[key] == value) and not (value is REMOVE and key not in origin)
    }


def _encode_changes(changes: Mapping[str, Any], source: bytes) -> dict[str, bytes | None]:
    old = entries(source) if any(isinstance(value, list) for value in changes.values()) else {}
    return {
        key: None if value is REMOVE else _list(value, old[key]) if key in old else jsonio.encode(value)
        for key, value in changes.items()
    }


def _list(value: Any, old: Raw) -> bytes:
    """Encode a list whose unchanged items keep their original bytes."""
    if not isinstance(value, list) or bytes(old)[:1] != b"[":
        return jsonio.encode(value)
    known = [bytes(raw) for raw in elements(old)]
    places: dict[bytes, list[int]] = {}
    for place in reversed(range(len(known))):
        places.setdefault(jsonio.encode(_read(Raw(known[place]))), []).append(place)
    out: list[bytes] = []
    position = 0
    for item in value:
        encoded = jsonio.encode(item)
        same = places.get(encoded, [])
        while same and same[-1] < position:
            same.pop()
        if same:
            position = same.pop() + 1
            encoded = known[position - 1]
        out.append(encoded)
    return b"[" + b",".join(out) + b"]"


Piece = bytes | memoryview


def replace_values(
    source: bytes, values: Mapping[str, bytes | list[Piece] | None], known: Mapping[str, Raw] | None = None
) -> bytes:
    """Return a JSON object with some values replaced, removed (None) or appended; all other bytes stay.

    A value may be given in pieces. `known` is the result of `entries` for the object, if already computed.
    """
    spans = object_spans(source, known)
    view = memoryview(source)
    left = dict(values)
    names = [jsonio.decode(key) for key, _, _ in spans]
    last_of = {name: index for index, name in enumerate(names)}
    pieces: list[Piece] = [view[: spans[0][1].start] if spans else view[: source.index(b"{") + 1]]
    first = True
    for index, (name, (_, key_span, value_span)) in enumerate(zip(names, spans, strict=True)):
        stays = name not in values or (last_of[name] != index and values[name] is not None)
        value = None if stays else left.pop(name, None)
        if not stays and value is None:
            continue
        if not first:
            pieces.append(view[spans[index - 1][2].end : spans[index][1].start])
        first = False
        pieces.append(view[key_span.start : value_span.end if stays else value_span.start])
        pieces += _pieces(value)
    gap = view[spans[0][2].end : spans[1][1].start] if len(spans) > 1 else b","
    for name, value in left.items():
        if value is not None:
            pieces += [b"" if first else gap, jsonio.encode(name), b":", *_pieces(value)]
            first = False
    pieces.append(view[spans[-1][2].end :] if spans else view[source.index(b"{") + 1 :])
    return b"".join(pieces)


def _pieces(value: bytes | list[Piece] | None) -> list[Piece]:
    return value if isinstance(value, list) else [] if value is None else [value]
