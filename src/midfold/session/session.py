"""One stored session: append, decide, acquire the lease, summarize, commit, view.

1. The store is authoritative. The copy of the view kept here is updated incrementally at every call.
2. A compaction is planned without a lease, so that one with nothing to do costs no write. The lease is acquired before
   the summary is requested, and the commit checks it.
3. Without the lease, or if it is lost, nothing changes and the receipt says so.
4. Memory (state, calibration, cooldown) is written with the compaction that changed it, or when usage is reported.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Literal, NamedTuple, Self, Unpack

import msgspec
from msgspec import Raw

from midfold.api import hints_of
from midfold.cache import PromptCacheHint
from midfold.cache.health import Health, RecordedTurn
from midfold.compaction.receipt import Receipt
from midfold.compaction.redact import redact
from midfold.compaction.request import CompactionRequest, CompactionState, Outcome
from midfold.decide import decide
from midfold.engines.guard import carry_out
from midfold.errors import LeaseLost, StoreConflict, StoreDamaged, StoreError
from midfold.model import drive, local_summarizer
from midfold.model.endpoint import UNNAMED, Endpoint
from midfold.model.run import clear_failures, run, with_cooldown_of
from midfold.recall import PAGE, AnswerBounds, Filters, Hit, Recall, search
from midfold.session.conversation import (
    ChatPartner,
    CompactArguments,
    Compacted,
    Conversation,
    ConversationMemory,
    PreparedFold,
    Refusal,
    Snapshot,
    Sync,
)
from midfold.session.setup import DEFAULT_DIALECT, Setup
from midfold.store import SqlStore
from midfold.store.bodies import chain_of
from midfold.store.intake import MessageBatch, prompt_of, read_batch, values_of
from midfold.store.leases import Lease, Renewal, hold_lease
from midfold.store.protocol import Commit, CompactionRecord, Item, Prompt, SessionInfo, View
from midfold.store.sqlstore import StoredKeeper
from midfold.store.stored_search import StoredSource
from midfold.store.usage import Turns
from midfold.store.writing import FRESH
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import DIALECTS, Document, tool_of
from midfold.transcript.log_lines import Log, LoggedTurn, stamp_of
from midfold.transcript.message import Message, Usage, read_usage, usage_fields
from midfold.transcript.splice import message_value
from midfold.transcript.tokens import RunningTally

IN_FLIGHT = "a compaction of this session is already in flight"
LOST = "another process took over this session while the summary was written"


def memory_of(info: SessionInfo) -> ConversationMemory:
    """Return a session's memory from its row."""
    try:
        return msgspec.json.decode(info.memory, type=ConversationMemory) if info.memory else ConversationMemory()
    except (msgspec.MsgspecError, ValueError):
        raise StoreDamaged(f"the memory of session {info.name} cannot be read") from None


def remember_partner(session: Session, endpoint: Endpoint) -> None:
    """Store the model an agent talks to in a session, by provider, or by address if the endpoint has no name."""
    partner = ChatPartner(model=endpoint.model, provider=endpoint.name, window=session.setup.context_length)
    if endpoint.name == UNNAMED:
        partner = msgspec.structs.replace(partner, base_url=endpoint.base_url, wire=endpoint.wire)
    now = session._now()
    if now.memory.partner != partner:
        memory = msgspec.structs.replace(now.memory, partner=partner)
        if now.memory.partner is not None and _is_other(now.memory.partner, partner):
            memory = msgspec.structs.replace(memory, state=clear_failures(memory.state))
        session._learn(now, memory)


def _is_other(one: ChatPartner, other: ChatPartner) -> bool:
    """Return whether the model, provider or address differs."""
    return (one.model, one.provider, one.base_url) != (other.model, other.provider, other.base_url)


def copy_cooldown(session: Session, name: str) -> None:
    """Copy this session's cooldown to another session of the same conversation."""
    info = session.info if name != session.name else None
    if info is not None:
        session._other(name)._keep_cooldown(memory_of(info).state)


