"""Types of the JSON API, which the pages also render.

Times are milliseconds since 1970, sizes are tokens of the session's model, money is US dollars.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from midfold.cache.health import Kind
from midfold.compaction.receipt import Receipt
from midfold.compaction.tracking import CheckRun, Trail

SizeBasis = Literal["estimated", "calibrated", "reported", "sampled"]
"""Source of a token count; `sampled` is extrapolated from a sample of the messages."""
Fate = Literal["kept", "changed", "folded"]
"""State of a message: the model sees it verbatim, in a shorter form, or only through the handoff."""
SegmentName = Literal["fixed", "head", "folded", "pinned", "handoff", "tail", "kept"]
"""Part of a view; `fixed` is the system prompt and tools, `kept` is the whole view if nothing was folded."""
Level = Literal["problem", "warning", "note"]


class ApiAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """Base class of all responses."""


class Size(ApiAnswer, frozen=True, kw_only=True):
    """Size of the next request, with its limits."""

    tokens: int
    basis: SizeBasis
    window: int
    threshold: int
    share: float
    """Fraction of the window."""


class Saved(ApiAnswer, frozen=True, kw_only=True):
    """Savings of compactions: the requests as sent against the same requests without compaction."""

    requests: int
    """Requests with reported usage."""
    tokens_sent: int
    tokens_not_sent: int
    """Tokens saved; a prompt that would exceed the window counts as one that exactly fits."""
    tokens_retrieved: int
    """Tokens that came back by unfold or search; they do not count as saved."""
    paid: float | None
    """Prompt cost, None if a price is unknown. Output is the same with and without compaction and is not included."""
    without_folds: float | None
    summaries: float | None
    """Cost of the summary requests, estimated from the size of the folds."""
    net: float | None
    """without_folds - paid - summaries"""


class CacheUse(ApiAnswer, frozen=True, kw_only=True):
    """Prompt cache usage as reported by providers."""

    requests: int
    prompt_tokens: int
    read_tokens: int
    written_tokens: int
    hit_rate: float | None
    """Fraction of the prompt tokens read from the cache."""
    paid: float | None
    uncached: float | None
    """Cost of the same prompts without a cache."""
    net: float | None
    """uncached - paid; can be negative, because cache writes cost more than plain tokens."""


class UsageFacts(ApiAnswer, frozen=True, kw_only=True):
    """Total reported usage and its cost."""

    requests: int
    input_tokens: int
    """Prompt tokens, including cache reads and writes."""
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: float | None
    """Cost of prompts and responses without summary requests; None if a price is unknown."""


class CauseFacts(ApiAnswer, frozen=True, kw_only=True):
    """Requests that hit the cache, or missed it for one cause."""

    cause: Kind
    requests: int
    tokens: int
    """Tokens of the previous prompt that were not read from the cache."""
    cost: float | None
    """Cost beyond that of a cache read."""


class Finding(ApiAnswer, frozen=True, kw_only=True):
    """Condition of a session that may need attention."""

    level: Level
    what: str
    session: str
    title: str = ""


class SessionFacts(ApiAnswer, frozen=True, kw_only=True):
    """Summary of one session."""

    key: str
    """Session name, encoded as a URL path segment."""
    name: str
    title: str = ""
    """Start of the first user message, if stored."""
    client: str = ""
    """Client program, from the session's name or its requests."""
    sent_by: str = ""
    """User agent of its requests, as `name/version`."""
    owner: str = ""
    """Part of the name before the last `/`: a gateway key or a project."""
    kind: Literal["root", "branch", "continuation"]
    parent: str | None
    model: str | None
    dialect: str
    created: int
    updated: int
    ended: int | None
    messages: int
    """Messages of the conversation, stored or not."""
    stored: int
    """Stored messages; a gateway stores a conversation when it compacts it."""
    compaction: int
    """Active compaction; 0 if there is none."""
    compactions: int
    size: Size
    saved: Saved
    cache: CacheUse
    usage: UsageFacts
    causes: tuple[CauseFacts, ...] = ()
    """Causes of cache hits and misses; empty if nothing was ever cached."""
    findings: tuple[Finding, ...] = ()


class Day(ApiAnswer, frozen=True, kw_only=True):
    """Tokens sent and saved on one day."""

    day: str
    requests: int
    tokens_sent: int
    tokens_not_sent: int


