"""A record without some of its turns and with one more, cut out of its bytes: nothing that stays is written again.

Rules of this file:
1. It is the short way for records as programs write them: one array of turns, the same bytes between any two of them.
2. Every place it cuts at is checked. Whatever looks different is left to `wire.write`, which gives the same result.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import accumulate

from msgspec import Raw

_OPENING = re.compile(rb"\[\s*")
_COLON = re.compile(rb"\s*:\s*")
_BETWEEN = re.compile(rb"\s*,\s*")


def _place(data: bytes, key: str) -> int | None:
    """Where the value of a key begins that the data has only once."""
    name = f'"{key}"'.encode()
    found = data.find(name)
    if found < 0 or data.find(name, found + 1) >= 0:
        return None
    colon = _COLON.match(data, found + len(name))
    return colon.end() if colon else None


def spliced(
    data: bytes, key: str | None, array: Raw, wires: Sequence[Raw], spans: Sequence[range], added: bytes
) -> bytes | None:
    """`data` without the turns in `spans` and with `added` in place of the last of them; None if it looks unusual.

    The array of turns stands under `key`, or is all there is.
    """
    turns = bytes(array)
    at = 0 if key is None else _place(data, key)
    if len(wires) < 2 or at is None or spans[-1].stop >= len(wires) or not data.startswith(turns, at):
        return None
    lengths = [memoryview(wire).nbytes for wire in wires]
    opening = _OPENING.match(turns)
    between = _BETWEEN.match(turns, opening.end() + lengths[0]) if opening else None
    if opening is None or between is None:
        return None
    gap = between.group()
    starts = list(accumulate((length + len(gap) for length in lengths), initial=opening.end()))
    if turns[starts[-1] - len(gap) :].strip() != b"]":
        return None
    for place in (place for span in spans for place in (span.start, span.stop)):
        before = opening.group() if place == 0 else gap
        if not turns.startswith(bytes(wires[place]), starts[place]) or not turns.endswith(before, 0, starts[place]):
            return None
    pieces = [data[:at]]
    last = 0
    for span in spans:
        pieces.append(turns[last : starts[span.start]])
        last = starts[span.stop]
    return b"".join([*pieces, added, gap, turns[last:], data[at + len(turns) :]])
