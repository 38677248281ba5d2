"""Which contiguous turns of the middle are folded: those at its beginning, unless later turns lose more by that.

A fold at the beginning keeps the longest run of newest turns. Where the beginning of the middle holds what later turns
go on using, a fold further on keeps more of that within the same target.

Rules of this file:
1. A later fold and the first one are judged at the same place, the end of the later one: by the names that an
   assistant uses after it, and by which of them the turns say that each would keep before it.
2. A later fold must be better; of equals the earliest is taken.
3. Groups at the beginning of a fold for which there is room stay: the result is as near to the target as it can be.
4. Only turns that may stay are looked at, and of an assistant's turn its beginning: work is bounded by the target.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice
from typing import NamedTuple

from midfold.fold.facts import CHUNK, judged
from midfold.trajectory.records import Record
from midfold.trajectory.texts import Texts

LONGEST_READ = 2_000
"""Characters of an assistant's turn in which names are looked for."""
MOST_NAMES = 60
MOST_BEFORE = 0.2
"""Of the room, for turns before the fold: most of what stays are the newest ones."""
USUAL = 0.25
"""Tokens per character where nothing was counted."""


class Middle(NamedTuple):
    """Turns between what is protected, in groups that stay or are folded as a whole."""

    record: Record
    places: Sequence[int]
    """Where groups begin, and where the last one ends."""
    room: int
    """Tokens of groups that may stay."""

    def tokens(self, start: int, end: int) -> int:
        return self.record.total(range(self.places[start], self.places[end]))

    def length(self, start: int, end: int) -> int:
        return sum(map(len, map(self.record.raw, range(self.places[start], self.places[end]))))


def chosen(middle: Middle, end: int, *, judge: bool = True) -> tuple[int, int]:
    """The groups to fold, the first and one after the last, where folding from the beginning takes `end` of them.

    Without `judge` the fold from the beginning is taken.
    """
    start = _best_start(middle, end) if judge else 0
    while middle.tokens(0, start) > middle.room:
        start -= 1
    left = middle.room - middle.tokens(0, start) - middle.tokens(end, len(middle.places) - 1)
    while left < 0:
        left += middle.tokens(end, end + 1)
        end += 1
    while (more := middle.record.within(range(middle.places[start], middle.places[start + 1]), left)) is not None:
        left -= more
        start += 1
    return start, end


def _best_start(middle: Middle, end: int) -> int:
    """How many groups at the beginning of the middle stay in the best fold."""
    record, folds = middle.record, _Folds(middle, end)
    count = len(folds.stops)
    if count < 2:
        return 0
    early = Texts(record, range(folds.starts[-1]))
    late = Texts(record, range(folds.stops[0], len(record)))
    kept = [(name, folds.keeping(early.first(name))) for name in _used(record, folds.stops[0])]
    changes = [0] * (count + 1)
    for name, keeping in kept:
        if 0 < keeping < count:
            _judge(late.mentions(name), keeping, record.kinds, folds.stops, changes)
    if max(accumulate(changes)) <= 0:
        return 0
    for name, keeping in kept:
        if keeping == count and late.has(name, folds.stops[-1]):
            _judge(late.mentions(name), keeping, record.kinds, folds.stops, changes)
    marks = list(accumulate(changes[:-1]))
    return marks.index(max(marks))


class _Folds:
    """The folds to choose from, as turns: fold n leaves n groups before it.

    Where each ends is worked out from lengths: only what is chosen is counted.
    """

    def __init__(self, middle: Middle, end: int) -> None:
        last = len(middle.places) - 1
        kept = middle.tokens(end, last)
        per_character = kept / max(middle.length(end, last), 1) or USUAL
        room, used = middle.room - kept, 0.0
        ends = [end]
        while len(ends) <= ends[0]:
            used += per_character * middle.length(len(ends) - 1, len(ends))
            while used > room and end < last:
                room += middle.tokens(end, end + 1)
                end += 1
            if used > min(room, MOST_BEFORE * middle.room):
                break
            ends.append(end)
        self.starts = middle.places[: len(ends)]
        self.stops = [middle.places[number] for number in ends]

    def keeping(self, first: int | None) -> int:
        """The first fold that keeps a turn before it: 0 if all do, the number of folds if none does."""
        return len(self.stops) if first is None else bisect_right(self.starts, first)


def _judge(
    mentions: Iterator[int], keeping: int, kinds: Sequence[str], stops: Sequence[int], changes: list[int]
) -> None:
    """Adds what one name says for and against each fold to the changes of the mark from fold to fold.

    It speaks for a fold that keeps an early mention (from number `keeping` on they do) where the first fold keeps none,
    and against one that keeps none where the first fold keeps a mention: between its own end and that of the other.
    """
    reached = 0
    for mention in mentions:
        end = bisect_right(stops, mention)
        if kinds[mention] == "gpt":
            if not reached and keeping < end:
                changes[keeping] += 1
                changes[end] -= 1
            elif 0 < reached < min(end, keeping):
                changes[reached] -= 1
                changes[min(end, keeping)] += 1
        reached = end
        if end == len(stops):
            break


def _used(record: Record, start: int) -> Iterator[str]:
    """The first names that assistants use from a turn on, each once."""
    turns = (place for place in range(start, len(record)) if record.kinds[place] == "gpt")
    text = "\n".join(record.raw(place)[:LONGEST_READ] for place in turns)
    found = (judged(chunk) for chunk in dict.fromkeys(CHUNK.findall(text)))
    return islice((name.text for name in found if name is not None), MOST_NAMES)