class Overview(ApiAnswer, frozen=True, kw_only=True):
    """Summary of all sessions; totals are over those listed."""

    sessions: tuple[SessionFacts, ...]
    more: bool
    """Whether there are sessions that are not listed."""
    saved: Saved
    cache: CacheUse
    findings: tuple[Finding, ...]
    days: tuple[Day, ...]


class SessionList(ApiAnswer, frozen=True, kw_only=True):
    """Sessions, most recently used first unless sorted otherwise."""

    query: str
    model: str
    client: str
    owner: str
    sort: str
    order: Literal["up", "down"]
    models: tuple[str, ...]
    clients: tuple[str, ...]
    owners: tuple[str, ...]
    """Available choices of the filters."""
    sorted_only: int
    """Number of most recently used sessions that were sorted; 0 means all."""
    sessions: tuple[SessionFacts, ...]
    page: int
    more: bool


class TurnFacts(ApiAnswer, frozen=True, kw_only=True):
    """Usage of one request, as reported by the provider."""

    at: int
    messages: int
    compaction: int
    model: str | None
    prompt_tokens: int
    completion_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    without_folds: int
    """Prompt tokens without any compaction, at most the window."""


class TurnList(ApiAnswer, frozen=True, kw_only=True):
    """Requests with reported usage, oldest first."""

    session: str
    turns: tuple[TurnFacts, ...]


class CompactionFacts(ApiAnswer, frozen=True, kw_only=True):
    """Summary of one compaction."""

    seq: int
    base: int
    """Compaction whose view was compacted again; 0 for the history."""
    at: int
    upto: int
    """Messages in the history at that time."""
    undone: int | None
    child: str | None
    in_force: bool
    status: str
    reason: str
    old_messages: int
    new_messages: int
    old_tokens: int
    new_tokens: int
    threshold: int
    summary: str
    """Source of the summary: model, local, none."""
    failure: str


class CompactionList(ApiAnswer, frozen=True, kw_only=True):
    """Compactions of a session, including undone ones."""

    session: str
    compactions: tuple[CompactionFacts, ...]


class ToolAct(ApiAnswer, frozen=True, kw_only=True):
    """Short description of a tool call or its result, redacted."""

    tool: str
    did: str
    """Action derived from the call's arguments: "ran `pytest -q`"."""
    outcome: Literal["", "ok", "failed", "unknown"]
    """Outcome derived from the result; empty for the call itself."""
    detail: str
    """Outcome in words."""


class MessageLine(ApiAnswer, frozen=True, kw_only=True):
    """List entry of one message, with the start of its text, redacted."""

    index: int
    """Index in this list."""
    position: int | None
    """Index in the history; None for a message written by midfold."""
    role: str
    at: int | None
    tokens: int
    handle: str
    """Handle that unfolds to the message; empty for one written by midfold, whose original is at `position` if it has
    one.
    """
    fate: Fate
    ours: Literal["", "fold", "ack", "bridge"]
    """Kind of a message written by midfold; `fold` is the handoff."""
    tools: tuple[str, ...]
    acts: tuple[ToolAct, ...]
    """Descriptions of its first tool calls or results."""
    text: str
    """Start of its text or of its results; empty if it only has tool calls."""


class MessageList(ApiAnswer, frozen=True, kw_only=True):
    """Page of a list of messages."""

    session: str
    start: int
    total: int
    lines: tuple[MessageLine, ...]


class Share(ApiAnswer, frozen=True, kw_only=True):
    """Tokens of one kind of content."""

    name: str
    tokens: int


class Artifacts(ApiAnswer, frozen=True, kw_only=True):
    """Trail of the newest fold, continued through the newest messages."""

    trail: Trail
    checks: tuple[CheckRun, ...]
    """Checks whose outcome is still valid, newest first."""
    skipped: int
    """Messages between that fold and the newest messages that were not read because there are too many."""


class ContextPart(ApiAnswer, frozen=True, kw_only=True):
    """Part of the window: a fixed cost, the conversation, the output reservation, or free tokens."""

    name: str
    tokens: int
    share: float
    """Fraction of the window."""


