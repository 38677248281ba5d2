from __future__ import annotations

import itertools

from midfold import Message, Text, ToolCall, ToolResult
from midfold.transcript.laws import is_human, legal_cuts, pair, violations
from midfold.types import Thinking, Transcript

USER = Message("user", (Text("ask"),))
ANSWER = Message("assistant", (Text("answer"),))
SYSTEM = Message("system", (Text("rules"),))


def calls(*ids: str) -> Message:
    return Message("assistant", tuple(ToolCall(call_id, "t", "{}") for call_id in ids))


def result(call_id: str) -> Message:
    return Message("tool", (ToolResult(call_id, (Text("r"),)),))


def test_no_cut_inside_a_batch_of_parallel_calls() -> None:
    messages = (USER, calls("a", "b"), result("a"), result("b"), ANSWER)
    assert legal_cuts(messages) == [0, 1, 4, 5]


def test_batches_in_a_row_may_be_cut_between() -> None:
    messages = (USER, calls("a"), result("a"), calls("b"), result("b"))
    assert legal_cuts(messages) == [0, 1, 3, 5]


def test_a_batch_of_several_items_is_whole() -> None:
    messages = (USER, calls("a"), calls("b"), result("a"), result("b"), ANSWER)
    assert legal_cuts(messages) == [0, 1, 5, 6]


def test_a_thought_of_its_own_stays_with_what_follows() -> None:
    thought = Message("assistant", (Thinking("hm"),))
    assert legal_cuts((USER, thought, ANSWER)) == [0, 1, 3]


def test_for_every_layout_of_up_to_six_messages_no_cut_separates_a_call_from_its_result() -> None:
    kinds = {"u": USER, "a": ANSWER, "c": calls("x"), "p": calls("x", "y"), "r": result("x"), "s": result("y")}
    checked = 0
    for size in range(1, 7):
        for layout in itertools.product(kinds, repeat=size):
            messages: Transcript = tuple(kinds[kind] for kind in layout)
            pairing = pair(messages)
            for cut in legal_cuts(messages):
                assert not any(call.message < cut <= answer.message for call, answer in pairing.answers.items())
                checked += 1
    assert checked > 100_000


def test_what_breaks_a_law_is_named() -> None:
    assert violations((SYSTEM, USER, calls("a"), result("a"), ANSWER)) == ()
    assert violations((SYSTEM, ANSWER)) == ("messages[1] is first but not from the user",)
    assert violations((USER, result("a"))) == ("messages[1] answers no call",)
    assert violations((USER, calls("a"), USER)) == ("messages[1] has a call without a result",)
    assert violations((USER, Message("user", (Text(" "),)), ANSWER)) == ("messages[1] is empty",)
    assert violations((USER, calls("a"))) == ()
    assert violations((USER, Message("assistant", ()))) == ()
    assert violations(()) == ()


def test_a_message_of_results_alone_is_no_human_turn() -> None:
    assert is_human(USER)
    assert not is_human(Message("user", (ToolResult("a", ()),)))
    assert is_human(Message("user", (ToolResult("a", ()), Text("and"))))
