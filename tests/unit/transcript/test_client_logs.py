"""Logs as real clients write them (tests/data/logs), and malformed ones."""

from __future__ import annotations

import json
import time
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from midfold import TranscriptError, read
from midfold.transcript.document import read_many, recording_of, require_messages
from midfold.transcript.laws import violations
from midfold.transcript.message import plain, read_usage
from midfold.transcript.wrappers import user_words

LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"
FILES = {
    "claude_code.jsonl": ("claude-code", "anthropic", "claude-opus-4-8"),
    "codex.jsonl": ("codex", "openai-responses", "gpt-5.4"),
    "copilot.jsonl": ("copilot", "openai-chat", "gpt-4.1"),
    "gemini_cli.jsonl": ("gemini-cli", "openai-chat", "gemini-2.5-pro"),
    "opencode.json": ("opencode", "openai-chat", "m1"),
}
LINES = [name for name in FILES if name.endswith(".jsonl")]


@pytest.mark.parametrize("name", FILES)
def test_a_real_log_is_the_conversation_with_its_model_usage_and_times(name: str) -> None:
    document = read((LOGS / name).read_bytes())
    log = document.log
    assert log is not None
    assert (log.client, document.dialect.name, document.model) == FILES[name]
    assert violations(document.messages) == () and document.problems == ()
    asked = [words.strip('"') for message in document.messages if (words := user_words(message))]
    assert asked == ["Say hello with the shell.", "Say it once more."]
    said = [message.text for message in document.messages if message.role == "assistant"]
    assert said.count("All is well: hello was said.") == 2
    assert sum("hello from the shell" in text for m in document.messages if m.role != "assistant" for text in m.texts())
    usage = [read_usage(turn.usage) for turn in log.turns.values()]
    assert len(usage) == 4
    assert all(one is not None and 8_900 < one.prompt_tokens < 9_100 and one.cache_read_tokens > 7_999 for one in usage)
    assert [document.messages[place].role for place in log.turns] == ["assistant"] * 4
    assert len(log.times) == len(document.messages)
    assert all(log.seconds(place) for place in range(len(log.times)))
    assert len(log.session) >= 30


def test_codex_says_how_large_its_window_is_and_others_where_they_worked() -> None:
    codex = read((LOGS / "codex.jsonl").read_bytes()).log
    assert codex is not None and codex.window == 258_400
    folders = [log.folder for name in FILES if (log := read((LOGS / name).read_bytes()).log)]
    assert folders == ["/srv/shop"] * 3 + [""] + ["/srv/shop"]


@pytest.mark.parametrize("name", LINES)
def test_a_log_that_grew_only_adds_messages(name: str) -> None:
    lines = (LOGS / name).read_bytes().splitlines()
    whole = [plain(message.wire) for message in read((LOGS / name).read_bytes()).messages]
    lengths = []
    for end in range(1, len(lines)):
        try:
            document = read(b"\n".join(lines[:end]))
        except TranscriptError:
            continue
        if document.log is None:
            assert end <= 2, "lines about the queue alone show nothing"
            continue
        known = [plain(message.wire) for message in document.messages][: -1 if document.log.is_open else None]
        is_prompt_late = name == "copilot.jsonl" and len(known) == 1
        assert is_prompt_late or known == whole[: len(known)], end
        lengths.append(len(known))
    assert lengths == sorted(lengths) and lengths[-1] >= len(whole) - 1


@pytest.mark.parametrize("name", LINES)
def test_damaged_lines_are_left_out_and_told_by_their_numbers(name: str) -> None:
    lines = (LOGS / name).read_bytes().splitlines()
    broken = [b"\x00\x00\x00", *lines[:3], b'{"type": "user", "mess', *lines[3:], lines[-1][:40]]
    document = read(b"\n".join(broken))
    assert document.log is not None and document.log.damaged == (1, 5, len(broken))
    assert document.messages == read(b"\n".join(lines)).messages


