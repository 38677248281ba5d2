"""Export a session's view as a provider's request body or as a session file of a client.

1. The export is the view that the model sees. Blocks or items of the same dialect are written unchanged.
2. Between dialects, text, calls and results are converted. Reasoning is bound to its provider and is dropped; an image
   becomes a line that names it.
3. Instructions that a client adds itself (rules, environment) are omitted from its file, because it sends them again.
4. Turns alternate, the user starts, and every call has a result; open calls at the end get one.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, NamedTuple
from uuid import UUID, uuid5

from midfold.compaction.handoff import recognise
from midfold.store.protocol import View
from midfold.transcript import jsonio
from midfold.transcript.message import Media, Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from midfold.transcript.splice import message_value
from midfold.transcript.wrappers import prompt_blocks

Target = Literal["anthropic", "claude-code", "codex", "openai"]
TARGETS: tuple[Target, ...] = ("claude-code", "codex", "anthropic", "openai")
OPENING_TEXT = "(The conversation goes on from here.)"
MISSING_RESULT_TEXT = "[no result: the conversation was exported here]"
CLAUDE_CODE_VERSION, CODEX_VERSION = "2.1.325", "0.166.0"
"""Client versions whose file formats are written."""
_NAMES = UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")


class ClientFile(NamedTuple):
    """Lines of a session file, its path below the client's folder, and the id to resume it."""

    lines: list[bytes]
    place: Path
    id: str


class ExportedTurn(NamedTuple):
    """Consecutive parts of one side of the conversation."""

    role: Literal["user", "assistant"]
    parts: list[Part]


def request_of(view: View, target: Target) -> dict[str, Any]:
    """Return the history as a request body."""
    if target == "anthropic":
        system = {"system": view.prompt.text} if view.prompt is not None else {}
        return {**system, "messages": anthropic_messages(view)}
    if view.dialect.name == "openai-responses":
        instructions = {"instructions": view.prompt.text} if view.prompt is not None else {}
        return {**instructions, "input": response_items(view)}
    return {"messages": [*_chat_system(view), *chat_messages(view)]}


def claude_code_file(view: View, model: str | None, folder: Path, now: float) -> ClientFile:
    """Return the history as a Claude Code session for a project in this folder."""
    messages = anthropic_messages(view, is_own=True)
    name = str(uuid5(_NAMES, jsonio.encode([messages, now]).decode("utf-8", "replace")))
    lines, before = list[bytes](), None
    for number, message in enumerate(messages):
        this = str(uuid5(UUID(name), str(number)))
        line = {
            "parentUuid": before,
            "isSidechain": False,
            "userType": "external",
            "cwd": str(folder),
            "sessionId": name,
            "version": CLAUDE_CODE_VERSION,
            "type": message["role"],
            "message": message if message["role"] == "user" else _claude_code_answer(message, model, number),
            "uuid": this,
            "timestamp": _timestamp(now),
        }
        lines.append(jsonio.encode(line))
        before = this
    slug = "".join(one if one.isascii() and one.isalnum() else "-" for one in str(folder))
    return ClientFile(lines, Path("projects") / slug / f"{name}.jsonl", name)


def _claude_code_answer(message: dict[str, Any], model: str | None, number: int) -> dict[str, Any]:
    is_call = any(block["type"] == "tool_use" for block in message["content"])
    head = {"id": f"msg_midfold_{number}", "type": "message", "model": model or "<synthetic>"}
    reason = {"stop_reason": "tool_use" if is_call else "end_turn", "stop_sequence": None}
    return {**head, **message, **reason, "usage": {"input_tokens": 0, "output_tokens": 0}}


