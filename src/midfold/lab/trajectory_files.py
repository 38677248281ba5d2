"""Trajectory files: find and decompress them, split them into batches of whole records, write output atomically.

    lines    one record per line
    array    one JSON array of records
    whole    one record: an object, a list of turns, or lines of turns; a coding agent's log, as its conversation

Batches depend only on the bytes and the batch size, so every run has the same ones. Every byte is in exactly one batch:
bytes between records (line breaks, commas, brackets) are copied. Memory is bounded by a batch and the largest record,
which is limited by `LARGEST_RECORD`.
"""

from __future__ import annotations

import gzip
import os
import re
import shutil
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import msgspec

from midfold import atomic
from midfold.errors import MidfoldError, MissingExtra, TranscriptError
from midfold.lab.trajectory_records import is_record, is_single_turn
from midfold.transcript import jsonio
from midfold.transcript.document import LogWithoutMessages, read
from midfold.transcript.jsonio import value_end
from midfold.transcript.logs import FORMAT_DETECTION_LINES, read_log, read_log_body

STANDARD = "-"
SUFFIXES = (".jsonl", ".ndjson", ".json")
PACKED = (".gz", ".zst")
GZIP_LEVEL, ZSTD_LEVEL = 6, 3
COPY_BYTES = 4 << 20


class Input(msgspec.Struct, frozen=True):
    """A file to read, and the path of its result."""

    path: str
    name: str
    """Name in errors and metrics: the path below the given folder."""
    output: str
    size: int
    changed: int
    """Modification time in nanoseconds."""


class OpenInput(NamedTuple):
    stream: BinaryIO
    behind: BinaryIO | None
    """The underlying file, whose position shows the progress."""


def inputs(source: str, target: str) -> list[Input]:
    """Return the input files: `source` itself, or all trajectory files below a folder, sorted by name."""
    if source == STANDARD:
        return [Input(STANDARD, "standard input", target, 0, 0)]
    path = Path(source)
    if not path.exists():
        raise TranscriptError(f"there is no file or folder {source}")
    if not path.is_dir():
        place = Path(target)
        # A link that the user names is followed; one found in an output folder is replaced.
        is_folder = place.is_dir() or target.endswith(("/", os.sep))
        into = place / path.name if is_folder else place.resolve() if place.is_symlink() else place
        found = [_input(path, path.name, STANDARD if target == STANDARD else str(into))]
    else:
        if target == STANDARD or Path(target).is_file():
            raise TranscriptError(f"{source} is a folder, so OUT must be a folder, too; found {target}")
        if Path(target).resolve().is_relative_to(path.resolve()):
            raise TranscriptError(f"{target} is inside {source}, so the next run would read it; choose another OUT")
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
    """Raise if an output would replace an input, a device or a pipe."""
    sources = {Path(item.path).resolve() for item in found}
    for item in found:
        if item.output != STANDARD and Path(item.output).exists() and not Path(item.output).is_file():
            raise TranscriptError(
                f"{item.output} exists and is not a regular file; choose another OUT, or - for standard output"
            )
        if item.output != STANDARD and Path(item.output).resolve() in sources:
            raise TranscriptError(f"{item.output} is also an input; choose another OUT")


@contextmanager
def open_input(path: str) -> Iterator[OpenInput]:
    """Open a file for reading, decompressing by its extension; a damaged file raises an error that names it."""
    if path == STANDARD:
        yield OpenInput(sys.stdin.buffer, None)
        return
    damage: tuple[type[Exception], ...] = (EOFError, gzip.BadGzipFile, zlib.error, *_zstd_errors(path))
    try:
        with Path(path).open("rb") as behind:
            yield OpenInput(_unpack(path, behind), behind)
    except damage as error:
        raise TranscriptError(f"{path} is damaged or truncated: {error}") from None


def _unpack(path: str, behind: BinaryIO) -> BinaryIO:
    if path.endswith(".gz"):
        return cast(BinaryIO, gzip.GzipFile(fileobj=behind))
    if path.endswith(".zst"):
        # A file may have several frames; without this the reader would silently stop after the first.
        return cast(BinaryIO, _zstd().ZstdDecompressor().stream_reader(behind, read_across_frames=True))
    return behind


