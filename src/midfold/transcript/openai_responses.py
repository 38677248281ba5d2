"""OpenAI Responses dialect: every message, call, result and reasoning block is its own input item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from midfold.errors import TranscriptError
from midfold.transcript import jsonio
from midfold.transcript.dialect import REMOVE, Notes, kind_of, string
from midfold.transcript.message import Media, Message, Opaque, Part, Reading, Role, Text, Thinking, ToolCall, ToolResult
from midfold.transcript.openai_chat import ROLES, read_block, write_block

CALL_BODIES = ("arguments", "input", "action", "operation")
"""Keys that hold the arguments in the different kinds of calls."""


class OpenAIResponses:
    name: ClassVar[str] = "openai-responses"
    list_key: ClassVar[str] = "input"
    system_key: ClassVar[str | None] = "instructions"
    output_keys: ClassVar[tuple[str, ...]] = ("max_output_tokens",)

    @staticmethod
    def read(value: Any) -> Reading:
        notes = Notes()
        if isinstance(value, str):
            return notes.reading("user", [Text(value)] if value else [])
        if not isinstance(value, Mapping):
            return notes.reading("other", [notes.opaque("", "item", value, "an input item")])
        kind = kind_of(value)
        if kind in ("message", "") and ("role" in value or kind):
            return _read_message(value, notes)
        if kind == "reasoning":
            return notes.reading("assistant", [_thinking(value)])
        if kind.endswith("_output") and "call_id" in value:
            return notes.reading("tool", [_result(value, notes)])
        if kind.endswith("_call") and "call_id" in value:
            return notes.reading("assistant", [_call(kind, value, notes)])
        return _read_other(kind, value, notes)

    @staticmethod
    def read_system(value: Any) -> Reading:
        return OpenAIResponses.read({"role": "system", "content": value})

    @staticmethod
    def fields(message: Message, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        before = OpenAIResponses.read(origin) if origin else None
        if before is not None and (before.role, before.parts) == (message.role, message.parts):
            return {}
        only = message.parts[0] if len(message.parts) == 1 else None
        kind = kind_of(origin)
        if isinstance(only, ToolCall):
            return _call_fields(only, origin)
        if isinstance(only, ToolResult):
            known = {"type": kind or "function_call_output", "call_id": only.call_id}
            return {**known, "output": _content(only.parts, origin.get("output"), "input_text")}
        if isinstance(only, Thinking):
            return _reasoning_fields(only)
        if any(isinstance(part, ToolCall | ToolResult | Thinking) for part in message.parts):
            raise TranscriptError("a Responses item must be one call, one result, one reasoning block or a message")
        text_type = "output_text" if message.role == "assistant" else "input_text"
        content = _content(message.parts, origin.get("content"), text_type)
        leftovers = {} if kind in ("", "message") else {key: REMOVE for key in origin if key != "id"}
        role = {} if before and before.role == message.role and not leftovers else {"role": _role_name(message.role)}
        return {**leftovers, **role, "content": content}

    @staticmethod
    def system_value(message: Message, origin: Any) -> Any:
        return message.text


def _read_message(value: Mapping[str, Any], notes: Notes) -> Reading:
    found = value.get("role")
    role: Role | None = ROLES.get(found) if isinstance(found, str) else None
    if role is None:
        notes.expect(".role", "a role", found)
    parts = _read_content(value.get("content"), ".content", notes)
    return notes.reading(role or "other", parts)


def _read_content(content: Any, path: str, notes: Notes) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    if not isinstance(content, list | tuple):
        return [notes.opaque(path, "content", content, "text or a list of parts")]
    return [read_block(block, f"{path}[{index}]", notes) for index, block in enumerate(content)]


def _read_other(kind: str, value: Mapping[str, Any], notes: Notes) -> Reading:
    """Read an item that is kept and counted but not interpreted (searches, image generation, references, compactions).

    Calls and results without a call id are still read as such, with a problem.
    """
    if not kind:
        notes.expect(".type", "the type of the item", value.get("type"))
    elif kind in ("function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output"):
        notes.expect(".call_id", "a call id", None)
        part = _result(value, notes) if kind.endswith("_output") else _call(kind, value, notes)
        return notes.reading("tool" if kind.endswith("_output") else "assistant", [part])
    role: Role = "assistant" if kind.endswith("_call") else "other"
    return notes.reading(role, [Opaque(kind or "item", jsonio.text_of(value), wire=value)])


def _thinking(value: Mapping[str, Any]) -> Thinking:
    blocks = [*_list(value.get("summary")), *_list(value.get("content"))]
    texts = [string(block.get("text")) for block in blocks if isinstance(block, Mapping)]
    encrypted = value.get("encrypted_content")
    return Thinking("\n".join(texts), encrypted if isinstance(encrypted, str) else None, False, wire=value)


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _call(kind: str, value: Mapping[str, Any], notes: Notes) -> ToolCall:
    found = value.get("call_id")
    call_id = notes.name(".call_id", found, "a call id") if found is not None else ""
    if kind == "function_call":
        name = notes.name(".name", value.get("name"), "a tool name")
        return ToolCall(call_id, name, notes.arguments(".arguments", value.get("arguments")), wire=value)
    name = string(value.get("name")) or kind.removesuffix("_call")
    return ToolCall(call_id, name, string(value.get(_body_key(value))), wire=value)


def _body_key(value: Mapping[str, Any]) -> str:
    return next((key for key in CALL_BODIES if key in value), "input")


def _result(value: Mapping[str, Any], notes: Notes) -> ToolResult:
    found = value.get("call_id")
    call_id = notes.name(".call_id", found, "a call id") if found is not None else ""
    output = value.get("output")
    if isinstance(output, Mapping):
        parts: list[Part] = [_screenshot(output)]
    else:
        parts = _read_content(output, ".output", notes)
    return ToolResult(call_id, tuple(parts), value.get("status") == "failed", None, wire=value)


def _screenshot(output: Mapping[str, Any]) -> Part:
    if kind_of(output) == "computer_screenshot":
        return Media("image", string(output.get("image_url") or output.get("file_id")), None, wire=output)
    return Opaque(kind_of(output) or "output", jsonio.text_of(output), wire=output)


def _content(parts: tuple[Part, ...], before: Any, text_type: str) -> Any:
    """Return the content value, keeping plain strings as strings."""
    only = parts[0] if len(parts) == 1 else None
    if type(only) is Text and only.wire is None and not isinstance(before, list | tuple):
        return only.text
    if not parts:
        return before if isinstance(before, str) and not before else [] if isinstance(before, list) else ""
    if only is not None and isinstance(before, Mapping) and getattr(only, "wire", None) is before:
        return before
    return [write_block(part, text_type) for part in parts]


def _call_fields(call: ToolCall, origin: Mapping[str, Any]) -> dict[str, Any]:
    kind = kind_of(origin) or "function_call"
    if kind == "function_call":
        return {"type": kind, "call_id": call.id, "name": call.name, "arguments": call.arguments}
    key = _body_key(origin)
    before = origin.get(key)
    body: Any = before if string(before) == call.arguments else call.arguments
    if body is call.arguments and not isinstance(before, str) and jsonio.is_json(call.arguments):
        body = jsonio.decode(call.arguments)
    named = {"name": call.name} if "name" in origin else {}
    return {"type": kind, "call_id": call.id, **named, key: body}


def _reasoning_fields(thought: Thinking) -> dict[str, Any]:
    summary = [{"type": "summary_text", "text": thought.text}] if thought.text else []
    signed = {"encrypted_content": thought.signature} if thought.signature else {}
    return {"type": "reasoning", "summary": summary, **signed}


def _role_name(role: Role) -> str:
    return role if role in ("system", "user", "assistant") else "user"
