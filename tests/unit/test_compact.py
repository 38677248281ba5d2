"""`compact()`: every format in, the same format out, with a receipt."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

import midfold
from midfold.compaction.handoff import SYSTEM_NOTE, recognise
from midfold.compaction.receipt import receipt_schema
from midfold.compaction.request import CUT_OUT, STAYS_AGAIN
from midfold.errors import SummaryFailed
from midfold.transcript.laws import violations
from support.convert import to_anthropic, to_responses

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "coding-session.json"
CHAT = json.loads(EXAMPLE.read_text(encoding="utf-8"))
SYSTEM = {"role": "system", "content": "You are careful."}


def shapes() -> dict[str, Any]:
    messages = [SYSTEM, *CHAT["messages"]]
    return {
        "chat list": messages,
        "chat body": {"model": "gpt-5.5", "messages": messages},
        "anthropic body": to_anthropic(messages),
        "responses body": to_responses(messages),
    }


@pytest.mark.parametrize("as_bytes", [False, True])
@pytest.mark.parametrize("shape", sorted(shapes()))
def test_each_shape_comes_back_folded_in_the_same_shape(shape: str, as_bytes: bool) -> None:
    given = shapes()[shape]
    before = copy.deepcopy(given)
    source = json.dumps(given).encode() if as_bytes else given
    result = midfold.compact(source, context_length=32_000)
    assert result.receipt.status == "compacted"
    assert given == before
    written = json.loads(result.messages) if as_bytes else result.messages
    assert type(written) is type(given)
    if isinstance(given, dict):
        assert set(written) == set(given)
    again = midfold.read(written)
    assert violations(again.messages) == ()
    assert again.problems == ()
    assert result.receipt.new_tokens < result.receipt.threshold_tokens
    assert midfold.Meter().count(again.messages).tokens < midfold.Meter().count(midfold.read(given).messages).tokens / 2


def test_below_the_threshold_the_very_same_object_comes_back_and_the_receipt_says_why() -> None:
    messages = CHAT["messages"]
    result = midfold.compact(messages, context_length=200_000)
    assert result.messages is messages
    assert result.receipt.status == "unchanged"
    assert "below the threshold of 100,000" in result.receipt.reason
    assert result.receipt.persistence == "no_persistence_change"
    assert not result.archive


def test_the_tail_is_byte_identical_and_the_head_stays() -> None:
    source = json.dumps([SYSTEM, *CHAT["messages"]]).encode()
    result = midfold.compact(source, context_length=32_000)
    boundary = result.boundary
    assert boundary is not None
    old = midfold.read(source).messages
    kept = result.transcript[-(len(old) - boundary.end) :]
    assert [bytes(message.wire) for message in kept] == [bytes(message.wire) for message in old[boundary.end :]]


def test_the_note_is_appended_to_the_system_prompt_once() -> None:
    first = midfold.compact([SYSTEM, *CHAT["messages"]], context_length=32_000)
    assert first.messages[0]["content"] == f"You are careful.\n\n{SYSTEM_NOTE}"
    second = midfold.compact(first.messages + CHAT["messages"], context_length=32_000, state=first.state)
    assert second.receipt.status == "compacted"
    assert second.messages[0]["content"].count(SYSTEM_NOTE) == 1
    beside = midfold.compact(to_anthropic([SYSTEM, *CHAT["messages"]]), context_length=32_000)
    assert [block["text"] for block in beside.messages["system"]] == ["You are careful.", SYSTEM_NOTE]
    given = midfold.compact(CHAT["messages"], system="Be kind.", context_length=32_000)
    assert given.system == f"Be kind.\n\n{SYSTEM_NOTE}"


def test_everything_folded_can_be_had_back_by_its_handle() -> None:
    messages = CHAT["messages"]
    result = midfold.compact(messages, context_length=32_000)
    boundary = result.boundary
    assert boundary is not None
    originals = result.archive.originals(result.receipt.fold)
    assert originals == messages[boundary.start : boundary.end]
    assert all(new is old for new, old in zip(originals, messages[boundary.start : boundary.end], strict=True))


def test_a_second_compaction_updates_the_summary_and_leaves_one_handoff() -> None:
    first = midfold.compact(CHAT["messages"], context_length=32_000)
    for state in (first.state, json.loads(json.dumps(midfold_state(first.state))), None):
        second = midfold.compact(first.messages + CHAT["messages"], context_length=32_000, state=state)
        handoffs = [found for message in second.transcript if (found := recognise(message)) and found.kind == "fold"]
        assert len(handoffs) == 1
        assert second.state.count == 2
        assert second.receipt.summary.updated_previous
        assert midfold.read(second.messages).messages[0].role == "user"


def midfold_state(state: midfold.CompactionState) -> dict[str, Any]:
    import msgspec

    value: dict[str, Any] = msgspec.to_builtins(state)
    return value


def test_the_state_of_another_conversation_is_not_used() -> None:
    other = midfold.compact(CHAT["messages"], context_length=32_000)
    fresh = [{"role": "user", "content": "hello " * 9_000}, {"role": "assistant", "content": "hi " * 9_000}] * 3
    result = midfold.compact(fresh, context_length=32_000, state=other.state)
    assert other.state.summary not in json.dumps(result.messages)
    assert "Ignored the compaction state: it belongs to another conversation." in result.receipt.notices


def test_a_target_folds_to_that_size() -> None:
    for target in (20_000, 8_000, 4_000):
        result = midfold.compact(CHAT["messages"], context_length=200_000, target_tokens=target)
        assert result.changed
        assert result.receipt.new_tokens <= target * 1.1
        assert violations(result.transcript) == ()


def test_keeping_exchanges_folds_everything_before_them() -> None:
    humans = [message for message in CHAT["messages"] if message["role"] == "user"]
    result = midfold.compact(CHAT["messages"], context_length=200_000, keep_last_exchanges=2)
    kept = [message for message in result.messages if message in humans]
    assert kept[-2:] == humans[-2:]
    place = CHAT["messages"].index(humans[-2])
    assert result.messages[-(len(CHAT["messages"]) - place) :] == CHAT["messages"][place:]


def test_a_model_summary_is_used_framed_and_redacted() -> None:
    seen: list[midfold.SummaryRequest] = []

    def summarize(ask: midfold.SummaryRequest) -> str:
        seen.append(ask)
        return "## Goal\nFix git ignore\n\n## Critical Context\nAPI key sk-ant-api03-" + "A1b2" * 24

    result = midfold.compact(CHAT["messages"], context_length=32_000, summarizer=summarize, focus="git")
    handoff = next(found for message in result.transcript if (found := recognise(message)))
    assert "Fix git ignore" in handoff.body
    assert "sk-ant" not in handoff.body
    assert result.receipt.summary.source == "model"
    assert "git" in seen[0].prompt()
    assert "[RESULT" in seen[0].prompt()


@pytest.mark.parametrize("failure", ["auth", "network"])
def test_auth_and_network_failures_leave_the_conversation_as_it_was(failure: Any) -> None:
    def summarize(ask: midfold.SummaryRequest) -> str:
        raise SummaryFailed(failure)

    result = midfold.compact(CHAT["messages"], context_length=32_000, summarizer=summarize)
    assert result.receipt.status == "aborted"
    assert failure in result.receipt.reason
    assert result.messages is CHAT["messages"]


@pytest.mark.parametrize("answer", [None, "", "   ", {"text": "x"}, 5, RuntimeError("boom"), SummaryFailed("timeout")])
def test_other_failures_use_the_local_summary_and_say_so(answer: Any) -> None:
    def summarize(ask: midfold.SummaryRequest) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    result = midfold.compact(CHAT["messages"], context_length=32_000, summarizer=summarize)
    assert result.receipt.status == "compacted"
    assert result.receipt.summary.source == "local"
    assert result.receipt.summary.confidence == "lower"
    assert result.receipt.summary.failure
    config = midfold.load_config(environ={}, overrides={"compression.lossy_fallback": False}).config
    refused = midfold.compact(CHAT["messages"], context_length=32_000, summarizer=summarize, config=config)
    assert refused.receipt.status == "aborted"


def test_the_receipt_is_json_fits_its_schema_and_shows_no_content_beside_the_trail() -> None:
    result = midfold.compact(CHAT["messages"], context_length=32_000)
    receipt = json.loads(json.dumps(result.receipt.to_dict()))
    jsonschema.validate(receipt, receipt_schema())
    assert receipt.pop("trail")["files"]
    text = json.dumps(receipt)
    for message in CHAT["messages"]:
        content = message.get("content") or ""
        if len(content) > 30:
            assert content[:30] not in text


def test_a_giant_result_in_the_tail_is_spilled_to_a_handle() -> None:
    messages = copy.deepcopy(CHAT["messages"])
    place = max(index for index, message in enumerate(messages) if message["role"] == "tool") - 4
    giant = next(index for index in range(place, 0, -1) if messages[index]["role"] == "tool")
    messages[giant]["content"] = "log line\n" * 60_000
    result = midfold.compact(messages, context_length=64_000)
    assert result.receipt.new_tokens <= result.receipt.threshold_tokens
    spills = [digest for digest in result.receipt.digests if digest.kind == "spill"]
    assert [spill.message for spill in spills] == [giant]
    assert result.archive.originals(spills[0].handle) == [messages[giant]]


def test_a_message_that_makes_landing_impossible_is_named() -> None:
    messages = [*CHAT["messages"], {"role": "user", "content": "word " * 60_000}]
    result = midfold.compact(messages, context_length=64_000)
    assert any("tokens and must stay" in reason for reason in result.receipt.impossible)


LONG_SYSTEM = {"role": "system", "content": "You are a careful engineer. " * 900}


def test_cache_hints_are_planned_and_can_be_written() -> None:
    body = {"model": "anthropic/claude-sonnet-4.5", "messages": [LONG_SYSTEM, *CHAT["messages"]]}
    result = midfold.compact(body, context_length=64_000)
    assert result.changed
    hints = result.cache_hints
    last = len(result.transcript) - 1
    assert hints[0].placement == "system"
    assert hints[-1].message_index == last and hints[-1].reason.startswith("end of the request")
    assert any("handoff" in hint.reason for hint in hints)
    from midfold.cache.markers import mark

    marked = mark(midfold.read(result.messages), hints)
    assert json.dumps(marked).count("cache_control") == len(hints) == 4


@pytest.mark.parametrize(
    ("model", "settings", "reasons"),
    [
        (None, {}, {"end of the request: the next request reads it"}),
        (None, {"strategy": "system_and_3"}, {"system prompt", "rolling window"}),
        ("claude-sonnet-4-5", {}, {"end of the request: the next request reads it"}),
        ("claude-sonnet-4-5", {"enabled": "off"}, set()),
        ("deepseek-chat", {}, set()),
        ("gpt-4o", {}, {"requests with the same instructions and tools go to the same machine"}),
    ],
)
def test_cache_hints_follow_the_settings_and_the_model(
    model: str | None, settings: dict[str, Any], reasons: set[str]
) -> None:
    from midfold.config.schema import Config, PromptCaching

    config = Config(prompt_caching=PromptCaching(**settings))
    result = midfold.compact([LONG_SYSTEM, *CHAT["messages"]], model=model, context_length=64_000, config=config)
    found = {hint.reason for hint in result.cache_hints}
    assert found >= reasons
    assert bool(found) is bool(reasons)


def test_the_same_input_gives_the_same_bytes_in_another_process() -> None:
    import subprocess
    import sys

    code = (
        "import json, sys, midfold; r = midfold.compact(open(sys.argv[1], 'rb').read(), context_length=32_000);"
        "sys.stdout.buffer.write(r.messages)"
    )
    command = [sys.executable, "-c", code, str(EXAMPLE)]
    outputs = {
        subprocess.run(command, env={"PYTHONHASHSEED": seed}, capture_output=True, check=True).stdout
        for seed in ("1", "77")
    }
    assert outputs == {midfold.compact(EXAMPLE.read_bytes(), context_length=32_000).messages}


def test_keeping_more_exchanges_than_came_after_a_fold_changes_nothing_and_leaves_one_handoff() -> None:
    first = midfold.compact(CHAT["messages"], context_length=32_000)
    again = midfold.compact(first.messages, context_length=32_000, state=first.state, keep_last_exchanges=20)
    assert again.messages is first.messages
    assert "nothing between head and tail" in again.receipt.reason


def test_the_only_ask_of_a_long_run_survives_every_compaction_verbatim() -> None:
    ask = {"role": "user", "content": "Port the parser to Rust and keep the tests green."}
    step = CHAT["messages"]
    work = [message for message in step if message["role"] != "user"]
    messages: list[Any] = [SYSTEM, ask, *work]
    state = None
    for _ in range(4):
        result = midfold.compact(messages, context_length=32_000, state=state)
        assert result.receipt.status == "compacted"
        assert [message for message in result.messages if message == ask] == [ask]
        assert violations(result.transcript) == ()
        messages, state = [*result.messages, *work], result.state
    assert state is not None
    assert state.count == 4


def test_what_must_stay_can_be_set_by_the_names_of_the_specification() -> None:
    few = midfold.Protection(protect_first_n_messages=0, protect_last_n=2, anchor_latest_visible_assistant=False)
    usual = midfold.compact(CHAT["messages"], context_length=32_000)
    fewer = midfold.compact(CHAT["messages"], context_length=32_000, protection=few)
    assert fewer.boundary is not None
    assert usual.boundary is not None
    assert fewer.boundary.start == 0
    assert fewer.receipt.new_messages < usual.receipt.new_messages


def paragraphs(count: int, words: int) -> list[dict[str, Any]]:
    sides = ("user", "assistant")
    return [{"role": sides[at % 2], "content": f"part {at} " + f"word{at} " * words} for at in range(count)]


def test_the_budget_of_a_summary_is_no_more_than_three_fifths_of_what_it_replaces() -> None:
    asked: list[tuple[int, int]] = []

    def summarise(ask: midfold.SummaryRequest) -> str:
        asked.append((ask.budget_tokens, sum(len(message.text) for message in ask.messages)))
        return "## Goal\nGo on.\n\n## Progress\n### Done\n- all of it"

    for count in (26, 40, 80):
        midfold.compact(paragraphs(count, 100), context_length=200_000, force=True, summarizer=summarise)
    budgets = [budget for budget, _ in asked]
    assert budgets == sorted(budgets) and budgets[0] < budgets[-1] == 2_000
    assert all(budget * 4 <= characters for budget, characters in asked)


def budgets_of(messages: list[Any], window: int) -> list[int]:
    """Return the summary budgets of a conversation that grows message by message."""
    budgets: list[int] = []

    def summarise(ask: midfold.SummaryRequest) -> str:
        budgets.append(ask.budget_tokens)
        lines = (f"- finding {number} of fold {len(budgets)}" for number in range(ask.budget_tokens // 9))
        return "## Goal\nGo on.\n\n## Progress\n### Done\n" + "\n".join(lines)

    view: list[Any] = []
    state = None
    for at, message in enumerate(messages):
        view.append(message)
        done = midfold.compact(
            view, context_length=window, state=state, summarizer=summarise, clock=lambda at=at: at * 1e3
        )
        view, state = list(done.messages), done.state
    return budgets


def test_a_summary_that_is_updated_is_not_asked_to_shrink() -> None:
    budgets = budgets_of(paragraphs(180, 130), 16_000)
    assert len(budgets) > 10 and min(budgets[4:]) >= 1_600


def test_a_longer_summary_takes_no_room_that_the_next_turns_need() -> None:
    small, large = budgets_of(paragraphs(400, 60), 24_000), budgets_of(paragraphs(200, 190), 24_000)
    assert max(small) == 3_200
    assert len(large) > 4 and max(large) < 2_600


def readings(count: int, lines: int) -> list[dict[str, Any]]:
    """Return a user message, and files that are read one by one."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": "read them all"}]
    for at in range(count):
        call = {
            "id": f"c{at}",
            "type": "function",
            "function": {"name": "read", "arguments": f'{{"path": "f{at}.py"}}'},
        }
        text = "\n".join(f"name_{at}_{line} = {line}" for line in range(lines))
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{at}", "content": text})
    return messages


