"""Stored sessions: `midfold.open(url)`, then append, view, compact.

    with midfold.open("sqlite:///sessions.db") as sessions:
        session = sessions.session("alice", model="claude-opus-4-6")
        session.append(messages)
        session.observe(response.usage)
        if session.should_compact():
            session.compact()
        client.create(messages=session.view().messages, ...)

Each call is one transaction, and all state of a session is in the store, so another process or machine may make the
next call.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator, Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from midfold.cache.health import observe_recording
from midfold.compaction.handoff import recognise
from midfold.compaction.redact import redact
from midfold.engines import ContextEngine
from midfold.errors import StoreError
from midfold.recall import AnswerBounds, Filters, Hit, Recall, search
from midfold.session.session import Session, memory_of, record_turns
from midfold.session.setup import DEFAULT_DIALECT, Setup
from midfold.store import CompactionLease, SqlStore, open_database
from midfold.store.database import CONNECTIONS
from midfold.store.intake import MessageBatch, read_batch, values_of
from midfold.store.leases import TTL
from midfold.store.portable import export_session, import_session
from midfold.store.protocol import Prefix, SessionInfo
from midfold.store.sqlstore import find_handle
from midfold.store.stored_search import StoredSource
from midfold.store.upkeep import Progress, reindex
from midfold.transcript.document import Document
from midfold.transcript.wrappers import title_of

if TYPE_CHECKING:
    from midfold.compaction.boundary import Protection
    from midfold.compaction.media import MediaReducer
    from midfold.compaction.request import Redactor
    from midfold.config import Config
    from midfold.model import Summarizer


OPENING = 8
"""Number of first messages searched for a session's title."""
PIECE_BYTES = 8 * 1024 * 1024
"""Bytes per transaction when a history is imported, so that other users of the store need not wait for a large one."""


def project_prefix(folder: Path) -> str:
    """Return the prefix of the names of a project's sessions; it is not a valid name of a gateway key."""
    whole = folder.resolve()
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", whole.name)[:40] or "root"
    return f"project:{word}-{sha256(str(whole).encode('utf-8', 'surrogateescape')).hexdigest()[:10]}/"


class ImportedLog(NamedTuple):
    """Result of importing a log: its session, numbers of new and of all messages, and damaged lines."""

    session: str
    added: int
    messages: int
    damage: str
    branched: bool = False
    waits: bool = False
    """True if its last message was left out because it may still grow."""


