"""Receipt of a compaction, or of the decision not to compact: decisions and reasons, without message content."""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import msgspec

from midfold.compaction.omissions import Omission
from midfold.compaction.tracking import Trail
from midfold.errors import FailureKind
from midfold.transcript.repairs import Repair
from midfold.transcript.tokens import Basis

Status = Literal["compacted", "pruned", "unchanged", "aborted", "already_in_flight"]
Readiness = Literal["", "prepared", "waited", "local", "late"]
PersistenceRecommendation = Literal["in_place_archive", "child_continuation", "no_persistence_change"]


class Boundary(msgspec.Struct, frozen=True, kw_only=True):
    """Folded range: messages[start:end] without the messages in `pinned`."""

    start: int
    end: int
    pinned: tuple[int, ...] = ()


class Digest(msgspec.Struct, frozen=True, kw_only=True):
    """Shortened tool result or call arguments; `message` is an index in the old transcript."""

    message: int
    kind: Literal["digest", "duplicate", "placeholder", "arguments", "spill", "media"]
    tool: str
    characters_before: int
    characters_after: int
    handle: str


class SummaryFacts(msgspec.Struct, frozen=True, kw_only=True):
    """Origin and quality of the summary."""

    source: Literal["model", "local", "none"] = "none"
    confidence: Literal["normal", "lower"] = "normal"
    tokens: int = 0
    model: str = ""
    calls: int = 0
    failure: str = ""
    retry_class: Literal["", "none", "transient", "permanent"] = ""
    retry_after: float = 0.0
    """Seconds to wait that the provider requested."""
    cooldown: float = 0.0
    """Seconds from now without automatic model calls; 0 without a failure."""
    done: str = ""
    """Action taken after the failure."""
    next: str = ""
    """Next step, and the remedy a person can apply."""
    recovered_from: str = ""
    """Failure of the summary model before the conversation's own model wrote this summary."""
    readiness: Readiness = ""
    """When the summary was made: "prepared" ahead of time; "waited" while a request waited for it; "local" without
    a model, because none was ready in time; "late" to replace such a local one. Empty if made when needed.
    """
    updated_previous: bool = False
    unverified: int = 0
    """Identifiers marked because they are not in the source, and lines marked because the source is not certain of
    them.
    """
    removed: int = 0
    """Lines removed because they rest on nothing in the source."""
    quoted: int = 0
    """Lines quoted as instructions found in data."""
    facts_kept: int = 0
    """Facts of the fold that are in the summary, including those added to it."""
    facts_recoverable: int = 0
    """Facts that are only behind the fold's handle."""
    facts_lost: int = 0
    """Facts that are neither in the summary nor, if originals were not kept, behind a handle."""
    facts_estimate: float = 1.0
    """Estimated share of the needed facts that is kept; names are weighted by how likely a later turn needs them."""


Reason = Literal["hard", "cold", "expiring", "switch", "pays", "waiting", "below"]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """Decision to compact now or to wait. Sizes are in tokens, costs in tokens at the base price."""

    fold: bool
    reason: Reason
    told: str
    prompt_tokens: int = 0
    rewritten: int = 0
    """Tokens that would have to be written to the cache again."""
    removed: int = 0
    """Tokens that later calls would no longer send."""
    summary_cost: float = 0.0
    break_even_calls: float | None = None
    """Calls until the compaction pays off; None if it never does."""
    expected_calls: float = 0.0
    saved_now: float = 0.0
    """Cost that compacting saves at this call; negative while the prefix is cached."""


