"""Future-needed facts: what a compaction before message t had to keep.

Rules of this file (the definition of the measure):
1. The assistant writes the fact in the next `HORIZON` messages: in tool arguments it is an action fact, in text a reply
   fact.
2. It occurs before t, outside the system prompt.
3. Nothing after t re-introduced it before that use: its first mention after t is the assistant's own.
4. It is not generic.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection
from itertools import accumulate
from typing import NamedTuple

from midfold.eval.facts import HARD, Kind, facts_in, places
from midfold.eval.generic import is_common
from midfold.eval.texts import APART, given, joined, said, text_of
from midfold.eval.words import Surroundings, surroundings
from midfold.transcript.message import Message, Transcript

HORIZON = 60
FAR = 0.3
"""A fact is far if it was last mentioned more than this share of the past ago."""


class Need(NamedTuple):
    """One fact the future uses."""

    fact: str
    kind: Kind
    action: bool
    far: bool
    step: int
    """Which message of the future writes it first."""
    near: Surroundings

    @property
    def hard(self) -> bool:
        return self.kind in HARD


def needs_at(past: Transcript, future: Transcript, generic: Collection[str] = frozenset()) -> tuple[Need, ...]:
    """The facts that the messages after a cut use and only the messages before it hold."""
    written = _first_written(future[:HORIZON], generic)
    text = joined(past)
    found = []
    for fact, (kind, action, step) in written.items():
        at = list(places(text, fact))
        if at:
            far = at[-1] < (1 - FAR) * len(text)
            found.append(Need(fact, kind, action, far, step, surroundings(text, fact, at)))
    return tuple(found)


def _first_written(future: Transcript, generic: Collection[str]) -> dict[str, tuple[Kind, bool, int]]:
    """Facts that the assistant is the first to mention after the cut."""
    texts = [text_of(message) for message in future]
    whole = APART.join(texts)
    starts = list(accumulate((len(text) + len(APART) for text in texts), initial=0))[:-1]
    seen: set[str] = set()
    found: dict[str, tuple[Kind, bool, int]] = {}
    for step, message in enumerate(future):
        if message.role != "assistant":
            continue
        for fact, kind, action in _written(message):
            if fact in seen:
                continue
            seen.add(fact)
            first = next(places(whole, fact), -1)
            if bisect_right(starts, first) - 1 == step and fact not in generic and not is_common(fact):
                found[fact] = (kind, action, step)
    return found


def _written(message: Message) -> list[tuple[str, Kind, bool]]:
    actions = [(fact, kind, True) for fact, kind in facts_in(given(message))]
    return actions + [(fact, kind, False) for fact, kind in facts_in(said(message))]
