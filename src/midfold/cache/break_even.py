"""When rewriting a cached prefix pays.

R* = ((w - r) * S + C) / (r * K): the calls after which an edit has paid for itself. S are the tokens after the edit
that must be written again instead of read, K the tokens that are gone from every later call, C what the summary cost;
w and r what a written and a read token cost. With a cold cache everything is written anyway, and an edit costs nothing
extra.
"""

from __future__ import annotations

from math import inf


def break_even(
    *, rewritten: float, removed: float, summary: float = 0.0, read: float = 0.1, write: float = 1.25
) -> float:
    """Calls until an edit of a warm prefix pays; infinite if it never does. All sizes in tokens at the base price."""
    price = (write - read) * rewritten + summary
    gain = read * removed
    if gain <= 0:
        return 0.0 if price <= 0 and removed > 0 else inf
    return max(price, 0.0) / gain


def cold_gain(*, removed: float, summary: float = 0.0, write: float = 1.25) -> float:
    """What an edit saves at once when the cache is cold: the removed tokens need not be written."""
    return write * removed - summary
