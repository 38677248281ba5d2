"""The logs that coding agents keep on this machine: where they are, what they are about, and how they are stored.

Rules of this file:
1. Nothing is looked for without being asked. Logs are read and never written.
2. A session belongs to the folder it was held in (`project:...`): the local user's own, as with the hooks of Claude
   Code. No key of a gateway can be called so. A log outside the client's own folders may be a stranger's: it cannot
   choose a project, and belongs to the folder in which it was found (`project:imported/...`).
3. What a log holds now is brought in: again, it changes nothing; one that has grown adds the rest. What was taken back
   since then makes a branch. A last message that may still grow waits until it is whole, or the log is left alone.
4. Every log is read up to a limit, of bytes after unpacking and of JSON values: a small file may unpack to gigabytes.
"""

from __future__ import annotations

import re
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from midfold.compaction.redact import redact
from midfold.errors import MidfoldError, MissingExtra, TranscriptError
from midfold.session.sessions import ImportedLog, Sessions, project_prefix
from midfold.transcript import jsonio
from midfold.transcript.document import Document, read, recording_of, require_messages
from midfold.transcript.log_lines import Log
from midfold.transcript.logs import CLIENTS
from midfold.transcript.wrappers import title_of

SUFFIXES = {
    "claude-code": (".jsonl",),
    "codex": (".jsonl", ".jsonl.zst"),
    "gemini-cli": (".jsonl", ".json"),
    "copilot": (".jsonl",),
}
BEGINNINGS = {"codex": "rollout-", "gemini-cli": "session-", "copilot": "events"}
"""How the names of logs end and begin."""
BEGINNING = 256 * 1024
"""Bytes of a log in which its first words are looked for."""
STILL = 600.0
"""Seconds after which nothing more is written to a message that was begun."""
LONGEST_PATH = 4_096
LARGEST_LOG_BYTES = 256 << 20
"""Also of a packed log after unpacking."""
MOST_LOG_VALUES = 8_000_000
"""JSON values take up to 100 bytes of memory each, however short they are in a file."""
READ_BYTES = 1 << 20
QUERY_SECONDS = 30.0
QUERY_STEPS = 100_000
"""Steps of SQLite's virtual machine between two looks at the clock."""
ROW_BYTES = 64
"""What a row counts at least."""
LATEST_TIME = 253_402_300_799.0
"""The last second of the year 9999."""
_SESSION_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_.:-]+")
FIRST_MESSAGES = 8
Environment = Mapping[str, str]
Report = Callable[[int, int], None]


class FoundLog(NamedTuple):
    """A log on this machine."""

    client: str
    name: str
    """What the client calls the session, as far as the file's name tells."""
    place: str
    size: int
    changed: float
    """Seconds since 1970."""
    load: Callable[[int | None], bytes]
    """The log, or so many bytes of its beginning."""
    folder: str = ""
    """Where the session was held, if that stands beside the log."""
    file: Path = Path()
    is_own: bool = False
    """Whether it is in a folder of the client's own; others may come from anywhere and cannot choose a project."""


class LogTitle(NamedTuple):
    """What a log is about; nothing in one without words of a user."""

    session: str
    title: str
    folder: str


# Where logs are


def client_folders(client: str, environment: Environment) -> list[Path]:
    """The folders of a client's own, the usual one first."""
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    places = {
        "claude-code": _either(environment, "CLAUDE_CONFIG_DIR", home / ".claude", home / ".config" / "claude"),
        "codex": _either(environment, "CODEX_HOME", home / ".codex"),
        "gemini-cli": [home / ".gemini" / "tmp"],
        "opencode": [data / "opencode"],
        "copilot": _either(environment, "COPILOT_HOME", home / ".copilot"),
    }
    return places[client]


def usual_places(client: str, environment: Environment) -> list[Path]:
    """The folders in which a client keeps its logs."""
    below = {"claude-code": ["projects"], "codex": ["sessions", "archived_sessions"], "copilot": ["session-state"]}
    return [place / name for place in client_folders(client, environment) for name in below.get(client, ["."])]


def _either(environment: Environment, name: str, *usual: Path) -> list[Path]:
    return [Path(environment[name])] if environment.get(name) else list(usual)


