"""Hits: candidates ranked, with a redacted excerpt around what was looked for. The same for every database.

A hit that holds the query as it was typed comes before one that holds it in other letters or inside of words, and that
before one that only has its words; then the denser one, then the newer one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from midfold.fold.archive import DIGITS, PREFIX
from midfold.fold.facts import fold, parse_query
from midfold.store.bodies import searchable, source_of
from midfold.store.excerpts import Matcher, excerpt
from midfold.store.protocol import Found, Store

AS_TYPED, EXACT, EXACT_WORD = 20_000.0, 10_000.0, 100.0
Wanted = Callable[[Found], bool]


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One message that was found. `handle` unfolds to it, `text` is a redacted excerpt."""

    session: str
    position: int
    role: str
    at: int
    handle: str
    score: float
    text: str


class _Scored(NamedTuple):
    score: float
    found: Found
    text: str


FEWEST_CANDIDATES, MOST_CANDIDATES = 200, 5_000


def search(
    store: Store,
    text: str,
    redact: Callable[[str], str],
    limit: int,
    wanted: Wanted | None = None,
    **filters: Any,
) -> list[Hit]:
    """The best hits; more candidates are asked for while too few of them are left.

    With `wanted`, only such messages, and of those with the same bytes the newest.
    """
    most = FEWEST_CANDIDATES
    while True:
        found = store.find(text, most=most, **filters)
        candidates = found if wanted is None else {one.digest: one for one in reversed(found) if wanted(one)}.values()
        hits = ranked(candidates if wanted is None else reversed(candidates), text, redact, limit)
        if len(hits) >= limit or len(found) < most or most >= MOST_CANDIDATES:
            return hits
        most *= 5


def ranked(candidates: Iterable[Found], text: str, redact: Callable[[str], str], limit: int) -> list[Hit]:
    """The best hits first. Candidates come with the newest first, and stay so among equals."""
    matcher = Matcher(parse_query(text))
    scored = [item for found in candidates if (item := _scored(found, matcher)) is not None]
    scored.sort(key=lambda item: -item.score)
    return [_hit(item, matcher, redact) for item in scored[:limit]]


def _scored(found: Found, matcher: Matcher) -> _Scored | None:
    query = matcher.query
    text = searchable(source_of(found.message))
    plain = text.lower()
    spaced = fold(text) if query.phrases or " " in query.literal else plain
    if any(phrase not in spaced for phrase in query.phrases):
        return None
    exact = plain.find(query.literal) if query.literal else -1
    whole = plain.count(query.literal) if exact >= 0 else 0
    counts = [whole or plain.count(term.text) for term in query.terms]
    score = sum(min(count, 20) for count in counts) / (1 + len(plain) / 2_000) ** 0.5
    if exact >= 0 or query.literal in spaced:
        score += EXACT
    if exact >= 0 and matcher.as_typed(text) >= 0:
        score += AS_TYPED - EXACT
    score += EXACT_WORD * sum(word in plain for word in set(query.literal.split()))
    return _Scored(score, found, text)


def _hit(item: _Scored, matcher: Matcher, redact: Callable[[str], str]) -> Hit:
    found = item.found
    return Hit(
        session=found.session,
        position=found.position,
        role=found.role,
        at=found.at,
        handle=PREFIX + found.digest.hex()[:DIGITS],
        score=round(item.score, 3),
        text=excerpt(item.text, matcher, redact),
    )
