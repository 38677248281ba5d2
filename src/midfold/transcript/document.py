"""Read conversations from bytes, lists or request bodies into a `Document`, and write them back.

Reading raises only if there is no conversation, never because of a message's content. An object is a request body if it
has `messages`, or `input` and is not itself an item. JSON lines are messages of one conversation, or one conversation
each (a body or a list), or the log of a coding agent. A log is read and written as the JSON list of its messages.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b
from typing import Any

from msgspec import Raw

from midfold.errors import MalformedTranscript, TranscriptError
from midfold.lru import LRU
from midfold.transcript import jsonio
from midfold.transcript.anthropic import Anthropic
from midfold.transcript.dialect import Dialect, describe, kind_of
from midfold.transcript.jsonio import elements, entries, first_byte, gaps
from midfold.transcript.laws import pairing_problems
from midfold.transcript.log_lines import Log, LoggedTurn, mapping_of, string_of
from midfold.transcript.logs import describe_line_types, read_log, read_log_body
from midfold.transcript.message import Message, Problem, Tool, Transcript, plain
from midfold.transcript.openai_chat import OpenAIChat
from midfold.transcript.openai_responses import OpenAIResponses
from midfold.transcript.splice import message_bytes, message_value, replace_values

# Detection of the dialect.


DIALECTS: dict[str, type[Dialect]] = {dialect.name: dialect for dialect in (OpenAIChat, OpenAIResponses, Anthropic)}

MAX_CACHED_TOOLS, MAX_CACHED_TOOL_BYTES = 5_000, 4_000_000
"""Maximum number and total bytes of cached tool definitions."""
CHAT_ROLES = frozenset({"tool", "function"})
CHAT_FIELDS = ("tool_calls", "tool_call_id", "function_call", "reasoning_content", "refusal")
CHAT_BLOCKS = frozenset({"image_url", "input_audio", "file"})
RESPONSES_ITEMS = frozenset({"reasoning", "item_reference", "compaction", "mcp_list_tools", "mcp_approval_request"})
RESPONSES_BLOCKS = frozenset({"input_text", "output_text", "input_image", "input_file"})
ANTHROPIC_BLOCKS = frozenset(
    {
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
        "image",
        "document",
        "compaction",
        "server_tool_use",
        "web_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "search_result",
        "container_upload",
    }
)


def sniff(messages: Iterable[Any], body: Mapping[str, Any] | None = None) -> type[Dialect]:
    """Return the dialect by the first evidence found; OpenAI chat if there is none."""
    evidence = _dialect_from_body(body) if body is not None else None
    if evidence is not None:
        return evidence
    for message in messages:
        evidence = _from_message(message)
        if evidence is not None:
            return evidence
    return OpenAIChat


def _dialect_from_body(body: Mapping[str, Any]) -> type[Dialect] | None:
    if "messages" not in body:
        return OpenAIResponses if "input" in body else None
    if "system" in body or "anthropic_version" in body or "stop_sequences" in body:
        return Anthropic
    tools = plain(body.get("tools"))
    first = tools[0] if isinstance(tools, list) and tools else None
    if isinstance(first, Mapping):
        return Anthropic if "input_schema" in first else OpenAIChat if "function" in first else None
    return None


def _from_message(value: Any) -> type[Dialect] | None:
    if not isinstance(value, Mapping):
        return None
    role = value.get("role")
    kind = kind_of(value)
    # An Anthropic response appended verbatim also has `type: message`; its blocks decide below.
    if role is None and (kind in RESPONSES_ITEMS or kind.endswith(("_call", "_call_output"))):
        return OpenAIResponses
    if (isinstance(role, str) and role in CHAT_ROLES and not kind) or any(field in value for field in CHAT_FIELDS):
        return OpenAIChat
    content = value.get("content")
    for block in content if isinstance(content, list | tuple) else ():
        evidence = _from_block(block)
        if evidence is not None:
            return evidence
    return OpenAIResponses if kind == "message" and "stop_reason" not in value else None


def _from_block(block: Any) -> type[Dialect] | None:
    kind = kind_of(block) if isinstance(block, Mapping) else ""
    if kind in ANTHROPIC_BLOCKS:
        return Anthropic
    if kind in RESPONSES_BLOCKS:
        return OpenAIResponses
    return OpenAIChat if kind in CHAT_BLOCKS else None


MAX_LISTED_KEYS = 5
BOM = b"\xef\xbb\xbf"
SPACE = b" \t\r\n"
Source = bytes | bytearray | memoryview | str | Sequence[Any] | Mapping[str, Any]


class LogWithoutMessages(TranscriptError):
    """A log without any messages, or with only those of a sub-agent."""


class Document:
    """A conversation with its dialect, request body and source."""

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
        self.log: Log | None = None
        """The log it was read from, with data beside the messages."""
        self._lacks: dict[bytes | re.Pattern[bytes], bool] = {}

    def lacks(self, what: bytes | re.Pattern[bytes]) -> bool:
        """Return whether the source bytes certainly do not contain this; the result is cached."""
        known = self._lacks.get(what)
        if known is None:
            source = self.source if isinstance(self.source, bytes) else None
            found = source is None or (what in source if isinstance(what, bytes) else what.search(source) is not None)
            known = self._lacks[what] = not found
        return known

    def mark_absent(self, *words: bytes) -> None:
        """Record that the source does not contain these."""
        self._lacks |= dict.fromkeys(words, True)

    @cached_property
    def system(self) -> Message | None:
        """Return the system prompt outside the messages (Anthropic `system`, Responses `instructions`)."""
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
        return model if isinstance(model, str) else (self.log.model or None) if self.log is not None else None

    @property
    def max_output(self) -> int | None:
        """Return the maximum response tokens that the request sets."""
        for key in self.dialect.output_keys:
            value = self.setting(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
        return None

    def setting(self, key: str) -> Any:
        """Return a field of the request body, decoded; None if it is missing or unreadable."""
        value = self.body.get(key) if self.body is not None else None
        return _value(value) if isinstance(value, Raw) else value

    def require_valid_json(self) -> None:
        """Raise TranscriptError if a message holds NaN or an infinity, which other JSON readers reject."""
        if jsonio.is_plain_json([message.wire for message in self.messages]):
            return
        for index, message in enumerate(self.messages):
            if message.wire is not None and (found := jsonio.find_invalid_number(message.wire)):
                path, literal = found
                raise TranscriptError(
                    f"{self.list_key}[{index}]{path}: {literal} is not JSON; expected a finite number, null or text"
                )

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Return all problems of the conversation, with paths such as `messages[12].tool_calls[0].function`."""
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


