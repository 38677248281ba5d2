"""Compress one record, and the worker function that does so for a batch.

Every executor runs only `work`. The summarizer is selected by name: the built-in rules, a configured model, or a
caller's function; keys come from the worker's own environment.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec.structs import replace

from midfold.errors import ConfigError, TranscriptError
from midfold.lab.trajectory_files import Batch
from midfold.lab.trajectory_metrics import RecordMetrics, Totals
from midfold.lab.trajectory_plan import TrajectoryPlan, plan_trajectory
from midfold.lab.trajectory_records import TrajectoryRecord, id_of, open_record
from midfold.lab.trajectory_settings import TrajectorySettings, token_counter
from midfold.lab.trajectory_summary import summarise
from midfold.model import Summarizer
from midfold.transcript.message import Message, Text
from midfold.transcript.tokens import TokenCounter

if TYPE_CHECKING:
    from midfold.config import Config
    from midfold.model.endpoint import Resolution

SMALLEST_SUMMARY = 90
"""Minimum tokens of a summary; if the protected turns leave less, the record is above its target anyway."""


class CompressedRecord(NamedTuple):
    """A record as written, and its metrics."""

    data: bytes
    metrics: RecordMetrics


def compress_record(
    data: bytes, settings: TrajectorySettings, summarizer: Summarizer | None = None, count: TokenCounter | None = None
) -> CompressedRecord:
    """Fit one record into the target; return one that is not a trajectory unchanged, with the reason."""
    try:
        record = open_record(data, count or token_counter(settings.check().tokenizer), settings.turn_tokens)
    except TranscriptError as error:
        return CompressedRecord(data, RecordMetrics(status="failed", reason=str(error)))
    return _compress(record, data, settings, summarizer)


def _compress(
    record: TrajectoryRecord, data: bytes, settings: TrajectorySettings, summarizer: Summarizer | None
) -> CompressedRecord:
    made = plan_trajectory(record, settings)
    before = made.kept_tokens + sum(record.rough(span) for span in made.spans)
    room = settings.target_tokens - made.kept_tokens
    budget = min(settings.summary_tokens + settings.turn_tokens, max(room, SMALLEST_SUMMARY))
    if not made.spans or before - made.kept_tokens <= budget:
        return CompressedRecord(data, _measure(record, before, before, settings))
    summary = summarise(record, made, budget, summarizer)
    if not summary.text:
        known = replace(_measure(record, before, before, settings), reason=f"no summary: {summary.failure}")
        known = replace(known, status="failed", summary_calls=summary.calls, summary_errors=summary.errors)
        return CompressedRecord(data, known)
    added = Message("user", (Text(summary.text),))
    cost = record.summary_tokens(summary.text)
    known = _measure(record, before, made.kept_tokens + cost, settings)
    metrics = replace(
        known,
        status="over_limit" if known.status == "over_limit" else "compressed",
        turns_after=len(record) - len(made.folded_turns) + 1,
        fold=(made.spans[-1].start, made.spans[-1].stop),
        summary_tokens=cost,
        summary_by=summary.by,
        retention=_retention(record, made, added) if settings.retention else None,
        summary_calls=summary.calls,
        summary_errors=summary.errors,
    )
    return CompressedRecord(record.write(made.spans, added), metrics)


def _measure(record: TrajectoryRecord, before: int, after: int, settings: TrajectorySettings) -> RecordMetrics:
    """Return the metrics of a record as if nothing of it were folded."""
    over = f"protected turns leave no space for a summary within {settings.target_tokens:,} tokens"
    fits = after <= settings.target_tokens
    return RecordMetrics(
        id=id_of(record),
        status="under_target" if fits else "over_limit",
        format=record.document.dialect.name,
        tokens_before=before,
        tokens_after=after,
        turns_before=len(record),
        turns_after=len(record),
        reason="" if fits else over,
    )


def _retention(record: TrajectoryRecord, made: TrajectoryPlan, added: Message) -> float | None:
    from midfold.lab.retention_score import retention_of

    end = made.spans[-1].stop
    view = record.view(made.spans, added)
    kept = view[: len(view) - (len(record) - end)]
    return retention_of(record.messages(range(end)), kept, record.messages(range(end, len(record))))


def summarizer_of(settings: TrajectorySettings) -> Summarizer | None:
    """Return the summarizer that the settings name, or None for the local one.

    Keys come from the worker's own environment.
    """
    if settings.summarizer == "local":
        return None
    if ":" in settings.summarizer:
        from midfold.lab.compactors import load_compactor

        function: Any = load_compactor(f"summarizer={settings.summarizer}")[1]
        return function  # type: ignore[no-any-return]
    found = _resolve(settings)
    if found.endpoint is None:
        raise ConfigError(f"the summarizer {settings.summarizer} cannot be used: {found.why}")
    from midfold.model.summarizer import ModelSummarizer

    return ModelSummarizer(found.endpoint, found.main)


def describe_summarizer(settings: TrajectorySettings) -> str:
    """Describe in one line which model will be used."""
    if settings.summarizer == "local":
        return "local, without a model"
    if ":" in settings.summarizer:
        return settings.summarizer
    return _resolve(settings).description


def _resolve(settings: TrajectorySettings) -> Resolution:
    from midfold.model.endpoint import resolve

    return resolve(_config(settings), os.environ, settings.model)


def _config(settings: TrajectorySettings) -> Config:
    from midfold.config import Config

    config = settings.config or Config()
    chosen = config.auxiliary.compression
    if settings.summarizer != "model":
        chosen = replace(chosen, provider=settings.summarizer)
    if settings.model is not None:
        chosen = replace(chosen, model=settings.model)
    auxiliary = replace(config.auxiliary, compression=chosen)
    return replace(config, auxiliary=auxiliary)


class Task(msgspec.Struct, frozen=True):
    """Input of a worker; it contains no path of the machine that reads the files."""

    name: str
    batch: Batch
    settings: TrajectorySettings


class FinishedBatch(msgspec.Struct, frozen=True):
    """Output of a worker."""

    data: bytes
    records: list[RecordMetrics]
    totals: Totals
    worker: str


def work(task: Task) -> FinishedBatch:
    """Compress the records of a batch; bytes between them are copied."""
    batch, settings = task.batch, task.settings
    records: list[RecordMetrics] = []
    totals = Totals(bytes_in=len(batch.data))
    pieces: list[bytes] = []
    place = 0
    for (start, end), line, made in zip(batch.spans, batch.lines(), _compress_all(batch, settings), strict=True):
        pieces += (batch.data[place:start], made.data)
        place = end
        known = replace(made.metrics, file=task.name, line=line)
        records.append(known)
        totals.add(known, settings.target_tokens)
    pieces.append(batch.data[place:])
    data = b"".join(pieces)
    totals.bytes_out = len(data)
    return FinishedBatch(data, records, totals, str(os.getpid()))


def give_up(task: Task, reason: str) -> FinishedBatch:
    """Return a batch that no worker could finish: its records unchanged, each with the reason."""
    batch = task.batch
    totals = Totals(bytes_in=len(batch.data), bytes_out=len(batch.data))
    records = [RecordMetrics(file=task.name, line=line, status="failed", reason=reason) for line in batch.lines()]
    for record in records:
        totals.add(record, task.settings.target_tokens)
    return FinishedBatch(batch.data, records, totals, "")


def _compress_all(batch: Batch, settings: TrajectorySettings) -> Iterator[CompressedRecord]:
    """Yield the compressed records in order; several model requests run concurrently."""
    count, summarizer = _counter(settings.tokenizer), _summarizer(settings.fingerprint, settings)
    data = (batch.data[start:end] for start, end in batch.spans)
    if summarizer is None or settings.calls == 1:
        yield from (_safely(record, settings, summarizer, count) for record in data)
        return
    with ThreadPoolExecutor(settings.calls) as threads:
        yield from threads.map(lambda record: _safely(record, settings, summarizer, count), data)


def _safely(
    record: bytes, settings: TrajectorySettings, summarizer: Summarizer | None, count: TokenCounter
) -> CompressedRecord:
    try:
        return compress_record(record, settings, summarizer, count)
    except Exception as error:  # noqa: BLE001 - whatever one record holds, the others go on; no content in the reason
        return CompressedRecord(
            record, RecordMetrics(status="failed", reason=f"{type(error).__name__} while compressing")
        )


@lru_cache(maxsize=4)
def _counter(name: str) -> TokenCounter:
    return token_counter(name)


_made: dict[str, Summarizer | None] = {}


def _summarizer(fingerprint: str, settings: TrajectorySettings) -> Summarizer | None:
    if fingerprint not in _made:
        _made[fingerprint] = summarizer_of(settings)
    return _made[fingerprint]