def record_turns(session: Session, turns: Sequence[RecordedTurn]) -> None:
    """Store the usage a log reports for a session, unless the session already knows as many turns."""
    now = session._now()
    if not turns or now.live is None or turns[-1].health.turns <= now.memory.health.turns:
        return
    Turns(session.store).add_recorded(now.live.info, turns)
    session._learn(now, msgspec.structs.replace(now.memory, health=turns[-1].health))


def read_history(session: Session) -> Document:
    """Return the complete session as a transcript, with times and usage as in a log."""
    info = session.store.must(session.name)
    rows = list(session.store.history(info))
    document = Document([row.message.wire for row in rows], DIALECTS[info.dialect], [row.message.wire for row in rows])
    turns: dict[int, LoggedTurn] = {}
    folds, last = set(), 0
    for turn in Turns(session.store).of(info):
        near = (place for place in (turn.count, turn.count - 1) if 0 <= place < len(rows))
        answer = next((place for place in near if document.messages[place].role == "assistant"), None)
        if answer is not None:
            turns[answer] = LoggedTurn(usage_fields(turn.usage), stamp_of(turn.at / 1000), turn.model or "")
            folds |= {answer} if turn.compaction != last else set()
            last = turn.compaction
    times = [stamp_of(row.at / 1000) for row in rows]
    document.log = Log(
        "", document.dialect, [], times, turns, info.model or "", session=session.name, folds=frozenset(folds)
    )
    return document


def keep_pause(session: Session, state: CompactionState) -> None:
    """Apply the cooldown of a failure that happened elsewhere to this session."""
    session._keep_cooldown(state)


MAX_NEWER_ITEMS = 256
"""Maximum messages in the newer part of a cached view; only this part is copied on each turn."""


class CachedView(NamedTuple):
    """Last seen view in two parts, so that a turn costs only the newer one."""

    info: SessionInfo
    memory: ConversationMemory
    older: tuple[Item, ...]
    newer: tuple[Item, ...] = ()

    @property
    def items(self) -> tuple[Item, ...]:
        return (*self.older, *self.newer)

    def since(self, count: int) -> tuple[Item, ...]:
        """Return the items after the first `count`."""
        return self.newer[count - len(self.older) :] if count >= len(self.older) else self.items[count:]

    def with_items(self, info: SessionInfo, memory: ConversationMemory, new: tuple[Item, ...]) -> CachedView:
        """Return the view with new items added."""
        newer = (*self.newer, *new)
        if len(newer) > MAX_NEWER_ITEMS:
            return CachedView(info, memory, (*self.older, *newer))
        return CachedView(info, memory, self.older, newer)


class StoredSnapshot(Snapshot):
    """Session at one moment; `live` is None if it has no message yet."""

    def __init__(self, live: CachedView | None, dialect: type[Dialect], running: Callable[[], RunningTally]) -> None:
        memory = ConversationMemory() if live is None else live.memory
        super().__init__(
            memory, dialect, running, lambda: () if live is None else tuple(item.message for item in live.items)
        )
        self.live = live
        self.child: str | None = None
        """Name of the continuation to start with the compaction; None to compact in place."""


class ViewCopy:
    """Copy of a session's view, updated at every call: incrementally, or completely after a compaction."""

    def __init__(self, store: SqlStore, name: str) -> None:
        self.store, self.name = store, name
        self._seen: CachedView | None = None
        self._running: RunningTally | None = None
        self._given: MessageBatch | None = None

    def keep_synced(self, given: MessageBatch) -> None:
        """Keep a complete history that was just synced, if it is exact bytes, to avoid reading it again."""
        exact = all(isinstance(entry.message.wire, Raw) for entry in given.entries)
        self._given = given if exact else None

    def forget(self) -> None:
        self._seen = None

    def view(self) -> CachedView | None:
        """Return the current view; None before the first message."""
        info = self.store.info(self.name)
        if info is None:
            self._seen = self._running = None
            return None
        seen = self._seen
        same = seen is not None and (seen.info.id, seen.info.compaction) == (info.id, info.compaction)
        memory = seen.memory if seen is not None and seen.info.memory == info.memory else memory_of(info)
        if seen is None or not same or seen.info.dialect != info.dialect:
            self._seen, self._running = CachedView(info, memory, self._whole(info)), None
        else:
            new = self.store.tail(info, seen.info.count) if info.count > seen.info.count else ()
            self._seen = seen.with_items(info, memory, new)
        return self._seen

    def _whole(self, info: SessionInfo) -> tuple[Item, ...]:
        given, self._given = self._given, None
        if given is None or not given.entries or (len(given.entries), given.dialect.name) != (info.count, info.dialect):
            return self.store.view(info)
        *_, chain = chain_of(entry.digest for entry in given.entries)
        if chain != info.chain:
            return self.store.view(info)
        return self.store.view(info, history=tuple(entry.message for entry in given.entries))

    def running(self, setup: Setup) -> RunningTally:
        """Return the tally of the last seen view."""
        running = self._running = self._running or RunningTally(setup.meter)
        running.meter = setup.meter
        if self._seen is not None:
            running.extend(item.message for item in self._seen.since(running.now.count))
        return running


