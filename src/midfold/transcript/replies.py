"""Read model responses in any of the three dialects, from one JSON value or from a stream of events.

    reader = AnswerReader("anthropic")
    for text in reader.feed(chunk): ...   # bytes as they arrive, or `take` for events that are already parsed
    answer = reader.finish()

Messages keep the provider's own blocks, order, signatures and arguments, in the shape in which a client sends them
back. Nothing here raises: a response that ends early or cannot be read has a `problem`, an error inside it is an
`error`, and the caller decides. The first byte decides between stream and JSON value, because proxies mislabel both.
Reasoning is not part of the text.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, Literal

import msgspec

from midfold.transcript import jsonio
from midfold.transcript.jsonio import value_end
from midfold.transcript.message import ToolCall, Usage, read_usage
from midfold.transcript.sse import EventReader, StreamEvent

LARGEST_ANSWER = 32_000_000
BLANK = b"\xef\xbb\xbf \t\r\n"
FIRST_OF_STREAM = (b"d", b"e", b"i", b"r", b":")
"""First bytes of a stream: a field name (data, event, id, retry) or a comment. A JSON object starts differently."""
ENDED_EARLY = "the response ended early"
Finish = Literal["", "stop", "length", "filter"]
_FINISHES: dict[str, Finish] = {
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "filter",
    "refusal": "filter",
}
_CHAT_REASONING = ("reasoning_content", "reasoning")
_ANTHROPIC_DELTAS = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}


class ModelAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """One response: the messages to keep in the shape of its dialect, with text, calls and usage."""

    messages: tuple[dict[str, Any], ...] = ()
    text: str = ""
    calls: tuple[ToolCall, ...] = ()
    finish: Finish = "stop"
    usage: dict[str, Any] = {}
    error: Any = None
    """Error as the provider sent it."""
    problem: str = ""
    """Reason why the response is unusable; contains no text of the provider."""
    headers: dict[str, str] = {}
    """Response headers of a midfold gateway."""

    @property
    def message(self) -> dict[str, Any]:
        """Return the only message of a dialect whose responses are single messages."""
        return self.messages[0]

    @property
    def tokens(self) -> Usage:
        """Return the usage the provider reported, zeros if none."""
        return read_usage(self.usage) or Usage(prompt_tokens=0)


class AnswerReader:
    """Incremental reader for one response."""

    def __init__(self, dialect: str, *, largest: int = LARGEST_ANSWER) -> None:
        self._parser = _PARSERS[dialect]()
        self._events: EventReader | None = None
        self._body = bytearray()
        self._size = 0
        self._largest = largest

    def feed(self, chunk: bytes) -> Iterator[str]:
        """Feed bytes and yield the texts they complete."""
        self._size += len(chunk)
        if self._size > self._largest:
            self._parser.problem = f"the response is larger than {self._largest // 1_000_000} MB"
        if self.has_failed:
            return
        if self._events is None:
            begun = bool(self._body)
            self._body += chunk if begun else chunk.lstrip(BLANK)
            if begun or bytes(self._body[:1]) not in FIRST_OF_STREAM:
                return
            self._events, chunk = EventReader(), bytes(self._body)
        try:
            for event in self._events.feed(chunk):
                if text := self.take(event):
                    yield text
        except ValueError as problem:
            self._parser.problem = str(problem)

    def take(self, event: StreamEvent) -> str:
        """Feed a stream event and return the text in it."""
        parser = self._parser
        if parser.error or parser.problem:
            return ""
        if event.value is not None:
            return parser.read_event(event.value)
        if event.exceeds_limits:
            parser.problem = "a stream event exceeds the size limits"
        elif event.is_end:
            parser.has_ended = True
        elif event.data:
            parser.problem = "a stream event is not a JSON object"
        return ""

    def finish(self) -> ModelAnswer:
        """Return the whole response after the last bytes."""
        if self._body and self._events is None and not self.has_failed:
            self._read_body()
        return self._parser.answer()

    def _read_body(self) -> None:
        parser = self._parser
        try:
            value = jsonio.decode(bytes(self._body))
        except jsonio.NotJSON:
            parser.problem = "the response is a web page" if self._body[:1] == b"<" else "the response is not JSON"
            return
        if not isinstance(value, dict):
            parser.problem = "the response is not an object"
        elif value.get("error"):
            parser.error = value["error"]
        else:
            parser.read_body(value)

    @property
    def has_begun(self) -> bool:
        """Return whether anything has arrived."""
        return self._size > 0

    @property
    def has_failed(self) -> bool:
        """Return whether the response is already known to be unusable."""
        return bool(self._parser.error or self._parser.problem)

    @property
    def text(self) -> str:
        """Return the text received so far."""
        return "".join(self._parser.texts)

    @property
    def usage(self) -> dict[str, Any]:
        """Return the usage received so far."""
        return self._parser.usage


def read_answer(dialect: str, body: bytes) -> ModelAnswer:
    """Read a complete response."""
    reader = AnswerReader(dialect)
    for _ in reader.feed(body + b"\n\n"):
        pass
    return reader.finish()


class _AnswerParser(ABC):
    """Incremental parser for the responses of one dialect."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.usage: dict[str, Any] = {}
        self.finish: Finish = ""
        self.has_ended = False
        self.error: Any = None
        self.problem = ""

    def read_event(self, value: dict[str, Any]) -> str:
        """Parse one event and return the text in it."""
        if value.get("error"):
            self.error = value["error"]
            return ""
        text = self._read_event(value)
        if text:
            self.texts.append(text)
        return text

    def answer(self) -> ModelAnswer:
        text = "".join(self.texts)
        if self.error or self.problem:
            return ModelAnswer(text=text, usage=self.usage, error=self.error, problem=self.problem)
        calls: list[ToolCall] = []
        messages = tuple(self._messages(calls))
        return ModelAnswer(
            messages=messages,
            text=self._text(),
            calls=tuple(calls),
            finish=self.finish,
            usage=self.usage,
            problem="" if self.finish and self._is_complete() else ENDED_EARLY,
        )

    def count(self, usage: Any) -> None:
        """Merge a usage report; later reports override earlier ones."""
        if isinstance(usage, dict):
            self.usage |= {key: value for key, value in usage.items() if value is not None}

    def _text(self) -> str:
        return "".join(self.texts)

    def _is_complete(self) -> bool:
        """Return whether a stream with a finish reason has also ended properly."""
        return True

    @abstractmethod
    def read_body(self, value: dict[str, Any]) -> None:
        """Parse a response that is one JSON value."""

    @abstractmethod
    def _read_event(self, value: dict[str, Any]) -> str: ...

    @abstractmethod
    def _messages(self, calls: list[ToolCall]) -> Iterator[dict[str, Any]]:
        """Yield the messages to keep and append their calls to `calls`."""