class SessionPage(ApiAnswer, frozen=True, kw_only=True):
    """Growth, compactions and current token use of one session."""

    session: SessionFacts
    view_messages: int
    """Number of messages that the model sees."""
    compacting: bool
    """Whether a compaction is in progress."""
    kinds: tuple[Share, ...]
    context: tuple[ContextPart, ...]
    """Parts of the whole window, scaled to the reported size if `session.size` is based on it."""
    sampled: bool
    """Whether `kinds` and `context` are extrapolated from a sample."""
    turns: tuple[TurnFacts, ...]
    compactions: tuple[CompactionFacts, ...]
    made: Artifacts
    lines: MessageList
    newer: str | None
    """Session used next after this one."""
    older: str | None


class Segment(ApiAnswer, frozen=True, kw_only=True):
    """Run of adjacent messages with the same state."""

    what: SegmentName
    messages: int
    tokens: int


class Change(ApiAnswer, frozen=True, kw_only=True):
    """Message that was shortened."""

    kind: str
    tool: str
    characters_before: int
    characters_after: int
    handle: str


class HandoffSection(ApiAnswer, frozen=True, kw_only=True):
    """Differences under one heading."""

    heading: str
    new: tuple[str, ...]
    gone: tuple[str, ...]


class HandoffComparison(ApiAnswer, frozen=True, kw_only=True):
    """Line-by-line comparison of a handoff with the previous one."""

    seq: int
    """Compaction that wrote the previous handoff; 0 if unknown."""
    new: int
    gone: int
    same: int
    sections: tuple[HandoffSection, ...]
    """Sections with new or removed lines."""


class CompactionPage(ApiAnswer, frozen=True, kw_only=True):
    """View before and after one compaction."""

    session: str
    title: str
    compaction: CompactionFacts
    previous: int | None
    next: int | None
    before: tuple[Segment, ...]
    after: tuple[Segment, ...]
    counts: dict[Fate, int]
    handoff: str
    """Text of the handoff, redacted; empty if nothing was folded."""
    compared: HandoffComparison | None
    """Comparison with the replaced handoff; None for the first one."""
    fold: str
    """Handle of the whole fold."""
    changes: tuple[Change, ...]
    shown: str
    """Requested message state, or `after` for the messages afterwards; empty for all messages before."""
    lines: MessageList


class ReceiptPage(ApiAnswer, frozen=True, kw_only=True):
    """Decisions of one compaction and their reasons."""

    session: str
    title: str
    compaction: CompactionFacts
    previous: int | None
    next: int | None
    receipt: Receipt
    checks: tuple[CheckRun, ...]
    """Checks whose outcome was valid then, newest first."""


class MessageBlock(ApiAnswer, frozen=True, kw_only=True):
    """Part of a message."""

    kind: Literal["text", "thinking", "tool call", "tool result", "media", "other"]
    title: str
    text: str
    is_error: bool = False
    left_out: int = 0
    """Characters omitted here; the raw form has them."""
    act: ToolAct | None = None
    """Description of a tool call or its result."""
    outline: str = ""
    """Bullet list of a JSON result, bounded in size; empty for everything else."""


class Original(ApiAnswer, frozen=True, kw_only=True):
    """Original message, redacted."""

    position: int | None
    role: str
    at: int | None
    tokens: int
    handle: str
    blocks: tuple[MessageBlock, ...]


class OriginalsPage(ApiAnswer, frozen=True, kw_only=True):
    """Original messages behind a handle or at a position."""

    session: str
    title: str
    handle: str
    start: int
    total: int
    messages: tuple[Original, ...]
    next: int | None = None
    """Position of the next message in the history, if there is one."""


class HitFacts(ApiAnswer, frozen=True, kw_only=True):
    """Message found by a search."""

    session: str
    key: str
    title: str
    position: int
    role: str
    at: int
    handle: str
    text: str


class SearchPage(ApiAnswer, frozen=True, kw_only=True):
    """Messages with all words, folded or not, best first; or else those with most of them."""

    query: str
    session: str
    role: str
    hits: tuple[HitFacts, ...]
    more: bool
    nearest: bool
    """Whether no hit has all of the words."""


class CacheSession(ApiAnswer, frozen=True, kw_only=True):
    """Cache usage of one session."""

    key: str
    name: str
    title: str
    model: str | None
    use: CacheUse
    causes: tuple[CauseFacts, ...]


class CachePage(ApiAnswer, frozen=True, kw_only=True):
    """Cache usage of all sessions."""

    sessions: tuple[CacheSession, ...]
    total: CacheUse
    causes: tuple[CauseFacts, ...]


class ErrorAnswer(ApiAnswer, frozen=True, kw_only=True):
    """Error response."""

    error: str
    status: int
