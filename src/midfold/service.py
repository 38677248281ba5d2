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

import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from midfold.engine import ContextEngine
from midfold.errors import StoreError
from midfold.fold.handoff import recognise
from midfold.fold.redact import redact
from midfold.recall import Filters, Hit, search
from midfold.session import Session, memory_of
from midfold.setup import PLAINEST, Setup
from midfold.store import CompactionLease, SqlStore, open_database
from midfold.store.database import CONNECTIONS
from midfold.store.intake import MessageBatch, read_batch, values_of
from midfold.store.leases import TTL
from midfold.store.portable import export_session, import_session
from midfold.store.protocol import Prefix, SessionInfo
from midfold.store.stored_past import StoredPast
from midfold.store.upkeep import Progress, reindex
from midfold.transcript.wrappers import title_of

if TYPE_CHECKING:
    from midfold.config import Config
    from midfold.fold.boundary import Protection
    from midfold.fold.media import MediaReducer
    from midfold.fold.request import Redactor
    from midfold.model import Summarizer


OPENING = 8
"""Messages among which a session's title is looked for."""


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

    def all(self, limit: int = 100) -> list[SessionInfo]:
        """The sessions, those used last first."""
        return self.store.sessions(limit)

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
        past = StoredPast(self.store, session, role=role, since=since, until=until)
        return search(past, query, self.redactor, limit, Filters(role=role or ""))

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


def open_sessions(
    url: str,
    *,
    config: Config | None = None,
    engine: ContextEngine | None = None,
    summarizer: Summarizer | None = None,
    redactor: Redactor | None = None,
    media_reducer: MediaReducer | None = None,
    lease_seconds: float = TTL,
    redacts: bool | None = None,
    connections: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Sessions:
    """The sessions in `sqlite:///path.db`, `postgresql://...` or `memory:`; a new store is made if there is none.

    Without a `summarizer` summaries are made locally; `media_reducer` is that of `compact`. `lease_seconds` is how long
    a crashed compaction can block the next one. `redacts` (default: `store.redact` of the settings) redacts messages
    before they are stored: what is unfolded then is no longer exactly what was said. Any number of threads may use the
    sessions; they share `connections` (default: `store.connections`).
    """
    if redacts is None:
        redacts = config is not None and config.store.redact
    if connections is None:
        connections = CONNECTIONS if config is None else config.store.connections
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
