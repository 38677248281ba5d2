"""The measure, end to end: sessions -> cuts -> exams -> compactions -> rows -> figures.

Rules of this file:
1. Which facts are generic is counted over all sessions given, whatever the split.
2. The result does not depend on how many processes made it.
"""

from __future__ import annotations

import multiprocessing
import pickle
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from midfold.errors import MidfoldError, TranscriptError
from midfold.eval.cuts import LEAST_FUTURE, LEAST_PAST, Cut, Places, Split, all_cuts, recorded_cuts
from midfold.eval.facts import facts_in
from midfold.eval.figures import Figure, Row, figures
from midfold.eval.generic import shared_facts
from midfold.eval.methods import DEFAULT, Compactor, Method, chosen
from midfold.eval.score import Search, exam_at, recall_search, score
from midfold.eval.sessions import Session, load, sessions_of
from midfold.eval.texts import text_of
from midfold.transcript.document import Document, read_many

BUDGETS = (0.05, 0.10, 0.20)
Progress = Callable[[int, int], None]
"""Called with the number of cuts that are done and the number of all."""


class Evaluation:
    """Every mark, and the figures made of them."""

    def __init__(self, rows: Sequence[Row], seed: int) -> None:
        self.rows = tuple(rows)
        self._seed = seed

    @cached_property
    def figures(self) -> list[Figure]:
        return figures(self.rows, self._seed)

    def figure(self, method: str, budget: float) -> Figure:
        return next(item for item in self.figures if item.method == method and item.budget == budget)

    @property
    def cuts(self) -> int:
        return len({(row.conversation, row.session, row.at) for row in self.rows})

    @property
    def needed(self) -> int:
        """Needed facts over all cuts."""
        return sum({(row.conversation, row.session, row.at): row.needs for row in self.rows}.values())

    @property
    def conversations(self) -> int:
        return len({row.conversation for row in self.rows})


class Plan(NamedTuple):
    """What every process needs to know."""

    cuts: Sequence[Cut]
    methods: Mapping[str, Method]
    budgets: Sequence[float]
    generic: frozenset[str]
    search: Search | None


Source = str | Path | Document | Session | Mapping[str, Any] | Sequence[Any]


def evaluate(
    sources: Iterable[Source],
    *,
    methods: Iterable[str] | Mapping[str, str | Compactor] = DEFAULT,
    budgets: Sequence[float] = BUDGETS,
    split: Split = "all",
    at: Places = "steps",
    least_past: int = LEAST_PAST,
    search: Search | None = recall_search,
    seed: int = 0,
    workers: int = 1,
    progress: Progress | None = None,
) -> Evaluation:
    """Measures what compactors keep of real conversations.

    `sources` are files, documents, or conversations as Python values. `methods` are names of built-in methods, or a
    mapping from names to callables `(messages, target_tokens) -> messages`. Budgets are shares of the past. Sessions
    are cut between steps, or at the compactions that were recorded; `split` takes half of the conversations.
    """
    sessions = _sessions(sources)
    generic = shared_facts(facts_by_project(sessions))
    cuts = (all_cuts if at == "steps" else recorded_cuts)(sessions, split, least_past)
    plan = Plan(cuts, chosen(methods), tuple(budgets), generic, search)
    if not plan.cuts:
        raise TranscriptError(
            f"nothing to measure: {len(sessions)} session(s) read (split: {split}), and none has {least_past:,} tokens "
            f"before a cut at {at} and {LEAST_FUTURE} messages after it"
        )
    rows = _marked(plan, workers, progress)
    if not rows:
        raise TranscriptError(f"nothing to measure: no fact is needed after any of the {len(plan.cuts)} cut(s)")
    return Evaluation(rows, seed)


def _sessions(sources: Iterable[Source]) -> list[Session]:
    found: list[Session] = []
    for number, source in enumerate(sources, 1):
        if isinstance(source, Session):
            found.append(source)
        elif isinstance(source, str | Path):
            found += load([source])
        else:
            documents = [source] if isinstance(source, Document) else read_many(source, name=f"conversation {number}")
            for document in documents:
                found += sessions_of(document, name=f"conversation {number}")
    return found


def facts_by_project(sessions: Iterable[Session]) -> dict[str, set[str]]:
    projects: dict[str, set[str]] = {}
    for session in sessions:
        facts = projects.setdefault(session.project, set())
        for message in session.messages:
            facts.update(fact for fact, _ in facts_in(text_of(message)))
    return projects


def _marked(plan: Plan, workers: int, progress: Progress | None) -> list[Row]:
    rows: list[Row] = []
    report = progress or (lambda done, of: None)
    context = _context(plan) if workers > 1 else None
    if context is None:
        report(0, len(plan.cuts))
        for number, cut in enumerate(plan.cuts, 1):
            rows += mark(cut, plan)
            report(number, len(plan.cuts))
        return rows
    with ProcessPoolExecutor(workers, context, _start, (plan,)) as pool:
        try:
            futures = [pool.submit(_mark_number, number) for number in range(len(plan.cuts))]
            report(0, len(futures))
            for number, future in enumerate(futures, 1):
                rows += future.result()
                report(number, len(futures))
        except BrokenProcessPool:
            raise MidfoldError("a process that measures ended by itself; fewer --workers need less memory") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return rows


def mark(cut: Cut, plan: Plan) -> list[Row]:
    """Every method at every budget at one cut; nothing where the future needs nothing."""
    exam = exam_at(cut, plan.generic, plan.search)
    if not exam.needs:
        return []
    session = cut.session
    place = (session.conversation, session.number, session.project, cut.at, exam.past_tokens, len(exam.needs))
    return [
        Row(*place, name, budget, score(method(cut, int(exam.past_tokens * budget), exam.needs), exam))
        for name, method in plan.methods.items()
        for budget in plan.budgets
    ]


_plan: Plan | None = None


def _start(plan: Plan) -> None:
    global _plan  # noqa: PLW0603
    _plan = plan


def _mark_number(number: int) -> list[Row]:
    assert _plan is not None
    return mark(_plan.cuts[number], _plan)


def _context(plan: Plan) -> multiprocessing.context.BaseContext | None:
    """Forking shares the plan as it is; spawning must pickle it. None if neither can be done."""
    if "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1:
        return multiprocessing.get_context("fork")
    try:
        pickle.dumps((plan.methods, plan.search))
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return multiprocessing.get_context("spawn")
