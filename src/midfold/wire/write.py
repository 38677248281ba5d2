"""Documents back to the shape they came in.

Rules of this file:
1. What nobody changed is written as exactly what was read: the same object, or the same bytes.
2. A change is spliced: all other bytes of a body or a list, all other fields of a dict, stay as they were. That holds
   for what stands between two messages as well, as long as both stay neighbours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from midfold.core import jsonio
from midfold.core.message import Message, Transcript, plain
from midfold.core.spans import gaps
from midfold.errors import TranscriptError
from midfold.wire.document import BOM, Document
from midfold.wire.splice import message_bytes, message_value, replace_values


def write(document: Document, *, messages: Transcript | None = None, system: Message | None = None) -> Any:
    """The conversation in the shape it came in, with other messages or another system prompt if given."""
    new = document.messages if messages is None else messages
    changed_system = None if system is None or system is document.system else system
    if changed_system is not None and (document.body is None or document.dialect.system_key is None):
        shape = "list" if document.body is None else "body"
        raise TranscriptError(f"a {document.dialect.name} {shape} has no system prompt beside its messages")
    source = document.source
    if changed_system is None and _same(new, document.messages) and not _grown(document):
        return source
    if isinstance(source, bytes | bytearray | memoryview | str):
        written = _write_bytes(document, new, changed_system)
        return written.decode("utf-8", "surrogatepass") if isinstance(source, str) else written
    values = [message_value(message, document.dialect) for message in new]
    if document.body is None:
        return values
    changed: dict[str, Any] = {**document.body, document.list_key: values}
    if changed_system is not None:
        changed[str(document.dialect.system_key)] = _system_value(document, changed_system)
    return changed


def _same(new: Transcript, old: Transcript) -> bool:
    return new is old or (len(new) == len(old) and all(a is b for a, b in zip(new, old, strict=True)))


def _grown(document: Document) -> bool:
    """Whether the caller has put more into their own list since it was read."""
    source: Any = document.source
    values = source.get(document.list_key) if isinstance(source, Mapping) else source
    return isinstance(values, list) and len(values) != len(document.messages)


def _write_bytes(document: Document, messages: Transcript, system: Message | None) -> bytes:
    source = document.source
    data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else bytes(source)
    text = data.removeprefix(BOM)
    mark = data[: len(data) - len(text)]
    wires = [message.wire for message in document.messages]
    if document.lines:
        return mark + _joined(document, messages, gaps(text, wires, b"", b""), b"\n")
    if document.body is None:
        return mark + _joined(document, messages, gaps(text, wires), b",")
    array = bytes(document.body[document.list_key])
    is_list = array[:1] == b"["
    around = gaps(array, wires) if is_list else [b"[", b"]"]
    values = {document.list_key: _joined(document, messages, around, b",")}
    if system is not None:
        values[str(document.dialect.system_key)] = jsonio.encode(_system_value(document, system))
    return mark + replace_values(text, values)


def _joined(document: Document, messages: Transcript, around: list[bytes], separator: bytes) -> bytes:
    """Messages between the pieces that stood around the old ones; new neighbours get the usual piece between them."""
    places = {id(message.wire): index for index, message in enumerate(document.messages)}
    usual = around[1] if len(around) > 2 else separator
    if len(around) == 1:
        end = around[0].rindex(b"]") if separator == b"," else len(around[0])
        around = [around[0][:end], around[0][end:]]
    out = [around[0]]
    before: int | None = None
    for number, message in enumerate(messages):
        place = places.get(id(message.origin))
        if number:
            neighbours = before is not None and place == before + 1
            out.append(around[place] if neighbours and place is not None else usual)
        out.append(message_bytes(message, document.dialect))
        before = place
    out.append(around[-1])
    return b"".join(out)


def _system_value(document: Document, system: Message) -> Any:
    if system.wire is not None:
        return system.wire
    origin = None if system.origin is None else plain(system.origin)
    value = document.dialect.system_value(system, origin)
    return plain(value) if isinstance(value, Raw) else value