class Sessions:
    """Sessions of one store."""

    def __init__(
        self,
        store: SqlStore,
        *,
        config: Config | None = None,
        engine: ContextEngine | None = None,
        summarizer: Summarizer | None = None,
        redactor: Redactor | None = None,
        media_reducer: MediaReducer | None = None,
        redacts: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.redacts = redacts
        self.config = config
        self.engine = engine
        self.summarizer = summarizer
        self.redactor = redactor or redact
        self.media_reducer = media_reducer
        self.clock = clock

    @property
    def leases(self) -> CompactionLease:
        """Leases of the store, for hosts that keep their messages elsewhere."""
        return self.store.leases

    def session(
        self,
        name: str,
        *,
        model: str | None = None,
        context_length: int | None = None,
        output_reservation: int | None = None,
        system: Any = None,
        tools: Sequence[Any] = (),
        dialect: str | None = None,
        protection: Protection | None = None,
        owner: str | None = None,
        most_messages: int = 0,
        leaves_room: bool = False,
    ) -> Session:
        """Return the session with this name; it is created with its first message.

        Without `system` and `tools` it uses those last stored with it. With `owner`, handoffs in its messages are
        trusted only if a session `owner/...` has them; an empty owner means names without a slash. More than
        `most_messages` messages are compacted whatever their size; 0 means no limit. With `leaves_room`, a compaction
        goes deeper if another one would soon follow.
        """
        given: Any = name
        if not isinstance(given, str) or not given.strip():
            raise StoreError(f"a session needs a name, found {name!r}")
        known, written = self.store.info(name), None
        if known is not None and system is None and not tools:
            written = self.store.prompt(known)
            system, tools = values_of(written)
        setup = Setup(
            self.engine,
            model=model or (known.model if known else None),
            context_length=context_length,
            output_reservation=output_reservation,
            config=self.config,
            summarizer=self.summarizer,
            redactor=self.redactor,
            media_reducer=self.media_reducer,
            protection=protection,
            system=system,
            tools=tools,
            clock=self.clock,
            most_messages=most_messages,
            leaves_room=leaves_room,
        )
        return Session(self.store, name, setup, dialect=dialect, redacts=self.redacts, written=written, owner=owner)

    def __contains__(self, name: str) -> bool:
        return self.store.info(name) is not None

    def all(self, limit: int = 100, *, under: str = "") -> list[SessionInfo]:
        """Return the sessions whose names start with `under`, most recently used first."""
        return self.store.sessions(limit, under=under)

    def title(self, info: SessionInfo) -> str:
        """Return the title of a session: the first words a person typed."""
        opening = (row.message for row in self.store.history(info, 0, min(OPENING, info.count)))
        return title_of((message for message in opening if recognise(message) is None), self.redactor)

    def host_state(self, name: str) -> dict[str, Any]:
        """Return the host's data stored with a session, as plain JSON; empty if there is none."""
        known = self.store.info(name)
        return {} if known is None else memory_of(known).host

    def set_host_state(self, name: str, state: dict[str, Any]) -> bool:
        """Store the host's data with a session; return whether it was stored.

        It is not before the first message, or if a compaction was committed meanwhile.
        """
        known = self.store.info(name)
        if known is None:
            return False
        memory = msgspec.structs.replace(memory_of(known), host=state)
        return self.store.remember(known, msgspec.json.encode(memory))

    def search(
        self,
        query: str,
        *,
        session: str | None = None,
        limit: int = 20,
        role: str | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[Hit]:
        """Search the messages of all sessions, or of one, compacted or not.

        `role`, `since` and `until` (milliseconds) filter. A hit is a tool call with its result, or a user message with
        its answer. Hits with most of the words come first; a phrase "in quotes" must occur if it occurs anywhere, and
        `start*` matches a prefix. Hits with all words have `has_every_word` set.
        """
        past = StoredSource(self.store, session, role=role, since=since, until=until)
        return search(past, query, self.redactor, limit, Filters(role=role or ""))

    def recall(self, name: str | None = None, *, under: str = "") -> Recall:
        """Return the recall tools for one session, or for all whose names start with `under`.

        Answers are limited by the context window that this session, or the newest one, was compacted for, since the
        caller is usually the client of these sessions.
        """
        reader = name or next((info.name for info in self.all(1, under=under)), None)
        bounds = AnswerBounds() if reader is None else self._bounds(reader)
        past = StoredSource(self.store, name, sees=lambda one: one.startswith(under))
        return Recall(past, self.redactor, bounds=bounds, clock=time.monotonic)

    def _bounds(self, name: str) -> AnswerBounds:
        folds = self.store.records(name)
        threshold = folds[-1].receipt.threshold_tokens if folds else 0
        return AnswerBounds.of(threshold or self.session(name).setup.budget.threshold_tokens)

    def find_handle(self, handle: str, *, under: str = "") -> str:
        """Return the newest session with a handle, among those whose names start with `under`."""
        return find_handle(self.store, handle, under=under)

    def keep_log(
        self,
        document: Document,
        name: str,
        *,
        waits: bool = False,
        report: Callable[[int, int], None] | None = None,
    ) -> ImportedLog:
        """Store the messages of a log under a name; messages already stored are unchanged.

        `waits`: leave out the last message, which may still grow. `report` is called with the number of stored messages
        and the total.
        """
        batch = self.given(document)
        batch = batch._replace(entries=batch.entries[: len(batch.entries) - waits])
        known = self.find_prefix(batch, under=name) if batch.entries else None
        if known is not None and known.session != name and not known.session.startswith(f"{name}~"):
            known = None  # another session with the same prefix
        session = self.session(known.session if known else name, model=document.model or None)
        added, branched = 0, False
        for end in _ends(batch, known.shared if known else 0):
            done = session.sync(batch._replace(entries=batch.entries[:end]))
            session, added, branched = done.session, added + done.added, branched or done.branched
            if report is not None:
                report(end, len(batch.entries))
        if document.log is not None and batch.entries:
            settings = session.setup.config
            turns = observe_recording(document, settings.models, settings.prompt_caching.cache_ttl)
            record_turns(session, [turn for turn in turns if turn.place < len(batch.entries)])
        damage = document.log.damage if document.log is not None else ""
        return ImportedLog(session.name, added, len(batch.entries), damage, branched, waits)

    def given(self, messages: Any, *, dialect: str | None = None) -> MessageBatch:
        """Read and hash messages once, for use by both `find_prefix` and `Session.sync`."""
        redactor = self.redactor if self.redacts else None
        return read_batch(messages, dialect=dialect, otherwise=lambda: DEFAULT_DIALECT, redactor=redactor)

    def find_prefix(
        self, messages: Any, *, dialect: str | None = None, least: int = 1, under: str = ""
    ) -> Prefix | None:
        """Return the session with the longest prefix of this history, for clients that send no session id.

        It shares at least the first `least` messages, and its name starts with `under`. `sync` there adds the new
        messages, or makes a branch if the session continued differently.
        """
        entries = self.given(messages, dialect=dialect).entries
        return self.store.find_prefix(entries, least=least, under=under)

    def export(self, name: str) -> Iterator[bytes]:
        """Return a session as JSON lines: exact messages, compactions and state."""
        return export_session(self.store, name)

    def load(self, lines: Iterator[bytes] | Sequence[bytes], *, name: str | None = None) -> str:
        """Import a session written by `export`, under its own name or another; return the name."""
        return import_session(self.store, lines, name, redactor=self.redactor if self.redacts else None)

    def delete(self, name: str) -> None:
        """Delete the session and every body that no other session refers to. This cannot be undone."""
        self.store.delete(name)

    def prune(self, older_than: float, *, dry_run: bool = False) -> list[str]:
        """Delete the sessions not used for `older_than` seconds; return their names."""
        if older_than < 0:
            raise StoreError(f"older_than must not be negative, found {older_than} seconds")
        return self.store.prune(int(older_than * 1000), dry_run=dry_run)

    def check(self, *, deep: bool = False) -> list[str]:
        """Return the problems of the store; empty if it is intact."""
        return list(self.store.check(deep=deep))

    def reindex(self, progress: Progress | None = None) -> int:
        """Rebuild the search index while the store is in use; return the number of messages indexed."""
        return reindex(self.store.database, progress)

    def backup(self, target: str) -> None:
        self.store.database.backup(target)

    def close(self) -> None:
        self.store.close()

    def __enter__(self) -> Sessions:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _ends(batch: MessageBatch, start: int) -> Iterator[int]:
    """Yield the ends of the pieces in which a history is stored."""
    size = 0
    for place in range(start, len(batch.entries)):
        size += len(batch.entries[place].data)
        if size >= PIECE_BYTES and place + 1 < len(batch.entries):
            yield place + 1
            size = 0
    if batch.entries:
        yield len(batch.entries)


def open_sessions(
    url: str | None = None,
    *,
    config: Config | None = None,
    engine: ContextEngine | None = None,
    summarizer: Summarizer | None = None,
    redactor: Redactor | None = None,
    media_reducer: MediaReducer | None = None,
    lease_seconds: float | None = None,
    redacts: bool | None = None,
    connections: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Sessions:
    """Open the sessions in `sqlite:///path.db`, `postgresql://...` or `memory:`, creating a missing store.

    Without a `url`, use `store.url` of the settings, else the user's own database, which the commands use too. Without
    a `summarizer`, summaries are built in; `media_reducer` is the one of `compact`. `lease_seconds` (default:
    `store.lease_seconds`) is how long a crashed compaction can block the next one. `redacts` (default: `store.redact`)
    redacts messages before they are stored, so unfolded originals are no longer exact. Any number of threads may use
    the sessions; they share `connections` (default: `store.connections`).
    """
    settings = None if config is None else config.store
    if url is None:
        from midfold.config import Config
        from midfold.config.load import store_url

        url = store_url(config or Config(), os.environ)
    if redacts is None:
        redacts = settings is not None and settings.redact
    if connections is None:
        connections = CONNECTIONS if settings is None else settings.connections
    if lease_seconds is None:
        lease_seconds = TTL if settings is None else settings.lease_seconds
    store = SqlStore(open_database(url, connections=connections, clock=clock), ttl=lease_seconds)
    return Sessions(
        store,
        config=config,
        engine=engine,
        summarizer=summarizer,
        redactor=redactor,
        media_reducer=media_reducer,
        redacts=redacts,
        clock=clock,
    )
