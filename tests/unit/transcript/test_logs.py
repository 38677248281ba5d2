"""Logs of coding agents are read as conversations."""

from __future__ import annotations

import json
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import midfold
from midfold import TranscriptError, read
from midfold.cli.main import main
from midfold.lab.recorded_sessions import load_sessions
from midfold.testing.engines import long_conversation
from midfold.transcript.document import write
from midfold.transcript.laws import violations
from midfold.transcript.message import plain, read_usage


class ClaudeCode:
    """Writer of lines as in Claude Code 2.1: one for each block of an answer, each a child of the previous one."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = [
            {"type": "file-history-snapshot", "messageId": "m", "snapshot": {}},
            {"type": "summary", "summary": "A title", "leafUuid": "x"},
        ]
        self._numbers = count(1)
        self.last: str | None = None

    def add(self, kind: str, message: dict[str, Any] | None, **fields: Any) -> str:
        name = f"u{next(self._numbers)}"
        known = {"parentUuid": self.last, "isSidechain": False, "sessionId": "s", "cwd": "/srv", "version": "2.1.63"}
        self.lines.append({**known, "type": kind, "uuid": name, **({"message": message} if message else {}), **fields})
        self.last = name
        return name

    def user(self, content: Any, **fields: Any) -> str:
        return self.add("user", {"role": "user", "content": content}, **fields)

    def answer(self, *blocks: dict[str, Any], **fields: Any) -> list[str]:
        about = {"id": f"msg_{next(self._numbers)}", "type": "message", "role": "assistant", "model": "claude-x"}
        return [self.add("assistant", {**about, "content": [block], "usage": {}}, **fields) for block in blocks]

    def text(self) -> bytes:
        return "\n".join(json.dumps(line) for line in self.lines).encode()


def said(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def called(name: str) -> dict[str, Any]:
    return {"type": "tool_use", "id": name, "name": "Bash", "input": {"command": f"echo {name}"}}


def result(name: str) -> dict[str, Any]:
    return {"type": "tool_result", "tool_use_id": name, "content": f"{name} done"}


def told(source: Any) -> list[Any]:
    return [plain(message.wire) for message in read(source).messages]


def test_a_log_of_claude_code_is_the_conversation_that_was_logged() -> None:
    conversation = long_conversation("anthropic", 6)
    log = ClaudeCode()
    for message in conversation:
        if message["role"] == "user":
            log.user(message["content"])
        else:
            content = message["content"]
            log.answer(*([said(content)] if isinstance(content, str) else content))
    document = read(log.text())
    assert document.dialect.name == "anthropic"
    assert violations(document.messages) == ()
    assert [(m.role, m.parts) for m in document.messages] == [(m.role, m.parts) for m in read(conversation).messages]
    assert read([json.loads(line) for line in log.text().splitlines()]).messages == document.messages


def test_calls_made_together_are_one_message_and_so_are_their_results() -> None:
    log = ClaudeCode()
    log.user("go")
    first, second = log.answer(called("a"), called("b"))
    log.user([result("a")], parentUuid=first)
    log.user([result("b")], parentUuid=second)
    log.answer(said("both are done"))
    assert told(log.text()) == [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": [called("a"), called("b")]},
        {"role": "user", "content": [result("a"), result("b")]},
        {"role": "assistant", "content": [said("both are done")]},
    ]


def test_an_answer_whose_lines_stand_between_results_is_put_together_again() -> None:
    log = ClaudeCode()
    log.user("go")
    log.answer(called("a"), called("b"))
    between = log.lines.pop()
    log.last = between["parentUuid"]
    log.user([result("a")])
    log.lines.append(between)
    log.user([result("b")], parentUuid=between["uuid"])
    assert [message["content"] for message in told(log.text())[1:]] == [
        [called("a"), called("b")],
        [result("a"), result("b")],
    ]


def test_side_chains_failed_requests_and_what_was_taken_back_are_left_out() -> None:
    log = ClaudeCode()
    start = log.user("the first ask")
    log.answer(said("an answer that was taken back"))
    log.user("and what followed it")
    log.answer(said("also gone"))
    log.last = start
    log.answer(said("API Error: 529"), isApiErrorMessage=True)
    log.answer(said("the answer that stayed"))
    log.user("a sub-agent's task", isSidechain=True)
    log.last = "u-elsewhere"
    log.add("progress", None, data={})
    log.lines[-1]["parentUuid"] = start
    log.last = log.lines[-3]["uuid"]
    log.user("only shown", isVisibleInTranscriptOnly=True)
    log.user("the last ask")
    stayed = [said("the answer that stayed")]
    assert [message["content"] for message in told(log.text())] == ["the first ask", stayed, "the last ask"]


def test_what_a_user_said_while_the_agent_worked_is_said() -> None:
    log = ClaudeCode()
    log.user("go")
    log.answer(called("a"))
    log.user([result("a")])
    log.add("attachment", None, attachment={"type": "queued_command", "prompt": [said("also this")]})
    log.add("attachment", None, attachment={"type": "todo_reminder", "content": []})
    log.answer(said("both"))
    assert [message["content"] for message in told(log.text())[3:]] == [[said("also this")], [said("both")]]


def test_what_stood_before_a_compaction_of_the_agents_own_is_read_too() -> None:
    log = ClaudeCode()
    log.user("before")
    before = log.answer(said("yes"))[0]
    log.add("system", None, subtype="compact_boundary", parentUuid=None, logicalParentUuid=before)
    log.user(
        "This session is being continued from a previous conversation. ...",
        isCompactSummary=True,
        isVisibleInTranscriptOnly=True,
    )
    log.answer(said("going on"))
    assert [m["role"] for m in told(log.text())] == ["user", "assistant", "user", "assistant"]


def test_lines_without_places_are_taken_in_order_and_half_a_line_is_left_out() -> None:
    lines = [
        {"type": "user", "sessionId": "s", "message": {"role": "user", "content": "hello"}},
        {"type": "assistant", "sessionId": "s", "message": {"role": "assistant", "content": [said("hi")]}},
    ]
    text = "\n".join(map(json.dumps, lines)) + '\n{"type": "user", "sess'
    assert [m["role"] for m in told(text)] == ["user", "assistant"]


ODD: list[Any] = [None, 1, "", "x", [], {}, {"type": {}}, [{"type": []}], ["x", None], {"id": []}]


def test_odd_values_anywhere_in_a_log_are_no_trouble() -> None:
    log = ClaudeCode()
    log.user("go")
    log.answer(called("a"))
    log.user([result("a")])
    for number, line in enumerate(log.lines):
        for key in (*line, "attachment", "payload"):
            for odd in ODD:
                for inner in ({**line, key: odd}, {**line, "message": {**line.get("message", {}), "id": odd}}):
                    values = [*log.lines[:number], inner, *log.lines[number + 1 :]]
                    assert len(read(values).messages) >= 1
    for odd in ODD:
        line = {"type": "response_item", "payload": odd}
        known = {"type": "session_meta", "payload": {"instructions": odd, "base_instructions": odd}}
        assert len(read([known, line, {"type": "response_item", "payload": {"role": "user"}}]).messages) >= 1


def test_a_rollout_of_codex_is_the_list_of_its_items() -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "list the files"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"},
        {"type": "function_call", "name": "shell", "arguments": '{"command": ["ls"]}', "call_id": "c1"},
        {"type": "function_call_output", "call_id": "c1", "output": "a.py"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "a.py"}]},
    ]
    lines: list[dict[str, Any]] = [
        {"timestamp": "t", "type": "session_meta", "payload": {"id": "x", "base_instructions": {"text": "Be Codex."}}},
        {"timestamp": "t", "type": "turn_context", "payload": {"model": "gpt-5.4"}},
        *({"timestamp": "t", "type": "response_item", "payload": item} for item in items),
        {"timestamp": "t", "type": "event_msg", "payload": {"type": "token_count"}},
        {"timestamp": "t", "type": "response_item", "payload": {"type": "ghost_snapshot"}},
    ]
    document = read("\n".join(map(json.dumps, lines)).encode())
    assert document.dialect.name == "openai-responses"
    assert [message.role for message in document.messages] == [
        "system", "user", "assistant", "assistant", "tool", "assistant",
    ]  # fmt: skip
    assert violations(document.messages) == ()
    assert json.loads(write(document))[1:] == items, "what is written is the plain list"


def test_the_model_of_a_log_is_the_one_that_was_asked_last(tmp_path: Path) -> None:
    log = ClaudeCode()
    log.user("Go.")
    log.answer({"type": "text", "text": "Yes."})
    log.add("assistant", {"id": "a", "role": "assistant", "model": "claude-opus-4-6", "content": "Done."})
    log.add("assistant", {"id": "b", "role": "assistant", "model": "<synthetic>", "content": "No response."})
    log.add("assistant", {"id": "c", "role": "assistant", "model": "claude-y", "content": "Aside."}, isSidechain=True)
    assert read(log.text()).model == "claude-opus-4-6"
    assert read(log.lines).model == "claude-opus-4-6"
    file = tmp_path / "log.jsonl"
    file.write_bytes(log.text())
    found = json.loads(CliRunner().invoke(main, ["inspect", str(file), "--json"]).output)["model"]
    assert (found["name"], found["context_window"]) == ("claude-opus-4-6", 1_000_000)
    assert "of a 1,000,000-token window" in CliRunner().invoke(main, ["compact", str(file)]).output
    codex = [
        {"type": "session_meta", "payload": {"id": "s"}},
        {"type": "turn_context", "payload": {"model": "gpt-5.5"}},
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": "Go."}},
    ]
    assert read("\n".join(map(json.dumps, codex))).model == "gpt-5.5"


def test_the_usage_and_times_of_a_log_tell_how_its_cache_did(tmp_path: Path) -> None:
    log = ClaudeCode()
    for number, (read_tokens, written) in enumerate([(0, 9_000), (9_000, 100), (0, 9_200)]):
        log.user(f"Go {number}.")
        usage = {"input_tokens": 5, "cache_read_input_tokens": read_tokens, "cache_creation_input_tokens": written}
        answer = {"id": f"a{number}", "role": "assistant", "model": "claude-opus-4-6", "usage": usage}
        at = f"2026-01-08T1{number // 2}:0{number}:00.000Z"
        for block in ("Yes.", "And more."):
            content = [{"type": "text", "text": block}]
            log.add("assistant", {**answer, "content": content}, timestamp=at)
    file = tmp_path / "log.jsonl"
    file.write_bytes(log.text())
    [found] = json.loads(CliRunner().invoke(main, ["cache", "health", str(file), "--json"]).output)
    assert found["kinds"] == {"cold_start": 1, "hit": 1, "expired": 1}
    document = read(log.text())
    assert document.log is not None
    assert sorted(document.log.turns) == [1, 3, 5]
    assert all(b"usage" not in bytes(message.wire) for message in document.messages)
    counts = {"last_token_usage": {"input_tokens": 50, "cached_input_tokens": 40, "output_tokens": 2}}
    codex = [
        {"type": "response_item", "payload": {"type": "message", "role": "user", "content": "Go."}},
        {"type": "response_item", "payload": {"type": "message", "role": "assistant", "content": "Yes."}},
        {"type": "event_msg", "timestamp": "t", "payload": {"type": "token_count", "info": counts}},
        {"type": "event_msg", "payload": {"type": "token_count", "info": None}},
    ]
    rollout = read("\n".join(map(json.dumps, codex))).log
    assert rollout is not None
    usage_of = read_usage(rollout.turns[1].usage)
    assert usage_of is not None
    assert (usage_of.prompt_tokens, usage_of.cache_read_tokens, rollout.turns[1].at) == (50, 40, "t")


def test_a_log_without_messages_is_said_to_be_none() -> None:
    lines = [{"type": "session_meta", "payload": {"id": "x"}}, {"type": "event_msg", "payload": {}}]
    with pytest.raises(TranscriptError, match="log without messages"):
        midfold.compact("\n".join(map(json.dumps, lines)).encode())


def long_log() -> bytes:
    log = ClaudeCode()
    log.user("Port the parser and keep the tests green.")
    for number in range(40):
        name = f"toolu_{number}"
        log.answer(said(f"step {number}"), called(name))
        log.user([{**result(name), "content": f"line of output {number}\n" * 200}])
    log.answer(said("All ported."))
    log.user("Now write the changelog.")
    return log.text()


def test_a_log_can_be_compacted_and_comes_back_as_a_plain_list() -> None:
    done = midfold.compact(long_log(), context_length=20_000)
    assert done.receipt.status in ("compacted", "pruned")
    messages = json.loads(done.messages)
    assert {frozenset(message) for message in messages} == {frozenset({"role", "content"})}
    assert violations(read(messages).messages) == ()
    assert messages[-1]["content"] == "Now write the changelog."
    unchanged = midfold.compact(long_log(), context_length=2_000_000).messages
    assert json.loads(unchanged) == told(long_log())


def test_the_commands_and_the_measure_take_logs(tmp_path: Path) -> None:
    file = tmp_path / "session.jsonl"
    file.write_bytes(long_log())
    shown = CliRunner().invoke(main, ["inspect", str(file), "--json"])
    assert shown.exit_code == 0, shown.output
    assert json.loads(shown.stdout)["dialect"] == "anthropic"
    out = tmp_path / "out.json"
    done = CliRunner().invoke(main, ["compact", str(file), "--context-length", "20000", "--local", "-o", str(out)])
    assert done.exit_code == 0, done.output
    assert violations(read(out.read_bytes()).messages) == ()
    (session,) = load_sessions([file])
    assert sum(session.human) == 2
