"""Recorded conversations as contexts that a model really had, and the cuts at which they are measured.

A conversation is split where a compaction was recorded (`_meta.compact_boundary`, `_meta.compact_summary`, or the
sentence with which a coding agent opens such a message); the recorded summary opens the next session. System prompts,
thinking and `_meta` are omitted: no compactor sees them, and no budget counts them. The project comes from the file
(`source`, and the repository of an `instance_id`), or else is the file's folder.

A cut is before an assistant message where every call is answered: one per `SPACING` messages with enough past and
future, at most `MOST`, evenly spread. A recorded compaction can be a cut, too. A hash of the conversation's name
assigns it to the tuning or the reporting half.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec

from midfold.errors import TranscriptError
from midfold.lab.message_text import size, total
from midfold.transcript import jsonio
from midfold.transcript.document import (
    DIALECTS,
    Document,
    LogWithoutMessages,
    meta_of,
    read_many,
    recording_of,
    require_messages,
)
from midfold.transcript.message import Message, Thinking, ToolCall, ToolResult, Transcript, Usage, read_usage
from midfold.transcript.splice import message_value

CONTINUED = "This session is being continued from a previous conversation"


class RecordedSession(msgspec.Struct, frozen=True):
    """A continuous context of a conversation, without its system prompt."""

    conversation: str
    """Name of the conversation in errors and figures: its id, or its file and number."""
    number: int
    """Number of the session in its conversation."""
    project: str
    dialect: str
    messages: Transcript
    human: tuple[bool, ...]
    """Flag per message: written by a person."""
    summary: Message | None = None
    """The agent's own summary in place of the first messages, if two sessions are joined."""
    times: tuple[float | None, ...] = ()
    """Time of each message in seconds since 1970; None if unknown."""
    usage: tuple[Usage | None, ...] = ()
    """Usage that the provider reported with each message."""
    model: str = ""
    """Model of a client's log; empty for other transcripts."""

    def values(self, end: int) -> list[Any]:
        """Return the first `end` messages as plain dicts of the dialect, which a compactor may modify."""
        kind = DIALECTS[self.dialect]
        return [jsonio.decode(jsonio.encode(message_value(message, kind))) for message in self.messages[:end]]


SessionSource = str | Path | Document | RecordedSession


def load_sessions(sources: Iterable[SessionSource], tell: Callable[[str], None] | None = None) -> list[RecordedSession]:
    """Load the sessions of transcript files or documents; errors name the file, and the line if known.

    `tell` receives a message for each log that is empty (and skipped) or has unreadable lines.
    """
    found: list[RecordedSession] = []
    for source in sources:
        if isinstance(source, RecordedSession):
            found.append(source)
        else:
            found += sessions_of(source) if isinstance(source, Document) else _load_one(Path(source), tell)
    return found


def _load_one(path: Path, tell: Callable[[str], None] | None) -> list[RecordedSession]:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise TranscriptError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    try:
        documents = read_many(data, name=str(path))
    except LogWithoutMessages as error:
        if tell is None:
            raise
        tell(str(error))
        return []
    require_messages(documents, str(path))
    for document in documents:
        if tell is not None and document.log is not None and document.log.damaged:
            tell(f"{path}: {document.log.damage}")
    found = []
    for number, document in enumerate(documents, 1):
        name = str(path) if len(documents) == 1 else f"{path}, conversation {number}"
        found += sessions_of(document, name=name, project=str(path.resolve().parent))
    return found


def sessions_of(document: Document, *, name: str = "conversation", project: str = "") -> list[RecordedSession]:
    """Return the sessions of one conversation."""
    named, recorded = document.setting("id"), recording_of(document)
    conversation = named if isinstance(named, str) and named else recorded.session or name
    where = _project(document) or recorded.folder or project
    sessions: list[RecordedSession] = []
    messages: list[Message] = []
    human: list[bool] = []
    times: list[float | None] = []
    usage: list[Usage | None] = []
    model = document.log.model if document.log is not None else ""

    def finish() -> None:
        if messages:
            made = (tuple(messages), tuple(human), None, tuple(times), tuple(usage), model)
            sessions.append(RecordedSession(conversation, len(sessions) + 1, where, document.dialect.name, *made))
            for kept in (messages, human, times, usage):
                kept.clear()

    for place, message in enumerate(document.messages):
        meta = meta_of(message)
        if _is_compaction(message, meta):
            finish()
        kept = _strip(message, document)
        if kept is not None:
            messages.append(kept)
            human.append(_is_human(kept, meta))
            times.append(recorded.seconds(place))
            turn = recorded.turns.get(place)
            usage.append(read_usage(turn.usage) if turn is not None else None)
    finish()
    return sessions


