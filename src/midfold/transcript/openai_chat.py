"""OpenAI chat completions dialect, used by most agents, frameworks and compatible servers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from midfold.errors import TranscriptError
from midfold.transcript import jsonio
from midfold.transcript.dialect import REMOVE, Notes, kind_of, original, string
from midfold.transcript.jsonio import is_json
from midfold.transcript.message import Media, Message, Opaque, Part, Reading, Role, Text, Thinking, ToolCall, ToolResult

ROLES: dict[str, Role] = {
    "system": "system",
    "developer": "system",
    "user": "user",
    "assistant": "assistant",
    "tool": "tool",
    "function": "tool",
}
THINKING_FIELDS = ("reasoning_content", "reasoning")
OPAQUE_FIELDS = ("reasoning_details", "thinking_blocks", "audio", "refusal")
BESIDE_CONTENT = frozenset({*THINKING_FIELDS, *OPAQUE_FIELDS})
BESIDE_TEXT = frozenset({*BESIDE_CONTENT, "tool_calls", "function_call"})
TEXT_BLOCKS = {"text": "text", "input_text": "text", "output_text": "text", "refusal": "refusal"}


class OpenAIChat:
    name: ClassVar[str] = "openai-chat"
    list_key: ClassVar[str] = "messages"
    system_key: ClassVar[str | None] = None
    output_keys: ClassVar[tuple[str, ...]] = ("max_completion_tokens", "max_tokens")

    @staticmethod
    def read(value: Any) -> Reading:
        plain = _plain_text(value) if type(value) is dict and BESIDE_TEXT.isdisjoint(value) else None
        if plain is not None:
            return plain
        notes = Notes()
        if type(value) is not dict and not isinstance(value, Mapping):
            return notes.reading("other", [notes.opaque("", "message", value, "a message object")])
        role = _role(value.get("role"), notes)
        parts: list[Part] = []
        if not BESIDE_CONTENT.isdisjoint(value):
            _read_fields(value, parts)
        content = value.get("content")
        if isinstance(content, str):
            if content:
                parts.append(Text(content))
        else:
            _read_content(content, parts, notes, required=role in ("user", "system", "tool"))
        if role == "tool":
            return notes.reading(role, [_result(value, tuple(parts), notes)])
        if value.get("tool_calls") is not None:
            for index, call in enumerate(notes.items(".tool_calls", value["tool_calls"])):
                parts.append(_plain_call(call) or _call(call, f".tool_calls[{index}]", notes))
        if value.get("function_call") is not None:
            parts.append(_legacy_call(value["function_call"], notes))
        return notes.reading(role, parts)

    @staticmethod
    def read_system(value: Any) -> Reading:
        return OpenAIChat.read({"role": "system", "content": value})

    @staticmethod
    def fields(message: Message, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        before = _ChatFields(OpenAIChat.read(origin).parts if origin else ())
        now = _ChatFields(message.parts)
        fields: dict[str, Any] = {}
        named = now.result is not None and bool(now.result.call_id)
        if not origin or OpenAIChat.read(origin).role != message.role or (named and origin.get("role") == "function"):
            fields["role"] = "user" if message.role == "other" else message.role
        if now.result is not None and (before.result is None or before.result.call_id != now.result.call_id):
            fields["tool_call_id"] = now.result.call_id
        if not origin or now.content != before.content:
            fields["content"] = _content(now.content, origin.get("content", REMOVE), has_calls=bool(now.calls))
        if now.calls != before.calls:
            _write_calls(now.calls, origin, fields)
        if now.thoughts != before.thoughts:
            _write_thoughts(now.thoughts, origin, fields)
        for field in OPAQUE_FIELDS:
            if field in before.beside and field not in now.beside:
                fields[field] = REMOVE
        return fields

    @staticmethod
    def system_value(message: Message, origin: Any) -> Any:
        return message.text


def _plain_text(value: dict[str, Any]) -> Reading | None:
    """Read a well-formed plain text or tool result (the common case); return None for anything else."""
    content, call_id, name = value.get("content"), value.get("tool_call_id"), value.get("role")
    role = ROLES.get(name) if type(name) is str else None
    if role is None or type(content) is not str or not content:
        return None
    if role != "tool":
        return Reading(role, (Text(content),))
    if type(call_id) is not str or not call_id:
        return None
    tool = value.get("name")
    return Reading(role, (ToolResult(call_id, (Text(content),), False, tool if isinstance(tool, str) else None),))


def _role(value: Any, notes: Notes) -> Role:
    role = ROLES.get(value) if isinstance(value, str) else None
    if role is None:
        if isinstance(value, str):
            notes.add(".role", f"expected one of {', '.join(ROLES)}, found another role")
        else:
            notes.expect(".role", "a role", value)
        return "other"
    return role


def _read_fields(value: Mapping[str, Any], parts: list[Part]) -> None:
    """Append reasoning and other parts from fields beside the content."""
    for field in THINKING_FIELDS:
        thought = value.get(field)
        if isinstance(thought, str) and thought:
            parts.append(Thinking(thought))
            break
    for field in OPAQUE_FIELDS:
        if value.get(field):
            parts.append(Opaque(field, string(value[field])))


def _read_content(content: Any, parts: list[Part], notes: Notes, *, required: bool) -> None:
    if content is None:
        if required:
            notes.expect(".content", "text or a list of parts", content)
        return
    if not isinstance(content, list | tuple):
        parts.append(notes.opaque(".content", "content", content, "text or a list of parts"))
        return
    for index, block in enumerate(content):
        parts.append(read_block(block, f".content[{index}]", notes))


def read_block(block: Any, path: str, notes: Notes) -> Part:
    """Read one element of a content list; also reads the block types of the Responses API."""
    if isinstance(block, str):
        notes.expect(path, "an object with a type", block)
        return Text(block, wire=block)
    if not isinstance(block, Mapping):
        return notes.opaque(path, "block", block, "an object with a type")
    kind = kind_of(block)
    if kind in TEXT_BLOCKS:
        text = block.get(TEXT_BLOCKS[kind])
        if not isinstance(text, str):
            notes.expect(f"{path}.{TEXT_BLOCKS[kind]}", "a string", text)
        return Text(string(text), wire=block)
    media = _media(kind, block)
    if media is not None:
        return media
    if not kind:
        notes.expect(f"{path}.type", "the type of the block", block.get("type"))
    return Opaque(kind or "block", jsonio.text_of(block), wire=block)


def _media(kind: str, block: Mapping[str, Any]) -> Media | None:
    if kind in ("image_url", "input_image"):
        image = block.get("image_url")
        url = string(image.get("url") if isinstance(image, Mapping) else image)
        return Media("image", url or string(block.get("file_id")), _mime(url), wire=block)
    if kind == "input_audio":
        audio = block.get("input_audio")
        sound = audio if isinstance(audio, Mapping) else {}
        return Media("audio", string(sound.get("data")), string(sound.get("format")) or None, wire=block)
    if kind == "image" and isinstance(block.get("source"), Mapping):
        source = block["source"]
        mime = source.get("media_type")
        data = string(source.get("data") or source.get("url") or source.get("file_id"))
        return Media("image", data, mime if isinstance(mime, str) else None, wire=block)
    if kind in ("file", "input_file"):
        nested = block.get("file")
        file = nested if isinstance(nested, Mapping) else block
        data = string(file.get("file_data") or file.get("file_url") or file.get("file_id"))
        return Media("document", data, _mime(data), wire=block)
    return None


def _mime(url: str) -> str | None:
    return url[5:].partition(";")[0] or None if url[:5] == "data:" else None


def _result(value: Mapping[str, Any], parts: tuple[Part, ...], notes: Notes) -> ToolResult:
    name = value.get("name")
    call_id = value.get("tool_call_id")
    if value.get("role") != "function":
        call_id = call_id if type(call_id) is str and call_id else notes.name(".tool_call_id", call_id, "a call id")
    return ToolResult(string(call_id), parts, False, name if isinstance(name, str) else None)


def _plain_call(call: Any) -> ToolCall | None:
    """Read a well-formed function call (the common case); return None for anything else."""
    function = call.get("function") if type(call) is dict else None
    if type(function) is not dict or call.get("type") == "custom":
        return None
    call_id, name, arguments = call.get("id"), function.get("name"), function.get("arguments")
    if type(call_id) is type(name) is type(arguments) is str and call_id and name and is_json(arguments or "{}"):
        return ToolCall(call_id, name, arguments, wire=call)
    return None


def _call(call: Any, path: str, notes: Notes) -> ToolCall:
    value = notes.mapping(path, call)
    call_id = value.get("id")
    if type(call_id) is not str or not call_id:
        call_id = notes.name(f"{path}.id", call_id, "a call id") if isinstance(call, Mapping) else ""
    if value.get("type") == "custom":
        custom = notes.mapping(f"{path}.custom", value.get("custom"))
        name = notes.name(f"{path}.custom.name", custom.get("name"), "a tool name")
        return ToolCall(call_id, name, string(custom.get("input")), wire=call)
    function = value.get("function")
    if not isinstance(function, Mapping):
        if isinstance(call, Mapping):
            notes.expect(f"{path}.function", "an object", function)
        return ToolCall(call_id, "", "", wire=call)
    found = function.get("name")
    name = found if type(found) is str and found else notes.name(f"{path}.function.name", found, "a tool name")
    arguments = notes.arguments(f"{path}.function.arguments", function.get("arguments"))
    return ToolCall(call_id, name, arguments, wire=call)


def _legacy_call(call: Any, notes: Notes) -> ToolCall:
    function = notes.mapping(".function_call", call)
    name = notes.name(".function_call.name", function.get("name"), "a tool name")
    return ToolCall("", name, notes.arguments(".function_call.arguments", function.get("arguments")), wire=call)


class _ChatFields:
    """Parts of a message grouped by the field that carries them."""

    def __init__(self, parts: tuple[Part, ...]) -> None:
        results = [part for part in parts if isinstance(part, ToolResult)]
        if len(results) > 1 or (results and len(parts) > 1):
            raise TranscriptError("an OpenAI chat tool message must hold exactly one result and nothing else")
        self.result = results[0] if results else None
        inner = results[0].parts if results else parts
        self.calls = [part for part in parts if isinstance(part, ToolCall)]
        self.thoughts = [part for part in inner if isinstance(part, Thinking)]
        self.beside = {part.kind for part in inner if isinstance(part, Opaque) and part.wire is None}
        self.content = [part for part in inner if isinstance(part, Text | Media) or _is_block(part)]


def _is_block(part: Part) -> bool:
    if not isinstance(part, Opaque):
        return False
    return part.wire is not None or part.kind not in OPAQUE_FIELDS


def _content(parts: list[Part], before: Any, *, has_calls: bool) -> Any:
    """Return the content value, keeping plain strings as strings; an empty message with calls has null content."""
    if not isinstance(before, list | tuple) and all(type(part) is Text and part.wire is None for part in parts):
        if len(parts) == 1:
            return string(getattr(parts[0], "text", ""))
        if not parts:
            return before if before in (None, "") else None if has_calls else ""
    return [write_block(part, "text") for part in parts]


def write_block(part: Part, text_type: str) -> Any:
    """Return the original block if the part is unchanged, else the block with its new text."""
    if part.wire is not None and read_block(original(part), "", Notes()) == part:
        return original(part)
    if isinstance(part, Text):
        known = part.wire if isinstance(part.wire, Mapping) else {"type": text_type}
        return {**known, TEXT_BLOCKS.get(kind_of(known), "text"): part.text}
    if isinstance(part, Media):
        return _new_media(part, text_type)
    if isinstance(part, Opaque):
        return {"type": text_type, "text": part.body}
    raise TranscriptError(f"a {type(part).__name__} cannot be a block of a content list")


def _new_media(media: Media, text_type: str) -> dict[str, Any]:
    responses = text_type != "text"
    data = media.data
    if media.kind == "image":
        url = data if ":" in data[:12] else f"data:{media.mime or 'image/png'};base64,{data}"
        return (
            {"type": "input_image", "image_url": url} if responses else {"type": "image_url", "image_url": {"url": url}}
        )
    if media.kind == "audio":
        return {"type": "input_audio", "input_audio": {"data": data, "format": media.mime or "wav"}}
    return {"type": "input_file", "file_data": data} if responses else {"type": "file", "file": {"file_data": data}}


def _write_calls(calls: list[ToolCall], origin: Mapping[str, Any], fields: dict[str, Any]) -> None:
    """Write the calls; a legacy call (`function_call`) that was given an id becomes a regular one."""
    legacy = origin.get("function_call")
    kept: list[ToolCall] = []
    if legacy is not None:
        kept = [call for call in calls if not call.id and (call.wire is legacy or call.wire == legacy)]
        fields["function_call"] = {**_as_mapping(legacy), **_function(kept[0])} if kept else REMOVE
    written = [_call_value(call) for call in calls if call not in kept]
    if written:
        fields["tool_calls"] = written
    elif "tool_calls" in origin:
        fields["tool_calls"] = REMOVE


def _call_value(call: ToolCall) -> Any:
    """Return the original call if unchanged, else the call with its new id, name and arguments."""
    if call.wire is not None and _call(call.wire, "", Notes()) == call:
        return call.wire
    before = _as_mapping(call.wire)
    if "name" in before:
        before = {}
    known: dict[str, Any] = {"id": call.id, "type": before.get("type") or "function"}
    if known["type"] == "custom":
        custom = _as_mapping(before.get("custom"))
        return {**before, **known, "custom": {**custom, "name": call.name, "input": call.arguments}}
    return {**before, **known, "function": {**_as_mapping(before.get("function")), **_function(call)}}


def _function(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": call.arguments}


def _as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _write_thoughts(thoughts: list[Thinking], origin: Mapping[str, Any], fields: dict[str, Any]) -> None:
    """Write reasoning to the field it came from; drop it if there was none, as the API accepts none."""
    known = [field for field in THINKING_FIELDS if isinstance(origin.get(field), str) and origin[field]]
    for field in known:
        fields[field] = REMOVE
    if known and thoughts:
        fields[known[0]] = "\n".join(thought.text for thought in thoughts)
