"""Boundary snapping and target arithmetic, with numbers that can be checked by eye: one token per word."""

from __future__ import annotations

import json

from midfold.lab.trajectory_plan import TrajectoryPlan, plan_trajectory
from midfold.lab.trajectory_records import open_record
from midfold.lab.trajectory_settings import TrajectorySettings
from midfold.lab.trajectory_work import CompressedRecord, compress_record
from support.trajectories import Words, turn, words

SETTINGS = TrajectorySettings(target_tokens=100, summary_tokens=10, protect_last=2, turn_tokens=0, tokenizer="estimate")


def planned(sizes: list[tuple[str, int]], settings: TrajectorySettings = SETTINGS) -> TrajectoryPlan:
    turns = [turn(kind, words(size)) for kind, size in sizes]
    return plan_trajectory(
        open_record(json.dumps({"conversations": turns}).encode(), Words(), settings.turn_tokens), settings
    )


HEAD = [("system", 5), ("human", 5), ("gpt", 5), ("tool", 5)]
TAIL = [("gpt", 5), ("tool", 5)]


def test_a_record_within_its_target_is_left_alone_to_the_last_token() -> None:
    assert planned([*HEAD, ("gpt", 70), *TAIL]) == TrajectoryPlan(kept_tokens=100)
    assert planned([*HEAD, ("gpt", 71), *TAIL]).spans == (range(4, 5),)


def test_only_as_much_of_the_middle_is_folded_as_the_target_needs() -> None:
    middle = [("gpt", 10), ("tool", 10)] * 10
    made = planned([*HEAD, *middle, *TAIL])
    assert made.spans == (range(4, 18),)
    assert made.kept_tokens == 30 + 60
    assert made.fits


def test_a_cut_never_stands_before_a_tools_turn() -> None:
    middle = [("gpt", 10), ("tool", 10), ("tool", 10), ("tool", 10)] * 5
    made = planned([*HEAD, *middle, *TAIL])
    assert made.spans == (range(4, 20),)


def test_the_protected_tail_grows_back_to_the_call_of_its_first_result() -> None:
    made = planned([*HEAD, *[("gpt", 10), ("tool", 10)] * 9, ("gpt", 20), ("tool", 20), ("tool", 20)])
    assert made.spans[-1].stop <= len(HEAD) + 18
    assert made.kept_tokens == 20 + 60


def test_the_last_turns_stay_however_large_they_are() -> None:
    made = planned([*HEAD, *[("gpt", 10), ("tool", 10)] * 4, ("gpt", 60), ("tool", 60)])
    assert made.spans == (range(4, 12),)
    assert not made.fits


def test_the_head_ends_behind_all_results_of_the_first_call() -> None:
    made = planned([*HEAD, ("tool", 5), *[("gpt", 10), ("tool", 10)] * 9, *TAIL])
    assert made.spans[0].start == 5


def test_turns_between_protected_first_ones_are_folded_only_if_the_rest_is_not_enough() -> None:
    chatter = [("human", 5), ("gpt", 30), ("human", 30)]
    early = [("system", 5), ("human", 5), ("gpt", 5), *chatter, ("gpt", 5), ("tool", 5)]
    enough = planned(
        [*early, *[("gpt", 10), ("tool", 10)] * 4, *TAIL], TrajectorySettings(**{**_fields(), "target_tokens": 160})
    )
    assert [span.start for span in enough.spans] == [8]
    short = planned([*early, *[("gpt", 10), ("tool", 10)] * 4, *TAIL])
    assert short.spans == (range(3, 6), range(8, 16))
    assert short.kept_tokens == 5 + 5 + 5 + 5 + 5 + 10
    assert short.fits


def test_protected_turns_above_the_target_are_reported_as_still_over_the_limit() -> None:
    turns = [("system", 5), ("human", 5), ("gpt", 5), ("tool", 500), *[("gpt", 10), ("tool", 10)] * 4, *TAIL]
    made = planned(turns)
    assert not made.fits
    result = compressed(turns)
    assert result.metrics.status == "over_limit"
    assert "protected turns" in result.metrics.reason
    assert result.metrics.tokens_after < result.metrics.tokens_before


def test_nothing_is_folded_where_the_summary_would_be_longer_than_the_fold() -> None:
    result = compressed([("human", 5), ("gpt", 5), ("tool", 500), ("gpt", 3), *TAIL])
    assert result.metrics.status == "over_limit"
    assert result.metrics.fold is None
    assert result.metrics.turns_after == 6


def test_no_first_turns_and_no_last_ones_can_be_asked_for() -> None:
    settings = TrajectorySettings(**{**_fields(), "protect_first": (), "protect_last": 0})
    made = planned([("human", 50), ("gpt", 40), ("human", 40)], settings)
    assert made.spans == (range(0, 1),)


def test_an_empty_record_and_one_of_a_single_giant_turn_are_no_trouble() -> None:
    assert planned([]) == TrajectoryPlan()
    assert not planned([("human", 1000)]).fits


def compressed(sizes: list[tuple[str, int]]) -> CompressedRecord:
    turns = [turn(kind, words(size)) for kind, size in sizes]
    return compress_record(json.dumps({"conversations": turns}).encode(), SETTINGS, None, Words())


def _fields() -> dict[str, object]:
    return {name: getattr(SETTINGS, name) for name in SETTINGS.__struct_fields__}