@contextmanager
def pack(name: str, raw: BinaryIO, size: int = -1) -> Iterator[BinaryIO]:
    """Return a reproducible stream that compresses by the extension of `name`: one member or frame, no date.

    `size` is the number of bytes that will be written, if known; zstd stores it.
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
def replace_file(path: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """Yield a stream whose content appears at `path` when the block ends, or not at all; make missing folders."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic.replace_file(path, mode=0o666, sync=sync) as stream:
            yield stream
    except OSError as error:
        raise MidfoldError(f"{path} could not be written: {error.strerror or error}") from None


def append_file(path: Path, stream: BinaryIO) -> None:
    with path.open("rb") as source:
        shutil.copyfileobj(source, stream, COPY_BYTES)


LARGEST_RECORD = 128 << 20
BOM = b"\xef\xbb\xbf"
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
BLANK = b" \t\r\n"
_BETWEEN = re.compile(rb"[\s,]*")
Layout = Literal["lines", "array", "whole"]


class Batch(NamedTuple):
    """Records of a file with everything between them."""

    data: bytes
    spans: tuple[tuple[int, int], ...]
    first_line: int
    """Line of the file on which the data begins."""
    position: int
    """Position in the underlying file, for a progress bar."""

    def lines(self) -> Iterator[int]:
        """Yield the line number of each record."""
        line, last = self.first_line, 0
        for start, _ in self.spans:
            line += self.data.count(b"\n", last, start)
            last = start
            yield line


class _Source:
    """Stream with a buffer in front of it."""

    def __init__(self, stream: BinaryIO, position: BinaryIO | None, size: int) -> None:
        self.size = size
        self._stream = stream
        self._position = position
        self.buffer = b""
        self.ended = False
        self.line = 1

    def more(self) -> bool:
        """Read more, doubling the amount, and return whether anything came; raise if a record is too large."""
        limit = max(LARGEST_RECORD, self.size)
        if len(self.buffer) > limit:
            raise TranscriptError(
                f"line {self.line}: no record ends within {limit >> 20} MB; expected one record per line, or "
                "one JSON array of records"
            )
        wanted = min(max(self.size, len(self.buffer)), limit + 1 - len(self.buffer))
        data = b"" if self.ended else self._stream.read(wanted)
        self.ended = not data
        self.buffer += data
        return bool(data)

    def batch(self, end: int, spans: list[tuple[int, int]]) -> Batch:
        """Remove a batch from the front of the buffer."""
        data, self.buffer = self.buffer[:end], self.buffer[end:]
        made = Batch(data, tuple(spans), self.line, self._position.tell() if self._position is not None else 0)
        self.line += data.count(b"\n")
        return made


def batches(stream: BinaryIO, name: str, size: int, position: BinaryIO | None = None) -> Iterator[Batch]:
    """Yield the batches of a file, in order; `position` is the file below a decompressed stream."""
    source = _Source(stream, position, size)
    layout = _layout(source, name)
    if layout == "lines":
        return _lines(source)
    return _array(source) if layout == "array" else _whole(source)


def _layout(source: _Source, name: str) -> Layout:
    while not (first := _first(source)) and source.more():
        pass
    if source.buffer.startswith(UTF_16):
        raise TranscriptError(f"{name} is UTF-16 or UTF-32; expected JSON in UTF-8")
    if not first or name.partition(".jsonl")[1] or name.partition(".ndjson")[1]:
        turns = bool(first) and _is_lines_of_turns(source)
        return "whole" if turns else "lines"
    if first == b"[":
        if not _begins_with_a_turn(source):
            return "array"
        return "lines" if _parses(_first_line(source)) and _has_more_lines(source) else "whole"
    line = _first_line(source)
    if _parses(line):
        return "whole" if is_single_turn(line) or _is_log(source) else "lines"
    return "whole" if line.rstrip(BLANK)[-1:] in (b"{", b"[", b",", b":") else "lines"


def _first(source: _Source) -> bytes:
    return source.buffer.removeprefix(BOM).lstrip(BLANK)[:1]


def _first_line(source: _Source) -> bytes:
    """Return the first line that is not blank."""
    while True:
        text = source.buffer.removeprefix(BOM).lstrip(BLANK)
        end = text.find(b"\n")
        if end >= 0 or not source.more():
            return text if end < 0 else text[:end].rstrip(BLANK)


