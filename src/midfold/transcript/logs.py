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
   What a log says of models, usage and times stands beside the messages, never in them.
5. A line that nobody can read is left out: the last one of a running session is often half written.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from midfold.transcript.anthropic import Anthropic
from midfold.transcript.dialect import Dialect, kind_of
from midfold.transcript.openai_responses import OpenAIResponses

EVIDENCE = 200
"""Lines in which a log shows what it is: the first ones may be about files and settings only."""
TURNS = frozenset({"user", "assistant"})
NO_ITEMS = frozenset({"ghost_snapshot"})
Line = Mapping[str, Any]


class LoggedTurn(NamedTuple):
    """What a log says of an answer: the usage as the provider reports it, and when it came."""

    usage: Mapping[str, Any]
    at: str


class Log(NamedTuple):
    """The messages of a log, their shape, what is said of answers by their place among the messages, and the model that
    was asked last; empty if no line names one."""

    dialect: type[Dialect]
    messages: list[Any]
    turns: Mapping[int, LoggedTurn]
    model: str


def read_log(values: Sequence[Any]) -> Log | None:
    """The messages of a log by its lines, decoded; None if these are no lines of a log."""
    lines = [value for value in values if isinstance(value, Mapping)]
    for line in islice(lines, EVIDENCE):
        if _is_turn(line):
            return Log(Anthropic, *_claude_code(lines), _newest_model(lines, "assistant", "message"))
        if kind_of(line) in ("response_item", "session_meta") and isinstance(line.get("payload"), Mapping):
            return Log(OpenAIResponses, *_codex(lines), _newest_model(lines, "turn_context", "payload"))
    return None


def _newest_model(lines: Sequence[Line], kind: str, field: str) -> str:
    """Claude Code names it in each answer, but for those it made up itself; Codex before each turn."""
    for line in reversed(lines):
        inside = line.get(field)
        name = _string(inside.get("model")) if kind_of(line) == kind and isinstance(inside, Mapping) else ""
        if name and not name.startswith("<") and not line.get("isSidechain"):
            return name
    return ""


def _is_turn(line: Line) -> bool:
    message = line.get("message")
    has_place = "uuid" in line or "sessionId" in line or "parentUuid" in line
    return kind_of(line) in TURNS and isinstance(message, Mapping) and "content" in message and has_place


def _codex(lines: Iterable[Line]) -> tuple[list[Any], dict[int, LoggedTurn]]:
    items: list[Any] = []
    turns: dict[int, LoggedTurn] = {}
    for line in lines:
        payload = line.get("payload")
        if not isinstance(payload, Mapping):
            continue
        if kind_of(line) == "response_item" and kind_of(payload) not in NO_ITEMS:
            items.append(payload)
        elif kind_of(line) == "session_meta" and not items and (text := _instructions(payload)):
            items.append({"type": "message", "role": "system", "content": [{"type": "input_text", "text": text}]})
        elif kind_of(payload) == "token_count" and items and (usage := _codex_usage(payload)):
            turns[len(items) - 1] = LoggedTurn(usage, _string(line.get("timestamp")))
    return items, turns


def _codex_usage(counted: Line) -> dict[str, Any]:
    """The usage of the last answer, in the words of the Responses API."""
    info = counted.get("info")
    last = info.get("last_token_usage") if isinstance(info, Mapping) else None
    if not isinstance(last, Mapping):
        return {}
    sizes = {name: last.get(name) for name in ("input_tokens", "output_tokens")}
    return {**sizes, "input_tokens_details": {"cached_tokens": last.get("cached_input_tokens")}}


def _instructions(meta: Line) -> str:
    base = meta.get("base_instructions")
    text = base.get("text") if isinstance(base, Mapping) else base or meta.get("instructions")
    return text if isinstance(text, str) else ""


def _claude_code(lines: Sequence[Line]) -> tuple[list[Any], dict[int, LoggedTurn]]:
    out = _Messages()
    for line in _current([_with_queued(line) for line in lines]):
        message = line["message"]
        if line["type"] == "assistant":
            place = out.answer(_string(message.get("id")), message["content"])
            if isinstance(message.get("usage"), Mapping):
                out.turns[place] = LoggedTurn(message["usage"], _string(line.get("timestamp")))
        else:
            out.user(message["content"])
    return out.messages, out.turns


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
        self.turns: dict[int, LoggedTurn] = {}
        self._answers: dict[str, int] = {}

    def answer(self, name: str, content: Any) -> int:
        """The place of the message that these blocks are in."""
        place = self._answers.get(name)
        if place is not None:
            known = self.messages[place]
            known["content"] = [*_blocks(known["content"]), *_blocks(content)]
            return place
        self.messages.append({"role": "assistant", "content": content})
        if name:
            self._answers[name] = len(self.messages) - 1
        return len(self.messages) - 1

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
    is_result = isinstance(block, Mapping) and kind_of(block) == "tool_result"
    return _string(block.get("tool_use_id")) if is_result else ""


def _call_of(block: Any) -> str:
    """The call that a block makes."""
    is_call = isinstance(block, Mapping) and kind_of(block) == "tool_use"
    return _string(block.get("id")) if is_call else ""


def _current(lines: Sequence[Line]) -> list[Line]:
    """The turns of the conversation as it stands, in the order of the file."""
    turns = [line for line in lines if _is_turn(line) and _was_sent(line)]
    trunk = _trunk(turns[-1] if turns else None, {_name(line): line for line in lines})
    answers = {_answer(line) for line in turns if _name(line) in trunk} - {""}
    parts = [line for line in turns if _answer(line) in answers]
    calls = {_call_of(block) for line in parts for block in _blocks(line["message"]["content"])} - {""}
    beside: set[str] = set()
    for line in lines:
        if _name(line) not in trunk and (_parent(line) in trunk or _parent(line) in beside):
            beside.add(_name(line))
    beside.discard("")
    return [line for line in turns if _name(line) not in beside or _belongs(line, answers, calls)]


def _belongs(line: Line, answers: set[str], calls: set[str]) -> bool:
    """Whether a line beside the trunk is part of an answer in it, or the result of such a part."""
    if _answer(line):
        return _answer(line) in answers
    return any(_result_of(block) in calls for block in _blocks(line["message"]["content"]))


def _trunk(newest: Line | None, by_name: Mapping[str, Line]) -> set[str]:
    """The newest message and everything it descends from."""
    found: set[str] = set()
    line = newest
    while line is not None and _name(line) and _name(line) not in found:
        found.add(_name(line))
        line = by_name.get(_parent(line)) if _parent(line) else None
    return found


def _name(line: Line) -> str:
    return _string(line.get("uuid"))


def _answer(line: Line) -> str:
    """The answer that a line is a part of."""
    return _string(line["message"].get("id")) if line["type"] == "assistant" else ""


def _parent(line: Line) -> str:
    """What a line follows; after a compaction of the agent's own, what it followed before."""
    return _string(line.get("parentUuid")) or _string(line.get("logicalParentUuid"))


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""
