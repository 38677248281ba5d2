"""Folds made in the background, so that no request waits for a summary model.

Rules of this file:
1. From three quarters of the trigger on a fold is prepared beside a request, of the conversation as it stands. At the
   trigger it is used at once, with what came since behind it.
2. One at a time for each conversation: by its name in this process, by a lease across gateways.
3. A prepared fold fits as long as the conversation has only grown. Another branch, an undo or somebody else's fold
   makes it stale: it is not used, and ends when another one is begun. Branches that take turns do not end each other's
   preparations more often than every `REST` seconds.
4. There are so many at once, of so many bytes, and of each owner a part of that. What does not fit is not begun, and of
   what is ready the oldest is forgotten.
5. A failure is kept until its pause is over: until then nobody is asked again. What was not worth folding is not looked
   at again before it has grown; where a fold is due, not for `REST` seconds.
6. A credential is held by the task alone. It ends with it, at the latest when the time for a summary is over.
7. A fold that comes too late does not take the place of the local one by itself: that would write anew what the
   provider has just cached. It does where the calls to come pay for it, as a compaction of its own; the next fold that
   is prepared ends it.
8. Who ends the gateway cancels what is being made, and waits for it. Nothing was written, so nothing is lost.
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

MOST_TASKS, MOST_TASKS_OF_OWNER = 16, 4
MOST_BYTES, MOST_BYTES_OF_OWNER = 128_000_000, 32_000_000
"""Of the requests whose folds are in the making or ready."""
MOST_CALLS = 10
"""Times the limit of one call: what a summary in pieces may take with a model of its own."""
WORTH_ANOTHER_TRY = 1.05
REST = 30.0
"""Seconds in which a conversation that was not worth folding is not looked at again, unless it has grown, and in which
no other branch of it is prepared."""
Place = tuple[str, int]
"""A session, and the number of its compaction."""

_log = logging.getLogger("midfold.gateway")


def place_of(measured: MeasuredRequest) -> Place:
    """The checkpoint that a request is measured with."""
    found = measured.checkpoint
    return ("", 0) if found is None else (found.session, found.seq)


class PendingFold:
    """A fold in the making, or made."""

    def __init__(self, measured: MeasuredRequest, size: int, task: asyncio.Task[PreparedFold | None]) -> None:
        chains = measured.conversation.chains
        self.owner, self.size, self.task = measured.conversation.whose, size, task
        self._tokens, self._place = measured.size.tokens, place_of(measured)
        self._chain, self._count = chains[-1], len(chains)
        self.rests_until = self.begun_at = self.ended_at = 0.0
        self._local_place: Place | None = None
        self.seen_at = 0.0
        """When the conversation was last seen, of a fold that came too late."""

    def come_late(self, measured: MeasuredRequest, local: Place) -> bool:
        """A local fold of this request was made instead; says whether this one may still take its place."""
        if self.fits(measured) and self._count == len(measured.conversation.chains):
            self._local_place = local
        return self._local_place is not None

    def is_late_for(self, measured: MeasuredRequest) -> bool:
        known = measured.conversation.lengths.get(self._chain)
        return known == self._count and self._local_place == place_of(measured)

    def new_size(self, measured: MeasuredRequest) -> int:
        """Tokens of a request with this fold in the place of the one it has."""
        assert self.ready is not None
        since = measured.conversation.talk[self._count :]
        scale = measured.size.tokens / max(measured.estimated, 1)
        return self.ready.outcome.receipt.new_tokens + int(measured.limits.meter.count(since).tokens * scale)

    def fits(self, measured: MeasuredRequest) -> bool:
        """Whether a request goes on from what this was begun with."""
        known = measured.conversation.lengths.get(self._chain)
        return known == self._count and self._place == place_of(measured)

    @property
    def is_in_flight(self) -> bool:
        return not self.task.done()

    @property
    def is_good(self) -> bool:
        """Whether it can be used, or may be when it is ready."""
        return self.is_in_flight or (self.ready is not None and self.ready.outcome.changed)

    @property
    def is_made_elsewhere(self) -> bool:
        """Whether another gateway has the lease."""
        return self._has_ended and isinstance(self.task.exception(), LeaseLost)

    @property
    def ready(self) -> PreparedFold | None:
        """What was made; also of a summary that failed."""
        return self.task.result() if self._has_ended and self.task.exception() is None else None

    @property
    def _has_ended(self) -> bool:
        return self.task.done() and not self.task.cancelled()

    def rests(self, measured: MeasuredRequest, now: float, *, is_due: bool) -> bool:
        """Whether what came to nothing is left alone for now. Where nobody was asked, nothing is lost by looking."""
        if self.rests_until:
            return now < self.rests_until
        if self.ready is None:
            return False
        if self.ready.has_failed:
            return now < self.ready.outcome.state.cooldown_until
        has_grown = measured.size.tokens >= self._tokens * WORTH_ANOTHER_TRY
        return not has_grown and (not is_due or now < self.ended_at + REST)


class BackgroundFolds:
    """The folds that are prepared in this process. Used on one event loop."""

    def __init__(
        self, folder: HistoryFolder, in_thread: InThread, clock: Callable[[], float], call_seconds: float
    ) -> None:
        self._folder, self._in_thread, self._clock, self._call_seconds = folder, in_thread, clock, call_seconds
        self._pending: dict[str, PendingFold] = {}
        self._tasks: set[asyncio.Task[PreparedFold | None]] = set()

    @property
    def count(self) -> int:
        """How many are in the making."""
        return len(self._tasks)

    def find(self, measured: MeasuredRequest) -> PendingFold | None:
        """The one that a request can use."""
        found = self._pending.get(measured.identity)
        return found if found is not None and found.fits(measured) else None

    def find_late(self, measured: MeasuredRequest) -> PendingFold | None:
        """One that is ready, of which a local one has taken the place."""
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
        """The fold of a conversation: the one that is there, or a new one; None where there is no room for it."""
        found = None if force else self.find(measured)
        if found is not None and (found.is_good or found.rests(measured, self._clock(), is_due=is_due)):
            return found
        if not force and self._is_occupied(measured, is_due=is_due):
            return None
        before = self.drop(measured)
        owner = measured.conversation.whose
        if not self._has_room(owner, size):
            return None
        task = asyncio.get_running_loop().create_task(self._make(measured, order(), before))
        pending = self._pending[measured.identity] = PendingFold(measured, size, task)
        pending.begun_at = self._clock()
        task.add_done_callback(partial(self._end, pending))
        self._tasks.add(task)
        return pending

    def _is_occupied(self, measured: MeasuredRequest, *, is_due: bool) -> bool:
        """Whether another fold of the conversation goes first: one that came too late and is still in the making, or
        has just failed; where none is due, that of another branch which has just begun."""
        other, now = self._pending.get(measured.identity), self._clock()
        if other is None or other.fits(measured):
            return False
        if other.is_late_for(measured):
            return other.is_in_flight or (not other.is_good and other.rests(measured, now, is_due=is_due))
        return not is_due and now < other.begun_at + REST

    def _end(self, pending: PendingFold, task: asyncio.Task[PreparedFold | None]) -> None:
        self._tasks.discard(task)
        pending.ended_at = self._clock()
        problem = None if task.cancelled() else task.exception()
        if problem is not None and not isinstance(problem, LeaseLost):
            _log.warning("a fold was not prepared: %s", type(problem).__name__)

    async def _make(
        self, measured: MeasuredRequest, order: FoldOrder, before: asyncio.Task[PreparedFold | None] | None
    ) -> PreparedFold | None:
        own = order.summarizer if isinstance(order.summarizer, ClientModelSummarizer) else None
        try:
            async with asyncio.timeout(self._call_seconds * (1 if own is not None else MOST_CALLS)):
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
                pending.rests_until = self._clock() + cooldown("timeout")
            raise
        finally:
            if own is not None:
                own.forget()

    async def wait(self, pending: PendingFold, seconds: float | None) -> PreparedFold | None:
        """The fold, if it is there within so many seconds."""
        if pending.is_in_flight:
            await asyncio.wait({pending.task}, timeout=seconds)
        return pending.ready

    def use_up(self, measured: MeasuredRequest, after: MeasuredRequest) -> None:
        """A conversation was folded, by what was ready or without it. What came to nothing is remembered, so that it is
        not tried again at once, and what is still in the making may take the place of a local fold."""
        found = self._pending.get(measured.identity)
        if found is None or not found.is_good or place_of(after) == place_of(measured):
            return
        if not found.is_in_flight or not found.come_late(measured, place_of(after)):
            self.drop(measured)

    def drop(self, measured: MeasuredRequest) -> asyncio.Task[PreparedFold | None] | None:
        """Forgets the fold of a conversation; one in the making ends, and is given back while it does."""
        found = self._pending.pop(measured.identity, None)
        if found is None or not found.is_in_flight:
            return None
        found.task.cancel()
        return found.task

    def _has_room(self, owner: str, size: int) -> bool:
        """Whether another one may be begun; what is ready and was not used for longest makes room for it."""
        own = [one for one in self._pending.values() if one.owner == owner]
        if len(self._tasks) >= MOST_TASKS or sum(one.is_in_flight for one in own) >= MOST_TASKS_OF_OWNER:
            return False
        self._forget_oldest(owner, MOST_BYTES_OF_OWNER - size)
        self._forget_oldest(None, MOST_BYTES - size)
        own_bytes = sum(one.size for one in self._pending.values() if one.owner == owner)
        return own_bytes + size <= MOST_BYTES_OF_OWNER and self._bytes + size <= MOST_BYTES

    @property
    def _bytes(self) -> int:
        return sum(one.size for one in self._pending.values())

    def _forget_oldest(self, owner: str | None, most: int) -> None:
        mine = [(key, one) for key, one in self._pending.items() if owner is None or one.owner == owner]
        total = sum(one.size for _, one in mine)
        for key, one in mine:
            if total <= most:
                return
            if not one.is_in_flight:
                del self._pending[key]
                total -= one.size

    async def close(self) -> None:
        """Ends all of them."""
        tasks = set(self._tasks)
        for task in tasks:
            task.cancel()
        self._pending.clear()
        await asyncio.gather(*tasks, return_exceptions=True)