def test_a_first_line_that_nobody_can_read_is_an_error_where_no_log_follows() -> None:
    with pytest.raises(TranscriptError, match="line 1: expected one JSON object per line"):
        read(b'{"role": \n{"role": "user", "content": "hi"}')


def test_shapes_that_nobody_knows_are_told_by_name() -> None:
    text = "\n".join(json.dumps({"type": kind, "x": 1}) for kind in ("bubble", "composer", "bubble"))
    documents = read_many(text)
    with pytest.raises(TranscriptError, match=r"unknown line types 'bubble', 'composer'; supported logs: Claude Code"):
        require_messages(documents, "log")
    with pytest.raises(TranscriptError, match="found an object with 'version', 'requests'"):
        read(json.dumps({"version": 3, "requests": [{"message": {"text": "hi"}}]}))


ODD: list[Any] = [None, 1, "", "x", [], {}, {"type": {}}, [{"type": []}], ["x", None], {"id": []}, 1e30]


@pytest.mark.parametrize("name", FILES)
def test_odd_values_anywhere_are_no_trouble(name: str) -> None:
    data = (LOGS / name).read_bytes()
    values: Any = json.loads(data) if name.endswith(".json") else [json.loads(line) for line in data.splitlines()]
    for path in sorted(set(paths_of(values)), key=repr):
        for odd in ODD:
            changed = replaced(values, path, odd)
            try:
                document = read(changed)
            except TranscriptError:
                continue
            assert recording_of(document) is not None
            for place in range(len(document.messages)):
                recording_of(document).seconds(place)
                assert document.messages[place].role


