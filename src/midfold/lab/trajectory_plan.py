"""Which turns of a trajectory are folded: the documented strategy as one pure function.

1. The first turns of the protected kinds and the last N turns stay as they are.
2. A cut never stands before a tool's turn: a call and its results stay, or are folded, together.
3. Of the middle only as much is folded as the target needs: from its beginning, which keeps the longest run of newest
   turns, unless a later fold keeps more of the names that assistants use after it. Of equals the earliest is taken.
4. If the middle is not enough, turns that stand between the protected first ones are folded as well.
5. Only turns that may stay are counted: a record far above its target costs as much as one at its target. One that has
   fewer bytes than the target has tokens, or is estimated at less than half of the target, is not counted at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

from midfold.compaction.local.identifiers import CHUNK, judge_name
from midfold.lab.trajectory_records import TrajectoryRecord
from midfold.lab.trajectory_settings import TrajectorySettings


class TurnTexts:
    """Some turns of a record."""

    def __init__(self, record: TrajectoryRecord, places: Sequence[int]) -> None:
        self._places = places
        texts = [record.raw(place) for place in places]
        self._starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        self._text = "\n".join(texts)

    def first(self, name: str) -> int | None:
        """The first turn that mentions a name."""
        at = self._text.find(name)
        return None if at < 0 else self._places[self._number(at)]

    def mentions(self, name: str) -> Iterator[int]:
        """The turns that mention a name, the earliest first."""
        at = self._text.find(name)
        while at >= 0:
            number = self._number(at)
            yield self._places[number]
            at = self._text.find(name, self._starts[number + 1])

    def has(self, name: str, before: int) -> bool:
        """Whether a turn before this one mentions a name."""
        return self._text.find(name, 0, self._starts[bisect_left(self._places, before)]) >= 0

    def newest(self, name: str) -> Iterator[int]:
        """The turns that mention a name, the newest first."""
        at = self._text.rfind(name)
        while at >= 0:
            number = self._number(at)
            yield self._places[number]
            at = self._text.rfind(name, 0, self._starts[number])

    def _number(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1


LONGEST_READ = 2_000
"""Characters of an assistant's turn in which names are looked for."""
MOST_NAMES = 60
MOST_BEFORE = 0.2
"""Of the room, for turns before the fold: most of what stays are the newest ones."""
USUAL = 0.25
"""Tokens per character where nothing was counted."""


class Middle(NamedTuple):
    """Turns between what is protected, in groups that stay or are folded as a whole."""

    record: TrajectoryRecord
    places: Sequence[int]
    """Where groups begin, and where the last one ends."""
    room: int
    """Tokens of groups that may stay."""

    def tokens(self, start: int, end: int) -> int:
        return self.record.total(range(self.places[start], self.places[end]))

    def length(self, start: int, end: int) -> int:
        return sum(map(len, map(self.record.raw, range(self.places[start], self.places[end]))))


def choose_fold(middle: Middle, end: int, *, judge: bool = True) -> tuple[int, int]:
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
    early = TurnTexts(record, range(folds.starts[-1]))
    late = TurnTexts(record, range(folds.stops[0], len(record)))
    kept = [(name, folds.keeping(early.first(name))) for name in _names_used(record, folds.stops[0])]
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


def _names_used(record: TrajectoryRecord, start: int) -> Iterator[str]:
    """The first names that assistants use from a turn on, each once."""
    turns = (place for place in range(start, len(record)) if record.kinds[place] == "gpt")
    text = "\n".join(record.raw(place)[:LONGEST_READ] for place in turns)
    found = (judge_name(chunk) for chunk in dict.fromkeys(CHUNK.findall(text)))
    return islice((name.text for name in found if name is not None), MOST_NAMES)


FAR = 8
"""Bytes per token of the target; only records below that are looked at for being far below it."""
LONG = 32
"""Bytes per token of the target; of records above that so little stays that there is nothing to choose."""
SURE = 2
"""The estimate is off by a few per cent; nothing real is off by so much."""


class TrajectoryPlan(NamedTuple):
    """What is folded. Without a span the record stays as it is."""

    spans: tuple[range, ...] = ()
    """In order; the summary stands in place of the last one."""
    kept_tokens: int = 0
    """What stays, without the summary."""
    fits: bool = True

    @property
    def folded_turns(self) -> list[int]:
        return [place for span in self.spans for place in span]


def plan_trajectory(record: TrajectoryRecord, settings: TrajectorySettings) -> TrajectoryPlan:
    """The fold that brings the record to its target, or as near to it as what is protected allows."""
    length, target = len(record), settings.target_tokens
    if record.most_tokens <= FAR * target:
        rough = record.fixed_tokens + record.rough(range(length))
        if record.most_tokens <= target or SURE * rough <= target:
            return TrajectoryPlan(kept_tokens=rough)
    cuts = record.cuts
    tail = cuts[bisect_right(cuts, max(length - settings.protect_last, 0)) - 1]
    firsts = _firsts(record, settings, tail)
    head = cuts[bisect_left(cuts, firsts[-1] + 1)] if firsts else 0
    if head > tail:
        head = tail
    kept = protected = record.fixed_tokens + record.total(range(head)) + record.total(range(tail, length))
    room = target - settings.summary_tokens - settings.turn_tokens
    places = [cut for cut in cuts if head <= cut <= tail]
    reach = len(places) - 1
    while reach > 0:
        more = record.within(range(places[reach - 1], places[reach]), room - kept)
        if more is None:
            break
        kept += more
        reach -= 1
    if reach <= 0 and kept <= target:
        return TrajectoryPlan(kept_tokens=kept)
    if reach > 0 and (rest := record.within(range(places[0], places[reach]), target - kept)) is not None:
        return TrajectoryPlan(kept_tokens=kept + rest)
    if reach > 0 and kept <= room:
        middle = Middle(record, places, room - protected)
        start, end = choose_fold(middle, reach, judge=record.most_tokens <= LONG * target)
        kept += middle.tokens(0, start) - middle.tokens(reach, end)
        return TrajectoryPlan((range(places[start], places[end]),), kept)
    between = _between(cuts, firsts, head)
    kept -= sum(record.total(span) for span in between)
    spans = (*between, range(head, tail)) if head < tail else between
    return TrajectoryPlan(spans, kept, kept <= room if spans else kept <= target)


def _firsts(record: TrajectoryRecord, settings: TrajectorySettings, tail: int) -> list[int]:
    """The first turn of each protected kind, as far as it is not part of the tail anyway."""
    found: dict[str, int] = {}
    for place, kind in enumerate(record.kinds[:tail]):
        if kind in settings.protect_first and kind not in found:
            found[kind] = place
    return sorted(found.values())


def _between(cuts: Sequence[int], firsts: list[int], head: int) -> tuple[range, ...]:
    """The groups of turns among the protected first ones that hold none of them, neighbours together."""
    groups = [range(start, end) for start, end in pairwise(cuts) if end <= head]
    free = [group for group in groups if not any(place in group for place in firsts)]
    merged: list[range] = []
    for group in free:
        if merged and merged[-1].stop == group.start:
            merged[-1] = range(merged[-1].start, group.stop)
        else:
            merged.append(group)
    return tuple(merged)
