"""Every recording under every policy at every window, and what it all comes to.

Rules of this file:
1. The result does not depend on how many processes made it.
2. A policy is compared, on one recording, only with policies that never sent more than the window.
"""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import msgspec

from midfold.cache.prices import Prices, prices_for
from midfold.errors import MidfoldError, TranscriptError
from midfold.eval.cuts import Split
from midfold.replay.policy import BUILT_IN, Policy
from midfold.replay.simulate import Played, Player
from midfold.replay.transcripts import MOST_EXAMS, STATED_GAP, Recording, load_recordings

MODEL = "claude-sonnet-4-5"
WINDOWS = (32_000, 64_000, 128_000, 200_000)
Progress = Callable[[int, int], None]


class Total(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one window, over all recordings. Costs are tokens at the base input price, money is dollars."""

    policy: str
    window: int
    requests: int
    sent: int
    read: int
    written: int
    cost: float
    summary_cost: float
    money: float
    folds: int
    reasons: dict[str, int]
    retention: float | None
    exams: int
    overflows: int
    """Recordings in which a request was larger than the window."""

    @property
    def hit_rate(self) -> float:
        return self.read / self.sent if self.sent else 0.0


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one recording against the cheapest one that fits the window."""

    recording: str
    window: int
    policy: str
    best: str
    ratio: float
    cost: float
    folds: int


class Replay:
    """Every row, and the figures made of them."""

    def __init__(self, rows: Iterable[Played], prices: Prices, model: str, timed: int) -> None:
        self.rows = tuple(rows)
        self.prices, self.model, self.timed = prices, model, timed

    @property
    def recordings(self) -> int:
        return len({row.recording for row in self.rows})

    @cached_property
    def totals(self) -> list[Total]:
        groups: dict[tuple[int, str], list[Played]] = {}
        for row in self.rows:
            groups.setdefault((row.window, row.policy), []).append(row)
        return [self._total(rows) for _, rows in sorted(groups.items(), key=lambda item: item[0][0])]

    def total(self, policy: str, window: int) -> Total:
        return next(total for total in self.totals if (total.policy, total.window) == (policy, window))

    def _total(self, rows: Sequence[Played]) -> Total:
        reasons: dict[str, int] = {}
        for row in rows:
            for reason, count in row.reasons.items():
                reasons[reason] = reasons.get(reason, 0) + count
        exams = sum(row.exams for row in rows)
        kept = sum(row.retention * row.exams for row in rows if row.retention is not None)
        cost = sum(row.total for row in rows)
        return Total(
            policy=rows[0].policy,
            window=rows[0].window,
            requests=sum(row.requests for row in rows),
            sent=sum(row.sent for row in rows),
            read=sum(row.read for row in rows),
            written=sum(row.written for row in rows),
            cost=cost,
            summary_cost=sum(row.summary_cost for row in rows),
            money=self.prices.money(cost),
            folds=sum(row.folds for row in rows),
            reasons=reasons,
            retention=kept / exams if exams else None,
            exams=exams,
            overflows=sum(row.overflows > 0 for row in rows),
        )

    def against_best(self, policy: str) -> list[Against]:
        """Where this policy lost most, the worst first; recordings it could not serve are left out."""
        found = []
        by_place: dict[tuple[int, str], list[Played]] = {}
        for row in self.rows:
            by_place.setdefault((row.window, row.recording), []).append(row)
        for (window, recording), rows in by_place.items():
            mine = next((row for row in rows if row.policy == policy), None)
            others = [row for row in rows if row.policy != policy and not row.overflows]
            if mine is None or mine.overflows or not others:
                continue
            best = min(others, key=lambda row: row.total)
            ratio = mine.total / best.total if best.total else 1.0
            found.append(
                Against(
                    recording=recording,
                    window=window,
                    policy=policy,
                    best=best.policy,
                    ratio=ratio,
                    cost=mine.total,
                    folds=mine.folds,
                )
            )
        return sorted(found, key=lambda row: -row.ratio)


class _Plan(NamedTuple):
    recordings: Sequence[Recording]
    policies: Sequence[Policy]
    windows: Sequence[int]
    model: str
    fixed_tokens: int


def replay(
    files: Iterable[str | Path],
    *,
    policies: Iterable[Policy] | None = None,
    windows: Sequence[int] = WINDOWS,
    model: str = MODEL,
    gap: float = STATED_GAP,
    fixed_tokens: int = 0,
    exams: int = MOST_EXAMS,
    least_tokens: int = 0,
    split: Split = "all",
    workers: int = 1,
    progress: Progress | None = None,
) -> Replay:
    """Plays recorded conversations again. `gap` is the time between requests where none was recorded."""
    chosen = tuple(BUILT_IN.values() if policies is None else policies)
    names = [policy.name for policy in chosen]
    if len(set(names)) != len(names):
        raise MidfoldError(f"two policies have the same name: {', '.join(names)}")
    recordings = load_recordings(files, gap=gap, split=split, least_tokens=least_tokens, exams=exams)
    recordings = [recording for recording in recordings if recording.requests]
    if not recordings:
        raise TranscriptError("nothing to replay: no conversation has an answer of a model in it")
    plan = _Plan(recordings, chosen, tuple(windows), model, fixed_tokens)
    rows = _played(plan, workers, progress or (lambda done, of: None))
    return Replay(rows, prices_for(model), model, sum(recording.timed for recording in recordings))


def _played(plan: _Plan, workers: int, report: Progress) -> list[Played]:
    count = len(plan.recordings)
    forks = "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1
    rows: list[Played] = []
    if workers < 2 or not forks:
        for number in range(count):
            rows += _one(plan, number)
            report(number + 1, count)
        return rows
    with ProcessPoolExecutor(workers, multiprocessing.get_context("fork"), _start, (plan,)) as pool:
        try:
            futures = [pool.submit(_numbered, number) for number in range(count)]
            report(0, count)
            for number, future in enumerate(futures, 1):
                rows += future.result()
                report(number, count)
        except BrokenProcessPool:
            raise MidfoldError("a process that replays ended by itself; fewer --workers need less memory") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return rows


def _one(plan: _Plan, number: int) -> list[Played]:
    recording = plan.recordings[number]
    return [
        Player(recording, policy, window, plan.model, plan.fixed_tokens).play()
        for window in plan.windows
        for policy in plan.policies
    ]


_plan: _Plan | None = None


def _start(plan: _Plan) -> None:
    global _plan  # noqa: PLW0603
    _plan = plan


def _numbered(number: int) -> list[Played]:
    assert _plan is not None
    return _one(_plan, number)
