"""The receipt of one compaction, or of one decision not to compact: every decision and its reason, and no content."""

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
    """Seconds the provider asked to be left alone."""
    cooldown: float = 0.0
    """Seconds from now in which no automatic compaction asks the model; 0 without a failure."""
    done: str = ""
    """What was done about the failure."""
    next: str = ""
    """What happens next, and what a person can do about it."""
    recovered_from: str = ""
    """What the summary model failed with before the conversation's own model wrote this."""
    readiness: Readiness = ""
    """Made ahead of time; while a request waited for it; without a model, because none was ready within the time that a
    request waits; too late, and put in the place of such a local one. Empty where the fold was made when needed."""
    updated_previous: bool = False
    unverified: int = 0
    """Identifiers marked because the source does not know them, and lines because it is not certain of them."""
    removed: int = 0
    """Lines taken out because they rested on nothing the source knows."""
    quoted: int = 0
    """Lines told as orders found in data."""
    facts_kept: int = 0
    """Facts of the fold that the summary has, those added to it included."""
    facts_recoverable: int = 0
    """Facts that are only behind the fold's handle."""
    facts_lost: int = 0
    """Facts that are nowhere any more: neither in the summary nor, where originals were not kept, behind a handle."""
    facts_estimate: float = 1.0
    """An estimate of how much of what will be needed is kept: names weighted by how likely a later turn needs them."""


Reason = Literal["hard", "cold", "expiring", "switch", "pays", "waiting", "below"]


class Timing(msgspec.Struct, frozen=True, kw_only=True):
    """A decision to fold now or to wait. Sizes are tokens, costs are tokens at the base price."""

    fold: bool
    reason: Reason
    told: str
    prompt_tokens: int = 0
    rewritten: int = 0
    """What would have to be written again."""
    removed: int = 0
    """What every later call would no longer send."""
    summary_cost: float = 0.0
    break_even_calls: float | None = None
    """None where it never pays."""
    expected_calls: float = 0.0
    saved_now: float = 0.0
    """What folding saves at this very call; negative while the prefix is warm."""


class RecallCost(msgspec.Struct, frozen=True, kw_only=True):
    """What looking back costs a conversation whose model has tools for it."""

    introduced_tokens: int = 0
    """Tools and system prompt that the provider writes anew, once, because the tools come with this fold."""
    rounds: int = 0
    """Rounds before this fold in which a gateway ran the tools, kept from its client; and their tokens."""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class OmittedWords(msgspec.Struct, frozen=True, kw_only=True):
    """Rules, decisions or task items of one message of the user that the view does not hold verbatim."""

    handle: str
    """Handle of the message, or of the fold whose originals include it."""
    tokens: int
    kept_tokens: int = 0
    """Size of what is quoted of the same message."""


class Receipt(msgspec.Struct, frozen=True, kw_only=True):
    """What was done and why: positions and sizes, and the artifact trail; nothing else of what a message says."""

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
    """What the size was to come down to: the size asked for, else the threshold, which must not be reached."""
    fixed_tokens: int
    compaction_count: int
    boundary: Boundary | None = None
    summary: SummaryFacts = SummaryFacts()
    fold: str = ""
    digests: tuple[Digest, ...] = ()
    repairs: tuple[Repair, ...] = ()
    recoverable: bool = True
    """Whether every original that left the view can be had back: from a store, or from the archive in the result."""
    handles: tuple[str, ...] = ()
    impossible: tuple[str, ...] = ()
    persistence: PersistenceRecommendation = "no_persistence_change"
    trail: Trail | None = None
    """What the agent did so far, redacted: files, acts, what runs, the last checks. Only where something was folded."""
    timing: Timing | None = None
    """Why now, or why not yet, and the numbers behind it; only where folds are scheduled."""
    recall: RecallCost | None = None
    """Only where looking back costs something."""
    omitted_words: tuple[OmittedWords, ...] = ()
    """Words of the user that no size allows for, or that another engine left out, with their handles."""
    omitted: tuple[Omission, ...] = ()
    """Derived texts that are missing because deriving them failed: a bug of midfold's, or of a redactor."""
    notices: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        value: dict[str, Any] = msgspec.to_builtins(self)
        return value

    def with_originals(self, *, kept: bool) -> Receipt:
        """The receipt of a compaction whose originals are all kept, or are not."""
        facts, changed = self.summary, self.status in ("compacted", "pruned")
        if kept or not changed:
            return msgspec.structs.replace(self, recoverable=True)
        lost = facts.facts_recoverable + facts.facts_lost
        summary = msgspec.structs.replace(facts, facts_recoverable=0, facts_lost=lost)
        return msgspec.structs.replace(self, recoverable=False, summary=summary)


