from __future__ import annotations

import math

import pytest

import midfold
from midfold import Pressure, effective_input_window, threshold_tokens
from midfold.compaction.budget import plan_budget, pressure_text
from support.build import Asked, assistant, user, work

WINDOWS = [8_000, 16_000, 32_000, 64_000, 128_000, 200_000, 400_000, 1_000_000, 2_000_000]


def test_the_values_of_the_documents_for_200k() -> None:
    budget = plan_budget(200_000)
    assert budget.threshold_tokens == 100_000
    assert budget.tail_tokens == 20_000
    assert budget.summary_maximum == 10_000
    assert [budget.summary_tokens(folded) for folded in (0, 10_000, 30_000, 80_000)] == [2_000, 2_000, 6_000, 10_000]


def test_a_64k_window_with_a_64k_floor_still_has_a_threshold_below_it() -> None:
    assert threshold_tokens(64_000, 0.5, 64_000) == 54_400
    assert threshold_tokens(64_000, 0.5, 40_000) == 40_000


def test_an_output_reservation_reduces_the_input_window() -> None:
    assert effective_input_window(200_000, 32_000) == 168_000
    assert plan_budget(200_000, output_reservation=32_000).threshold_tokens == 84_000


@pytest.mark.parametrize("reservation", [200_000, 999_999, -5, math.nan, math.inf, "many", True, [1]])
def test_a_reservation_that_leaves_nothing_or_is_no_number_is_ignored_with_a_notice(reservation: object) -> None:
    budget = plan_budget(200_000, output_reservation=reservation)
    assert budget.effective_input_window == 200_000
    assert len(budget.notices) == 1


def test_every_number_grows_with_the_window() -> None:
    budgets = [plan_budget(window) for window in WINDOWS]
    for name in ("threshold_tokens", "tail_tokens", "summary_maximum", "effective_input_window"):
        values = [getattr(budget, name) for budget in budgets]
        assert values == sorted(values), name
        assert min(values) > 0


def test_the_least_of_a_summary_beats_its_maximum_in_small_windows_up_to_a_fifth_of_the_threshold() -> None:
    assert plan_budget(24_000).summary_tokens(100_000) == 2_000
    assert plan_budget(16_000).summary_tokens(100_000) == 1_600
    assert plan_budget(16_000, ratio=0.25).summary_tokens(100) == 800
    assert plan_budget(16_000).max_summary_tokens == 1_600


def test_from_a_window_of_40_000_on_the_documents_formula_holds_whatever_the_threshold() -> None:
    for window in (40_000, 64_000, 200_000, 1_000_000):
        most = min(int(window * 0.05), 12_000)
        for ratio in (0.05, 0.25, 0.5, 1.0):
            budget = plan_budget(window, ratio=ratio)
            assert budget.max_summary_tokens == most
            for folded in (100, 10_000, 30_000, 500_000):
                assert budget.summary_tokens(folded) == min(max(int(folded * 0.2), 2_000), most)


def test_where_there_is_room_a_summary_in_a_small_window_may_be_as_long_as_in_one_of_64_000() -> None:
    small = [
        plan_budget(window).summary_tokens(100_000, free_tokens=50_000) for window in (8_000, 16_000, 24_000, 63_999)
    ]
    assert small == [1_200, 2_400, 3_200, 3_200]
    assert plan_budget(24_000).summary_tokens(100_000, free_tokens=2_500) == 2_500
    assert plan_budget(24_000).summary_tokens(9_000, free_tokens=50_000) == 2_000, "a fifth of it, at least 2,000"
    for window in (64_000, 100_000, 200_000, 1_000_000):
        assert plan_budget(window).summary_tokens(100_000, free_tokens=50_000) == plan_budget(window).summary_tokens(
            100_000
        )


def test_an_updated_summary_keeps_its_room_and_gets_a_fifth_of_what_is_new() -> None:
    tokens = plan_budget(200_000).summary_tokens
    assert [tokens(10_000, before) for before in (0, 1_000, 3_000, 9_000)] == [2_000, 3_000, 5_000, 10_000]


def test_the_trigger_is_inclusive_and_none_is_falsy() -> None:
    budget = plan_budget(200_000)
    assert budget.pressure(100_000) is Pressure.HARD
    assert budget.pressure(99_999) is Pressure.SOFT
    assert not budget.pressure(10)


def test_a_target_shrinks_tail_and_summary() -> None:
    aimed = plan_budget(200_000).for_target(5_000)
    assert aimed.tail_tokens + aimed.summary_maximum < 5_000


def test_a_summary_that_had_room_once_is_not_cut_to_the_least_by_the_next_fold() -> None:
    small = plan_budget(24_000)
    assert small.summary_tokens(9_000, 0, free_tokens=4_000) == 2_000
    assert small.summary_tokens(9_000, 2_400, free_tokens=4_000) == 3_200
    assert 2_700 <= small.summary_tokens(1_000, 3_200, free_tokens=0) < 3_200
    assert small.summary_tokens(1_000, 9_000, free_tokens=0) == 3_200
    assert small.summary_tokens(1_000, 1_000, free_tokens=0) == 2_000
    assert plan_budget(200_000).summary_tokens(1_000, 9_900, free_tokens=0) == 10_000


def test_pressure_is_worded_for_people_and_never_rounded_up() -> None:
    assert pressure_text(42_500, 50_000) == "85 % of the compaction threshold (42,500/50,000)"
    assert pressure_text(49_999, 50_000) == "99 % of the compaction threshold (49,999/50,000)"
    assert pressure_text(0, 0) == "0 % of the compaction threshold (0/0)"


def test_the_most_of_a_summary_is_a_share_of_the_context_length_whatever_is_kept_for_the_answer() -> None:
    assert plan_budget(200_000, output_reservation=100_000).summary_maximum == 10_000
    asked = Asked("## Goal\nGo on.")
    messages = [user("Go."), assistant("Yes."), *work(0, 200)]
    midfold.compact(messages, context_length=60_000, output_reservation=30_000, summarizer=asked)
    assert asked.asks[0].budget_tokens == 3_000
