"""Small changes to JSON values that are bytes or Python objects: a field more on a block, a string as a block.

Rules of this file:
1. Bytes stay bytes, and every byte that is not asked for stays. Objects are copied along the path to the change only.
2. A value is `msgspec.Raw`, or what `json` would make of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Raw

from midfold.core import jsonio
from midfold.core.message import Message, plain
from midfold.core.spans import elements, entries, first_byte, places
from midfold.wire.dialect import Dialect
from midfold.wire.document import BOM, Document
from midfold.wire.splice import Piece, message_value, replace_values


def value_of(message: Message, dialect: type[Dialect]) -> Any:
    """A message as the bytes it came in, or as an object."""
    return message.wire if isinstance(message.wire, Raw) else plain(message_value(message, dialect))


def is_text(value: Any) -> bool:
    return first_byte(value) == b'"' if isinstance(value, Raw) else isinstance(value, str)


def field(value: Any, name: str) -> Any:
    return entries(bytes(value)).get(name) if isinstance(value, Raw) else value.get(name)


def with_field(value: Any, name: str, new: Any) -> Any:
    """An object with one field replaced, or added at its end."""
    if isinstance(value, Raw):
        return Raw(replace_values(bytes(value), {name: jsonio.encode(new)}))
    return {**value, name: new}


def items(value: Any) -> list[Any]:
    return list(elements(value)) if isinstance(value, Raw) else list(value)


def with_item(value: Any, place: int, new: Any) -> Any:
    """A list with one item replaced."""
    if not isinstance(value, Raw):
        return [*value[:place], new, *value[place + 1 :]]
    return Raw(spliced(bytes(value), elements(value), {place: new}))


def with_items_after(value: Any, new: Mapping[int, Any]) -> Any:
    """A list with items put in behind the items at some places."""
    if not isinstance(value, Raw):
        return [item for place, old in enumerate(value) for item in ((old, new[place]) if place in new else (old,))]
    inside = elements(value)
    return Raw(
        spliced(
            bytes(value),
            inside,
            {place: Raw(bytes(inside[place]) + b"," + jsonio.encode(item)) for place, item in new.items()},
        )
    )


def wrapped(text: Any, text_type: str, name: str, marker: Any) -> Any:
    """A string as the one block of a list, with a marker on it."""
    if not isinstance(text, Raw):
        return [{"type": text_type, "text": text, name: marker}]
    ending = b"," + jsonio.encode(name) + b":" + jsonio.encode(marker) + b"}]"
    return Raw(b'[{"type":' + jsonio.encode(text_type) + b',"text":' + bytes(text) + ending)


def as_message(text: Any) -> Any:
    """A bare string in a list of items: what a user said."""
    return Raw(b'{"role":"user","content":' + bytes(text) + b"}") if isinstance(text, Raw) else _said(text)


def _said(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def spliced(source: bytes, old: list[Raw], new: Mapping[int, Any]) -> bytes:
    """An array with some elements replaced; what stands between them stays."""
    return b"".join(pieces(source, old, new))


def pieces(
    source: bytes | Raw, old: Sequence[Raw], new: Mapping[int, Any], opening: bytes = b"[", between: bytes = b","
) -> list[Piece]:
    """An array, or lines, with some elements replaced, as what has to be joined."""
    view = memoryview(source)
    out: list[Piece] = []
    last = 0
    for place, (begin, end) in enumerate(places(view, old[: max(new, default=-1) + 1], opening, between)):
        if place in new:
            out += [view[last:begin], jsonio.encode(new[place])]
            last = end
    return [*out, view[last:]]


def document(source: Document, messages: Mapping[int, Any], fields: Mapping[str, Any]) -> Any:
    """A document's source with some messages and some fields of its body replaced."""
    given = source.source
    if not isinstance(given, bytes | bytearray | memoryview | str):
        return _objects(source, messages, fields)
    data = given.encode("utf-8", "surrogatepass") if isinstance(given, str) else bytes(given)
    text = data.removeprefix(BOM)
    written = data[: len(data) - len(text)] + _bytes(source, text, messages, fields)
    return written.decode("utf-8", "surrogatepass") if isinstance(given, str) else written


def _bytes(source: Document, text: bytes, messages: Mapping[int, Any], fields: Mapping[str, Any]) -> bytes:
    wires = [message.wire for message in source.messages]
    if source.lines:
        return b"".join(pieces(text, wires, messages, b"", b""))
    if source.body is None:
        return spliced(text, wires, messages)
    changed: dict[str, bytes | list[Piece] | None] = {name: jsonio.encode(value) for name, value in fields.items()}
    if messages:
        array = source.body[source.list_key]
        changed[source.list_key] = (
            [b"[", jsonio.encode(messages[0]), b"]"] if is_text(array) else pieces(array, wires, messages)
        )
    return replace_values(text, changed, source.body)


def _objects(source: Document, messages: Mapping[int, Any], fields: Mapping[str, Any]) -> Any:
    values = [
        messages[place] if place in messages else message_value(message, source.dialect)
        for place, message in enumerate(source.messages)
    ]
    if source.body is None:
        return values
    return {**source.body, **fields, **({source.list_key: values} if messages else {})}
