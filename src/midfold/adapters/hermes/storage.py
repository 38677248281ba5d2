"""Sessions of Hermes, and what must outlive its process: the originals of folds, one file of JSON lines per session.

Rules of this file:
1. A session that Hermes splits while compacting goes on; any other session starts with nothing of the one before.
2. Files are only appended to, and only their owner can read them: originals are exact.
3. A session that Hermes split names the one it continues; its originals are found there.
4. A line that cannot be read (a crash, a full disk) costs that line, never the session.
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
    """The archives of all sessions under one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path(self, session_id: str) -> Path:
        """A file name of fixed length that no session id can lead out of the folder."""
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
        """Everything known about a session and those it continues: originals, and the newest state."""
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
    """A line of `Archive.lines`: read as a request body it keeps the exact bytes of its messages."""
    try:
        document = read(line)
    except MidfoldError:
        return {}
    return {str(document.setting("handle")): document.messages}


_log = logging.getLogger("midfold.hermes")


class HermesSessions(HermesUsage):
    """Which session a conversation is of, as Hermes tells it."""

    _session_id = ""
    _shelf: SessionArchives | None = None
    _loaded = False

    def _forget(self) -> None:
        self._conversation.reset()
        self._forget_numbers()

    def on_session_start(self, session_id: str, **context: Any) -> None:
        """A new session, the same one again, or the continuation of one that was just compacted."""
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
                _log.warning("midfold: the continuation of a session was not recorded: %s", error.strerror)

    def carry_over_new_session_context(self, old_session_id: str, new_session_id: str) -> None:
        """Hermes has told `on_session_start` already; what is kept was kept there."""

    def bind_session_state(self, session_db: Any = None, session_id: str = "") -> None:
        if session_id and session_id != self._session_id:
            self.on_session_start(session_id)

    def on_session_end(self, session_id: str, messages: list[dict[str, Any]]) -> None:
        """Everything is on the shelf already. What follows is told by `on_session_start` or `on_session_reset`."""

    def on_session_reset(self) -> None:
        self._forget()
        self._session_id = ""
        self._loaded = False

    def rehydrate(self, messages: list[dict[str, Any]]) -> None:
        """Takes up what the messages of a resumed session, and the shelf, know about earlier compactions."""
        self._load()
        self._conversation.resume(messages)
        self.compression_count = max(self.compression_count, self._conversation.state.count)

    def _load(self) -> None:
        """The shelf is read when something needs it, once per session."""
        if self._loaded or self._shelf is None or not self._session_id:
            return
        self._loaded = True
        entries, state = self._shelf.load(self._session_id)
        known, conversation = self._conversation.archive, self._conversation
        if state and not conversation.state.count:
            try:
                conversation.restore({**state, "archive": {}, "context_length": self._setup.context_length})
            except msgspec.ValidationError:
                _log.warning("midfold: the stored state of this session cannot be read and was left out")
        conversation.archive = entries | known
        self.compression_count = max(self.compression_count, conversation.state.count)

    def _keep(self, known: set[str]) -> None:
        """Originals that are new, and what must be known after a restart: a pause after a failure is part of it."""
        if self._shelf is None or not self._session_id:
            return
        new = {handle: kept for handle, kept in self._conversation.archive.items() if handle not in known}
        try:
            self._shelf.keep(self._session_id, new, {**self._conversation.save(), "archive": {}})
        except OSError as error:
            _log.warning("midfold: the originals of this fold stay in memory only: %s", error.strerror)