def paths_of(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Return every kind of path once, ignoring positions in lists of lines."""
    inside = value.items() if isinstance(value, dict) else enumerate(value[:3]) if isinstance(value, list) else ()
    found = [path for key, item in inside for path in paths_of(item, (*at, key))]
    return [at, *found] if at and len(at) <= 5 else found


def replaced(value: Any, path: tuple[Any, ...], new: Any) -> Any:
    if not path:
        return new
    first, *rest = path
    if isinstance(value, dict):
        return {**value, first: replaced(value[first], tuple(rest), new)}
    return [replaced(item, tuple(rest), new) if place == first else item for place, item in enumerate(value)]


def test_gemini_takes_back_what_the_user_took_back_and_reads_the_older_form() -> None:
    lines = [json.loads(line) for line in (LOGS / "gemini_cli.jsonl").read_text().splitlines()]
    second = next(line for line in lines if "once more" in json.dumps(line.get("content", "")))
    taken = read([*lines, {"$rewindTo": second["id"]}])
    assert [user_words(message) for message in taken.messages if user_words(message)] == ["Say hello with the shell."]
    records = {line["id"]: line for line in lines if "id" in line}
    older = {**lines[0], "messages": list(records.values())}
    assert [m.role for m in read(json.dumps(older)).messages][:3] == ["user", "assistant", "tool"]
    assert read(older).messages == read(json.dumps(older)).messages


def test_codex_takes_back_turns_and_counts_an_answer_once() -> None:
    lines = [json.loads(line) for line in (LOGS / "codex.jsonl").read_text().splitlines()]
    event = {"type": "event_msg", "payload": {"type": "thread_rolled_back", "num_turns": 1}}
    log = read([*lines, event]).log
    assert log is not None and len(log.messages) == 7 and len(log.turns) == 2
    count = next(line for line in reversed(lines) if line["payload"].get("type") == "token_count")
    broken_off = {"type": "function_call", "name": "exec_command", "arguments": "{}", "call_id": "late"}
    repeated = read([*lines, {"type": "response_item", "payload": broken_off}, count]).log
    assert repeated is not None and repeated.turns == read(lines).log.turns  # type: ignore[union-attr]


def test_rollouts_of_old_codex_versions_are_read() -> None:
    items = [
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hi"}]},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "hello"}]},
    ]
    first = {"id": "old", "timestamp": "2025-08-01T10:00:00Z", "instructions": "Be brief."}
    document = read("\n".join(map(json.dumps, [first, {"record_type": "state"}, *items])))
    assert document.log is not None and document.log.session == "old"
    assert [message.role for message in document.messages] == ["system", "user", "assistant"]


def test_a_tool_that_is_called_again_with_the_same_id_keeps_both_results() -> None:
    def step(number: int) -> list[dict[str, Any]]:
        call = {"toolCallId": "same", "name": "bash", "arguments": {"n": number}}
        done = {"toolCallId": "same", "success": True, "result": {"content": f"result {number}"}}
        return [
            {"type": "assistant.message", "data": {"content": "", "toolRequests": [call]}},
            {"type": "tool.execution_complete", "data": done},
        ]

    lines = [{"type": "session.start", "data": {}}, {"type": "user.message", "data": {"content": "go"}}]
    document = read([*lines, *step(1), *step(2)])
    assert [message.text for message in document.messages if message.role == "tool"] == ["result 1", "result 2"]


def test_what_sub_agents_of_copilot_say_is_left_out() -> None:
    lines = [json.loads(line) for line in (LOGS / "copilot.jsonl").read_text().splitlines()]
    beside = {"type": "assistant.message", "agentId": "a1", "data": {"content": "by the way"}}
    assert read([*lines, beside]).messages == read(lines).messages


def test_an_open_end_is_known() -> None:
    lines = [json.loads(line) for line in (LOGS / "claude_code.jsonl").read_text().splitlines()]
    answer = next(place for place, line in enumerate(lines) if line["type"] == "assistant")
    found = {end: read(lines[:end]).log.is_open for end in range(answer, answer + 4)}  # type: ignore[union-attr]
    assert list(found.values()) == [False, True, False, False]
    for kind, reason in product(("text", "tool_use"), (None, "end_turn")):
        block = {"type": kind, "text": "x", "id": "t", "name": "n", "input": {}}
        line = {**lines[answer], "message": {**lines[answer]["message"], "content": [block], "stop_reason": reason}}
        log = read([*lines[:answer], line]).log
        assert log is not None and log.is_open == (reason is None)


def test_a_request_with_fields_of_a_log_is_a_request() -> None:
    messages = [{"role": "user", "content": "hi", "info": {}, "parts": []}]
    for fields in ({"info": {}}, {"projectHash": "h", "sessionId": "s"}):
        for body in ({**fields, "messages": messages}, json.dumps({**fields, "messages": messages})):
            document = read(body)
            assert document.log is None and [message.role for message in document.messages] == ["user"]


def test_time_is_linear_in_results_blocks_and_rewinds() -> None:
    def batch(count: int) -> list[dict[str, Any]]:
        calls = [{"type": "tool_use", "id": f"t{n}", "name": "Bash", "input": {}} for n in range(count)]
        results = [{"type": "tool_result", "tool_use_id": f"t{n}", "content": "ok"} for n in range(count)]
        about = {"sessionId": "s"}
        answers = [{"type": "assistant", "message": {"id": "m", "content": [call]}, **about} for call in calls]
        return [*answers, *({"type": "user", "message": {"content": [result]}, **about} for result in results)]

    def rewinds(count: int) -> list[dict[str, Any]]:
        first = {"sessionId": "s", "projectHash": "h"}
        said = [{"id": f"m{n}", "type": "user", "content": "hi"} for n in range(count)]
        back = [{"$rewindTo": f"m{count - 1 - n}"} for n in range(count - 1)]
        return [first, *said, *back]

    for make in (batch, rewinds):

        def cost(count: int, make: Any = make) -> float:
            lines = make(count)
            started = time.process_time()
            assert read(lines).messages
            return time.process_time() - started

        small = max(min(cost(2_000) for _ in range(3)), 0.001)
        assert min(cost(16_000) for _ in range(3)) < 20 * small + 0.05
