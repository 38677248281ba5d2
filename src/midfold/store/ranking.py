"""Hits: candidates ranked, with a redacted excerpt around what was looked for. The same for every database.

1. A hit that holds the query as it was typed comes before one that holds it in other letters or inside of words, and
   that before one that only has its words; then the denser one, then the newer one.
2. A line is shown whole. Where it is too long for that, or where lines are left out, stands an ellipsis.
3. Lines that have the query as it was typed come first, then those with most of its words; they keep their order.
4. Text is redacted before lines are chosen: half a credential is not recognised as one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any, NamedTuple

import msgspec

from midfold.fold.archive import DIGITS, PREFIX
from midfold.fold.facts import Query, fold, parse_query
from midfold.store.bodies import searchable, source_of
from midfold.store.protocol import Candidate, Store

REDACTED_AROUND = 4_000
"""Characters redacted on each side of a place: a secret that begins outside of what is shown is still one."""
SCANNED = 200_000
"""Characters of a text in which the best line is looked for."""
MOST_LINES = 3
LONGEST_LINE = 240
ROOM = 160
"""Characters that lines with the query may leave to their neighbours."""
ELLIPSIS = "…"


class Fit(NamedTuple):
    """How well a text answers a query; the greater, the better."""

    as_typed: bool
    """Whether it has the query letter by letter, as words of its own."""
    literal: bool
    words: int
    """How many of its words are there with the same letters."""
    terms: int


NO_FIT = Fit(False, False, 0, 0)


class Matcher:
    """A query, ready to be compared with many texts."""

    def __init__(self, query: Query) -> None:
        self.query = query
        before = r"(?<!\w)" if re.match(r"\w", query.typed) else ""
        after = r"(?!\w)" if re.match(r"\w", query.typed[-1:]) else ""
        self._words = set(query.typed.split())
        self._any = re.compile("|".join(re.escape(text) for text in {term.text for term in query.terms}) or r"(?!)")
        self._typed = re.compile(before + re.escape(query.typed) + after) if query.typed else None

    def as_typed(self, text: str) -> int:
        """Where the query stands in a text as it was typed; -1 if it does not."""
        if self._typed is None or self.query.typed not in text:
            return -1
        found = self._typed.search(text)
        return found.start() if found else -1

    def fit(self, line: str) -> Fit:
        plain = line.lower()
        if self._any.search(plain) is None:
            return NO_FIT
        literal = bool(self.query.literal) and self.query.literal in plain
        words = sum(word in line for word in self._words)
        return Fit(self.as_typed(line) >= 0, literal, words, sum(term.text in plain for term in self.query.terms))

    def place(self, text: str) -> int:
        """Where the query stands in a text, or the first of its words."""
        typed, plain = self.as_typed(text), text.lower()
        if typed >= 0:
            return typed
        found = [plain.find(word) for word in (self.query.literal, *(term.text for term in self.query.terms)) if word]
        return next((place for place in found if place >= 0), 0)

    def best(self, text: str) -> int:
        """Where it is best to look at a long text: at the query, or at the line with most of its words."""
        place = self.place(text)
        if self.query.literal and text[place : place + len(self.query.literal)].lower() == self.query.literal:
            return place
        lines = text[:SCANNED].split("\n")
        fits = list(map(self.fit, lines))
        number = fits.index(max(fits))
        return sum(map(len, lines[:number])) + number


def excerpt(text: str, matcher: Matcher, redact: Callable[[str], str]) -> str:
    """The lines that answer a query best."""
    place = matcher.best(text)
    start, end = max(place - REDACTED_AROUND, 0), place + REDACTED_AROUND
    while start > 0 and not text[start - 1].isspace() and place - start < 2 * REDACTED_AROUND:
        start -= 1
    lines = [line.expandtabs(4).rstrip() for line in redact(text[start:end]).splitlines()] or [""]
    shown = _with_neighbours(_chosen(lines, matcher, text.count("\n", start, place)), lines)
    pieces = [ELLIPSIS] if start or shown[0] else []
    for number, after in pairwise([*shown, len(lines)]):
        pieces.append(_cut(lines[number], matcher))
        if after > number + 1 or (after == len(lines) and end < len(text)):
            pieces.append(ELLIPSIS)
    return "\n".join(pieces)


def _chosen(lines: list[str], matcher: Matcher, place: int) -> list[int]:
    """Numbers of the lines to show; the line of the place where redacting took away what was looked for."""
    fits = [matcher.fit(line) for line in lines]
    best = max(fits)
    if not any(best):
        return [min(place, len(lines) - 1)]
    words = {term.text for term in matcher.query.terms}
    shown: list[int] = []
    for number in sorted(range(len(lines)), key=fits.__getitem__, reverse=True):
        there = {word for word in words if word in lines[number].lower()}
        if fits[number] == best or there:
            shown.append(number)
            words -= there
        if len(shown) == MOST_LINES:
            break
    return shown


def _with_neighbours(shown: list[int], lines: list[str]) -> list[int]:
    """The lines beside short ones come along: they often say what it is about."""
    room = ROOM - sum(len(lines[number]) for number in shown)
    for number in [beside for one in shown for beside in (one + 1, one - 1)]:
        length = len(lines[number].strip()) if 0 <= number < len(lines) else 0
        if number not in shown and 0 < length <= room:
            shown = [*shown, number]
            room -= length
    return sorted(shown)


def _cut(line: str, matcher: Matcher) -> str:
    """A line, or as much of it around what was looked for as may be shown."""
    if len(line) <= LONGEST_LINE:
        return line
    first = max(min(matcher.place(line) - LONGEST_LINE // 3, len(line) - LONGEST_LINE), 0)
    last = first + LONGEST_LINE
    return f"{ELLIPSIS if first else ''}{line[first:last].strip()}{ELLIPSIS if last < len(line) else ''}"


AS_TYPED, EXACT, EXACT_WORD = 20_000.0, 10_000.0, 100.0
Wanted = Callable[[Candidate], bool]


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
    found: Candidate
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
        hits = rank(candidates if wanted is None else reversed(candidates), text, redact, limit)
        if len(hits) >= limit or len(found) < most or most >= MOST_CANDIDATES:
            return hits
        most *= 5


def rank(candidates: Iterable[Candidate], text: str, redact: Callable[[str], str], limit: int) -> list[Hit]:
    """The best hits first. Candidates come with the newest first, and stay so among equals."""
    matcher = Matcher(parse_query(text))
    scored = [item for found in candidates if (item := _score(found, matcher)) is not None]
    scored.sort(key=lambda item: -item.score)
    return [_hit(item, matcher, redact) for item in scored[:limit]]


def _score(found: Candidate, matcher: Matcher) -> _Scored | None:
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