class Session(Conversation[StoredSnapshot]):
    """Conversation in a store. Created by `Sessions.session`."""

    def __init__(
        self,
        store: SqlStore,
        name: str,
        setup: Setup,
        *,
        dialect: str | None = None,
        redacts: bool = False,
        written: Prompt | None = None,
        owner: str | None = None,
    ) -> None:
        super().__init__(setup)
        self.store = store
        self.name = name
        self._dialect, self._owner = dialect, owner
        self._redactor = (setup.redactor or redact) if redacts else None
        self._copy = ViewCopy(store, name)
        self._stored_prompt = written
        self._encoded_prompt: tuple[Any, Any, Prompt | None] | None = None
        if written is not None:
            self._encoded_prompt = (setup.system, setup.tools, written)

    # Writing

    def append(self, messages: Any, *, key: str | None = None) -> range:
        """Append messages and return their positions. A `key` that was already used appends nothing."""
        new = self._read(messages)
        model, prompt = self.setup.model, self._new_prompt(new)
        done = self.store.append(self.name, new.entries, dialect=new.dialect.name, model=model, key=key, prompt=prompt)
        self._stored_prompt = prompt or self._stored_prompt
        return done.positions

    def sync(self, messages: Any) -> Sync[Self]:
        """Add the new messages of a client's complete history, or of a view followed by new messages."""
        new = self._read(messages)
        model, prompt = self.setup.model, new.prompt  # pass it even if it is already stored: a branch may not have it
        done = self.store.sync(self.name, new.entries, dialect=new.dialect.name, model=model, prompt=prompt)
        self._stored_prompt = prompt or self._stored_prompt
        session = self if done.session == self.name else self._other(done.session)
        copy_cooldown(self, session.name)
        session._copy.keep_synced(new)
        return Sync(session, done.common, done.added, done.branched, done.ahead)

    def _read(self, messages: Any) -> MessageBatch:
        """Read messages. A request body brings its system prompt and tools; plain messages use the current ones."""
        new = read_batch(messages, dialect=self._dialect, otherwise=self._default_dialect, redactor=self._redactor)
        if new.prompt is None:
            known = self._prompt
            return new._replace(prompt=known if known and any(known) else None)
        if new.prompt != self._prompt:
            self.setup.update_prompt(*values_of(new.prompt))
            self._encoded_prompt = (self.setup.system, self.setup.tools, new.prompt)
        return new

    @property
    def _prompt(self) -> Prompt | None:
        """System prompt and tools as stored; None if there are none. Encoded once, because tools are long."""
        system, tools = self.setup.system, self.setup.tools
        if (
            self._encoded_prompt is None
            or self._encoded_prompt[0] is not system
            or self._encoded_prompt[1] is not tools
        ):
            prompt = prompt_of(system, tools, self._redactor)
            self._encoded_prompt = (system, tools, prompt if any(prompt) else None)
        return self._encoded_prompt[2]

    def _new_prompt(self, new: MessageBatch) -> Prompt | None:
        """Return the prompt if the store does not have it yet, else None."""
        return None if new.prompt == self._stored_prompt else new.prompt

    def _default_dialect(self) -> type[Dialect]:
        return self._dialect_of(self._copy.view())

    def _dialect_of(self, live: CachedView | None) -> type[Dialect]:
        return DIALECTS[live.info.dialect if live else self._dialect or DEFAULT_DIALECT.name]

    def _other(self, name: str) -> Self:
        return type(self)(
            self.store,
            name,
            self.setup.copy(),
            dialect=self._dialect,
            redacts=self._redactor is not None,
            written=self._stored_prompt,
            owner=self._owner,
        )

    # Reading

    @property
    def info(self) -> SessionInfo | None:
        """Row of the session; None before its first message."""
        return self.store.info(self.name)

    def history(self, start: int = 0, stop: int | None = None) -> View:
        """Return all messages, including compacted ones."""
        info = self.store.must(self.name)
        rows = self.store.history(self.name, start, stop)
        return View(tuple(Item(row.message, row.position) for row in rows), DIALECTS[info.dialect])

    def view(self, at: int | None = None) -> View:
        """Return what the model sees now, or saw right after compaction `at`; 0 is the uncompacted history."""
        if at is not None:
            info = self.store.must(self.name)
            noted = any(record.noted for record in self.receipts() if record.seq == at)
            return self._view_of(self.store.view(info, at), DIALECTS[info.dialect], noted)
        live = self._copy.view()
        if live is None:
            return self._view_of((), self._dialect_of(None), False)
        return self._view_of(live.items, DIALECTS[live.info.dialect], live.memory.noted)

    def _view_of(self, items: tuple[Item, ...], dialect: type[Dialect], noted: bool) -> View:
        return View(items, dialect, self._system(dialect, noted=noted), self.setup.tools)

    def cache_hints(self, provider: str = "") -> tuple[PromptCacheHint, ...]:
        """Return the ends of the view's stable prefixes; `provider` defaults to the one of its dialect and model."""
        view, setup = self.view(), self.setup
        return hints_of(
            view.transcript,
            tuple(tool_of(tool) for tool in setup.tools),
            setup.config,
            system=view.prompt,
            dialect=view.dialect.name,
            model=setup.model,
            provider=provider,
            session_id=self.name,
        )

    def search(
        self,
        query: str,
        limit: int = 20,
        *,
        role: str | None = None,
        since: int | None = None,
        until: int | None = None,
    ) -> list[Hit]:
        """Search the messages of this session, compacted or not, best hits first; see `Sessions.search`."""
        past = StoredSource(self.store, self.name, role=role, since=since, until=until)
        return search(past, query, self.setup.redactor or redact, limit, Filters(role=role or ""))

    def recall(self, page: int = PAGE) -> Recall:
        seen = {message.digest for message in self.view().transcript}
        bounds = AnswerBounds.of(self.setup.budget.threshold_tokens, page)
        past, redactor = StoredSource(self.store, self.name), self.setup.redactor or redact
        return Recall(past, redactor, seen=seen, bounds=bounds, clock=self.setup.clock)

    def unfold(self, handle: str) -> list[Any]:
        """Return the originals of a handle of this session as plain values."""
        dialect = DIALECTS[self.store.must(self.name).dialect]
        return [message_value(message, dialect) for message in self.store.unfold(self.name, handle)]

    def unfold_bytes(self, handle: str) -> list[bytes]:
        """Return the originals of a handle as exact bytes."""
        return [bytes(message.wire) for message in self.store.unfold(self.name, handle)]

    def receipts(self) -> list[CompactionRecord]:
        """Return all compactions, including undone ones."""
        return self.store.records(self.name)

    # Measuring and compacting

    def _now(self) -> StoredSnapshot:
        live = self._copy.view()
        return StoredSnapshot(live, self._dialect_of(live), lambda: self._copy.running(self.setup))

    def _learn(self, now: StoredSnapshot, memory: ConversationMemory) -> None:
        if now.live is not None:
            self.store.remember(now.live.info, msgspec.json.encode(memory))

    def observe(self, usage: Any) -> None:
        """Record the usage the provider reported for the current view, as one more turn of the session."""
        reported = usage if isinstance(usage, Usage) else read_usage(usage)
        now = self._now()
        if reported is None or now.live is None:
            return
        info, setup = now.live.info, self.setup
        memory = self._memory_after(now, reported, watches=True, compaction=info.compaction)
        self._learn(now, memory)
        kind = memory.health.last.kind if memory.health.last else None
        Turns(self.store).record(info, reported, at=int(setup.clock() * 1000), model=setup.model, kind=kind)

    def _request(self, now: StoredSnapshot, arguments: CompactArguments) -> CompactionRequest:
        keeper = StoredKeeper(self.store, self.name, self._owner)
        return msgspec.structs.replace(super()._request(now, arguments), keeper=keeper)

    def compact(
        self,
        *,
        ahead: PreparedFold | None = None,
        measured_at: int | None = None,
        health: Health | None = None,
        local: bool = False,
        persistence: Literal["in_place", "child"] = "in_place",
        child: str | None = None,
        **arguments: Unpack[CompactArguments],
    ) -> Compacted[Self]:
        """Compact the view if it is due, or if `force`, `target_tokens` or `keep_last_exchanges` demands it.

        In place, the session keeps its name. As a child, it ends and a new session starts with the view, named `child`
        or after its parent. `prompt_tokens` overrides the measured size and `health` the cache statistics; both are
        ignored unless compaction `measured_at` is still in force. A fold prepared `ahead` is used if it still fits.
        With `local`, no model is called, so that the caller does not wait for one.
        """
        done = None if ahead is None else self.swap(ahead)
        if done is not None:
            return done
        now = self._now()
        if now.live is not None:
            if measured_at is not None and now.live.info.compaction != measured_at:
                arguments["prompt_tokens"], health = None, None
            name = child or f"{self.name}+{now.live.info.compactions + 1}"
            now.child = name if persistence == "child" else None
        return run(self._compaction(now, arguments, health=health, local=local))

    def _items_before(self, info: SessionInfo, base: CompactionRecord | None) -> tuple[Item, ...]:
        """Return the view as if `base` were the newest compaction."""
        kept = () if base is None else self.store.view(info, base.seq)
        return (*kept, *self.store.tail(info, 0 if base is None else base.upto))

    @contextmanager
    def _lease(self, now: StoredSnapshot) -> Iterator[tuple[Lease, Renewal] | Refusal]:
        with hold_lease(self.store.leases, self.name, ttl=self.store.leases.ttl) as got:
            if got is None:
                yield Refusal(IN_FLIGHT, "already_in_flight")
            elif now.live is None or self.store.must(self.name).compaction != now.live.info.compaction:
                yield Refusal("another compaction of this session has just finished", "already_in_flight")
            else:
                yield got

    def _hold(self, now: StoredSnapshot) -> AbstractContextManager[Any]:
        return self._lease(now)

    def _commit(
        self, now: StoredSnapshot, request: CompactionRequest, outcome: Outcome, hold: tuple[Lease, Renewal]
    ) -> Compacted[Self]:
        assert now.live is not None
        lease, renewal = hold
        if renewal.lost:
            return self._refuse(request, Refusal(LOST, "aborted"))
        new = commit_of(now.live, request, outcome, now.child)
        try:
            self.store.commit(self.name, lease, new)
        except (LeaseLost, StoreConflict) as late:
            return self._refuse(request, Refusal(str(late), "aborted"))
        self._copy.forget()
        return Compacted(new.receipt, self if now.child is None else self._other(now.child))

    def preview(self, **arguments: Unpack[CompactArguments]) -> Receipt:
        """Return the receipt a compaction with a built-in summary would have, without changing anything."""
        now = self._now()
        request = self._request(now, arguments)
        if self.setup.writer() is not local_summarizer:
            options = msgspec.structs.replace(request.options, lossy_fallback=True)
            request = msgspec.structs.replace(request, options=options)
        decision = decide(self._situation(now, request))
        return drive(carry_out(self.setup.engine, request, decision), local_summarizer).receipt

    def undo(self) -> CompactionRecord:
        """Undo the last compaction: restore the previous view, with all messages added since.

        After that, only an explicit request or a nearly full context window triggers a compaction.
        """
        before = self._now().memory
        record = self.store.undo(self.name)
        self._copy.forget()
        now = self._now()
        self._learn(now, msgspec.structs.replace(now.memory, undone=True, partner=before.partner, host=before.host))
        self._keep_cooldown(before.state)
        return record

    def _keep_cooldown(self, state: CompactionState) -> None:
        """Store the cooldown of this state if it is longer than the stored one."""
        info = self.info
        memory = None if info is None else memory_of(info)
        if info is not None and memory is not None and state.cooldown_until > memory.state.cooldown_until:
            memory = msgspec.structs.replace(memory, state=with_cooldown_of(memory.state, state))
            self.store.remember(info, msgspec.json.encode(memory))

    def delete(self) -> None:
        """Delete the session and all data that only it refers to. This cannot be undone."""
        self.store.delete(self.name)
        self._copy.forget()

    def export(self) -> bytes:
        """Return the session as JSON lines, for `Sessions.load`."""
        from midfold.store.portable import export_session

        return b"".join(line + b"\n" for line in export_session(self.store, self.name))

    # Persistence by the host

    def save(self) -> dict[str, Any]:
        """Return the session's name; its state is in the store."""
        return {"session": self.name}

    def restore(self, saved: Mapping[str, Any]) -> None:
        if saved.get("session") != self.name:
            raise StoreError(f"expected the saved state of session {self.name}, whose memory is in the store")

    def reset(self) -> None:
        """Raise StoreError: a stored conversation ends only by deleting its session."""
        raise StoreError(
            f"session {self.name} is stored and cannot be reset; open another session for a new conversation"
        )


