"""Read the session logs of coding agents as plain provider messages.

    Claude Code   {"type": "user" | "assistant" | ..., "message": {...}, "uuid": ..., "parentUuid": ...}
    Codex         {"type": "response_item" | "session_meta" | ..., "payload": {...}}
    Gemini CLI    {"sessionId": ..., "projectHash": ...}, then {"id": ..., "type": "user" | "gemini", "content": ...}
    Copilot CLI   {"type": "session.start" | "user.message" | ..., "data": {...}}
    opencode      {"info": {...}, "messages": [{"info": {...}, "parts": [...]}]}

Models, usage and times are kept beside the messages, never in them. Codex items already have the shape of the Responses
API and are kept unchanged; its other lines are omitted, except the instructions. Turns that the user rolled back are
omitted. Unreadable lines are skipped and reported: the last line of a running session is often incomplete.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from midfold.transcript.chat_logs import is_chat_body, is_chat_line, read_chat_body, read_chat_lines
from midfold.transcript.claude_code_log import is_turn, read_claude_code
from midfold.transcript.dialect import kind_of
from midfold.transcript.log_lines import Line, Log, LoggedTurn, mapping_of, string_of
from midfold.transcript.openai_responses import OpenAIResponses
from midfold.transcript.wrappers import read_user_text

CLIENTS = {
    "claude-code": "Claude Code",
    "codex": "Codex",
    "gemini-cli": "Gemini CLI",
    "opencode": "opencode",
    "copilot": "Copilot CLI",
}
"""Supported clients, id to display name."""
FORMAT_DETECTION_LINES = 200
"""Lines to search for the log's format; the first ones may hold only files and settings."""
IGNORED_ITEMS = frozenset({"ghost_snapshot"})
ITEMS = frozenset({"message", "reasoning", "function_call", "function_call_output", "local_shell_call"})
MAX_LISTED_TYPES = 5


def read_log(values: Sequence[Any]) -> Log | None:
    """Return the log made of these decoded lines, or None if they are not a known log."""
    lines = [value for value in values if isinstance(value, Mapping)]
    for line in islice(lines, FORMAT_DETECTION_LINES):
        if is_turn(line):
            return read_claude_code(lines)
        if kind_of(line) in ("response_item", "session_meta") and isinstance(line.get("payload"), Mapping):
            return _codex(lines)
        if is_chat_line(line):
            return read_chat_lines(lines)
    return _codex([_as_rollout(line) for line in lines]) if _is_old_rollout(lines) else None


def read_log_body(body: Mapping[str, Any]) -> Log | None:
    """Return the log that is one JSON object, or None."""
    return read_chat_body(body) if is_chat_body(body) else None


def describe_line_types(values: Sequence[Any]) -> str:
    """Return a description of the line types of an unknown log, for an error message."""
    kinds = dict.fromkeys(
        kind_of(value)[:40] for value in islice(values, FORMAT_DETECTION_LINES) if isinstance(value, Mapping)
    )
    named = ", ".join(repr(kind) for kind in islice(filter(None, kinds), MAX_LISTED_TYPES))
    known = ", ".join(CLIENTS.values())
    return f"unknown line types {named}; supported logs: {known}" if named else ""


def _is_old_rollout(lines: Sequence[Line]) -> bool:
    """Return whether this is a log of Codex before 0.32: one line about the session, then bare items."""
    if len(lines) < 2 or not {"id", "timestamp"} <= lines[0].keys() or {"type", "role"} & lines[0].keys():
        return False
    return any(kind_of(line) in ITEMS for line in islice(lines, 1, FORMAT_DETECTION_LINES))


def _as_rollout(line: Line) -> Line:
    if kind_of(line):
        return {"type": "response_item", "payload": line}
    return {"type": "session_meta" if "id" in line else "state", "timestamp": line.get("timestamp"), "payload": line}


