"""Plan which turns of a trajectory are folded: the documented strategy as one pure function.

1. The first turns of the protected kinds and the last N turns are kept.
2. A cut is never before a tool's turn: a call and its results are kept or folded together.
3. Only as much of the middle is folded as the target needs: from its start, which keeps the longest run of newest
   turns, unless a later fold keeps more of the names that assistants use after it. On a tie the earliest is used.
4. If the middle is not enough, turns between the protected first ones are folded as well.
5. Only turns that may be kept are counted: a record far above its target costs as much as one at its target. A record
   with fewer bytes than target tokens, or estimated at less than half of the target, is not counted at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import NamedTuple

from midfold.compaction.local.identifiers import CHUNK, classify_name
from midfold.lab.trajectory_records import TrajectoryRecord
from midfold.lab.trajectory_settings import TrajectorySettings


class TurnTexts:
    """Searchable text of some turns of a record."""

    def __init__(self, record: TrajectoryRecord, places: Sequence[int]) -> None:
        self._places = places
        texts = [record.raw(place) for place in places]
        self._starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        self._text = "\n".join(texts)

    def first(self, name: str) -> int | None:
        """Return the first turn that mentions a name, or None."""
        at = self._text.find(name)
        return None if at < 0 else self._places[self._number(at)]

    def mentions(self, name: str) -> Iterator[int]:
        """Yield the turns that mention a name, earliest first."""
        at = self._text.find(name)
        while at >= 0:
            number = self._number(at)
            yield self._places[number]
            at = self._text.find(name, self._starts[number + 1])

    def has(self, name: str, before: int) -> bool:
        """Return whether a turn before this one mentions a name."""
        return self._text.find(name, 0, self._starts[bisect_left(self._places, before)]) >= 0

    def newest(self, name: str) -> Iterator[int]:
        """Yield the turns that mention a name, newest first."""
        at = self._text.rfind(name)
        while at >= 0:
            number = self._number(at)
            yield self._places[number]
            at = self._text.rfind(name, 0, self._starts[number])

    def _number(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1


LONGEST_READ = 2_000
"""Maximum characters of an assistant's turn that are searched for names."""
MOST_NAMES = 60
MOST_BEFORE = 0.2
"""Maximum share of the available tokens for turns before the fold; most kept turns are the newest ones."""
USUAL = 0.25
"""Assumed tokens per character if nothing was counted."""


class Middle(NamedTuple):
    """Turns between the protected ones, in groups that are kept or folded as a whole."""

    record: TrajectoryRecord
    places: Sequence[int]
    """Starts of the groups, and the end of the last one."""
    room: int
    """Tokens available for kept groups."""

    def tokens(self, start: int, end: int) -> int:
        return self.record.total(range(self.places[start], self.places[end]))

    def length(self, start: int, end: int) -> int:
        return sum(map(len, map(self.record.raw, range(self.places[start], self.places[end]))))


def choose_fold(middle: Middle, end: int, *, judge: bool = True) -> tuple[int, int]:
    """Choose the groups to fold (first, one past the last), given that folding from the start takes `end` of them.

    Without `judge`, fold from the start.
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
    """Return the number of groups at the start of the middle that the best fold keeps."""
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
    """Candidate folds, as turns: fold n keeps n groups before it.

    Their ends are estimated from text lengths; only the chosen fold is counted.
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
        """Return the first fold that keeps turn `first` before it, or the number of folds if none does."""
        return len(self.stops) if first is None else bisect_right(self.starts, first)


def _judge(
    mentions: Iterator[int], keeping: int, kinds: Sequence[str], stops: Sequence[int], changes: list[int]
) -> None:
    """Add the votes of one name to `changes`, the differences in score from fold to fold.

    A name votes for folds that keep an early mention (numbers from `keeping` on) if the first fold keeps none, and
    against folds that keep none if the first fold keeps a mention between its own end and the other's.
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
    """Return the first distinct names that assistants use from a turn on."""
    turns = (place for place in range(start, len(record)) if record.kinds[place] == "gpt")
    text = "\n".join(record.raw(place)[:LONGEST_READ] for place in turns)
    found = (classify_name(chunk) for chunk in dict.fromkeys(CHUNK.findall(text)))
    return islice((name.text for name in found if name is not None), MOST_NAMES)


FAR = 8
"""Bytes per target token up to which a record may be far below its target, so that an estimate is made."""
LONG = 32
"""Bytes per target token above which so little is kept that there is nothing to choose."""
SURE = 2
"""Safety factor for the estimate, which is off by a few per cent."""


class TrajectoryPlan(NamedTuple):
    """Plan of a record; without spans it stays unchanged."""

    spans: tuple[range, ...] = ()
    """Folded spans in order; the summary replaces the last one."""
    kept_tokens: int = 0
    """Tokens kept, without the summary."""
    fits: bool = True

    @property
    def folded_turns(self) -> list[int]:
        return [place for span in self.spans for place in span]


def plan_trajectory(record: TrajectoryRecord, settings: TrajectorySettings) -> TrajectoryPlan:
    """Return the plan that brings the record to its target, or as close as the protected turns allow."""
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
    """Return the first turn of each protected kind that is not in the tail."""
    found: dict[str, int] = {}
    for place, kind in enumerate(record.kinds[:tail]):
        if kind in settings.protect_first and kind not in found:
            found[kind] = place
    return sorted(found.values())


def _between(cuts: Sequence[int], firsts: list[int], head: int) -> tuple[range, ...]:
    """Return the merged groups of turns between the protected first ones that contain none of them."""
    groups = [range(start, end) for start, end in pairwise(cuts) if end <= head]
    free = [group for group in groups if not any(place in group for place in firsts)]
    merged: list[range] = []
    for group in free:
        if merged and merged[-1].stop == group.start:
            merged[-1] = range(merged[-1].start, group.stop)
        else:
            merged.append(group)
    return tuple(merged)
