"""Fold a client's history: prepare it in the background, store it, compact it under a lease.

1. All of this runs in threads: the store is synchronous, and a fold takes time.
2. A client that has fewer messages than the store and continues differently gets a new session; stored messages do
   not change.
3. A gateway that finds the lease taken does nothing: the checkpoint of the other gateway will fit.
4. A preparation stores nothing: a conversation is stored when it is folded. A separate lease keeps two gateways
   from preparing the same fold.
"""

from __future__ import annotations

import logging
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from functools import lru_cache
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from midfold.cache.health import Health
from midfold.cache.prices import Prices
from midfold.compaction.receipt import RecallCost, Receipt
from midfold.compaction.request import CachedPrefix, CompactionState, SummaryAnswer
from midfold.decide import Decision, Situation, decide
from midfold.engines.guard import ENGINE_FAILED, ask_engine
from midfold.errors import LeaseLost, StoreError
from midfold.gateway.limits import ModelLimits, Policy
from midfold.gateway.request_size import ClientHistory, MeasuredRequest, space_of, tool_values
from midfold.lru import LRU
from midfold.model import Summarizer, local_summarizer
from midfold.model.run import Preparation, Question, with_cooldown_of
from midfold.session.conversation import ConversationMemory, PreparedFold, resume_in_memory
from midfold.session.session import Session, keep_pause, memory_of, replace_fold
from midfold.session.sessions import Sessions
from midfold.session.setup import Setup
from midfold.store.intake import of_messages
from midfold.store.leases import hold_lease
from midfold.store.sqlstore import StoredKeeper
from midfold.store.sync import Checkpoint
from midfold.transcript.document import tool_of
from midfold.transcript.jsonio import elements, entries, first_byte
from midfold.transcript.tokens import Count

_log = logging.getLogger("midfold.gateway")

MAX_SETUPS = 1_000
NOTHING = Count(0, "estimated")
PREPARATION_SUFFIX = "\npreparation"
"""Suffix of a session's name for the lease of its preparation. No session name can end with it."""


class FoldOrder(NamedTuple):
    """Parameters of a fold. `at_least` is the request's size as the provider reported it."""

    at_least: Count = NOTHING
    force: bool = False
    overflowed: bool = False
    """True if the provider has refused the request as too long."""
    summarizer: Summarizer | None = None
    """Summarizer to use; None for the configured one."""
    prefix: CachedPrefix | None = None
    """Builder of the request that the conversation's model has cached. `price` is the price of one of its tokens
    relative to a new token.
    """
    price: float | None = None


class FoldResult(NamedTuple):
    """Result of one attempt to fold a request's history."""

    receipt: Receipt
    checkpoint: Checkpoint | None

    @property
    def is_made(self) -> bool:
        return self.receipt.status in ("compacted", "pruned")

    @property
    def is_in_flight(self) -> bool:
        return self.receipt.status == "already_in_flight"

    @property
    def was_declined(self) -> bool:
        """Return whether the engine declined, as opposed to a failed summarizer."""
        return self.receipt.status == "unchanged"


