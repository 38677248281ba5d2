"""One session of a store: append -> pressure -> lease -> drive -> commit -> view.

Rules of this file:
1. The store is the truth. What is kept here is a copy of the view that is brought up to date, by what is new, at every
   call.
2. A compaction plans without a lease, so that one with nothing to do costs no write. It takes the lease before it asks
   for a summary, and commits under it.
3. Who does not get the lease, or loses it, leaves everything as it was; the receipt says so.
4. What was learnt (state, calibration, cooldown) is written with the compaction that changed it, or when usage is
   reported.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import msgspec

from midfold.cache import PromptCacheHint, system_and_3
from midfold.core.budget import Pressure
from midfold.core.compaction import CompactionRequest, Outcome
from midfold.core.message import Message, Transcript
from midfold.core.redact import redact
from midfold.core.report import Receipt, Status
from midfold.core.tokens import Count
from midfold.engines.assemble import with_note
from midfold.engines.job import Job
from midfold.errors import LeaseLost, StoreConflict
from midfold.host import EngineHost
from midfold.live import Kept, Live, commit_of
from midfold.store import SqlStore
from midfold.store.bodies import Entry
from midfold.store.leases import held
from midfold.store.protocol import Item, Record, SessionInfo
from midfold.store.ranking import Hit, search
from midfold.store.views import View
from midfold.summarize import begin, local_summarizer, resume
from midfold.wire import Document, read
from midfold.wire.dialect import Dialect
from midfold.wire.sniff import DIALECTS
from midfold.wire.splice import message_value

COOLDOWN = 60.0
"""Seconds after a failed summary in which no automatic compaction asks for another one."""
IN_FLIGHT = "a compaction of this session is already in flight"


class Compacted(NamedTuple):
    """What became of a compaction. `session` is the one to go on with: a child, if one was begun."""

    receipt: Receipt
    session: Session

    @property
    def changed(self) -> bool:
        return self.receipt.status in ("compacted", "pruned")


class Sync(NamedTuple):
    """Where a client's history is now; `session` is the one to go on with: a branch, if the history was changed."""

    session: Session
    common: int
    added: int
    branched: bool
    ahead: int