def find_logs(client: str, place: Path | None, environment: Environment) -> list[FoundLog]:
    """The logs of a client, in its usual folders or in another file or folder; the newest first."""
    if place is not None and not place.exists():
        raise TranscriptError(f"there is no file or folder {place}")
    places = [place] if place is not None else usual_places(client, environment)
    find = _find_opencode if client == "opencode" else partial(_find_files, client)
    own = [folder.resolve() for folder in usual_places(client, environment)]
    found = [
        log._replace(is_own=_is_inside(log.file, own)) for folder in places if folder.exists() for log in find(folder)
    ]
    if not found:
        looked = ", ".join(map(str, places))
        hint = "; a file that `opencode export ID` wrote will do" if client == "opencode" else ""
        raise TranscriptError(f"there is no log of {CLIENTS[client]} in {looked}{hint}")
    return sorted(found, key=lambda log: -log.changed)


def _is_inside(file: Path, folders: list[Path]) -> bool:
    return any(file.resolve().is_relative_to(folder) for folder in folders)


def _find_files(client: str, place: Path) -> Iterator[FoundLog]:
    paths = [place] if place.is_file() else [path for path in place.rglob("*") if _is_log(client, path)]
    for path in paths:
        known = path.stat()
        name = path.parent.name if path.name == "events.jsonl" else path.name.partition(".")[0]
        root = path.parent.parent / ".project_root"
        has_root = client == "gemini-cli" and root.is_file()
        folder = _load(root, LONGEST_PATH).decode("utf-8", "replace").strip() if has_root else ""
        yield FoundLog(client, name, str(path), known.st_size, known.st_mtime, partial(_load, path), folder, path)


def _is_log(client: str, path: Path) -> bool:
    """By its name; sub-agents have logs of their own, whose sessions are parts of others."""
    if not path.name.endswith(SUFFIXES[client]) or not path.is_file():
        return False
    if client == "claude-code":
        return not path.name.startswith("agent-") and "subagents" not in path.parts
    return path.name.startswith(BEGINNINGS[client])


def _load(path: Path, most: int | None) -> bytes:
    try:
        with path.open("rb") as file:
            if path.suffix == ".zst":
                return _unpack(file, most)
            return _read_bounded(file, most, path)
    except OSError as error:
        raise TranscriptError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def _read_bounded(stream: Any, most: int | None, path: Path) -> bytes:
    """Read `most` bytes, or all of a stream; raise where that is more than a log may have."""
    limit = LARGEST_LOG_BYTES + 1 if most is None else most
    pieces, size = list[bytes](), 0
    while size < limit and (piece := stream.read(min(READ_BYTES, limit - size))):
        pieces.append(piece)
        size += len(piece)
    if size > LARGEST_LOG_BYTES:
        raise _too_large(path)
    return b"".join(pieces)


def _too_large(place: str | Path) -> TranscriptError:
    return TranscriptError(f"{place} holds more than {LARGEST_LOG_BYTES >> 20} MB; it was left out")


def _unpack(file: Any, most: int | None) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("a log that is packed with zstd", "trajectories") from None
    try:
        unpacked = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return _read_bounded(unpacked, most, Path(file.name))
    except zstandard.ZstdError as error:
        raise TranscriptError(f"{file.name} is damaged or cut off: {error}") from None


def _find_opencode(place: Path) -> Iterator[FoundLog]:
    """The sessions of its database; of a file that `opencode export` wrote, that one."""
    database = place if place.suffix == ".db" else place / "opencode.db"
    if place.is_file() and database != place:
        yield from _find_files("opencode", place)
        return
    if not database.exists():
        return
    wanted = "SELECT CAST(id AS TEXT), CAST(coalesce(time_updated, 0) AS REAL) FROM session WHERE parent_id IS NULL"
    for name, milliseconds in _rows(database, wanted):
        size = _rows(database, "SELECT coalesce(sum(length(data)), 0) FROM part WHERE session_id = ?", name)[0][0]
        where = f"{database}#{name}"
        changed = max(0.0, min(milliseconds / 1000, LATEST_TIME))
        yield FoundLog("opencode", name, where, size, changed, partial(_export_opencode, database, name), file=database)