class HistoryFolder:
    """Decisions about folding requests, and the compaction of their conversations."""

    def __init__(self, sessions: Sessions, policy: Policy) -> None:
        self.store, self.policy = sessions.store, policy
        self._base_sessions = sessions
        self._sessions: dict[float, Sessions] = {}
        self._setups: LRU[tuple[str | None, int, int, float], Setup] = LRU(MAX_SETUPS)
        self._logged: LRU[str, bool] = LRU(MAX_SETUPS)

    def _sessions_at(self, ratio: float) -> Sessions:
        """Return the sessions with the settings for a trigger ratio; 0 means the configured mode."""
        given = self._base_sessions
        if ratio not in self._sessions:
            self._sessions[ratio] = Sessions(
                given.store,
                config=self.policy.engine_config(ratio),
                engine=given.engine,
                summarizer=given.summarizer,
                redactor=given.redactor,
                media_reducer=given.media_reducer,
                redacts=given.redacts,
                clock=given.clock,
            )
        return self._sessions[ratio]

    def decide(self, measured: MeasuredRequest, health: Health | None) -> Decision:
        """Decide whether to fold a request from the request alone; `fold` also consults its session."""
        setup = self._setup(measured)
        size, manages = measured.size, self.policy.mode == "manage" and not measured.limits.ratio
        situation = Situation(
            prompt_tokens=size.tokens,
            threshold_tokens=measured.limits.trigger,
            enabled=self.policy.enabled and measured.conversation.is_long_enough,
            crowded=len(measured.view) >= self.policy.most_messages,
            schedule=setup.schedule if manages and health is not None else None,
            health=health or Health(),
            now=setup.clock(),
            fixed_tokens=measured.fixed,
            leaves_room=True,
            recall=self._recall_cost(measured, setup),
            model=setup.model,
        )
        decision = decide(self._ask_engine(measured, setup, situation) if manages else situation)
        self._log_faults(decision.fault)
        return decision

    def _log_faults(self, *texts: str) -> None:
        """Log faults of an engine, each text once."""
        for text in texts:
            if text.startswith(ENGINE_FAILED) and self._logged.get(text) is None:
                self._logged.put(text, True)
                _log.error(text)

    def _recall_cost(self, measured: MeasuredRequest, setup: Setup) -> RecallCost:
        """Return the recall cost, with the tokens of tools that the fold would introduce."""
        offer, conversation = measured.conversation.offer, measured.conversation
        if measured.tools or not offer.new:
            return conversation.recall
        tokens = setup.meter.tokens(*conversation.fixed_size(setup.meter, offer.new))
        return msgspec.structs.replace(conversation.recall, introduced_tokens=tokens)

    def _ask_engine(self, measured: MeasuredRequest, setup: Setup, situation: Situation) -> Situation:
        """Return the situation with the engine's judgement of the request."""
        state = CompactionState()
        if setup.engine.reads_messages:
            request = setup.request(of_messages(measured.view, measured.conversation.dialect), state)
        else:
            request = setup.bare_request(state)
        tokens, basis = measured.size
        request = msgspec.structs.replace(request, prompt_tokens=tokens, token_basis=basis)
        return ask_engine(setup.engine, request, situation)

    def _setup(self, measured: MeasuredRequest) -> Setup:
        model, limits = measured.conversation.document.model, measured.limits
        sessions = self._sessions_at(limits.ratio)
        return self._setups.get_or_make(
            (model, limits.window, limits.reservation, limits.ratio),
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

    def uses_model(self, measured: MeasuredRequest) -> bool:
        """Return whether the configured summarizer is slower than the built-in one."""
        return self._setup(measured).writer() is not local_summarizer

    def prepare(self, measured: MeasuredRequest, order: FoldOrder) -> Preparation[PreparedFold] | None:
        """Prepare a fold of the current request without storing anything; return None if none would be made."""
        checkpoint = measured.checkpoint
        name = measured.name if checkpoint is None else checkpoint.session
        memory = self._memory(name, 0 if checkpoint is None else checkpoint.seq)
        keeper = StoredKeeper(self.store, name, space_of(name))
        conversation, size = measured.conversation, larger(measured.size, order.at_least)
        setup = self._session(conversation, measured.name, measured.limits).setup
        setup.summarizer = order.summarizer or setup.summarizer
        setup.cached_prefix, setup.cached_price = order.prefix, order.price
        held = resume_in_memory(setup, memory, keeper)
        bare = conversation.bare if checkpoint is None else checkpoint.apply(conversation.bare, conversation.dialect)
        held.sync(of_messages(bare, conversation.dialect))
        made = held.prepare(size.tokens, token_basis=size.basis, force=order.force, overflowed=order.overflowed)
        return None if made is None else Preparation(self._under_lease(name, made))

    def _memory(self, name: str, seq: int) -> ConversationMemory:
        """Return the memory of a session right after compaction `seq`.

        If another compaction is in force, the request belongs to a branch: it starts with the state recorded at
        `seq` and the newest cooldown.
        """
        info = self.store.info(name)
        if info is None:
            return ConversationMemory()
        newest = memory_of(info)
        if info.compaction == seq:
            return newest
        record = next((one for one in self.store.records(name) if one.seq == seq), None)
        then = CompactionState() if record is None else record.state
        return ConversationMemory(state=with_cooldown_of(then, newest.state), noted=record is not None and record.noted)

    def _under_lease(
        self, name: str, made: Preparation[PreparedFold]
    ) -> Generator[Question, SummaryAnswer, PreparedFold]:
        with self._preparation_lease(name):
            ready = yield from made.steps
        # Drop the prefix builder: it holds the client's bytes and is no longer needed.
        return ready._replace(request=msgspec.structs.replace(ready.request, cached_prefix=None))

    @contextmanager
    def _preparation_lease(self, name: str) -> Iterator[None]:
        """Hold the lease of a preparation across gateways, and delete it afterwards."""
        leases, key = self.store.leases, name + PREPARATION_SUFFIX
        try:
            with hold_lease(leases, key, ttl=leases.ttl) as got:
                if got is None:
                    raise LeaseLost(f"session {name}: another gateway is preparing its next fold")
                yield
        finally:
            with suppress(StoreError):
                leases.forget(key)

    def fold(
        self,
        measured: MeasuredRequest,
        order: FoldOrder,
        *,
        health: Health | None = None,
        ahead: PreparedFold | None = None,
        local: bool = False,
    ) -> FoldResult:
        """Compact if the session decides so, using the fold prepared `ahead` if it fits; `local` means without a
        model.
        """
        conversation, size = measured.conversation, larger(measured.size, order.at_least)
        session = self.sync(conversation, measured.name, measured.limits)
        session.setup.summarizer = order.summarizer or session.setup.summarizer
        seq = measured.checkpoint.seq if measured.checkpoint else 0
        if ahead is not None and not ahead.outcome.changed:
            session.swap(ahead)
            receipt = ahead.outcome.receipt
        else:
            receipt = session.compact(
                ahead=ahead,
                local=local,
                prompt_tokens=size.tokens,
                token_basis=size.basis,
                measured_at=seq,
                force=order.force,
                overflowed=order.overflowed,
                health=health,
            ).receipt
        self._log_faults(*receipt.notices)
        folded = FoldResult(receipt, None)
        if not folded.is_made:
            return folded
        return folded._replace(checkpoint=self.store.checkpoints.find(session.name, conversation.lengths))

    def keep_failure(self, measured: MeasuredRequest, failed: PreparedFold) -> None:
        """Store the cooldown of a background summary that failed, if the conversation is stored."""
        name = measured.name if measured.checkpoint is None else measured.checkpoint.session
        for one in {name, measured.name}:
            keep_pause(self._session(measured.conversation, one, measured.limits), failed.outcome.state)

    def replace(self, measured: MeasuredRequest, ready: PreparedFold) -> FoldResult | None:
        """Replace a request's local fold by one that was ready too late; return None if it does not fit."""
        session = self.sync(measured.conversation, measured.name, measured.limits)
        done = replace_fold(session, ready)
        if done is None or not done.changed:
            return None
        found = self.store.checkpoints.find(session.name, measured.conversation.lengths)
        return FoldResult(done.receipt, found)

    def prices(self, measured: MeasuredRequest) -> Prices:
        return self._setup(measured).prices

    def sync(self, conversation: ClientHistory, name: str, limits: ModelLimits) -> Session:
        """Return the session that holds exactly this history."""
        named = self._session(conversation, name, limits)
        done = named.sync(list(conversation.bare))
        if not done.ahead:
            return done.session
        own = self._session(conversation, f"{name}.{conversation.chains[-1].hex()[:12]}", limits)
        return own.sync(list(conversation.bare)).session

    def _session(self, conversation: ClientHistory, name: str, limits: ModelLimits) -> Session:
        offer = conversation.offer
        session = self._sessions_at(limits.ratio).session(
            name,
            model=conversation.document.model,
            context_length=limits.window,
            output_reservation=limits.reservation or None,
            system=_system_of(conversation),
            tools=[*_tools_of(conversation), *tool_values(offer.kept)],
            dialect=conversation.dialect.name,
            owner=space_of(name),
            most_messages=self.policy.most_messages,
            leaves_room=True,
        )
        session.setup.late_tools = tool_values(b"" if offer.kept else offer.new)
        session.setup.recall = conversation.recall
        return session


def larger(one: Count, other: Count) -> Count:
    """Return the larger size with its basis."""
    return other if other.tokens > one.tokens else one


def _system_of(conversation: ClientHistory) -> Any:
    """Return the system prompt as received."""
    system = conversation.system
    if system is None or conversation.preamble is None or not isinstance(system.wire, Raw):
        return None if system is None else system.wire
    return entries(bytes(system.wire)).get("content")


def _tools_of(conversation: ClientHistory) -> list[Any]:
    """Return the tools, each as received."""
    body = conversation.document.body
    tools = None if body is None else body.get("tools")
    if isinstance(tools, Raw):
        return list(elements(tools)) if first_byte(tools) == b"[" else []
    return tools if isinstance(tools, list) else []


@lru_cache(1_000)
def names_of(definitions: bytes) -> frozenset[str]:
    """Return the names of tool definitions."""
    return frozenset(tool_of(value).name for value in tool_values(definitions))


def receipt_id(checkpoint: Checkpoint) -> str:
    """Return the id of a receipt as used in headers and by `midfold sessions`."""
    return f"{checkpoint.session}#{checkpoint.seq}"
