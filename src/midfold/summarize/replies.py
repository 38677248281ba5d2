"""Answers of models, read: whole JSON values and event streams of both wires, and everything that is neither.

Rules of this file:
1. A stream that ends before the provider said that it ended is malformed: half a summary is not a summary.
2. An error inside an answer of status 200 is an error.
3. Reasoning is not part of the text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from midfold.errors import SummaryFailed
from midfold.summarize.calls import Finish, Reply
from midfold.summarize.endpoint import Wire
from midfold.summarize.trouble import from_error_value
from midfold.transcript import jsonio
from midfold.transcript.sse import Event, EventReader

LARGEST_ANSWER = 8_000_000
BLANK = b"\xef\xbb\xbf \t\r\n"
FIRST_OF_STREAM = (b"d", b"e", b"i", b"r", b":")
"""Streams begin with the name of a field (data, event, id, retry) or a comment; JSON values that are objects do not."""
_FINISHES: dict[str, Finish] = {
    "stop": "stop",
    "end_turn": "stop",
    "stop_sequence": "stop",
    "eos": "stop",
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "filter",
    "refusal": "filter",
    "tool_calls": "tool",
    "function_call": "tool",
    "tool_use": "tool",
}


class ReplyReader:
    """Feed it the body of an answer; `finish` gives the reply or raises `SummaryFailed`.

    What the answer is, its first byte tells: proxies give streams and values wrong names.
    """

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._events: EventReader | None = None
        self._body = bytearray()
        self._size = 0
        self._stream = _Stream(wire)

    def feed(self, chunk: bytes) -> None:
        self._size += len(chunk)
        if self._size > LARGEST_ANSWER:
            raise SummaryFailed("malformed", "the answer is larger than 8 MB")
        if self._events is None:
            begun = bool(self._body)
            self._body += chunk if begun else chunk.lstrip(BLANK)
            if begun or self._body[:1] not in FIRST_OF_STREAM:
                return
            self._events, chunk = EventReader(), bytes(self._body)
        try:
            for event in self._events.feed(chunk):
                self._stream.take(event)
        except ValueError as problem:
            raise SummaryFailed("malformed", str(problem)) from None

    def finish(self) -> Reply:
        if self._events is not None:
            return self._stream.reply()
        if self._body[:1] == b"<":
            raise SummaryFailed("malformed", "the answer is a web page")
        try:
            value = jsonio.decode(bytes(self._body))
        except jsonio.NotJSON:
            raise SummaryFailed("malformed", "the answer is not JSON") from None
        if not isinstance(value, dict):
            raise SummaryFailed("malformed", "the answer is not an object")
        if value.get("error"):
            raise from_error_value(value["error"])
        return _openai_reply(value) if self.wire == "openai" else _anthropic_reply(value)


class _Stream:
    """The text of an event stream as it grows."""

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self.pieces: list[str] = []
        self.finish: Finish | None = None
        self.usage: dict[str, Any] = {}
        self.ended = False

    def take(self, event: Event) -> None:
        if event.data.strip() == "[DONE]":
            self.ended = True
            return
        try:
            value = jsonio.decode(event.data)
        except jsonio.NotJSON:
            raise SummaryFailed("malformed", "an event of the stream is not JSON") from None
        if not isinstance(value, dict):
            raise SummaryFailed("malformed", "an event of the stream is not an object")
        if value.get("error"):
            raise from_error_value(value["error"])
        if self.wire == "openai":
            self._openai(value)
        else:
            self._anthropic(value)

    def _openai(self, value: dict[str, Any]) -> None:
        self.usage.update(_mapping(value.get("usage")))
        choice = _first(value.get("choices"))
        delta = _mapping(choice.get("delta"))
        self.pieces.append(_text(delta.get("content")))
        if delta.get("tool_calls"):
            self.finish = "tool"
        if delta.get("refusal"):
            self.finish = "filter"
        if isinstance(choice.get("finish_reason"), str) and self.finish not in ("tool", "filter"):
            self.finish = _FINISHES.get(choice["finish_reason"], "stop")

    def _anthropic(self, value: dict[str, Any]) -> None:
        kind = value.get("type")
        if kind == "message_start":
            self.usage.update(_mapping(_mapping(value.get("message")).get("usage")))
        elif kind == "content_block_start" and _mapping(value.get("content_block")).get("type") == "tool_use":
            self.finish = "tool"
        elif kind == "content_block_delta":
            text = _mapping(value.get("delta")).get("text")
            self.pieces += [text] if isinstance(text, str) else []
        elif kind == "message_delta":
            self.usage.update(_mapping(value.get("usage")))
            reason = _mapping(value.get("delta")).get("stop_reason")
            if isinstance(reason, str) and self.finish != "tool":
                self.finish = _FINISHES.get(reason, "stop")
        elif kind == "message_stop":
            self.ended = True

    def reply(self) -> Reply:
        if self.finish is None or (self.wire == "anthropic" and not self.ended):
            raise SummaryFailed("malformed", "the stream was closed before the answer ended")
        return _reply("".join(self.pieces), self.finish, self.usage)


def _openai_reply(value: dict[str, Any]) -> Reply:
    choice = _first(value.get("choices"))
    message = choice.get("message")
    if not isinstance(message, dict):
        raise SummaryFailed("malformed", "the answer has no message")
    finish = _FINISHES.get(str(choice.get("finish_reason") or "stop"), "stop")
    if message.get("tool_calls"):
        finish = "tool"
    if message.get("refusal"):
        finish = "filter"
    return _reply(_text(message.get("content")), finish, _mapping(value.get("usage")))


def _anthropic_reply(value: dict[str, Any]) -> Reply:
    if not isinstance(value.get("content"), list):
        raise SummaryFailed("malformed", "the answer has no content")
    finish = _FINISHES.get(str(value.get("stop_reason") or "stop"), "stop")
    return _reply(_text(value["content"]), finish, _mapping(value.get("usage")))


def _reply(text: str, finish: Finish, usage: Mapping[str, Any]) -> Reply:
    details = _mapping(usage.get("prompt_tokens_details"))
    read, written = _number(usage.get("cache_read_input_tokens")), _number(usage.get("cache_creation_input_tokens"))
    return Reply(
        text=text,
        finish=finish,
        prompt_tokens=_number(usage.get("prompt_tokens")) or _number(usage.get("input_tokens")) + read + written,
        cached_tokens=_number(details.get("cached_tokens")) or read,
        output_tokens=_number(usage.get("completion_tokens")) or _number(usage.get("output_tokens")),
    )


def _text(content: Any) -> str:
    """Text as a string, or the text blocks of a list; anything else is no text."""
    if isinstance(content, str):
        return content
    blocks = content if isinstance(content, list) else []
    texts = [block.get("text") for block in blocks if isinstance(block, dict) and block.get("type", "text") == "text"]
    return "".join(text for text in texts if isinstance(text, str))


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(value: Any) -> dict[str, Any]:
    return _mapping(value[0]) if isinstance(value, list) and value else {}


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
