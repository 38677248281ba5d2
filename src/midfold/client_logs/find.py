"""Find the session logs of coding agents on this machine, describe them, and import them into a store.

1. Logs are searched only on request, and are never written.
2. A session belongs to the folder it ran in (`project:...`), owned by the local user; no gateway key can have such a
   name. A log outside the client's own folders is untrusted: it cannot choose a project and belongs to the folder where
   it was found (`project:imported/...`).
3. Importing a log again changes nothing, or adds what is new. Turns taken back since then become a branch. A last
   message that may still grow is imported when it is complete, or when the log has been idle.
4. Logs are limited in unpacked bytes and in JSON values, because a small file may unpack to gigabytes.
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
PREFIXES = {"codex": "rollout-", "gemini-cli": "session-", "copilot": "events"}
"""Suffixes and prefixes of log file names."""
HEAD_BYTES = 256 * 1024
"""Bytes at the start of a log that are searched for the user's first words."""
IDLE_SECONDS = 600.0
"""Seconds without a change after which an open message counts as complete."""
MAX_PATH_CHARACTERS = 4_096
MAX_LOG_BYTES = 256 << 20
"""Maximum bytes of a log, after unpacking."""
MAX_LOG_VALUES = 8_000_000
"""Maximum JSON values of a log; each takes up to 100 bytes of memory, however short it is in the file."""
READ_BYTES = 1 << 20
QUERY_SECONDS = 30.0
QUERY_STEPS = 100_000
"""SQLite virtual machine steps between two checks of the clock."""
ROW_BYTES = 64
"""Minimum bytes counted per row."""
LATEST_TIME = 253_402_300_799.0
"""Last second of the year 9999, as a Unix time."""
_SESSION_ID = re.compile(r"[A-Za-z0-9_.:-]{1,100}")
_NOT_IN_ID = re.compile(r"[^A-Za-z0-9_.:-]+")
FIRST_MESSAGES = 8
Environment = Mapping[str, str]
Report = Callable[[int, int], None]


class FoundLog(NamedTuple):
    """Log found on this machine."""

    client: str
    name: str
    """The client's name for the session, derived from the file name."""
    place: str
    size: int
    changed: float
    """Seconds since 1970."""
    load: Callable[[int | None], bytes]
    """Function that returns the log, or that many bytes of its start."""
    folder: str = ""
    """Folder the session ran in, if stored next to the log."""
    file: Path = Path()
    is_own: bool = False
    """True if it is in one of the client's own folders; other logs are untrusted and cannot choose a project."""


class LogTitle(NamedTuple):
    """Session, title and folder of a log; the title is empty without words of a user."""

    session: str
    title: str
    folder: str


# Locating logs


def client_folders(client: str, environment: Environment) -> list[Path]:
    """Return the client's own folders, the default one first."""
    home = Path(environment.get("HOME") or environment.get("USERPROFILE") or Path.home())
    data = Path(environment.get("XDG_DATA_HOME") or home / ".local" / "share")
    places = {
        "claude-code": _configured_or(environment, "CLAUDE_CONFIG_DIR", home / ".claude", home / ".config" / "claude"),
        "codex": _configured_or(environment, "CODEX_HOME", home / ".codex"),
        "gemini-cli": [home / ".gemini" / "tmp"],
        "opencode": [data / "opencode"],
        "copilot": _configured_or(environment, "COPILOT_HOME", home / ".copilot"),
    }
    return places[client]


def log_folders(client: str, environment: Environment) -> list[Path]:
    """Return the folders where a client keeps its logs."""
    below = {"claude-code": ["projects"], "codex": ["sessions", "archived_sessions"], "copilot": ["session-state"]}
    return [place / name for place in client_folders(client, environment) for name in below.get(client, ["."])]


def _configured_or(environment: Environment, name: str, *usual: Path) -> list[Path]:
    return [Path(environment[name])] if environment.get(name) else list(usual)


def find_logs(client: str, place: Path | None, environment: Environment) -> list[FoundLog]:
    """Return the logs of a client in its default folders or in the given file or folder, newest first."""
    if place is not None and not place.exists():
        raise TranscriptError(f"file or folder not found: {place}")
    places = [place] if place is not None else log_folders(client, environment)
    find = _find_opencode if client == "opencode" else partial(_find_files, client)
    own = [folder.resolve() for folder in log_folders(client, environment)]
    found = [
        log._replace(is_own=_is_inside(log.file, own)) for folder in places if folder.exists() for log in find(folder)
    ]
    if not found:
        searched = ", ".join(map(str, places))
        hint = "; you can also pass a file written by `opencode export ID`" if client == "opencode" else ""
        raise TranscriptError(f"no {CLIENTS[client]} logs found in {searched}{hint}")
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
        folder = _load(root, MAX_PATH_CHARACTERS).decode("utf-8", "replace").strip() if has_root else ""
        yield FoundLog(client, name, str(path), known.st_size, known.st_mtime, partial(_load, path), folder, path)


def _is_log(client: str, path: Path) -> bool:
    """Return whether the file name is that of a log; logs of sub-agents are part of other sessions and excluded."""
    if not path.name.endswith(SUFFIXES[client]) or not path.is_file():
        return False
    if client == "claude-code":
        return not path.name.startswith("agent-") and "subagents" not in path.parts
    return path.name.startswith(PREFIXES[client])