def _project(document: Document) -> str:
    source, meta = document.setting("source"), document.setting("meta")
    instance = meta.get("instance_id") if isinstance(meta, Mapping) else None
    repository = instance.rpartition("-")[0] if isinstance(instance, str) else ""
    return "/".join(part for part in (source, repository) if isinstance(part, str) and part)


def _is_compaction(message: Message, meta: Mapping[str, Any]) -> bool:
    if meta.get("compact_boundary") or meta.get("compact_summary"):
        return True
    return message.role == "user" and message.text.startswith(CONTINUED)


def _is_human(message: Message, meta: Mapping[str, Any]) -> bool:
    if message.role != "user" or any(isinstance(part, ToolResult) for part in message.parts):
        return False
    return not (meta.get("is_meta") or meta.get("synthetic") or _is_compaction(message, meta))


def _strip(message: Message, document: Document) -> Message | None:
    """Return a message as compactors see it, or None if nothing of it is measured."""
    if message.role == "system":
        return None
    parts = tuple(part for part in message.parts if not isinstance(part, Thinking))
    if not parts:
        return None
    value = message_value(message.with_parts(parts), document.dialect)
    if isinstance(value, Mapping):
        value = {key: inner for key, inner in value.items() if key != "_meta"}
    return Message.over(value, document.dialect.read)


LEAST_PAST = 8_000
LEAST_FUTURE = 20
LEAST_SUMMARY = 100
"""Minimum tokens of a recorded summary; a shorter one only notes that there was a compaction."""
SPACING = 40
MOST = 4
Split = Literal["all", "train", "held"]
Places = Literal["steps", "compactions"]


class Cut(NamedTuple):
    """A position before a message of a session."""

    session: RecordedSession
    at: int

    @property
    def past(self) -> Transcript:
        return self.session.messages[: self.at]

    @property
    def future(self) -> Transcript:
        return self.session.messages[self.at :]


def cuts_of(session: RecordedSession, *, least_past: int = LEAST_PAST, least_future: int = LEAST_FUTURE) -> list[Cut]:
    """Return the cuts of one session, in order."""
    places = (at for at, message in enumerate(session.messages) if message.role == "assistant")
    allowed = measurable(session, places, least_past, least_future)
    count = min(1 + (allowed[-1] - allowed[0]) // SPACING, MOST) if allowed else 0
    return [Cut(session, at) for at in spread(allowed, count)]


def measurable(session: RecordedSession, places: Iterable[int], least_past: int, least_future: int) -> list[int]:
    """Return the places with enough past and future where every call is answered."""
    messages = session.messages
    before = list(accumulate(map(size, messages), initial=0))
    last = len(messages) - least_future
    return [at for at in places if at <= last and before[at] >= least_past and not _has_calls(messages[at - 1])]


def _has_calls(message: Message) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)


def spread(places: Sequence[int], most: int) -> list[int]:
    """Return at most `most` of the places, evenly spread."""
    count = min(most, len(places))
    return [places[(2 * number + 1) * len(places) // (2 * count)] for number in range(count)]


def in_split(session: RecordedSession, split: Split) -> bool:
    return split == "all" or split == half_of(session.conversation)


def half_of(conversation: str) -> Split:
    """Return the half a conversation belongs to, the same on every machine and in every run."""
    digest = blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "train" if digest[0] % 2 else "held"


def all_cuts(sessions: Sequence[RecordedSession], split: Split = "all", least_past: int = LEAST_PAST) -> list[Cut]:
    """Return the cuts between steps."""
    return [cut for session in sessions if in_split(session, split) for cut in cuts_of(session, least_past=least_past)]


def recorded_cuts(sessions: Sequence[RecordedSession], split: Split = "all", least_past: int = LEAST_PAST) -> list[Cut]:
    """Return the cuts where the agent itself compacted and its summary was recorded."""
    found = []
    for before, after in pairwise(sessions):
        if before.conversation != after.conversation or not in_split(before, split):
            continue
        summary, *rest = after.messages
        if len(rest) >= LEAST_FUTURE and size(summary) >= LEAST_SUMMARY and total(before.messages) >= least_past:
            both = msgspec.structs.replace(
                before,
                messages=(*before.messages, *rest),
                human=(*before.human, *after.human[1:]),
                summary=summary,
            )
            found.append(Cut(both, len(before.messages)))
    return found
