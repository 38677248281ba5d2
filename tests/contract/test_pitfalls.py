"""Defects of the best-known implementation (pitfalls.md, 1 to 21), each as a test that would fail on it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest

import midfold
from midfold.compaction.archive import handle_of
from midfold.compaction.budget import plan_budget
from midfold.compaction.handoff import recognise
from midfold.compaction.local.digest import is_digest
from midfold.compaction.redact import redact
from midfold.errors import FailureKind, SummaryFailed
from midfold.transcript.laws import violations
from midfold.transcript.tokenizers import Tokenizer
from support import fixtures
from support.build import WINDOW, folded, setting, work
from support.fixtures import assistant, call, number_lines, system, user


def handoff_texts(messages: Any) -> list[str]:
    found = [(message, recognise(message)) for message in midfold.read(messages).messages]
    return [message.text for message, known in found if known and known.kind == "fold"]


def failing(kind: FailureKind) -> Callable[[midfold.SummaryRequest], str]:
    def summarize(ask: midfold.SummaryRequest) -> str:
        raise SummaryFailed(kind)

    return summarize


SESSION = [system(), user("Port the parser."), assistant("I will."), *work(0)]


def test_01_every_compaction_starts_with_a_user_message() -> None:
    messages: list[Any] = list(SESSION)
    state = None
    for number in range(4):
        result = folded(messages, state=state)
        first = next(message for message in result.messages if message["role"] != "system")
        assert first["role"] == "user", f"compaction {number + 1}"
        state = result.state
        messages = [*result.messages, *work(1_000 * (number + 1))]


def test_02_a_partial_compaction_keeps_its_tail_through_save_and_reload() -> None:
    fixture = fixtures.keep_last_n_exchanges(keep=2)
    host = midfold.EngineHost(context_length=64_000)
    view = host.compress(fixture.messages, keep_last_exchanges=2)
    saved = json.dumps({"view": view, "host": host.export()})
    loaded = json.loads(saved)
    again = midfold.EngineHost(context_length=64_000)
    again.restore(loaded["host"])
    assert loaded["view"][-8:] == fixture.messages[-8:]
    after = again.compress([*loaded["view"], user("The next ask.")], keep_last_exchanges=1)
    assert after[-1] == user("The next ask.")
    assert again.state.count == 2


@pytest.mark.parametrize("unit", ["a.", "deadbeef", "eyJhbGciOi", "a.b.c-", "x=", "://", "AKIA", "Bearer "])
def test_03_redaction_is_linear_on_hostile_text(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    started = time.process_time()
    redact(text)
    assert time.process_time() - started < 2, "a cubic rule needs hours for this"


def test_04_the_fallback_on_a_repeat_compaction_keeps_the_previous_summary() -> None:
    first = folded(SESSION, summarizer=lambda ask: "## Key Decisions\n- Use CBOR.\n\n## Critical Context\n- port 48713")
    second = folded([*first.messages, user("More."), *work(500)], state=first.state, summarizer=failing("timeout"))
    text = handoff_texts(second.messages)[0]
    assert "Use CBOR" in text
    assert "port 48713" in text


def test_05_raw_tool_outputs_reach_the_summariser() -> None:
    seen: list[midfold.SummaryRequest] = []

    def summarize(ask: midfold.SummaryRequest) -> str:
        seen.append(ask)
        return "## Goal\nx"

    result = folded(SESSION, summarizer=summarize)
    assert result.boundary is not None
    raw = [
        message["content"]
        for message in SESSION[result.boundary.start : result.boundary.end]
        if message["role"] == "tool"
    ]
    asked = [text for message in seen[0].messages for text in message.texts() if text]
    assert asked == raw
    prompt = seen[0].prompt()
    assert [text for text in raw if text[:40] not in prompt] == []


def test_06_a_digest_states_failure_as_failure_and_counts_real_lines() -> None:
    messages = [user("Go."), assistant("Yes.")]
    messages += call(0, "read_file", {"path": "a.py"}, json.dumps({"error": "File not found: a.py " + "x" * 300}))
    messages += call(
        1, "patch", {"path": "b.py"}, json.dumps({"success": False, "error": "hunk 3 failed " + "x" * 300})
    )
    messages += call(2, "terminal", {"command": "ls"}, json.dumps({"output": number_lines("f{n}", 77), "exit_code": 0}))
    result = midfold.compact(
        [*messages, *work(10, 40)], context_length=64_000, force=True, config=setting(protect_last_n=4)
    )
    read, patch, shell = list(fixtures.tool_results(result.messages))[:3]
    assert is_digest(read)
    assert "failed" in read
    assert "failed" in patch
    assert "77 lines" in shell


def test_07_back_references_point_to_a_copy_that_is_still_whole() -> None:
    fixture = fixtures.repeated_reads()
    found = 0
    for ratio in (0.1, 0.3, 0.8):
        config = setting(protect_last_n=1, target_ratio=ratio)
        result = midfold.compact(fixture.messages, context_length=48_000, force=True, config=config)
        handles = {handle_of(m) for m in midfold.read(result.messages).messages}
        for text in fixtures.tool_results(result.messages):
            if text.startswith("[Same tool output"):
                assert text.rpartition("unfold ")[2] in handles
                found += 1
    assert found


def test_08_the_protected_tail_is_neither_pruned_nor_deduplicated() -> None:
    body = number_lines("the same line {n}", 60)
    tail = [message for n in range(10) for message in call(900 + n, "read_file", {"path": "a"}, body)]
    for messages in ([*SESSION, *tail], [*SESSION[:40], *tail]):
        result = midfold.compact(messages, context_length=WINDOW, force=True)
        assert result.changed
        assert all(mine is theirs for mine, theirs in zip(result.messages[-20:], tail, strict=True))


@pytest.mark.parametrize("size", [80_000, 200_000])
def test_09_a_giant_result_in_the_tail_is_spilled_so_that_the_view_lands(size: int) -> None:
    giant = call(900, "terminal", {"command": "cat log"}, "word " * size + "THE END")
    messages = [*SESSION, *giant, assistant("Seen."), user("And now?")]
    result = folded(messages, context_length=100_000)
    assert result.receipt.new_tokens < result.receipt.threshold_tokens
    spilled = next(digest for digest in result.receipt.digests if digest.kind == "spill")
    assert spilled.message == len(SESSION) + 1
    assert result.archive.originals(spilled.handle) == [giant[1]]
    shown = list(fixtures.tool_results(result.messages))[-1]
    assert shown.startswith("word word")
    assert shown.endswith("THE END")
    assert spilled.handle in shown


def test_09_the_newest_batch_is_spilled_only_if_nothing_else_helps() -> None:
    old = call(900, "terminal", {"command": "cat old"}, "word " * 60_000)
    new = call(901, "terminal", {"command": "cat new"}, "other " * 15_000)
    result = folded([*SESSION, *old, *new], context_length=100_000)
    assert result.messages[-1] is new[1]
    assert [digest.kind for digest in result.receipt.digests] == ["spill"]


def test_09_a_spilled_result_with_an_old_picture_unfolds_too() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    giant = call(900, "browser", {}, "")
    giant[1]["content"] = [{"type": "text", "text": "word " * 60_000}, image]
    newest = {"role": "user", "content": [{"type": "text", "text": "Like this."}, image]}
    messages = [*SESSION, *giant, assistant("Seen."), newest, assistant("Yes.")]
    result = folded(messages, context_length=100_000)
    spilled = next(digest for digest in result.receipt.digests if digest.kind == "spill")
    assert spilled.message == len(SESSION) + 1
    assert result.archive.originals(spilled.handle) == [giant[1]]


def test_10_a_smaller_window_shrinks_the_tail_with_the_threshold() -> None:
    for window in (8_000, 32_000, 128_000, 1_000_000):
        budget = plan_budget(window)
        assert budget.tail_tokens * 1.5 + budget.summary_maximum < budget.threshold_tokens
    host = midfold.EngineHost(context_length=1_000_000)
    assert host.update_from_error("This model's maximum context length is 32000 tokens, however you requested 50000")
    assert (host.budget.threshold_tokens, host.budget.tail_tokens) == (16_000, 3_200)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": None}]},
        {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "x", "arguments": None}}]},
        {"role": "assistant", "tool_calls": [None, 7]},
        {"role": "assistant", "tool_calls": "none"},
        {"role": None, "content": None},
        [],
        "text",
    ],
)
@pytest.mark.parametrize("place", [3, -1])
def test_11_null_arguments_functions_and_messages_do_not_crash(bad: Any, place: int) -> None:
    messages: list[Any] = list(SESSION)
    messages.insert(place, bad)
    result = folded(messages)
    assert violations(midfold.read(result.messages).messages) == ()
    again = folded([*result.messages, user("More."), *work(500), bad, user("Last.")], state=result.state)
    assert violations(midfold.read(again.messages).messages) == ()


def test_12_an_auth_failure_leaves_nothing_behind() -> None:
    host = midfold.EngineHost(context_length=WINDOW, summarizer=failing("auth"))
    assert host.compress(SESSION) is SESSION
    host.update_model("another-model", WINDOW)
    assert "auth" not in json.dumps(host.export())
    host.summarizer = failing("timeout")
    assert host.compress(SESSION) is not SESSION
    assert host.last is not None
    assert (host.last.status, host.last.summary.failure) == ("compacted", "timeout")


def test_13_a_rate_limit_is_told_apart_from_a_timeout() -> None:
    for kind in ("rate_limit", "timeout"):
        assert folded(SESSION, summarizer=failing(kind)).receipt.summary.failure == kind  # type: ignore[arg-type]


def test_14_a_resume_after_two_compactions_has_one_live_summary() -> None:
    first = folded(SESSION)
    second = folded([*first.messages, user("More."), *work(500)])
    resumed = json.loads(json.dumps([*second.messages, user("Even more."), *work(900)]))
    third = folded(resumed)
    assert [len(handoff_texts(view.messages)) for view in (first, second, third)] == [1, 1, 1]


def test_14_a_forced_compaction_right_after_one_has_one_live_summary() -> None:
    first = folded(SESSION, context_length=16_000)
    for window in (16_000, 200_000):
        again = midfold.compact(first.messages, context_length=window, force=True, state=first.state)
        assert len(handoff_texts(again.messages)) == 1
        assert any(message.get("content") == "Port the parser." for message in again.messages)


def test_15_the_bytes_of_a_message_do_not_depend_on_its_position() -> None:
    odd = b'{"role":"user", "content":"  spaces  kept \\u00e9 ", "x":1e-7}'
    rest = b",".join(json.dumps(message).encode() for message in work(0))
    for place in (0, -1):
        parts = [b'{"role":"user","content":"Go."}', rest, b'{"role":"assistant","content":"Yes."}']
        parts.insert(place if place == 0 else 2, odd)
        out = folded(b"[" + b",".join(parts) + b"]").messages
        assert odd in out


def test_16_whether_there_is_anything_to_compress_is_answered_truthfully() -> None:
    host = midfold.EngineHost(context_length=WINDOW)
    assert not host.has_content_to_compress([])
    assert not host.has_content_to_compress([system(), user("Hello.")])
    assert host.has_content_to_compress(SESSION)
    folded_once = host.compress(SESSION)
    nothing = [message for message in folded_once if message["role"] == "system" or recognise_dict(message)]
    assert not host.has_content_to_compress(nothing)


def recognise_dict(message: Any) -> bool:
    return recognise(midfold.read([message]).messages[0]) is not None


def test_17_results_without_an_id_do_not_survive_without_a_call() -> None:
    stray = {"role": "tool", "content": "a stray result"}
    result = folded([*SESSION, stray, user("Hm?"), stray, assistant("Yes.")])
    assert not any(message.get("content") == "a stray result" for message in result.messages)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Chinese", "我们需要修改解析器以便它可以读取所有文件并且写入报告。" * 60),
        ("base64", "iVBORw0KGgoAAAANSUhEUgAAAAUAAAAFCAYAAACNbyblAAAAHElEQVQI12P4" * 60),
        ("log", number_lines("2026-11-15T22:01:{n} INFO [worker-{n}] 0x7f3a{n} GET /api/v1/items?id={n} 200 13ms", 90)),
        ("JSON list", json.dumps([{"id": n, "name": f"item-{n}", "ok": True, "price": n * 1.25} for n in range(120)])),
    ],
)
def test_18_estimates_hold_against_a_real_tokenizer(name: str, text: str) -> None:
    exact = Tokenizer("o200k").count(text)
    assert 0.7 < midfold.Meter().counter.count(text) / exact < 1.5, name


def test_19_deciding_after_one_message_does_not_look_at_the_history() -> None:
    def calls_made(length: int) -> int:
        host = midfold.EngineHost(context_length=10_000_000)
        host.append([user(f"message {number}") for number in range(length)])
        new = [user("one more")]
        count = 0

        def profile(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event == "call"

        sys.setprofile(profile)
        host.append(new)
        host.should_compress()
        sys.setprofile(None)
        return count

    assert calls_made(20_000) == calls_made(1_000)


def test_21_the_summary_prompt_of_10_000_messages_is_bounded_by_the_window() -> None:
    prompts: list[int] = []

    def summarize(ask: midfold.SummaryRequest) -> str:
        prompts.append(len(ask.prompt()))
        return "## Goal\nx"

    midfold.compact([user("Go."), *work(0, 5_000, 100)], context_length=64_000, summarizer=summarize)
    assert prompts
    assert max(prompts) < 64_000 * 5
