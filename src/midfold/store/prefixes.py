"""Which session has a history, or the beginning of one: for clients that do not say who they are.

Rules of this file:
1. A chain value stands for a message and everything before it. Who has the chain of a history has that of each of its
   beginnings, so the longest known one is found by halves; from the end in growing steps, because most histories go on
   where they ended last time.
2. A chain is looked for at the places of the message it ends with: it needs no index of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from midfold.store.database import Tx


class Prefix(NamedTuple):
    """The first `shared` messages of a history are the first of this session, which has `length` in all."""

    session: str
    shared: int
    length: int

    @property
    def whole(self) -> bool:
        """Whether the history begins with all of the session: it only goes on."""
        return self.shared == self.length


def longest(tx: Tx, digests: Sequence[bytes], chains: Sequence[bytes], *, least: int, under: str) -> Prefix | None:
    """The session that shares most; among equals one that ends there, has not ended, and was used last."""

    def place(count: int) -> dict[str, object]:
        return {"digest": digests[count - 1], "position": count - 1, "chain": chains[count - 1], "under": under}

    count = _most(lambda count: tx.one("knows_chain", **place(count)) is not None, max(least, 1), len(digests))
    row = tx.one("session_with_chain", **place(count)) if count else None
    return None if row is None else Prefix(row[0], count, row[1])


def _most(is_known: Callable[[int], bool], least: int, total: int) -> int:
    """The largest number that is known, if everything below a known one is; 0 if there is none from `least` on."""
    low = high = total
    step = 1
    while low >= least and not is_known(low):
        low, high, step = low - step, low - 1, step * 2
    low = max(low, least - 1)
    while low < high:
        middle = (low + high + 1) // 2
        if is_known(middle):
            low = middle
        else:
            high = middle - 1
    return low if low >= least else 0
