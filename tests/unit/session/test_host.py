from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import midfold
from midfold import EngineHost, Pressure
from midfold.compaction.handoff import SYSTEM_NOTE, recognise

EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "coding-session.json"
MESSAGES: list[dict[str, Any]] = json.loads(EXAMPLE.read_text(encoding="utf-8"))["messages"]


def test_the_verbs_of_the_specification() -> None:
    host = EngineHost(model="gpt-4o", context_length=32_000)
    assert not host.should_compress()
    assert host.should_compress(16_000)
    assert not host.should_compress(15_999)
    host.append(MESSAGES)
    assert host.should_compress()
    assert host.size.basis == "estimated"
    folded = host.compress(MESSAGES)
    assert len(folded) < len(MESSAGES)
    assert host.last is not None
    assert host.last.status == "compacted"
    assert not host.should_compress()
    assert host.unfold(host.last.fold)[0] in MESSAGES


def test_reported_usage_decides_and_an_answer_without_usage_changes_nothing() -> None:
    host = EngineHost(context_length=32_000)
    host.append(MESSAGES[:20])
    assert not host.should_compress()
    host.update_from_response({"prompt_tokens": 17_000, "completion_tokens": 10})
    assert host.size == (17_000, "reported")
    assert host.should_compress()
    host.update_from_response({})
    host.update_from_response({"prompt_tokens": 0})
    assert host.size == (17_000, "reported")
    host.append(MESSAGES[20:22])
    assert host.size.basis == "calibrated"


def test_after_a_compaction_the_first_estimate_does_not_rest_on_the_old_report() -> None:
    host = EngineHost(context_length=32_000)
    host.append(MESSAGES)
    host.update_from_response({"prompt_tokens": 40_000})
    host.compress(MESSAGES, current_tokens=40_000)
    assert host.pressure() is not Pressure.HARD


def test_disabled_means_no_automatic_compaction() -> None:
    config = midfold.load_config(environ={}, overrides={"compression.enabled": False}).config
    host = EngineHost(context_length=32_000, config=config)
    host.append(MESSAGES)
    assert not host.should_compress(999_999)
    assert host.compress(MESSAGES) is MESSAGES
    assert host.compress(MESSAGES, force=True) is not MESSAGES
    asked = EngineHost(context_length=32_000, config=config)
    assert asyncio.run(asked.compress_async(MESSAGES, target_tokens=6_000)) is not MESSAGES
    assert asyncio.run(asked.compress_async(MESSAGES, focus="the parser")) is MESSAGES, "a focus asks for nothing"


def test_another_model_derives_everything_anew() -> None:
    host = EngineHost(model="gpt-4o")
    assert host.budget.threshold_tokens == 64_000
    host.update_model("claude-opus-4-6")
    assert host.budget.threshold_tokens != 64_000
    host.update_model(None, 10_000)
    assert host.budget.threshold_tokens == 5_000


def test_an_overflow_error_corrects_the_window() -> None:
    host = EngineHost(model="unheard-of")
    assert host.update_from_error("This model's maximum context length is 32768 tokens. However, you requested 40000")
    assert host.window == 32_768
    assert not host.update_from_error("internal error")


def test_state_survives_json_and_a_reset_forgets_it() -> None:
    host = EngineHost(context_length=32_000)
    first = host.compress(MESSAGES, force=True)
    saved = json.loads(json.dumps(host.export()))
    other = EngineHost(context_length=32_000)
    other.restore(saved)
    second = other.compress(first + MESSAGES, force=True)
    assert other.state.count == 2
    handoffs = [found for m in midfold.read(second).messages if (found := recognise(m)) and found.kind == "fold"]
    assert len(handoffs) == 1
    other.reset()
    assert other.state == midfold.CompactionState()


def test_two_compactions_that_do_not_help_stop_the_automatic_ones_until_forced_or_another_model() -> None:
    giant = [
        {"role": "user", "content": "start"},
        {"role": "assistant", "content": "ok"},
        {"role": "user", "content": "word " * 40_000},
    ]
    host = EngineHost(context_length=32_000)
    for _ in range(2):
        assert host.compress(giant) is giant
    assert host.last is not None
    assert host.last.status == "unchanged"


def test_deciding_costs_the_same_in_a_long_conversation() -> None:
    def seconds(count: int) -> float:
        host = EngineHost(context_length=10**9)
        host.append((MESSAGES * (count // len(MESSAGES) + 1))[:count])
        best = 9.0
        for _ in range(30):
            start = time.perf_counter()
            host.append([{"role": "user", "content": "one more"}])
            host.should_compress()
            best = min(best, time.perf_counter() - start)
        return best

    assert seconds(20_000) < 3 * seconds(1_000) + 0.0005


def test_there_is_something_to_compress_only_if_there_is() -> None:
    host = EngineHost(context_length=32_000)
    assert host.has_content_to_compress(MESSAGES)
    assert not host.has_content_to_compress(MESSAGES[:1])
    assert not host.has_content_to_compress([])


def test_partial_helpers_work_on_plain_dicts() -> None:
    head, tail = midfold.split_for_partial_compaction(MESSAGES, 2)
    assert head + tail == MESSAGES
    assert tail[0]["role"] == "user"
    joined = midfold.rejoin([{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}])
    assert [message["role"] for message in joined] == ["user", "assistant", "user"]
    rejoined = midfold.rejoin(head, tail)
    assert [message for message in rejoined if message in MESSAGES] == MESSAGES
    assert midfold.rejoin(MESSAGES[:2], MESSAGES[2:]) == MESSAGES
    shown = midfold.preview(MESSAGES, 2)
    assert shown.head_messages + shown.tail_messages == shown.total_messages == len(MESSAGES)
    assert shown.head_tokens + shown.tail_tokens == shown.total_tokens


def test_a_request_body_brings_its_system_prompt_and_tools_and_leaves_as_a_body() -> None:
    tools = [{"name": "look", "description": "Looks. " * 40, "input_schema": {"type": "object", "properties": {}}}]
    talk = [
        {"role": role, "content": [{"type": "text", "text": f"{role} {n}: " + "word " * 120}]}
        for n in range(60)
        for role in ("user", "assistant")
    ]
    body = {"model": "claude-x", "max_tokens": 9, "system": "You are careful. " * 30, "tools": tools, "messages": talk}
    alone = EngineHost(context_length=32_000)
    alone.compress(talk, force=True)
    host = EngineHost(context_length=32_000)
    shorter = host.compress(body, force=True)
    assert shorter["system"].startswith("You are careful.") and SYSTEM_NOTE in shorter["system"]
    assert (shorter["tools"], shorter["max_tokens"]) == (tools, 9) and len(shorter["messages"]) < len(talk)
    assert host.last is not None and alone.last is not None
    assert host.last.fixed_tokens > 150 and alone.last.fixed_tokens == 0
    assert host.last.old_tokens == alone.last.old_tokens + host.last.fixed_tokens