class _ChatParser(_AnswerParser):
    """Chat completions parser: deltas of one message, with calls identified by index."""

    def __init__(self) -> None:
        super().__init__()
        self.content: Any = None
        self.kept: dict[str, Any] = {}
        self.reasoning: dict[str, list[str]] = {}
        self.calls: dict[int, dict[str, Any]] = {}
        self.places: dict[str, int] = {}
        self.arguments: dict[int, list[str]] = {}
        self.refusals: list[str] = []

    def _read_event(self, value: dict[str, Any]) -> str:
        self.count(value.get("usage"))
        choice = _first_choice(value)
        if isinstance(choice.get("finish_reason"), str):
            self.finish = _finish_of(choice["finish_reason"])
        return self._grow(_mapping(choice.get("delta")))

    def read_body(self, value: dict[str, Any]) -> None:
        self.count(value.get("usage"))
        choice = _first_choice(value)
        message = choice.get("message")
        if not isinstance(message, dict):
            self.problem = "the response has no message"
            return
        self.texts.append(self._grow(message))
        self.content = message.get("content")
        self.kept = {key: message[key] for key in ("reasoning_details",) if message.get(key) is not None}
        self.finish = _finish_of(choice.get("finish_reason"))

    def _grow(self, delta: dict[str, Any]) -> str:
        for field in _CHAT_REASONING:
            if isinstance(delta.get(field), str):
                self.reasoning.setdefault(field, []).append(delta[field])
        if isinstance(delta.get("refusal"), str):
            self.refusals.append(delta["refusal"])
        calls = delta.get("tool_calls")
        for place, call in enumerate(calls if isinstance(calls, list) else ()):
            self._grow_call(place, _mapping(call))
        return _content_text(delta.get("content"))

    def _grow_call(self, place: int, call: dict[str, Any]) -> None:
        """Add a call delta; some servers omit the index and send whole calls, so a new id then starts a new call."""
        index, named = call.get("index"), str(call.get("id") or "")
        if not isinstance(index, int):
            index = self.places.get(named, len(self.calls)) if named else place
        if named:
            self.places.setdefault(named, index)
        kept = self.calls.setdefault(index, {"id": "", "type": "function", "function": {"name": ""}})
        function = _mapping(call.get("function"))
        for key, value in call.items():
            if key not in ("index", "function") and value:
                kept[key] = value
        kept["function"] |= {key: value for key, value in function.items() if key != "arguments" and value}
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            self.arguments.setdefault(index, []).append(arguments)
        elif arguments is not None:
            self.arguments[index] = [jsonio.text_of(arguments)]

    def _text(self) -> str:
        return super()._text() or "".join(self.refusals)

    def answer(self) -> ModelAnswer:
        answer = super().answer()
        return msgspec.structs.replace(answer, finish="filter") if any(self.refusals) and answer.finish else answer

    def _messages(self, calls: list[ToolCall]) -> Iterator[dict[str, Any]]:
        message: dict[str, Any] = {"role": "assistant", "content": self.content or self._text() or None}
        message |= {field: "".join(pieces) for field, pieces in self.reasoning.items() if any(pieces)} | self.kept
        if self.calls:
            message["tool_calls"] = [self._finished_call(index, calls) for index in sorted(self.calls)]
        yield message

    def _finished_call(self, index: int, calls: list[ToolCall]) -> dict[str, Any]:
        kept = {**self.calls[index]}
        kept["id"] = str(kept["id"] or f"call_{index}")
        if kept["type"] != "function":
            del kept["function"]
            return kept
        arguments = "".join(self.arguments.get(index, ())) or "{}"
        kept["function"] = {**kept["function"], "arguments": arguments}
        calls.append(ToolCall(kept["id"], str(kept["function"]["name"]), arguments))
        return kept


