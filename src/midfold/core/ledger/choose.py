"""Which lines go into the ledger: those that add most worth for their tokens.

Rules of this file:
1. Each name counts once. A line that adds no name that is not there yet costs its tokens for nothing and is not taken.
2. A name is there when a line has it with words that say what it is; without them it counts for a fraction.
3. Candidates are the newest places of the worthiest names, so the work grows with the budget, not with the fold.
4. The same fold and budget give the same lines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from heapq import heapify, heappop, heappush, nsmallest
from typing import NamedTuple

from midfold.core.estimate import estimate_text
from midfold.core.ledger.census import RESULT, Census
from midfold.core.ledger.lines import GOES_ON, may_be_order, narrow, snippet
from midfold.core.ledger.names import names, parts
from midfold.core.ledger.worth import worth

UNBOUND = 0.25
TOKENS_PER_NAME = 4
FEWEST_NAMES = 40
ENOUGH_LINES = 4
"""Candidates in which a name stands bound; more of them hardly ever make a better choice."""
NEAR = 600
"""Characters on either side of a name that must be free of credentials."""
LINE_TOKENS = 0.6
"""A line break."""
LABEL_TOKENS = 1
"""The brackets around an origin."""


class Line(NamedTuple):
    """A verbatim line, where it stands, and the names it has."""

    text: str
    message: int
    part: int
    names: tuple[str, ...]
    cost: float
    bound: bool
    at: int
    """Where the name that led to it begins."""


class Chosen(NamedTuple):
    lines: list[Line]
    tokens: int
    covered: set[str]
    worths: dict[str, float]


def choose(
    census: Census,
    budget: int,
    told: Iterable[str] = (),
    redact: Callable[[str], str] = lambda text: text,
    origin: Callable[[int, int], str] = lambda message, part: "",
) -> Chosen:
    """Lines for about `budget` tokens; `told` are texts whose names the reader has already.

    The `origin` of a text is told once for all its lines, and costs its tokens.
    """
    worths = worth(census)
    covered: set[str] = set()
    for text in told:
        for name, _ in names(text):
            covered.update(parts(name))
    lines = _candidates(census, worths, covered, max(budget // TOKENS_PER_NAME, FEWEST_NAMES))
    heap = [(-_gain(line, worths, covered) / line.cost, number) for number, line in enumerate(lines)]
    heapify(heap)
    chosen: list[Line] = []
    origins = {""}
    left = float(budget)
    while heap:
        promised, number = heappop(heap)
        line = lines[number]
        gain = _gain(line, worths, covered) / line.cost
        if gain <= 0 or line.cost > left:
            continue
        if heap and gain < -heap[0][0] and gain < -promised:
            heappush(heap, (-gain, number))
            continue
        source = origin(line.message, line.part)
        label = 0 if source in origins else estimate_text(source) + LABEL_TOKENS
        if line.cost + label > left:
            continue
        if not _is_clean(line, census, redact):
            continue
        left -= line.cost + label
        origins.add(source)
        chosen.append(line)
        for name in line.names:
            covered.update(parts(name)) if line.bound else covered.add(name)
    chosen.sort(key=lambda line: (line.message, line.part))
    return Chosen(chosen, round(budget - left), covered, worths)


def _gain(line: Line, worths: dict[str, float], covered: set[str]) -> float:
    gain = sum(worths[name] for name in line.names if name not in covered)
    return gain if line.bound else gain * UNBOUND


def _candidates(census: Census, worths: dict[str, float], covered: set[str], most: int) -> list[Line]:
    entries = census.entries
    open_names = [name for name in worths if name not in covered]
    best = nsmallest(most, open_names, key=lambda name: (-worths[name], name))
    found: dict[str, Line] = {}
    seen: dict[str, int] = {}
    for name in best:
        for message, part in reversed(entries[name].places):
            if seen.get(name, 0) >= ENOUGH_LINES:
                break
            line, short = _pieces(census, message, part, name, worths)
            if line is None:
                continue
            if line.text not in found and line.bound:
                for other in line.names:
                    seen[other] = seen.get(other, 0) + 1
            found[line.text] = line
            if short is not None:
                found.setdefault(short.text, short)
    return list(found.values())


def _pieces(
    census: Census, message: int, part: int, name: str, worths: dict[str, float]
) -> tuple[Line | None, Line | None]:
    """The line of a name, and the words right beside it where that is shorter."""
    text = census.texts[message][part][1]
    at = text.find(name)
    if at < 0:
        return None, None
    piece = snippet(text, at, len(name))
    short = narrow(text, at, len(name), len(piece.text))

    def line(words: str, *, bound: bool) -> Line:
        inside = tuple(dict.fromkeys(other for other, _ in names(words) if other in worths))
        cost = estimate_text(words.strip(GOES_ON)) + LINE_TOKENS
        return Line(words, message, part, inside, cost, bound, at)

    return line(piece.text, bound=piece.bound), line(short, bound=True) if short else None


def _is_clean(line: Line, census: Census, redact: Callable[[str], str]) -> bool:
    """Whether there is no credential in the line or near it, and nothing that a reader may take for an order."""
    who, text = census.texts[line.message][line.part]
    if who == RESULT and may_be_order(line.text, text, line.at):
        return False
    around = text[max(line.at - NEAR, 0) : line.at + NEAR]
    return redact(around) == around