def codex_file(view: View, folder: Path, now: float) -> ClientFile:
    """Return the history as a Codex session for a project in this folder."""
    items = response_items(view, is_own=True)
    name = str(uuid5(_NAMES, jsonio.encode([items, now]).decode("utf-8", "replace")))
    at = _timestamp(now)
    meta = {"id": name, "session_id": name, "timestamp": at, "cwd": str(folder), "originator": "codex_exec"}
    meta |= {"cli_version": CODEX_VERSION, "source": "exec", "thread_source": "user"}
    lines = [{"timestamp": at, "type": "session_meta", "payload": meta}]
    for item in items:
        lines.append({"timestamp": at, "type": "response_item", "payload": item})
        if text := _user_text(item):
            lines.append({"timestamp": at, "type": "event_msg", "payload": {"type": "user_message", "message": text}})
    day = datetime.fromtimestamp(now, UTC)
    place = Path("sessions") / f"{day:%Y/%m/%d}" / f"rollout-{day:%Y-%m-%dT%H-%M-%S}-{name}.jsonl"
    return ClientFile([jsonio.encode(line) for line in lines], place, name)


def _user_text(item: Mapping[str, Any]) -> str:
    content = item.get("content") if item.get("role") == "user" else None
    blocks = [{"text": content}] if isinstance(content, str) else content or ()
    return "\n".join(str(block["text"]) for block in blocks if isinstance(block, Mapping) and block.get("text"))


