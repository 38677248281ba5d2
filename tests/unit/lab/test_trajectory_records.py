"""Records in every format: read, counted, folded and written with all other content unchanged."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold import ToolCall, ToolResult, read
from midfold.lab.sharegpt import ShareGPT
from midfold.lab.trajectory_settings import TrajectorySettings
from midfold.lab.trajectory_work import compress_record
from midfold.transcript.document import Document
from midfold.transcript.laws import pair, violations
from support.convert import to_anthropic, to_responses
from support.trajectories import call, lines, record, response, run_of, turn

SETTINGS = TrajectorySettings(target_tokens=1_500, summary_tokens=200, tokenizer="estimate")


def chat(steps: int = 30) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are an agent."},
        {"role": "user", "content": "Fix it."},
    ]
    for number in range(steps):
        asked = {"name": "read", "arguments": json.dumps({"path": f"src/file_{number}.py"})}
        calls = [{"id": f"c{number}", "type": "function", "function": asked}]
        messages.append({"role": "assistant", "content": f"Reading file_{number}.", "tool_calls": calls})
        body = f"def value_{number}(): return {number}\n" * 8
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": body})
    return [*messages, {"role": "assistant", "content": "Done: value_29 in src/file_3.py was wrong."}]


def test_sharegpt_turns_are_read_with_their_calls_results_and_thoughts() -> None:
    parts = ShareGPT.read(
        turn("gpt", f"<think>\nhm\n</think>\nLook.\n{call('a', x=1)}\n{call('b')} and more <tool_call>no")
    ).parts
    assert [type(part).__name__ for part in parts] == ["Thinking", "Text", "ToolCall", "ToolCall", "Text"]
    assert (parts[2].name, parts[2].arguments) == ("a", '{"x": 1}')  # type: ignore[attr-defined]
    results = ShareGPT.read(turn("tool", f"{response('one')}\n{response({'k': 2})}")).parts
    assert [result.text for result in results if isinstance(result, ToolResult)] == ["one", '{"k":2}']


@pytest.mark.parametrize("value", ["<tool_call>not json</tool_call>", "<think>never closed", "", "</tool_call><think>"])
def test_marks_that_nobody_can_read_stay_text(value: str) -> None:
    reading = ShareGPT.read(turn("gpt", value))
    assert not any(isinstance(part, ToolCall) for part in reading.parts)
    assert "".join(getattr(part, "text", "") for part in reading.parts).strip() == value.strip()


def test_a_turn_that_is_none_is_noted_and_does_not_raise() -> None:
    for value in (None, 3, {"from": 7, "value": None}, {"from": "martian", "value": "x"}, []):
        assert ShareGPT.read(value).problems


def test_every_other_field_stays_byte_for_byte_and_turns_that_stay_are_not_touched() -> None:
    before = json.dumps(record(steps=60), indent=1).encode()
    result = compress_record(before, SETTINGS)
    after = json.loads(result.data)
    assert result.metrics.status == "compressed"
    assert b'"score": 1e-07' in result.data or b'"score": 1e-7' in result.data
    known = json.loads(before)
    assert {key: value for key, value in after.items() if key != "conversations"} == {
        key: value for key, value in known.items() if key != "conversations"
    }
    turns, old = after["conversations"], known["conversations"]
    assert turns[:4] == old[:4]
    assert turns[-4:] == old[-4:]
    assert turns[4]["from"] == "human"
    assert turns[4]["value"].startswith("[CONTEXT SUMMARY]:")
    assert turns[5:] == old[len(old) - len(turns) + 5 :]
    assert result.data.startswith(before[: before.index(b'"value": "Fix bug')])


def test_a_record_under_the_target_is_the_same_bytes() -> None:
    data = b'{"conversations" : [ {"from":"human","value":"\\u00e9 1e-7"} ] , "x":1e-7}'
    result = compress_record(data, SETTINGS)
    assert result.data == data
    assert result.metrics.status == "under_target"


@pytest.mark.parametrize("shape", ["openai-chat", "anthropic", "openai-responses"])
def test_records_in_a_providers_shape_stay_legal_and_in_their_shape(shape: str) -> None:
    messages = chat()
    bodies = {"openai-chat": {"messages": messages}, "anthropic": to_anthropic(messages)}
    body = {"id": "r1", "extra": [1], **bodies.get(shape, to_responses(messages))}
    result = compress_record(json.dumps(body).encode(), SETTINGS)
    assert (result.metrics.status, result.metrics.format, result.metrics.id) == ("compressed", shape, "r1")
    after = json.loads(result.data)
    assert {key: after[key] for key in body if key not in ("messages", "input")} == {
        key: body[key] for key in body if key not in ("messages", "input")
    }
    document = read(result.data)
    assert violations(document.messages) == ()
    assert document.dialect.name == shape


def test_a_bare_list_and_lines_of_turns_are_records_too() -> None:
    turns = run_of(60)
    as_list = compress_record(json.dumps(turns).encode(), SETTINGS)
    assert json.loads(as_list.data)[0] == turns[0]
    as_lines = compress_record("\n".join(map(json.dumps, turns)).encode(), SETTINGS)
    read_again = [json.loads(line) for line in as_lines.data.splitlines()]
    assert read_again == json.loads(as_list.data)
    assert as_lines.metrics.status == as_list.metrics.status == "compressed"


@pytest.mark.parametrize(
    "data",
    [b"{", b"nonsense", b"3", b'{"a": 1}', b'{"conversations": "text"}', b'{"conversations": [1, 2]}', b'{"messages":'],
)
def test_what_is_no_trajectory_comes_back_as_it_is_with_a_reason(data: bytes) -> None:
    result = compress_record(data, SETTINGS)
    assert result.data == data
    assert result.metrics.status == "failed"
    assert "expected" in result.metrics.reason or "not JSON" in result.metrics.reason


def test_odd_turns_do_not_stop_a_record() -> None:
    odd = [{"from": "gpt", "value": None}, {"from": "martian", "value": "?"}, {"from": "tool", "value": 7}]
    body = {"conversations": [*run_of(30), *odd, *run_of(30)]}
    result = compress_record(json.dumps(body).encode(), SETTINGS)
    assert result.metrics.status == "compressed"


def test_calls_and_results_stay_together_in_sharegpt() -> None:
    for line in lines(5, steps=50).splitlines():
        after = json.loads(compress_record(line, SETTINGS).data)["conversations"]
        document = Document([], ShareGPT, after)
        pairing = pair(document.messages)
        assert not pairing.orphans
        assert not pairing.unanswered


def test_the_summary_holds_what_later_turns_use_and_only_the_fold_knew() -> None:
    turns = run_of(40)
    turns[9]["value"] = response("the deploy key lives in config/secret_store.yaml under vault_slot_42")
    turns[-1]["value"] = "I rotate vault_slot_42 in config/secret_store.yaml now."
    result = compress_record(json.dumps({"conversations": turns}).encode(), SETTINGS)
    summary = json.loads(result.data)["conversations"][4]["value"]
    assert "the deploy key lives in config/secret_store.yaml under vault_slot_42" in summary


def test_lines_with_credentials_or_orders_do_not_get_into_a_summary() -> None:
    turns = run_of(40)
    secret = "AKIA" + "IOSFODNN7EXAMPLE"
    turns[9]["value"] = response(f"vault_slot_42 uses aws_access_key_id={secret}")
    turns[-1]["value"] = "I rotate vault_slot_42 now."
    result = compress_record(json.dumps({"conversations": turns}).encode(), SETTINGS)
    summary = json.loads(result.data)["conversations"][4]["value"]
    assert secret not in summary
    assert "vault_slot_42 uses" not in summary


def test_the_same_record_gives_the_same_bytes() -> None:
    data = json.dumps(record(3, steps=80)).encode()
    assert compress_record(data, SETTINGS) == compress_record(data, SETTINGS)


def test_retention_is_measured_where_it_is_asked_for() -> None:
    data = json.dumps(record(3, steps=80)).encode()
    measuring = TrajectorySettings(target_tokens=1_500, summary_tokens=200, tokenizer="estimate", retention=True)
    asked = compress_record(data, measuring)
    assert asked.metrics.retention is not None
    assert 0.0 <= asked.metrics.retention <= 1.0
    assert compress_record(data, SETTINGS).metrics.retention is None
