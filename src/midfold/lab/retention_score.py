"""Define what a compaction before message t must keep, and score how much of it the compacted past contains.

A needed fact: (1) the assistant writes it in the next `HORIZON` messages, in tool arguments (an action) or in text; (2)
it occurs before t, outside the system prompt; (3) its first mention after t is the assistant's, so nothing
re-introduced it; (4) it is not generic. A person's demands are prose and measured separately: a sentence with must,
never, always, don't, prefer or only survives if it is kept verbatim. Code, and text that an agent put into the user's
turn, do not count as the user's sentences.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import NamedTuple

from midfold.lab.message_text import APART, argument_text, join_texts, spoken_text, text_of, total
from midfold.lab.recorded_sessions import Cut
from midfold.lab.retention_facts import (
    HARD,
    FactKind,
    Surroundings,
    facts_in,
    is_bound,
    is_common,
    places,
    surroundings,
)
from midfold.recall import InMemorySource, Recall
from midfold.transcript.message import Message, Transcript
from midfold.transcript.wrappers import WRAPPERS

SHORTEST_DEMAND, LONGEST_DEMAND = 12, 400
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_END = re.compile(r"(?<=[.!?])\s+|\n+")
_DEMAND = re.compile(r"\b(?:must|never|always|don['’]?t|do not|prefer(?:s|red|ably)?|only)\b", re.IGNORECASE)
"""The exam's own words: with those of `fold.choice`, tuning the fold would move the measure."""
_BULLET = re.compile(r"^\s*(?:[-*>#]+|\d+[.)])?\s*")


def demands(messages: Iterable[Message]) -> tuple[str, ...]:
    """Return the distinct constraining sentences that a person wrote."""
    return tuple(dict.fromkeys(sentence for message in messages for sentence in _demands_in(message.text)))


def _demands_in(text: str) -> Iterator[str]:
    prose = _FENCED.sub("\n", text)
    for wrapper in WRAPPERS:
        if wrapper.closing.startswith("</") and wrapper.meaning != "words":
            prose = _remove_blocks(prose, wrapper.opening, wrapper.closing)
    for sentence in _END.split(prose):
        bare = single_spaces(_BULLET.sub("", sentence, count=1))
        if SHORTEST_DEMAND <= len(bare) <= LONGEST_DEMAND and _DEMAND.search(bare):
            yield bare


def _remove_blocks(text: str, opening: str, closing: str) -> str:
    """Remove the blocks of a text; an unclosed one extends to the end."""
    first, *rest = text.split(opening)
    return "\n".join([first, *(piece.partition(closing)[2] for piece in rest)])


def single_spaces(text: str) -> str:
    """Collapse runs of white space to one space."""
    return " ".join(text.split())


HORIZON = 60
FAR = 0.3
"""Share of the past after which a last mention counts as far."""


class Need(NamedTuple):
    """A fact that the future uses."""

    fact: str
    kind: FactKind
    action: bool
    far: bool
    step: int
    """Index of the future message that first writes it."""
    near: Surroundings

    @property
    def hard(self) -> bool:
        return self.kind in HARD


def needs_at(past: Transcript, future: Transcript, generic: Collection[str] = frozenset()) -> tuple[Need, ...]:
    """Return the facts that the messages after a cut use and that only the messages before it contain."""
    written = _first_uses(future[:HORIZON], generic)
    text = join_texts(past)
    found = []
    for fact, (kind, action, step) in written.items():
        at = list(places(text, fact))
        if at:
            far = at[-1] < (1 - FAR) * len(text)
            found.append(Need(fact, kind, action, far, step, surroundings(text, fact, at)))
    return tuple(found)


def _first_uses(future: Transcript, generic: Collection[str]) -> dict[str, tuple[FactKind, bool, int]]:
    """Return the facts that the assistant is the first to mention after the cut."""
    texts = [text_of(message) for message in future]
    whole = APART.join(texts)
    starts = list(accumulate((len(text) + len(APART) for text in texts), initial=0))[:-1]
    seen: set[str] = set()
    found: dict[str, tuple[FactKind, bool, int]] = {}
    for step, message in enumerate(future):
        if message.role != "assistant":
            continue
        for fact, kind, action in _written_facts(message):
            if fact in seen:
                continue
            seen.add(fact)
            first = next(places(whole, fact), -1)
            if bisect_right(starts, first) - 1 == step and fact not in generic and not is_common(fact):
                found[fact] = (kind, action, step)
    return found


