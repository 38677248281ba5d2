"""How much of what the kept turns need of a fold is still there, by the measure of `midfold eval`."""

from __future__ import annotations

from midfold.eval.needs import needs_at
from midfold.eval.texts import joined
from midfold.eval.words import is_bound
from midfold.transcript.message import Transcript


def retention(past: Transcript, kept: Transcript, future: Transcript) -> float | None:
    """The share of facts the future uses and only the past held that what is kept still says, with words around them.

    None if the future needs nothing.
    """
    needs = needs_at(tuple(message for message in past if message.role != "system"), future)
    if not needs:
        return None
    text = joined(message for message in kept if message.role != "system")
    return round(sum(is_bound(text, need.fact, need.near) for need in needs) / len(needs), 4)
