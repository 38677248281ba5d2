"""What there is to see, as plain values: pages draw them, `/api` gives them as they are.

Times are milliseconds since 1970, sizes are tokens of the session's own model, money is US dollars.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from midfold.cache.health import Kind
from midfold.compaction.receipt import Receipt
from midfold.compaction.tracking import CheckRun, Trail

SizeBasis = Literal["estimated", "calibrated", "reported", "sampled"]
"""`sampled`: extrapolated from some of the messages, because there are very many."""
Fate = Literal["kept", "changed", "folded"]
"""Of a message: whether the model sees it word for word, in a shorter form, or only what the handoff says of it."""
SegmentName = Literal["fixed", "head", "folded", "pinned", "handoff", "tail", "kept"]
"""`fixed` is the system prompt and the tools beside the messages; `kept` is everything where nothing was folded."""
Level = Literal["problem", "warning", "note"]


class ApiAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The base of them all."""


class Size(ApiAnswer, frozen=True, kw_only=True):
    """How large the next request is, against what fits."""

    tokens: int
    basis: SizeBasis
    window: int
    threshold: int
    share: float
    """Of the window."""


class Saved(ApiAnswer, frozen=True, kw_only=True):
    """What the folds have saved: the requests that were sent against the same requests without any fold."""

    requests: int
    """Requests whose usage was reported."""
    tokens_sent: int
    tokens_not_sent: int
    """A request that could not have been sent, because it would not fit the window, counts as one that just fits."""
    tokens_retrieved: int
    """Tokens that came back because somebody unfolded or searched; they are not counted as saved."""
    paid: float | None
    """None if a price is not known. Output is the same with and without folds and is left out."""
    without_folds: float | None
    summaries: float | None
    """What the calls for summaries cost, estimated from the size of the folds."""
    net: float | None
    """without_folds - paid - summaries"""


class CacheUse(ApiAnswer, frozen=True, kw_only=True):
    """What providers said about their prompt cache."""

    requests: int
    prompt_tokens: int
    read_tokens: int
    written_tokens: int
    hit_rate: float | None
    """Share of the prompt tokens that was read from the cache."""
    paid: float | None
    uncached: float | None
    """What the same prompts would have cost without a cache."""
    net: float | None
    """uncached - paid: writes cost more than plain tokens, so it can be less than nothing."""


class UsageFacts(ApiAnswer, frozen=True, kw_only=True):
    """Sum of what providers reported and what it cost."""

    requests: int
    input_tokens: int
    """Prompt tokens, those read from the cache and written to it included."""
    output_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    cost: float | None
    """Prompts and answers; None if a price is not known. Calls for summaries are not included."""


class CauseFacts(ApiAnswer, frozen=True, kw_only=True):
    """Requests that hit the cache, or missed it for one reason."""

    cause: Kind
    requests: int
    tokens: int
    """Prompt tokens that were paid anew although the prompt before had them."""
    cost: float | None
    """What that cost beyond reading them."""


class Finding(ApiAnswer, frozen=True, kw_only=True):
    """Something that deserves a look."""

    level: Level
    what: str
    session: str
    title: str = ""


class SessionFacts(ApiAnswer, frozen=True, kw_only=True):
    """One session at a glance."""

    key: str
    """Its name as a segment of an address."""
    name: str
    title: str = ""
    """The first words that a person typed in it, where they are stored."""
    client: str = ""
    """The program whose session it is, where its name tells or its requests did."""
    sent_by: str = ""
    """What its requests called themselves, as `name/version`."""
    owner: str = ""
    """What stands before the last `/` of its name: the key of a gateway, or a project."""
    kind: Literal["root", "branch", "continuation"]
    parent: str | None
    model: str | None
    dialect: str
    created: int
    updated: int
    ended: int | None
    messages: int
    """As many as were said, stored or not."""
    stored: int
    """A gateway stores what was said when a conversation is folded."""
    compaction: int
    """The compaction in force; 0 if there is none."""
    compactions: int
    size: Size
    saved: Saved
    cache: CacheUse
    usage: UsageFacts
    causes: tuple[CauseFacts, ...] = ()
    """Why its prompts were read from the cache, or not; empty if nothing was ever cached."""
    findings: tuple[Finding, ...] = ()


class Day(ApiAnswer, frozen=True, kw_only=True):
    """What was sent on one day, and what was not."""

    day: str
    requests: int
    tokens_sent: int
    tokens_not_sent: int


