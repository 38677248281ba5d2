"""Check requests as providers do, written from their documented errors and independent of the code under test.

    problem = check("anthropic", body, window=32_768)      # None, or the status and message the provider would send

Provider rules (OpenAI and Anthropic, November 2026): every call has a result and every result a call. Anthropic
requires
a user message first, alternating roles and no empty text. Its system messages follow a user message, are last or
are
followed by an assistant message, contain text and tool changes, and may have their own settings (supported models
and
beta headers are not checked). Unknown fields are refused. Prompt and answer together must fit the context window.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from hashlib import sha256
from typing import Any, NamedTuple

from midfold.cli.demo_session import PER_MESSAGE, text_tokens, tokens

_CHAT_FIELDS = {
    "role",
    "content",
    "name",
    "tool_calls",
    "tool_call_id",
    "refusal",
    "audio",
    "function_call",
    "annotations",
}
_TOOL_CHANGES = {"tool_addition", "tool_removal"}
_BLOCKS = {"text", "image", "document", "tool_use", "tool_result", "thinking", "redacted_thinking", *_TOOL_CHANGES}
_BLOCK_FIELDS = {
    "text": {"type", "text", "cache_control", "citations"},
    "tool_use": {"type", "id", "name", "input", "cache_control", "caller"},
    "tool_result": {"type", "tool_use_id", "content", "is_error", "cache_control"},
    "thinking": {"type", "thinking", "signature"},
    **{kind: {"type", "tool", "cache_control"} for kind in _TOOL_CHANGES},
}


class Problem(NamedTuple):
    """Error response of the provider."""

    status: int
    message: str
    code: str | None = None
    is_overflow: bool = False


class Violation(Exception):
    """Violation of a provider rule."""

    def __init__(self, message: str, code: str | None = None) -> None:
        super().__init__(message)
        self.code = code


def prompt_tokens(wire: str, body: Mapping[str, Any]) -> int:
    """Return the tokens of the whole prompt: messages, system prompt and tools."""
    items = body.get("input" if wire == "responses" else "messages") or []
    listed = [items] if isinstance(items, str) else items
    beside = [body.get(key) for key in ("system", "instructions") if body.get(key)]
    tools = json.dumps(body["tools"]) if body.get("tools") else ""
    return sum(PER_MESSAGE + tokens(item) for item in listed) + tokens(beside) + text_tokens(tools)


def signature(thinking: str) -> str:
    """Return the provider's signature of a thinking block; it does not match after an edit."""
    return "sig-" + sha256(thinking.encode()).hexdigest()[:24]


def check(wire: str, body: Any, window: int) -> Problem | None:
    """Return the error for a request, or None if the provider would accept it."""
    if not isinstance(body, Mapping):
        return Problem(400, "the body is not a JSON object")
    try:
        if not isinstance(body.get("model"), str):
            raise Violation("model: field required")
        {"chat": _chat, "responses": _responses, "anthropic": _anthropic}[wire](body)
    except Violation as broken:
        return Problem(400, str(broken), broken.code)
    try:
        _fits(wire, body, window)
    except Violation as broken:
        return Problem(400, str(broken), broken.code, is_overflow=True)
    return None


def _fits(wire: str, body: Mapping[str, Any], window: int) -> None:
    prompt = prompt_tokens(wire, body)
    keys = {"chat": ("max_completion_tokens", "max_tokens"), "responses": ("max_output_tokens",)}
    output = next((body[key] for key in keys.get(wire, ("max_tokens",)) if body.get(key)), 0)
    if wire == "anthropic":
        if prompt > window:
            raise Violation(f"prompt is too long: {prompt} tokens > {window} maximum")
        if prompt + output > window:
            raise Violation(f"input length and `max_tokens` exceed context limit: {prompt} + {output} > {window}")
    elif prompt + output > window:
        raise Violation(
            f"This model's maximum context length is {window} tokens. However, you requested {prompt + output} tokens "
            f"({prompt} in the messages, {output} in the completion). Please reduce the length of the messages.",
            "context_length_exceeded",
        )


def _chat(body: Mapping[str, Any]) -> None:
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Violation("messages: expected a list with at least one message")
    waiting: list[str] = []
    for index, message in enumerate(messages):
        role = message.get("role")
        if role not in ("system", "developer", "user", "assistant", "tool"):
            raise Violation(f"messages[{index}].role: {role!r} is not supported")
        extra = sorted(set(message) - _CHAT_FIELDS)
        if extra:
            raise Violation(f"messages[{index}]: Additional properties are not allowed ({extra[0]!r} was unexpected)")
        if role == "tool":
            if message.get("tool_call_id") not in waiting:
                raise Violation("messages with role 'tool' must be a response to a preceding message with 'tool_calls'")
            waiting.remove(message["tool_call_id"])
            continue
        if waiting:
            raise Violation(
                "An assistant message with 'tool_calls' must be followed by tool messages responding to each "
                f"'tool_call_id'. The following tool_call_ids did not have response messages: {', '.join(waiting)}"
            )
        waiting = [call["id"] for call in message.get("tool_calls") or ()]
        if not waiting and message.get("content") in (None, []):
            raise Violation(f"messages[{index}].content: expected a string, got null")
    if waiting:
        raise Violation(f"tool_call_ids did not have response messages: {', '.join(waiting)}")


