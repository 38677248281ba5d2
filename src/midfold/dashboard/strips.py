"""A compaction as two strips of tokens: which stretches there were, which there are.

What stayed is counted. What was folded is what is left of the receipt's total, so a long fold need not be read.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import NamedTuple

from midfold.dashboard.facts import Fate, Segment, SegmentName
from midfold.dashboard.places import Found, Place
from midfold.dashboard.shown import Show
from midfold.fold.handoff import recognise
from midfold.fold.receipt import Receipt
from midfold.store.protocol import CompactionRecord

CHARACTERS_PER_TOKEN = 4
Told = tuple[int, Place, Fate]
Sized = tuple[SegmentName, int]


class Strips(NamedTuple):
    before: tuple[Segment, ...]
    after: tuple[Segment, ...]


def strips_of(record: CompactionRecord, told: Sequence[Told], view: Sequence[Found], show: Show) -> Strips:
    """`told` is every message before with its fate, `view` what there was afterwards."""
    receipt = record.receipt
    counted = [show.tokens(item.message) for item in view]
    said = receipt.new_tokens - receipt.fixed_tokens
    scale = said / sum(counted) if sum(counted) and said > 0 else 1.0
    sizes = [round(scale * tokens) for tokens in counted]
    names = _names(told)
    by_place = {item.place.position: size for item, size in zip(view, sizes, strict=True)}
    stayed = sum(by_place.get(place.position, 0) for _, place, fate in told if fate != "folded")
    longer = _longer(receipt, max(receipt.old_tokens - receipt.fixed_tokens - stayed, 0), folds="folded" in names)
    old = [
        (names[index], 0 if fate == "folded" else by_place.get(place.position, 0) + longer[index])
        for index, place, fate in told
    ]
    where = {place.position: names[index] for index, place, _ in told}
    new = [(_name(item, where, receipt), size) for item, size in zip(view, sizes, strict=True)]
    left = receipt.old_tokens - receipt.fixed_tokens - sum(size for _, size in old)
    return Strips(_segments(old, receipt.fixed_tokens, max(left, 0)), _segments(new, receipt.fixed_tokens, 0))


def _names(told: Sequence[Told]) -> list[SegmentName]:
    """Head before the first folded message, tail after the last, what stands between them is pinned."""
    folded = [index for index, _, fate in told if fate == "folded"]
    if not folded:
        return ["kept"] * len(told)
    first, last = folded[0], folded[-1]
    return [
        "folded" if fate == "folded" else "head" if index < first else "tail" if index > last else "pinned"
        for index, _, fate in told
    ]


def _name(item: Found, where: dict[int | None, SegmentName], receipt: Receipt) -> SegmentName:
    if item.place.position is not None:
        return where.get(item.place.position, "kept")
    ours = recognise(item.message)
    return "handoff" if ours is not None and receipt.fold.endswith(ours.fold) else "kept"


def _longer(receipt: Receipt, gone: int, *, folds: bool) -> defaultdict[int, int]:
    """By how many tokens a message that became shorter was longer, by its place in the old view.

    `gone` tokens are no longer there. Where nothing was folded, they are all from these messages.
    """
    more: defaultdict[int, int] = defaultdict(int)
    for digest in receipt.digests:
        more[digest.message] += max(digest.characters_before - digest.characters_after, 0)
    whole = sum(more.values())
    tokens = min(whole // CHARACTERS_PER_TOKEN, gone) if folds else gone
    return defaultdict(int, {index: round(tokens * size / whole) for index, size in more.items() if size})


def _segments(sized: Iterable[Sized], fixed: int, folded: int) -> tuple[Segment, ...]:
    """Neighbours together; `folded` tokens are spread over the folded stretches by their messages."""
    groups = [(what, [size for _, size in group]) for what, group in groupby(sized, key=lambda item: item[0])]
    messages = sum(len(sizes) for what, sizes in groups if what == "folded")
    made = [Segment(what="fixed", messages=0, tokens=fixed)] if fixed else []
    for what, sizes in groups:
        tokens = round(folded * len(sizes) / messages) if what == "folded" and messages else sum(sizes)
        made.append(Segment(what=what, messages=len(sizes), tokens=tokens))
    return tuple(made)
