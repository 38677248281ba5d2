"""A compaction driven to its end, sync or async, and the summarizer it asks: guarded, so that after a failure it is
left alone for a while. What a summarizer returns or raises is made an answer here; the state is the session's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from midfold.errors import SummaryFailed
from midfold.fold.local import local_summary
from midfold.fold.receipt import cooldown
from midfold.fold.request import CompactionState, Flow, Outcome, SummaryAnswer, SummaryAsk

Summarizer = Callable[[SummaryAsk], "str | SummaryAnswer"]
Clock = Callable[[], float]


def local_summarizer(ask: SummaryAsk) -> SummaryAnswer:
    """The embedded default: no model, no network."""
    text, book = local_summary(ask)
    return SummaryAnswer(text=text, source="local", facts=(book.kept, book.recoverable, book.estimate))


def drive(flow: Flow, summarize: Summarizer) -> Outcome:
    """Runs a compaction to its end."""
    first = begin(flow)
    return first if isinstance(first, Outcome) else resume(flow, first, summarize)


def begin(flow: Flow) -> SummaryAsk | Outcome:
    """Runs a compaction up to its first question, or to its end if it has none: nothing slow happens before."""
    try:
        return next(flow)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


def resume(flow: Flow, ask: SummaryAsk, summarize: Summarizer) -> Outcome:
    """Answers the question a compaction waits with, and runs it to its end."""
    try:
        while True:
            ask = flow.send(_ask(summarize, ask))
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


async def drive_async(flow: Flow, summarize: Callable[[SummaryAsk], Awaitable[Any]]) -> Outcome:
    """The same for a summarizer that is awaited."""
    try:
        ask = next(flow)
        while True:
            ask = flow.send(await _ask_async(summarize, ask))
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


def _ask(summarize: Summarizer, ask: SummaryAsk) -> SummaryAnswer:
    try:
        return as_answer(summarize(ask))
    except Exception as error:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the conversation
        return _failure(error)


async def _ask_async(summarize: Callable[[SummaryAsk], Awaitable[Any]], ask: SummaryAsk) -> SummaryAnswer:
    try:
        return as_answer(await summarize(ask))
    except Exception as error:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the conversation
        return _failure(error)


def _failure(error: Exception) -> SummaryAnswer:
    if isinstance(error, SummaryFailed):
        return SummaryAnswer(failure=error.kind, retry_after=error.retry_after, calls=error.calls)
    return SummaryAnswer(failure="other")


def as_answer(given: Any) -> SummaryAnswer:
    """What a summarizer returned, as an answer."""
    if isinstance(given, SummaryAnswer):
        return given
    if isinstance(given, str) and given.strip():
        return SummaryAnswer(text=given)
    return SummaryAnswer(failure="malformed")


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
        self._asked = _ask(self._summarize, ask)
        return self._asked

    async def later(self, ask: SummaryAsk) -> SummaryAnswer:
        """The same, awaited: by the summarizer's own `later` if it has one, else in a thread."""
        if self._left > 0:
            return self._paused()
        self._asked = await _ask_async(getattr(self._summarize, "later", self._in_thread), ask)
        return self._asked

    async def _in_thread(self, ask: SummaryAsk) -> str | SummaryAnswer:
        return await asyncio.to_thread(self._summarize, ask)

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


def cleared(state: CompactionState) -> CompactionState:
    """The state without its failures and strikes: after a reset or another model."""
    return msgspec.structs.replace(state, failure="", cooldown_until=0.0, ineffective=0)