class _Rollout:
    """Builder for the items of a Codex session."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self.times: list[str] = []
        self.turns: dict[int, LoggedTurn] = {}
        self.folds: set[int] = set()
        self.user_places: list[int] = []
        """Indexes of user messages."""
        self.model = self.session = self.folder = ""
        self.window = 0
        self._total: Any = None
        self._answer: int | None = None

    def add(self, line: Line, payload: Line) -> None:
        at, kind = string_of(line.get("timestamp")), kind_of(line)
        if kind == "response_item" and kind_of(payload) not in IGNORED_ITEMS:
            if _is_user_message(payload):
                self.user_places.append(len(self.items))
            self._put(payload, at)
        elif kind == "session_meta":
            self._begin(payload, at)
        elif kind == "turn_context":
            self.model = string_of(payload.get("model")) or self.model
        elif kind == "compacted":
            self.folds.add(len(self.items))
        elif kind_of(payload) == "token_count":
            self._count(mapping_of(payload.get("info")), at)
        elif kind_of(payload) == "thread_rolled_back":
            self._roll_back(payload.get("num_turns"))

    def _put(self, item: Line, at: str) -> None:
        if _is_answer(item):
            self._answer = len(self.items)
        self.items.append(item)
        self.times.append(at)

    def _begin(self, meta: Line, at: str) -> None:
        self.session = self.session or string_of(meta.get("id"))
        self.folder = self.folder or string_of(meta.get("cwd"))
        if not self.items and (text := _instructions(meta)):
            self._put({"type": "message", "role": "system", "content": [{"type": "input_text", "text": text}]}, at)

    def _count(self, info: Line, at: str) -> None:
        """Record the usage of the last response with Responses API field names; ignore repeated counts."""
        window, last = info.get("model_context_window"), info.get("last_token_usage")
        self.window = window if isinstance(window, int) and window > 0 else self.window
        total = info.get("total_token_usage")
        if not isinstance(last, Mapping) or self._answer is None or (total is not None and total == self._total):
            return
        self._total = total
        sizes = {name: last.get(name) for name in ("input_tokens", "output_tokens")}
        cached = {"input_tokens_details": {"cached_tokens": last.get("cached_input_tokens")}}
        self.turns[self._answer] = LoggedTurn({**sizes, **cached}, at, self.model)

    def _roll_back(self, count: Any) -> None:
        if not isinstance(count, int) or not 0 < count <= len(self.user_places):
            return
        end = self.user_places[-count]
        del self.user_places[-count:], self.items[end:], self.times[end:]
        self.turns = {place: turn for place, turn in self.turns.items() if place < end}
        self.folds = {place for place in self.folds if place <= end}
        self._answer = next((place for place in range(end - 1, -1, -1) if _is_answer(self.items[place])), None)


def _codex(lines: Sequence[Line]) -> Log:
    read = _Rollout()
    for line in lines:
        if isinstance(payload := line.get("payload"), Mapping):
            read.add(line, payload)
    return Log(
        "codex",
        OpenAIResponses,
        read.items,
        read.times,
        read.turns,
        model=read.model,
        window=read.window,
        session=read.session,
        folder=read.folder,
        folds=frozenset(read.folds),
    )


def _is_answer(item: Line) -> bool:
    """Return whether the item is from the model."""
    return item.get("role") == "assistant" or kind_of(item) == "reasoning" or kind_of(item).endswith("_call")


def _is_user_message(item: Line) -> bool:
    """Return whether the item is a user's message rather than only Codex's environment context."""
    content = item.get("content")
    if item.get("role") != "user":
        return False
    texts = [content] if isinstance(content, str) else [mapping_of(part).get("text") for part in _list(content)]
    return any(isinstance(text, str) and read_user_text(text).words for text in texts)


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _instructions(meta: Line) -> str:
    base = meta.get("base_instructions")
    text = base.get("text") if isinstance(base, Mapping) else base or meta.get("instructions")
    return string_of(text)
