"""One record: bytes in, bytes out, and what was done. Everything else in this room moves records here and back."""

from __future__ import annotations

from typing import NamedTuple

from midfold.errors import TranscriptError
from midfold.model import Summarizer
from midfold.trajectory.metrics import RecordMetrics
from midfold.trajectory.plan import Plan, plan
from midfold.trajectory.records import Record, id_of, open_record
from midfold.trajectory.settings import Settings, counter
from midfold.trajectory.summary import Summary, summarise
from midfold.transcript.message import Message, Text
from midfold.transcript.tokens import TokenCounter

SMALLEST_SUMMARY = 90
"""Tokens; where what is protected leaves less room, the record is above its target anyway."""


class Compressed(NamedTuple):
    """A record as it is written, and what became of it."""

    data: bytes
    metrics: RecordMetrics


def compress_record(
    data: bytes, settings: Settings, summarizer: Summarizer | None = None, count: TokenCounter | None = None
) -> Compressed:
    """Fits one record into the target. One that is no trajectory comes back as it is, with the reason."""
    try:
        record = open_record(data, count or counter(settings.checked().tokenizer), settings.turn_tokens)
    except TranscriptError as error:
        return Compressed(data, RecordMetrics(status="failed", reason=str(error)))
    return _compressed(record, data, settings, summarizer)


def _compressed(record: Record, data: bytes, settings: Settings, summarizer: Summarizer | None) -> Compressed:
    made = plan(record, settings)
    if not made.spans:
        return Compressed(data, _untouched(record, made, settings))
    before = made.kept_tokens + sum(record.rough(span) for span in made.spans)
    room = settings.target_tokens - made.kept_tokens
    budget = min(settings.summary_tokens + settings.turn_tokens, max(room, SMALLEST_SUMMARY))
    if before - made.kept_tokens <= budget:
        return Compressed(data, _untouched(record, Plan(kept_tokens=before, fits=False), settings))
    summary = summarise(record, made, budget, summarizer)
    if not summary.text:
        return Compressed(data, _given_up(record, before, summary))
    added = Message("user", (Text(summary.text),))
    cost = record.summary_tokens(summary.text)
    after = made.kept_tokens + cost
    metrics = RecordMetrics(
        id=id_of(record),
        status="compressed" if after <= settings.target_tokens else "over_limit",
        format=record.document.dialect.name,
        tokens_before=before,
        tokens_after=after,
        turns_before=len(record),
        turns_after=len(record) - len(made.folded) + 1,
        fold=(made.spans[-1].start, made.spans[-1].stop),
        summary_tokens=cost,
        summary_calls=summary.calls,
        summary_errors=summary.errors,
        summary_by=summary.by,
        retention=_retention(record, made, added) if settings.retention else None,
        reason="" if after <= settings.target_tokens else _too_much(settings),
    )
    return Compressed(record.written(made.spans, added), metrics)


def _retention(record: Record, made: Plan, added: Message) -> float | None:
    from midfold.trajectory.retention import retention

    end = made.spans[-1].stop
    view = record.view(made.spans, added)
    kept = view[: len(view) - (len(record) - end)]
    return retention(record.messages(range(end)), kept, record.messages(range(end, len(record))))


def _untouched(record: Record, made: Plan, settings: Settings) -> RecordMetrics:
    turns = len(record)
    over = made.kept_tokens > settings.target_tokens
    return RecordMetrics(
        id=id_of(record),
        status="over_limit" if over else "under_target",
        format=record.document.dialect.name,
        tokens_before=made.kept_tokens,
        tokens_after=made.kept_tokens,
        turns_before=turns,
        turns_after=turns,
        reason=_too_much(settings) if over else "",
    )


def _too_much(settings: Settings) -> str:
    return f"protected turns alone leave no room for a summary within {settings.target_tokens:,} tokens"


def _given_up(record: Record, before: int, summary: Summary) -> RecordMetrics:
    turns = len(record)
    return RecordMetrics(
        id=id_of(record),
        status="failed",
        format=record.document.dialect.name,
        tokens_before=before,
        tokens_after=before,
        turns_before=turns,
        turns_after=turns,
        summary_calls=summary.calls,
        summary_errors=1,
        reason=f"no summary: {summary.failure}",
    )
