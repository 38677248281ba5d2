"""Files in and out: plain, gzip or zstd, found in folders, written beside and moved into place."""

from __future__ import annotations

import gzip
import os
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, cast

import msgspec

from midfold.errors import MidfoldError, MissingExtra, TranscriptError

STANDARD = "-"
SUFFIXES = (".jsonl", ".ndjson", ".json")
PACKED = (".gz", ".zst")
GZIP_LEVEL, ZSTD_LEVEL = 6, 3
COPY_BYTES = 4 << 20


class Input(msgspec.Struct, frozen=True):
    """One file to read, and where its result goes."""

    path: str
    name: str
    """How errors and metrics call it: its place below the folder that was given."""
    output: str
    size: int
    changed: int
    """When it was last changed, in nanoseconds."""


class Opened(NamedTuple):
    stream: BinaryIO
    behind: BinaryIO | None
    """The file itself, whose position tells how far the work is."""


def inputs(source: str, target: str) -> list[Input]:
    """The files that `source` means: itself, or all trajectory files below a folder, in the order of their names."""
    if source == STANDARD:
        return [Input(STANDARD, "standard input", target, 0, 0)]
    path = Path(source)
    if not path.exists():
        raise TranscriptError(f"there is no file or folder {source}")
    if not path.is_dir():
        place = Path(target)
        into = place / path.name if place.is_dir() or target.endswith(("/", os.sep)) else place
        found = [_input(path, path.name, STANDARD if target == STANDARD else str(into))]
    else:
        if target == STANDARD or Path(target).is_file():
            raise TranscriptError(f"{source} is a folder, so OUT must be one, too; found {target}")
        if Path(target).resolve().is_relative_to(path.resolve()):
            raise TranscriptError(f"{target} is inside {source}, and would be read by the next run; choose another OUT")
        below = (item.relative_to(path) for item in path.rglob("*") if _is_trajectory_file(item))
        names = sorted(str(name) for name in below if not any(part.startswith(".") for part in name.parts))
        found = [_input(path / name, name, str(Path(target) / name)) for name in names]
        if not found:
            expected = ", ".join(SUFFIXES)
            raise TranscriptError(f"{source} is a folder without {expected} files (plain, .gz or .zst)")
    _refuse_overwriting(found)
    return found


def _is_trajectory_file(path: Path) -> bool:
    name = path.name
    for packed in PACKED:
        name = name.removesuffix(packed)
    return name.endswith(SUFFIXES) and path.is_file()


def _input(path: Path, name: str, output: str) -> Input:
    known = path.stat()
    return Input(str(path), name, output, known.st_size, known.st_mtime_ns)


def _refuse_overwriting(found: list[Input]) -> None:
    """Outputs are moved into place: that would put a file where an input, a device or a pipe is."""
    sources = {Path(item.path).resolve() for item in found}
    for item in found:
        if item.output != STANDARD and Path(item.output).exists() and not Path(item.output).is_file():
            raise TranscriptError(f"{item.output} is there and no file; choose another OUT, or - for standard output")
        if item.output != STANDARD and Path(item.output).resolve() in sources:
            raise TranscriptError(f"{item.output} is an input itself; choose another OUT, so that nothing is lost")


@contextmanager
def opened(path: str) -> Iterator[Opened]:
    """A file for reading, decompressed if its name says so. Damage is an error that names the file."""
    if path == STANDARD:
        yield Opened(sys.stdin.buffer, None)
        return
    damage: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error, *_zstd_errors(path))
    try:
        with Path(path).open("rb") as behind:
            yield Opened(_unpacked(path, behind), behind)
    except damage as error:
        raise TranscriptError(f"{path} is damaged or cut off: {error}") from None


def _unpacked(path: str, behind: BinaryIO) -> BinaryIO:
    if path.endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=behind))
    if path.endswith(".zst"):
        # A file may be several frames in a row; without this the reader would stop silently after the first.
        return cast(BinaryIO, _zstd().ZstdDecompressor().stream_reader(behind, read_across_frames=True))
    return behind


@contextmanager
def packed(name: str, raw: BinaryIO, size: int = -1) -> Iterator[BinaryIO]:
    """A stream that compresses as `name` says: one member, one frame, no date in it, so that equal data is equal.

    `size` is how much will be written, where that is known: readers of zstd like to be told.
    """
    if name.endswith(".gz"):
        with gzip.GzipFile("", "wb", GZIP_LEVEL, raw, mtime=0) as stream:
            yield cast(BinaryIO, stream)
    elif name.endswith(".zst"):
        with _zstd().ZstdCompressor(ZSTD_LEVEL, write_checksum=True).stream_writer(raw, size, closefd=False) as stream:
            yield cast(BinaryIO, stream)
    else:
        yield raw


def _zstd() -> Any:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("reading or writing .zst files", "trajectories") from None
    return zstandard


def _zstd_errors(path: str) -> tuple[type[Exception], ...]:
    return (_zstd().ZstdError,) if path.endswith(".zst") else ()


@contextmanager
def replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that appears under its name when it is complete, and not before; a link stays what it is."""
    path = path.resolve() if path.is_symlink() else path
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with temporary.open("wb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except OSError as error:
        raise MidfoldError(f"{path} could not be written: {error.strerror or error}") from None
    finally:
        temporary.unlink(missing_ok=True)


def append_file(path: Path, stream: BinaryIO) -> None:
    with path.open("rb") as source:
        shutil.copyfileobj(source, stream, COPY_BYTES)
