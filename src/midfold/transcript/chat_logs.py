"""Read session logs of Gemini CLI, Copilot CLI and opencode as OpenAI chat messages.

Each tool result becomes its own message directly after the assistant message with the call, even if the log stores them
together. Records that a client shows but does not send (notices, intermediate states, sub-agent steps) are omitted.
Media become a line that names them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from midfold.transcript import jsonio
from midfold.transcript.dialect import kind_of
from midfold.transcript.log_lines import Line, Log, LoggedTurn, mapping_of, stamp_of, string_of
from midfold.transcript.message import plain, read_usage
from midfold.transcript.openai_chat import OpenAIChat

COPILOT_KINDS = frozenset({"session.start", "user.message", "assistant.message", "tool.execution_complete"})
DONE = frozenset({"completed", "error"})
EMPTY: Line = {}


def is_chat_line(line: Line) -> bool:
    """Return whether the line identifies its log as one of Gemini CLI or Copilot CLI."""
    is_copilot = kind_of(line) in COPILOT_KINDS and isinstance(line.get("data"), Mapping)
    return is_copilot or ("projectHash" in line and "sessionId" in line)


def read_chat_lines(lines: Sequence[Line]) -> Log:
    return _copilot(lines) if any(kind_of(line) in COPILOT_KINDS for line in lines[:1]) else _gemini(lines)


def is_chat_body(body: Mapping[str, Any]) -> bool:
    """Return whether the object is a whole log of Gemini CLI or opencode."""
    return "messages" in body and ("info" in body or ("projectHash" in body and "sessionId" in body))


def read_chat_body(body: Mapping[str, Any]) -> Log | None:
    values = plain(body["messages"])
    if not isinstance(values, list | tuple):
        return None
    lines = [value for value in values if isinstance(value, Mapping)]
    if any("role" in line for line in lines):
        return None
    if "info" not in body:
        return _gemini([{key: plain(value) for key, value in body.items() if key != "messages"}, *lines])
    if not any("parts" in line and "info" in line for line in lines):
        return None
    return _opencode(mapping_of(plain(body["info"])), lines)


class _ChatMessages:
    """Builder of chat messages with their times, usage and compaction boundaries."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.times: list[str] = []
        self.turns: dict[int, LoggedTurn] = {}
        self.folds: set[int] = set()
        self.answered: set[str] = set()
        """Ids of calls that already have a result."""
        self.model = ""

    def begin(self, text: str, at: str) -> None:
        """Insert the system prompt first, even if the log records it after the first user message."""
        if any(message["role"] not in ("user", "other") for message in self.messages[:2]) or len(self.messages) > 2:
            self.say("system", text, at)
        elif text:
            self.messages.insert(0, {"role": "system", "content": text})
            self.times.insert(0, at)

    def say(self, role: str, text: str, at: str) -> None:
        if text:
            self._add({"role": role, "content": text}, at)

    def answer(self, text: str, thoughts: str, calls: Sequence[tuple[str, str, Any]], at: str) -> int | None:
        """Append an assistant message and return its index, or None if it is empty.

        Each call is (id, tool name, arguments).
        """
        made = [
            {"id": name, "type": "function", "function": {"name": tool, "arguments": _arguments(given)}}
            for name, tool, given in calls
        ]
        if not (text or thoughts or made):
            return None
        self.answered.difference_update(name for name, _, _ in calls)
        message: dict[str, Any] = {"role": "assistant", "content": text or None}
        if thoughts:
            message["reasoning_content"] = thoughts
        if made:
            message["tool_calls"] = made
        self._add(message, at)
        return len(self.messages) - 1

    def result(self, call: str, text: str, at: str) -> None:
        if call not in self.answered:
            self._add({"role": "tool", "tool_call_id": call, "content": text}, at)
            self.answered.add(call)

    def count(self, place: int | None, usage: Mapping[str, Any], at: str) -> None:
        """Record the usage of the response at `place`."""
        if place is not None and read_usage(usage) is not None:
            self.turns[place] = LoggedTurn(usage, at, self.model)

    def _add(self, message: dict[str, Any], at: str) -> None:
        self.messages.append(message)
        self.times.append(at)

    def log(self, client: str, session: str, title: str = "", folder: str = "", *, is_open: bool = False) -> Log:
        return Log(
            client,
            OpenAIChat,
            self.messages,
            self.times,
            self.turns,
            model=self.model,
            session=session,
            title=title,
            folder=folder,
            folds=frozenset(self.folds),
            is_open=is_open,
        )


def _arguments(given: Any) -> str:
    return given if isinstance(given, str) else jsonio.encode(given).decode("utf-8", "replace")


