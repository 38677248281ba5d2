"""conversation-compression-spec.md, head, tail, tool groups and anchors: each acceptance line as a test."""

from __future__ import annotations

import itertools
import json

import pytest

import midfold
from midfold.compaction.boundary import Protection, head_length
from midfold.compaction.handoff import recognise
from midfold.compaction.local.digest import PLACEHOLDER
from midfold.transcript.laws import legal_cuts, pair, violations
from midfold.transcript.message import Message, Text, ToolCall, ToolResult
from support import fixtures
from support.build import DIALOGUE, PRUNES, setting, tool_run, view
from support.fixtures import assistant, call, system, user

"""Digests alone are enough for forty calls of six hundred tokens under these settings."""


# Head


def test_the_first_compaction_keeps_the_opening_task_framing() -> None:
    messages = [
        system(),
        user("The task."),
        assistant("I see."),
        *tool_run(0, 120),
        user("And now?"),
        assistant("Now."),
    ]
    result = midfold.compact(messages, context_length=25_000)
    assert result.receipt.status == "compacted"
    assert result.messages[1:3] == messages[1:3]


def test_repeated_compactions_do_not_copy_the_first_request_again() -> None:
    messages = [system(), user("The very first request."), assistant("I see."), *tool_run(0, 120)]
    first = midfold.compact(messages, context_length=25_000)
    grown = [*first.messages, user("Another request."), assistant("Yes."), *tool_run(200, 120)]
    second = midfold.compact(grown, context_length=25_000, state=first.state)
    assert second.receipt.compaction_count == 2
    assert not any(message.get("content") == "The very first request." for message in second.messages)


def test_the_system_prompt_stays_protected_unless_the_caller_says_otherwise() -> None:
    messages = view([system(), *DIALOGUE])
    cuts = legal_cuts(messages)
    assert head_length(messages, cuts, Protection(), compactions=5) == 1
    assert head_length(messages, cuts, Protection(protect_system_prompt=False), compactions=5) == 0
    assert head_length(messages, cuts, Protection(protect_first_n_messages=5), compactions=0) == 5
    kept = Protection(decay_head_after_first_compaction=False)
    assert head_length(messages, cuts, kept, compactions=5) == 3


# Tail


def test_a_huge_old_result_does_not_force_preservation_of_all_recent_history() -> None:
    messages = view([user("Go."), *call(0, "t", {}, "x " * 90_000), *tool_run(1, 30)])
    start = midfold.select_tail_by_budget(messages, 0, 2_000, 3)
    assert 3 < start < len(messages) - 2


def test_one_oversized_message_is_admitted_up_to_the_soft_ceiling() -> None:
    sizes = [10, 10, 130, 10, 10]
    messages = view(DIALOGUE[:5])
    assert midfold.select_tail_by_budget(messages, 0, 100, 1, 1.5, sizes) == 2
    assert midfold.select_tail_by_budget(messages, 0, 100, 1, 1.2, sizes) == 3


def test_the_message_floor_beats_the_budget() -> None:
    messages = view(DIALOGUE)
    assert midfold.select_tail_by_budget(messages, 0, 1, 7) == len(messages) - 7
    assert midfold.select_tail_by_budget(messages, 12, 1, 7) == 12


def test_envelopes_and_hidden_fields_count_towards_the_tail() -> None:
    plain = view([assistant("x")])
    hidden = view([{"role": "assistant", "content": "x", "reasoning_content": "because " * 50}])
    calls = view([call(0, "terminal", {}, "")[0]])
    meter = midfold.Meter()
    assert meter.units(hidden[0]) > meter.units(plain[0]) + 40
    assert meter.units(calls[0]) >= 12


def test_a_short_transcript_does_not_become_a_noop_compaction() -> None:
    long = [turn for n in range(20) for turn in (user(f"Question {n}?"), assistant(f"Answer {n}."))]
    seen = set()
    for count in range(1, len(long) + 1):
        given = long[:count]
        result = midfold.compact(given, context_length=64_000, force=True)
        receipt = result.receipt
        seen.add(receipt.status)
        if result.changed:
            assert receipt.new_tokens < receipt.old_tokens
            assert (receipt.persistence, result.state.count) == ("in_place_archive", 1)
        else:
            assert result.messages is given
            assert (receipt.persistence, result.state.count) == ("no_persistence_change", 0)
            assert receipt.reason
    assert seen == {"unchanged", "compacted"}


def test_the_selected_boundary_is_deterministic() -> None:
    messages = [system(), user("Go."), *tool_run(0, 120)]
    copies = [midfold.compact(json.loads(json.dumps(messages)), context_length=25_000) for _ in range(3)]
    assert len({json.dumps(copy.messages) for copy in copies}) == 1
    assert len({(copy.boundary.start, copy.boundary.end) for copy in copies if copy.boundary}) == 1


# Tool groups


