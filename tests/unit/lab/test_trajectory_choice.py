"""Choice of the folded middle turns: the first ones, unless later turns keep using their content."""

from __future__ import annotations

import json

from midfold.lab.trajectory_plan import TrajectoryPlan, plan_trajectory
from midfold.lab.trajectory_records import open_record
from midfold.lab.trajectory_settings import TrajectorySettings
from support.trajectories import Words, turn, words

SETTINGS = TrajectorySettings(target_tokens=100, summary_tokens=10, protect_last=2, turn_tokens=0, tokenizer="estimate")
HEAD = [("human", words(5)), ("gpt", words(5)), ("tool", words(5))]
TAIL = [("gpt", words(5)), ("tool", words(5))]


SOURCE = [("gpt", words(1)), ("tool", f"src/session_store.py holds lock_timeout {words(3)}")]


def step(said: str = "", seen: str = "") -> list[tuple[str, str]]:
    """Return a call and its result, ten words each."""
    return [("gpt", f"{said} {words(10 - len(said.split()))}"), ("tool", f"{seen} {words(10 - len(seen.split()))}")]


def planned(*steps: list[tuple[str, str]], settings: TrajectorySettings = SETTINGS) -> TrajectoryPlan:
    turns = [turn(*item) for item in [*HEAD, *(item for one in steps for item in one), *TAIL]]
    return plan_trajectory(
        open_record(json.dumps({"conversations": turns}).encode(), Words(), settings.turn_tokens), settings
    )


def test_the_fold_begins_with_the_middle_if_later_turns_need_nothing_of_it() -> None:
    assert planned(*[step()] * 8).spans == (range(3, 13),)


def test_the_fold_begins_later_where_later_turns_use_what_the_first_ones_say() -> None:
    user = step(said="set lock_timeout in src/session_store.py")
    made = planned(SOURCE, *[step()] * 6, user)
    assert made.spans == (range(5, 15),)
    assert made.kept_tokens == 25 + 7 + 2 * 20


def test_newest_turns_are_not_given_up_for_what_they_say_themselves() -> None:
    again = step(seen="src/session_store.py holds lock_timeout")
    user = step(said="set lock_timeout in src/session_store.py")
    assert planned(SOURCE, *[step()] * 5, again, user).spans == (range(3, 13),)


def test_a_name_that_the_protected_turns_say_speaks_for_nothing() -> None:
    steps = [[("gpt", words(1)), ("tool", f"see word_one {words(5)}")], *[step()] * 6, step(said="use word_one")]
    head = [("human", "word_one " + words(4)), *HEAD[1:]]
    turns = [turn(*item) for item in [*head, *(item for one in steps for item in one), *TAIL]]
    made = plan_trajectory(open_record(json.dumps({"conversations": turns}).encode(), Words(), 0), SETTINGS)
    assert made.spans == (range(3, 13),)


def test_first_groups_for_which_there_is_room_anyway_stay() -> None:
    small, large = [("gpt", words(4))], [("gpt", words(30))]
    made = planned(small, *[large] * 4)
    assert made.spans == (range(4, 6),)
    assert made.kept_tokens == 25 + 4 + 60


def test_the_choice_does_not_look_at_records_far_above_their_target() -> None:
    user = step(said="set lock_timeout in src/session_store.py")
    made = planned(SOURCE, *[step()] * 60, user)
    assert made.spans[0].start == 3