def _written_facts(message: Message) -> list[tuple[str, FactKind, bool]]:
    actions = [(fact, kind, True) for fact, kind in facts_in(argument_text(message))]
    return actions + [(fact, kind, False) for fact, kind in facts_in(spoken_text(message))]


Search = Callable[[Transcript, str], str]
"""Function from the past and a query to a text."""
BLANK = " "
MEASURES = ("bound", "hard", "far", "action", "searched", "demands")


class Score(NamedTuple):
    """Shares from 0 to 1; None if nothing of the kind was needed."""

    share: float
    """Tokens kept relative to tokens of the past."""
    bound: float
    """Needed facts kept with words that explain them: the main measure."""
    hard: float | None
    """As `bound`, for paths, ids, hashes, URLs and numbers."""
    far: float | None
    """As `bound`, for facts last mentioned more than 30 % of the past ago."""
    action: float | None
    """As `bound`, for facts used in tool arguments."""
    searched: float | None
    """As `bound`, including the result of one search by each step that needs facts."""
    demands: float | None
    """Constraining sentences of the user kept verbatim."""


class Case(NamedTuple):
    """The exam at one cut; independent of the method and built once."""

    past_tokens: int
    needs: tuple[Need, ...]
    findable: frozenset[str]
    """Needed facts that a search returns bound."""
    demands: tuple[str, ...]


def recall_search(past: Transcript, query: str) -> str:
    """Return the result of a search of the past with midfold's own tool."""
    recall = _recall(past)
    return APART.join(recall.describe_hits(recall.hits(query)))


@lru_cache(maxsize=2)
def _recall(past: Transcript) -> Recall:
    return InMemorySource({"past": past}).recall(lambda text: text)


def query_of(step: str, facts: Iterable[str]) -> str:
    """Return the words of a step without the facts it needs, because a searcher does not know them yet.

    Quotes are dropped, too: in a query they mean "literally".
    """
    for fact in sorted(facts, key=len, reverse=True):
        step = step.replace(fact, BLANK)
    return step.replace('"', BLANK)


def case_at(cut: Cut, generic: Collection[str] = frozenset(), search: Search | None = None) -> Case:
    past = cut.past
    needs = needs_at(past, cut.future, generic)
    found = frozenset() if search is None else _findable(past, cut.future, needs, search)
    people = (message for message, human in zip(past, cut.session.human, strict=False) if human)
    return Case(total(past), needs, found, demands(people))


def _findable(past: Transcript, future: Transcript, needs: Sequence[Need], search: Search) -> frozenset[str]:
    facts = [need.fact for need in needs]
    found: set[str] = set()
    for step in sorted({need.step for need in needs}):
        here = [need for need in needs if need.step == step]
        brought = search(past, query_of(text_of(future[:HORIZON][step]), facts))
        found.update(need.fact for need in here if is_bound(brought, need.fact, need.near))
    return frozenset(found)


def score(kept: Transcript, exam: Case) -> Score:
    """Score one compaction; the exam must have needs."""
    messages = tuple(message for message in kept if message.role != "system")
    text = join_texts(messages)
    held = {need.fact for need in exam.needs if is_bound(text, need.fact, need.near)}
    flat = single_spaces(text) if exam.demands else ""
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


def retention_of(past: Transcript, kept: Transcript, future: Transcript) -> float | None:
    """Return the share of needed facts, used by the future and held only by the past, that `kept` contains bound.

    None if the future needs nothing.
    """
    needs = needs_at(tuple(message for message in past if message.role != "system"), future)
    if not needs:
        return None
    text = join_texts(message for message in kept if message.role != "system")
    return round(sum(is_bound(text, need.fact, need.near) for need in needs) / len(needs), 4)
