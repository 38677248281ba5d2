"""A run: files -> batches -> workers -> parts -> files; bounded in memory, resumable and counted.

Reading is only a few batches ahead of the workers, so memory does not grow with the input. A file that cannot be read
to its end gets no output; its name and the reason are reported, and the other files continue. Finished work is kept in
a folder beside OUT until all is done:

    OUT.midfold-work/
      manifest.json          the settings and inputs of this work; others are refused, never mixed
      00003/000017.part      a finished batch of the fourth file
      00003/000017.json      metrics of its records, its length and checksum; written last, marks it as finished
      00003/done.json        the file is complete and in its place; its batches are removed

Everything is written under a temporary name and renamed. Renamed files are still verified: after a power failure a name
may exist without its bytes.
"""

from __future__ import annotations

import os
import shutil
import sys
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, Protocol

import msgspec

from midfold.atomic import NO_FOLLOW
from midfold.errors import MidfoldError, TranscriptError
from midfold.lab.executors import Executor, Inline, Pool, Ticket
from midfold.lab.trajectory_files import STANDARD, Input, append_file, batches, inputs, open_input, pack, replace_file
from midfold.lab.trajectory_metrics import RecordMetrics, Totals
from midfold.lab.trajectory_settings import TrajectorySettings
from midfold.lab.trajectory_work import FinishedBatch, Task, summarizer_of

VERSION = 1
SUFFIX = ".midfold-work"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """Settings and inputs that the work in this folder belongs to."""

    version: int = VERSION
    fingerprint: str
    inputs: list[Input]


