"""Measure retention: sessions -> cuts -> exams -> compactions -> rows -> figures -> chart.

Generic facts are counted over all given sessions, whatever the split. A mean is over cuts; a cut where nothing of the
kind was needed is excluded. Intervals are 95 %, by bootstrap over conversations (cuts of one conversation are not
independent), with the same draws for every method, so that methods are comparable, and a fixed seed.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from math import log
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from midfold.drawing import COLOURS, Frame, Markup, document, line, path, tag, text, ticks
from midfold.errors import TranscriptError
from midfold.lab.compactors import DEFAULT_METHODS, Compactor, Method, choose_methods
from midfold.lab.message_text import text_of
from midfold.lab.processes import Report, work_through
from midfold.lab.recorded_sessions import (
    LEAST_FUTURE,
    LEAST_PAST,
    Cut,
    Places,
    RecordedSession,
    Split,
    all_cuts,
    load_sessions,
    recorded_cuts,
    sessions_of,
)
from midfold.lab.retention_facts import facts_in, shared_facts
from midfold.lab.retention_score import MEASURES, Score, Search, case_at, recall_search, score
from midfold.transcript.document import Document, read_many

RESAMPLES = 1_000
TOLERANCE = 1.05
"""Relative excess over the budget from which an output is flagged."""


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
    """A mean with its 95 % interval and its number of cuts. A single conversation gives no interval."""

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
    """Mean share of the past that the method really used."""
    over: int
    """Number of outputs more than 5 % over the budget."""
    measures: dict[str, Interval]


def compute_figures(rows: Sequence[Row], seed: int = 0) -> list[Figure]:
    """Compute the figures of every method at every budget, in the order of the rows."""
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


BUDGETS = (0.05, 0.10, 0.20)


class Evaluation:
    """All rows, and the figures computed from them."""

    def __init__(self, rows: Sequence[Row], seed: int) -> None:
        self.rows = tuple(rows)
        self._seed = seed

    @cached_property
    def figures(self) -> list[Figure]:
        return compute_figures(self.rows, self._seed)

    def figure(self, method: str, budget: float) -> Figure:
        return next(item for item in self.figures if item.method == method and item.budget == budget)

    @property
    def cuts(self) -> int:
        return len({(row.conversation, row.session, row.at) for row in self.rows})

    @property
    def need_count(self) -> int:
        """The number of needed facts over all cuts."""
        return sum({(row.conversation, row.session, row.at): row.needs for row in self.rows}.values())

    @property
    def conversations(self) -> int:
        return len({row.conversation for row in self.rows})


class EvaluationPlan(NamedTuple):
    """Inputs that every process needs."""

    cuts: Sequence[Cut]
    methods: Mapping[str, Method]
    budgets: Sequence[float]
    generic: frozenset[str]
    search: Search | None


Source = str | Path | Document | RecordedSession | Mapping[str, Any] | Sequence[Any]


def evaluate(
    sources: Iterable[Source],
    *,
    methods: Iterable[str] | Mapping[str, str | Compactor] = DEFAULT_METHODS,
    budgets: Sequence[float] = BUDGETS,
    split: Split = "all",
    at: Places = "steps",
    least_past: int = LEAST_PAST,
    search: Search | None = recall_search,
    seed: int = 0,
    workers: int = 1,
    progress: Report | None = None,
) -> Evaluation:
    """Measure what compactors keep of real conversations.

    `sources` are files, documents, or conversations as Python values. `methods` are names of built-in methods, or a
    mapping from names to callables `(messages, target_tokens) -> messages`. Budgets are shares of the past. Sessions
    are cut between steps, or at recorded compactions; `split` selects half of the conversations.
    """
    sessions = _read_sources(sources)
    generic = shared_facts(facts_by_project(sessions))
    cuts = (all_cuts if at == "steps" else recorded_cuts)(sessions, split, least_past)
    plan = EvaluationPlan(cuts, choose_methods(methods), tuple(budgets), generic, search)
    if not plan.cuts:
        raise TranscriptError(
            f"All {len(sessions)} sessions are too short (split {split}, cuts at {at}): need {least_past:,} tokens "
            f"before a cut and {LEAST_FUTURE} messages after it. Try --least-past {least_past // 4}."
        )
    rows = work_through(mark_cut, plan, len(cuts), workers, progress)
    if not rows:
        raise TranscriptError(f"nothing to measure: no facts are needed after any of the {len(plan.cuts)} cuts")
    return Evaluation(rows, seed)


def _read_sources(sources: Iterable[Source]) -> list[RecordedSession]:
    found: list[RecordedSession] = []
    for number, source in enumerate(sources, 1):
        if isinstance(source, RecordedSession):
            found.append(source)
        elif isinstance(source, str | Path):
            found += load_sessions([source])
        else:
            name = f"conversation {number}"
            for talk in [source] if isinstance(source, Document) else read_many(source, name=name):
                found += sessions_of(talk, name=name)
    return found


def facts_by_project(sessions: Iterable[RecordedSession]) -> dict[str, set[str]]:
    projects: dict[str, set[str]] = {}
    for session in sessions:
        facts = projects.setdefault(session.project, set())
        for message in session.messages:
            facts.update(fact for fact, _ in facts_in(text_of(message)))
    return projects


def mark_cut(plan: EvaluationPlan, number: int) -> list[Row]:
    """Score every method at every budget at one cut; return nothing if the future needs nothing."""
    cut = plan.cuts[number]
    exam = case_at(cut, plan.generic, plan.search)
    if not exam.needs:
        return []
    session = cut.session
    place = (session.conversation, session.number, session.project, cut.at, exam.past_tokens, len(exam.needs))
    return [
        Row(*place, name, budget, score(method(cut, int(exam.past_tokens * budget), exam.needs), exam))
        for name, method in plan.methods.items()
        for budget in plan.budgets
    ]


LABEL_GAP = 15
FRAME = Frame(760, 440, 1.0, left=56, right=170, top=64, bottom=52)
"""Size and margins of the chart."""


def retention_chart(
    figures: Sequence[Figure], *, title: str = "Bound recall against budget", subtitle: str = ""
) -> str:
    """Return an SVG with one line per method and 95 % intervals as whiskers, on a logarithmic budget axis."""
    budgets = sorted({figure.budget for figure in figures})
    span = log(budgets[-1]) - log(budgets[0])
    places = {at: FRAME.x((log(at) - log(budgets[0])) / span if span else 0.5) for at in budgets}
    over = "; hollow: some outputs exceeded it" if any(figure.over for figure in figures) else ""
    floor = FRAME.y(0)
    body = [
        text(FRAME.left, 28, title, "ink title"),
        text(FRAME.left, 47, subtitle, "faint"),
        *FRAME.scale(ticks(1.0, 5), "{:.1f}".format, "faint"),
        *(text(x, floor + 20, f"{budget * 100:g} %", "faint", "middle") for budget, x in places.items()),
        text(FRAME.x(0.5), floor + 40, f"budget: tokens kept of the past{over}", "faint", "middle"),
    ]
    lines = [[figure for figure in figures if figure.method == method] for method in {f.method: 0 for f in figures}]
    heights = _spread_labels([FRAME.y(_bound(points[-1]).mean) for points in lines])
    for number, points in enumerate(lines):
        body += _method_line(points, places, COLOURS[number % len(COLOURS)], heights[number])
    return document(FRAME.width, FRAME.height, title, body)


def _method_line(
    figures: Sequence[Figure], places: Mapping[float, float], colour: str, label_y: float
) -> Iterator[Markup]:
    method = figures[0].method
    points = [(places[figure.budget], FRAME.y(_bound(figure).mean)) for figure in figures]
    dash = "6 4" if method.startswith("oracle") else None
    yield path(points, fill="none", stroke=colour, stroke_width="2.2", stroke_dasharray=dash)
    for (x, y), figure in zip(points, figures, strict=True):
        low, high = _bound(figure).low, _bound(figure).high
        if low is not None and high is not None:
            yield line(x, FRAME.y(low), x, FRAME.y(high), stroke=colour, stroke_opacity=".45")
        fill, width = ("none", 2) if figure.over else (colour, None)
        yield tag("circle", cx=x, cy=y, r=3.4, fill=fill, stroke_width=width, stroke=colour)
    x, y = points[-1]
    text_x = FRAME.x(1) + 22
    yield line(x + 5, y, text_x - 4, label_y, stroke=colour, stroke_opacity=".5")
    yield text(text_x, label_y + 4, f"{method} {_bound(figures[-1]).mean:.2f}", "", fill=colour)


def _spread_labels(heights: Sequence[float]) -> list[float]:
    """Move labels apart vertically by as little as needed to avoid overlaps."""
    placed = [0.0] * len(heights)
    lowest = FRAME.y(0)
    order = sorted(range(len(heights)), key=lambda index: heights[index])
    free = FRAME.top
    for index in order:
        free = placed[index] = max(heights[index], free)
        free += LABEL_GAP
    for index in reversed(order):
        placed[index] = min(placed[index], lowest)
        lowest = placed[index] - LABEL_GAP
    return placed


def _bound(figure: Figure) -> Interval:
    return figure.measures["bound"]
