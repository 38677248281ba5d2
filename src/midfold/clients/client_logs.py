"""The logs that coding agents keep on this machine: where they are, what they are about, and how they are stored.

Rules of this file:
1. Nothing is looked for without being asked. Logs are read and never written.
2. A session belongs to the folder it was held in (`project:...`): the local user's own, as with the hooks of Claude
   Code. No key of a gateway can be called so.
3. What a log holds now is brought in: again, it changes nothing; one that has grown adds the rest. What was taken back
   since then makes a branch. A last message that may still grow waits until it is whole, or the log is left alone.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from midfold.errors import MidfoldError, MissingExtra, TranscriptError
from midfold.fold.redact import redact
from midfold.service import KeptLog, Sessions, project_prefix
from midfold.transcript import jsonio
from midfold.transcript.document import read, recording_of, require_messages
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
    found = [log for folder in places if folder.exists() for log in find(folder)]
    if not found:
        looked = ", ".join(map(str, places))
        hint = "; a file that `opencode export ID` wrote will do" if client == "opencode" else ""
        raise TranscriptError(f"there is no log of {CLIENTS[client]} in {looked}{hint}")
    return sorted(found, key=lambda log: -log.changed)


def _find_files(client: str, place: Path) -> Iterator[FoundLog]:
    paths = [place] if place.is_file() else [path for path in place.rglob("*") if _is_log(client, path)]
    for path in paths:
        known = path.stat()
        name = path.parent.name if path.name == "events.jsonl" else path.name.partition(".")[0]
        root = path.parent.parent / ".project_root"
        has_root = client == "gemini-cli" and root.is_file()
        folder = _load(root, LONGEST_PATH).decode("utf-8", "replace").strip() if has_root else ""
        yield FoundLog(client, name, str(path), known.st_size, known.st_mtime, partial(_load, path), folder)


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
            return file.read() if most is None else file.read(most)
    except OSError as error:
        raise TranscriptError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def _unpack(file: Any, most: int | None) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise MissingExtra("a log that is packed with zstd", "trajectories") from None
    try:
        return bytes(zstandard.ZstdDecompressor().stream_reader(file).read(-1 if most is None else most))
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
    for name, changed in _rows(database, "SELECT id, time_updated FROM session WHERE parent_id IS NULL"):
        size = _rows(database, "SELECT coalesce(sum(length(data)), 0) FROM part WHERE session_id = ?", name)[0][0]
        where = f"{database}#{name}"
        yield FoundLog("opencode", name, where, size, changed / 1000, partial(_export_opencode, database, name))


def _rows(database: Path, query: str, *values: str) -> list[tuple[Any, ...]]:
    try:
        with closing(sqlite3.connect(f"{database.resolve().as_uri()}?mode=ro", uri=True)) as connection:
            return connection.execute(query, values).fetchall()
    except sqlite3.Error as error:
        raise TranscriptError(f"cannot read {database}: {error}") from None


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
    whole = log.size <= BEGINNING
    data = log.load(None if whole else BEGINNING)
    if not whole and log.client != "opencode":
        data = data[: data.rfind(b"\n") + 1] or data
    try:
        document = read(data, name=log.place)
    except MidfoldError:
        return LogTitle(log.name, "", "")
    known = recording_of(document)
    return LogTitle(known.session or log.name, title_of(document.messages, redact), known.folder or log.folder)


# Into a store


def keep_log(sessions: Sessions, log: FoundLog, report: Report | None = None) -> KeptLog:
    """Brings a log into a store; one without words of a user is left out, and has no session."""
    document = read(log.load(None), name=log.place)
    require_messages([document], log.place)
    if document.log is None or document.log.client != log.client:
        what = CLIENTS.get(document.log.client, "") if document.log is not None else ""
        raise TranscriptError(f"{log.place} is no log of {CLIENTS[log.client]}" + (f" but of {what}" if what else ""))
    if not title_of(document.messages, redact):
        return KeptLog("", 0, 0, document.log.damage)
    name = session_name(log.client, document.log.session or log.name, document.log.folder or log.folder)
    waits = document.log.is_open and time.time() - log.changed < STILL
    return sessions.keep_log(document, name, waits=waits, report=report)


def session_name(client: str, session: str, folder: str) -> str:
    """What a session is called among those of its project."""
    project = project_prefix(Path(folder)) if folder else f"project:{client}/"
    return f"{project}{client}-{session}"
