"""Run a compaction: call the summarizer, handle its failures and cooldown, sync or async."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Generator
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

from midfold.compaction.local.local_summary import local_summary
from midfold.compaction.receipt import cooldown
from midfold.compaction.request import CompactionState, Flow, Outcome, SummaryAnswer, SummaryRequest
from midfold.decide import Decision, paused_words
from midfold.errors import ModelFailed, SummaryFailed

_log = logging.getLogger("midfold")
T = TypeVar("T")
InThread = Callable[..., Awaitable[Any]]
"""Function that runs another with its arguments in a thread, like `asyncio.to_thread`."""
Summarizer = Callable[[SummaryRequest], "str | SummaryAnswer"]


def local_summarizer(ask: SummaryRequest, instead_of: Exception | None = None) -> SummaryAnswer:
    """Return the built-in summary, without a model or network.

    `instead_of` is the exception of another summarizer: the answer reports that failure, and is not used if a failure
    of that kind leaves the conversation unchanged.
    """
    text, book = local_summary(ask)
    failed = SummaryAnswer() if instead_of is None else failed_answer(instead_of, time.time())
    facts = (book.kept, book.recoverable, book.estimate)
    return msgspec.structs.replace(failed, text=text, source="local", facts=facts)


def drive(flow: Flow, summarize: Summarizer) -> Outcome:
    """Run a compaction to its end."""
    step = advance(flow)
    while isinstance(step, SummaryRequest):
        step = advance(flow, answer_of(summarize, step, time.time))
    return step


def advance(flow: Flow, answer: SummaryAnswer | None = None) -> SummaryRequest | Outcome:
    """Run a compaction to its next summary request, or to its end. Nothing slow happens before the first request."""
    try:
        return next(flow) if answer is None else flow.send(answer)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        for omission in outcome.receipt.omitted:
            _log.error(omission.notice)
        return outcome


def answer_of(summarize: Summarizer, request: SummaryRequest, clock: Callable[[], float]) -> SummaryAnswer:
    """Return the answer of a summarizer, or its failure."""
    try:
        return as_answer(summarize(request))
    except Exception as error:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the conversation
        return failed_answer(error, clock())


def failed_answer(error: Exception, now: float) -> SummaryAnswer:
    """Return an answer with the failure that the summarizer reported, or one classified from its exception."""
    if isinstance(error, SummaryFailed):
        return SummaryAnswer(failure=error.kind, retry_after=error.retry_after, calls=error.calls)
    if not isinstance(error, ModelFailed):
        from midfold.model.failures import failure_of_error

        error = failure_of_error(error, now)
    return SummaryAnswer(failure=error.kind, retry_after=error.retry_after)


def as_answer(given: Any) -> SummaryAnswer:
    """Convert the return value of a summarizer to an answer."""
    if isinstance(given, SummaryAnswer):
        return given
    return SummaryAnswer(text=given) if isinstance(given, str) and given.strip() else SummaryAnswer(failure="malformed")


class CooldownGuard:
    """Summarizer that is not called during a cooldown, and records the result for the next state."""

    def __init__(self, summarize: Summarizer, decision: Decision, clock: Callable[[], float]) -> None:
        self._summarize, self._decision, self._clock = summarize, decision, clock
        self._last_answer: SummaryAnswer | None = None

    def __call__(self, request: SummaryRequest) -> SummaryAnswer:
        if self._decision.pause:
            return self._pause_answer()
        self._last_answer = answer_of(self._summarize, request, self._clock)
        return self._last_answer

    async def later(self, request: SummaryRequest, in_thread: InThread = asyncio.to_thread) -> SummaryAnswer:
        """Return the answer on an event loop: await the summarizer's own `later`, or call it in a thread."""
        awaited = getattr(self._summarize, "later", None)
        if self._decision.pause or awaited is None:
            answer: SummaryAnswer = await in_thread(self, request)
            return answer
        try:
            self._last_answer = as_answer(await awaited(request))
        except Exception as error:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the conversation
            self._last_answer = failed_answer(error, self._clock())
        return self._last_answer

    def _pause_answer(self) -> SummaryAnswer:
        kind, left = self._decision.failure, self._decision.pause
        return SummaryAnswer(failure=kind, notes=(paused_words(kind, left),), pause_left=left)

    def settle(self, state: CompactionState) -> CompactionState:
        """Return the state after the compaction: with a cooldown after a failure, without one after a summary."""
        if self._last_answer is None:
            return state
        failure = state.failure or self._last_answer.failure
        if not failure:
            return msgspec.structs.replace(state, cooldown_until=0.0)
        until = self._clock() + cooldown(failure, self._last_answer.retry_after)
        return msgspec.structs.replace(state, failure=failure, cooldown_until=until)


class Question(NamedTuple):
    """Summary request of a waiting compaction, and the summarizer to answer it."""

    guard: CooldownGuard
    request: SummaryRequest


class _FlowResult(NamedTuple):
    value: object


def run(steps: Generator[Question, SummaryAnswer, T]) -> T:
    """Run a compaction to its end, waiting for its summaries."""
    step = _next(steps, None)
    while isinstance(step, Question):
        step = _next(steps, step.guard(step.request))
    return step.value  # type: ignore[return-value]


class Preparation(Generic[T]):
    """Work to be done: call it in another thread, or await `later`."""

    def __init__(self, steps: Generator[Any, Any, T]) -> None:
        self.steps = steps
        """Generator that yields summary requests and returns the result."""

    def __call__(self) -> T:
        return run(self.steps)

    async def later(self, in_thread: InThread = asyncio.to_thread) -> T:
        """Run the work on an event loop."""
        return await run_async(self.steps, in_thread)


async def run_async(steps: Generator[Question, SummaryAnswer, T], in_thread: InThread = asyncio.to_thread) -> T:
    """Run a compaction on an event loop: await summaries, and do slow work in a thread."""
    try:
        step = await _next_in_thread(steps, None, in_thread)
        while isinstance(step, Question):
            step = await _next_in_thread(steps, await step.guard.later(step.request, in_thread), in_thread)
    finally:
        await in_thread(steps.close)
    return step.value  # type: ignore[return-value]


async def _next_in_thread(
    steps: Generator[Question, SummaryAnswer, T], answer: SummaryAnswer | None, in_thread: InThread
) -> Question | _FlowResult:
    """Run one step in a thread; if cancelled, wait for it, so that no step is left half done."""
    work = asyncio.ensure_future(in_thread(_next, steps, answer))
    try:
        step: Question | _FlowResult = await asyncio.shield(work)
        return step
    except asyncio.CancelledError:
        await asyncio.wait({work})
        raise


def _next(steps: Generator[Question, SummaryAnswer, T], answer: SummaryAnswer | None) -> Question | _FlowResult:
    try:
        return next(steps) if answer is None else steps.send(answer)
    except StopIteration as stop:
        return _FlowResult(stop.value)


def with_cooldown_of(state: CompactionState, other: CompactionState) -> CompactionState:
    """Return the state with the failure and cooldown of another one."""
    return msgspec.structs.replace(state, failure=other.failure, cooldown_until=other.cooldown_until)


def clear_failures(state: CompactionState) -> CompactionState:
    """Return the state without failures and strikes, after a reset or a change of model."""
    return msgspec.structs.replace(state, failure="", cooldown_until=0.0, ineffective=0)
