"""Anthropic Messages dialect: content blocks, tool results inside user messages, system prompt outside the list.

A system message inside the list may carry text, a change of the tools, or only an `output_config` without content.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from midfold.errors import TranscriptError
from midfold.transcript import jsonio
from midfold.transcript.dialect import REMOVE, Notes, kind_of, original, string
from midfold.transcript.message import Media, Message, Opaque, Part, Reading, Role, Text, Thinking, ToolCall, ToolResult

ROLES: dict[str, Role] = {"user": "user", "assistant": "assistant", "system": "system"}


class Anthropic:
    name: ClassVar[str] = "anthropic"
    list_key: ClassVar[str] = "messages"
    system_key: ClassVar[str | None] = "system"
    output_keys: ClassVar[tuple[str, ...]] = ("max_tokens",)

    @staticmethod
    def read(value: Any) -> Reading:
        notes = Notes()
        if not isinstance(value, Mapping):
            return notes.reading("other", [notes.opaque("", "message", value, "a message object")])
        found = value.get("role")
        role = ROLES.get(found) if isinstance(found, str) else None
        if role is None:
            notes.expect(".role", "user or assistant", found)
        if role == "system" and "content" not in value and isinstance(value.get("output_config"), Mapping):
            return notes.reading(role, [Opaque("output_config", jsonio.text_of(value["output_config"]))])
        parts = _read_content(value.get("content"), ".content", notes)
        return notes.reading(role or "other", parts)

    @staticmethod
    def read_system(value: Any) -> Reading:
        notes = Notes()
        return notes.reading("system", _read_content(value, "", notes))

    @staticmethod
    def fields(message: Message, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        before = Anthropic.read(origin) if origin else None
        fields: dict[str, Any] = {}
        if before is None or before.role != message.role:
            fields["role"] = message.role if message.role in ROLES else "user"
        if before is None or before.parts != message.parts:
            fields["content"] = _content(message.parts, origin.get("content"))
        return fields

    @staticmethod
    def system_value(message: Message, origin: Any) -> Any:
        return _content(message.parts, origin)


def _read_content(content: Any, path: str, notes: Notes) -> list[Part]:
    if isinstance(content, str):
        return [Text(content)] if content else []
    if not isinstance(content, list | tuple):
        return [notes.opaque(path, "content", content, "text or a list of blocks")]
    return [_read_block(block, f"{path}[{index}]", notes) for index, block in enumerate(content)]


def _read_block(block: Any, path: str, notes: Notes) -> Part:
    if isinstance(block, str):
        notes.expect(path, "an object with a type", block)
        return Text(block, wire=block)
    if not isinstance(block, Mapping):
        return notes.opaque(path, "block", block, "an object with a type")
    match kind_of(block):
        case "text":
            text = block.get("text")
            if not isinstance(text, str):
                notes.expect(f"{path}.text", "a string", text)
            return Text(string(text), wire=block)
        case "tool_use":
            return _call(block, path, notes)
        case "tool_result":
            return _result(block, path, notes)
        case "thinking":
            signature = block.get("signature")
            return Thinking(string(block.get("thinking")), string(signature) or None, False, wire=block)
        case "redacted_thinking":
            return Thinking("", string(block.get("data")), True, wire=block)
        case "image" | "document" as kind:
            return _media(kind, block)
        case "":
            notes.expect(f"{path}.type", "the type of the block", block.get("type"))
    return Opaque(kind_of(block) or "block", jsonio.text_of(block), wire=block)


def _call(block: Mapping[str, Any], path: str, notes: Notes) -> ToolCall:
    call_id = notes.name(f"{path}.id", block.get("id"), "a call id")
    name = notes.name(f"{path}.name", block.get("name"), "a tool name")
    arguments = block.get("input")
    if not isinstance(arguments, Mapping):
        notes.expect(f"{path}.input", "an object", arguments)
    return ToolCall(call_id, name, _arguments(arguments), wire=block)


def _arguments(value: Any) -> str:
    return string(value)


def _result(block: Mapping[str, Any], path: str, notes: Notes) -> ToolResult:
    call_id = notes.name(f"{path}.tool_use_id", block.get("tool_use_id"), "a call id")
    content = block.get("content")
    parts = [] if content is None else _read_content(content, f"{path}.content", notes)
    return ToolResult(call_id, tuple(parts), block.get("is_error") is True, None, wire=block)


def _media(kind: str, block: Mapping[str, Any]) -> Media:
    found = block.get("source")
    source = found if isinstance(found, Mapping) else {}
    data = source.get("data") or source.get("url") or source.get("file_id") or source.get("content")
    mime = source.get("media_type")
    if source.get("type") in ("text", "content"):
        mime = "text/plain"
    name = "image" if kind == "image" else "document"
    return Media(name, string(data), mime if isinstance(mime, str) else None, wire=block)  # type: ignore[arg-type]


def _content(parts: tuple[Part, ...], before: Any) -> Any:
    """Return the content value for the parts, keeping plain strings as strings.

    The API rejects empty text blocks, so no parts become an empty list.
    """
    only = parts[0] if len(parts) == 1 else None
    if type(only) is Text and only.wire is None and not isinstance(before, list | tuple):
        return only.text
    if not parts and before == "":
        return before
    return [_write_block(part) for part in parts]


def _write_block(part: Part) -> Any:
    """Return the original block if the part is unchanged, else the block updated with the part's values."""
    if part.wire is not None and _read_block(original(part), "", Notes()) == part:
        return original(part)
    known: Mapping[str, Any] = part.wire if isinstance(part.wire, Mapping) else {}
    match part:
        case Text(text=text):
            return {"type": "text", **known, "text": text}
        case ToolCall():
            return _call_block(part, known)
        case ToolResult():
            return _result_block(part, known)
        case Thinking(signature=data, redacted=True):
            return {"type": "redacted_thinking", **known, "data": data or ""}
        case Thinking(text=text, signature=signature):
            return {"type": "thinking", **known, "thinking": text, "signature": signature or ""}
        case Media(kind="image" | "document" as kind, data=data, mime=mime):
            return {"type": kind, **known, "source": _source(kind, data, mime)}
        case Opaque(body=body):
            return {"type": "text", "text": body}
    raise TranscriptError(f"Anthropic messages do not support {getattr(part, 'kind', type(part).__name__)} parts")


