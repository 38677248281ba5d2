"""Folds prepared in the background, so that requests do not wait for a summary model.

1. From three quarters of the trigger on, a fold of the current conversation is prepared beside a request. At the
   trigger it is applied at once; newer messages follow it unchanged.
2. Each conversation has one preparation at a time: by its name in this process, by a lease across gateways.
3. A prepared fold fits as long as the conversation has only grown. Another branch, an undo or another fold makes it
   stale; it is cancelled when the next one begins. Alternating branches cancel each other's preparations at most
   every `REST` seconds.
4. Tasks and bytes are limited in total and per owner. A preparation over the limit is not started; the oldest ready
   folds are dropped first.
5. After a failure no attempt is made until the cooldown is over. A conversation that was not worth folding is tried
   again after it has grown, or, if a fold is due, after `REST` seconds.
6. Only the task holds the client's credential, and at most until its timeout.
7. A fold that is ready too late does not automatically replace the local one, because that would invalidate what
   the provider has just cached. It replaces it as a separate compaction if the expected calls pay for it; the next
   preparation drops it.
8. Closing the gateway cancels all preparations and waits for them. Nothing was stored, so nothing is lost.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial

from midfold.compaction.receipt import cooldown
from midfold.errors import LeaseLost
from midfold.gateway.client_model_summaries import ClientModelSummarizer
from midfold.gateway.fold_request import FoldOrder, HistoryFolder
from midfold.gateway.request_size import MeasuredRequest
from midfold.model.run import InThread
from midfold.session.conversation import PreparedFold

MAX_TASKS = 16
MAX_TASKS_PER_OWNER = 4
MAX_BYTES = 128_000_000
"""Maximum bytes of requests with a pending or ready fold."""
MAX_BYTES_PER_OWNER = 32_000_000
MAX_CALLS = 10
"""Timeout of a fold with a separate summary model, as a multiple of the timeout of one call: long histories are
summarized in several calls.
"""
MIN_GROWTH_RATIO = 1.05
"""Growth of a request, as a ratio, after which a fold that was not worth it is tried again."""
REST = 30.0
"""Seconds before a conversation that was not worth folding and has not grown is tried again, and before another branch
of a conversation may replace its preparation.
"""
Place = tuple[str, int]
"""Session name and sequence number of its compaction."""

_log = logging.getLogger("midfold.gateway")


def place_of(measured: MeasuredRequest) -> Place:
    """Return the checkpoint that a request was measured with."""
    found = measured.checkpoint
    return ("", 0) if found is None else (found.session, found.seq)


class PendingFold:
    """Fold that is being prepared or ready."""

    def __init__(self, measured: MeasuredRequest, size: int, task: asyncio.Task[PreparedFold | None]) -> None:
        chains = measured.conversation.chains
        self.owner, self.size, self.task = measured.conversation.whose, size, task
        self._tokens, self._place = measured.size.tokens, place_of(measured)
        self._chain, self._count = chains[-1], len(chains)
        self.cooldown_until = self.begun_at = self.ended_at = 0.0
        self._local_place: Place | None = None
        self.seen_at = 0.0
        """Time of the conversation's last request after this fold became late."""

    def mark_late(self, measured: MeasuredRequest, local: Place) -> bool:
        """Record that a local fold was made for this request; return whether this fold may still replace it."""
        if self.fits(measured) and self._count == len(measured.conversation.chains):
            self._local_place = local
        return self._local_place is not None

    def is_late_for(self, measured: MeasuredRequest) -> bool:
        known = measured.conversation.lengths.get(self._chain)
        return known == self._count and self._local_place == place_of(measured)

    def new_size(self, measured: MeasuredRequest) -> int:
        """Return the tokens of a request with this fold in place of its current one."""
        assert self.ready is not None
        since = measured.conversation.talk[self._count :]
        scale = measured.size.tokens / max(measured.estimated, 1)
        return self.ready.outcome.receipt.new_tokens + int(measured.limits.meter.count(since).tokens * scale)

    def fits(self, measured: MeasuredRequest) -> bool:
        """Return whether a request continues the conversation that this fold was started for."""
        known = measured.conversation.lengths.get(self._chain)
        return known == self._count and self._place == place_of(measured)

    @property
    def is_in_flight(self) -> bool:
        return not self.task.done()

    @property
    def is_good(self) -> bool:
        """Return whether the fold is usable, or pending and may become usable."""
        return self.is_in_flight or (self.ready is not None and self.ready.outcome.changed)

    @property
    def is_leased_elsewhere(self) -> bool:
        """Return whether another gateway holds the lease."""
        return self._has_ended and isinstance(self.task.exception(), LeaseLost)

    @property
    def ready(self) -> PreparedFold | None:
        """Return the finished result, including one whose summary failed; None if there is none."""
        return self.task.result() if self._has_ended and self.task.exception() is None else None

    @property
    def _has_ended(self) -> bool:
        return self.task.done() and not self.task.cancelled()

    def is_cooling_down(self, measured: MeasuredRequest, now: float, *, is_due: bool) -> bool:
        """Return whether a preparation without a usable result must not be repeated yet."""
        if self.cooldown_until:
            return now < self.cooldown_until
        if self.ready is None:
            return False
        if self.ready.has_failed:
            return now < self.ready.outcome.state.cooldown_until
        has_grown = measured.size.tokens >= self._tokens * MIN_GROWTH_RATIO
        return not has_grown and (not is_due or now < self.ended_at + REST)