class Overview(ApiAnswer, frozen=True, kw_only=True):
    """All sessions at a glance; sums are over those listed."""

    sessions: tuple[SessionFacts, ...]
    more: bool
    """Whether there are sessions that are not listed."""
    saved: Saved
    cache: CacheUse
    findings: tuple[Finding, ...]
    days: tuple[Day, ...]


class SessionList(ApiAnswer, frozen=True, kw_only=True):
    """Sessions, those used last first unless another order was asked for."""

    query: str
    model: str
    client: str
    owner: str
    sort: str
    order: Literal["up", "down"]
    models: tuple[str, ...]
    clients: tuple[str, ...]
    owners: tuple[str, ...]
    """What there is to choose from."""
    sorted_only: int
    """How many of the matching sessions, those used last, were put in order; 0: all."""
    sessions: tuple[SessionFacts, ...]
    page: int
    more: bool


class TurnFacts(ApiAnswer, frozen=True, kw_only=True):
    """One request, as the provider counted it."""

    at: int
    messages: int
    compaction: int
    model: str | None
    prompt_tokens: int
    completion_tokens: int
    cache_read_tokens: int
    cache_write_tokens: int
    without_folds: int
    """The prompt if nothing had ever been folded, at most the window."""


class TurnList(ApiAnswer, frozen=True, kw_only=True):
    """Every request whose usage was reported, the oldest first."""

    session: str
    turns: tuple[TurnFacts, ...]


class CompactionFacts(ApiAnswer, frozen=True, kw_only=True):
    """One compaction at a glance."""

    seq: int
    base: int
    """The compaction whose view it folded further; 0: the history."""
    at: int
    upto: int
    """How many messages had been said."""
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
    """Who wrote the summary: model, local, none."""
    failure: str


class CompactionList(ApiAnswer, frozen=True, kw_only=True):
    """The compactions of a session, undone ones too."""

    session: str
    compactions: tuple[CompactionFacts, ...]


class ToolAct(ApiAnswer, frozen=True, kw_only=True):
    """A call of a tool, or what came of it, in a few words; redacted."""

    tool: str
    did: str
    """What it does, as its arguments tell: "ran `pytest -q`"."""
    outcome: Literal["", "ok", "failed", "unknown"]
    """How it ended, as its result tells; empty for the call itself."""
    detail: str
    """The same in words."""


class MessageLine(ApiAnswer, frozen=True, kw_only=True):
    """One message in a list: the beginning of what it says, redacted."""

    index: int
    """Its place in this list."""
    position: int | None
    """Its place in the history; None for a message midfold wrote."""
    role: str
    at: int | None
    tokens: int
    handle: str
    """Unfolds to it. Empty for what midfold wrote: a handoff, or a shorter form, whose `position` has the original."""
    fate: Fate
    ours: Literal["", "fold", "ack", "bridge"]
    """What it is if midfold wrote it; `fold` is the handoff."""
    tools: tuple[str, ...]
    acts: tuple[ToolAct, ...]
    """What its calls ask for, or what its results tell; at most a few."""
    text: str
    """The beginning of what it says; of results, of what they hold. Empty for calls alone."""


class MessageList(ApiAnswer, frozen=True, kw_only=True):
    """Some messages of a longer list."""

    session: str
    start: int
    total: int
    lines: tuple[MessageLine, ...]


class Share(ApiAnswer, frozen=True, kw_only=True):
    """What tokens are spent on."""

    name: str
    tokens: int


class Artifacts(ApiAnswer, frozen=True, kw_only=True):
    """What was made: the trail of the newest fold, followed through the newest messages."""

    trail: Trail
    checks: tuple[CheckRun, ...]
    """Those of the trail whose outcome still counts, the newest first."""
    skipped: int
    """Messages behind that fold, or from the beginning, that were too many to be followed."""


class ContextPart(ApiAnswer, frozen=True, kw_only=True):
    """A part of the window: a fixed cost, the conversation, the reserve for the answer, or what is free."""

    name: str
    tokens: int
    share: float
    """Of the window."""