def _responses(body: Mapping[str, Any]) -> None:
    items = body.get("input")
    if not isinstance(items, str | list) or not items:
        raise Violation("input: expected a string or a list of items")
    called: dict[str, bool] = {}
    thought = None
    for item in items if isinstance(items, list) else ():
        kind = item.get("type") or "message"
        if thought and kind not in ("message", "function_call", "reasoning"):
            raise Violation(f"Item '{thought}' of type 'reasoning' was provided without its required following item.")
        thought = item.get("id") if kind == "reasoning" else None
        if kind == "function_call":
            called[item["call_id"]] = False
        elif kind == "function_call_output":
            if item["call_id"] not in called:
                raise Violation(f"No tool call found for function call output with call_id {item['call_id']}.")
            called[item["call_id"]] = True
    unanswered = [call for call, done in called.items() if not done]
    if unanswered:
        raise Violation(f"No tool output found for function call {unanswered[0]}.")


def _anthropic(body: Mapping[str, Any]) -> None:
    if not isinstance(body.get("max_tokens"), int) or body["max_tokens"] < 1:
        raise Violation("max_tokens: Field required")
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise Violation("messages: at least one message is required")
    if messages[0].get("role") != "user":
        raise Violation("messages: first message must use the user role")
    calls: list[str] = []
    before = None
    for index, message in enumerate(messages):
        role = message.get("role")
        settings = {"clear_at", "output_config"} if role == "system" else set()
        if role not in ("user", "assistant", "system") or set(message) - {"role", "content"} - settings:
            raise Violation(f"messages.{index}: Extra inputs are not permitted, or an unexpected role")
        is_wordless = role == "system" and "content" not in message and bool(message.get("output_config"))
        blocks = [] if is_wordless else list(_blocks(message, index))
        if role == "system":
            _system_message(messages, index, blocks)
            continue
        if any(block["type"] in _TOOL_CHANGES for block in blocks):
            raise Violation(f"messages.{index}: only role 'system' takes changes of the tools")
        if role == before:
            raise Violation(f"messages: roles must alternate between user and assistant, but {index} is {role} again")
        before = role
        _results(blocks, calls, index)
        calls = [block["id"] for block in blocks if block["type"] == "tool_use"]
    if calls:
        raise Violation(f"tool_use ids were found without tool_result blocks immediately after: {', '.join(calls)}")


def _system_message(messages: list[Any], index: int, blocks: list[Mapping[str, Any]]) -> None:
    if messages[index - 1].get("role") != "user":
        raise Violation(f"messages.{index}: role 'system' must follow a 'user' message")
    if index + 1 < len(messages) and messages[index + 1].get("role") != "assistant":
        raise Violation(f"messages.{index}: role 'system' must be last or be followed by an 'assistant' message")
    if any(block["type"] not in {"text", *_TOOL_CHANGES} for block in blocks):
        raise Violation(f"messages.{index}: role 'system' takes text and changes of the tools only")


def _blocks(message: Mapping[str, Any], index: int) -> Iterator[Mapping[str, Any]]:
    content = message.get("content")
    if isinstance(content, str):
        content = [{"type": "text", "text": content}]
    if not isinstance(content, list) or not content:
        raise Violation(f"messages.{index}: content must not be empty")
    for place, block in enumerate(content):
        kind = block.get("type")
        if kind not in _BLOCKS:
            raise Violation(f"messages.{index}.content.{place}: Input tag {kind!r} is unknown")
        extra = sorted(set(block) - _BLOCK_FIELDS.get(kind, set(block)))
        if extra:
            raise Violation(f"messages.{index}.content.{place}.{extra[0]}: Extra inputs are not permitted")
        if kind == "text" and not block["text"].strip():
            raise Violation("messages: text content blocks must contain non-whitespace text")
        if kind == "thinking" and block["signature"] != signature(block["thinking"]):
            raise Violation(f"messages.{index}.content.{place}: `thinking` blocks cannot be modified")
        yield block


def _results(blocks: list[Mapping[str, Any]], calls: list[str], index: int) -> None:
    answered = [block["tool_use_id"] for block in blocks if block["type"] == "tool_result"]
    missing = [call for call in calls if call not in answered]
    if missing:
        raise Violation(f"tool_use ids were found without tool_result blocks immediately after: {', '.join(missing)}")
    unknown = [call for call in answered if call not in calls]
    if unknown:
        raise Violation(f"messages.{index}: unexpected `tool_use_id` found in `tool_result` blocks: {unknown[0]}")