class RecallCost(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of recall for a conversation whose model has recall tools."""

    introduced_tokens: int = 0
    """Tokens of tools and system prompt that the provider caches again because this compaction adds the tools."""
    rounds: int = 0
    """Rounds before this compaction in which a gateway ran the tools without showing its client; their tokens follow.
    """
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class OmittedWords(msgspec.Struct, frozen=True, kw_only=True):
    """Rules, decisions or task items of one user message that the view does not contain verbatim."""

    handle: str
    """Handle of the message, or of the fold whose originals include it."""
    tokens: int
    kept_tokens: int = 0
    """Tokens quoted of the same message."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """Report of what was done and why: positions, sizes and the artifact trail, but no other message content."""

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
    """Target of the compaction: the requested size, else the threshold, which must not be reached."""
    fixed_tokens: int
    compaction_count: int
    boundary: Boundary | None = None
    summary: SummaryFacts = SummaryFacts()
    fold: str = ""
    digests: tuple[Digest, ...] = ()
    repairs: tuple[Repair, ...] = ()
    recoverable: bool = True
    """True if every removed original can be restored, from a store or from the archive in the result."""
    handles: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()
    persistence: PersistenceRecommendation = "no_persistence_change"
    trail: Trail | None = None
    """Redacted record of the agent's work: files, actions, running processes, last checks. Only if something was
    folded.
    """
    timing: Timing | None = None
    """Reasons and numbers for compacting now or waiting; only if compactions are scheduled."""
    recall: RecallCost | None = None
    """Cost of recall; only if there is any."""
    omitted_words: tuple[OmittedWords, ...] = ()
    """Words of the user that did not fit, or that another engine omitted, with their handles."""
    omitted: tuple[Omission, ...] = ()
    """Derived texts that are missing because deriving them failed: a bug in midfold or in a redactor."""
    notices: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value

    def with_originals(self, *, kept: bool) -> Receipt:
        """Return the receipt of a compaction whose originals are all kept, or are not."""
        facts, changed = self.summary, self.status in ("compacted", "pruned")
        if kept or not changed:
            return msgspec.structs.replace(self, recoverable=True)
        lost = facts.facts_recoverable + facts.facts_lost
        summary = msgspec.structs.replace(facts, facts_recoverable=0, facts_lost=lost)
        return msgspec.structs.replace(self, recoverable=False, summary=summary)


def receipt_schema() -> dict[str, Any]:
    """Return a JSON Schema of the receipt."""
    return msgspec.json.schema(Receipt)


# Treatment of failed summaries: one table, read by the engine, the provider client and the documentation.
#
# 1. A failure that is unrelated to the conversation (a wrong key, no network) never costs it a message.
# 2. Any other failure may fall back to the local summary if the caller accepts one; originals are recoverable.
# 3. Transient failures are retried a limited number of times, permanent ones are not.
# 4. After a failure no automatic compaction calls the model before the cooldown is over. A forced one does.


RetryClass = Literal["none", "transient", "permanent"]


class Treatment(NamedTuple):
    """Treatment of one kind of failure: retries, waits, fallback and remedy."""

    retry_class: RetryClass
    retries: int
    wait: float
    main_model: bool
    cooldown: float
    then: Literal["keep", "local"]
    description: str
    remedy: str


_SETTING = "auxiliary.compression"
FAILURES: dict[FailureKind, Treatment] = {
    "no_provider": Treatment(
        "permanent", 0, 0, False, 600, "local", "no summary model is configured",
        f"configure one under {_SETTING}, or use local summaries",
    ),
    "auth": Treatment(
        "permanent", 0, 0, False, 300, "keep", "the provider refused the key, a permission or the account's quota",
        f"set a valid key ({_SETTING}.api_key_env), or check the account",
    ),
    "network": Treatment(
        "transient", 2, 1, False, 30, "keep", "the provider could not be reached",
        f"check the network and the address ({_SETTING}.base_url)",
    ),
    "timeout": Treatment(
        "transient", 0, 0, True, 60, "local", "the provider did not finish in time",
        f"increase {_SETTING}.timeout, or choose a faster model",
    ),
    "rate_limit": Treatment(
        "transient", 1, 5, False, 60, "local", "the provider limited the request rate",
        "wait, or use another key or model",
    ),
    "unavailable": Treatment(
        "transient", 2, 1, True, 60, "local", "the provider answered with a server error",
        "wait until the provider recovers",
    ),
    "model_not_found": Treatment(
        "permanent", 0, 0, True, 600, "local", "the provider does not know the summary model",
        f"correct {_SETTING}.model",
    ),
    "overflow": Treatment(
        "transient", 2, 0, True, 60, "local", "the fold did not fit the summary model's window",
        f"correct {_SETTING}.context_length, or choose a model with a larger window",
    ),
    "malformed": Treatment(
        "transient", 1, 0, True, 30, "local", "the response was not a summary",
        "choose another model if this persists",
    ),
    "filtered": Treatment(
        "permanent", 0, 0, True, 60, "local", "the provider or the model declined to answer",
        "choose another model for this conversation",
    ),
    "ineffective": Treatment(
        "transient", 1, 0, True, 30, "local", "the summary was longer than its source",
        "choose another model if this persists",
    ),
    "other": Treatment(
        "none", 0, 0, False, 30, "local", "the summarizer failed",
        "check the exception that your summarizer raises",
    ),
}  # fmt: skip

KEEPS_HISTORY: frozenset[FailureKind] = frozenset(kind for kind, row in FAILURES.items() if row.then == "keep")
"""Failures after which nothing is ever folded, because they are unrelated to the conversation."""
MAX_WAIT_SECONDS = 20.0
"""Maximum seconds a compaction waits for a provider that named a time; a longer time becomes a cooldown."""


def waiting_time(kind: FailureKind, attempt: int, retry_after: float = 0.0) -> float | None:
    """Return the seconds before the next attempt with the same model; None if there is none. `attempt` starts at 0."""
    row = FAILURES[kind]
    if attempt >= row.retries or retry_after > MAX_WAIT_SECONDS:
        return None
    return retry_after or min(row.wait * 2**attempt, MAX_WAIT_SECONDS)


def cooldown(kind: FailureKind, retry_after: float = 0.0) -> float:
    """Return the seconds without automatic calls after the failure."""
    return max(FAILURES[kind].cooldown, retry_after)


class Account(NamedTuple):
    """Report of a failed summary: what was done, and what happens next."""

    retry_class: RetryClass
    cooldown: float
    """Seconds from now without automatic calls."""
    done: str
    next: str


def account(kind: FailureKind, *, kept: bool, retry_after: float = 0.0, left: float = 0.0) -> Account:
    """Return the report of a failure.

    `kept` says that nothing was folded; `left` is the remaining time of an earlier cooldown.
    """
    row = FAILURES[kind]
    pause = left or cooldown(kind, retry_after)
    done = (
        "nothing was folded and no message changed"
        if kept
        else "used a local summary; every original is behind its handle"
    )
    again = "the failure persists until fixed" if row.retry_class == "permanent" else "it may have passed by then"
    seconds = f"{math.ceil(pause):,} s"
    return Account(
        row.retry_class,
        pause,
        f"{row.description}: {done}",
        f"automatic compactions do not call the model for {seconds}, a forced one does; {again}: {row.remedy}",
    )