def recording_of(document: Document) -> Log:
    """Return the log data of the conversation, from the log or from the messages' `_meta` fields."""
    if document.log is not None:
        return document.log
    times, turns, folds = [], {}, set()
    for place, message in enumerate(document.messages):
        meta = meta_of(message)
        times.append(string_of(meta.get("ts")))
        if meta.get("compact_boundary") or meta.get("compact_summary"):
            folds.add(place)
        if isinstance(usage := meta.get("usage"), Mapping):
            turns[place] = LoggedTurn(usage, times[-1])
    return Log("", document.dialect, [], times, turns, document.model or "", folds=frozenset(folds))


def meta_of(message: Message) -> Mapping[str, Any]:
    """Return the `_meta` field that session recordings add to a message."""
    value = _value(message.wire) if message.wire is not None else None
    return mapping_of(value.get("_meta")) if isinstance(value, Mapping) else {}


def require_messages(documents: Sequence[Document], name: str) -> None:
    """Raise TranscriptError if the documents have entries but none is a message."""
    if any(message.role != "other" for document in documents for message in document.messages):
        return
    if any(document.messages for document in documents):
        shape = describe_line_types([_value(message.wire) for document in documents for message in document.messages])
        found = f"; {shape}" if shape else ""
        raise TranscriptError(f"{name} is not a transcript: it contains no message with a role{found}")


def read(
    source: Source, *, dialect: str | None = None, strict: bool = False, name: str = "the conversation"
) -> Document:
    """Read the one conversation in `source`; error messages refer to it as `name`."""
    documents = read_many(source, dialect=dialect, strict=strict, name=name)
    if len(documents) != 1:
        raise TranscriptError(f"{name} contains {len(documents)} conversations; expected one")
    return documents[0]


