"""The receipt of one compaction, or of one decision not to compact: every decision and its reason, and no content."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from midfold.core.sanitize import Repair
from midfold.core.timing import Timing
from midfold.core.tokens import Basis

Status = Literal["compacted", "pruned", "unchanged", "aborted", "already_in_flight"]
Persistence = Literal["in_place_archive", "child_continuation", "no_persistence_change"]


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """messages[start:end] was folded, less the messages in `pinned`."""

    start: int
    end: int
    pinned: tuple[int, ...] = ()


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """One tool result, or one call's arguments, that became shorter; `message` counts in the old transcript."""

    message: int
    kind: Literal["digest", "duplicate", "placeholder", "arguments", "spill", "media"]
    tool: str
    characters_before: int
    characters_after: int
    handle: str


class SummaryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Where the summary came from."""

    source: Literal["model", "local", "none"] = "none"
    confidence: Literal["normal", "lower"] = "normal"
    tokens: int = 0
    model: str = ""
    calls: int = 0
    failure: str = ""
    retry_class: Literal["", "none", "transient", "permanent"] = ""
    retry_after: float = 0.0
    recovered_from: str = ""
    """What the summary model failed with before the conversation's own model wrote this."""
    updated_previous: bool = False
    unverified: int = 0
    """Identifiers marked because the source does not know them."""
    removed: int = 0
    """Lines taken out because they rested on nothing the source knows."""
    quoted: int = 0
    """Lines told as orders found in data."""
    facts_kept: int = 0
    """Facts of the fold that the summary has, those added to it included."""
    facts_recoverable: int = 0
    """Facts that are only behind the fold's handle."""
    facts_lost: int = 0
    """None ever is, as long as the archive is kept."""
    facts_estimate: float = 1.0
    """An estimate of how much of what will be needed is kept: names weighted by how likely a later turn needs them."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and why. Positions and sizes only, never what a message says."""

    status: Status
    reason: str
    old_messages: int
    new_messages: int
    old_tokens: int
    new_tokens: int
    token_basis: Basis
    estimated_prompt_tokens: int
    threshold_tokens: int
    effective_input_window: int
    context_length: int
    window_source: str
    landing_tokens: int
    fixed_tokens: int
    compaction_count: int
    boundary: Boundary | None = None
    summary: SummaryFacts = SummaryFacts()
    fold: str = ""
    digests: tuple[Digest, ...] = ()
    repairs: tuple[Repair, ...] = ()
    recoverable: bool = True
    handles: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()
    persistence: Persistence = "no_persistence_change"
    timing: Timing | None = None
    """Why now, or why not yet, and the numbers behind it; only where folds are scheduled."""
    notices: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value


def receipt_schema() -> dict[str, Any]:
    """A JSON Schema of the receipt."""
    return msgspec.json.schema(Receipt)
