"""The scheduler against the documented policy on real sessions.

One source at one window here; `MIDFOLD_SOAK=1` plays all of the shared transcripts at all four windows.
"""

from __future__ import annotations

import os

import pytest

from midfold.replay import BUILT_IN, Replay, replay
from midfold.replay.run import WINDOWS
from tests.support.data import SHARED, need

SOAK = bool(os.environ.get("MIDFOLD_SOAK"))
SOURCES = "*" if SOAK else "claude_code_packmind"
CHEAPER = 0.8
LEAST_KEPT = -0.005 if SOAK else -0.03
"""Retention is a mean over exams: some three hundred on all transcripts, some fifty here."""


@pytest.fixture(scope="module")
def played() -> Replay:
    need(SHARED.is_dir(), "the shared transcripts (../shared/data) are not here")
    files = sorted(SHARED.glob(f"{SOURCES}/conversations.jsonl"))
    policies = [BUILT_IN[name] for name in ("documented", "scheduled")]
    return replay(files, policies=policies, windows=WINDOWS if SOAK else WINDOWS[:1], exams=6 if SOAK else 3)


def test_the_scheduler_costs_a_fifth_less_and_keeps_as_much(played: Replay) -> None:
    for window in dict.fromkeys(total.window for total in played.totals):
        documented, scheduled = (played.total(name, window) for name in ("documented", "scheduled"))
        assert scheduled.cost <= CHEAPER * documented.cost, window
        assert scheduled.retention is not None and documented.retention is not None
        assert scheduled.retention - documented.retention >= LEAST_KEPT, window


def test_nothing_is_cheaper_than_reading_and_nothing_is_free(played: Replay) -> None:
    for row in played.rows:
        assert row.read + row.written <= row.sent
        assert row.cost >= 0.1 * row.sent
        assert (row.folds > 0) is bool(row.reasons)
