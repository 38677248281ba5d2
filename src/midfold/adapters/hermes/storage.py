"""Hermes sessions, and their archive files: originals of folds as JSON lines, one file per session.

1. A session that Hermes splits while compacting continues; any other session starts empty.
2. Files are append-only and readable only by their owner, because originals are not redacted.
3. A split session names the one it continues; its originals are found there.
4. An unreadable line (crash, full disk) is skipped; the rest of the session is still loaded.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec

from midfold import Archive, Message, MidfoldError, read
from midfold.adapters.hermes.window_usage import HermesUsage
from midfold.atomic import NO_FOLLOW

FOLDER = "midfold"
MOST_PARENTS = 100
ORIGINALS = b'{"handle":"'


class SessionArchives:
    """Archives of all sessions in one directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, session_id: str) -> Path:
        """Return the archive path: a file name of fixed length, so that no session id can escape the directory."""
        return self.folder / f"{blake2b(session_id.encode('utf-8', 'replace'), digest_size=12).hexdigest()}.jsonl"

    def keep(self, session_id: str, entries: Mapping[str, tuple[Message, ...]], state: Mapping[str, Any]) -> None:
        self._append(session_id, [*Archive(entries).lines(), _line({"state": state})])

    def continues(self, session_id: str, parent: str) -> None:
        self._append(session_id, [_line({"continues": parent})])

    def _append(self, session_id: str, lines: list[bytes]) -> None:
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | NO_FOLLOW
        descriptor = os.open(self.path(session_id), flags, 0o600)
        with os.fdopen(descriptor, "ab") as file:
            file.write(b"".join(line + b"\n" for line in lines))

    def load(self, session_id: str) -> tuple[dict[str, tuple[Message, ...]], dict[str, Any]]:
        """Load the originals of a session and those it continues, and the newest state."""
        entries: dict[str, tuple[Message, ...]] = {}
        state: dict[str, Any] = {}
        seen: set[str] = set()
        wanted: str | None = session_id
        while wanted is not None and wanted not in seen and len(seen) < MOST_PARENTS:
            seen.add(wanted)
            parent: str | None = None
            older: dict[str, tuple[Message, ...]] = {}
            found: dict[str, Any] = {}
            for line in self._lines(wanted):
                if line.startswith(ORIGINALS):
                    older |= _read_originals(line)
                else:
                    value = _decode(line)
                    parent = value["continues"] if isinstance(value.get("continues"), str) else parent
                    found = value["state"] if isinstance(value.get("state"), dict) else found
            entries = older | entries
            state = state or found
            wanted = parent
        return entries, state

    def _lines(self, session_id: str) -> list[bytes]:
        try:
            return self.path(session_id).read_bytes().splitlines()
        except OSError:
            return []


def _line(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value).encode()


def _decode(line: bytes) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def _read_originals(line: bytes) -> dict[str, tuple[Message, ...]]:
    """Parse a line of `Archive.lines` as a request body, which preserves the exact bytes of its messages."""
    try:
        document = read(line)
    except MidfoldError:
        return {}
    return {str(document.setting("handle")): document.messages}


_log = logging.getLogger("midfold.hermes")


class HermesSessions(HermesUsage):
    """Session tracking from Hermes' notifications."""

    _session_id = ""
    _shelf: SessionArchives | None = None
    _loaded = False

    def _forget(self) -> None:
        self._conversation.reset()
        self._forget_numbers()

    def on_session_start(self, session_id: str, **context: Any) -> None:
        """Start a new session, resume the same one, or continue one that was just compacted."""
        home = context.get("hermes_home")
        if home:
            self._shelf = SessionArchives(Path(str(home)) / FOLDER)
        session_id = str(session_id or "")
        parent = str(context.get("old_session_id") or "")
        goes_on = context.get("boundary_reason") == "compression" or bool(context.get("carry_over_context"))
        if session_id and session_id != self._session_id:
            if goes_on and parent and parent != session_id:
                self._continue(session_id, parent)
            elif self._session_id:
                self._forget()
            self._session_id = session_id
            self._loaded = self._loaded and goes_on
        if isinstance(context.get("messages"), list):
            self.rehydrate(context["messages"])

    def _continue(self, session_id: str, parent: str) -> None:
        if self._shelf is not None:
            try:
                self._shelf.continues(session_id, parent)
            except OSError as error:
                _log.warning("midfold: could not record the continuation of a session: %s", error.strerror)

    def carry_over_new_session_context(self, old_session_id: str, new_session_id: str) -> None:
        """Do nothing: `on_session_start` has already kept what is needed."""

    def bind_session_state(self, session_db: Any = None, session_id: str = "") -> None:
        if session_id and session_id != self._session_id:
            self.on_session_start(session_id)

    def on_session_end(self, session_id: str, messages: list[dict[str, Any]]) -> None:
        """Do nothing: everything is already in the archive, and the next session is announced separately."""

    def on_session_reset(self) -> None:
        self._forget()
        self._session_id = ""
        self._loaded = False

    def rehydrate(self, messages: list[dict[str, Any]]) -> None:
        """Restore the state of earlier compactions from a resumed session's messages and its archive."""
        self._load()
        self._conversation.resume(messages)
        self.compression_count = max(self.compression_count, self._conversation.state.count)

    def _load(self) -> None:
        """Load the archive on first use, once per session."""
        if self._loaded or self._shelf is None or not self._session_id:
            return
        self._loaded = True
        entries, state = self._shelf.load(self._session_id)
        known, conversation = self._conversation.archive, self._conversation
        if state and not conversation.state.count:
            try:
                conversation.restore({**state, "archive": {}, "context_length": self._setup.context_length})
            except msgspec.ValidationError:
                _log.warning("midfold: the stored state of this session is unreadable; ignored it")
        conversation.archive = entries | known
        self.compression_count = max(self.compression_count, conversation.state.count)

    def _keep(self, known: set[str]) -> None:
        """Append new originals and the state needed after a restart, such as a cooldown after a failure."""
        if self._shelf is None or not self._session_id:
            return
        new = {handle: kept for handle, kept in self._conversation.archive.items() if handle not in known}
        try:
            self._shelf.keep(self._session_id, new, {**self._conversation.save(), "archive": {}})
        except OSError as error:
            _log.warning(
                "midfold: could not store the originals of this fold, kept them in memory only: %s", error.strerror
            )
