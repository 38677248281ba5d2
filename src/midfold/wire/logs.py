"""The logs that coding agents keep of their sessions, read as the plain messages they hold.

    Claude Code   {"type": "user" | "assistant" | ..., "message": {...}, "uuid": ..., "parentUuid": ...}
    Codex         {"type": "response_item" | "session_meta" | ..., "payload": {...}}

Rules of this file:
1. A log is not a shape of its own: it is read once, and what comes of it is a list of messages in the provider's shape.
2. Claude Code writes a line for each block. Lines of one answer become one message again, results that follow each
   other one message of results. Side chains, notices of failed requests and what only the screen shows are left out.
3. Its lines are a tree. What the newest message does not descend from was taken back by the user, and is left out;
   the other results of a batch, and what stands in no relation to the newest message, stay. Compactions that the agent
   made are bridged: the whole session is read.
4. Codex keeps the items of the Responses shape as they are. Its other lines are left out, but for the instructions.
5. A line that nobody can read is left out: the last one of a running session is often half written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from midfold.wire.anthropic import Anthropic
from midfold.wire.dialect import Dialect
from midfold.wire.openai_responses import OpenAIResponses

EVIDENCE = 200
"""Lines in which a log shows what it is: the first ones may be about files and settings only."""
TURNS = frozenset({"user", "assistant"})
NO_ITEMS = frozenset({"ghost_snapshot"})
Line = Mapping[str, Any]


class Log(NamedTuple):
    """The messages of a log, and their shape."""

    dialect: type[Dialect]
    messages: list[Any]


def read_log(values: Sequence[Any]) -> Log | None:
    """The messages of a log by its lines, decoded; None if these are no lines of a log."""
    lines = [value for value in values if isinstance(value, Mapping)]
    for line in islice(lines, EVIDENCE):
        if _is_turn(line):
            return Log(Anthropic, _claude_code(lines))
        if line.get("type") in ("response_item", "session_meta") and isinstance(line.get("payload"), Mapping):
            return Log(OpenAIResponses, _codex(lines))
    return None


def _is_turn(line: Line) -> bool:
    message = line.get("message")
    has_place = "uuid" in line or "sessionId" in line or "parentUuid" in line
    return line.get("type") in TURNS and isinstance(message, Mapping) and "content" in message and has_place


def _codex(lines: Iterable[Line]) -> list[Any]:
    items: list[Any] = []
    for line in lines:
        payload = line.get("payload")
        if not isinstance(payload, Mapping):
            continue
        if line.get("type") == "response_item" and payload.get("type") not in NO_ITEMS:
            items.append(payload)
        elif line.get("type") == "session_meta" and not items and (text := _instructions(payload)):
            items.append({"type": "message", "role": "system", "content": [{"type": "input_text", "text": text}]})
    return items


def _instructions(meta: Line) -> str:
    base = meta.get("base_instructions")
    text = base.get("text") if isinstance(base, Mapping) else base or meta.get("instructions")
    return text if isinstance(text, str) else ""


def _claude_code(lines: Sequence[Line]) -> list[Any]:
    out = _Messages()
    for line in _current([_with_queued(line) for line in lines]):
        message = line["message"]
        if line["type"] == "assistant":
            out.answer(message.get("id"), message["content"])
        else:
            out.user(message["content"])
    return out.messages


def _with_queued(line: Line) -> Line:
    """What a user typed while the agent worked stands in an attachment; it was said all the same."""
    attached = line.get("attachment")
    if not isinstance(attached, Mapping) or attached.get("type") != "queued_command" or not attached.get("prompt"):
        return line
    return {**line, "type": "user", "message": {"role": "user", "content": attached["prompt"]}}


def _was_sent(line: Line) -> bool:
    """Whether the model saw a line; a summary of the agent's own is hidden on its screen, and sent."""
    hidden = line.get("isVisibleInTranscriptOnly") and not line.get("isCompactSummary")
    return not (hidden or line.get("isSidechain") or line.get("isApiErrorMessage"))


class _Messages:
    """Messages as their lines come in."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self._answers: dict[str, dict[str, Any]] = {}

    def answer(self, name: Any, content: Any) -> None:
        known = self._answers.get(name) if isinstance(name, str) else None
        if known is not None:
            known["content"] = [*_blocks(known["content"]), *_blocks(content)]
            return
        self.messages.append({"role": "assistant", "content": content})
        if isinstance(name, str) and name:
            self._answers[name] = self.messages[-1]

    def user(self, content: Any) -> None:
        last = self.messages[-1] if self.messages else None
        if last is not None and last["role"] == "user" and _only_results(last["content"]) and _only_results(content):
            last["content"] = [*last["content"], *content]
        else:
            self.messages.append({"role": "user", "content": content})


def _blocks(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list | tuple) else [{"type": "text", "text": content}]


def _only_results(content: Any) -> bool:
    return isinstance(content, list | tuple) and bool(content) and all(_result_of(block) for block in content)


def _result_of(block: Any) -> str:
    """The call that a block answers."""
    found = block.get("tool_use_id") if isinstance(block, Mapping) and block.get("type") == "tool_result" else None
    return found if isinstance(found, str) else ""


def _current(lines: Sequence[Line]) -> list[Line]:
    """The turns of the conversation as it stands, in the order of the file."""
    turns = [line for line in lines if _is_turn(line) and _was_sent(line)]
    by_name = {line["uuid"]: line for line in lines if isinstance(line.get("uuid"), str)}
    trunk = _trunk(turns[-1] if turns else None, by_name)
    answers = {
        name
        for line in turns
        if line["type"] == "assistant" and line.get("uuid") in trunk and (name := line["message"].get("id"))
    }
    calls = {
        block.get("id")
        for line in turns
        if line["message"].get("id") in answers
        for block in _blocks(line["message"]["content"])
        if isinstance(block, Mapping) and block.get("type") == "tool_use"
    }
    beside: set[Any] = set()
    for line in lines:
        name = line.get("uuid")
        if name not in trunk and (_parent(line) in trunk or _parent(line) in beside):
            beside.add(name)
    return [line for line in turns if line.get("uuid") not in beside or _belongs(line["message"], answers, calls)]


def _belongs(message: Line, answers: set[Any], calls: set[Any]) -> bool:
    """Whether a line beside the trunk is part of an answer in it, or the result of such a part."""
    if message.get("id"):
        return message["id"] in answers
    return any(_result_of(block) in calls for block in _blocks(message["content"]) if _result_of(block))


def _trunk(newest: Line | None, by_name: Mapping[str, Line]) -> set[Any]:
    """The newest message and everything it descends from."""
    found: set[Any] = set()
    line = newest
    while line is not None and line.get("uuid") is not None and line["uuid"] not in found:
        found.add(line["uuid"])
        line = by_name.get(_parent(line))
    return found


def _parent(line: Line) -> Any:
    """What a line follows; after a compaction of the agent's own, what it followed before."""
    parent = line.get("parentUuid") or line.get("logicalParentUuid")
    return parent if isinstance(parent, str) else None
