"""The folder beside OUT that makes a run resumable: a manifest, and every finished batch.

    OUT.midfold-work/
      manifest.json          the settings and the inputs this work belongs to
      00003/000017.part      a finished batch of the fourth file
      00003/000017.json      what became of its records, and how long its part is; written last, so it says: finished
      00003/done.json        the file is complete and in its place; its batches are gone

Rules of this file:
1. Everything is written under another name and renamed. What has its name is complete.
2. A batch counts as finished if its part has the length and the checksum that were noted: a machine that lost its power
   may keep a name without its bytes.
3. Other settings, other inputs or another run at the same time are refused, never mixed.
"""

from __future__ import annotations

import os
import shutil
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from midfold.errors import MidfoldError
from midfold.trajectory.files import Input, append_file, packed, replacing
from midfold.trajectory.metrics import RecordMetrics, Totals
from midfold.trajectory.settings import Settings
from midfold.trajectory.work import Done

VERSION = 1
SUFFIX = ".midfold-work"


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """What the work in this folder belongs to."""

    version: int = VERSION
    fingerprint: str
    inputs: list[Input]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """What is noted about a finished batch."""

    size: int
    checksum: int
    totals: Totals
    records: list[RecordMetrics]


class FileNote(msgspec.Struct, frozen=True, kw_only=True):
    """What is noted about a finished file."""

    batches: int
    totals: Totals


class Workplace:
    """The finished part of a run."""

    def __init__(self, target: str, files: list[Input], settings: Settings, *, restart: bool = False) -> None:
        self.folder = Path(f"{target.rstrip('/' + os.sep)}{SUFFIX}")
        self._manifest = Manifest(fingerprint=settings.fingerprint, inputs=files)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lock = _lock(self.folder / "lock")
        except OSError as error:
            raise MidfoldError(f"{self.folder} could not be made: {error.strerror or error}") from None
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
            raise MidfoldError(f"{path} cannot be read; --restart begins anew") from None
        if known == self._manifest:
            return True
        changed = "the settings" if known.inputs == self._manifest.inputs else "the input files"
        raise MidfoldError(f"{changed} changed since the work in {self.folder} began; --restart begins anew")

    def _save(self, path: Path, value: Any) -> None:
        self._put(path, msgspec.json.encode(value))

    def _put(self, path: Path, data: bytes) -> None:
        """Written under another name and renamed. A full disk ends the run, and what is finished stays."""
        temporary = path.with_name(f".{path.name}.partial")
        try:
            temporary.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_bytes(data)
            temporary.replace(path)
        except OSError as error:
            raise MidfoldError(f"{path} could not be written: {error.strerror or error}") from None

    def _place(self, file: int, number: int) -> Path:
        return self.folder / f"{file:05}" / f"{number:06}.part"

    def finished_file(self, file: int) -> FileNote | None:
        """What is known of a file that is complete, if its output still stands where it was put."""
        path = self.folder / f"{file:05}" / "done.json"
        if not path.exists() or not Path(self._manifest.inputs[file].output).exists():
            return None
        return msgspec.json.decode(path.read_bytes(), type=FileNote)

    def finished_batch(self, file: int, number: int) -> Note | None:
        part = self._place(file, number)
        try:
            note = msgspec.json.decode(part.with_suffix(".json").read_bytes(), type=Note)
            data = part.read_bytes()
        except (FileNotFoundError, msgspec.MsgspecError):
            return None
        return note if (len(data), zlib.crc32(data)) == (note.size, note.checksum) else None

    def keep(self, file: int, number: int, done: Done) -> None:
        """A batch is finished."""
        part = self._place(file, number)
        self._put(part, done.data)
        note = Note(size=len(done.data), checksum=zlib.crc32(done.data), totals=done.totals, records=done.records)
        self._save(part.with_suffix(".json"), note)

    def finish_file(self, file: int, batches: int) -> FileNote:
        """All batches of a file are there: its output appears, complete, under its name."""
        totals = Totals()
        records = self.folder / f"{file:05}" / "records.jsonl"
        output = Path(self._manifest.inputs[file].output)
        with replacing(records) as lines:
            for number in range(batches):
                known = msgspec.json.decode(self._place(file, number).with_suffix(".json").read_bytes(), type=Note)
                totals.merge(known.totals)
                lines.writelines(msgspec.json.encode(record) + b"\n" for record in known.records)
        with replacing(output) as raw, packed(output.name, raw, totals.bytes_out) as stream:
            for number in range(batches):
                append_file(self._place(file, number), stream)
        note = FileNote(batches=batches, totals=totals)
        self._save(self.folder / f"{file:05}" / "done.json", note)
        for number in range(batches):
            self._place(file, number).unlink(missing_ok=True)
            self._place(file, number).with_suffix(".json").unlink(missing_ok=True)
        return note

    def records(self, file: int) -> Iterator[bytes]:
        """The metrics of a finished file's records, one JSON line each."""
        path = self.folder / f"{file:05}" / "records.jsonl"
        with path.open("rb") as lines:
            yield from lines

    def close(self, *, finished: bool) -> None:
        """Lets go of the folder; a finished run leaves none."""
        if finished:
            shutil.rmtree(self.folder, ignore_errors=True)
        if self._lock is not None:
            self._lock.close()


def _lock(path: Path) -> BinaryIO | None:
    """Held until this process ends, however it ends."""
    try:
        import fcntl
    except ImportError:
        return None
    stream = path.open("wb")
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        stream.close()
        raise MidfoldError(f"another run is at work in {path.parent}") from None
    return stream