class _AnthropicParser(_AnswerParser):
    """Messages API parser: blocks that open, grow and close."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks: dict[int, dict[str, Any]] = {}
        self.pieces: dict[tuple[int, str], list[str]] = {}

    def _read_event(self, value: dict[str, Any]) -> str:
        match value.get("type"):
            case "message_start":
                self.count(_mapping(value.get("message")).get("usage"))
            case "content_block_start":
                self.blocks[_index(value)] = dict(_mapping(value.get("content_block")))
            case "content_block_delta":
                return self._grow(_index(value), _mapping(value.get("delta")))
            case "message_delta":
                self.count(value.get("usage"))
                reason = _mapping(value.get("delta")).get("stop_reason")
                self.finish = _finish_of(reason) if isinstance(reason, str) else self.finish
            case "message_stop":
                self.has_ended = True
        return ""

    def _grow(self, index: int, delta: dict[str, Any]) -> str:
        kind = delta.get("type")
        field = "partial_json" if kind == "input_json_delta" else _ANTHROPIC_DELTAS.get(str(kind), "")
        piece = delta.get(field)
        if not isinstance(piece, str):
            return ""
        self.blocks.setdefault(index, {"type": "text", "text": ""})
        self.pieces.setdefault((index, field), []).append(piece)
        return piece if field == "text" else ""

    def read_body(self, value: dict[str, Any]) -> None:
        self.count(value.get("usage"))
        blocks = value.get("content")
        if not isinstance(blocks, list):
            self.problem = "the response has no content"
            return
        self.blocks = {index: block for index, block in enumerate(blocks) if isinstance(block, dict)}
        self.texts = [_content_text(blocks)]
        self.finish, self.has_ended = _finish_of(value.get("stop_reason")), True

    def _is_complete(self) -> bool:
        return self.has_ended

    def _messages(self, calls: list[ToolCall]) -> Iterator[dict[str, Any]]:
        kept = [
            block
            for block in (self._finished_block(index) for index in sorted(self.blocks))
            if block.get("type") != "text" or str(block.get("text", "")).strip()
        ]
        calls += [
            ToolCall(str(block.get("id")), str(block.get("name")), jsonio.text_of(block.get("input") or {}))
            for block in kept
            if block.get("type") == "tool_use"
        ]
        yield {"role": "assistant", "content": kept}

    def _finished_block(self, index: int) -> dict[str, Any]:
        block = {key: value for key, value in self.blocks[index].items() if value is not None}
        for field in _ANTHROPIC_DELTAS.values():
            if (index, field) in self.pieces:
                block[field] = str(block.get(field, "")) + "".join(self.pieces[index, field])
        if (index, "partial_json") in self.pieces:
            block["input"] = _input("".join(self.pieces[index, "partial_json"]))
        return block


class _ResponsesParser(_AnswerParser):
    """Responses API parser: all items come in the last event, or one by one from servers that omit them there."""

    def __init__(self) -> None:
        super().__init__()
        self.items: list[dict[str, Any]] = []

    def _read_event(self, value: dict[str, Any]) -> str:
        match value.get("type"):
            case "response.output_text.delta":
                return _content_text(value.get("delta"))
            case "response.output_item.done":
                self.items += [value["item"]] if isinstance(value.get("item"), dict) else []
            case "response.completed" | "response.incomplete" | "response.failed":
                self.read_body(_mapping(value.get("response")))
            case "error":
                self.error = value
        return ""

    def read_body(self, value: dict[str, Any]) -> None:
        self.count(value.get("usage"))
        if value.get("error"):
            self.error = value["error"]
        items = value.get("output")
        if not isinstance(items, list):
            self.problem = "the response has no output"
            return
        self.items = [item for item in items if isinstance(item, dict)] or self.items
        reason = _mapping(value.get("incomplete_details")).get("reason")
        self.finish, self.has_ended = _finish_of(reason), True

    def _text(self) -> str:
        messages = (item for item in self.items if item.get("type", "message") == "message")
        return "".join(_content_text(item.get("content"), "output_text") for item in messages)

    def _messages(self, calls: list[ToolCall]) -> Iterator[dict[str, Any]]:
        calls += [
            ToolCall(str(item.get("call_id")), str(item.get("name")), str(item.get("arguments") or "{}"))
            for item in self.items
            if item.get("type") == "function_call"
        ]
        yield from self.items


_PARSERS: dict[str, type[_AnswerParser]] = {
    "openai-chat": _ChatParser,
    "anthropic": _AnthropicParser,
    "openai-responses": _ResponsesParser,
}


def result_messages(dialect: str, results: list[tuple[str, str]]) -> list[dict[str, Any]]:
    """Return tool results, given as (call id, text), as messages of a request."""
    if dialect == "anthropic":
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in results]
        return [{"role": "user", "content": blocks}]
    if dialect == "openai-chat":
        return [{"role": "tool", "tool_call_id": call, "content": text} for call, text in results]
    return [{"type": "function_call_output", "call_id": call, "output": text} for call, text in results]


_USAGE = b'"usage":'


def usage_at_edges(head: bytes, tail: bytes) -> Usage | None:
    """Return the usage in a response, given only its first and last bytes, or None.

    `"usage":` cannot occur inside a JSON string, as its quotes would be escaped, so it is found without decoding.
    Anthropic's streams report the prompt size first and the output size last; later values override.
    """
    first, last = _usage_value(head, head.find(_USAGE)), _usage_value(tail, tail.rfind(_USAGE))
    return read_usage({**first, **{key: value for key, value in last.items() if value is not None}})


def _usage_value(data: bytes, place: int) -> dict[str, Any]:
    if place < 0:
        return {}
    start = place + len(_USAGE)
    while data[start : start + 1].isspace():
        start += 1
    try:
        return _mapping(jsonio.decode(data[start : value_end(data, start)]))
    except jsonio.NotJSON:
        return {}


def _input(written: str) -> dict[str, Any]:
    """Return tool call input as an object, as the API requires; truncated arguments become text inside one."""
    try:
        value = jsonio.decode(written) if written.strip() else {}
    except jsonio.NotJSON:
        value = None
    return value if isinstance(value, dict) else {"unreadable": written}


def _content_text(content: Any, kind: str = "text") -> str:
    """Return a string, or the joined text blocks of a list; '' for anything else."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type", kind) == kind]
    return "".join(text for text in texts if isinstance(text, str))


def _finish_of(reason: Any) -> Finish:
    return _FINISHES.get(reason, "stop") if isinstance(reason, str) else "stop"


def _first_choice(value: dict[str, Any]) -> dict[str, Any]:
    choices = value.get("choices")
    for choice in choices if isinstance(choices, list) else ():
        if isinstance(choice, dict) and not choice.get("index"):
            return choice
    return {}


def _index(value: dict[str, Any]) -> int:
    index = value.get("index")
    return index if isinstance(index, int) else 0


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}
