"""Whole conversations: from bytes, lists or request bodies to a `Document`.

Rules of this file:
1. Reading never raises for what a message says, only when there is no conversation to be found.
2. An object is a request body if it has a list of messages; with `input`, only if it is not itself an item.
3. JSON lines hold messages of one conversation, or one conversation each (a body, or a list), or they are the log of a
   coding agent. A log is read as if it were the JSON list of its messages, and that is what is written.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from msgspec import Raw

from midfold.core import jsonio
from midfold.core.message import Message, Problem, Tool, Transcript, plain
from midfold.core.spans import elements, entries, first_byte
from midfold.errors import MalformedTranscript, TranscriptError
from midfold.wire.dialect import Dialect
from midfold.wire.logs import Log, read_log
from midfold.wire.notes import describe
from midfold.wire.problems import pairing_problems
from midfold.wire.sniff import DIALECTS, sniff

BOM = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"
Source = bytes | bytearray | memoryview | str | Sequence[Any] | Mapping[str, Any]


class Document:
    """A conversation with everything that came around it."""

    def __init__(
        self,
        source: Any,
        dialect: type[Dialect],
        wires: Sequence[Any],
        body: Mapping[str, Any] | None = None,
        *,
        list_key: str = "messages",
        lines: bool = False,
    ) -> None:
        self.source = source
        self.dialect = dialect
        self.body = body
        self.list_key = list_key
        self.lines = lines
        self.messages: Transcript = tuple([Message.over(wire, dialect.read) for wire in wires])
        self._lacks: dict[bytes | re.Pattern[bytes], bool] = {}

    def lacks(self, what: bytes | re.Pattern[bytes]) -> bool:
        """Whether bytes that were read surely do not have this in them; looked for once."""
        known = self._lacks.get(what)
        if known is None:
            source = self.source if isinstance(self.source, bytes) else None
            found = source is None or (what in source if isinstance(what, bytes) else what.search(source) is not None)
            known = self._lacks[what] = not found
        return known

    def surely_lacks(self, *words: bytes) -> None:
        """Somebody has looked for these before."""
        self._lacks |= dict.fromkeys(words, True)

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
        return tuple(tool_of(tool) for tool in tools) if isinstance(tools, list | tuple) else ()

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
        """A field of the request body, decoded; None if there is none, or if nobody can read it."""
        value = self.body.get(key) if self.body is not None else None
        return _value(value) if isinstance(value, Raw) else value

    def refuse_what_is_no_json(self) -> None:
        """Raises TranscriptError where a message holds NaN or an infinity: nobody could read what is written of it."""
        for index, message in enumerate(self.messages):
            if message.wire is not None and (found := jsonio.no_number(message.wire)):
                path, literal = found
                raise TranscriptError(
                    f"{self.list_key}[{index}]{path}: {literal} is not JSON; expected a finite number, null or text"
                )

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Everything that is wrong with the conversation, with paths such as `messages[12].tool_calls[0].function`."""
        found = [
            problem.under(f"{self.list_key}[{index}]")
            for index, message in enumerate(self.messages)
            for problem in message.problems
        ]
        if self.system is not None:
            found.extend(problem.under(str(self.dialect.system_key)) for problem in self.system.problems)
        tools = self.setting("tools")
        if tools is not None and not isinstance(tools, list | tuple):
            found.append(Problem("tools", f"expected a list, found {describe(tools)}"))
        return (*found, *pairing_problems(self.messages, self.list_key))


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
    if isinstance(source, bytes | bytearray | memoryview | str):
        data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else bytes(source)
        documents = _from_bytes(data, source, chosen, name)
    elif isinstance(source, Mapping):
        if not _is_body(source, chosen):
            raise TranscriptError(f"{name} is not a transcript: expected an object with 'messages' or 'input'")
        documents = [_from_body(source, source, chosen, name)]
    elif isinstance(source, Sequence):
        log = read_log(source) if chosen is None and _may_be_log(source) else None
        wires = source if log is None else log.messages
        documents = [Document(wires, log.dialect if log else chosen or sniff(map(_value, wires)), wires)]
    else:
        found = describe(source)  # type: ignore[unreachable]
        raise TranscriptError(f"{name} is not a transcript: expected bytes, a list or an object, found {found}")
    if strict:
        for document in documents:
            if document.problems:
                raise MalformedTranscript(document.problems)
    return documents


def _dialect(name: str) -> type[Dialect]:
    if name not in DIALECTS:
        raise TranscriptError(f"unknown dialect {name!r}; expected one of {', '.join(DIALECTS)}")
    return DIALECTS[name]