def test_older_half_of_a_short_conversation_is_summarised_before_its_results_are_shown_by_their_ends() -> None:
    messages = readings(8, 120)
    done = midfold.compact(messages, context_length=16_000)
    assert done.receipt.status == "compacted" and done.receipt.summary.source == "local"
    assert [digest for digest in done.receipt.digests if digest.kind == "spill"] == []
    kept = done.messages[-8:]
    assert kept == messages[-8:]
    assert done.messages[:1] == messages[:1] and len(done.messages) < len(messages)
    assert any("instead of the 20 of protect_last_n" in notice for notice in done.receipt.notices)


def test_a_model_is_told_which_results_lose_their_middle_and_gets_room_for_them() -> None:
    prompts: list[str] = []
    budgets: list[int] = []

    def summarise(ask: midfold.SummaryRequest) -> str:
        prompts.append(ask.prompt())
        budgets.append(ask.budget_tokens)
        return "## Goal\nGo on.\n\n## Progress\n### Done\n- all of it"

    messages = [*readings(2, 20), *readings(2, 500)[1:]]
    done = midfold.compact(messages, context_length=16_000, summarizer=summarise)
    assert any(digest.kind == "spill" for digest in done.receipt.digests)
    (prompt,), (budget,) = prompts, budgets
    cut = prompt.partition("<stays>")[2].split(CUT_OUT)[1].partition(STAYS_AGAIN)[0]
    assert "name_0_250 = 250" in cut and "name_0_250 = 250" not in str(done.messages)
    assert budget == 1_600


