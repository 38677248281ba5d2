"""What the turns after a fold need of it: names that they use and that only the fold explains.

A live agent has to guess what its future will need. Here the future is on record. An assistant's turn that names what
nobody before it has mentioned teaches a model to invent; so the summary holds those names, each in a verbatim line.

Rules of this file:
1. A name is needed if an assistant's turn after the fold is the first of the kept turns to mention it.
2. A line is verbatim and says what its names are; each needed name counts once.
3. No line comes from near a credential, and none from a tool's output that could be taken for an order.
4. Work grows with what is kept, and with a search through the fold for each needed name; the fold is not parsed.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice
from typing import NamedTuple

from midfold.fold.facts import RESULT, may_be_order, names, snippet
from midfold.fold.redact import redact
from midfold.trajectory.records import Record
from midfold.trajectory.texts import Texts
from midfold.transcript import jsonio
from midfold.transcript.message import Text, ToolCall
from midfold.transcript.tokens import estimate_text

MOST_NAMES = 80
HORIZON = 60
"""Turns after the fold that are looked at."""
PLACES = 2
"""Mentions of a name that are looked at: the newest ones."""
NEAR = 600
"""Characters on either side of a name that must be free of credentials."""
LINE_TOKENS = 2
ACTION = 2
"""A name in the arguments of a call counts so many times one in a reply."""
UNBOUND = 0.3


class Line(NamedTuple):
    """A verbatim line of the fold."""

    text: str
    turn: int
    number: int
    """Which text of the turn."""
    at: int
    """Where the name that led to it stands in that text."""
    cost: int
    names: frozenset[str]
    bound: bool


def needed(record: Record, before: list[int], after: range) -> dict[str, int]:
    """The names the kept turns need, each with its weight, in the order of their use."""
    after = after[:HORIZON]
    found: dict[str, int] = {}
    judged: set[str] = set()
    texts = ["\n".join(record.raw(place) for place in before), *(record.raw(place) for place in after)]
    kept = "\n".join(texts)
    starts = accumulate(len(text) + 1 for text in texts[:-1])
    for place, start in zip(after, starts, strict=True):
        if record.kinds[place] != "gpt":
            continue
        for weight, text in _written(record, place):
            for name, _ in names(text):
                if name not in judged:
                    judged.add(name)
                    if kept.find(name, 0, start) < 0:
                        found[name] = weight
        if len(found) >= MOST_NAMES:
            break
    return found


def _written(record: Record, place: int) -> Iterator[tuple[int, str]]:
    """What the assistant writes in a turn. The names of tools and of their arguments are not its own."""
    for part in record.document.messages[place].parts:
        if isinstance(part, ToolCall):
            yield ACTION, _values(part.arguments)
    for part in record.document.messages[place].parts:
        if isinstance(part, Text):
            yield 1, part.text


def _values(arguments: str) -> str:
    try:
        value = jsonio.decode(arguments)
    except jsonio.NotJSON:
        return arguments
    leaves = value.values() if isinstance(value, dict) else [value]
    return "\n".join(leaf if isinstance(leaf, str) else jsonio.text_of(leaf) for leaf in leaves)


class Fold:
    """The folded turns; one is read when one of its names is wanted."""

    def __init__(self, record: Record, places: list[int]) -> None:
        self._record = record
        self._texts = Texts(record, places)
        self._spoken: dict[int, list[tuple[int, str]]] = {}

    def turns_with(self, name: str) -> Iterator[int]:
        """The newest turns that mention a name."""
        return islice(self._texts.newest(name), PLACES)

    def spoken(self, turn: int) -> list[tuple[int, str]]:
        if turn not in self._spoken:
            self._spoken[turn] = self._record.spoken(turn)
        return self._spoken[turn]

    def is_clean(self, line: Line) -> bool:
        """Whether there is no credential in a line or near it, and nothing that a reader may take for an order."""
        who, text = self.spoken(line.turn)[line.number]
        if who == RESULT and may_be_order(line.text, text, line.at):
            return False
        around = text[max(line.at - NEAR, 0) : line.at + NEAR]
        return redact(around) == around


def lines(fold: Fold, wanted: dict[str, int], budget: int) -> list[Line]:
    """Lines for at most `budget` tokens that cover most of what is wanted, in the order of the fold."""
    candidates = _candidates(fold, wanted)
    covered: dict[str, float] = {}
    heap = [(-_gain(line, wanted, covered) / line.cost, number) for number, line in enumerate(candidates)]
    heapify(heap)
    chosen: list[Line] = []
    left = budget
    while heap:
        promised, number = heappop(heap)
        line = candidates[number]
        gain = _gain(line, wanted, covered) / line.cost
        if gain <= 0 or line.cost > left:
            continue
        if gain < -promised and heap and gain < -heap[0][0]:
            heappush(heap, (-gain, number))
            continue
        if not fold.is_clean(line):
            continue
        left -= line.cost
        chosen.append(line)
        for name in line.names:
            covered[name] = max(covered.get(name, 0.0), 1.0 if line.bound else UNBOUND)
    return sorted(chosen, key=lambda line: line.turn)


def _gain(line: Line, wanted: dict[str, int], covered: dict[str, float]) -> float:
    worth = 1.0 if line.bound else UNBOUND
    return sum(wanted[name] * max(worth - covered.get(name, 0.0), 0.0) for name in line.names)


def _candidates(fold: Fold, wanted: dict[str, int]) -> list[Line]:
    found: dict[str, Line] = {}
    for name in wanted:
        for turn in fold.turns_with(name):
            line = _line(fold, turn, name, wanted)
            if line is not None and line.text not in found:
                found[line.text] = line
            if line is not None and line.bound:
                break
    return list(found.values())


def _line(fold: Fold, turn: int, name: str, wanted: dict[str, int]) -> Line | None:
    for number, (_, text) in enumerate(fold.spoken(turn)):
        at = text.find(name)
        if at >= 0:
            piece = snippet(text, at, len(name))
            inside = frozenset(other for other, _ in names(piece.text) if other in wanted) | {name}
            cost = estimate_text(piece.text) + LINE_TOKENS
            return Line(piece.text, turn, number, at, cost, inside, piece.bound)
    return None