def small_transcripts() -> list[tuple[Message, ...]]:
    """Return every layout of up to six messages of user messages, answers, single and parallel calls, and results."""
    ask, said = Message("user", (Text("ask"),)), Message("assistant", (Text("said"),))
    one = Message("assistant", (ToolCall("a", "t", "{}"),))
    two = Message("assistant", (ToolCall("a", "t", "{}"), ToolCall("b", "t", "{}")))
    first, second = Message("tool", (ToolResult("a", (Text("A"),)),)), Message("tool", (ToolResult("b", (Text("B"),)),))
    kinds = (ask, said, one, two, first, second)
    return [layout for size in range(1, 7) for layout in itertools.product(kinds, repeat=size)]


def test_no_cut_falls_inside_a_tool_group_in_any_layout_of_up_to_six_messages() -> None:
    checked = 0
    for messages in small_transcripts():
        if violations(messages) or pair(messages).waiting:
            continue
        checked += 1
        for cut in legal_cuts(messages):
            for side in (messages[:cut], messages[cut:]):
                assert not [found for found in violations(side) if "call" in found], (messages, cut)
    assert checked > 200


def test_no_cut_falls_inside_a_batch_that_is_still_waiting() -> None:
    one, two = (Message("assistant", (ToolCall(name, "t", "{}"),)) for name in "ab")
    messages = (Message("user", (Text("ask"),)), one, Message("assistant", (Text("and"),)), two)
    assert legal_cuts(messages) == [0, 1, 4]


@pytest.mark.parametrize("policy", ["bridge", "strip"])
def test_no_output_has_a_result_without_its_call_or_a_call_without_its_result(policy: str) -> None:
    broken = [user("Go."), {"role": "tool", "tool_call_id": "nowhere", "content": "?"}, *tool_run(0, 120)]
    broken += [call(900, "t", {}, "")[0], user("Stop."), assistant("Stopped."), user("Go on."), *tool_run(300, 2)]
    result = midfold.compact(broken, context_length=25_000, config=setting(orphan_calls=policy))
    assert result.receipt.status == "compacted"
    assert violations(view(result.messages)) == ()
    assert result.receipt.repairs


def test_sanitization_happens_after_a_prune_only_outcome_too() -> None:
    broken = [user("Go."), assistant("Yes."), *tool_run(0, 40), {"role": "tool", "tool_call_id": "no", "content": "?"}]
    result = midfold.compact([*broken, user("Next.")], **PRUNES)
    assert result.receipt.status == "pruned"
    assert violations(view(result.messages)) == ()


def test_parallel_calls_keep_all_their_results() -> None:
    messages = [user("Go.")]
    for number in range(40):
        calls = [call(10 * number + k, "terminal", {"command": f"{k}"}, "r " * 150) for k in range(4)]
        together = [made["tool_calls"][0] for made, _ in calls]
        messages += [{"role": "assistant", "content": None, "tool_calls": together}, *(result for _, result in calls)]
    result = midfold.compact(messages, context_length=16_000, config=setting(protect_last_n=3))
    assert result.changed
    assert violations(view(result.messages)) == ()


# Anchors


@pytest.mark.parametrize("protect_last_n", [1, 4, 20])
def test_the_latest_ask_and_the_latest_answer_stay_outside_the_fold(protect_last_n: int) -> None:
    messages = [system(), *DIALOGUE, user("THE ASK"), assistant("THE ANSWER"), *tool_run(0, 120)]
    result = midfold.compact(messages, context_length=16_000, config=setting(protect_last_n=protect_last_n))
    assert result.receipt.status == "compacted"
    assert any(message is messages[-242] for message in result.messages)
    assert any(message is messages[-241] for message in result.messages)
    assert messages[-242]["content"] == "THE ASK"


def test_a_blank_user_message_is_not_the_latest_ask() -> None:
    messages = [system(), user("first"), assistant("ok"), user("THE ASK"), *tool_run(0, 60)]
    messages += [user("  "), *tool_run(100, 10, 10)]
    result = midfold.compact(messages, context_length=16_000, config=setting(protect_last_n=4))
    assert any(message.get("content") == "THE ASK" for message in result.messages)


def test_generated_summaries_are_excluded_from_the_search_for_the_latest_ask() -> None:
    messages = [system(), user("THE ASK"), *tool_run(0, 120)]
    first = midfold.compact(messages, context_length=25_000, config=setting(protect_last_n=4))
    second = midfold.compact(
        [*first.messages, *tool_run(200, 120)], context_length=25_000, config=setting(protect_last_n=4)
    )
    generated = [recognise(message) for message in view(second.messages)]
    assert [found.kind for found in generated if found] == ["fold", "bridge"]
    assert sum(message.get("content") == "THE ASK" for message in second.messages) == 1
    assert second.receipt.boundary is not None
    assert second.receipt.boundary.pinned


def test_old_results_above_200_characters_only() -> None:
    messages = [user("Go."), assistant("Yes."), *call(0, "t", {}, "x" * 200), *call(1, "t", {}, "y" * 201)]
    result = midfold.compact(
        [*messages, *tool_run(2, 40)],
        context_length=64_000,
        force=True,
        config=setting(protect_last_n=4, prune="placeholder"),
    )
    short, long = itertools.islice(fixtures.tool_results(result.messages), 2)
    assert short == "x" * 200
    assert long == PLACEHOLDER