def _load(path: Path, max_bytes: int | None) -> bytes:
    try:
        with path.open("rb") as file:
            if path.suffix == ".zst":
                return _unpack(file, max_bytes)
            return _read_bounded(file, max_bytes, path)
    except OSError as error:
        raise TranscriptError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def _read_bounded(stream: Any, max_bytes: int | None, path: Path) -> bytes:
    """Read `max_bytes` bytes, or all of a stream; raise if that exceeds the maximum size of a log."""
    limit = MAX_LOG_BYTES + 1 if max_bytes is None else max_bytes
    pieces, size = list[bytes](), 0
    while size < limit and (piece := stream.read(min(READ_BYTES, limit - size))):
        pieces.append(piece)
        size += len(piece)
    if size > MAX_LOG_BYTES:
        raise _too_large(path)
    return b"".join(pieces)


def _too_large(place: str | Path) -> TranscriptError:
    return TranscriptError(f"{place} is larger than {MAX_LOG_BYTES >> 20} MB; skipped")


def _unpack(file: Any, max_bytes: int | None) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("reading a log compressed with zstd", "trajectories") from None
    try:
        unpacked = zstandard.ZstdDecompressor().stream_reader(file, read_across_frames=True)
        return _read_bounded(unpacked, max_bytes, Path(file.name))
    except zstandard.ZstdError as error:
        raise TranscriptError(f"{file.name} is damaged or truncated: {error}") from None


def _find_opencode(place: Path) -> Iterator[FoundLog]:
    """Yield the sessions of an opencode database, or the one in a file written by `opencode export`."""
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
    """Run a query with time and size limits, because its tables may be views that never finish."""
    rows, size, deadline = list[tuple[Any, ...]](), 0, time.monotonic() + QUERY_SECONDS
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            connection.execute("PRAGMA trusted_schema = OFF")
            connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_LOG_BYTES)
            connection.set_progress_handler(lambda: time.monotonic() > deadline, QUERY_STEPS)
            for row in connection.execute(query, values):
                rows.append(row)
                size += ROW_BYTES + sum(len(value) for value in row if isinstance(value, str | bytes))
                if size > MAX_LOG_BYTES:
                    raise _too_large(database)
    except sqlite3.Error as error:
        raise TranscriptError(f"cannot read {database}: {error}") from None
    return rows


def _export_opencode(database: Path, name: str, max_bytes: int | None) -> bytes:
    """Return a session as `opencode export` writes it; only a few messages if only the start is needed."""
    row = _rows(database, "SELECT id, title, directory FROM session WHERE id = ?", name)[0]
    limit = f" LIMIT {FIRST_MESSAGES}" if max_bytes is not None else ""
    wanted = f"SELECT id, data FROM message WHERE session_id = ? ORDER BY time_created, id{limit}"
    below = f"SELECT message_id, data FROM part WHERE message_id IN (SELECT id FROM ({wanted})) ORDER BY id"
    try:
        parts: dict[str, list[Any]] = {}
        for message, data in _rows(database, below, name):
            parts.setdefault(message, []).append(jsonio.decode(str(data).encode()))
        messages = [
            {"info": jsonio.decode(str(data).encode()), "parts": parts.get(number, [])}
            for number, data in _rows(database, wanted, name)
        ]
    except jsonio.NotJSON as error:
        raise TranscriptError(f"{database}: cannot read a row of session {name}: {error}") from None
    return jsonio.encode({"info": dict(zip(("id", "title", "directory"), row, strict=True)), "messages": messages})


# Describing logs


def describe_log(log: FoundLog) -> LogTitle:
    """Describe a log by its start; the title is empty if it has no user words or is unreadable."""
    data = log.load(HEAD_BYTES)
    if len(data) == HEAD_BYTES and log.client != "opencode":
        data = data[: data.rfind(b"\n") + 1] or data
    try:
        document = _parse(data, log.place)
    except MidfoldError:
        return LogTitle(log.name, "", "")
    known = recording_of(document)
    return LogTitle(known.session or log.name, title_of(document.messages, redact), known.folder or log.folder)


def _parse(data: bytes, place: str) -> Document:
    if sum(map(data.count, (b",", b"{", b"["))) > MAX_LOG_VALUES:
        raise TranscriptError(f"{place} has more than {MAX_LOG_VALUES:,} JSON values; skipped")
    return read(data, name=place)


# Importing logs


def keep_log(sessions: Sessions, log: FoundLog, report: Report | None = None) -> ImportedLog:
    """Import a log into a store; one without words of a user is skipped and has no session."""
    document = _parse(log.load(None), log.place)
    require_messages([document], log.place)
    if document.log is None or document.log.client != log.client:
        what = CLIENTS.get(document.log.client, "") if document.log is not None else ""
        found = f" but a {what} log" if what else ""
        raise TranscriptError(f"{log.place} is not a {CLIENTS[log.client]} log{found}")
    if not title_of(document.messages, redact):
        return ImportedLog("", 0, 0, document.log.damage)
    name = session_name(log, document.log)
    waits = document.log.is_open and time.time() - log.changed < IDLE_SECONDS
    return sessions.keep_log(document, name, waits=waits, report=report)


def session_name(log: FoundLog, known: Log) -> str:
    """Return the session name for a log; raise if its session id is not valid in a name."""
    session, folder = known.session or _NOT_IN_ID.sub("-", log.name)[:100], known.folder or log.folder
    if not _SESSION_ID.fullmatch(session):
        shown = ascii(session[:40])
        raise TranscriptError(f"{log.place}: the session id {shown} is not 1 to 100 letters, digits, or any of _.:-")
    if not folder.isprintable() or len(folder) > MAX_PATH_CHARACTERS:
        raise TranscriptError(f"{log.place}: its working directory {folder[:40]!a} is not a path")
    project = project_prefix(Path(folder)) if folder else f"project:{log.client}/"
    if not log.is_own:
        project = "project:imported/" + project_prefix(log.file.parent).removeprefix("project:")
    return f"{project}{log.client}-{session}"
