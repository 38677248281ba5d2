from __future__ import annotations

import time

import pytest

from midfold import Message, Text, ToolCall, ToolResult
from midfold.transcript.laws import Place, pair


def calls(*ids: str) -> Message:
    return Message("assistant", tuple(ToolCall(call_id, "t", "{}") for call_id in ids))


def result(call_id: str) -> Message:
    return Message("tool", (ToolResult(call_id, (Text("r"),)),))


def test_parallel_results_find_their_calls_in_any_order() -> None:
    pairing = pair((calls("a", "b"), result("b"), result("a")))
    assert pairing.answers == {Place(0, 1): Place(1, 0), Place(0, 0): Place(2, 0)}
    assert pairing.calls()[Place(1, 0)] == Place(0, 1)
    assert not pairing.unanswered
    assert not pairing.orphans


def test_an_id_used_twice_is_paired_inside_each_batch() -> None:
    pairing = pair((calls("a"), result("a"), calls("a"), result("a")))
    assert pairing.answers == {Place(0, 0): Place(1, 0), Place(2, 0): Place(3, 0)}
    assert pairing.reused == (Place(2, 0),)


def test_a_call_that_was_lost_before_an_answered_one_waits_no_longer() -> None:
    pairing = pair((calls("lost"), calls("b"), result("b")))
    assert (pairing.unanswered, pairing.waiting) == ((Place(0, 0),), ())


def test_an_id_used_twice_in_one_batch_is_answered_in_order() -> None:
    pairing = pair((calls("a", "a"), result("a"), result("a")))
    assert pairing.answers == {Place(0, 0): Place(1, 0), Place(0, 1): Place(2, 0)}


def test_a_result_does_not_answer_a_call_of_an_earlier_batch() -> None:
    pairing = pair((calls("a"), result("x"), calls("b"), result("a"), result("b")))
    assert pairing.orphans == (Place(1, 0), Place(3, 0))
    assert pairing.unanswered == (Place(0, 0),)


def test_a_result_before_its_call_is_an_orphan_and_the_call_unanswered() -> None:
    pairing = pair((result("a"), calls("a")))
    assert pairing.orphans == (Place(0, 0),)
    assert pairing.waiting == (Place(1, 0),)


def test_calls_and_results_without_ids_are_paired_in_order() -> None:
    pairing = pair((calls("", ""), result(""), result(""), result("")))
    assert pairing.answers == {Place(0, 0): Place(1, 0), Place(0, 1): Place(2, 0)}
    assert pairing.orphans == (Place(3, 0),)


def test_calls_of_one_batch_may_stand_in_several_items() -> None:
    pairing = pair((calls("a"), Message("assistant", (Text("and"),)), calls("b"), result("a"), result("b")))
    assert len(pairing.answers) == 2


def test_the_newest_calls_are_waiting_until_somebody_goes_on_without_them() -> None:
    assert pair((calls("a"), calls("b"))).waiting == (Place(0, 0), Place(1, 0))
    half = pair((calls("a", "b"), result("a")))
    assert (half.waiting, half.unanswered) == ((Place(0, 1),), ())
    human = Message("user", (Text("stop"),))
    assert pair((calls("a"), human)).unanswered == (Place(0, 0),)
    assert pair((calls("a", "b"), result("a"), Message("assistant", (Text("so"),)))).unanswered == (Place(0, 1),)


def test_a_result_without_an_id_answers_the_oldest_open_call() -> None:
    assert pair((calls("a"), result(""))).answers == {Place(0, 0): Place(1, 0)}


@pytest.mark.parametrize("ids", ["own", "none", "one"])
def test_pairing_takes_time_in_proportion_to_the_calls(ids: str) -> None:
    """Regression: a message of 40,000 calls took minutes, because all open calls were searched for each result."""
    names = {"own": [f"c{number}" for number in range(40_000)], "one": ["c"] * 40_000}
    names["none"] = names["own"]
    answers = [result("" if ids == "none" else name) for name in names[ids]]
    begun = time.process_time()
    pairing = pair((calls(*names[ids]), *answers))
    assert time.process_time() - begun < 4
    assert len(pairing.answers) == 40_000
    assert pairing.answers[Place(0, 7)] == Place(8, 0)