def _number(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


# Gemini CLI: one line per message, rewritten when it changes; `$set` and `$rewindTo` lines edit earlier ones.


def _gemini(lines: Sequence[Line]) -> Log:
    known: dict[str, Any] = {}
    records: dict[str, Line] = {}
    for line in lines:
        if isinstance(line.get("id"), str):
            records[line["id"]] = line
        elif isinstance(back := line.get("$rewindTo"), str):
            while records and records.popitem()[0] != back:
                continue
        else:
            change = mapping_of(line.get("$set")) or line
            known |= {key: value for key, value in change.items() if key != "messages"}
            if isinstance(replaced := change.get("messages"), list | tuple):
                records = {one["id"]: one for one in map(mapping_of, replaced) if isinstance(one.get("id"), str)}
    out = _ChatMessages()
    for record in records.values():
        _add_gemini(out, record)
    last = next(reversed(records.values()), EMPTY)
    waits = kind_of(last) == "gemini" and not all(call.get("result") for call in _calls(last) or [EMPTY])
    directories = known.get("directories")
    folder = string_of(directories[0]) if isinstance(directories, list | tuple) and directories else ""
    return out.log(
        "gemini-cli", string_of(known.get("sessionId")), string_of(known.get("summary")), folder, is_open=waits
    )


def _calls(record: Line) -> list[Line]:
    calls = record.get("toolCalls")
    return [call for call in calls if isinstance(call, Mapping)] if isinstance(calls, list | tuple) else []


def _parts(record: Line, kind: str) -> list[Line]:
    content = record.get("content")
    found = content if isinstance(content, list | tuple) else [content]
    return [part for one in map(mapping_of, found) if (part := mapping_of(one.get(kind)))]


def _add_gemini(out: _ChatMessages, record: Line) -> None:
    at, text = string_of(record.get("timestamp")), "".join(_gemini_texts(record.get("content")))
    if kind_of(record) == "user":
        for part in _parts(record, "functionResponse"):
            out.result(string_of(part.get("id")), "".join(_gemini_texts({"functionResponse": part})), at)
        if not _parts(record, "functionResponse"):
            out.say("user", text, at)
    if kind_of(record) != "gemini":
        return
    out.model = string_of(record.get("model")) or out.model
    thoughts = record.get("thoughts")
    thought = "\n".join(
        f"{one.get('subject', '')}: {one.get('description', '')}"
        for one in map(mapping_of, thoughts if isinstance(thoughts, list | tuple) else ())
        if one
    )
    made = _calls(record) or _parts(record, "functionCall")
    calls = [(string_of(call.get("id")), string_of(call.get("name")), call.get("args")) for call in made]
    place = out.answer(text, thought, calls, at)
    if tokens := mapping_of(record.get("tokens")):
        output = _number(tokens.get("output")) + _number(tokens.get("thoughts"))
        cached = {"prompt_tokens_details": {"cached_tokens": tokens.get("cached")}}
        out.count(place, {"prompt_tokens": tokens.get("input"), "completion_tokens": output, **cached}, at)
    for call in _calls(record):
        if (result := call.get("result")) is not None:
            when = string_of(call.get("timestamp")) or at
            out.result(string_of(call.get("id")), "".join(_gemini_texts(result)), when)


def _gemini_texts(content: Any) -> Iterator[str]:
    """Yield the texts of a part or of a list of parts."""
    if isinstance(content, str):
        yield content
    elif isinstance(content, list | tuple):
        for part in content:
            yield from _gemini_texts(part)
    elif isinstance(content, Mapping):
        response = mapping_of(mapping_of(content.get("functionResponse")).get("response"))
        media = mapping_of(content.get("inlineData")) or mapping_of(content.get("fileData"))
        if response:
            output = response.get("output", response.get("error"))
            yield output if isinstance(output, str) else jsonio.encode(response).decode("utf-8", "replace")
        elif media:
            yield f"[{string_of(media.get('mimeType')) or 'a file'}]"
        elif not content.get("thought"):
            yield string_of(content.get("text"))


# Copilot CLI: one line per event.


def _copilot(lines: Sequence[Line]) -> Log:
    out, session, folder, title, usage = _ChatMessages(), "", "", "", EMPTY
    for line in lines:
        data, kind, at = mapping_of(line.get("data")), kind_of(line), string_of(line.get("timestamp"))
        if line.get("agentId") or data.get("parentToolCallId"):
            continue
        if kind == "session.start":
            session = session or string_of(data.get("sessionId"))
            folder = folder or string_of(mapping_of(data.get("context")).get("cwd"))
            out.model = string_of(data.get("selectedModel")) or out.model
        elif kind == "session.model_change":
            out.model = string_of(data.get("newModel")) or out.model
        elif kind == "session.title_changed":
            title = string_of(data.get("title")) or title
        elif kind == "session.compaction_complete" and data.get("success"):
            out.folds.add(len(out.messages))
        elif kind == "session.usage_record":
            usage = mapping_of(data.get("usage"))
        elif kind == "assistant.message":
            out.count(_add_answer(out, data, at), _copilot_usage(usage), at)
            usage = EMPTY
        else:
            _add_copilot(out, kind, data, at)
    return out.log("copilot", session, title, folder)


def _add_answer(out: _ChatMessages, data: Line, at: str) -> int | None:
    requested = data.get("toolRequests")
    requests = list(map(mapping_of, requested if isinstance(requested, list | tuple) else ()))
    out.model = string_of(data.get("model")) or out.model
    calls = [(string_of(one.get("toolCallId")), string_of(one.get("name")), one.get("arguments")) for one in requests]
    return out.answer(string_of(data.get("content")), string_of(data.get("reasoningText")), calls, at)


def _copilot_usage(usage: Line) -> dict[str, Any]:
    """Return the usage with OpenAI field names; Copilot's input count covers the whole prompt."""
    return {
        "prompt_tokens": usage.get("inputTokens"),
        "completion_tokens": usage.get("outputTokens"),
        "prompt_tokens_details": {"cached_tokens": usage.get("cacheReadTokens")},
        "cache_creation_input_tokens": usage.get("cacheWriteTokens"),
    }


def _add_copilot(out: _ChatMessages, kind: str, data: Line, at: str) -> None:
    text = string_of(data.get("content"))
    if kind == "system.message":
        out.begin(text, at)
    elif kind == "user.message":
        out.say("user", string_of(data.get("transformedContent")) or text, at)
    elif kind == "tool.execution_complete" and not data.get("isUserRequested"):
        failed = string_of(mapping_of(data.get("error")).get("message"))
        output = string_of(mapping_of(data.get("result")).get("content"))
        out.result(string_of(data.get("toolCallId")), output or failed, at)


# opencode: the output of `opencode export`. A tool part holds both the call and its result.


def _opencode(session: Line, lines: Sequence[Line]) -> Log:
    out = _ChatMessages()
    waits = False
    for line in lines:
        info, parts = mapping_of(line.get("info")), line.get("parts")
        found = [part for part in parts if isinstance(part, Mapping)] if isinstance(parts, list | tuple) else []
        if any(kind_of(part) == "compaction" for part in found):
            out.folds.add(len(out.messages) + 1)
        if info.get("role") == "user":
            out.say("user", "\n\n".join(filter(None, map(_opencode_text, found))), _timestamp(info, "created"))
        elif info.get("role") == "assistant":
            waits = not mapping_of(info.get("time")).get("completed")
            _add_steps(out, info, found)
    folder = string_of(session.get("directory"))
    return out.log("opencode", string_of(session.get("id")), string_of(session.get("title")), folder, is_open=waits)


def _add_steps(out: _ChatMessages, info: Line, parts: Sequence[Line]) -> None:
    """Append one message per step of a response, each followed by its tool results."""
    out.model = string_of(info.get("modelID")) or out.model
    steps: list[list[Line]] = [[]]
    for part in parts:
        if kind_of(part) == "step-start" and steps[-1]:
            steps.append([])
        steps[-1].append(part)
    place = None
    for step in steps:
        text = "\n\n".join(filter(None, map(_opencode_text, step)))
        thought = "\n\n".join(string_of(part.get("text")) for part in step if kind_of(part) == "reasoning")
        tools = [part for part in step if kind_of(part) == "tool"]
        states = [mapping_of(part.get("state")) for part in tools]
        named = [(string_of(part.get("callID")), string_of(part.get("tool"))) for part in tools]
        calls = [(*names, state.get("input")) for names, state in zip(named, states, strict=True)]
        made = out.answer(text, thought, calls, _timestamp(info, "completed") or _timestamp(info, "created"))
        place = place if made is None else made
        for (call, _), state in zip(named, states, strict=True):
            if state.get("status") in DONE:
                result = string_of(state.get("output")) or string_of(state.get("error"))
                out.result(call, result, _timestamp(state, "end"))
    tokens = mapping_of(info.get("tokens"))
    if tokens and len(steps) == 1:
        out.count(place, _opencode_usage(tokens), _timestamp(info, "completed"))


def _opencode_usage(tokens: Line) -> dict[str, Any]:
    """Return the usage with Anthropic field names; like Anthropic, opencode excludes cached tokens from the input."""
    cache = mapping_of(tokens.get("cache"))
    return {
        "input_tokens": tokens.get("input"),
        "output_tokens": _number(tokens.get("output")) + _number(tokens.get("reasoning")),
        "cache_read_input_tokens": cache.get("read"),
        "cache_creation_input_tokens": cache.get("write"),
    }


def _opencode_text(part: Line) -> str:
    if kind_of(part) == "file":
        return f"[{string_of(part.get('filename')) or string_of(part.get('mime')) or 'a file'}]"
    return string_of(part.get("text")) if kind_of(part) == "text" and not part.get("ignored") else ""


def _timestamp(of: Line, what: str) -> str:
    """Return a timestamp in milliseconds as an ISO 8601 string, or '' if there is none."""
    stamp = mapping_of(of.get("time")).get(what)
    if not isinstance(stamp, int | float) or not 0 < stamp < 1e14:
        return ""
    return stamp_of(stamp / 1000)