class BatchNote(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a finished batch."""

    size: int
    checksum: int
    totals: Totals
    records: list[RecordMetrics]


class FileNote(msgspec.Struct, frozen=True, kw_only=True):
    """Record of a finished file."""

    batches: int
    totals: Totals


class Workplace:
    """Folder with the finished part of a run."""

    def __init__(self, target: str, files: list[Input], settings: TrajectorySettings, *, restart: bool = False) -> None:
        self.folder = Path(f"{target.rstrip('/' + os.sep)}{SUFFIX}")
        self._manifest = Manifest(fingerprint=settings.fingerprint, inputs=files)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            _refuse_links(self.folder)
            self._lock = _lock(self.folder / "lock")
        except OSError as error:
            raise MidfoldError(f"{self.folder} could not be created: {error.strerror or error}") from None
        try:
            if restart:
                self._clear()
            self.resumed = self._check()
        except MidfoldError:
            self.close(finished=False)
            raise

    def _clear(self) -> None:
        (self.folder / "manifest.json").unlink(missing_ok=True)
        for place in self.folder.iterdir():
            if place.is_dir():
                shutil.rmtree(place)

    def _check(self) -> bool:
        path = self.folder / "manifest.json"
        if not path.exists():
            self._save(path, self._manifest)
            return False
        try:
            known = msgspec.json.decode(path.read_bytes(), type=Manifest)
        except msgspec.MsgspecError:
            raise MidfoldError(f"{path} cannot be read; use --restart to start over") from None
        if known == self._manifest:
            return True
        changed = "the settings" if known.inputs == self._manifest.inputs else "the input files"
        raise MidfoldError(f"{changed} changed since the work in {self.folder} began; use --restart to start over")

    def _save(self, path: Path, value: Any) -> None:
        self._put(path, msgspec.json.encode(value))

    @staticmethod
    def _put(path: Path, data: bytes) -> None:
        """Write a file without syncing, since batches are verified; raise on a full disk, keeping finished work."""
        with replace_file(path, sync=False) as stream:
            stream.write(data)

    def _place(self, file: int, number: int) -> Path:
        return self.folder / f"{file:05}" / f"{number:06}.part"

    def finished_file(self, file: int) -> FileNote | None:
        """Return the record of a complete file if its output is still in place, or None."""
        path = self.folder / f"{file:05}" / "done.json"
        if not path.exists() or not Path(self._manifest.inputs[file].output).exists():
            return None
        return msgspec.json.decode(path.read_bytes(), type=FileNote)

    def finished_batch(self, file: int, number: int) -> BatchNote | None:
        part = self._place(file, number)
        try:
            note = msgspec.json.decode(part.with_suffix(".json").read_bytes(), type=BatchNote)
            data = part.read_bytes()
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return note if (len(data), zlib.crc32(data)) == (note.size, note.checksum) else None

    def keep(self, file: int, number: int, done: FinishedBatch) -> None:
        """Store a finished batch."""
        part = self._place(file, number)
        self._put(part, done.data)
        note = BatchNote(size=len(done.data), checksum=zlib.crc32(done.data), totals=done.totals, records=done.records)
        self._save(part.with_suffix(".json"), note)

    def finish_file(self, file: int, batches: int) -> FileNote:
        """Join all batches of a file and move its output into place."""
        totals = Totals()
        records = self.folder / f"{file:05}" / "records.jsonl"
        output = Path(self._manifest.inputs[file].output)
        with replace_file(records) as lines:
            for number in range(batches):
                known = msgspec.json.decode(self._place(file, number).with_suffix(".json").read_bytes(), type=BatchNote)
                totals.merge(known.totals)
                lines.writelines(msgspec.json.encode(record) + b"\n" for record in known.records)
        with replace_file(output) as raw, pack(output.name, raw, totals.bytes_out) as stream:
            for number in range(batches):
                append_file(self._place(file, number), stream)
        note = FileNote(batches=batches, totals=totals)
        self._save(self.folder / f"{file:05}" / "done.json", note)
        for number in range(batches):
            self._place(file, number).unlink(missing_ok=True)
            self._place(file, number).with_suffix(".json").unlink(missing_ok=True)
        return note

    def records(self, file: int) -> Iterator[bytes]:
        """Yield the metrics of a finished file's records, one JSON line each."""
        path = self.folder / f"{file:05}" / "records.jsonl"
        with path.open("rb") as lines:
            yield from lines

    def close(self, *, finished: bool) -> None:
        """Release the folder; remove it if the run is finished."""
        if finished:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def _refuse_links(folder: Path) -> None:
    """Raise if the folder or one in it is a link: its names are predictable, so links could lead anywhere."""
    for place in (folder, *folder.iterdir()):
        if place.is_symlink():
            raise MidfoldError(f"{place} is a symbolic link; remove it, or choose another OUT")


def _lock(path: Path) -> BinaryIO | None:
    """Acquire a lock that is held until this process ends, however it ends."""
    try:
        import fcntl
    except ImportError:
        return None
    stream = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | NO_FOLLOW, 0o666), "wb")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        raise MidfoldError(f"another run is using {path.parent}") from None
    return stream


UNPACKED = 6
"""Assumed ratio of decompressed size to file size."""


class TrajectoryJob(msgspec.Struct, frozen=True, kw_only=True):
    """Input, output, settings and executor of a run."""

    source: str
    target: str
    settings: TrajectorySettings = TrajectorySettings()
    workers: int = 1
    executor: str = "pool"
    ray_address: str | None = None
    strict: bool = False
    restart: bool = False


class TrajectoryProgress(NamedTuple):
    """Progress of a run."""

    bytes_done: int
    bytes_all: int
    totals: Totals


class FailedFile(msgspec.Struct, frozen=True):
    file: str
    reason: str


class TrajectoryAccount(msgspec.Struct, frozen=True, kw_only=True):
    """Result of a run."""

    settings: TrajectorySettings
    totals: Totals
    files: dict[str, Totals]
    failed_files: list[FailedFile]
    seconds: float
    resumed: bool
    workers: int
    """Number of workers that finished a batch in this run."""


class Watcher(Protocol):
    """Observer of a run: progress, and failed records as they occur."""

    def progress(self, progress: TrajectoryProgress, /) -> None: ...

    def report_failure(self, record: RecordMetrics, /) -> None: ...

    def record_lines(self, lines: Iterator[bytes], /) -> None:
        """Receive the metrics of all records, one JSON line each, at the end of the run."""
        ...


