"""A request on the scales: its conversation, the checkpoint that fits it, and how large it is.

Reading, hashing and counting; all of it runs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from midfold.errors import TranscriptError
from midfold.fold.receipt import Timing
from midfold.gateway.anchors import Anchors, Key
from midfold.gateway.checkpoints import Checkpoints, named
from midfold.gateway.conversation import OURS, Conversation
from midfold.gateway.exchange import Exchange
from midfold.gateway.moments import Moments
from midfold.gateway.owner import Owner
from midfold.gateway.policy import Limits, Policy
from midfold.store.sync import Checkpoint
from midfold.transcript.document import read
from midfold.transcript.message import Transcript, Usage
from midfold.transcript.tokens import Count

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


class Scales:
    """Weighs requests."""

    def __init__(self, policy: Policy, checkpoints: Checkpoints, moments: Moments) -> None:
        self.policy, self.checkpoints, self.moments = policy, checkpoints, moments
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
        estimated = conversation.tokens(view, limits.meter)
        size = self.anchors.size(conversation.chains, _of(conversation, checkpoint), estimated)
        return Weighed(conversation, name, limits, checkpoint, view, estimated, size)

    def name(self, exchange: Exchange, conversation: Conversation) -> str:
        """The session of a request: as its header says, else by its first messages."""
        asked = exchange.asked.session
        own = asked if asked is not None and is_usable(asked) else conversation.name
        return named(exchange.namespace, own)

    def must_fold(self, weighed: Weighed) -> bool:
        """Whether a request has reached the trigger, has too many messages, or would be folded cheaply now."""
        if not weighed.conversation.is_long_enough:
            return False
        if weighed.size.tokens >= weighed.limits.trigger or self._is_many(weighed):
            return True
        timing = self.timing(weighed)
        return timing is not None and timing.fold

    def timing(self, weighed: Weighed) -> Timing | None:
        """Whether now is a cheap moment; None where that is not asked for."""
        model = weighed.conversation.document.model
        return self.moments.timing(weighed.identity, model, weighed.limits.trigger, weighed.size.tokens)

    def _is_many(self, weighed: Weighed) -> bool:
        return len(weighed.view) >= self.policy.most_messages

    def observe(self, prepared: Prepared, usage: Usage) -> None:
        """What the provider counted for a request that was looked at."""
        if prepared.key is not None:
            self.anchors.observe(prepared.key, usage.prompt_tokens, prepared.estimated)
        weighed = prepared.weighed
        if weighed is not None:
            seq = 0 if weighed.checkpoint is None else weighed.checkpoint.seq
            self.moments.observe(weighed.identity, weighed.conversation.document.model, seq, usage)