def _from_bytes(data: bytes, source: Any, dialect: type[Dialect] | None, name: str) -> list[Document]:
    text = data.removeprefix(BOM)
    first = text.lstrip(SPACE)[:1]
    if first not in (b"[", b"{"):
        raise TranscriptError(f"{name} is not a transcript: expected JSON, or JSON lines, of messages")
    try:
        if first == b"[":
            return [_from_array(text, source, dialect)]
        body = entries(text)
        if _is_body(body, dialect):
            return [_from_body(body, source, dialect, name)]
        if not _is_message(body):
            raise TranscriptError(
                f"{name} is not a transcript: expected an object with 'messages' or 'input', or messages with a role"
            )
    except jsonio.NotJSON as error:
        if b"\n" not in text.strip(SPACE):
            raise TranscriptError(f"{name} is not a transcript: {error}") from None
    return _from_lines(text, source, dialect, name)


def _from_array(text: bytes, source: Any, dialect: type[Dialect] | None) -> Document:
    wires = elements(text)
    return Document(source, dialect or sniff(map(_value, wires)), wires)


def _is_body(value: Mapping[str, Any], dialect: type[Dialect] | None) -> bool:
    if "messages" in value:
        return dialect is None or dialect.list_key == "messages" or "input" not in value
    return "input" in value and not _is_message(value)


def _is_message(value: Mapping[str, Any]) -> bool:
    return "role" in value or isinstance(_value(value.get("type")), str)


def _from_body(body: Mapping[str, Any], source: Any, dialect: type[Dialect] | None, name: str) -> Document:
    key = dialect.list_key if dialect and dialect.list_key in body else "messages" if "messages" in body else "input"
    value = body.get(key)
    if isinstance(value, Raw):
        first = first_byte(value)
        wires: Sequence[Any] | None = elements(value) if first == b"[" else [value] if first == b'"' else None
    else:
        wires = [value] if isinstance(value, str) else value if isinstance(value, list | tuple) else None
    if wires is None:
        found = describe(_value(value))
        raise TranscriptError(f"{name} is not a transcript: expected '{key}' to be a list, found {found}")
    chosen = dialect or sniff(map(_value, wires), body)
    return Document(source, chosen, wires, body, list_key=key)


def _from_lines(text: bytes, source: Any, dialect: type[Dialect] | None, name: str) -> list[Document]:
    """Lines of messages, or of whole conversations. After a first good line, one that nobody can read is a problem."""
    messages: list[Raw] = []
    documents: list[Document] = []
    for number, whole in enumerate(text.split(b"\n"), 1):
        line = whole.strip(SPACE)
        if not line:
            continue
        try:
            document = _conversation(line, dialect, f"{name}, line {number}")
        except jsonio.NotJSON:
            if not messages:
                raise TranscriptError(f"{name}, line {number}: expected one JSON object per line") from None
            document = None
        if document is None:
            messages.append(Raw(line))
        else:
            documents.append(document)
    if not messages:
        return documents
    if documents:
        raise TranscriptError(f"{name} is not a transcript: some lines are messages, others whole conversations")
    first = _value(messages[0])
    log = read_log([_value(line) for line in messages]) if dialect is None and _may_be_log([first]) else None
    if log is not None:
        return [_from_log(log, source, name)]
    if not isinstance(first, Mapping) or not _is_message(first):
        raise TranscriptError(f"{name} is not a transcript: expected messages with a role, one per line")
    return [Document(source, dialect or sniff(map(_value, messages)), messages, lines=True)]


def _may_be_log(values: Sequence[Any]) -> bool:
    """Lines of logs have a type and no role of their own; so have items of the Responses shape."""
    first = values[0] if values else None
    return isinstance(first, Mapping) and "role" not in first and isinstance(first.get("type"), str)


def _from_log(log: Log, source: Any, name: str) -> Document:
    if not log.messages:
        raise TranscriptError(f"{name} is a log without messages: expected lines of a user or an assistant")
    data = jsonio.encode(log.messages)
    return _from_array(data, data.decode("utf-8", "surrogateescape") if isinstance(source, str) else data, log.dialect)


def _conversation(line: bytes, dialect: type[Dialect] | None, name: str) -> Document | None:
    """The conversation a line holds; None for a line that is a message."""
    if line[:1] == b"[":
        return _from_array(line, line, dialect)
    if line[:1] != b"{":
        jsonio.decode(line)
        return None
    body = entries(line)
    return _from_body(body, line, dialect, name) if _is_body(body, dialect) else None


def _value(wire: Any) -> Any:
    """The JSON value for sniffing; a message nobody can read gives no evidence."""
    try:
        return plain(wire)
    except jsonio.NotJSON:
        return None


def tool_of(value: Any) -> Tool:
    """A tool definition of any dialect."""
    name: Any = None
    if isinstance(value, Mapping):
        function = value.get("function")
        name = function.get("name") if isinstance(function, Mapping) else value.get("name") or value.get("type")
    return Tool(name if isinstance(name, str) else "", jsonio.text_of(value))