class Session:
    """A conversation in a store. Made by `Sessions.session`."""

    def __init__(
        self,
        store: SqlStore,
        name: str,
        host: EngineHost,
        *,
        dialect: str | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self.store = store
        self.name = name
        self.host = host
        self.clock = clock
        self._dialect = dialect
        self._kept = Kept(store, name, host)

    # What was said

    def append(self, messages: Any, *, key: str | None = None) -> range:
        """Adds exactly these messages and gives their positions. A `key` that was used before adds nothing again."""
        document = self._read(messages)
        entries = [Entry(message, document.dialect) for message in document.messages]
        name = document.dialect.name
        return self.store.append(self.name, entries, dialect=name, model=self.host.model, key=key).positions

    def sync(self, messages: Any) -> Sync:
        """A client's whole history, or the view it was given and what came after: adds what is new."""
        document = self._read(messages)
        entries = [Entry(message, document.dialect) for message in document.messages]
        done = self.store.sync(self.name, entries, dialect=document.dialect.name, model=self.host.model)
        session = self if done.session == self.name else self._other(done.session)
        return Sync(session, done.common, done.added, done.branched, done.ahead)

    def _read(self, messages: Any) -> Document:
        values = [messages] if isinstance(messages, dict) and "role" in messages else messages
        if isinstance(values, list | tuple) and values and all(isinstance(item, Message) for item in values):
            return _of_messages(tuple(values), self._known_dialect(self._kept.view()))
        return read(values, dialect=self._dialect)

    def _other(self, name: str) -> Session:
        return Session(self.store, name, self.host.like(), dialect=self._dialect, clock=self.clock)

    # What there is

    @property
    def info(self) -> SessionInfo | None:
        """The session's row; None before its first message."""
        return self.store.info(self.name)

    def history(self, start: int = 0, stop: int | None = None) -> View:
        """What was said, all of it, compacted or not."""
        info = self.store.must(self.name)
        rows = self.store.history(self.name, start, stop)
        return View(tuple(Item(row.message, row.position) for row in rows), DIALECTS[info.dialect])

    def view(self, at: int | None = None) -> View:
        """What the model sees now; `at`: what it saw right after that compaction, 0 for the uncompacted history."""
        if at is not None:
            info = self.store.must(self.name)
            noted = any(record.noted for record in self.receipts() if record.seq == at)
            return View(self.store.view(info, at), DIALECTS[info.dialect], self._system(noted))
        live = self._kept.view()
        if live is None:
            return View((), DIALECTS[self._dialect or "openai-chat"], self._system(False))
        return View(live.items, DIALECTS[live.info.dialect], self._system(live.memory.noted))

    def cache_hints(self) -> tuple[PromptCacheHint, ...]:
        """Where the stable prefixes of the view end."""
        view = self.view()
        return system_and_3(view.transcript, view.prompt)

    def search(self, query: str, limit: int = 20, **filters: Any) -> list[Hit]:
        """Messages of this session, folded or not, the best hits first."""
        redactor = self.host.redactor or redact
        return search(self.store, query, redactor, limit, name=self.name, **filters)

    def unfold(self, handle: str) -> list[Any]:
        """The originals behind a handle of this session, as plain values."""
        dialect = DIALECTS[self.store.must(self.name).dialect]
        return [message_value(message, dialect) for message in self.store.unfold(self.name, handle)]

    def unfold_bytes(self, handle: str) -> list[bytes]:
        """The same, byte for byte."""
        return [bytes(message.wire) for message in self.store.unfold(self.name, handle)]

    def receipts(self) -> list[Record]:
        """Every compaction there was, undone ones too."""
        return self.store.records(self.name)

    # How large it is

    def observe(self, usage: Any) -> None:
        """What the provider counted for the view as it is now."""
        live = self._kept.measured()
        before = self.host.calibration
        self.host.update_from_response(usage)
        if live is not None and self.host.calibration != before:
            self._kept.remember(live)

    @property
    def size(self) -> Count:
        """The size of the next request, and what that number rests on."""
        self._kept.measured()
        return self.host.size

    def pressure(self) -> Pressure:
        """How urgent a compaction is; costs what is new."""
        self._kept.measured()
        return self.host.pressure()

    def should_compact(self) -> bool:
        return self.pressure() is Pressure.HARD

    # Compaction

    def compact(
        self,
        *,
        focus: str | None = None,
        force: bool = False,
        keep_last_exchanges: int | None = None,
        target_tokens: int | None = None,
        prompt_tokens: int | None = None,
        persistence: Literal["in_place", "child"] = "in_place",
        child: str | None = None,
    ) -> Compacted:
        """Folds the view if it has reached its threshold, or if asked to.

        In place, the session goes on under its name. As a child, it ends, and a new session begins with the view; it is
        called `child`, or after its parent. `prompt_tokens` is the size of the view where the caller knows it better.
        """
        asked = {"focus": focus, "force": force, "keep_last_exchanges": keep_last_exchanges}
        live = self._kept.measured()
        request = self._request(live, prompt_tokens, target_tokens=target_tokens, **asked)
        if live is None:
            return Compacted(_unchanged(request, "the session has no messages"), self)
        if live.memory.cooldown > self.clock() * 1000 and not _asked_for(request):
            return Compacted(
                _unchanged(request, "the last summary failed a moment ago; a forced compaction tries again"), self
            )
        flow = self.host.engine.compress(request)
        first = begin(flow)
        if isinstance(first, Outcome) and not first.changed:
            return Compacted(self._left(live, first), self)
        name = (child or f"{self.name}+{live.info.compactions + 1}") if persistence == "child" else None
        with held(self.store.leases, self.name, ttl=self.store.leases.ttl) as got:
            if got is None:
                return Compacted(_unchanged(request, IN_FLIGHT, "already_in_flight"), self)
            if self.store.must(self.name).compaction != live.info.compaction:
                return Compacted(_unchanged(request, f"{IN_FLIGHT}: it has just ended", "already_in_flight"), self)
            lease, renewal = got
            guard = self.host.guard(force=_asked_for(request))
            outcome = first if isinstance(first, Outcome) else resume(flow, first, guard)
            outcome = msgspec.structs.replace(outcome, state=guard.settled(outcome.state))
            if not outcome.changed:
                return Compacted(self._left(live, outcome), self)
            if renewal.lost:
                return Compacted(_unchanged(request, "the lease was lost while the summary was made", "aborted"), self)
            new = commit_of(live, request, outcome, self.host.calibration, name)
            try:
                self.store.commit(self.name, lease, new)
            except (LeaseLost, StoreConflict) as late:
                return Compacted(_unchanged(request, str(late), "aborted"), self)
        self._kept.forget()
        return Compacted(new.receipt, self if name is None else self._other(name))

    def preview(self, **asked: Any) -> Receipt:
        """The receipt a compaction would have, with a summary made locally; nothing is changed, no model is asked."""
        flow = self.host.engine.compress(self._request(self._kept.measured(), **asked))
        first = begin(flow)
        return (first if isinstance(first, Outcome) else resume(flow, first, local_summarizer)).receipt

    def undo(self) -> Record:
        """Takes the last compaction back: the view is what it was, with everything that was said since."""
        record = self.store.undo(self.name)
        self._kept.forget()
        return record

    def delete(self) -> None:
        """The session and everything only it refers to. There is no way back."""
        self.store.delete(self.name)
        self._kept.forget()

    def export(self) -> bytes:
        """The session as JSON lines, for `Sessions.load`."""
        from midfold.store.portable import exported

        return b"".join(line + b"\n" for line in exported(self.store, self.name))

    # Between the store and the engine

    def _request(self, live: Live | None, prompt_tokens: int | None = None, **asked: Any) -> CompactionRequest:
        messages = () if live is None else live.messages
        document = _of_messages(messages, self._known_dialect(live))
        size = self.host.size
        if prompt_tokens is None and live is not None and size.basis != "estimated":
            prompt_tokens = size.tokens
        return self.host.request(document, prompt_tokens=prompt_tokens, **asked)

    def _known_dialect(self, live: Live | None) -> type[Dialect]:
        return DIALECTS[live.info.dialect if live else self._dialect or "openai-chat"]

    def _system(self, noted: bool) -> Message | None:
        """The system prompt beside the messages, with the note that the compactions in force have left."""
        if self.host.system is None:
            return None
        info = self.info
        system = Message.over(self.host.system, DIALECTS[info.dialect if info else "openai-chat"].read_system)
        return with_note(system) if noted else system

    def _left(self, live: Live, outcome: Outcome) -> Receipt:
        """Nothing was folded. Strikes and cooldowns are remembered; a plain no-op writes nothing."""
        cooldown = int((self.clock() + COOLDOWN) * 1000) if outcome.receipt.status == "aborted" else 0
        if outcome.state.ineffective != live.memory.state.ineffective or cooldown:
            state = msgspec.structs.replace(live.memory.state, ineffective=outcome.state.ineffective)
            self.host.state = state
            self._kept.remember(live, cooldown=cooldown)
        return outcome.receipt


def _of_messages(messages: Transcript, dialect: type[Dialect]) -> Document:
    """Messages that are read already, by the dialect that has read them, or by the session's if we made them."""
    readers = {message.key[1] for message in messages}
    known = next((found for found in DIALECTS.values() if found.read in readers), dialect)
    document = Document([], known, ())
    document.messages = messages
    return document


def _asked_for(request: CompactionRequest) -> bool:
    return request.force or request.target_tokens is not None or request.keep_last_exchanges is not None


def _unchanged(request: CompactionRequest, reason: str, status: Status = "unchanged") -> Receipt:
    return msgspec.structs.replace(Job(request).unchanged(reason).receipt, status=status)
