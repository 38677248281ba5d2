"""The worker function: one batch in, the same batch compressed out. Every executor runs this and nothing else."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache

import msgspec

from midfold.model import Summarizer
from midfold.trajectory.compress import Compressed, compress_record
from midfold.trajectory.metrics import RecordMetrics, Totals
from midfold.trajectory.settings import Settings, counter
from midfold.trajectory.split import Batch
from midfold.trajectory.summarizers import summarizer_of
from midfold.transcript.tokens import TokenCounter


class Task(msgspec.Struct, frozen=True):
    """What a worker is given. Nothing in it names a path of the machine that reads the files."""

    name: str
    batch: Batch
    settings: Settings


class Done(msgspec.Struct, frozen=True):
    """What comes back."""

    data: bytes
    records: list[RecordMetrics]
    totals: Totals
    worker: str


def work(task: Task) -> Done:
    """Compresses the records of a batch; what stands between them is copied."""
    batch, settings = task.batch, task.settings
    records: list[RecordMetrics] = []
    totals = Totals(bytes_in=len(batch.data))
    pieces: list[bytes] = []
    place = 0
    for (start, end), line, made in zip(batch.spans, batch.lines(), _compressed(batch, settings), strict=True):
        pieces += (batch.data[place:start], made.data)
        place = end
        known = msgspec.structs.replace(made.metrics, file=task.name, line=line)
        records.append(known)
        totals.add(known, settings.target_tokens)
    pieces.append(batch.data[place:])
    data = b"".join(pieces)
    totals.bytes_out = len(data)
    return Done(data, records, totals, str(os.getpid()))


def given_up(task: Task, reason: str) -> Done:
    """A batch that no worker could finish: its records stay as they are, each with the reason."""
    batch = task.batch
    totals = Totals(bytes_in=len(batch.data), bytes_out=len(batch.data))
    records = [RecordMetrics(file=task.name, line=line, status="failed", reason=reason) for line in batch.lines()]
    for record in records:
        totals.add(record, task.settings.target_tokens)
    return Done(batch.data, records, totals, "")


def _compressed(batch: Batch, settings: Settings) -> Iterator[Compressed]:
    """In order; calls to a model are made several at a time."""
    count, summarizer = _counter(settings.tokenizer), _summarizer(settings.fingerprint, settings)
    data = (batch.data[start:end] for start, end in batch.spans)
    if summarizer is None or settings.calls == 1:
        yield from (_safely(record, settings, summarizer, count) for record in data)
        return
    with ThreadPoolExecutor(settings.calls) as threads:
        yield from threads.map(lambda record: _safely(record, settings, summarizer, count), data)


def _safely(record: bytes, settings: Settings, summarizer: Summarizer | None, count: TokenCounter) -> Compressed:
    try:
        return compress_record(record, settings, summarizer, count)
    except Exception as error:  # noqa: BLE001 - whatever one record holds, the others go on; no content in the reason
        return Compressed(record, RecordMetrics(status="failed", reason=f"{type(error).__name__} while compressing"))


@lru_cache(maxsize=4)
def _counter(name: str) -> TokenCounter:
    return counter(name)


_made: dict[str, Summarizer | None] = {}


def _summarizer(fingerprint: str, settings: Settings) -> Summarizer | None:
    if fingerprint not in _made:
        _made[fingerprint] = summarizer_of(settings)
    return _made[fingerprint]
