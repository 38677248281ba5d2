"""After a failure the model is left alone for a while. The state is the session's; this is what reads and writes it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec

from midfold.errors import SummaryFailed
from midfold.fold.receipt import cooldown
from midfold.fold.request import CompactionState, SummaryAnswer, SummaryAsk
from midfold.summarize.drivers import Summarizer, coerced

Clock = Callable[[], float]


class Guard:
    """A summarizer that does not ask while the session cools down, and remembers how the asking went."""

    def __init__(self, summarize: Summarizer, state: CompactionState, clock: Clock, *, force: bool = False) -> None:
        self._summarize = summarize
        self._before = state
        self._clock = clock
        self._left = 0.0 if force or not state.failure else max(state.cooldown_until - clock(), 0.0)
        self._asked: SummaryAnswer | None = None

    def __call__(self, ask: SummaryAsk) -> SummaryAnswer:
        if self._left > 0:
            return self._paused()
        try:
            self._asked = coerced(self._summarize(ask))
        except Exception as error:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the conversation
            self._asked = _failed(error)
        return self._asked

    async def later(self, ask: SummaryAsk) -> SummaryAnswer:
        """The same, awaited: by the summarizer's own `later` if it has one, else in a thread."""
        if self._left > 0:
            return self._paused()
        awaited = getattr(self._summarize, "later", None)
        try:
            given = await (awaited(ask) if awaited is not None else asyncio.to_thread(self._summarize, ask))
            self._asked = coerced(given)
        except Exception as error:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the conversation
            self._asked = _failed(error)
        return self._asked

    def _paused(self) -> SummaryAnswer:
        kind = self._before.failure
        note = f"no model was asked: {self._left:,.0f} s of the pause after a failure ({kind}) are left"
        return SummaryAnswer(failure=kind, notes=(note,), pause_left=self._left)

    def settled(self, state: CompactionState) -> CompactionState:
        """The state after the compaction: a new pause after a new failure, none after a summary."""
        if self._asked is None:
            return msgspec.structs.replace(
                state, failure=self._before.failure, cooldown_until=self._before.cooldown_until
            )
        failure = state.failure or self._asked.failure
        if not failure:
            return msgspec.structs.replace(state, cooldown_until=0.0)
        until = self._clock() + cooldown(failure, self._asked.retry_after)
        return msgspec.structs.replace(state, failure=failure, cooldown_until=until)


def _failed(error: Exception) -> SummaryAnswer:
    if isinstance(error, SummaryFailed):
        return SummaryAnswer(failure=error.kind, retry_after=error.retry_after, calls=error.calls)
    return SummaryAnswer(failure="other")


def cleared(state: CompactionState) -> CompactionState:
    """The state without its failures and strikes: after a reset or another model."""
    return msgspec.structs.replace(state, failure="", cooldown_until=0.0, ineffective=0)