def compress_trajectories(job: TrajectoryJob, watcher: Watcher | None = None) -> TrajectoryAccount:
    """Compress everything that the job names; after an interruption, the same call resumes."""
    settings = job.settings.check()
    summarizer_of(settings)
    files = inputs(job.source, job.target)
    if STANDARD in (job.target, job.source):
        return _StreamRun(job, settings, files, watcher).run()
    return _ResumableRun(job, settings, files, watcher).run()


def _executor(job: TrajectoryJob, files: list[Input]) -> Executor:
    """Create the executor; a pool is used only if there is more than one batch."""
    if job.executor == "ray":
        from midfold.lab.executors import OnRay

        return OnRay(job.ray_address, job.workers or None)
    expected = sum(UNPACKED * item.size // job.settings.batch_bytes + 1 for item in files)
    workers = job.workers if files[0].path == STANDARD else min(job.workers, expected)
    return Pool(workers) if workers > 1 else Inline()


class _TrajectoryRun:
    """Main loop shared by both kinds of runs."""

    def __init__(
        self, job: TrajectoryJob, settings: TrajectorySettings, files: list[Input], watcher: Watcher | None
    ) -> None:
        self.job = job
        self.settings = settings
        self.files = files
        self.watcher = watcher
        self.totals = Totals()
        self.by_file: dict[str, Totals] = {}
        self.failed_files: list[FailedFile] = []
        self.workers: set[str] = set()
        self.bytes_all = sum(item.size for item in files)
        self.bytes_done = 0
        self.sizes: dict[Ticket, int] = {}
        """Bytes of the file that each batch in flight represents."""
        self.resumed = False

    def is_finished(self, file: int) -> bool:
        return False

    def is_kept(self, ticket: Ticket) -> bool:
        return False

    def keep(self, ticket: Ticket, done: FinishedBatch) -> None:
        """Handle a finished batch."""

    def read_to_its_end(self, file: int, count: int) -> None:
        """Note the number of batches of a file."""

    def give_up(self, file: int, reason: str) -> None:
        self.failed_files.append(FailedFile(self.files[file].name, reason))
        if self.job.strict:
            raise TranscriptError(reason)

    @property
    def backlog(self) -> int:
        """The number of results held in memory."""
        return 0

    def loop(self, executor: Executor) -> None:
        for file, item in enumerate(self.files):
            read = 0 if self.is_finished(file) else self._read(executor, file, item)
            self.bytes_done += item.size - read
            self._show()
        while executor.pending:
            self._take(executor)

    def _read(self, executor: Executor, file: int, item: Input) -> int:
        """Submit the batches of a file and return the bytes of the file that they represent."""
        number = position = 0
        try:
            with open_input(item.path) as (stream, behind):
                for batch in batches(stream, item.name, self.settings.batch_bytes, behind):
                    ticket = Ticket(file, number)
                    number += 1
                    self.sizes[ticket] = batch.position - position
                    position = batch.position
                    if self.is_kept(ticket):
                        self.bytes_done += self.sizes.pop(ticket)
                    else:
                        while executor.pending + self.backlog >= executor.capacity and executor.pending:
                            self._take(executor)
                        executor.submit(ticket, Task(item.name, batch, self.settings))
                    self._show()
        except (TranscriptError, OSError) as error:
            text = str(error) if isinstance(error, MidfoldError) else f"{item.name}: {error.strerror or error}"
            self.give_up(file, text if item.name in text or item.path in text else f"{item.name}, {text}")
        else:
            self.read_to_its_end(file, number)
        return position

    def _take(self, executor: Executor) -> None:
        ticket, done = executor.next()
        self.bytes_done += self.sizes.pop(ticket)
        if done.worker:
            self.workers.add(done.worker)
        self.count(self.files[ticket.file].name, done.totals)
        for record in done.records:
            if record.status == "failed":
                if self.job.strict:
                    raise TranscriptError(f"{record.file}, line {record.line}: {record.reason}")
                if self.watcher is not None:
                    self.watcher.report_failure(record)
        self.keep(ticket, done)
        self._show()

    def count(self, name: str, totals: Totals) -> None:
        self.totals.merge(totals)
        self.by_file.setdefault(name, Totals()).merge(totals)

    def _show(self) -> None:
        if self.watcher is not None:
            self.watcher.progress(TrajectoryProgress(self.bytes_done, self.bytes_all, self.totals))

    def account(self, seconds: float) -> TrajectoryAccount:
        failed = {item.file for item in self.failed_files}
        names = [item.name for item in self.files if item.name in self.by_file and item.name not in failed]
        return TrajectoryAccount(
            settings=self.settings,
            totals=self.totals,
            files={name: self.by_file[name] for name in names},
            failed_files=self.failed_files,
            seconds=seconds,
            resumed=self.resumed,
            workers=len(self.workers),
        )


class _ResumableRun(_TrajectoryRun):
    """Run from files to files."""

    def run(self) -> TrajectoryAccount:
        start = time.monotonic()
        self.counts: dict[int, int] = {}
        self.kept: dict[int, int] = {}
        self.place = Workplace(self.job.target, self.files, self.settings, restart=self.job.restart)
        self.resumed = self.place.resumed
        finished = False
        try:
            with closing(_executor(self.job, self.files)) as executor:
                self.loop(executor)
            if self.watcher is not None:
                self.watcher.record_lines(self._records())
            finished = True
        finally:
            self.place.close(finished=finished and not self.failed_files)
        return self.account(time.monotonic() - start)

    def is_finished(self, file: int) -> bool:
        note = self.place.finished_file(file)
        if note is None:
            return False
        self.count(self.files[file].name, note.totals)
        self.counts[file] = note.batches
        return True

    def is_kept(self, ticket: Ticket) -> bool:
        note = self.place.finished_batch(*ticket)
        if note is None:
            return False
        self.count(self.files[ticket.file].name, note.totals)
        self.kept[ticket.file] = self.kept.get(ticket.file, 0) + 1
        return True

    def keep(self, ticket: Ticket, done: FinishedBatch) -> None:
        self.place.keep(*ticket, done)
        self.kept[ticket.file] = self.kept.get(ticket.file, 0) + 1
        self._finish(ticket.file)

    def read_to_its_end(self, file: int, count: int) -> None:
        self.counts[file] = count
        self._finish(file)

    def _finish(self, file: int) -> None:
        if self.counts.get(file) == self.kept.get(file, 0):
            self.place.finish_file(file, self.counts[file])

    def _records(self) -> Iterator[bytes]:
        for file in sorted(self.counts):
            yield from self.place.records(file)


class _StreamRun(_TrajectoryRun):
    """Run from or to a pipe: results are written in order as they arrive; an interrupted run starts over."""

    def run(self) -> TrajectoryAccount:
        start = time.monotonic()
        self.early: dict[Ticket, FinishedBatch] = {}
        self.next_ticket = Ticket(0, 0)
        with closing(_executor(self.job, self.files)) as executor:
            self._into(executor)
        if self.failed_files:
            raise TranscriptError(self.failed_files[0].reason)
        return self.account(time.monotonic() - start)

    def _into(self, executor: Executor) -> None:
        target = self.job.target
        if target == STANDARD:
            self.out = sys.stdout.buffer
            self.loop(executor)
            self.out.flush()
            return
        with replace_file(Path(target)) as raw, pack(target, raw) as stream:
            self.out = stream
            self.loop(executor)
            if self.failed_files:
                raise TranscriptError(self.failed_files[0].reason)

    @property
    def backlog(self) -> int:
        return len(self.early)

    def keep(self, ticket: Ticket, done: FinishedBatch) -> None:
        self.early[ticket] = done
        while self.next_ticket in self.early:
            self.out.write(self.early.pop(self.next_ticket).data)
            self.next_ticket = Ticket(0, self.next_ticket.number + 1)
