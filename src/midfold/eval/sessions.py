"""Conversations as contexts that some model really had.

Rules of this file:
1. A conversation is split where a compaction was recorded (`_meta.compact_boundary`, `_meta.compact_summary`, or the
   sentence a coding agent opens such a message with); the recorded summary opens the next session.
2. System prompts and thinking are left out, and so is `_meta`: no compactor sees them, and no budget counts them.
3. A project is what the file says (`source`, and the repository of an `instance_id`), else the folder of the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from midfold.errors import TranscriptError
from midfold.transcript import jsonio
from midfold.transcript.document import DIALECTS, Document, read_many
from midfold.transcript.message import Message, Thinking, ToolResult, Transcript, plain
from midfold.transcript.splice import message_value

CONTINUED = "This session is being continued from a previous conversation"


class Session(msgspec.Struct, frozen=True):
    """One uninterrupted context of a conversation, without its system prompt."""

    conversation: str
    """What errors and figures call the conversation: its id, or its file and number."""
    number: int
    """Which session of the conversation it is."""
    project: str
    dialect: str
    messages: Transcript
    human: tuple[bool, ...]
    """Which messages a person wrote."""
    summary: Message | None = None
    """What the agent itself put in place of the first messages, where two sessions are seen as one."""
    times: tuple[float | None, ...] = ()
    """When each message was recorded, in seconds since 1970; None where nobody knows."""

    def values(self, end: int) -> list[Any]:
        """The first messages as plain dicts of the dialect, for a compactor to read and change."""
        kind = DIALECTS[self.dialect]
        return [jsonio.decode(jsonio.encode(message_value(message, kind))) for message in self.messages[:end]]


def load(files: Iterable[str | Path]) -> list[Session]:
    """The sessions of transcript files. An error names the file, and the line where there is one."""
    return [session for file in files for session in _load_one(Path(file))]


def _load_one(path: Path) -> list[Session]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TranscriptError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    documents = read_many(data, name=str(path))
    if not any(message.role != "other" for document in documents for message in document.messages):
        raise TranscriptError(f"{path} is not a transcript: nothing in it is a message with a role")
    found = []
    for number, document in enumerate(documents, 1):
        name = str(path) if len(documents) == 1 else f"{path}, conversation {number}"
        found += sessions_of(document, name=name, project=str(path.resolve().parent))
    return found


def sessions_of(document: Document, *, name: str = "conversation", project: str = "") -> list[Session]:
    """The sessions of one conversation."""
    named = document.setting("id")
    conversation = named if isinstance(named, str) and named else name
    where = _project(document) or project
    sessions: list[Session] = []
    messages: list[Message] = []
    human: list[bool] = []
    times: list[float | None] = []

    def finish() -> None:
        if messages:
            made = (tuple(messages), tuple(human), None, tuple(times))
            sessions.append(Session(conversation, len(sessions) + 1, where, document.dialect.name, *made))
            for kept in (messages, human, times):
                kept.clear()

    for message in document.messages:
        meta = _meta(message)
        if _is_compaction(message, meta):
            finish()
        kept = _measured(message, document)
        if kept is not None:
            messages.append(kept)
            human.append(_is_human(kept, meta))
            times.append(_time(meta))
    finish()
    return sessions


def _project(document: Document) -> str:
    source, meta = document.setting("source"), document.setting("meta")
    instance = meta.get("instance_id") if isinstance(meta, Mapping) else None
    repository = instance.rpartition("-")[0] if isinstance(instance, str) else ""
    return "/".join(part for part in (source, repository) if isinstance(part, str) and part)


def _meta(message: Message) -> Mapping[str, Any]:
    try:
        value = plain(message.wire)
    except jsonio.NotJSON:
        return {}
    meta = value.get("_meta") if isinstance(value, Mapping) else None
    return meta if isinstance(meta, Mapping) else {}


def _time(meta: Mapping[str, Any]) -> float | None:
    stamp = meta.get("ts")
    try:
        return datetime.fromisoformat(stamp).timestamp() if isinstance(stamp, str) else None
    except ValueError:
        return None


def _is_compaction(message: Message, meta: Mapping[str, Any]) -> bool:
    if meta.get("compact_boundary") or meta.get("compact_summary"):
        return True
    return message.role == "user" and message.text.startswith(CONTINUED)


def _is_human(message: Message, meta: Mapping[str, Any]) -> bool:
    if message.role != "user" or any(isinstance(part, ToolResult) for part in message.parts):
        return False
    return not (meta.get("is_meta") or meta.get("synthetic") or _is_compaction(message, meta))


def _measured(message: Message, document: Document) -> Message | None:
    """A message as compactors get it: None if nothing of it is measured."""
    if message.role == "system":
        return None
    parts = tuple(part for part in message.parts if not isinstance(part, Thinking))
    if not parts:
        return None
    value = message_value(message.with_parts(parts), document.dialect)
    if isinstance(value, Mapping):
        value = {key: inner for key, inner in value.items() if key != "_meta"}
    return Message.over(value, document.dialect.read)
