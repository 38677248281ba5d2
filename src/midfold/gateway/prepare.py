"""What is done with the body of a request before it is sent: nothing, a checkpoint put in, or a fold.

    too small to matter? -> as it is
    read -> checkpoint that fits -> size -> below the trigger? -> as it is, or with the checkpoint
    else, one at a time per conversation: look again -> fold -> with the new checkpoint

Rules of this file:
1. What fails here never fails the request: a store that does not answer, a summary that cannot be made, a body nobody
   can read leave the request as it was, and a header says so.
2. Two requests of one conversation never fold twice: in this process they wait for each other, and elsewhere for the
   checkpoint of whoever holds the lease.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import lru_cache, partial
from typing import Any, NamedTuple, TypeVar

import msgspec
from msgspec import Raw

from midfold.cache.health import Health
from midfold.config import Config
from midfold.decide import TIGHT, Decision, Situation, decide
from midfold.engine import Compressor
from midfold.engine.guard import ENGINE_FAILED, ask_engine
from midfold.fold.receipt import RecallCost, Receipt
from midfold.fold.request import CompactionState
from midfold.gateway.caching import Caching
from midfold.gateway.exchange import Exchange
from midfold.gateway.limits import (
    LearnedLimits,
    ModelLimits,
    Policy,
    is_own_refusal,
    is_telling,
    named_limit,
    whose,
)
from midfold.gateway.measuring import (
    CacheHealths,
    Checkpoints,
    ClientHistory,
    MeasuredRequest,
    PreparedRequest,
    RequestMeasurer,
    space_of,
    tool_values,
)
from midfold.gateway.overflows import Overflow, without_old_media
from midfold.gateway.peek import MOST_MESSAGES
from midfold.lru import LRU
from midfold.service import Sessions
from midfold.session import Session, pass_pause_on
from midfold.setup import Setup
from midfold.store.intake import of_messages
from midfold.store.sync import Checkpoint
from midfold.transcript.document import tool_of
from midfold.transcript.jsonio import elements, entries, first_byte
from midfold.transcript.message import Transcript, Usage
from midfold.transcript.tokens import Count

# Folding a client's history: brought into the store, compacted under a lease, kept as a checkpoint.
#
# Rules:
# 1. All of it happens in a thread: the store is synchronous, and a summary takes its time.
# 2. A client that has less than the store (it went back, and goes on differently) gets a session of its own: what is
#    stored stays as it is.
# 3. Whoever finds the lease taken has nothing to do: the checkpoint of the other one will fit.


MOST_SETUPS = 1_000
NOTHING = Count(0, "estimated")


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
            leaves_room=not manages or setup.schedule is None,
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

    def fold(
        self,
        measured: MeasuredRequest,
        *,
        at_least: Count = NOTHING,
        force: bool = False,
        overflowed: bool = False,
        health: Health | None = None,
    ) -> FoldResult:
        """Compacts if the session decides so; `at_least` is what a provider let us know about the size."""
        conversation, size = measured.conversation, larger(measured.size, at_least)
        session = self.sync(conversation, measured.name, measured.limits)
        receipt = session.compact(
            prompt_tokens=size.tokens,
            token_basis=size.basis,
            measured_at=measured.checkpoint.seq if measured.checkpoint else 0,
            force=force,
            overflowed=overflowed,
            health=health,
        ).receipt
        self._log_faults(*receipt.notices)
        if receipt.summary.failure:
            pass_pause_on(session, measured.name)
        folded = FoldResult(receipt, None)
        if not folded.is_made:
            return folded
        return folded._replace(checkpoint=self.store.checkpoints.find(session.name, conversation.lengths))

    def sync(self, conversation: ClientHistory, name: str, limits: ModelLimits) -> Session:
        """The session that holds exactly this history."""
        named = self._session(conversation, name, limits)
        done = named.sync(list(conversation.bare))
        if not done.ahead:
            return done.session
        own = self._session(conversation, f"{name}.{conversation.chains[-1].hex()[:12]}", limits)
        session = own.sync(list(conversation.bare)).session
        pass_pause_on(named, session.name)
        return session

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


T = TypeVar("T")
THREADS, SLOW_THREADS = 8, 32
"""For what takes milliseconds, and for folds, which may wait for a model: neither keeps the other from its turn."""
LONGEST_WAIT = 60.0
"""Seconds a request waits for another gateway that folds the same conversation."""
PAUSE = 0.25
REST = 30.0
"""Seconds in which a conversation that was not worth folding is not looked at again, unless it has grown."""
MOST_NAMED = 10_000
MUCH_SMALLER = 2
WORTH_ANOTHER_TRY = 1.05
LARGE = 400_000
"""Bytes of a body that is worth a thread."""

CROWDED = f"more than {MOST_MESSAGES:,} messages, or more in them than is looked at"

Shrink = Callable[[Transcript, Overflow], Transcript]

_log = logging.getLogger("midfold.gateway")


class FoldPause(NamedTuple):
    """A conversation that is not folded for a while."""

    until: float
    enough: float
    """Tokens from which it is tried all the same."""

    def holds(self, measured: MeasuredRequest, now: float) -> bool:
        return now < self.until and measured.size.tokens < self.enough


class RequestPreparer:
    """Looks after the conversations that pass through."""

    def __init__(self, config: Config, sessions: Sessions | None) -> None:
        self._clock = time.time if sessions is None else sessions.clock
        self.policy = Policy(config, LearnedLimits(None if sessions is None else sessions.store, self._clock))
        self.policy.redactor = sessions.redactor if sessions is not None and sessions.redacts else None
        self.sessions = sessions
        self.caching = Caching(config, self.policy.meter)
        self.checkpoints = Checkpoints(sessions)
        self.measurer = RequestMeasurer(self.policy, self.checkpoints, CacheHealths(config, self._clock))
        self.folder = None if sessions is None else HistoryFolder(sessions, self.policy)
        if sessions is not None and sessions.engine is not None:
            self.policy.asks_engine = type(sessions.engine).should_compress is not Compressor.should_compress
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="midfold-gateway")
        self._slow_threads = ThreadPoolExecutor(SLOW_THREADS, thread_name_prefix="midfold-fold")
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._resting: LRU[str, FoldPause] = LRU(MOST_NAMED)
        self._lengths: LRU[str, int] = LRU(MOST_NAMED)
        self.shrink: Shrink | None = lambda view, found: without_old_media(view)
        """Makes messages smaller where folding does not: after errors about bytes, pictures mostly."""

    async def mark(self, exchange: Exchange, body: bytes) -> bytes:
        """The body with cache breakpoints, where the planner applies; last of all, so that sizes compare without."""
        passed = exchange.options.bypass or self.policy.mode == "passthrough"
        if passed or not self.caching.wants(exchange, body):
            return body
        try:
            return await self.work_on(len(body), self.caching.mark, exchange, body)
        except Exception as error:  # noqa: BLE001 - without its markers a request is as good as it came
            _log.warning("a request was not marked: %s", type(error).__name__)
            return body

    async def prepare(self, exchange: Exchange) -> PreparedRequest:
        """The body to send, and in the exchange's account what was done."""
        reason = self._reason_to_pass(exchange)
        if reason is not None:
            exchange.account.action, exchange.account.reason = reason
            return PreparedRequest(exchange.body)
        assert exchange.peek is not None
        if self.policy.learned.is_stale:
            await self.in_thread(self.policy.learned.load)
        limits = self.policy.limits_of(exchange)
        if not self._is_worth_reading(exchange, limits):
            return PreparedRequest(exchange.body)
        try:
            measured, prepared = await self.in_thread(self._measure, exchange, limits)
            if measured is None:
                return PreparedRequest(exchange.body)
            if prepared is None:
                measured = await self._fold_in_turn(exchange, measured)
                prepared = await self.in_thread(measured.prepare)
            self.tell(exchange, measured)
            return prepared
        except Exception as error:  # noqa: BLE001 - a broken store, engine or plugin must not cost the client its request
            _log.warning("a request was passed on as it was: %s", type(error).__name__)
            exchange.account.fault = type(error).__name__
            exchange.account.reason = f"not looked at: {exchange.account.fault}"
            return PreparedRequest(exchange.body)

    def _measure(
        self, exchange: Exchange, limits: ModelLimits
    ) -> tuple[MeasuredRequest | None, PreparedRequest | None]:
        """The request measured, and ready to be sent unless it must be folded first; in a thread."""
        measured = self.measurer.measure(exchange, limits)
        if measured is None:
            return None, None
        if exchange.route.kind == "generate" and self.folder is not None:
            decision = self.folder.decide(measured, self.measurer.health(measured))
            if decision.fold:
                return measured, None
            exchange.account.reason = decision.notice or exchange.account.reason
        return measured, measured.prepare()

    def must_fold(self, measured: MeasuredRequest) -> bool:
        """Whether a request is folded before it is sent."""
        return self.folder is not None and self.folder.decide(measured, self.measurer.health(measured)).fold

    def _is_worth_reading(self, exchange: Exchange, limits: ModelLimits) -> bool:
        """Small requests are not read, unless something may have to be put back into them."""
        self._notice_compaction(exchange)
        if self.measurer.reads_everything:
            return True
        return len(exchange.body) >= limits.floor or self.policy.may_be_many(exchange.body)

    def _notice_compaction(self, exchange: Exchange) -> None:
        """A named session whose requests have become much smaller was compacted by its client."""
        if exchange.options.session is None:
            return
        name = f"{exchange.owner.id}/{exchange.options.session}"
        before, now = self._lengths.get(name) or 0, len(exchange.body)
        self._lengths.put(name, now)
        if now * MUCH_SMALLER < before:
            exchange.account.reason = "the client has compacted its history"

    def looks_at(self, exchange: Exchange) -> bool:
        """Whether this request may be changed at all."""
        return self._reason_to_pass(exchange) is None

    def _reason_to_pass(self, exchange: Exchange) -> tuple[str, str] | None:
        """Why a request is not looked at at all."""
        if exchange.route.kind not in ("generate", "count"):
            return "relayed", ""
        if exchange.options.bypass:
            return "bypassed", ""
        if not self.policy.enabled or self.folder is None:
            return "passed", "passthrough" if self.policy.mode == "passthrough" else "compression is off"
        if exchange.peek is None:
            return "passed", "the body could not be read"
        if exchange.is_crowded:
            return "passed", CROWDED
        if exchange.peek.is_continued:
            return "passed", "previous_response_id"
        return None

    async def _fold_in_turn(self, exchange: Exchange, measured: MeasuredRequest) -> MeasuredRequest:
        """The request after a fold, by whomever; as it was if none could be made."""
        rest = self._resting.get(measured.identity)
        if rest is not None and rest.holds(measured, self._clock()):
            exchange.account.reason = "a fold failed a moment ago"
            return measured
        async with self._turn(measured.identity) as waited:
            if measured.is_stored and not waited:
                return await self.fold(exchange, measured)
            again = await self.in_thread(self._again, measured)
            return await self.fold(exchange, again) if self.must_fold(again) else again

    @asynccontextmanager
    async def _turn(self, name: str) -> AsyncIterator[bool]:
        """One at a time for each conversation; says whether somebody was before. What nobody waits for is forgotten."""
        lock, waiting = self._turns.get(name, (asyncio.Lock(), 0))
        self._turns[name] = (lock, waiting + 1)
        try:
            async with lock:
                yield waiting > 0
        finally:
            lock, waiting = self._turns.pop(name)
            if waiting > 1:
                self._turns[name] = (lock, waiting - 1)

    def _again(self, measured: MeasuredRequest) -> MeasuredRequest:
        return self.measurer.look_up(measured.conversation, measured.name, measured.limits, fresh=True)

    async def fold(
        self,
        exchange: Exchange,
        measured: MeasuredRequest,
        *,
        at_least: Count = NOTHING,
        force: bool = False,
        overflowed: bool = False,
    ) -> MeasuredRequest:
        """Folds, or waits for whoever does. `at_least` is what a provider let us know about the size."""
        ends = time.monotonic() + LONGEST_WAIT
        while True:
            loop = asyncio.get_running_loop()
            folded = await loop.run_in_executor(self._slow_threads, self._fold, measured, at_least, force, overflowed)
            if folded.checkpoint is not None:
                self.checkpoints.remember(folded.checkpoint)
                if folded.is_made:
                    exchange.account.action = folded.receipt.status
                    notices = [one for one in folded.receipt.notices if one.startswith(TIGHT)]
                    exchange.account.reason = "".join(notices[:1]) or exchange.account.reason
                known = (measured.conversation, measured.name, measured.limits)
                return await self.in_thread(self.measurer.measure_with, folded.checkpoint, *known)
            if not folded.is_in_flight or time.monotonic() >= ends:
                break
            await asyncio.sleep(PAUSE)
            again = await self.in_thread(self._again, measured)
            if not self.must_fold(again):
                return again
        self._rest(measured, folded)
        exchange.account.reason = f"not folded: {folded.receipt.summary.failure or folded.receipt.reason}"
        return measured

    def _fold(self, measured: MeasuredRequest, at_least: Count, force: bool, overflowed: bool) -> FoldResult:
        assert self.folder is not None
        fold = partial(self.folder.fold, measured, at_least=at_least, overflowed=overflowed)
        folded = fold(force=force, health=self.measurer.health(measured))
        if folded.checkpoint is None:
            newest = self.checkpoints.find_in_store(measured.conversation, measured.name)
            if newest is not None and newest != measured.checkpoint:
                # Somebody else has folded it in the meantime.
                return folded._replace(checkpoint=newest)
        if at_least.tokens and folded.was_not_worth_it:
            # The provider has refused the request: a small gain is better than none.
            return fold(force=True)
        return folded

    def _rest(self, measured: MeasuredRequest, folded: FoldResult) -> None:
        """Saves the store a question whose answer is known: a pause after a failure is in the session's memory, and
        what was not worth folding may be when it has grown."""
        failed = folded.receipt.summary
        pause = failed.cooldown if failed.failure else REST
        enough = measured.size.tokens * WORTH_ANOTHER_TRY if folded.was_not_worth_it else math.inf
        self._resting.put(measured.identity, FoldPause(self._clock() + pause, enough))

    def observe(self, exchange: Exchange, prepared: PreparedRequest, usage: Usage) -> None:
        """What the provider counted for a request that it has answered."""
        if is_telling(usage.prompt_tokens):
            output = exchange.peek.output if exchange.peek is not None else 0
            self.policy.learned.note_answer(whose(exchange), usage.prompt_tokens, output)
            self._save_limits()
        self.measurer.observe(prepared, usage)

    def _save_limits(self) -> None:
        if not self.policy.learned.is_saved:
            self._threads.submit(self.policy.learned.save)

    def tell(self, exchange: Exchange, measured: MeasuredRequest) -> None:
        """The account of a request that was looked at."""
        account = exchange.account
        exchange.conversation = measured.conversation
        exchange.own_tools = names_of(measured.tools)
        if measured.checkpoint is not None or self.measurer.reads_everything:
            account.reason = account.reason or measured.conversation.offer.problem
        account.tokens_before, account.tokens_after = measured.came, measured.size.tokens
        if measured.checkpoint is not None:
            account.session = measured.checkpoint.session
            account.receipt = receipt_id(measured.checkpoint)
            if account.action == "relayed":
                account.action = "checkpoint"

    async def recover(self, exchange: Exchange, prepared: PreparedRequest, found: Overflow) -> PreparedRequest | None:
        """A request the provider refused as too large, made smaller; None if it cannot be. Done once per request."""
        if self._reason_to_pass(exchange) is not None or exchange.peek is None:
            return None
        before = msgspec.structs.replace(exchange.account)
        try:
            smaller = await self._smaller(exchange, found, len(prepared.body))
        except Exception as error:  # noqa: BLE001 - the provider's own error is the answer then
            _log.warning("a refused request could not be made smaller: %s", type(error).__name__)
            smaller = None
        if smaller is None:
            exchange.account = before
            return None
        exchange.account.action = "recovered"
        return smaller

    async def _smaller(self, exchange: Exchange, found: Overflow, refused: int) -> PreparedRequest | None:
        """The request folded, or with what `shrink` makes of it; None if that has not fewer bytes than were refused."""
        measured = await self.in_thread(self.measurer.measure, exchange, self.policy.limits_of(exchange))
        if measured is None:
            return None
        await self._learn(exchange, found, measured)
        limits = self.policy.limits_of(exchange)
        if limits.window != measured.limits.window:
            known = (measured.checkpoint, measured.conversation, measured.name, limits)
            measured = await self.in_thread(self.measurer.measure_with, *known)
        at_least = NOTHING
        if not found.is_bytes:
            beyond = Count(max(found.limit, limits.window) + 1, "estimated")
            at_least = larger(beyond, Count(found.asked, "reported"))
        async with self._turn(measured.identity):
            again = await self.fold(exchange, measured, at_least=at_least, force=found.is_bytes, overflowed=True)
        self.tell(exchange, again)
        exchange.account.tokens_before = max(again.came, found.asked)
        smaller = await self.in_thread(again.prepare)
        if len(smaller.body) >= refused and self.shrink is not None:
            view = await self.in_thread(self.shrink, again.view, found)
            smaller = await self.in_thread(again._replace(view=view).prepare)
        return smaller if len(smaller.body) < refused else None

    async def _learn(self, exchange: Exchange, found: Overflow, measured: MeasuredRequest) -> None:
        """What a refusal tells about the window: the limit that it names, else that this size is beyond it."""
        learned, key = self.policy.learned, whose(exchange)
        if found.limit:
            named = await self.in_thread(named_limit, found.error, exchange.body)
            if 0 < named < measured.limits.window:
                learned.learn(key, named)
        elif not found.is_bytes and await self.in_thread(is_own_refusal, found.error, exchange.body):
            output = exchange.peek.output if exchange.peek is not None else 0
            learned.refuse(key, measured.size.tokens + output)
        self._save_limits()

    async def work_on(self, size: int, work: Callable[..., T], *arguments: Any) -> T:
        """Work on so many bytes: here where it takes a moment, else in a thread."""
        return work(*arguments) if size < LARGE else await self.in_thread(work, *arguments)

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def close(self) -> None:
        for threads in (self._threads, self._slow_threads):
            threads.shutdown(wait=False, cancel_futures=True)
