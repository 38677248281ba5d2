from __future__ import annotations

from midfold import Message, Text, ToolCall, ToolResult, select_tail_by_budget
from midfold.compaction.boundary import (
    Layout,
    Plan,
    Protection,
    head_length,
    latest_human,
    latest_visible_answer,
    split_for_partial_compaction,
)
from midfold.compaction.handoff import filler, handoff
from midfold.transcript.laws import legal_cuts
from midfold.types import Opaque

SYSTEM = Message("system", (Text("rules"),))


def user(text: str = "ask") -> Message:
    return Message("user", (Text(text),))


def answer(text: str = "answer") -> Message:
    return Message("assistant", (Text(text),))


def call(name: str) -> Message:
    return Message("assistant", (ToolCall(name, "t", "{}"),))


def result(name: str) -> Message:
    return Message("tool", (ToolResult(name, (Text("r"),)),))


def steps(count: int) -> tuple[Message, ...]:
    return tuple(message for n in range(count) for message in (call(f"c{n}"), result(f"c{n}")))


def test_the_head_is_the_system_prompt_and_the_first_exchange_and_decays() -> None:
    messages = (SYSTEM, user(), answer(), user(), answer())
    cuts = legal_cuts(messages)
    assert head_length(messages, cuts, Protection(), 0) == 3
    assert head_length(messages, cuts, Protection(), 1) == 1
    assert head_length(messages, cuts, Protection(decay_head_after_first_compaction=False), 1) == 3
    assert head_length(messages[1:], legal_cuts(messages[1:]), Protection(), 0) == 2
    assert head_length(messages, cuts, Protection(protect_system_prompt=False, protect_first_n_messages=0), 1) == 0


def test_the_head_does_not_take_half_of_a_tool_group() -> None:
    messages = (SYSTEM, user(), call("a"), result("a"), answer())
    assert head_length(messages, legal_cuts(messages), Protection(), 0) == 2


def test_the_tail_is_chosen_by_tokens_with_a_floor_in_messages() -> None:
    messages = tuple(user(str(n)) for n in range(50))
    assert select_tail_by_budget(messages, 0, 100, 5, 1.5, [10] * 50) == 40
    assert select_tail_by_budget(messages, 0, 30, 20, 1.5, [10] * 50) == 30
    assert select_tail_by_budget(messages, 45, 1_000, 5, 1.5, [10] * 50) == 45


def test_one_oversized_message_is_admitted_up_to_the_soft_ceiling() -> None:
    messages = tuple(user(str(n)) for n in range(10))
    sizes = [10] * 7 + [60, 10, 10]
    assert select_tail_by_budget(messages, 0, 60, 1, 1.5, sizes) == 7
    assert select_tail_by_budget(messages, 0, 40, 1, 1.5, sizes) == 8


def test_a_huge_old_result_does_not_keep_everything_before_it() -> None:
    messages = tuple(user(str(n)) for n in range(30))
    sizes = [10] * 10 + [100_000] + [10] * 19
    assert select_tail_by_budget(messages, 0, 500, 5, 1.5, sizes) == 11


def test_the_latest_ask_far_back_is_pinned_and_everything_else_folded() -> None:
    messages = (SYSTEM, user("old"), answer(), user("the task"), *steps(60))
    plan = Layout(messages, [10] * len(messages), Protection(), 1, tail_tokens=200).plan()
    assert plan.head_end == 1
    assert plan.tail_start > 80
    assert 3 not in plan.fold()
    assert 1 in plan.fold()


def test_a_near_ask_makes_the_tail_grow_instead() -> None:
    messages = (SYSTEM, *steps(30), user("the task"), *steps(10))
    plan = Layout(messages, [10] * len(messages), Protection(protect_last_n=5), 1, tail_tokens=150).plan()
    assert plan.tail_start == 61
    assert plan.pinned == ()


def test_what_we_wrote_is_neither_ask_nor_answer() -> None:
    messages = (user("real"), answer("real"), handoff("## Goal\nx", "0" * 12, "user"), filler("0" * 12, "assistant"))
    assert latest_human(messages) == 0
    assert latest_visible_answer(messages) == 1


def test_signed_compaction_blocks_are_never_folded() -> None:
    sealed = Message("assistant", (Opaque("compaction", "{}"),))
    messages = (SYSTEM, user(), sealed, *steps(30))
    assert 2 not in Layout(messages, [10] * len(messages), Protection(), 1, tail_tokens=100).plan().fold()


def test_a_short_conversation_of_giants_still_has_a_fold() -> None:
    messages = (SYSTEM, user(), answer(), *steps(4), user("latest"), answer())
    plan = Layout(messages, [30_000] * len(messages), Protection(), 0, tail_tokens=20_000).useful_middle()
    assert plan.fold()
    assert len(messages) - plan.tail_start >= len(messages) // 2


def test_planning_is_deterministic() -> None:
    messages = (SYSTEM, user(), answer(), *steps(50), user(), answer())
    sizes = [(7 * n) % 50 + 1 for n in range(len(messages))]
    assert len({Layout(messages, sizes, Protection(), 0, tail_tokens=300).plan() for _ in range(5)}) == 1


def test_a_partial_split_keeps_the_last_exchanges_and_starts_at_a_user_turn() -> None:
    messages = (SYSTEM, user("1"), answer(), user("2"), *steps(2), answer(), user("3"), answer())
    head, tail = split_for_partial_compaction(messages, 2)
    assert tail[0].text == "2"
    assert head + tail == messages
    assert split_for_partial_compaction(messages, 9) == ((), messages)


def test_a_plan_lists_what_it_folds() -> None:
    assert Plan(1, 8, (range(3, 5),)).fold() == [1, 2, 5, 6, 7]
