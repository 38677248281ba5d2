"""A request on the scales: its conversation, the checkpoint that fits it, and how large it is.

Rules of this file:
1. Reading, hashing and counting runs in a thread.
2. The size of a request is what a provider reported for its beginning, and an estimate of what is new. A report is
   bound to the chain of the messages it measured and to the checkpoint that stood for some of them; one that is far
   from the estimate measured something else, and is not believed. Without a report the estimate counts alone.
3. What providers' caches did is kept in memory, for the newest conversations, where folds are scheduled. After a
   restart, or at another gateway, nothing is known: then a conversation is folded at its threshold, and cheap moments
   come later. Only requests that were looked at count, so a conversation is believed to have cost less than it has.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from midfold.cache.health import Health, Seen
from midfold.cache.prices import prices_for
from midfold.config import Config
from midfold.errors import TranscriptError
from midfold.gateway.checkpoints import Checkpoints, named
from midfold.gateway.conversation import OURS, Conversation
from midfold.gateway.exchange import Exchange
from midfold.gateway.owner import Owner
from midfold.gateway.policy import Limits, Policy, is_scheduled
from midfold.lru import LRU
from midfold.store.sync import Checkpoint
from midfold.transcript.document import read
from midfold.transcript.message import Transcript, Usage
from midfold.transcript.tokens import HIGHEST_BELIEVED, LOWEST_BELIEVED, MOST_UNSEEN, Count, Fixed

MOST_REPORTS, MOST_CACHES = 20_000, 10_000
LOWEST_RATIO, HIGHEST_RATIO = 0.5, 2.0

Key = tuple[bytes, bytes]
"""The chain of all messages, and that of the checkpoint; the latter is empty without one."""
LONGEST_NAME = 150


def is_usable(name: str) -> bool:
    """Whether a client may call its session so. Names we give ourselves, it may not: they follow from the messages."""
    return len(name) <= LONGEST_NAME and name.isprintable() and "/" not in name and not name.startswith(OURS)


class Prepared(NamedTuple):
    """A body to send, and what must be known when its usage is reported."""

    body: bytes
    key: Key | None = None
    estimated: int = 0
    weighed: Weighed | None = None


class Weighed(NamedTuple):
    """A request that was looked at."""

    conversation: Conversation
    name: str
    limits: Limits
    checkpoint: Checkpoint | None
    view: Transcript
    fixed: Fixed
    estimated: int
    size: Count

    @property
    def key(self) -> Key:
        return (self.conversation.chains[-1], _of(self.conversation, self.checkpoint))

    @property
    def identity(self) -> str:
        return f"{self.conversation.identity}/{self.name}"

    def prepared(self) -> Prepared:
        noted = self.checkpoint is not None and self.checkpoint.noted
        body = self.conversation.written(self.view, noted=noted)
        return Prepared(body, self.key, self.estimated, self)


def _of(conversation: Conversation, checkpoint: Checkpoint | None) -> bytes:
    """What tells the view of one checkpoint from that of another, of the same messages too, and owners from others."""
    whose = conversation.whose.encode()
    return whose if checkpoint is None else whose + checkpoint.chain + f"{checkpoint.session}#{checkpoint.seq}".encode()


class Report(NamedTuple):
    """Tokens of one prompt."""

    reported: int
    estimated: int


class Anchors:
    """The newest reports."""

    def __init__(self) -> None:
        self._known: LRU[Key, Report] = LRU(MOST_REPORTS)

    def observe(self, key: Key, reported: int, estimated: int) -> None:
        if not LOWEST_BELIEVED * estimated <= reported <= HIGHEST_BELIEVED * estimated + MOST_UNSEEN:
            return
        self._known.put(key, Report(reported, estimated))

    def size(self, chains: list[bytes], checkpoint: bytes, estimated: int) -> Count:
        """How large a request is whose own estimate is this."""
        for chain in reversed(chains):
            report = self._known.peek((chain, checkpoint))
            if report is not None:
                ratio = min(max(report.reported / max(report.estimated, 1), LOWEST_RATIO), HIGHEST_RATIO)
                new = round((estimated - report.estimated) * ratio)
                return Count(report.reported + new, "calibrated" if new else "reported")
        return Count(estimated, "estimated")


class Caches:
    """The health of the caches of conversations, by their names."""

    def __init__(self, config: Config, clock: Callable[[], float]) -> None:
        self.config, self.clock = config, clock
        self._is_on = is_scheduled(config)
        self._health: LRU[str, Health] = LRU(MOST_CACHES)

    def observe(self, name: str, model: str | None, compaction: int, usage: Usage) -> None:
        """What a provider reported for a request of this conversation."""
        if not self._is_on:
            return
        known = self._health.get(name) or Health()
        prices = prices_for(model, self.config.prompt_caching.cache_ttl, self.config.models)
        seen = Seen(model=model or "", compaction=compaction)
        self._health.put(name, known.observe(usage, seen, at=self.clock(), prices=prices))

    def health(self, name: str) -> Health | None:
        """What is known of this conversation; None where nothing is scheduled, or nothing is known."""
        return self._health.get(name) if self._is_on else None


class Scales:
    """Weighs requests."""

    def __init__(self, policy: Policy, checkpoints: Checkpoints, caches: Caches) -> None:
        self.policy, self.checkpoints, self.caches = policy, checkpoints, caches
        self.anchors = Anchors()
        self.put_back: Callable[[Owner, Conversation], Conversation] | None = None
        """Puts turns back that the client has never seen."""

    def weigh(self, exchange: Exchange, limits: Limits) -> Weighed | None:
        """Reads, hashes and counts a request; in a thread."""
        try:
            document = exchange.document = read(exchange.body, dialect=exchange.route.dialect, name="the request")
        except TranscriptError:
            return None
        conversation = Conversation(document, self.policy.redactor, exchange.owner.id)
        if not conversation.talk:
            return None
        if self.put_back is not None:
            conversation = self.put_back(exchange.owner, conversation)
        return self.weighed(conversation, self.name(exchange, conversation), limits)

    def weighed(self, conversation: Conversation, name: str, limits: Limits, *, fresh: bool = False) -> Weighed:
        """The view and its size; `fresh` looks into the store even where memory has a checkpoint."""
        find = self.checkpoints.stored if fresh else self.checkpoints.find
        checkpoint = find(conversation, name)
        view = conversation.view(checkpoint)
        fixed = conversation.fixed(limits.meter)
        estimated = limits.meter.count(view, fixed).tokens
        size = self.anchors.size(conversation.chains, _of(conversation, checkpoint), estimated)
        return Weighed(conversation, name, limits, checkpoint, view, fixed, estimated, size)

    def name(self, exchange: Exchange, conversation: Conversation) -> str:
        """The session of a request: as its header says, else by its first messages."""
        asked = exchange.asked.session
        own = asked if asked is not None and is_usable(asked) else conversation.name
        return named(exchange.namespace, own)

    def health(self, weighed: Weighed) -> Health | None:
        """What is known of the provider's cache; None where nothing is."""
        return self.caches.health(weighed.identity)

    def observe(self, prepared: Prepared, usage: Usage) -> None:
        """What the provider counted for a request that was looked at."""
        if prepared.key is not None:
            self.anchors.observe(prepared.key, usage.prompt_tokens, prepared.estimated)
        weighed = prepared.weighed
        if weighed is not None:
            seq = 0 if weighed.checkpoint is None else weighed.checkpoint.seq
            self.caches.observe(weighed.identity, weighed.conversation.document.model, seq, usage)
