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

from midfold.api import hints_of
from midfold.cache import PromptCacheHint
from midfold.cache.health import Health
from midfold.errors import LeaseLost, StoreConflict
from midfold.fold.assemble import with_note
from midfold.fold.budget import Pressure
from midfold.fold.receipt import Receipt, Timing
from midfold.fold.redact import redact
from midfold.fold.request import CompactionRequest, Outcome
from midfold.host import EngineHost
from midfold.live import Draft, Kept, Live, commit_of
from midfold.measured import observed, unchanged
from midfold.scheduling import aimed, asked_for, timed
from midfold.store import SqlStore
from midfold.store.intake import MessageBatch, of_messages, prompt_of, read_batch, values_of
from midfold.store.leases import hold_lease
from midfold.store.protocol import CompactionRecord, Item, Prompt, SessionInfo, View
from midfold.store.ranking import Hit, search
from midfold.store.sqlstore import StoredOriginals
from midfold.store.usage import Turns
from midfold.summarize import begin, drive, local_summarizer, resume
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import DIALECTS, tool_of
from midfold.transcript.message import Message, Usage, read_usage
from midfold.transcript.splice import message_value
from midfold.transcript.tokens import Count

COOLDOWN = 60.0
"""Seconds after a failed summary in which no automatic compaction asks for another one."""
COOLING = "the last summary failed a moment ago; a forced compaction tries again"
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
        redacts: bool = False,
        written: Prompt | None = None,
        clock: Callable[[], float] = time.time,
        owner: str | None = None,
    ) -> None:
        self.store = store
        self.name = name
        self.host = host
        self.clock = clock
        self._dialect, self._owner = dialect, owner
        self._redactor = (host.redactor or redact) if redacts else None
        self._kept = Kept(store, name, host)
        self._written = written
        self._said: tuple[Any, Any, Prompt | None] | None = None
        if written is not None:
            self._said = (host.system, host.tools, written)

    # What was said

    def append(self, messages: Any, *, key: str | None = None) -> range:
        """Adds exactly these messages and gives their positions. A `key` that was used before adds nothing again."""
        new = self._given(messages)
        model, prompt = self.host.model, self._unwritten(new)
        done = self.store.append(self.name, new.entries, dialect=new.dialect.name, model=model, key=key, prompt=prompt)
        self._written = prompt or self._written
        return done.positions

    def sync(self, messages: Any) -> Sync:
        """A client's whole history, or the view it was given and what came after: adds what is new."""
        new = self._given(messages)
        model, prompt = self.host.model, new.prompt  # also if it is written here: a branch may not have it
        done = self.store.sync(self.name, new.entries, dialect=new.dialect.name, model=model, prompt=prompt)
        self._written = prompt or self._written
        session = self if done.session == self.name else self._other(done.session)
        return Sync(session, done.common, done.added, done.branched, done.ahead)

    def _given(self, messages: Any) -> MessageBatch:
        """What is handed over. A request body brings its system prompt and tools; messages go with those we have."""
        new = read_batch(messages, dialect=self._dialect, otherwise=self._otherwise, redactor=self._redactor)
        if new.prompt is None:
            known = self._prompt
            return new._replace(prompt=known if known and any(known) else None)
        if new.prompt != self._prompt:
            self.host.update_prompt(*values_of(new.prompt))
            self._said = (self.host.system, self.host.tools, new.prompt)
        return new

    @property
    def _prompt(self) -> Prompt | None:
        """The host's, as it is stored; None if there is none. Tools are long, so they are written once."""
        system, tools = self.host.system, self.host.tools
        if self._said is None or self._said[0] is not system or self._said[1] is not tools:
            prompt = prompt_of(system, tools, self._redactor)
            self._said = (system, tools, prompt if any(prompt) else None)
        return self._said[2]

    def _unwritten(self, new: MessageBatch) -> Prompt | None:
        """What the store does not know yet."""
        return None if new.prompt == self._written else new.prompt

    def _otherwise(self) -> type[Dialect]:
        return self._known_dialect(self._kept.view())

    def _other(self, name: str) -> Session:
        redacts = self._redactor is not None
        more: dict[str, Any] = {"redacts": redacts, "written": self._written, "clock": self.clock}
        more["owner"] = self._owner
        return Session(self.store, name, self.host.like(), dialect=self._dialect, **more)

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
            return View(self.store.view(info, at), DIALECTS[info.dialect], self._system(noted), self.host.tools)
        live = self._kept.view()
        if live is None:
            return View((), DIALECTS[self._dialect or "openai-chat"], self._system(False), self.host.tools)
        return View(live.items, DIALECTS[live.info.dialect], self._system(live.memory.noted), self.host.tools)

    def cache_hints(self, provider: str = "") -> tuple[PromptCacheHint, ...]:
        """Where the stable prefixes of the view end; without a `provider`, for the one its shape and model mean."""
        view, host = self.view(), self.host
        tools = tuple(tool_of(tool) for tool in host.tools)
        asked: dict[str, Any] = {"dialect": view.dialect.name, "model": host.model, "provider": provider}
        asked["session_id"] = self.name
        return hints_of(view.transcript, tools, host.config, system=view.prompt, **asked)

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

    def receipts(self) -> list[CompactionRecord]:
        """Every compaction there was, undone ones too."""
        return self.store.records(self.name)

    # How large it is

    def observe(self, usage: Any) -> None:
        """What the provider counted for the view as it is now."""
        live = self._kept.measured()
        before = self.host.calibration
        reported = usage if isinstance(usage, Usage) else read_usage(usage)
        self.host.update_from_response(reported)
        if live is not None and reported is not None:
            health = observed(self.host, live, reported, self.clock())
            self._kept.remember(live, health=health)
            kind = health.last.kind if health.last else None
            at = int(self.clock() * 1000)
            Turns(self.store).record(live.info, reported, at=at, model=self.host.model, kind=kind)
        elif live is not None and self.host.calibration != before:
            self._kept.remember(live)

    @property
    def health(self) -> Health:
        """What the provider's cache did, by the usage that was observed."""
        live = self._kept.view()
        return Health() if live is None else live.memory.health

    def timing(self) -> Timing | None:
        """Whether now is the moment to fold; None where `prompt_caching.schedule` does not ask for it."""
        live = self._kept.measured()
        return None if live is None else self.host.timing(health=live.memory.health, now=self.clock())

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
        """Whether to fold before the next request: at the threshold, or at a cheap moment where folds are scheduled."""
        timing = self.timing()
        return self.pressure() is Pressure.HARD or (timing is not None and timing.fold)

    # Compaction

    def compact(
        self,
        *,
        focus: str | None = None,
        force: bool = False,
        keep_last_exchanges: int | None = None,
        target_tokens: int | None = None,
        prompt_tokens: int | None = None,
        measured_at: int | None = None,
        persistence: Literal["in_place", "child"] = "in_place",
        child: str | None = None,
        ahead: Draft | None = None,
        timing: Timing | None = None,
    ) -> Compacted:
        """Folds the view if it has reached its threshold, or if asked to.

        In place, the session goes on under its name. As a child, it ends, and a new session begins with the view; it is
        called `child`, or after its parent. `prompt_tokens` is the size of the view where the caller knows it better,
        `timing` a decision made elsewhere, `measured_at` the number of the compaction both were made under: those of
        another view tell nothing. A draft made `ahead` is swapped in if it still fits.
        """
        asked = {"focus": focus, "force": force, "keep_last_exchanges": keep_last_exchanges}
        live = self._kept.measured()
        if live is not None and measured_at is not None and live.info.compaction != measured_at:
            prompt_tokens, timing = None, None
        request = self._request(live, prompt_tokens, target_tokens=target_tokens, **asked)
        if live is None:
            return Compacted(unchanged(request, "the session has no messages"), self)
        ready = None if ahead is None else ahead.fitted(live)
        if ahead is not None and ready is not None:
            request = ahead.request
        elif live.memory.cooldown > self.clock() * 1000 and not asked_for(request):
            return Compacted(unchanged(request, COOLING), self)
        forced = asked_for(request)
        if not forced and ready is None:
            timing = timing or self.host.timing(request.prompt_tokens, live.memory.health, now=self.clock())
            request = aimed(request, self.host.schedule, timing)
        flow = self.host.engine.compress(request)
        first = ready or timed(begin(flow), timing)
        if isinstance(first, Outcome) and not first.changed:
            return Compacted(self._left(live, first), self)
        name = (child or f"{self.name}+{live.info.compactions + 1}") if persistence == "child" else None

        def finished() -> Outcome:
            guard = self.host.guard(force=forced, timing=timing)
            outcome = first if isinstance(first, Outcome) else resume(flow, first, guard)
            return msgspec.structs.replace(timed(outcome, timing), state=guard.settled(outcome.state))

        return self._committed(live, request, finished, name)

    def _committed(
        self, live: Live, request: CompactionRequest, finished: Callable[[], Outcome], child: str | None
    ) -> Compacted:
        """Finishes a compaction under the session's lease, and writes it."""
        with hold_lease(self.store.leases, self.name, ttl=self.store.leases.ttl) as got:
            if got is None:
                return Compacted(unchanged(request, IN_FLIGHT, "already_in_flight"), self)
            if self.store.must(self.name).compaction != live.info.compaction:
                return Compacted(unchanged(request, f"{IN_FLIGHT}: it has just ended", "already_in_flight"), self)
            lease, renewal = got
            outcome = finished()
            if not outcome.changed:
                return Compacted(self._left(live, outcome), self)
            if renewal.lost:
                return Compacted(unchanged(request, "the lease was lost while the summary was made", "aborted"), self)
            new = commit_of(live, request, outcome, self.host.calibration, child)
            try:
                self.store.commit(self.name, lease, new)
            except (LeaseLost, StoreConflict) as late:
                return Compacted(unchanged(request, str(late), "aborted"), self)
        self._kept.forget()
        return Compacted(new.receipt, self if child is None else self._other(child))

    def draft(self) -> Callable[[], Draft | None] | None:
        """Work for another thread: a compaction of the view as it is now. It touches neither the store nor this object.

        It gives None where it came to nothing, or where its summary failed.
        """
        live = self._kept.measured()
        if live is None:
            return None
        engine, guard = self.host.engine, self.host.guard()
        request = self._request(live, force=True, target_tokens=self.host.aim())

        def make() -> Draft | None:
            outcome = drive(engine.compress(request), guard)
            if not outcome.changed or outcome.receipt.summary.failure:
                return None
            return Draft(live, request, msgspec.structs.replace(outcome, state=guard.settled(outcome.state)))

        return make

    def preview(self, **asked: Any) -> Receipt:
        """The receipt a compaction would have, with a summary made locally; nothing is changed, no model is asked."""
        flow = self.host.engine.compress(self._request(self._kept.measured(), **asked))
        first = begin(flow)
        return (first if isinstance(first, Outcome) else resume(flow, first, local_summarizer)).receipt

    def undo(self) -> CompactionRecord:
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
        from midfold.store.portable import export_session

        return b"".join(line + b"\n" for line in export_session(self.store, self.name))

    # Between the store and the engine

    def _request(self, live: Live | None, prompt_tokens: int | None = None, **asked: Any) -> CompactionRequest:
        messages = () if live is None else live.messages
        document = of_messages(messages, self._known_dialect(live))
        size = self.host.size
        if prompt_tokens is None and live is not None and size.basis != "estimated":
            prompt_tokens = size.tokens
        keeper = StoredOriginals(self.store, self.name, self._owner)
        return self.host.request(document, prompt_tokens=prompt_tokens, keeper=keeper, **asked)

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
