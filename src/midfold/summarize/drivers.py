"""Two small drivers, sync and async, for one flow. What a summarizer returns or raises is made an answer here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from midfold.errors import SummaryFailed
from midfold.fold.local import local_summary
from midfold.fold.request import Flow, Outcome, SummaryAnswer, SummaryAsk

Summarizer = Callable[[SummaryAsk], "str | SummaryAnswer"]


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
            ask = flow.send(_answered(lambda ask=ask: summarize(ask)))  # type: ignore[misc]
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


async def drive_async(flow: Flow, summarize: Callable[[SummaryAsk], Awaitable[Any]]) -> Outcome:
    """The same for a summarizer that is awaited."""
    try:
        ask = next(flow)
        while True:
            try:
                given = await summarize(ask)
            except SummaryFailed as failed:
                given = SummaryAnswer(failure=failed.kind, retry_after=failed.retry_after, calls=failed.calls)
            except Exception:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the conversation
                given = SummaryAnswer(failure="other")
            ask = flow.send(coerced(given))
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome


def _answered(summarize: Callable[[], Any]) -> SummaryAnswer:
    try:
        return coerced(summarize())
    except SummaryFailed as failed:
        return SummaryAnswer(failure=failed.kind, retry_after=failed.retry_after, calls=failed.calls)
    except Exception:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the conversation
        return SummaryAnswer(failure="other")


def coerced(given: Any) -> SummaryAnswer:
    """What a summarizer returned, as an answer."""
    if isinstance(given, SummaryAnswer):
        return given
    if isinstance(given, str) and given.strip():
        return SummaryAnswer(text=given)
    return SummaryAnswer(failure="malformed")