class BackgroundFolds:
    """Folds that are prepared in this process. Use it on one event loop only."""

    def __init__(
        self, folder: HistoryFolder, in_thread: InThread, clock: Callable[[], float], call_seconds: float
    ) -> None:
        self._folder, self._in_thread, self._clock, self._call_seconds = folder, in_thread, clock, call_seconds
        self._pending: dict[str, PendingFold] = {}
        self._tasks: set[asyncio.Task[PreparedFold | None]] = set()

    @property
    def count(self) -> int:
        """Return the number of running preparations."""
        return len(self._tasks)

    def find(self, measured: MeasuredRequest) -> PendingFold | None:
        """Return the fold that a request can use."""
        found = self._pending.get(measured.identity)
        return found if found is not None and found.fits(measured) else None

    def find_late(self, measured: MeasuredRequest) -> PendingFold | None:
        """Return a ready fold that a local one has preceded."""
        found = self._pending.get(measured.identity)
        is_late = found is not None and found.is_late_for(measured)
        is_ready = found is not None and found.ready is not None and not found.ready.has_failed and found.is_good
        return found if is_late and is_ready else None

    def begin(
        self,
        measured: MeasuredRequest,
        order: Callable[[], FoldOrder],
        size: int,
        *,
        is_due: bool = False,
        force: bool = False,
    ) -> PendingFold | None:
        """Return the current fold of a conversation, or start a new one; None if the limits do not allow it."""
        found = None if force else self.find(measured)
        if found is not None and (found.is_good or found.is_cooling_down(measured, self._clock(), is_due=is_due)):
            return found
        if not force and self._is_blocked(measured, is_due=is_due):
            return None
        before = self.drop(measured)
        owner = measured.conversation.whose
        if not self._is_within_limits(owner, size):
            return None
        task = asyncio.get_running_loop().create_task(self._make(measured, order(), before))
        pending = self._pending[measured.identity] = PendingFold(measured, size, task)
        pending.begun_at = self._clock()
        task.add_done_callback(partial(self._end, pending))
        self._tasks.add(task)
        return pending

    def _is_blocked(self, measured: MeasuredRequest, *, is_due: bool) -> bool:
        """Return whether another fold of the conversation has precedence.

        That is a late one that is still running or has just failed or, unless a fold is due, one of another branch
        that began less than `REST` seconds ago.
        """
        other, now = self._pending.get(measured.identity), self._clock()
        if other is None or other.fits(measured):
            return False
        if other.is_late_for(measured):
            return other.is_in_flight or (not other.is_good and other.is_cooling_down(measured, now, is_due=is_due))
        return not is_due and now < other.begun_at + REST

    def _end(self, pending: PendingFold, task: asyncio.Task[PreparedFold | None]) -> None:
        self._tasks.discard(task)
        pending.ended_at = self._clock()
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, LeaseLost):
            _log.warning("background fold failed: %s", type(problem).__name__)

    async def _make(
        self, measured: MeasuredRequest, order: FoldOrder, before: asyncio.Task[PreparedFold | None] | None
    ) -> PreparedFold | None:
        own = order.summarizer if isinstance(order.summarizer, ClientModelSummarizer) else None
        try:
            async with asyncio.timeout(self._call_seconds * (1 if own is not None else MAX_CALLS)):
                if before is not None:
                    await asyncio.wait({before})
                work = await self._in_thread(self._folder.prepare, measured, order)
                ready = None if work is None else await work.later(self._in_thread)
                if ready is not None and ready.has_failed:
                    await self._in_thread(self._folder.keep_failure, measured, ready)
                return ready
        except TimeoutError:
            pending = self._pending.get(measured.identity)
            if pending is not None and pending.task is asyncio.current_task():
                pending.cooldown_until = self._clock() + cooldown("timeout")
            raise
        finally:
            if own is not None:
                own.forget()

    async def wait(self, pending: PendingFold, seconds: float | None) -> PreparedFold | None:
        """Return the fold if it is ready within `seconds`."""
        if pending.is_in_flight:
            await asyncio.wait({pending.task}, timeout=seconds)
        return pending.ready

    def drop_used(self, measured: MeasuredRequest, after: MeasuredRequest) -> None:
        """Drop a fold after its conversation was folded.

        Failed attempts stay, so that they are not repeated at once. A fold still in preparation stays if it may
        replace the local one.
        """
        found = self._pending.get(measured.identity)
        if found is None or not found.is_good or place_of(after) == place_of(measured):
            return
        if not found.is_in_flight or not found.mark_late(measured, place_of(after)):
            self.drop(measured)

    def drop(self, measured: MeasuredRequest) -> asyncio.Task[PreparedFold | None] | None:
        """Drop the fold of a conversation; if it is still running, cancel it and return its task."""
        found = self._pending.pop(measured.identity, None)
        if found is None or not found.is_in_flight:
            return None
        found.task.cancel()
        return found.task

    def _is_within_limits(self, owner: str, size: int) -> bool:
        """Return whether the limits allow another fold; drop the oldest ready ones to free bytes."""
        own = [one for one in self._pending.values() if one.owner == owner]
        if len(self._tasks) >= MAX_TASKS or sum(one.is_in_flight for one in own) >= MAX_TASKS_PER_OWNER:
            return False
        self._drop_oldest(owner, MAX_BYTES_PER_OWNER - size)
        self._drop_oldest(None, MAX_BYTES - size)
        own_bytes = sum(one.size for one in self._pending.values() if one.owner == owner)
        return own_bytes + size <= MAX_BYTES_PER_OWNER and self._bytes + size <= MAX_BYTES

    @property
    def _bytes(self) -> int:
        return sum(one.size for one in self._pending.values())

    def _drop_oldest(self, owner: str | None, max_bytes: int) -> None:
        mine = [(key, one) for key, one in self._pending.items() if owner is None or one.owner == owner]
        total = sum(one.size for _, one in mine)
        for key, one in mine:
            if total <= max_bytes:
                return
            if not one.is_in_flight:
                del self._pending[key]
                total -= one.size

    async def close(self) -> None:
        """Cancel all preparations and wait for them."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        self._pending.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
