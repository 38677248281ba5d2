"""Hits: candidates ranked, with a redacted excerpt around what was looked for. The same for every database.

A hit that holds the query as it was typed comes before one that only has its words; then the denser one, then the
newer one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import msgspec

from midfold.core.archive import DIGITS, PREFIX
from midfold.core.words import Query, fold, parse_query
from midfold.store.bodies import searchable, source_of
from midfold.store.protocol import Found, Store

AROUND = 90
"""Characters shown on each side."""
REDACTED_AROUND = 4_000
"""Characters redacted on each side before the excerpt is cut: a secret that begins outside it is still one."""
EXACT, EXACT_WORD = 10_000.0, 100.0


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
    place: int


FEWEST_CANDIDATES, MOST_CANDIDATES = 200, 5_000


def search(store: Store, text: str, redact: Callable[[str], str], limit: int, **filters: Any) -> list[Hit]:
    """The best hits; more candidates are asked for while phrases leave too few of them."""
    most = FEWEST_CANDIDATES
    while True:
        found = store.find(text, most=most, **filters)
        hits = ranked(found, text, redact, limit)
        if len(hits) >= limit or len(found) < most or most >= MOST_CANDIDATES:
            return hits
        most *= 5


def ranked(candidates: Iterable[Found], text: str, redact: Callable[[str], str], limit: int) -> list[Hit]:
    """The best hits first. Candidates come with the newest first, and stay so among equals."""
    query = parse_query(text)
    scored = [item for found in candidates if (item := _scored(found, query)) is not None]
    scored.sort(key=lambda item: -item.score)
    return [_hit(item, redact) for item in scored[:limit]]


def _scored(found: Found, query: Query) -> _Scored | None:
    text = searchable(source_of(found.message))
    plain = text.lower()
    spaced = fold(text) if query.phrases or " " in query.literal else plain
    if any(phrase not in spaced for phrase in query.phrases):
        return None
    places = [place for term in query.terms if (place := plain.find(term.text)) >= 0]
    score = sum(min(plain.count(term.text), 20) for term in query.terms) / (1 + len(plain) / 2_000) ** 0.5
    exact = plain.find(query.literal) if query.literal else -1
    if exact >= 0 or query.literal in spaced:
        score += EXACT
    score += EXACT_WORD * sum(word in plain for word in set(query.literal.split()))
    return _Scored(score, found, text, exact if exact >= 0 else min(places, default=0))


def _hit(item: _Scored, redact: Callable[[str], str]) -> Hit:
    found = item.found
    return Hit(
        session=found.session,
        position=found.position,
        role=found.role,
        at=found.at,
        handle=PREFIX + found.digest.hex()[:DIGITS],
        score=round(item.score, 3),
        text=_excerpt(item.text, item.place, redact),
    )


def _excerpt(text: str, place: int, redact: Callable[[str], str]) -> str:
    """One line around a place. Redacting may shorten what stands before it, so both halves are redacted together."""
    start, end = max(place - REDACTED_AROUND, 0), place + REDACTED_AROUND
    while start > 0 and not text[start - 1].isspace() and place - start < 2 * REDACTED_AROUND:
        start -= 1
    window = text[start:end]
    clean = redact(window)
    middle = place - start
    if clean != window:
        mark = window[middle : middle + 24]
        found = clean.find(mark)
        middle = found if found >= 0 else min(middle, len(clean))
    low, high = max(middle - AROUND, 0), middle + AROUND
    shown = re.sub(r"\s+", " ", clean[low:high]).strip()
    return f"{'…' if start + low > 0 else ''}{shown}{'…' if high < len(clean) or end < len(text) else ''}"
