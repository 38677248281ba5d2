"""Prepare a request's body for sending: unchanged, with an applied checkpoint, or folded.

    too small? -> unchanged
    read -> matching checkpoint -> size -> below the trigger? -> unchanged, or with the checkpoint
    else, one at a time per conversation: look again -> prepared or local fold -> with the new checkpoint

1. A failure here never fails the request: if the store, the summary or the parsing of the body fails, the request is
   sent unchanged and a response header says so.
2. Two requests of one conversation never fold twice: within the process they wait for each other, across processes for
   the checkpoint of the lease holder.
3. No request waits longer than `gateway.summary_wait` for a summary model: folds are prepared in advance (see `ahead`),
   and a fold that is not ready is made without an LLM.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import msgspec

from midfold.config import Config
from midfold.config.schema import AuxiliaryTask
from midfold.decide import TIGHT, calls_to_replace
from midfold.engines import Compressor
from midfold.gateway.background_folds import MIN_GROWTH_RATIO, REST, BackgroundFolds
from midfold.gateway.caching import Caching
from midfold.gateway.client_model_summaries import ClientModels, SentPrefix
from midfold.gateway.exchange import Exchange
from midfold.gateway.fold_request import NOTHING, FoldOrder, FoldResult, HistoryFolder, larger, names_of, receipt_id
from midfold.gateway.limits import (
    AHEAD_FROM,
    LearnedLimits,
    ModelLimits,
    Policy,
    ReportedDensities,
    is_provider_refusal,
    is_telling,
    named_limit,
    whose,
)
from midfold.gateway.overflows import Overflow, without_old_media
from midfold.gateway.peek import MAX_MESSAGES
from midfold.gateway.request_size import (
    CacheHealths,
    Checkpoints,
    MeasuredRequest,
    PreparedRequest,
    RequestMeasurer,
)
from midfold.lru import LRU
from midfold.model import local_summarizer
from midfold.session.conversation import PreparedFold
from midfold.session.sessions import Sessions
from midfold.transcript.message import Transcript, Usage
from midfold.transcript.tokens import Count

T = TypeVar("T")
THREADS, SLOW_THREADS = 8, 32
"""Threads for short work, and for folds and summarizers that block; separate pools so that neither starves the other.
"""
LONGEST_WAIT = 10.0
"""Maximum seconds a request waits for another fold of the same conversation."""
PAUSE = 0.25
MOST_NAMED = 10_000
MUCH_SMALLER = 2
LARGE = 400_000
"""Bytes from which a body is processed in a thread."""

CROWDED = f"more than {MAX_MESSAGES:,} messages, or more in them than is looked at"

Shrink = Callable[[Transcript, Overflow], Transcript]

_log = logging.getLogger("midfold.gateway")


class FoldPause(NamedTuple):
    """Pause during which a conversation is not folded."""

    until: float
    enough: float
    """Tokens at which a fold is tried despite the pause."""

    def holds(self, measured: MeasuredRequest, now: float) -> bool:
        return now < self.until and measured.size.tokens < self.enough


class RequestPreparer:
    """Decide whether to fold a request, and rewrite its body."""

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
        self.own_models: ClientModels | None = None
        """Summarizers that use the conversation's own model, if configured."""
        self.ahead: BackgroundFolds | None = None
        if sessions is not None and self.folder is not None:
            task = config.auxiliary.compression
            self.policy.prepares = sessions.summarizer is not None or task != AuxiliaryTask()
            self.ahead = BackgroundFolds(self.folder, self._in_slow_thread, self._clock, task.timeout)
        self._turns: dict[str, tuple[asyncio.Lock, int]] = {}
        self._resting: LRU[str, FoldPause] = LRU(MOST_NAMED)
        self._lengths: LRU[str, int] = LRU(MOST_NAMED)
        self._densities = ReportedDensities()
        self._late_reports: LRU[str, Future[None]] = LRU(MOST_NAMED)
        """Newest pending report on a request that was sent unread, by owner and model; done once the request is read.
        """
        self.shrink: Shrink | None = lambda view, found: without_old_media(view)
        """Function that shrinks messages if folding does not help; used after errors about bytes, mostly for images."""

    async def mark(self, exchange: Exchange, body: bytes) -> bytes:
        """Return the body with cache breakpoints if the planner applies; called last, sizes are compared without."""
        passed = exchange.options.bypass or self.policy.mode == "passthrough"
        if passed or not self.caching.wants(exchange, body):
            return body
        try:
            return await self.work_on(len(body), self.caching.mark, exchange, body)
        except Exception as error:  # noqa: BLE001 - without its markers a request is as good as it came
            _log.warning("a request was not marked: %s", type(error).__name__)
            return body

    async def prepare(self, exchange: Exchange) -> PreparedRequest:
        """Return the body to send, and record in the exchange's account what was done."""
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
        await self._await_report(exchange)
        try:
            measured, prepared = await self.in_thread(self._measure, exchange, limits)
            if measured is None:
                return PreparedRequest(exchange.body)
            if prepared is None:
                measured = await self._fold_serialized(exchange, measured)
                prepared = await self.in_thread(measured.prepare)
            elif (later := await self._replace_late(exchange, measured)) is not None:
                measured, prepared = later, await self.in_thread(later.prepare)
            self.tell(exchange, measured)
            return prepared
        except Exception as error:  # noqa: BLE001 - a broken store, engine or plugin must not cost the client its request
            _log.warning("a request was passed on as it was: %s", type(error).__name__)
            exchange.account.fault = type(error).__name__
            exchange.account.reason = f"not looked at: {exchange.account.fault}"
            return PreparedRequest(exchange.body)

    async def _await_report(self, exchange: Exchange) -> None:
        """Wait for the report on this owner's previous request if it is still being read."""
        late = self._late_reports.peek(whose(exchange).name) if self._late_reports else None
        if late is not None and not late.done():
            await asyncio.wait([asyncio.wrap_future(late)], timeout=PAUSE)

    def _measure(
        self, exchange: Exchange, limits: ModelLimits
    ) -> tuple[MeasuredRequest | None, PreparedRequest | None]:
        """Measure the request, and prepare it unless it must be folded first; runs in a thread."""
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
        """Return whether a request must be folded before it is sent."""
        return self.folder is not None and self.folder.decide(measured, self.measurer.health(measured)).fold

    def _is_worth_reading(self, exchange: Exchange, limits: ModelLimits) -> bool:
        """Return whether to read the request: if it is large, or a checkpoint may have to be applied."""
        self._notice_compaction(exchange)
        if self.measurer.reads_everything:
            return True
        body = exchange.body
        if limits.may_reach_trigger(body, self._densities.of(exchange)) or self.policy.may_exceed_message_limit(body):
            return True
        return self.measurer.may_continue(body)

    def _notice_compaction(self, exchange: Exchange) -> None:
        """Note in the account that a named session became much smaller, so its client compacted it."""
        if exchange.options.session is None:
            return
        name = f"{exchange.owner.id}/{exchange.options.session}"
        before, now = self._lengths.get(name) or 0, len(exchange.body)
        self._lengths.put(name, now)
        if now * MUCH_SMALLER < before:
            exchange.account.reason = "the client has compacted its history"

    def may_change(self, exchange: Exchange) -> bool:
        """Return whether this request may be changed at all."""
        return self._reason_to_pass(exchange) is None

    def _reason_to_pass(self, exchange: Exchange) -> tuple[str, str] | None:
        """Return the action and reason for passing a request on unread; None if it should be read."""
        if exchange.route.kind not in ("generate", "count"):
            return "relayed", ""
        if exchange.options.bypass:
            return "bypassed", ""
        if not self.policy.enabled or self.folder is None:
            return "passed", "passthrough" if self.policy.mode == "passthrough" else "compression is off"
        if exchange.peek is None:
            return "passed", "the body could not be read"
        if exchange.exceeds_limits:
            return "passed", CROWDED
        if exchange.peek.is_continued:
            return "passed", "previous_response_id"
        return None

    async def _fold_serialized(self, exchange: Exchange, measured: MeasuredRequest) -> MeasuredRequest:
        """Return the request after a fold by this or another process; unchanged if none could be made."""
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
        """Serialize folds per conversation; yield whether another request went before. Unused locks are dropped."""
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
        is_patient: bool = False,
    ) -> MeasuredRequest:
        """Fold the request, or wait for another process that does.

        `at_least` is the size that a provider reported in a refusal; with `is_patient` the caller requested the fold
        and waits for its summary.
        """
        order = FoldOrder(at_least, force, overflowed, local_summarizer if self._has_own_models else None)
        ready, local = None, False
        if self.ahead is not None and self._needs_model_call(exchange, measured):
            must_wait = at_least.tokens > 0 and not self.policy.config.compression.lossy_fallback
            ready = await self._prepared_fold(exchange, measured, order, is_patient=is_patient or must_wait)
            local = True
            if ready is None and not self.policy.config.compression.lossy_fallback:
                exchange.account.reason = "not folded: the summary is not ready"
                return measured
        again = await self._fold_with(exchange, measured, order, ready, local=local)
        if self.ahead is not None:
            self.ahead.drop_used(measured, again)
        return again

    async def _fold_with(
        self,
        exchange: Exchange,
        measured: MeasuredRequest,
        order: FoldOrder,
        ready: PreparedFold | None,
        *,
        local: bool,
    ) -> MeasuredRequest:
        ends = time.monotonic() + LONGEST_WAIT
        while True:
            folded = await self._in_slow_thread(self._fold, measured, order, ready, local)
            if folded.checkpoint is not None:
                return await self._use(exchange, measured, folded, order)
            if not folded.is_in_flight or time.monotonic() >= ends:
                break
            await asyncio.sleep(PAUSE)
            again = await self.in_thread(self._again, measured)
            if not self.must_fold(again):
                return again
        self._rest(measured, folded)
        exchange.account.reason = f"not folded: {folded.receipt.summary.failure or folded.receipt.reason}"
        return measured

    async def _use(
        self, exchange: Exchange, measured: MeasuredRequest, folded: FoldResult, order: FoldOrder
    ) -> MeasuredRequest:
        """Return the request with a new checkpoint; fold again if a prepared fold no longer suffices."""
        assert folded.checkpoint is not None
        self.checkpoints.remember(folded.checkpoint)
        if folded.is_made:
            exchange.account.action = folded.receipt.status
            exchange.account.readiness = folded.receipt.summary.readiness
            exchange.account.omitted = folded.receipt.omitted
            notices = [one for one in folded.receipt.notices if one.startswith(TIGHT)]
            exchange.account.reason = "".join(notices[:1]) or exchange.account.reason
        known = (measured.conversation, measured.name, measured.limits)
        again = await self.in_thread(self.measurer.measure_with, folded.checkpoint, *known)
        was_ahead = folded.is_made and folded.receipt.summary.readiness in ("prepared", "waited")
        if was_ahead and not order.force and self.must_fold(again):
            return await self._fold_with(exchange, again, order._replace(at_least=NOTHING), None, local=True)
        return again

    @property
    def _has_own_models(self) -> bool:
        """Return whether summaries are written by the model of each conversation."""
        given = self.sessions is not None and self.sessions.summarizer is not None
        return self.own_models is not None and self.own_models.is_on and not given

    def _needs_model_call(self, exchange: Exchange, measured: MeasuredRequest) -> bool:
        """Return whether the summary needs an LLM call and thus takes time."""
        if self._has_own_models and self.own_models is not None:
            return self.own_models.may_use_credential(exchange)
        return self.folder is not None and self.folder.uses_model(measured)

    def _with_summarizer(self, exchange: Exchange, measured: MeasuredRequest, order: FoldOrder) -> FoldOrder:
        """Add the conversation's own summarizer, which uses this request's credential, to a background order."""
        own = self.own_models
        if not self._has_own_models or own is None:
            return order
        price = own.price_of_cached(measured, exchange.account.usage)
        prefix = SentPrefix(measured, self.policy.config)
        return order._replace(summarizer=own.summarizer(exchange, measured), prefix=prefix, price=price)

    async def _replace_late(self, exchange: Exchange, measured: MeasuredRequest) -> MeasuredRequest | None:
        """Replace a local fold by the LLM fold that was late, if that pays off; return None otherwise."""
        late = None if self.ahead is None or self.folder is None else self.ahead.find_late(measured)
        if late is None or late.ready is None or self.ahead is None or self.folder is None:
            return None
        now, seen = self._clock(), late.seen_at or self._clock()
        late.seen_at = now
        calls = calls_to_replace(
            size_tokens=measured.size.tokens,
            new_tokens=late.new_size(measured),
            fixed_tokens=measured.fixed,
            idle=now - seen,
            prices=self.folder.prices(measured),
        )
        so_far = sum(message.role == "assistant" for message in measured.conversation.talk)
        if calls is None or calls > so_far:
            return None
        async with self._turn(measured.identity):
            folded = await self._in_slow_thread(self.folder.replace, measured, late.ready.with_readiness("late"))
            self.ahead.drop(measured)
        return None if folded is None else await self._use(exchange, measured, folded, FoldOrder(force=True))

    def prepare_ahead(self, exchange: Exchange, prepared: PreparedRequest) -> None:
        """Start preparing the next fold after a request was answered, if it will soon be needed."""
        measured, usage = prepared.measured, exchange.account.usage
        if measured is None or self.ahead is None or measured.limits.is_deferred:
            return
        if exchange.account.status != 200 or exchange.account.action == "recovered":
            return
        if usage is not None and is_telling(usage.prompt_tokens):
            measured = measured._replace(size=Count(usage.prompt_tokens, "reported"))
        soon = measured.size.tokens >= AHEAD_FROM * measured.limits.trigger
        if not soon or not measured.conversation.is_long_enough:
            return
        if self._needs_model_call(exchange, measured):
            make = partial(self._with_summarizer, exchange, measured, FoldOrder())
            self.ahead.begin(measured, make, len(exchange.body))

    async def _prepared_fold(
        self, exchange: Exchange, measured: MeasuredRequest, order: FoldOrder, *, is_patient: bool
    ) -> PreparedFold | None:
        """Return the fold with an LLM summary, or None if it is not ready in time."""
        assert self.ahead is not None
        began, account = time.perf_counter(), exchange.account
        found = None if order.force else self.ahead.find(measured)
        was_ready = found is not None and not found.is_in_flight
        make = partial(self._with_summarizer, exchange, measured, order)
        pending = self.ahead.begin(measured, make, len(exchange.body), is_due=True, force=order.force)
        if pending is None:
            return None
        seconds = self.policy.config.gateway.summary_wait
        ready = await self.ahead.wait(pending, None if is_patient else seconds)
        if pending.is_leased_elsewhere:
            await self._await_other(measured, began + seconds)
        account.fold_wait += 0.0 if was_ready else time.perf_counter() - began
        return ready if ready is None or was_ready else ready.with_readiness("waited")

    async def _await_other(self, measured: MeasuredRequest, ends: float) -> None:
        """Wait until another gateway has applied the fold that it prepares, or the time is over."""
        while time.perf_counter() < ends:
            await asyncio.sleep(min(PAUSE, max(ends - time.perf_counter(), 0.0)))
            if not self.must_fold(await self.in_thread(self._again, measured)):
                return

    def _fold(
        self, measured: MeasuredRequest, order: FoldOrder, ready: PreparedFold | None = None, local: bool = False
    ) -> FoldResult:
        assert self.folder is not None
        folded = self.folder.fold(measured, order, health=self.measurer.health(measured), ahead=ready, local=local)
        if folded.checkpoint is None:
            newest = self.checkpoints.find_in_store(measured.conversation, measured.name)
            if newest is not None and newest != measured.checkpoint:
                # Another process folded it in the meantime.
                return folded._replace(checkpoint=newest)
        if order.at_least.tokens and folded.was_declined:
            # The provider refused the request: a small gain is better than none.
            return self.folder.fold(measured, order._replace(force=True), local=local)
        return folded

    def _rest(self, measured: MeasuredRequest, folded: FoldResult) -> None:
        """Pause folding of a conversation after a failure, or until it has grown enough to be worth folding."""
        failed = folded.receipt.summary
        pause = failed.cooldown if failed.failure else REST
        enough = measured.size.tokens * MIN_GROWTH_RATIO if folded.was_declined else math.inf
        self._resting.put(measured.identity, FoldPause(self._clock() + pause, enough))

    def observe(self, exchange: Exchange, prepared: PreparedRequest, usage: Usage | None) -> None:
        """Record the usage a provider reported for an answered request; None if it reported none."""
        self.measurer.reports.note_answer(exchange, has_usage=usage is not None)
        if usage is None:
            return
        if is_telling(usage.prompt_tokens):
            output = exchange.peek.output if exchange.peek is not None else 0
            self.policy.learned.note_answer(whose(exchange), usage.prompt_tokens, output)
            self._save_limits()
        self._densities.note(exchange, usage.prompt_tokens, len(prepared.body))
        self.measurer.observe(prepared, usage)
        if prepared.measured is None and self._reason_to_pass(exchange) is None:
            limits = self.policy.limits_of(exchange)
            if usage.prompt_tokens >= AHEAD_FROM * limits.trigger:
                # The next request's size is this report plus its new messages, so the reported messages must be known.
                late = self._threads.submit(self.measurer.observe_unread, exchange, limits, usage)
                self._late_reports.put(whose(exchange).name, late)

    def _save_limits(self) -> None:
        if not self.policy.learned.is_saved:
            self._threads.submit(self.policy.learned.save)

    def tell(self, exchange: Exchange, measured: MeasuredRequest) -> None:
        """Record in the account how the request was measured and which checkpoint was applied."""
        account = exchange.account
        exchange.conversation = measured.conversation
        exchange.own_tools = names_of(measured.tools)
        if measured.checkpoint is not None or self.measurer.reads_everything:
            account.reason = account.reason or measured.conversation.offer.problem
        account.tokens_before, account.tokens_after = measured.came, measured.size.tokens
        if measured.conversation.link is not None and not account.reason:
            before = measured.conversation.link.sessions[-1].session
            account.reason = f"continues {before} after the client's own compaction"
        if measured.checkpoint is not None:
            account.session = measured.checkpoint.session
            account.receipt = receipt_id(measured.checkpoint)
            if account.action == "relayed":
                account.action = "checkpoint"

    async def recover(self, exchange: Exchange, prepared: PreparedRequest, found: Overflow) -> PreparedRequest | None:
        """Return a smaller version of a request that was refused as too large, or None. Done once per request."""
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
        """Return the request folded or shrunk; None if it is not smaller than the refused body."""
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
        """Learn from a refusal: the limit it names, or that this size exceeds the window."""
        learned, key = self.policy.learned, whose(exchange)
        if found.limit:
            named = await self.in_thread(named_limit, found.error, exchange.body)
            if 0 < named < measured.limits.window:
                learned.learn(key, named)
        elif not found.is_bytes and await self.in_thread(is_provider_refusal, found.error, exchange.body):
            output = exchange.peek.output if exchange.peek is not None else 0
            learned.refuse(key, measured.size.tokens + output)
        self._save_limits()

    async def work_on(self, size: int, work: Callable[..., T], *arguments: Any) -> T:
        """Run work on a body of this size: directly if it is small, else in a thread."""
        return work(*arguments) if size < LARGE else await self.in_thread(work, *arguments)

    async def in_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)

    async def _in_slow_thread(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._slow_threads, work, *arguments)

    async def close(self) -> None:
        if self.ahead is not None:
            await self.ahead.close()
        for threads in (self._threads, self._slow_threads):
            threads.shutdown(wait=False, cancel_futures=True)