def _source(kind: str, data: str, mime: str | None) -> dict[str, Any]:
    if data.startswith(("http://", "https://")):
        return {"type": "url", "url": data}
    default = "image/png" if kind == "image" else "application/pdf"
    return {"type": "base64", "media_type": mime or default, "data": data}


def _call_block(call: ToolCall, known: Mapping[str, Any]) -> dict[str, Any]:
    """Return a tool_use block; arguments that are not a JSON object are wrapped in one, as the API requires."""
    before = known.get("input")
    if "input" in known and _arguments(before) == call.arguments:
        value = before
    else:
        try:
            value = jsonio.decode(call.arguments or "{}")
        except jsonio.NotJSON:
            value = {"arguments": call.arguments}
        if not isinstance(value, Mapping):
            value = {"arguments": value}
    return {"type": "tool_use", **known, "id": call.id, "name": call.name, "input": value}


def _result_block(result: ToolResult, known: Mapping[str, Any]) -> dict[str, Any]:
    before = known.get("content")
    block = {
        "type": "tool_result",
        **known,
        "tool_use_id": result.call_id,
        "content": _content(result.parts, before),
    }
    if not result.parts and "content" not in known:
        del block["content"]
    if result.is_error or "is_error" in known:
        block["is_error"] = result.is_error if result.is_error or known.get("is_error") is True else known["is_error"]
    return {key: value for key, value in block.items() if value is not REMOVE}