def _timestamp(now: float) -> str:
    return datetime.fromtimestamp(now, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def anthropic_messages(view: View, *, is_own: bool = False) -> list[dict[str, Any]]:
    """Return the history as Anthropic messages."""
    same = view.dialect.name == "anthropic"
    return [
        {"role": turn.role, "content": [_anthropic_block(part, same=same) for part in turn.parts]}
        for turn in _turns(view, is_own=is_own, keep_reasoning=same)
    ]


def _anthropic_block(part: Part, *, same: bool) -> dict[str, Any]:
    if same and isinstance(part.wire, Mapping):
        return dict(part.wire)
    if isinstance(part, ToolCall):
        return {"type": "tool_use", "id": part.id, "name": part.name, "input": _arguments(part)}
    if isinstance(part, ToolResult):
        error = {"is_error": True} if part.is_error else {}
        return {"type": "tool_result", "tool_use_id": part.call_id, "content": _result_text(part), **error}
    return {"type": "text", "text": _text(part)}


def response_items(view: View, *, is_own: bool = False) -> list[dict[str, Any]]:
    """Return the history as items of OpenAI's Responses API."""
    if view.dialect.name == "openai-responses":
        kept = [message for message in view.transcript if not (is_own and _is_prompt(message, view))]
        closed = [_closing_item(call) for call in _unanswered_calls(view)]
        return [*(_codex_item(message_value(message, view.dialect)) for message in kept), *closed]
    items: list[dict[str, Any]] = []
    for turn in _turns(view, is_own=is_own):
        kind = "output_text" if turn.role == "assistant" else "input_text"
        for part in turn.parts:
            if isinstance(part, ToolCall):
                call = {"call_id": part.id, "name": part.name, "arguments": part.arguments}
                items.append({"type": "function_call", **call})
            elif isinstance(part, ToolResult):
                items.append({"type": "function_call_output", "call_id": part.call_id, "output": _result_text(part)})
            else:
                content = [{"type": kind, "text": _text(part)}]
                items.append({"type": "message", "role": turn.role, "content": content})
    return items


def _codex_item(value: dict[str, Any]) -> dict[str, Any]:
    """Return the item with everything that Codex expects in its files: a type and a content list."""
    content, is_message = value.get("content"), value.get("type", "message") == "message"
    if is_message and isinstance(content, str):
        kind = "output_text" if value.get("role") == "assistant" else "input_text"
        value = {**value, "content": [{"type": kind, "text": content}]}
    return {"type": "message", **value} if is_message else value


def _is_prompt(message: Message, view: View) -> bool:
    """Return whether the item holds only what Codex sends automatically: developer messages and its wrappers."""
    if recognise(message) is not None:
        return False
    if message_value(message, view.dialect).get("role") in ("developer", "system"):
        return True
    texts = [part.text for part in message.parts if isinstance(part, Text)]
    return message.role == "user" and bool(texts) and not any(map(_without_prompt, texts))


def chat_messages(view: View) -> list[dict[str, Any]]:
    """Return the history as OpenAI chat messages."""
    if view.dialect.name == "openai-chat":
        closed = [
            {"role": "tool", "tool_call_id": call, "content": MISSING_RESULT_TEXT} for call in _unanswered_calls(view)
        ]
        return [*view.messages, *closed]
    out: list[dict[str, Any]] = []
    for turn in _turns(view):
        calls = [part for part in turn.parts if isinstance(part, ToolCall)]
        results = [part for part in turn.parts if isinstance(part, ToolResult)]
        words = "\n\n".join(_text(part) for part in turn.parts if not isinstance(part, ToolCall | ToolResult))
        out += [{"role": "tool", "tool_call_id": part.call_id, "content": _result_text(part)} for part in results]
        if calls:
            named = [{"id": one.id, "type": "function", "function": _function(one)} for one in calls]
            out.append({"role": "assistant", "content": words or None, "tool_calls": named})
        elif words:
            out.append({"role": turn.role, "content": words})
    return out


def _function(call: ToolCall) -> dict[str, str]:
    return {"name": call.name, "arguments": call.arguments or "{}"}


def _chat_system(view: View) -> list[dict[str, Any]]:
    return [] if view.prompt is None else [{"role": "system", "content": view.prompt.text}]


def _turns(view: View, *, is_own: bool = False, keep_reasoning: bool = False) -> list[ExportedTurn]:
    """Return the view as alternating turns."""
    out: list[ExportedTurn] = []
    for message in view.transcript:
        role: Literal["user", "assistant"] = "assistant" if message.role == "assistant" else "user"
        parts = list(_parts(message, is_own, keep_reasoning))
        if not parts:
            continue
        if not out and role == "assistant":
            out.append(ExportedTurn("user", [Text(OPENING_TEXT)]))
        if out and out[-1].role == role:
            out[-1].parts.extend(parts)
        else:
            out.append(ExportedTurn(role, parts))
    if out and out[-1].role == "assistant" and (waiting := _unanswered_calls(view)):
        out.append(ExportedTurn("user", [ToolResult(call, (Text(MISSING_RESULT_TEXT),)) for call in waiting]))
    return out


def _unanswered_calls(view: View) -> list[str]:
    """Return the ids of calls without a result."""
    waiting: dict[str, None] = {}
    for part in (part for message in view.transcript for part in message.parts):
        if isinstance(part, ToolCall):
            waiting[part.id] = None
        elif isinstance(part, ToolResult):
            waiting.pop(part.call_id, None)
    return list(waiting)


def _closing_item(call: str) -> dict[str, Any]:
    return {"type": "function_call_output", "call_id": call, "output": MISSING_RESULT_TEXT}


def _parts(message: Message, is_own: bool, keep_reasoning: bool) -> Iterator[Part]:
    for part in sorted(message.parts, key=lambda one: not isinstance(one, ToolResult)):
        if isinstance(part, Text):
            kept = _without_prompt(part.text) if is_own and message.role != "assistant" else part.text
            if kept.strip():
                yield part if kept == part.text else Text(kept)
        elif keep_reasoning or not isinstance(part, Thinking | Opaque):
            yield part


def _without_prompt(text: str) -> str:
    """Return a text without the blocks that clients send automatically."""
    for block in prompt_blocks(text, "user", is_first=True):
        if block.wrapper.client:
            text = text.replace(block.text, "", 1)
    return text.strip()


def _text(part: Part) -> str:
    if isinstance(part, Media):
        return f"[{part.kind} left out]"
    return part.text if isinstance(part, Text) else ""


def _result_text(result: ToolResult) -> str:
    return "\n".join(filter(None, map(_text, result.parts))) or "(empty)"


def _arguments(call: ToolCall) -> dict[str, Any]:
    try:
        given = json.loads(call.arguments or "{}")
    except ValueError:
        given = None
    return given if isinstance(given, dict) else {"arguments": call.arguments}


def resume_command(target: Target, given: str) -> Sequence[str]:
    """Return the command that resumes the session."""
    return ("claude", "--resume", given) if target == "claude-code" else ("codex", "exec", "resume", given)
