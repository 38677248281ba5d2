"""Whole conversations: from bytes, lists or request bodies to a `Document`, and back.

Rules of this file:
1. Reading never raises for what a message says, only when there is no conversation to be found.
2. What nobody changed is written as exactly what was read: the same object, or the same bytes.
3. A change is spliced: all other bytes of a body, all other fields of a dict, stay as they were.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Raw

from midfold.core import jsonio
from midfold.core.message import Message, Problem, Tool, Transcript, plain
from midfold.core.spans import elements, entries, with_elements
from midfold.errors import MalformedTranscript, TranscriptError
from midfold.wire.dialect import Dialect
from midfold.wire.notes import describe
from midfold.wire.problems import pairing_problems
from midfold.wire.sniff import DIALECTS, sniff
from midfold.wire.splice import message_bytes, message_value, replace_values

BOM = b"\xef\xbb\xbf"
Source = bytes | bytearray | str | Sequence[Any] | Mapping[str, Any]


class Document:
    """A conversation with everything that came around it."""

    def __init__(
        self,
        source: Any,
        dialect: type[Dialect],
        wires: Sequence[Any],
        body: Mapping[str, Any] | None = None,
        *,
        lines: bool = False,
    ) -> None:
        self.source = source
        self.dialect = dialect
        self.body = body
        self.lines = lines
        self.messages: Transcript = tuple(Message.over(wire, dialect.read) for wire in wires)

    @cached_property
    def system(self) -> Message | None:
        """A system prompt that stands beside the messages (Anthropic `system`, Responses `instructions`)."""
        key = self.dialect.system_key
        value = self.body.get(key) if self.body is not None and key else None
        if value is None or (isinstance(value, Raw) and bytes(value) == b"null"):
            return None
        return Message.over(value, self.dialect.read_system)

    @cached_property
    def tools(self) -> tuple[Tool, ...]:
        tools = self.setting("tools")
        return tuple(_tool(tool) for tool in tools) if isinstance(tools, list | tuple) else ()

    @property
    def model(self) -> str | None:
        model = self.setting("model")
        return model if isinstance(model, str) else None

    @property
    def max_output(self) -> int | None:
        """The longest answer the request asks for."""
        for key in self.dialect.output_keys:
            value = self.setting(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    def setting(self, key: str) -> Any:
        """A field of the request body, decoded; None if there is none."""
        value = self.body.get(key) if self.body is not None else None
        return plain(value) if isinstance(value, Raw) else value

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that is wrong with the conversation, with paths such as `messages[12].tool_calls[0].function`."""
        key = self.dialect.list_key if self.body is not None else "messages"
        found = [
            problem.under(f"{key}[{index}]")
            for index, message in enumerate(self.messages)
            for problem in message.problems
        ]
        if self.system is not None:
            found.extend(problem.under(str(self.dialect.system_key)) for problem in self.system.problems)
        tools = self.setting("tools")
        if tools is not None and not isinstance(tools, list | tuple):
            found.append(Problem("tools", f"expected a list, found {describe(tools)}"))
        return (*found, *pairing_problems(self.messages, key))


def read(
    source: Source, *, dialect: str | None = None, strict: bool = False, name: str = "the conversation"
) -> Document:
    """The one conversation in `source`; `name` is how errors call it."""
    documents = read_many(source, dialect=dialect, strict=strict, name=name)
    if len(documents) != 1:
        raise TranscriptError(f"{name} holds {len(documents)} conversations, expected one")
    return documents[0]


def read_many(
    source: Source, *, dialect: str | None = None, strict: bool = False, name: str = "the conversation"
) -> list[Document]:
    """Every conversation in `source`: JSON lines may hold one conversation per line."""
    chosen = None if dialect is None else _dialect(dialect)
    if isinstance(source, bytes | bytearray | str):
        data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else bytes(source)
        try:
            documents = _from_bytes(data, source, chosen, name)
        except jsonio.NotJSON as error:
            raise TranscriptError(f"{name} is not a transcript: {error}") from None
    elif isinstance(source, Mapping):
        documents = [_from_body(source, source, chosen, name)]
    elif isinstance(source, Sequence):
        documents = [Document(source, chosen or sniff(map(plain, source)), source)]
    else:
        raise TranscriptError(
            f"{name} is not a transcript: expected bytes, a list or an object, found {describe(source)}"
        )
    if strict:
        for document in documents:
            if document.problems:
                raise MalformedTranscript(document.problems)
    return documents


def write(document: Document, *, messages: Transcript | None = None, system: Message | None = None) -> Any:
    """The conversation in the shape it came in, with other messages or another system prompt if given."""
    new = document.messages if messages is None else messages
    new_system = document.system if system is None else system
    source = document.source
    if new_system is document.system and _same(new, document.messages):
        return source
    if isinstance(source, bytes | bytearray | str):
        written = _write_bytes(document, new, new_system)
        return written.decode("utf-8", "surrogatepass") if isinstance(source, str) else written
    values = [message_value(message, document.dialect) for message in new]
    if document.body is None:
        return values
    changed: dict[str, Any] = {**document.body, document.dialect.list_key: values}
    if new_system is not None and new_system is not document.system:
        changed[str(document.dialect.system_key)] = _system_value(document, new_system)
    return changed


