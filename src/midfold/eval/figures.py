"""Means and intervals of many cuts.

Rules of this file:
1. A mean is over cuts; a cut where nothing of the kind was needed does not count.
2. Intervals are 95 %, by bootstrap over conversations: cuts of one conversation are not independent.
3. Every method is resampled with the same draws, so that intervals can be compared, and with a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import NamedTuple

import msgspec

from midfold.eval.score import MEASURES, Score

RESAMPLES = 1_000
TOLERANCE = 1.05
"""Above the budget by more than this, an output is flagged."""


class Row(NamedTuple):
    """One method at one budget at one cut."""

    conversation: str
    session: int
    project: str
    at: int
    past_tokens: int
    needs: int
    method: str
    budget: float
    score: Score

    @property
    def over(self) -> bool:
        return self.score.share > self.budget * TOLERANCE


class Interval(msgspec.Struct, frozen=True):
    """A mean with its 95 % interval, and over how many cuts it was taken. One conversation gives no interval."""

    mean: float
    low: float | None
    high: float | None
    cuts: int


class Figure(msgspec.Struct, frozen=True):
    """One method at one budget over all cuts."""

    method: str
    budget: float
    cuts: int
    share: float
    """The mean of what the method really used."""
    over: int
    """How many outputs were larger than the budget by more than 5 %."""
    measures: dict[str, Interval]


def figures(rows: Sequence[Row], seed: int = 0) -> list[Figure]:
    """Every method at every budget, in the order of the rows."""
    conversations = sorted({row.conversation for row in rows})
    draws = _draws(len(conversations), seed)
    place = {name: index for index, name in enumerate(conversations)}
    groups: dict[tuple[str, float], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.method, row.budget), []).append(row)
    return [_figure(method, budget, group, place, draws) for (method, budget), group in groups.items()]


def _figure(
    method: str, budget: float, rows: Sequence[Row], place: dict[str, int], draws: Sequence[Sequence[int]]
) -> Figure:
    measures = {}
    for measure in MEASURES:
        marks = [(place[row.conversation], value) for row in rows if (value := getattr(row.score, measure)) is not None]
        if marks:
            measures[measure] = _interval(marks, len(place), draws)
    share = sum(row.score.share for row in rows) / len(rows)
    return Figure(method, budget, len(rows), share, sum(row.over for row in rows), measures)


def _draws(conversations: int, seed: int) -> list[list[int]]:
    chance = random.Random(seed)
    return [chance.choices(range(conversations), k=conversations) for _ in range(RESAMPLES if conversations else 0)]


def _interval(marks: Sequence[tuple[int, float]], conversations: int, draws: Sequence[Sequence[int]]) -> Interval:
    sums, counts = [0.0] * conversations, [0] * conversations
    for index, value in marks:
        sums[index] += value
        counts[index] += 1
    means = []
    for draw in draws:
        count = sum(map(counts.__getitem__, draw))
        if count:
            means.append(sum(map(sums.__getitem__, draw)) / count)
    mean = sum(sums) / len(marks)
    if conversations < 2:
        return Interval(mean, None, None, len(marks))
    means.sort()
    edge = len(means) // 40
    return Interval(mean, means[edge], means[-1 - edge], len(marks))