class SessionPage(ApiAnswer, frozen=True, kw_only=True):
    """One session: how it grew and was folded, and where its tokens go now."""

    session: SessionFacts
    view_messages: int
    """How many messages the model sees."""
    compacting: bool
    """Whether a compaction is being made right now."""
    kinds: tuple[Share, ...]
    context: tuple[ContextPart, ...]
    """The whole window; corrected by what the provider counted, where `session.size` rests on that."""
    sampled: bool
    """Whether `kinds` and `context` were extrapolated from some of the messages."""
    turns: tuple[TurnFacts, ...]
    compactions: tuple[CompactionFacts, ...]
    made: Artifacts
    lines: MessageList
    newer: str | None
    """The session that was used next after this one."""
    older: str | None


class Segment(ApiAnswer, frozen=True, kw_only=True):
    """A stretch of neighbours with the same fate."""

    what: SegmentName
    messages: int
    tokens: int


class Change(ApiAnswer, frozen=True, kw_only=True):
    """A message that became shorter."""

    kind: str
    tool: str
    characters_before: int
    characters_after: int
    handle: str


class HandoffSection(ApiAnswer, frozen=True, kw_only=True):
    """What became different under one heading."""

    heading: str
    new: tuple[str, ...]
    gone: tuple[str, ...]


class HandoffComparison(ApiAnswer, frozen=True, kw_only=True):
    """A handoff, line by line, against the one before it."""

    seq: int
    """The compaction that wrote the one before; 0 if that is not known."""
    new: int
    gone: int
    same: int
    sections: tuple[HandoffSection, ...]
    """Those with lines that are new or gone."""


class CompactionPage(ApiAnswer, frozen=True, kw_only=True):
    """Before and after."""

    session: str
    title: str
    compaction: CompactionFacts
    previous: int | None
    next: int | None
    before: tuple[Segment, ...]
    after: tuple[Segment, ...]
    counts: dict[Fate, int]
    handoff: str
    """The summary that stands for the fold, redacted; empty if nothing was folded."""
    compared: HandoffComparison | None
    """Against the handoff that it replaced; None for the first."""
    fold: str
    """The handle of the whole fold."""
    changes: tuple[Change, ...]
    shown: str
    """Which fate was asked for, or `after` for the messages afterwards; empty for all before."""
    lines: MessageList


class ReceiptPage(ApiAnswer, frozen=True, kw_only=True):
    """Every decision of one compaction and its reason."""

    session: str
    title: str
    compaction: CompactionFacts
    previous: int | None
    next: int | None
    receipt: Receipt
    checks: tuple[CheckRun, ...]
    """Those of its trail whose outcome still counted, the newest first."""


class MessageBlock(ApiAnswer, frozen=True, kw_only=True):
    """A part of a message."""

    kind: Literal["text", "thinking", "tool call", "tool result", "media", "other"]
    title: str
    text: str
    is_error: bool = False
    left_out: int = 0
    """Characters that are not shown here; the raw form has them."""
    act: ToolAct | None = None
    """What a call asks for, or how it ended."""
    outline: str = ""
    """What a result that is JSON says, as bounded bullets; empty for everything else."""


class Original(ApiAnswer, frozen=True, kw_only=True):
    """A message as it was said, redacted."""

    position: int | None
    role: str
    at: int | None
    tokens: int
    handle: str
    blocks: tuple[MessageBlock, ...]


class OriginalsPage(ApiAnswer, frozen=True, kw_only=True):
    """What is behind a handle, or at a position."""

    session: str
    title: str
    handle: str
    start: int
    total: int
    messages: tuple[Original, ...]
    next: int | None = None
    """The position of the next message of the history, if this is one of it and there is another."""


class HitFacts(ApiAnswer, frozen=True, kw_only=True):
    """One message that was found."""

    session: str
    key: str
    title: str
    position: int
    role: str
    at: int
    handle: str
    text: str


class SearchPage(ApiAnswer, frozen=True, kw_only=True):
    """Messages that have all the words, folded or not, the best first; or those that have most of them."""

    query: str
    session: str
    role: str
    hits: tuple[HitFacts, ...]
    more: bool
    nearest: bool
    """None of the hits has all of the words."""


class CacheSession(ApiAnswer, frozen=True, kw_only=True):
    """The cache of one session."""

    key: str
    name: str
    title: str
    model: str | None
    use: CacheUse
    causes: tuple[CauseFacts, ...]


class CachePage(ApiAnswer, frozen=True, kw_only=True):
    """How well the prompt caches work."""

    sessions: tuple[CacheSession, ...]
    total: CacheUse
    causes: tuple[CauseFacts, ...]


class ErrorAnswer(ApiAnswer, frozen=True, kw_only=True):
    """Why there is no answer."""

    error: str
    status: int
