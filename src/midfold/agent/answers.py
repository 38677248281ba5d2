"""What a model answers, read as it arrives: text for whoever watches, and the message as the wire wants it back.

Rules of this file:
1. The message that is kept is the provider's own: blocks in their order, signatures and arguments as they were written.
2. An answer that ends before the provider said so is no answer; neither is one that says nothing.
3. What is a stream and what is one value, the first byte tells: proxies do either, under any name.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Protocol

import msgspec

from midfold.errors import ModelFailed, SummaryFailed
from midfold.summarize.endpoint import Wire
from midfold.summarize.trouble import from_error_value
from midfold.transcript import jsonio
from midfold.transcript.sse import EventReader

LARGEST_ANSWER = 32_000_000
BLANK = b"\xef\xbb\xbf \t\r\n"
Finish = Literal["stop", "length", "filter"]
_FINISHES: dict[str, Finish] = {
    "length": "length",
    "max_tokens": "length",
    "model_context_window_exceeded": "length",
    "content_filter": "filter",
    "refusal": "filter",
}


class Call(msgspec.Struct, frozen=True):
    """A tool the model wants to be run; `arguments` is JSON text as the model wrote it."""

    id: str
    name: str
    arguments: str


class Answer(msgspec.Struct, frozen=True, kw_only=True):
    """One answer: the message to keep, in the shape of its wire, and what is in it."""

    message: dict[str, Any]
    text: str = ""
    calls: tuple[Call, ...] = ()
    finish: Finish = "stop"
    usage: dict[str, Any] = {}
    headers: dict[str, str] = {}
    """What a midfold gateway says it did."""


class _Growing(Protocol):
    """An answer that arrives in pieces."""

    text: list[str]

    def take(self, value: dict[str, Any]) -> str: ...
    def done(self) -> None: ...
    def answer(self) -> Answer: ...


class AnswerReader:
    """Feed it the body of an answer: it gives the text as it grows, `finish` the whole."""

    def __init__(self, wire: Wire) -> None:
        self._growing: _Growing = _OpenAI() if wire == "openai" else _Anthropic()
        self._events: EventReader | None = None
        self._body = bytearray()
        self._size = 0

    def feed(self, chunk: bytes) -> Iterator[str]:
        self._size += len(chunk)
        if self._size > LARGEST_ANSWER:
            raise ModelFailed("malformed", "the answer is larger than 32 MB")
        if self._events is None:
            begun = bool(self._body)
            self._body += chunk if begun else chunk.lstrip(BLANK)
            if begun or bytes(self._body[:1]) in (b"", b"{", b"[", b"<"):
                return
            self._events, chunk = EventReader(), bytes(self._body)
        try:
            for event in self._events.feed(chunk):
                if event.data.strip() == "[DONE]":
                    self._growing.done()
                elif text := self._growing.take(_object(event.data)):
                    yield text
        except ValueError as problem:
            raise ModelFailed("malformed", str(problem)) from None

    def finish(self) -> Answer:
        if self._events is None:
            self._growing = _whole(self._growing, _object(bytes(self._body)))
        answer = self._growing.answer()
        if not answer.text.strip() and not answer.calls and answer.finish != "filter":
            raise ModelFailed("malformed", "the model said nothing")
        return answer

    @property
    def begun(self) -> bool:
        """Whether anything arrived."""
        return self._size > 0

    @property
    def heard(self) -> str:
        """The text so far, of an answer that may never end."""
        return "".join(self._growing.text)


def _object(data: bytes | str) -> dict[str, Any]:
    try:
        value = jsonio.decode(data)
    except jsonio.NotJSON:
        raise ModelFailed("malformed", "the answer is not JSON") from None
    if not isinstance(value, dict):
        raise ModelFailed("malformed", "the answer is not an object")
    if value.get("error"):
        failed: SummaryFailed = from_error_value(value["error"])
        raise ModelFailed(failed.kind, str(failed), limit=failed.limit)
    return value


def _whole(growing: _Growing, value: dict[str, Any]) -> _Growing:
    """An answer that came as one value, as if it had come in one piece."""
    if isinstance(growing, _OpenAI):
        choice = _first(value.get("choices"))
        growing.take({**value, "choices": [{**choice, "delta": choice.get("message")}]})
    elif isinstance(growing, _Anthropic):
        blocks = value.get("content")
        growing.blocks = dict(enumerate(blocks)) if isinstance(blocks, list) else {}
        growing.usage = _mapping(value.get("usage"))
        growing.finish = _finish(value.get("stop_reason"))
    growing.done()
    return growing


class _OpenAI:
    """Chat completions: deltas of one message; calls are told apart by their index."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.reasoning: dict[str, list[str]] = {}
        self.calls: dict[int, dict[str, str]] = {}
        self.finish: Finish | None = None
        self.refusal = ""
        self.usage: dict[str, Any] = {}

    def take(self, value: dict[str, Any]) -> str:
        self.usage.update(_mapping(value.get("usage")))
        choice = _first(value.get("choices"))
        delta = _mapping(choice.get("delta"))
        if isinstance(choice.get("finish_reason"), str):
            self.finish = _finish(choice["finish_reason"])
        for field in ("reasoning_content", "reasoning"):
            if isinstance(delta.get(field), str):
                self.reasoning.setdefault(field, []).append(delta[field])
        self.refusal += delta["refusal"] if isinstance(delta.get("refusal"), str) else ""
        for place, call in enumerate(delta.get("tool_calls") or ()):
            self._call(place, _mapping(call))
        text = delta.get("content") if isinstance(delta.get("content"), str) else ""
        self.text.append(text or "")
        return text or ""

    def _call(self, place: int, call: dict[str, Any]) -> None:
        """Some servers leave out the index and send whole calls: then a new id is a new call."""
        index = call.get("index")
        if not isinstance(index, int):
            known = [key for key, kept in self.calls.items() if kept["id"] == call.get("id")]
            index = known[0] if known else len(self.calls) if call.get("id") else place
        kept = self.calls.setdefault(index, {"id": "", "name": "", "arguments": ""})
        function = _mapping(call.get("function"))
        kept["id"] = str(call.get("id") or kept["id"])
        kept["name"] = str(function.get("name") or kept["name"])
        arguments = function.get("arguments")
        if isinstance(arguments, str):
            kept["arguments"] += arguments
        elif arguments is not None:
            kept["arguments"] = jsonio.text_of(arguments)

    def done(self) -> None:
        """The end of the stream says nothing that finish_reason has not said."""

    def answer(self) -> Answer:
        if self.finish is None:
            raise ModelFailed("malformed", "the answer broke off")
        calls = tuple(
            Call(kept["id"] or f"call_{index}", kept["name"], kept["arguments"] or "{}")
            for index, kept in sorted(self.calls.items())
        )
        text = "".join(self.text) or self.refusal
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        message |= {field: "".join(pieces) for field, pieces in self.reasoning.items() if any(pieces)}
        if calls:
            message["tool_calls"] = [
                {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
                for call in calls
            ]
        finish: Finish = "filter" if self.refusal else self.finish
        return Answer(message=message, text=text, calls=calls, finish=finish, usage=self.usage)


class _Anthropic:
    """Messages: blocks that open, grow and close."""

    def __init__(self) -> None:
        self.text: list[str] = []
        self.blocks: dict[int, Any] = {}
        self.inputs: dict[int, str] = {}
        self.finish: Finish | None = None
        self.usage: dict[str, Any] = {}
        self.ended = False

    def take(self, value: dict[str, Any]) -> str:
        match value.get("type"):
            case "message_start":
                self.usage.update(_mapping(_mapping(value.get("message")).get("usage")))
            case "content_block_start":
                self.blocks[_index(value)] = dict(_mapping(value.get("content_block")))
            case "content_block_delta":
                return self._grow(_index(value), _mapping(value.get("delta")))
            case "message_delta":
                self.usage.update(_mapping(value.get("usage")))
                reason = _mapping(value.get("delta")).get("stop_reason")
                self.finish = _finish(reason) if isinstance(reason, str) else self.finish
            case "message_stop":
                self.ended = True
        return ""

    def _grow(self, index: int, delta: dict[str, Any]) -> str:
        block = self.blocks.setdefault(index, {"type": "text", "text": ""})
        for kind, field in (("text_delta", "text"), ("thinking_delta", "thinking"), ("signature_delta", "signature")):
            if delta.get("type") == kind and isinstance(delta.get(field), str):
                block[field] = block.get(field, "") + delta[field]
        if delta.get("type") == "input_json_delta":
            self.inputs[index] = self.inputs.get(index, "") + str(delta.get("partial_json") or "")
        text = delta.get("text") if delta.get("type") == "text_delta" else ""
        self.text.append(text or "")
        return text or ""

    def done(self) -> None:
        self.ended = True

    def answer(self) -> Answer:
        if self.finish is None or not self.ended:
            raise ModelFailed("malformed", "the answer broke off")
        for index, written in self.inputs.items():
            self.blocks[index]["input"] = _input(written)
        blocks = [block for _, block in sorted(self.blocks.items()) if not _is_blank(block)]
        calls = tuple(
            Call(str(block.get("id")), str(block.get("name")), jsonio.text_of(block.get("input") or {}))
            for block in blocks
            if block.get("type") == "tool_use"
        )
        text = "".join(block.get("text", "") for block in blocks if block.get("type") == "text")
        message = {"role": "assistant", "content": blocks}
        return Answer(message=message, text=text, calls=calls, finish=self.finish, usage=self.usage)


def _input(written: str) -> Any:
    """The API takes back nothing but an object; arguments that were cut off are kept as text inside one."""
    try:
        value = jsonio.decode(written) if written.strip() else {}
    except jsonio.NotJSON:
        value = None
    return value if isinstance(value, dict) else {"unreadable": written}


def _is_blank(block: Any) -> bool:
    """The API refuses to be sent an empty text back."""
    return not isinstance(block, dict) or (block.get("type") == "text" and not str(block.get("text", "")).strip())


def _finish(reason: Any) -> Finish:
    return _FINISHES.get(reason, "stop") if isinstance(reason, str) else "stop"


def _index(value: dict[str, Any]) -> int:
    index = value.get("index")
    return index if isinstance(index, int) else 0


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _first(value: Any) -> dict[str, Any]:
    return _mapping(value[0]) if isinstance(value, list) and value else {}
