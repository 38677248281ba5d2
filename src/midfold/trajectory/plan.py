"""Which turns of a trajectory are folded: the documented strategy as one pure function.

Rules of this file:
1. The first turns of the protected kinds and the last N turns stay as they are.
2. A cut never stands before a tool's turn: a call and its results stay, or are folded, together.
3. Of the middle only as much is folded as the target needs, from its beginning or where less is lost by it (choice.py).
4. If the middle is not enough, turns that stand between the protected first ones are folded as well.
5. Only turns that may stay are counted: a record far above its target costs as much as one at its target. One that has
   fewer bytes than the target has tokens, or is estimated at less than half of the target, is not counted at all.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from midfold.trajectory.choice import Middle, chosen
from midfold.trajectory.records import Record
from midfold.trajectory.settings import Settings

FAR = 8
"""Bytes per token of the target; only records below that are looked at for being far below it."""
LONG = 32
"""Bytes per token of the target; of records above that so little stays that there is nothing to choose."""
SURE = 2
"""The estimate is off by a few per cent; nothing real is off by so much."""


class Plan(NamedTuple):
    """What is folded. Without a span the record stays as it is."""

    spans: tuple[range, ...] = ()
    """In order; the summary stands in place of the last one."""
    kept_tokens: int = 0
    """What stays, without the summary."""
    fits: bool = True

    @property
    def folded(self) -> list[int]:
        return [place for span in self.spans for place in span]


def plan(record: Record, settings: Settings) -> Plan:
    """The fold that brings the record to its target, or as near to it as what is protected allows."""
    length, target = len(record), settings.target_tokens
    if record.most_tokens <= FAR * target:
        rough = record.fixed_tokens + record.rough(range(length))
        if record.most_tokens <= target or SURE * rough <= target:
            return Plan(kept_tokens=rough)
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
        return Plan(kept_tokens=kept)
    if reach > 0 and (rest := record.within(range(places[0], places[reach]), target - kept)) is not None:
        return Plan(kept_tokens=kept + rest)
    if reach > 0 and kept <= room:
        middle = Middle(record, places, room - protected)
        start, end = chosen(middle, reach, judge=record.most_tokens <= LONG * target)
        kept += middle.tokens(0, start) - middle.tokens(reach, end)
        return Plan((range(places[start], places[end]),), kept)
    between = _between(cuts, firsts, head)
    kept -= sum(record.total(span) for span in between)
    spans = (*between, range(head, tail)) if head < tail else between
    return Plan(spans, kept, kept <= room if spans else kept <= target)


def _firsts(record: Record, settings: Settings, tail: int) -> list[int]:
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
