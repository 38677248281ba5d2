"""Folding a client's history: brought into the store, compacted under a lease, kept as a checkpoint.

Rules of this file:
1. All of it happens in a thread: the store is synchronous, and a summary takes its time.
2. A client that has less than the store (it went back, and goes on differently) gets a session of its own: what is
   stored stays as it is.
3. Whoever finds the lease taken has nothing to do: the checkpoint of the other one will fit.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from midfold.cache.health import Health
from midfold.decide import Decision, Situation, decide
from midfold.fold.budget import Pressure
from midfold.fold.receipt import Receipt
from midfold.fold.request import CompactionState
from midfold.gateway.checkpoints import space_of
from midfold.gateway.conversation import Conversation
from midfold.gateway.policy import Limits, Policy
from midfold.gateway.weighing import Weighed
from midfold.lru import LRU
from midfold.service import Sessions
from midfold.session import Session
from midfold.setup import Setup
from midfold.store.intake import of_messages
from midfold.store.sync import Checkpoint
from midfold.transcript.message import plain

MOST_SETUPS = 1_000


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
        """Whether the engine declined; a summariser that has failed is no reason to ask again."""
        return self.receipt.status == "unchanged"


class Folder:
    """Decides about the conversations of requests, and compacts them."""

    def __init__(self, sessions: Sessions, policy: Policy) -> None:
        self.store, self.policy = sessions.store, policy
        self.sessions = Sessions(
            sessions.store,
            config=policy.engine_config,
            engine=sessions.engine,
            summarizer=sessions.summarizer,
            redactor=sessions.redactor,
            redacts=sessions.redacts,
            clock=sessions.clock,
        )
        self._setups: LRU[tuple[str | None, int, int], Setup] = LRU(MOST_SETUPS)

    def decide(self, weighed: Weighed, health: Health | None) -> Decision:
        """Whether a request is folded, by what it tells. What its session remembers is asked when it comes to that."""
        setup = self._setup(weighed)
        size, manages = weighed.size, self.policy.mode == "manage"
        situation = Situation(
            prompt_tokens=size.tokens,
            threshold_tokens=weighed.limits.trigger,
            enabled=self.policy.enabled and weighed.conversation.is_long_enough,
            pressure=self._pressure(weighed, setup) if manages else None,
            crowded=len(weighed.view) >= self.policy.most_messages,
            schedule=setup.schedule if manages and health is not None else None,
            health=health or Health(),
            now=setup.clock(),
            fixed_tokens=setup.meter.tokens(*weighed.fixed),
            model=setup.model,
        )
        return decide(situation)

    def _pressure(self, weighed: Weighed, setup: Setup) -> Pressure:
        """What the engine says about a request as it came."""
        state = CompactionState()
        if setup.engine.reads_messages:
            request = setup.request(of_messages(weighed.view, weighed.conversation.dialect), state)
        else:
            request = setup.bare_request(state)
        tokens, basis = weighed.size
        return setup.engine.should_compress(msgspec.structs.replace(request, prompt_tokens=tokens, token_basis=basis))

    def _setup(self, weighed: Weighed) -> Setup:
        model, limits, sessions = weighed.conversation.document.model, weighed.limits, self.sessions
        return self._setups.made(
            (model, limits.window, limits.reservation),
            lambda: Setup(
                sessions.engine,
                model=model,
                context_length=limits.window,
                output_reservation=limits.reservation or None,
                config=sessions.config,
                summarizer=sessions.summarizer,
                clock=sessions.clock,
            ),
        )

    def fold(self, weighed: Weighed, *, at_least: int = 0, force: bool = False, health: Health | None = None) -> Folded:
        """Compacts if the session decides so; `at_least` is what a provider let us know about the size."""
        conversation = weighed.conversation
        session = self.synced(conversation, weighed.name, weighed.limits)
        receipt = session.compact(
            prompt_tokens=max(weighed.size.tokens, at_least),
            token_basis="reported" if at_least else weighed.size.basis,
            measured_at=weighed.checkpoint.seq if weighed.checkpoint else 0,
            force=force,
            health=health,
        ).receipt
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
            most_messages=self.policy.most_messages,
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