def replace_fold(session: Session, ready: PreparedFold) -> Compacted[Session] | None:
    """Replace the newest compaction with a fold that was prepared from the same messages but finished too late.

    Return None if it does not fit or covers fewer messages. It is a separate compaction, so it can be undone.
    """
    live, made = session._copy.view(), ready.outcome.receipt.boundary
    records = {one.seq: one for one in session.receipts()} if live is not None else {}
    record = None if live is None else records.get(live.info.compaction)
    if live is None or record is None or made is None or ready.has_failed:
        return None
    newest = record.receipt.boundary
    if newest is None or made.end < newest.end:
        return None
    before = live._replace(older=session._items_before(live.info, records.get(record.base)), newer=())
    now = StoredSnapshot(before, session._dialect_of(live), lambda: _tally_of(before.items, session.setup))
    same = live.memory.state.folds[:-1] == ready.now.memory.state.folds
    if not same or not ready.outcome.changed or not now.running.starts_with(ready.tally):
        return None
    since = now.messages[ready.tally.count :]
    outcome = msgspec.structs.replace(ready.outcome, messages=(*ready.outcome.messages, *since))
    with session._hold(now) as hold:
        if isinstance(hold, Refusal):
            return session._refuse(ready.request, hold)
        return session._finish(now, ready.request, outcome, hold)