def receipt_schema() -> dict[str, Any]:
    """A JSON Schema of the receipt."""
    return msgspec.json.schema(Receipt)


# What happens when a summary fails: one table, read by the engine, the provider client and the documentation.
#
# Rules:
# 1. A failure that says nothing about the conversation (a wrong key, no network) never costs it a message.
# 2. Whatever else fails may be answered with the local summary, if the caller accepts one; originals are recoverable.
# 3. What will pass by itself is tried again, a bounded number of times; what will not is not.
# 4. After a failure no automatic compaction calls the model again before its cooldown is over. A forced one does.


RetryClass = Literal["none", "transient", "permanent"]


class Treatment(NamedTuple):
    """One row: what is tried, what is waited for, what becomes of the fold, and what a person can do about it."""

    retry_class: RetryClass
    retries: int
    wait: float
    main_model: bool
    cooldown: float
    then: Literal["keep", "local"]
    told: str
    remedy: str


_SETTING = "auxiliary.compression"
FAILURES: dict[FailureKind, Treatment] = {
    "no_provider": Treatment(
        "permanent", 0, 0, False, 600, "local", "no summary model is configured",
        f"configure one under {_SETTING}, or let summaries be local",
    ),
    "auth": Treatment(
        "permanent", 0, 0, False, 300, "keep", "the key, a permission or the account's quota was refused",
        f"give a key that is accepted ({_SETTING}.api_key_env), or settle the account",
    ),
    "network": Treatment(
        "transient", 2, 1, False, 30, "keep", "the provider could not be reached",
        f"check the network and the address ({_SETTING}.base_url)",
    ),
    "timeout": Treatment(
        "transient", 0, 0, True, 60, "local", "the provider did not finish in time",
        f"give it more time ({_SETTING}.timeout), or choose a faster model",
    ),
    "rate_limit": Treatment(
        "transient", 1, 5, False, 60, "local", "the provider asked for fewer requests",
        "wait, or use another key or model",
    ),
    "unavailable": Treatment(
        "transient", 2, 1, True, 60, "local", "the provider answered with a server error",
        "wait until the provider has mended it",
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
        "transient", 1, 0, True, 30, "local", "the answer was not a summary",
        "choose another model if it goes on",
    ),
    "filtered": Treatment(
        "permanent", 0, 0, True, 60, "local", "the provider or the model declined to answer",
        "choose another model for this conversation",
    ),
    "ineffective": Treatment(
        "transient", 1, 0, True, 30, "local", "the summary was longer than what it stands for",
        "choose another model if it goes on",
    ),
    "other": Treatment(
        "none", 0, 0, False, 30, "local", "the summarizer failed",
        "see what your summarizer raises",
    ),
}  # fmt: skip

KEEPS_HISTORY: frozenset[FailureKind] = frozenset(kind for kind, row in FAILURES.items() if row.then == "keep")
"""Failures after which nothing is folded, whatever is allowed: they say nothing about the conversation."""
LONGEST_WAIT = 20.0
"""Seconds a compaction waits for a provider that named a time; longer ones are a cooldown."""


def waiting_time(kind: FailureKind, attempt: int, asked: float = 0.0) -> float | None:
    """Seconds before the next attempt at the same model; None if there is none. `attempt` counts from 0."""
    row = FAILURES[kind]
    if attempt >= row.retries or asked > LONGEST_WAIT:
        return None
    return asked or min(row.wait * 2**attempt, LONGEST_WAIT)


def cooldown(kind: FailureKind, asked: float = 0.0) -> float:
    """Seconds without automatic calls after the failure."""
    return max(FAILURES[kind].cooldown, asked)


class Account(NamedTuple):
    """What a receipt says of a failed summary: what was done about it, and what happens next."""

    retry_class: RetryClass
    cooldown: float
    """Seconds from now without automatic calls."""
    done: str
    next: str


def account(kind: FailureKind, *, kept: bool, asked: float = 0.0, left: float = 0.0) -> Account:
    """The account of a failure: `kept` says that nothing was folded; `left` is what an earlier pause has left."""
    row = FAILURES[kind]
    pause = left or cooldown(kind, asked)
    done = (
        "nothing was folded, every message is as it was"
        if kept
        else "a local summary stands for the fold, every original is behind its handle"
    )
    again = "the same is expected again" if row.retry_class == "permanent" else "it may have passed by then"
    seconds = f"{math.ceil(pause):,} s"
    return Account(
        row.retry_class,
        pause,
        f"{row.told}: {done}",
        f"no automatic compaction asks the model for {seconds}, a forced one does at once; {again}: {row.remedy}",
    )