def _same(new: Transcript, old: Transcript) -> bool:
    return new is old or (len(new) == len(old) and all(a is b for a, b in zip(new, old, strict=True)))


def _dialect(name: str) -> type[Dialect]:
    if name not in DIALECTS:
        raise TranscriptError(f"unknown dialect {name!r}; expected one of {', '.join(DIALECTS)}")
    return DIALECTS[name]


def _from_bytes(data: bytes, source: Any, dialect: type[Dialect] | None, name: str) -> list[Document]:
    text = data.removeprefix(BOM).lstrip(b" \t\r\n")
    if text[:1] == b"[":
        wires = elements(text.rstrip(b" \t\r\n"))
        return [Document(source, dialect or sniff(map(_value, wires)), wires)]
    if text[:1] != b"{":
        raise TranscriptError(f"{name} is not a transcript: expected JSON, or JSON lines, of messages")
    try:
        return [_from_body(entries(text), source, dialect, name)]
    except (jsonio.NotJSON, _NotABody):
        return _from_lines(text, source, dialect, name)


class _NotABody(Exception):
    """The object has no list of messages."""


def _from_body(body: Mapping[str, Any], source: Any, dialect: type[Dialect] | None, name: str) -> Document:
    if dialect is None and "messages" not in body and "input" not in body:
        if isinstance(source, Mapping):
            raise TranscriptError(f"{name} is not a transcript: expected an object with 'messages' or 'input'")
        raise _NotABody
    key = dialect.list_key if dialect else "messages" if "messages" in body else "input"
    value = body.get(key)
    if isinstance(value, Raw):
        first = bytes(value)[:1]
        wires: Sequence[Any] | None = elements(value) if first == b"[" else [value] if first == b'"' else None
    else:
        wires = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else None
    if wires is None:
        raise TranscriptError(
            f"{name} is not a transcript: expected '{key}' to be a list, found {describe(plain(value))}"
        )
    chosen = dialect or sniff(map(_value, wires), body)
    return Document(source, chosen, wires, body)


def _from_lines(text: bytes, source: Any, dialect: type[Dialect] | None, name: str) -> list[Document]:
    lines = [(number, line.strip()) for number, line in enumerate(text.split(b"\n"), 1) if line.strip()]
    messages: list[Raw] = []
    documents: list[Document] = []
    for number, line in lines:
        where = f"{name}, line {number}"
        try:
            documents.append(_from_body(entries(line), line, dialect, where))
        except _NotABody:
            messages.append(Raw(line))
        except jsonio.NotJSON:
            raise TranscriptError(f"{where}: expected one JSON object per line") from None
    if not messages:
        return documents
    if documents:
        raise TranscriptError(f"{name} is not a transcript: some lines are messages, others whole conversations")
    first = _value(messages[0])
    if not isinstance(first, Mapping) or not ("role" in first or isinstance(first.get("type"), str)):
        raise TranscriptError(
            f"{name} is not a transcript: expected messages with a role, or an object with 'messages'"
        )
    return [Document(source, dialect or sniff(map(_value, messages)), messages, lines=True)]


def _value(wire: Any) -> Any:
    """The JSON value for sniffing; a message nobody can read gives no evidence."""
    try:
        return plain(wire)
    except jsonio.NotJSON:
        return None


def _tool(value: Any) -> Tool:
    name: Any = None
    if isinstance(value, Mapping):
        function = value.get("function")
        name = function.get("name") if isinstance(function, Mapping) else value.get("name") or value.get("type")
    return Tool(name if isinstance(name, str) else "", jsonio.text_of(value))


def _write_bytes(document: Document, messages: Transcript, system: Message | None) -> bytes:
    source = document.source
    data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else bytes(source)
    written = [message_bytes(message, document.dialect) for message in messages]
    if document.lines:
        return b"".join(line + b"\n" for line in written)
    start = len(data) - len(data.removeprefix(BOM))
    wires = [message.wire for message in document.messages]
    if document.body is None:
        return data[:start] + with_elements(data[start:], wires, written)
    array = bytes(document.body[document.dialect.list_key])
    values = {
        document.dialect.list_key: with_elements(*((array, wires) if array[:1] == b"[" else (b"[]", [])), written)
    }
    if system is not None and system is not document.system:
        values[str(document.dialect.system_key)] = jsonio.encode(_system_value(document, system))
    return data[:start] + replace_values(data[start:], values)


def _system_value(document: Document, system: Message) -> Any:
    if isinstance(system.wire, Raw):
        return system.wire
    if system.wire is not None:
        return system.wire
    origin = None if system.origin is None else plain(system.origin)
    return document.dialect.system_value(system, origin)