def _tally_of(items: tuple[Item, ...], setup: Setup) -> RunningTally:
    running = RunningTally(setup.meter)
    running.extend(item.message for item in items)
    return running


def commit_of(live: CachedView, request: CompactionRequest, outcome: Outcome, child: str | None) -> Commit:
    """Convert an engine's outcome to rows, with the source of every message of the new view.

    The messages of the request are the first ones of the view, or were read from the same bytes elsewhere.
    """
    pairs = [*zip(request.messages, live.items, strict=False), *((item.message, item) for item in live.items)]
    known = {id(message): item for message, item in pairs}
    sources = {id(message.wire): item for message, item in pairs}

    def item(message: Message) -> Item:
        found = known.get(id(message))
        if found is not None:
            return found
        source = sources.get(id(message.origin)) if message.wire is None and message.origin is not None else None
        return Item(message, source.position, FRESH) if source and source.position is not None else Item(message)

    receipt = outcome.receipt
    if child is not None:
        receipt = msgspec.structs.replace(receipt, persistence="child_continuation")
    noted = live.memory.noted or outcome.system is not request.system
    memory = live.memory.calibrate(live.memory.calibration.without_anchor())
    memory = msgspec.structs.replace(memory, state=outcome.state, noted=noted, undone=False)
    return Commit(
        base=live.info.compaction,
        upto=live.info.count,
        view=tuple(map(item, outcome.messages)),
        handles={handle: tuple(map(item, kept)) for handle, kept in outcome.archive.items()},
        receipt=receipt,
        state=outcome.state,
        noted=noted,
        memory=msgspec.json.encode(memory),
        child=child,
    )
