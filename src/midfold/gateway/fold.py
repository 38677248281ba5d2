"""Folding a client's history: brought into the store, compacted under a lease, kept as a checkpoint.

Rules of this file:
1. All of it happens in a thread: the store is synchronous, and a summary takes its time.
2. A client that has less than the store (it went back, and goes on differently) gets a session of its own: what is
   stored stays as it is.
3. Whoever finds the lease taken has nothing to do: the checkpoint of the other one will fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

from midfold.fold.receipt import Receipt, Timing
from midfold.gateway.checkpoints import space_of
from midfold.gateway.conversation import Conversation
from midfold.gateway.policy import Limits, Policy
from midfold.service import Sessions
from midfold.session import COOLING, Session
from midfold.store.sync import Checkpoint
from midfold.transcript.message import plain

"""How the receipt of a session begins that leaves its summariser alone for a while."""


class Folded(NamedTuple):
    """What became of it."""

    receipt: Receipt
    checkpoint: Checkpoint | None

    @property
    def is_made(self) -> bool:
        return self.receipt.status in ("compacted", "pruned")

    @property
    def is_in_flight(self) -> bool:
        return self.receipt.status == "already_in_flight"

    @property
    def was_not_worth_it(self) -> bool:
        """Whether the engine declined; a summariser that has just failed is no reason to ask again."""
        return self.receipt.status == "unchanged" and self.receipt.reason != COOLING


class Known(NamedTuple):
    """The size of the view that a checkpoint gives."""

    checkpoint: Checkpoint | None
    tokens: int
    is_estimate: bool


class Folder:
    """Compacts conversations of requests."""

    def __init__(self, sessions: Sessions, policy: Policy) -> None:
        self.store = sessions.store
        self.sessions = Sessions(
            sessions.store,
            config=policy.engine_config,
            engine=sessions.engine,
            summarizer=sessions.summarizer,
            redactor=sessions.redactor,
            redacts=sessions.redacts,
            clock=sessions.clock,
        )

    def fold(
        self,
        conversation: Conversation,
        name: str,
        limits: Limits,
        known: Known,
        *,
        force: bool,
        timing: Timing | None = None,
    ) -> Folded:
        """Compacts if the engine finds it worth while; `timing` says why now, where that was decided by price."""
        session = self.synced(conversation, name, limits)
        seq = known.checkpoint.seq if known.checkpoint else 0
        measured = None if known.is_estimate else known.tokens
        receipt = session.compact(prompt_tokens=measured, measured_at=seq, force=force, timing=timing).receipt
        if receipt.status == "unchanged" and receipt.old_tokens < receipt.threshold_tokens <= known.tokens:
            # Two estimates, one on each side of the threshold: the one that looked at the request decides.
            receipt = session.compact(prompt_tokens=known.tokens, measured_at=seq, timing=timing).receipt
        folded = Folded(receipt, None)
        if not folded.is_made:
            return folded
        return folded._replace(checkpoint=self.store.checkpoints.find(session.name, conversation.lengths))

    def synced(self, conversation: Conversation, name: str, limits: Limits) -> Session:
        """The session that holds exactly this history."""
        done = self._session(conversation, name, limits).sync(list(conversation.bare))
        if not done.ahead:
            return done.session
        own = f"{name}.{conversation.chains[-1].hex()[:12]}"
        return self._session(conversation, own, limits).sync(list(conversation.bare)).session

    def _session(self, conversation: Conversation, name: str, limits: Limits) -> Session:
        return self.sessions.session(
            name,
            model=conversation.document.model,
            context_length=limits.window,
            output_reservation=limits.reservation or None,
            system=_system_of(conversation),
            tools=_tools_of(conversation),
            dialect=conversation.dialect.name,
            owner=space_of(name),
        )


def _system_of(conversation: Conversation) -> Any:
    """The system prompt as a value: an engine counts it and notes the first compaction in it."""
    system = conversation.system
    if system is None:
        return None
    value = plain(system.wire)
    return value.get("content") if conversation.preamble is not None and isinstance(value, dict) else value


def _tools_of(conversation: Conversation) -> list[Any]:
    tools = conversation.document.setting("tools")
    return tools if isinstance(tools, list) else []


def receipt_id(checkpoint: Checkpoint) -> str:
    """How a receipt is named in a header: `midfold sessions` finds it."""
    return f"{checkpoint.session}#{checkpoint.seq}"