def _has_more_lines(source: _Source) -> bool:
    text = source.buffer.removeprefix(BOM).lstrip(BLANK)
    return bool(text.partition(b"\n")[2].strip(BLANK)) or (not source.ended and source.more())


def _is_lines_of_turns(source: _Source) -> bool:
    line = _first_line(source)
    return _parses(line) and (is_single_turn(line) or _is_log(source))


def _is_log(source: _Source) -> bool:
    """Return whether the first lines, or the only line, are those of an agent's log."""
    lines = source.buffer.removeprefix(BOM).split(b"\n", FORMAT_DETECTION_LINES)[:FORMAT_DETECTION_LINES]
    values = [jsonio.decode(line) for line in lines if line.lstrip(BLANK)[:1] == b"{" and _parses(line)]
    if not values or is_record(values[0]):
        return len(values) == 1 and read_log_body(values[0]) is not None
    return read_log(values) is not None


def _parses(data: bytes) -> bool:
    try:
        jsonio.decode(data)
    except jsonio.NotJSON:
        return False
    return True


def _begins_with_a_turn(source: _Source) -> bool:
    start = source.buffer.index(b"[") + 1
    found = _element(source, start)
    return found is None or is_single_turn(source.buffer[found[0] : found[1]])


def _lines(source: _Source) -> Iterator[Batch]:
    while True:
        while (end := source.buffer.rfind(b"\n") + 1) == 0 and source.more():
            pass
        if len(source.buffer) < source.size and source.more():
            continue
        end = len(source.buffer) if source.ended else end
        if not source.buffer:
            return
        yield source.batch(end, _line_spans(source.buffer, end))


def _line_spans(data: bytes, limit: int) -> list[tuple[int, int]]:
    """Return the spans of lines without surrounding white space; blank lines are not records."""
    spans: list[tuple[int, int]] = []
    place = len(BOM) if data.startswith(BOM) else 0
    while place < limit:
        line_end = data.find(b"\n", place, limit)
        line_end = limit if line_end < 0 else line_end
        start, end = place, line_end
        while start < end and data[start] in BLANK:
            start += 1
        while start < end and data[end - 1] in BLANK:
            end -= 1
        if start < end:
            spans.append((start, end))
        place = line_end + 1
    return spans


def _array(source: _Source) -> Iterator[Batch]:
    place = source.buffer.index(b"[") + 1
    spans: list[tuple[int, int]] = []
    while (found := _element(source, place)) is not None:
        spans.append(found)
        place = found[1]
        if place >= source.size:
            yield source.batch(place, spans)
            place, spans = 0, []
    while source.more():
        pass
    rest = source.buffer[place:].lstrip(BLANK + b",")
    if rest[:1] != b"]" or rest[1:].strip(BLANK):
        spans.append((len(source.buffer) - len(rest), len(source.buffer)))
    if source.buffer:
        yield source.batch(len(source.buffer), spans)


def _element(source: _Source, place: int) -> tuple[int, int] | None:
    """Return the span of the next array element; None after the last one, and if no JSON follows."""
    while True:
        start = _BETWEEN.match(source.buffer, place).end()  # type: ignore[union-attr]
        if source.buffer[start : start + 1] == b"]":
            return None
        try:
            end = value_end(source.buffer, start)
        except jsonio.NotJSON:
            end = -1
        if 0 <= end < len(source.buffer):
            return start, end
        if not source.more():
            return (start, end) if end >= 0 and start < end else None


def _whole(source: _Source) -> Iterator[Batch]:
    while source.more():
        pass
    if _is_log(source) or _is_log_body(source.buffer):
        source.buffer = _record_of_log(source.buffer)
    data = source.buffer
    start = len(data) - len(data.removeprefix(BOM).lstrip(BLANK))
    end = len(data.rstrip(BLANK))
    yield source.batch(len(data), [(start, end)])


def _is_log_body(data: bytes) -> bool:
    try:
        return data[:1] == b"{" and read_log_body(jsonio.entries(data)) is not None
    except jsonio.NotJSON:
        return False


def _record_of_log(data: bytes) -> bytes:
    """Convert a log to its conversation as a record on one line; a log without one is not a record."""
    try:
        log = read(data).log
    except LogWithoutMessages:
        return data
    assert log is not None
    return jsonio.encode({"id": log.session, "model": log.model, "messages": log.messages}) + b"\n"
