"""Read session logs of Claude Code: {"type": "user" | "assistant" | ..., "message": {...}, "uuid": ...}.

Claude Code writes one line per content block. Lines of one response are merged into one message, and consecutive tool
results into one message. Side chains, API error notices and lines shown only on screen are omitted.

The lines form a tree. Lines off the path to the newest message were rewound by the user and are omitted, except the
other results of a batch and lines unrelated to that path. Compactions by Claude Code are bridged through
`logicalParentUuid`, so the whole session is read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midfold.transcript.anthropic import Anthropic
from midfold.transcript.dialect import kind_of
from midfold.transcript.log_lines import Line, Log, LoggedTurn, mapping_of, string_of

TURNS = frozenset({"user", "assistant"})
EMPTY: Line = {}
TITLES = {"custom-title": "customTitle", "ai-title": "aiTitle", "summary": "summary"}
"""Line types that carry a session title, in order of preference: the user's own title first."""


def is_turn(line: Line) -> bool:
    message = line.get("message")
    has_place = "uuid" in line or "sessionId" in line or "parentUuid" in line
    return kind_of(line) in TURNS and isinstance(message, Mapping) and "content" in message and has_place


def read_claude_code(lines: Sequence[Line]) -> Log:
    out, last = _Messages(), EMPTY
    for line in _current([_with_queued(line) for line in lines]):
        message, at = line["message"], string_of(line.get("timestamp"))
        if line["type"] == "assistant":
            place = out.answer(string_of(message.get("id")), message["content"], at)
            if isinstance(message.get("usage"), Mapping):
                out.turns[place] = LoggedTurn(message["usage"], at, string_of(message.get("model")))
        else:
            if line.get("isCompactSummary"):
                out.folds.add(len(out.messages))
            out.user(message["content"], at)
        last = line
    return Log(
        "claude-code",
        Anthropic,
        out.messages,
        out.times,
        out.turns,
        model=_newest_model(lines),
        session=_first(lines, "sessionId"),
        title=_title(lines),
        folder=_first(lines, "cwd"),
        folds=frozenset(out.folds),
        is_open=_is_open(out.messages, last),
    )


def _newest_model(lines: Sequence[Line]) -> str:
    """Return the model of the newest response, skipping synthetic ones that Claude Code wrote itself."""
    for line in reversed(lines):
        name = string_of(mapping_of(line.get("message")).get("model")) if kind_of(line) == "assistant" else ""
        if name and not name.startswith("<") and not line.get("isSidechain"):
            return name
    return ""


def _first(lines: Sequence[Line], field: str) -> str:
    """Return the first non-empty value of the field; a resumed session may start with lines of another one."""
    return next((found for line in lines if is_turn(line) and (found := string_of(line.get(field)))), "")


def _title(lines: Sequence[Line]) -> str:
    found = {kind: string_of(line.get(TITLES[kind])) for line in lines if (kind := kind_of(line)) in TITLES}
    return next(filter(None, (found.get(kind) for kind in TITLES)), "")


def _is_open(messages: Sequence[Line], last: Line) -> bool:
    """Return whether the last message may still grow: an incomplete response, or missing tool results."""
    if not messages or not last:
        return False
    if last["type"] == "assistant":
        reason, blocks = last["message"].get("stop_reason", ""), _blocks(messages[-1]["content"])
        return reason is None or (reason == "tool_use" and not any(map(_call_of, blocks)))
    if len(messages) < 2 or not _only_results(messages[-1]["content"]):
        return False
    calls = {_call_of(block) for block in _blocks(messages[-2]["content"])} - {""}
    return not calls <= {_result_of(block) for block in messages[-1]["content"]}


def _with_queued(line: Line) -> Line:
    """Convert a queued command (typed while the agent worked, logged as an attachment) to a user line."""
    attached = line.get("attachment")
    if not isinstance(attached, Mapping) or attached.get("type") != "queued_command" or not attached.get("prompt"):
        return line
    return {**line, "type": "user", "message": {"role": "user", "content": attached["prompt"]}}


def _is_sent(line: Line) -> bool:
    """Return whether the line was sent to the model; compaction summaries are hidden on screen but sent."""
    hidden = line.get("isVisibleInTranscriptOnly") and not line.get("isCompactSummary")
    return not (hidden or line.get("isSidechain") or line.get("isApiErrorMessage"))


