from __future__ import annotations

from typing import Any

from midfold.lab.retention_score import HORIZON, Need, needs_at
from midfold.transcript.document import read
from support.fixtures import assistant, call, user

PAST = [user("The harbour gateway listens on 48213, says the mayor."), assistant("Noted.")]


def needs(future: list[dict[str, Any]], past: list[dict[str, Any]] = PAST, **options: Any) -> dict[str, Need]:
    found = needs_at(read(past).messages, read(future).messages, **options)
    return {need.fact: need for need in found}


def test_a_fact_in_tool_arguments_is_an_action_fact_and_in_text_a_reply_fact() -> None:
    assert needs(call(1, "connect", {"port": 48213}, "ok"))["48213"].action
    assert not needs([assistant("It is 48213.")])["48213"].action


def test_a_fact_that_a_user_or_a_tool_mentions_first_after_the_cut_is_not_needed() -> None:
    assert needs([user("Use 48213."), assistant("48213 it is.")]) == {}
    assert needs([*call(1, "look", {"at": "it"}, "48213"), assistant("48213 it is.")]) == {}


def test_the_first_use_decides_what_kind_of_need_it_is_and_which_step_has_it() -> None:
    found = needs([user("Well?"), assistant("48213"), *call(1, "connect", {"port": 48213}, "ok")])
    assert (found["48213"].action, found["48213"].step) == (False, 1)


def test_a_fact_the_past_does_not_hold_is_not_needed() -> None:
    assert needs([assistant("It is 48214.")]) == {}


def test_generic_facts_are_not_needed() -> None:
    past = [user("Run pytest --verbose with os.path.join on 48213.")]
    future = [assistant("Ran --verbose and os.path.join on 48213.")]
    assert list(needs(future, past)) == ["48213"]
    assert needs(future, past, generic={"48213"}) == {}


def test_names_of_tools_and_arguments_are_not_written_by_anybody() -> None:
    past = call(0, "read_file", {"file_path": "x"}, "nothing")
    assert needs(call(1, "read_file", {"file_path": "y"}, "nothing"), past) == {}


def test_uses_beyond_the_horizon_do_not_count() -> None:
    wait = [user("Go on.")] * (HORIZON - 1)
    assert list(needs([*wait, assistant("48213")])) == ["48213"]
    assert needs([*wait, user("Go on."), assistant("48213")]) == {}


def test_a_fact_is_far_if_it_was_last_mentioned_more_than_30_per_cent_of_the_past_ago() -> None:
    rest = [assistant("word " * 40)] * 5
    assert needs([assistant("48213")], [*PAST, *rest])["48213"].far
    assert not needs([assistant("48213")], [*rest, *PAST])["48213"].far


def test_hard_facts_are_paths_ids_hashes_urls_and_numbers() -> None:
    past = [user("Look at a/b_c.py, 48213, HarbourGate and MAX_SHIPS.")]
    found = needs([assistant("I saw a/b_c.py, 48213, HarbourGate and MAX_SHIPS.")], past)
    assert {fact for fact, need in found.items() if need.hard} == {"a/b_c.py", "48213"}