def _rows(database: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    """Run a query for a limited time, up to a limited size: its tables may be views that compute without end."""
    rows, size, ends = list[tuple[Any, ...]](), 0, time.monotonic() + QUERY_SECONDS
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, LARGEST_LOG_BYTES)
            connection.set_progress_handler(lambda: time.monotonic() > ends, QUERY_STEPS)
            for row in connection.execute(query, values):
                rows.append(row)
                size += ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes))
                if size > LARGEST_LOG_BYTES:
                    raise _too_large(database)
    except sqlite3.Error as error:
        raise TranscriptError(f"cannot read {database}: {error}") from None
    return rows


def _export_opencode(database: Path, name: str, most: int | None) -> bytes:
    """A session as `opencode export` writes it; of its beginning, a few messages."""
    row = _rows(database, "SELECT id, title, directory FROM session WHERE id = ?", name)[0]
    limit = f" LIMIT {FIRST_MESSAGES}" if most is not None else ""
    wanted = f"SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id{limit}"
    below = f"SELECT message_id, data FROM part WHERE message_id IN (SELECT id FROM ({wanted})) ORDER BY id"
    try:
        parts: dict[str, list[Any]] = {}
        for message, data in _rows(database, below, name):
            parts.setdefault(message, []).append(jsonio.decode(str(data).encode()))
        said = [
            {"info": jsonio.decode(str(data).encode()), "parts": parts.get(number, [])}
            for number, data in _rows(database, wanted, name)
        ]
    except jsonio.NotJSON as error:
        raise TranscriptError(f"{database}: a row of session {name} cannot be read: {error}") from None
    return jsonio.encode({"info": dict(zip(("id", "title", "directory"), row, strict=True)), "messages": said})


# What a log is about


def title_log(log: FoundLog) -> LogTitle:
    """By the beginning of a log; without a title it holds no words of a user, or nobody can read it."""
    data = log.load(BEGINNING)
    if len(data) == BEGINNING and log.client != "opencode":
        data = data[: data.rfind(b"\n") + 1] or data
    try:
        document = _parse(data, log.place)
    except MidfoldError:
        return LogTitle(log.name, "", "")
    known = recording_of(document)
    return LogTitle(known.session or log.name, title_of(document.messages, redact), known.folder or log.folder)


def _parse(data: bytes, place: str) -> Document:
    if sum(map(data.count, (b",", b"{", b"["))) > MOST_LOG_VALUES:
        raise TranscriptError(f"{place} holds more than {MOST_LOG_VALUES:,} JSON values; it was left out")
    return read(data, name=place)


# Into a store


def keep_log(sessions: Sessions, log: FoundLog, report: Report | None = None) -> ImportedLog:
    """Brings a log into a store; one without words of a user is left out, and has no session."""
    document = _parse(log.load(None), log.place)
    require_messages([document], log.place)
    if document.log is None or document.log.client != log.client:
        what = CLIENTS.get(document.log.client, "") if document.log is not None else ""
        raise TranscriptError(f"{log.place} is no log of {CLIENTS[log.client]}" + (f" but of {what}" if what else ""))
    if not title_of(document.messages, redact):
        return ImportedLog("", 0, 0, document.log.damage)
    name = session_name(log, document.log)
    waits = document.log.is_open and time.time() - log.changed < STILL
    return sessions.keep_log(document, name, waits=waits, report=report)


def session_name(log: FoundLog, known: Log) -> str:
    """Return the name under which a log is stored; raise where the id in it cannot be part of a name."""
    session, folder = known.session or _NOT_IN_ID.sub("-", log.name)[:100], known.folder or log.folder
    if not _SESSION_ID.fullmatch(session):
        shown = ascii(session[:40])
        raise TranscriptError(f"{log.place}: the session id {shown} is not 1 to 100 letters, digits, or any of _.:-")
    if not folder.isprintable() or len(folder) > LONGEST_PATH:
        raise TranscriptError(f"{log.place}: the working directory in it, {folder[:40]!a}, is no path")
    project = project_prefix(Path(folder)) if folder else f"project:{log.client}/"
    if not log.is_own:
        project = "project:imported/" + project_prefix(log.file.parent).removeprefix("project:")
    return f"{project}{log.client}-{session}"