class _Messages:
    """Builder that merges lines into messages; it copies content lists instead of changing those of the log."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.times: list[str] = []
        self.turns: dict[int, LoggedTurn] = {}
        self.folds: set[int] = set()
        self._answers: dict[str, int] = {}
        self._grown: set[int] = set()
        self._ends_in_results = False

    def answer(self, name: str, content: Any, at: str) -> int:
        """Add blocks of a response and return the index of its message."""
        place = self._answers.get(name)
        if place is not None:
            self._grow(place, content, at)
            return place
        if name:
            self._answers[name] = len(self.messages)
        self._ends_in_results = False
        return self._add("assistant", content, at)

    def user(self, content: Any, at: str) -> None:
        is_result = _only_results(content)
        if is_result and self._ends_in_results:
            self._grow(len(self.messages) - 1, content, at)
        else:
            self._add("user", content, at)
        self._ends_in_results = is_result

    def _add(self, role: str, content: Any, at: str) -> int:
        self.messages.append({"role": role, "content": content})
        self.times.append(at)
        return len(self.messages) - 1

    def _grow(self, place: int, content: Any, at: str) -> None:
        message = self.messages[place]
        if place not in self._grown:
            message["content"] = _blocks(message["content"])
            self._grown.add(place)
        message["content"].extend(_blocks(content))
        self.times[place] = at


def _blocks(content: Any) -> list[Any]:
    return list(content) if isinstance(content, list | tuple) else [{"type": "text", "text": content}]


def _only_results(content: Any) -> bool:
    return isinstance(content, list | tuple) and bool(content) and all(_result_of(block) for block in content)


def _result_of(block: Any) -> str:
    """Return the id of the call that the block answers, or ''."""
    is_result = isinstance(block, Mapping) and kind_of(block) == "tool_result"
    return string_of(block.get("tool_use_id")) if is_result else ""


def _call_of(block: Any) -> str:
    """Return the id of the call that the block makes, or ''."""
    is_call = isinstance(block, Mapping) and kind_of(block) == "tool_use"
    return string_of(block.get("id")) if is_call else ""


def _current(lines: Sequence[Line]) -> list[Line]:
    """Return the lines on the current branch of the conversation, in file order."""
    turns = [line for line in lines if is_turn(line) and _is_sent(line)]
    trunk = _trunk(turns[-1] if turns else None, {_name(line): line for line in lines})
    answers = {_answer(line) for line in turns if _name(line) in trunk} - {""}
    parts = [line for line in turns if _answer(line) in answers]
    calls = {_call_of(block) for line in parts for block in _blocks(line["message"]["content"])} - {""}
    off_trunk: set[str] = set()
    for line in lines:
        if _name(line) not in trunk and (_parent(line) in trunk or _parent(line) in off_trunk):
            off_trunk.add(_name(line))
    off_trunk.discard("")
    return [line for line in turns if _name(line) not in off_trunk or _belongs(line, answers, calls)]


def _belongs(line: Line, answers: set[str], calls: set[str]) -> bool:
    """Return whether a line off the trunk is part of a response on it, or a result of such a part."""
    if _answer(line):
        return _answer(line) in answers
    return any(_result_of(block) in calls for block in _blocks(line["message"]["content"]))


def _trunk(newest: Line | None, by_name: Mapping[str, Line]) -> set[str]:
    """Return the ids of the newest line and all its ancestors."""
    found: set[str] = set()
    line = newest
    while line is not None and _name(line) and _name(line) not in found:
        found.add(_name(line))
        line = by_name.get(_parent(line)) if _parent(line) else None
    return found


def _name(line: Line) -> str:
    return string_of(line.get("uuid"))


def _answer(line: Line) -> str:
    """Return the id of the response that the line is part of, or ''."""
    return string_of(line["message"].get("id")) if line["type"] == "assistant" else ""


def _parent(line: Line) -> str:
    """Return the id of the parent line; after a compaction by Claude Code, the parent before it."""
    return string_of(line.get("parentUuid")) or string_of(line.get("logicalParentUuid"))