def read_many(
    source: Source, *, dialect: str | None = None, strict: bool = False, name: str = "the conversation"
) -> list[Document]:
    """Read every conversation in `source`; JSON lines may hold one per line."""
    chosen = None if dialect is None else _dialect(dialect)
    if isinstance(source, bytes | bytearray | memoryview | str):
        data = source.encode("utf-8", "surrogatepass") if isinstance(source, str) else bytes(source)
        documents = _from_bytes(data, source, chosen, name)
    elif isinstance(source, Mapping):
        if not _is_body(source, chosen):
            raise TranscriptError(f"{name} is not a transcript: expected an object with 'messages' or 'input'")
        log = read_log_body(source) if chosen is None else None
        documents = [_over_log(log) if log else _from_body(source, source, chosen, name)]
    elif isinstance(source, Sequence):
        log = read_log(source) if chosen is None and _may_be_log(source) else None
        documents = [_over_log(log) if log else Document(source, chosen or sniff(map(_value, source)), source)]
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
        if b"\n{" not in text:
            raise TranscriptError(f"{name} is not a transcript: expected JSON or JSON lines of messages")
        return _from_lines(text, source, dialect, name)
    try:
        if first == b"[":
            return [_from_array(text, source, dialect)]
        body = entries(text)
        if dialect is None and (log := read_log_body(body)):
            return [_from_log(log, source, name)]
        if _is_body(body, dialect):
            return [_from_body(body, source, dialect, name)]
        if not _is_message(body) and read_log([{key: _value(value) for key, value in body.items()}]) is None:
            raise TranscriptError(
                f"{name} is not a transcript: expected an object with 'messages' or 'input', or messages with a role; "
                f"found an object with {', '.join(map(repr, list(body)[:MAX_LISTED_KEYS])) or 'no keys'}"
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
    """Read lines of messages, or of whole conversations.

    An unreadable line becomes a problem of the document if a readable one precedes it, else an error.
    """
    messages: list[Raw] = []
    documents: list[Document] = []
    damaged: list[int] = []
    starts_well = True
    for number, whole in enumerate(text.split(b"\n"), 1):
        line = whole.strip(SPACE)
        if not line:
            continue
        try:
            document = _conversation(line, dialect, f"{name}, line {number}")
        except jsonio.NotJSON:
            starts_well = starts_well and bool(messages)
            damaged.append(number)
            document = None
        if document is None:
            messages.append(Raw(line))
        else:
            documents.append(document)
    if not messages:
        return documents
    log = None if dialect or documents else _log_of(messages)
    if log is not None:
        return [_from_log(log._replace(damaged=tuple(damaged)), source, name)]
    if not starts_well:
        raise TranscriptError(f"{name}, line {damaged[0]}: expected one JSON object per line")
    if documents:
        raise TranscriptError(f"{name} is not a transcript: some lines are messages, others are conversations")
    first = _value(messages[0])
    if not isinstance(first, Mapping) or not _is_message(first):
        raise TranscriptError(f"{name} is not a transcript: expected messages with a role, one per line")
    return [Document(source, dialect or sniff(map(_value, messages)), messages, lines=True)]


def _log_of(lines: Sequence[Raw]) -> Log | None:
    first = next((value for line in lines if isinstance(value := _value(line), Mapping)), None)
    return read_log([_value(line) for line in lines]) if _may_be_log([first]) else None


def _may_be_log(values: Sequence[Any]) -> bool:
    """Return whether the first value has no role, as in logs (and in many Responses items)."""
    first = values[0] if values else None
    return isinstance(first, Mapping) and "role" not in first


def _over_log(log: Log) -> Document:
    document = Document(log.messages, log.dialect, log.messages)
    document.log = log
    return document


def _from_log(log: Log, source: Any, name: str) -> Document:
    if not log.messages:
        raise LogWithoutMessages(f"{name} is a log without messages; expected user or assistant lines")
    data = jsonio.encode(log.messages)
    given = data.decode("utf-8", "surrogateescape") if isinstance(source, str) else data
    document = _from_array(data, given, log.dialect)
    document.log = log
    return document


def _conversation(line: bytes, dialect: type[Dialect] | None, name: str) -> Document | None:
    """Return the conversation in the line, or None if the line is a message."""
    if line[:1] == b"[":
        return _from_array(line, line, dialect)
    if line[:1] != b"{":
        jsonio.decode(line)
        return None
    body = entries(line)
    return _from_body(body, line, dialect, name) if _is_body(body, dialect) else None


def _value(wire: Any) -> Any:
    """Return the decoded JSON value, or None if it is unreadable."""
    try:
        return plain(wire)
    except jsonio.NotJSON:
        return None


_known_tools: LRU[bytes, Tool] = LRU(
    MAX_CACHED_TOOLS, most_bytes=MAX_CACHED_TOOL_BYTES, size=lambda tool: len(tool.body)
)


def tool_of(value: Any) -> Tool:
    """Read a tool definition of any dialect, caching by bytes because clients resend them with every request."""
    if isinstance(value, Raw):
        key = blake2b(value, digest_size=16).digest()
        return _known_tools.get_or_make(key, lambda: tool_of(plain(value)))
    name: Any = None
    if isinstance(value, Mapping):
        function = value.get("function")
        name = function.get("name") if isinstance(function, Mapping) else value.get("name") or value.get("type")
    return Tool(name if isinstance(name, str) else "", jsonio.text_of(value))


# Write documents back in the shape they were read. Without changes that is the same object or the same bytes; a change
# is spliced in, so all other bytes of a body or list and all other fields of a dict stay, including the bytes between
# two messages that remain neighbours.


def write(document: Document, *, messages: Transcript | None = None, system: Message | None = None) -> Any:
    """Write the conversation in its original shape, with other messages or another system prompt if given."""
    new = document.messages if messages is None else messages
    changed_system = None if system is None or system is document.system else system
    if changed_system is not None and (document.body is None or document.dialect.system_key is None):
        shape = "list" if document.body is None else "body"
        raise TranscriptError(f"a {document.dialect.name} {shape} has no system prompt outside its messages")
    source = document.source
    if changed_system is None and _same(new, document.messages) and not _has_grown(document):
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


def _has_grown(document: Document) -> bool:
    """Return whether the caller changed the length of the source list since it was read."""
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
        return mark + _join(document, messages, gaps(text, wires, b"", b""), b"\n")
    if document.body is None:
        return mark + _join(document, messages, gaps(text, wires), b",")
    array = bytes(document.body[document.list_key])
    is_list = array[:1] == b"["
    around = gaps(array, wires) if is_list else [b"[", b"]"]
    values = {document.list_key: _join(document, messages, around, b",")}
    if system is not None:
        values[str(document.dialect.system_key)] = jsonio.encode(_system_value(document, system))
    return mark + replace_values(text, values)


def _join(document: Document, messages: Transcript, around: list[bytes], separator: bytes) -> bytes:
    """Join messages with the original bytes between them; new neighbours get the usual separator."""
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


# Summary requests that reuse the provider's prompt cache: same system prompt, tools and messages in the same order,
# plus one instruction at the end, so only the instruction and the response cost full price.


WIRES = {"openai-chat": "openai", "anthropic": "anthropic"}
"""Dialects that support cached-prefix summary requests, with their wire names."""
CACHED_PREFIX_KEYS = (
    "system",
    "tools",
    "tool_choice",
    "thinking",
    "reasoning_effort",
    "parallel_tool_calls",
    "prompt_cache_key",
)
"""Request fields that are part of the cached prefix or select the cache."""


def prefix_request(
    document: Document, messages: Transcript, instruction: str, wire: str, *, system: Any = None, tools: Any = None
) -> dict[str, Any] | None:
    """Return the request body, or None if the wire uses another dialect than the conversation."""
    if WIRES.get(document.dialect.name) != wire:
        return None
    body: dict[str, Any] = {}
    if system is not None and wire == "anthropic":
        body["system"] = plain(system)
    if tools:
        body["tools"] = [plain(tool) for tool in tools]
    for key in CACHED_PREFIX_KEYS:
        if document.body is not None and document.body.get(key) is not None:
            body[key] = document.setting(key)
    values = [message_value(message, document.dialect) for message in messages]
    return {**body, "messages": with_instruction(values, instruction, document.dialect.name)}


def with_instruction(values: list[Any], instruction: str, dialect: str) -> list[Any]:
    """Append a user message with the instruction to message values.

    In Anthropic's dialect it joins a final user message, as user messages must not follow each other.
    """
    typed = {"type": "message"} if dialect == "openai-responses" else {}
    last = values[-1] if values else None
    if dialect != "anthropic" or not isinstance(last, dict) or last.get("role") != "user":
        return [*values, {**typed, "role": "user", "content": instruction}]
    content = last.get("content")
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else list(content or ())
    return [*values[:-1], {**last, "content": [*blocks, {"type": "text", "text": instruction}]}]
