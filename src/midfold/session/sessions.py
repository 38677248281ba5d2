"""Sessions that last: `midfold.open(url)`, then append, view, compact.

    with midfold.open("sqlite:///sessions.db") as sessions:
        session = sessions.session("alice", model="claude-opus-4-6")
        session.append(messages)
        session.observe(response.usage)
        if session.should_compact():
            session.compact()
        client.create(messages=session.view().messages, ...)

Every call is a transaction of its own, and everything a session knows is in the store: another process, or another
machine, may make the next call.
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
from midfold.session.setup import PLAINEST, Setup
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
"""Messages among which a session's title is looked for."""
PIECE_BYTES = 8 * 1024 * 1024
"""A history is stored in pieces, so that others who use the store need not wait for a large one."""


def project_prefix(folder: Path) -> str:
    """How the names of a project's sessions begin: no key of a gateway can be called so."""
    whole = folder.resolve()
    word = re.sub(r"[^A-Za-z0-9_.-]+", "-", whole.name)[:40] or "root"
    return f"project:{word}-{sha256(str(whole).encode('utf-8', 'surrogateescape')).hexdigest()[:10]}/"


class ImportedLog(NamedTuple):
    """What became of a log: where it is kept, how many messages are new and how many there are, damaged lines."""

    session: str
    added: int
    messages: int
    damage: str
    branched: bool = False
    waits: bool = False
    """Whether its last message is not in yet."""


class Sessions:
    """The sessions of one store."""

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
        """The leases themselves, for hosts that keep their messages elsewhere."""
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
        """One session by its name; it comes into being with its first message.

        Without `system` and `tools` it has those that were last stored with it. With `owner`, handoffs in its messages
        are believed only if a session `owner/...` has them; the empty one is that of names without a slash. More than
        `most_messages` are folded, whatever their size; 0: any number is fine. With `leaves_room` a fold is made deeper
        where it would soon be followed by another.
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
        """The sessions whose names begin with `under`, those used last first."""
        return self.store.sessions(limit, under=under)

    def title(self, info: SessionInfo) -> str:
        """What a session is about: the first words that a person typed in it."""
        opening = (row.message for row in self.store.history(info, 0, min(OPENING, info.count)))
        return title_of((message for message in opening if recognise(message) is None), self.redactor)

    def host_state(self, name: str) -> dict[str, Any]:
        """What a host keeps with a session, in plain JSON; empty where it has kept nothing."""
        known = self.store.info(name)
        return {} if known is None else memory_of(known).host

    def set_host_state(self, name: str, state: dict[str, Any]) -> bool:
        """Says whether it is kept: not before the first message, nor while a compaction is being written."""
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
        """Messages of all sessions, or of one, folded or not; `role`, `since` and `until` (milliseconds) filter.

        A hit is a call with its result, or an ask with its answer. Those with most of the words come first; what is "in
        quotes" must occur if it does anywhere, `beginning*` is a beginning. Hits with all of the words say so
        (`has_every_word`).
        """
        past = StoredSource(self.store, session, role=role, since=since, until=until)
        return search(past, query, self.redactor, limit, Filters(role=role or ""))

    def recall(self, name: str | None = None, *, under: str = "") -> Recall:
        """The tools with which a model searches and unfolds a session, or all whose names begin with `under`.

        An answer takes what the window bears that this session, or the newest one, was folded for: who asks is nearly
        always the client whose sessions these are.
        """
        asked = name or next((info.name for info in self.all(1, under=under)), None)
        bounds = AnswerBounds() if asked is None else self._bounds(asked)
        past = StoredSource(self.store, name, sees=lambda one: one.startswith(under))
        return Recall(past, self.redactor, bounds=bounds, clock=time.monotonic)

    def _bounds(self, name: str) -> AnswerBounds:
        folds = self.store.records(name)
        threshold = folds[-1].receipt.threshold_tokens if folds else 0
        return AnswerBounds.of(threshold or self.session(name).setup.budget.threshold_tokens)

    def find_handle(self, handle: str, *, under: str = "") -> str:
        """The newest session that has a handle, of those whose names begin with `under`."""
        return find_handle(self.store, handle, under=under)

    def keep_log(
        self,
        document: Document,
        name: str,
        *,
        waits: bool = False,
        report: Callable[[int, int], None] | None = None,
    ) -> ImportedLog:
        """Brings what a log holds into the store, under a name: what is there already stays as it is.

        A last message that may still grow `waits`. `report` is told how many messages are in, and of how many.
        """
        batch = self.given(document)
        batch = batch._replace(entries=batch.entries[: len(batch.entries) - waits])
        known = self.find_prefix(batch, under=name) if batch.entries else None
        if known is not None and known.session != name and not known.session.startswith(f"{name}~"):
            known = None  # another session, whose name merely begins like this one
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
        """Messages read and hashed, for several questions about the same ones: `find_prefix`, `Session.sync`."""
        redactor = self.redactor if self.redacts else None
        return read_batch(messages, dialect=dialect, otherwise=lambda: PLAINEST, redactor=redactor)

    def find_prefix(
        self, messages: Any, *, dialect: str | None = None, least: int = 1, under: str = ""
    ) -> Prefix | None:
        """The session that has the longest beginning of this history: for clients that do not say who they are.

        It shares at least the first `least` messages, and its name begins with `under`. `sync` there adds what is new;
        where the session goes on otherwise, it makes a branch.
        """
        entries = self.given(messages, dialect=dialect).entries
        return self.store.find_prefix(entries, least=least, under=under)

    def export(self, name: str) -> Iterator[bytes]:
        """A session as JSON lines: its messages byte for byte, its compactions, its state."""
        return export_session(self.store, name)

    def load(self, lines: Iterator[bytes] | Sequence[bytes], *, name: str | None = None) -> str:
        """A session from what `export` wrote, under its own name or another; gives the name."""
        return import_session(self.store, lines, name, redactor=self.redactor if self.redacts else None)

    def delete(self, name: str) -> None:
        """The session, and every body that no other session refers to. There is no way back."""
        self.store.delete(name)

    def prune(self, older_than: float, *, dry_run: bool = False) -> list[str]:
        """Deletes the sessions that were not used for so many seconds; says which."""
        if older_than < 0:
            raise StoreError(f"sessions cannot be older than {older_than} seconds")
        return self.store.prune(int(older_than * 1000), dry_run=dry_run)

    def check(self, *, deep: bool = False) -> list[str]:
        """What is wrong with the store; nothing if all is well."""
        return list(self.store.check(deep=deep))

    def reindex(self, progress: Progress | None = None) -> int:
        """Makes the search index anew, while the store is used; says how many messages it holds."""
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
    """Where the pieces end in which a history is stored."""
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
    """The sessions in `sqlite:///path.db`, `postgresql://...` or `memory:`; a new store is made if there is none.

    Without a `url` those of `store.url` of the settings, else of the user's own database, where commands keep theirs.
    Without a `summarizer` summaries are made locally; `media_reducer` is that of `compact`. `lease_seconds` (default:
    `store.lease_seconds`) is how long a crashed compaction can block the next one. `redacts` (default: `store.redact`)
    redacts messages before they are stored: what is unfolded then is no longer exactly what was said. Any number of
    threads may use the sessions; they share `connections` (default: `store.connections`).
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