def test_a_fold_that_leaves_hardly_any_room_is_a_strike() -> None:
    def summarise(ask: midfold.SummaryRequest) -> str:
        return "## Goal\nGo on.\n\n## Progress\n### Done\n" + "- and more\n" * (ask.budget_tokens // 4)

    crowded = paragraphs(44, 138)
    tight = midfold.compact(crowded, context_length=23_000, summarizer=summarise)
    protection = midfold.Protection(protect_last_n=4)
    roomy = midfold.compact(crowded, context_length=23_000, protection=protection, summarizer=summarise)
    assert tight.changed and tight.receipt.new_tokens < tight.receipt.old_tokens * 0.9
    assert tight.receipt.new_tokens > tight.receipt.threshold_tokens * 0.9
    assert tight.state.ineffective == 1 and tight.state.ineffective_tokens == tight.receipt.new_tokens
    assert roomy.changed and roomy.state.ineffective == 0


def test_where_the_last_messages_do_not_fit_those_that_stay_leave_room_for_some_turns() -> None:
    sizes = []
    for words in (165, 190, 230, 300):
        done = midfold.compact(paragraphs(44, words), context_length=23_000)
        assert any("instead of the 20 of protect_last_n" in notice for notice in done.receipt.notices)
        assert 5 < done.receipt.new_messages < 20
        sizes.append(done.receipt.new_tokens)
    assert max(sizes) <= 11_500 * 0.7


def test_few_messages_that_leave_no_room_stay_as_long_as_they_fit() -> None:
    giants = [*paragraphs(20, 100), *paragraphs(2, 1_650)]
    done = midfold.compact(giants, context_length=23_000)
    assert done.changed and 11_500 * 0.7 < done.receipt.new_tokens < 11_500
    assert list(done.messages)[-4:] == giants[-4:]
