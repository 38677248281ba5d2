"""How much of what was needed a compacted past still holds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from typing import NamedTuple

from midfold.eval.constraints import demands, spaced
from midfold.eval.cuts import Cut
from midfold.eval.needs import HORIZON, Need, needs_at
from midfold.eval.sizes import total
from midfold.eval.texts import APART, joined, text_of
from midfold.eval.words import is_bound
from midfold.recall import Memory, Recall
from midfold.transcript.message import Transcript

Search = Callable[[Transcript, str], str]
"""The past and a query in, text out."""
BLANK = " "
MEASURES = ("bound", "hard", "far", "action", "searched", "demands")


class Score(NamedTuple):
    """Shares between 0 and 1; None where nothing of the kind was needed."""

    share: float
    """Tokens of what was kept against tokens of the past: what the method really used."""
    bound: float
    """Needed facts that were kept with words that say what they are: the headline."""
    hard: float | None
    """The same of paths, ids, hashes, URLs and numbers."""
    far: float | None
    """The same of facts last mentioned more than 30 % of the past ago."""
    action: float | None
    """The same of facts used in tool arguments."""
    searched: float | None
    """The same, with what one search by each step that needs facts brings back."""
    demands: float | None
    """Constraining sentences of the user that were kept word for word."""


class Exam(NamedTuple):
    """What is asked at one cut. It depends on no method, and is made once."""

    past_tokens: int
    needs: tuple[Need, ...]
    findable: frozenset[str]
    """Needed facts that a search brings back bound."""
    demands: tuple[str, ...]


def recall_search(past: Transcript, query: str) -> str:
    """What a model is told that searches the past with midfold's own tool."""
    recall = _recall(past)
    return APART.join(recall.told(recall.hits(query)))


@lru_cache(maxsize=2)
def _recall(past: Transcript) -> Recall:
    return Memory({"past": past}).recall(lambda text: text)


def query_of(step: str, facts: Iterable[str]) -> str:
    """The words of a step without the facts it needs: who searches does not know what it will find.

    Without quotes, too: in a query they mean "literally".
    """
    for fact in sorted(facts, key=len, reverse=True):
        step = step.replace(fact, BLANK)
    return step.replace('"', BLANK)


def exam_at(cut: Cut, generic: Collection[str] = frozenset(), search: Search | None = None) -> Exam:
    past = cut.past
    needs = needs_at(past, cut.future, generic)
    found = frozenset() if search is None else _findable(past, cut.future, needs, search)
    people = (message for message, human in zip(past, cut.session.human, strict=False) if human)
    return Exam(total(past), needs, found, demands(people))


def _findable(past: Transcript, future: Transcript, needs: Sequence[Need], search: Search) -> frozenset[str]:
    facts = [need.fact for need in needs]
    found: set[str] = set()
    for step in sorted({need.step for need in needs}):
        here = [need for need in needs if need.step == step]
        brought = search(past, query_of(text_of(future[:HORIZON][step]), facts))
        found.update(need.fact for need in here if is_bound(brought, need.fact, need.near))
    return frozenset(found)


def score(kept: Transcript, exam: Exam) -> Score:
    """The marks of one compaction; the exam must have needs."""
    messages = tuple(message for message in kept if message.role != "system")
    text = joined(messages)
    held = {need.fact for need in exam.needs if is_bound(text, need.fact, need.near)}
    flat = spaced(text) if exam.demands else ""
    return Score(
        share=total(messages) / max(exam.past_tokens, 1),
        bound=_mean(need.fact in held for need in exam.needs) or 0.0,
        hard=_mean(need.fact in held for need in exam.needs if need.hard),
        far=_mean(need.fact in held for need in exam.needs if need.far),
        action=_mean(need.fact in held for need in exam.needs if need.action),
        searched=_mean(need.fact in held or need.fact in exam.findable for need in exam.needs),
        demands=_mean(sentence in flat for sentence in exam.demands),
    )


def _mean(marks: Iterable[bool]) -> float | None:
    listed = list(marks)
    return sum(listed) / len(listed) if listed else None
