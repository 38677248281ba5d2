"""Folding a client's history: prepared ahead of time, brought into the store, compacted under a lease.

Rules of this file:
1. All of it happens in a thread: the store is synchronous, and a fold takes its time.
2. A client that has less than the store (it went back, and goes on differently) gets a session of its own: what is
   stored stays as it is.
3. Whoever finds the lease taken has nothing to do: the checkpoint of the other one will fit.
4. What is only prepared is stored nowhere: a conversation is written down when it is folded. A lease of its own keeps
   two gateways from preparing the same fold.
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
from midfold.model.run import Preparation, Question, with_pause_of
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

MOST_SETUPS = 1_000
NOTHING = Count(0, "estimated")
PREPARING = "\npreparation"
"""Behind a session's name: the lease of who prepares a fold of it. No session can be called so."""


class FoldOrder(NamedTuple):
    """What is asked of a fold beside its request. `at_least` is what a provider let us know about the size."""

    at_least: Count = NOTHING
    force: bool = False
    overflowed: bool = False
    """Whether the provider has refused the request."""
    summarizer: Summarizer | None = None
    """Who writes its summary; None: whoever the settings choose."""
    prefix: CachedPrefix | None = None
    """Writes the request that the conversation's own model has cached, at this price of a new one's."""
    price: float | None = None


class FoldResult(NamedTuple):
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


class HistoryFolder:
    """Decides about the conversations of requests, and compacts them."""

    def __init__(self, sessions: Sessions, policy: Policy) -> None:
        self.store, self.policy = sessions.store, policy
        self._given = sessions
        self._sessions: dict[float, Sessions] = {}
        self._setups: LRU[tuple[str | None, int, int, float], Setup] = LRU(MOST_SETUPS)
        self._logged: LRU[str, bool] = LRU(MOST_SETUPS)

    def _sessions_at(self, ratio: float) -> Sessions:
        """The sessions under the settings of a mode, or of requests that are folded at a share of the window."""
        given = self._given
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
        """Whether a request is folded, by what it tells. What its session remembers is asked when it comes to that."""
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

    def _log_faults(self, *told: str) -> None:
        """What an engine did wrong, each once."""
        for text in told:
            if text.startswith(ENGINE_FAILED) and self._logged.get(text) is None:
                self._logged.put(text, True)
                _log.error(text)

    def _recall_cost(self, measured: MeasuredRequest, setup: Setup) -> RecallCost:
        """Tools that the fold would bring along are written, and everything behind them."""
        offer, conversation = measured.conversation.offer, measured.conversation
        if measured.tools or not offer.new:
            return conversation.recall
        tokens = setup.meter.tokens(*conversation.fixed_size(setup.meter, offer.new))
        return msgspec.structs.replace(conversation.recall, introduced_tokens=tokens)

    def _ask_engine(self, measured: MeasuredRequest, setup: Setup, situation: Situation) -> Situation:
        """The situation with what the engine says about a request as it came."""
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

    def asks_model(self, measured: MeasuredRequest) -> bool:
        """Whether the settings leave summaries to somebody who takes time."""
        return self._setup(measured).writer() is not local_summarizer

    def prepare(self, measured: MeasuredRequest, order: FoldOrder) -> Preparation[PreparedFold] | None:
        """A fold of a request as it is now; nothing of it is stored. None where none would be made."""
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
        """What is known of a session right after one of its compactions: where another one is in force, the request is
        of a branch, which will begin with that, and with the pause."""
        info = self.store.info(name)
        if info is None:
            return ConversationMemory()
        newest = memory_of(info)
        if info.compaction == seq:
            return newest
        record = next((one for one in self.store.records(name) if one.seq == seq), None)
        then = CompactionState() if record is None else record.state
        return ConversationMemory(state=with_pause_of(then, newest.state), noted=record is not None and record.noted)

    def _under_lease(
        self, name: str, made: Preparation[PreparedFold]
    ) -> Generator[Question, SummaryAnswer, PreparedFold]:
        with self._preparing(name):
            ready = yield from made.steps
        # What was needed to make it, and the client's bytes with it, is no longer.
        return ready._replace(request=msgspec.structs.replace(ready.request, cached_prefix=None))

    @contextmanager
    def _preparing(self, name: str) -> Iterator[None]:
        """One at a time for each conversation, across gateways. The lease leaves nothing behind."""
        leases, key = self.store.leases, name + PREPARING
        try:
            with hold_lease(leases, key, ttl=leases.ttl) as got:
                if got is None:
                    raise LeaseLost(f"session {name}: its next fold is being prepared elsewhere")
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
        """Compacts if the session decides so: with the fold made `ahead` if it fits, `local`: without a model."""
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
        """A summary that nobody waited for has failed; of a conversation that is not stored only memory knows it."""
        name = measured.name if measured.checkpoint is None else measured.checkpoint.session
        for one in {name, measured.name}:
            keep_pause(self._session(measured.conversation, one, measured.limits), failed.outcome.state)

    def replace(self, measured: MeasuredRequest, ready: PreparedFold) -> FoldResult | None:
        """Puts a fold that was ready too late in the place of a request's local one; None if it does not fit."""
        session = self.sync(measured.conversation, measured.name, measured.limits)
        done = replace_fold(session, ready)
        if done is None or not done.changed:
            return None
        found = self.store.checkpoints.find(session.name, measured.conversation.lengths)
        return FoldResult(done.receipt, found)

    def prices(self, measured: MeasuredRequest) -> Prices:
        return self._setup(measured).prices

    def sync(self, conversation: ClientHistory, name: str, limits: ModelLimits) -> Session:
        """The session that holds exactly this history."""
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
    """The larger size, with what it rests on."""
    return other if other.tokens > one.tokens else one


def _system_of(conversation: ClientHistory) -> Any:
    """The system prompt, as the bytes it came as."""
    system = conversation.system
    if system is None or conversation.preamble is None or not isinstance(system.wire, Raw):
        return None if system is None else system.wire
    return entries(bytes(system.wire)).get("content")


def _tools_of(conversation: ClientHistory) -> list[Any]:
    """Tools, each as the bytes it came as."""
    body = conversation.document.body
    tools = None if body is None else body.get("tools")
    if isinstance(tools, Raw):
        return list(elements(tools)) if first_byte(tools) == b"[" else []
    return tools if isinstance(tools, list) else []


@lru_cache(1_000)
def names_of(definitions: bytes) -> frozenset[str]:
    """What tools are called."""
    return frozenset(tool_of(value).name for value in tool_values(definitions))


def receipt_id(checkpoint: Checkpoint) -> str:
    """How a receipt is named in a header: `midfold sessions` finds it."""
    return f"{checkpoint.session}#{checkpoint.seq}"
