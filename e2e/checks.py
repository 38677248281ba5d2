"""Invariants after every step, whatever the model wrote. Each check returns a sentence per violation."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from midfold.compaction.handoff import recognise
from midfold.compaction.receipt import Receipt
from midfold.transcript.laws import is_empty, violations
from midfold.transcript.message import Message, Transcript

SOURCES = {"compacted": ("model", "local"), "aborted": ("none",), "unchanged": ("none",)}


def folded(
    before: Transcript, after: Transcript, archive: dict[str, tuple[Message, ...]], receipt: Receipt
) -> list[str]:
    """Check a compaction: a legal view, one handoff, and a handle for every message that left the view."""
    broken = [f"law: {found}" for found in violations(after)]
    handoffs = [ours for message in after if (ours := recognise(message)) and ours.kind == "fold"]
    if len(handoffs) != 1:
        broken.append(f"{len(handoffs)} handoffs")
    shown = {id(message) for message in after} | {message.digest for message in after}
    kept = {message.digest for messages in archive.values() for message in messages}
    lost = [
        place
        for place, message in enumerate(before)
        if id(message) not in shown and message.digest not in shown | kept and not is_empty(message)
    ]
    broken += [f"messages[{place}] is lost" for place in lost if recognise(before[place]) is None]
    broken += [] if receipt.fold in archive else ["the fold has no originals"]
    broken += [] if receipt.new_tokens < receipt.old_tokens else ["the view did not get smaller"]
    return broken


def filled(receipt: Receipt, model: str) -> list[str]:
    """Check the receipt of a summary written by a model."""
    facts = receipt.summary
    wanted = {
        "source": facts.source == "model",
        "model": facts.model == model,
        "calls": facts.calls > 0,
        "tokens": facts.tokens > 0,
        "facts_kept": facts.facts_kept > 0,
        "facts_lost": facts.facts_lost == 0,
        "failure": facts.failure == "",
    }
    return [f"the receipt's {name} is wrong" for name, right in wanted.items() if not right]


def decided(receipt: Receipt, kinds: Collection[str]) -> list[str]:
    """Check that the receipt has the failure policy's outcome for one of these kinds."""
    facts = receipt.summary
    broken = [] if facts.failure in kinds else [f"failure {facts.failure!r}, expected {' or '.join(kinds)}"]
    return broken + ([] if facts.source in SOURCES[receipt.status] else [f"{receipt.status} from {facts.source}"])


def untouched(given: Any, returned: Any, copy: Any) -> list[str]:
    """Check that the same object was returned, with unchanged content."""
    broken = [] if returned is given else ["another object was returned"]
    return broken + ([] if given == copy else ["the caller's messages were changed"])
