"""The scheduler compared with the documented policy on real sessions.

Runs one source at one window; `MIDFOLD_SOAK=1` plays all shared transcripts at all four windows.
"""

from __future__ import annotations

import os

import pytest

from midfold.lab.replays import WINDOWS, Replay, replay
from tests.support.data import SHARED, need

SOAK = bool(os.environ.get("MIDFOLD_SOAK"))
SOURCES = "*" if SOAK else "claude_code_packmind"
CHEAPER = 0.8
LEAST_KEPT = -0.07
"""Minimum retention, a mean over exams: about three hundred on all transcripts, thirty here with three times as many
folds.
"""
WORST = 1.1
DEFAULT_CHEAPER, DEFAULT_WORST = 0.9, 1.15
DEFAULT_KEPT = -0.01
"""Measured on all transcripts: -.0099 at 32k; 2 of 680 sessions and windows cost 11 to 12 % more."""


@pytest.fixture(scope="module")
def played() -> Replay:
    need(SHARED.is_dir(), "the shared transcripts (../shared/data) are not here")
    files = sorted(SHARED.glob(f"{SOURCES}/conversations.jsonl"))
    windows = WINDOWS if SOAK else WINDOWS[:1]
    return replay(files, windows=windows, exams=6 if SOAK else 3, workers=2 if SOAK else 1)


def test_the_scheduler_costs_a_fifth_less_and_keeps_as_much(played: Replay) -> None:
    for window in dict.fromkeys(total.window for total in played.totals):
        documented, scheduled = (played.total(name, window) for name in ("documented", "scheduled"))
        assert scheduled.cost <= CHEAPER * documented.cost, window
        assert scheduled.retention is not None and documented.retention is not None
        assert scheduled.retention - documented.retention >= LEAST_KEPT, window


def test_default_settings_cost_less_than_waiting_for_the_threshold_and_keep_as_much(played: Replay) -> None:
    for window in dict.fromkeys(total.window for total in played.totals):
        before, after = (played.total(name, window) for name in ("threshold", "default"))
        assert after.cost <= DEFAULT_CHEAPER * before.cost, window
        assert before.retention is not None and after.retention is not None
        assert after.retention - before.retention >= (DEFAULT_KEPT if SOAK else LEAST_KEPT), window
    rows = {(row.recording, row.window, row.policy): row for row in played.rows}
    for (recording, window, policy), row in rows.items():
        if policy == "default":
            assert row.total <= DEFAULT_WORST * rows[recording, window, "threshold"].total, (recording, window)


def test_no_single_session_costs_much_more_than_under_the_policy_that_suits_it_best(played: Replay) -> None:
    worst = played.against_best("scheduled")[0]
    assert worst.ratio <= WORST, worst


def test_nothing_is_cheaper_than_reading_and_nothing_is_free(played: Replay) -> None:
    for row in played.rows:
        assert row.read + row.written <= row.sent
        assert row.cost >= 0.1 * row.sent
        assert (row.folds > 0) is bool(row.reasons)
