"""Conversation base class and its in-memory implementation; `session` has the stored one.

    conversation = MemoryConversation(Setup(model="claude-opus-4-6"))
    conversation.append(messages)
    conversation.observe(usage)
    if conversation.should_compact():
        conversation.compact()

1. `decide` makes the decision. A conversation collects its inputs (size, the engine's answer, memory) and carries it
   out.
2. The state passed from one compaction to the next is one `ConversationMemory`, kept in the object or in the store.
3. A compaction is one generator that yields summary requests. `run` drives it synchronously, `run_async` on an event
   loop.
4. A fold prepared in advance is used if only new messages were added since it was started.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property
from typing import Any, Generic, NamedTuple, Self, TypedDict, TypeVar, Unpack

import msgspec

from midfold.cache.health import Health, RequestHashes
from midfold.compaction.archive import Archive
from midfold.compaction.assemble import with_note
from midfold.compaction.context import CompactionContext, with_size
from midfold.compaction.finish import leave
from midfold.compaction.handoff import Keeper
from midfold.compaction.planner import plan_whole
from midfold.compaction.receipt import Readiness, Receipt, Status
from midfold.compaction.redact import redact
from midfold.compaction.request import CompactionRequest, CompactionState, Outcome, SummaryAnswer, SummaryRequest
from midfold.decide import Decision, Situation, decide, is_relieved, situation_of
from midfold.engines.guard import ask_engine, carry_out
from midfold.model import advance
from midfold.model.endpoint import Wire
from midfold.model.run import CooldownGuard, Preparation, Question, clear_failures, run, run_async, with_cooldown_of
from midfold.recall import PAGE, AnswerBounds, InMemorySource, Recall
from midfold.session.setup import DEFAULT_DIALECT, Setup
from midfold.store.intake import of_messages
from midfold.store.protocol import Item, View
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import Document, read
from midfold.transcript.message import Message, Transcript, Usage, plain, read_usage
from midfold.transcript.tokens import Basis, Calibration, Count, RunningTally, Tally

T = TypeVar("T")


class CompactArguments(TypedDict, total=False):
    """Options of a compaction. `prompt_tokens` overrides the measured size."""

    focus: str | None
    force: bool
    overflowed: bool
    keep_last_exchanges: int | None
    target_tokens: int | None
    prompt_tokens: int | None
    token_basis: Basis
    lineage: str


class ChatPartner(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Chat model as the user named it, by provider or by address. Contains no key."""

    model: str
    provider: str
    base_url: str | None = None
    wire: Wire | None = None
    window: int | None = None


class ConversationMemory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Learned state of a conversation, serializable as plain JSON."""

    state: CompactionState = CompactionState()
    ratio: float = 1.0
    samples: int = 0
    anchor: Tally | None = None
    anchor_tokens: int = 0
    anchor_fixed: int = 0
    noted: bool = False
    """True if the system prompt contains the compaction note."""
    undone: bool = False
    """True if the newest compaction was undone."""
    health: Health = Health()
    """Cache statistics reported by the provider, per turn."""
    partner: ChatPartner | None = None
    """Model an agent talked to, used to resume the conversation."""
    host: dict[str, Any] = {}
    """Data of the host, stored with the conversation."""

    @property
    def calibration(self) -> Calibration:
        return Calibration(self.ratio, self.samples, self.anchor, self.anchor_tokens, self.anchor_fixed)

    def calibrate(self, learnt: Calibration) -> ConversationMemory:
        return msgspec.structs.replace(
            self,
            ratio=learnt.ratio,
            samples=learnt.samples,
            anchor=learnt.anchor,
            anchor_tokens=learnt.anchor_tokens,
            anchor_fixed=learnt.anchor_fixed,
        )

    def forget_failures(self) -> ConversationMemory:
        """Return the memory for another model, without strikes, failures and calibration."""
        return msgspec.structs.replace(self.calibrate(Calibration()), state=clear_failures(self.state))


class Snapshot:
    """Conversation at one moment; tally and messages are computed on first use."""

    def __init__(
        self,
        memory: ConversationMemory,
        dialect: type[Dialect],
        running: Callable[[], RunningTally],
        messages: Callable[[], Transcript],
        *,
        is_counted: bool = True,
    ) -> None:
        self.memory, self.dialect, self.is_counted = memory, dialect, is_counted
        self._running, self._messages = running, messages

    @cached_property
    def running(self) -> RunningTally:
        return self._running()

    @cached_property
    def messages(self) -> Transcript:
        return self._messages()

    @property
    def document(self) -> Document:
        return of_messages(self.messages, self.dialect)

    def extends(self, made: Snapshot, tally: Tally) -> bool:
        """Return whether only new messages were added since `made`, whose messages had this tally."""
        then, now = made.memory, self.memory
        same = (then.state.count, then.state.folds, then.undone) == (now.state.count, now.state.folds, now.undone)
        return same and self.running.starts_with(tally)


N = TypeVar("N", bound=Snapshot)


class PreparedFold(NamedTuple):
    """Compaction prepared in advance, and the inputs it was made from."""

    now: Snapshot
    tally: Tally
    request: CompactionRequest
    outcome: Outcome

    @property
    def has_failed(self) -> bool:
        """Return whether its summary failed; then only the failure is kept."""
        return bool(self.outcome.receipt.summary.failure)

    def with_readiness(self, readiness: Readiness) -> PreparedFold:
        return self._replace(outcome=self.outcome.with_readiness(readiness))


class Compacted(NamedTuple, Generic[T]):
    """Result of a compaction. `session` is the conversation to continue: a child, if one was started."""

    receipt: Receipt
    session: T

    @property
    def changed(self) -> bool:
        return self.receipt.status in ("compacted", "pruned")


class Sync(NamedTuple, Generic[T]):
    """Result of a sync. `session` is the conversation to continue: a branch, if the history diverged."""

    session: T
    common: int
    added: int
    branched: bool = False
    ahead: int = 0


class Refusal(NamedTuple):
    """Reason why a compaction cannot be written, and the status for its receipt."""

    reason: str
    status: Status


class Conversation(ABC, Generic[N]):
    """Base class of all conversations."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.last: Receipt | None = None
        """Receipt of the latest attempted compaction."""

    @abstractmethod
    def _now(self) -> N:
        """Return a snapshot of the current conversation."""

    @abstractmethod
    def _learn(self, now: N, memory: ConversationMemory) -> None:
        """Store the memory."""

    @abstractmethod
    def _commit(self, now: N, request: CompactionRequest, outcome: Outcome, hold: Any) -> Compacted[Self]:
        """Replace the conversation's view with an outcome; `hold` is the value from `_hold`."""

    @abstractmethod
    def append(self, messages: Any) -> object:
        """Append messages."""

    @abstractmethod
    def sync(self, messages: Any) -> Sync[Self]:
        """Replace the conversation with the client's complete history."""

    @abstractmethod
    def view(self) -> View:
        """Return what the model sees now."""

    @abstractmethod
    def unfold(self, handle: str) -> list[Any]:
        """Return the originals of a handle."""

    @abstractmethod
    def recall(self, page: int = PAGE) -> Recall:
        """Return the recall tools; an answer has at most `page` characters and fits the context window."""

    @abstractmethod
    def save(self) -> dict[str, Any]:
        """Return the state to persist across restarts, as plain JSON."""

    @abstractmethod
    def restore(self, saved: Mapping[str, Any]) -> None:
        """Restore the state returned by `save`."""

    @abstractmethod
    def reset(self) -> None:
        """Start a new conversation and drop the old one."""

    # Size

    @property
    def state(self) -> CompactionState:
        """State passed from one compaction to the next."""
        return self._now().memory.state

    @state.setter
    def state(self, state: CompactionState) -> None:
        now = self._now()
        self._learn(now, msgspec.structs.replace(now.memory, state=state))

    @property
    def size(self) -> Count:
        """Size of the next request, and the basis of that number."""
        return self._size(self._now())

    def _size(self, now: N) -> Count:
        return now.memory.calibration.predict(now.running, self.setup.fixed_size(now.dialect))

    @property
    def health(self) -> Health:
        """Cache statistics from the observed usage."""
        return self._now().memory.health

    def observe(self, usage: Any) -> None:
        """Record the usage the provider reported for the current view; do nothing if the response has none."""
        reported = usage if isinstance(usage, Usage) else read_usage(usage)
        if reported is not None:
            now = self._now()
            self._learn(now, self._memory_after(now, reported, watches=self.setup.schedule is not None))

    def _memory_after(
        self, now: N, usage: Usage, *, watches: bool, compaction: int | None = None
    ) -> ConversationMemory:
        """Return the memory after one more response; with `watches`, including the cache statistics."""
        setup, memory = self.setup, now.memory
        fixed, tokens = setup.fixed_size(now.dialect), usage.prompt_tokens
        learnt = memory.calibration.observe(now.running.now, tokens, fixed=fixed, meter=setup.meter)
        state, health = memory.state, memory.health
        if is_relieved(tokens, setup.budget.threshold_tokens, setup.schedule, health):
            state = msgspec.structs.replace(state, ineffective=0)
        if watches:
            number = state.count if compaction is None else compaction
            seen = RequestHashes.of(
                model=setup.model, tools=setup.tools, system=setup.system, messages=now.running.now, compaction=number
            )
            continues = health.seen is None or now.running.starts_with(health.seen.messages)
            health = health.observe(usage, seen, at=setup.clock(), prices=setup.prices, continues=continues)
        return msgspec.structs.replace(memory.calibrate(learnt), state=state, health=health)

    def update_model(self, model: str | None, context_length: int | None = None) -> None:
        """Switch to another model: recompute all limits, and reset strikes and failures."""
        self.setup.update_model(model, context_length)
        now = self._now()
        self._learn(now, now.memory.forget_failures())

    # Decision

    def decide(
        self, prompt_tokens: int | None = None, *, upcoming_idle: float | None = None, health: Health | None = None
    ) -> Decision:
        """Decide whether to compact before the next request; costs time only for new messages.

        `upcoming_idle`: seconds until the next request, if known.
        """
        now, setup = self._now(), self.setup
        reads = setup.engine.reads_messages
        request = setup.request(now.document, now.memory.state) if reads else setup.bare_request(now.memory.state)
        size = self._size(now) if prompt_tokens is None else Count(prompt_tokens, "reported")
        request = msgspec.structs.replace(request, prompt_tokens=size.tokens, token_basis=size.basis)
        return decide(self._situation(now, request, upcoming_idle=upcoming_idle, health=health))

    def should_compact(self, prompt_tokens: int | None = None) -> bool:
        """Return whether to compact before the next request, because it is due or because it is cheap now."""
        return self.decide(prompt_tokens).fold

    def _situation(
        self, now: N, request: CompactionRequest, *, upcoming_idle: float | None = None, health: Health | None = None
    ) -> Situation:
        setup = self.setup
        situation = situation_of(request, request.prompt_tokens or 0, now=setup.clock())
        situation = msgspec.structs.replace(situation, recall=setup.recall_cost(now.dialect))
        if situation.asked or not situation.enabled:
            return situation
        situation = msgspec.structs.replace(
            ask_engine(setup.engine, request, situation),
            undone=now.memory.undone,
            crowded=bool(setup.most_messages) and len(now.messages) >= setup.most_messages,
            schedule=setup.schedule,
            local_early=setup.config.prompt_caching.schedule_summary == "local",
            health=now.memory.health if health is None else health,
            fixed_tokens=setup.meter.tokens(*setup.fixed_size(now.dialect)),
            model=setup.model,
            upcoming_idle=upcoming_idle,
        )
        return setup.forecast(situation, now.messages, now.dialect) if setup.leaves_room else situation

    def _request(self, now: N, arguments: CompactArguments) -> CompactionRequest:
        """Return the engine's request, including the measured size."""
        memory = now.memory
        request = msgspec.structs.replace(
            self.setup.request(now.document, memory.state),
            cached_price=self.setup.price_of_cached(memory.health),
            **arguments,
        )
        if request.prompt_tokens is None and (now.is_counted or memory.samples or memory.anchor is not None):
            size = self._size(now)
            return msgspec.structs.replace(request, prompt_tokens=size.tokens, token_basis=size.basis)
        return with_size(request)

    # Compaction

    def compact(self, *, ahead: PreparedFold | None = None, **arguments: Unpack[CompactArguments]) -> Compacted[Self]:
        """Compact the view if it is due or `arguments` demands it; use a fold prepared `ahead` if it still fits."""
        done = None if ahead is None else self.swap(ahead)
        return done or run(self._compaction(self._now(), arguments))

    async def compact_async(self, **arguments: Unpack[CompactArguments]) -> Compacted[Self]:
        """Compact on an event loop: await a summarizer that has a `later`, and run everything else in a thread."""
        return await run_async(self._compaction(self._now(), arguments))

    def _compaction(
        self, now: N, arguments: CompactArguments, *, health: Health | None = None, local: bool = False
    ) -> Generator[Question, SummaryAnswer, Compacted[Self]]:
        request = self._request(now, arguments)
        decision = decide(self._situation(now, request, health=health))
        local = local and not decision.pause
        guard = CooldownGuard(self.setup.writer(local=decision.local or local), decision, self.setup.clock)
        flow = carry_out(self.setup.engine, request, decision)
        step = advance(flow)
        if isinstance(step, SummaryRequest) and decision.pause:
            step = advance(flow, guard(step))
        if isinstance(step, Outcome) and not step.changed:
            return self._leave_unchanged(now, step)
        with self._hold(now) as hold:
            if isinstance(hold, Refusal):
                return self._refuse(request, hold)
            while isinstance(step, SummaryRequest):
                step = advance(flow, (yield Question(guard, step)))
            outcome = msgspec.structs.replace(step, state=guard.settle(step.state))
            return self._finish(now, request, outcome.with_readiness("local") if local else outcome, hold)

    def _finish(self, now: N, request: CompactionRequest, outcome: Outcome, hold: Any) -> Compacted[Self]:
        if not outcome.changed:
            return self._leave_unchanged(now, outcome)
        done = self._commit(now, request, outcome, hold)
        self.last = done.receipt
        if done.changed:
            done.session.setup.add_late_tools()
        return done

    def _hold(self, now: N) -> AbstractContextManager[Any]:
        """Return a context manager that locks the conversation; it yields a `Refusal` if the lock is taken."""
        return nullcontext()

    def _leave_unchanged(self, now: N, outcome: Outcome) -> Compacted[Self]:
        """Return the result of a compaction that folded nothing; store strikes and cooldowns, if they changed."""
        before, after = now.memory.state, outcome.state
        learnt = {name: getattr(after, name) for name in ("ineffective", "ineffective_tokens")}
        state = with_cooldown_of(msgspec.structs.replace(before, **learnt), after)
        if state != before:
            self._learn(now, msgspec.structs.replace(now.memory, state=state))
        self.last = outcome.receipt
        return Compacted(outcome.receipt, self)

    def _refuse(self, request: CompactionRequest, refusal: Refusal) -> Compacted[Self]:
        self.last = msgspec.structs.replace(
            leave(CompactionContext(request), refusal.reason).receipt, status=refusal.status
        )
        return Compacted(self.last, self)

    def prepare(
        self,
        prompt_tokens: int | None = None,
        *,
        token_basis: Basis = "reported",
        force: bool = False,
        overflowed: bool = False,
    ) -> Preparation[PreparedFold] | None:
        """Return work for another thread that prepares a compaction of the current view for `swap`.

        The conversation is not changed. Return None if no compaction is due, or during the cooldown after a failure:
        one without a model need not be prepared.
        """
        now = self._now()
        arguments: CompactArguments = {"prompt_tokens": prompt_tokens, "token_basis": token_basis}
        request = self._request(now, {**arguments, "force": force, "overflowed": overflowed})
        situation = self._situation(now, request)
        is_early = situation.prompt_tokens < situation.threshold_tokens
        decision = decide(msgspec.structs.replace(situation, ahead=is_early))
        if not decision.fold or decision.pause or not now.messages:
            return None
        return Preparation(self._steps_ahead(now, now.running.now, request, decision))

    def _steps_ahead(
        self, now: N, tally: Tally, request: CompactionRequest, decision: Decision
    ) -> Generator[Question, SummaryAnswer, PreparedFold]:
        guard = CooldownGuard(self.setup.writer(local=decision.local), decision, self.setup.clock)
        flow = carry_out(self.setup.engine, request, decision)
        step = advance(flow)
        while isinstance(step, SummaryRequest):
            step = advance(flow, (yield Question(guard, step)))
        outcome = msgspec.structs.replace(step, state=guard.settle(step.state))
        return PreparedFold(now, tally, decision.apply(request), outcome.with_readiness("prepared"))

    def swap(self, ready: PreparedFold) -> Compacted[Self] | None:
        """Replace the view with a prepared fold and the messages added since; return None if it no longer fits.

        If its summary failed, only the cooldown is kept. A fold that changed nothing counts as a strike.
        """
        now = self._now()
        failed = ready.outcome.state if ready.has_failed else None
        if failed is not None:
            state = with_cooldown_of(now.memory.state, failed)
            self._learn(now, msgspec.structs.replace(now.memory, state=state))
        if failed is not None or not now.extends(ready.now, ready.tally):
            return None
        if not ready.outcome.changed:
            self._leave_unchanged(now, ready.outcome)
            return None
        since = now.messages[ready.tally.count :]
        outcome = msgspec.structs.replace(ready.outcome, messages=(*ready.outcome.messages, *since))
        with self._hold(now) as hold:
            if isinstance(hold, Refusal):
                return self._refuse(ready.request, hold)
            return self._finish(now, ready.request, outcome, hold)

    def has_content(self, messages: Any) -> bool:
        """Return whether a forced compaction of these messages would fold anything."""
        job = CompactionContext(msgspec.structs.replace(self.setup.request(read(messages), self.state), force=True))
        return bool(job.new_turns(plan_whole(job)))

    def _system(self, dialect: type[Dialect], *, noted: bool) -> Message | None:
        """Return the system prompt, with the compaction note if `noted`."""
        if self.setup.system is None:
            return None
        system = Message.over(self.setup.system, dialect.read_system)
        return with_note(system) if noted else system


class SavedConversation(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of a conversation as plain JSON, without calibration anchors: sizes are measured again."""

    state: CompactionState = CompactionState()
    ratio: float = 1.0
    samples: int = 0
    context_length: int | None = None
    archive: dict[str, list[Any]] = {}
    health: Health = Health()


def resume_in_memory(setup: Setup, memory: ConversationMemory, keeper: Keeper) -> MemoryConversation:
    """Return an in-memory conversation with the memory and the keeper of a stored one."""
    conversation = MemoryConversation(setup)
    conversation._memory, conversation._keeper = memory, keeper
    return conversation


class MemoryConversation(Conversation[Snapshot]):
    """Conversation in this process, for use by one thread."""

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._keeper: Keeper | None = None
        self.reset()

    def reset(self) -> None:
        self.archive: dict[str, tuple[Message, ...]] = {}
        self.last = None
        self._memory = ConversationMemory()
        self._replace((), DEFAULT_DIALECT)

    def _request(self, now: Snapshot, arguments: CompactArguments) -> CompactionRequest:
        return msgspec.structs.replace(super()._request(now, arguments), keeper=self._keeper)

    def _replace(self, messages: Transcript, dialect: type[Dialect]) -> None:
        self._messages, self._dialect = list(messages), dialect
        self._tally = RunningTally(self.setup.meter)

    def _count_messages(self) -> RunningTally:
        self._tally.meter = self.setup.meter
        self._tally.extend(self._messages[self._tally.now.count :])
        return self._tally

    def _now(self) -> Snapshot:
        is_counted = self._tally.now.count == len(self._messages)
        held = lambda: tuple(self._messages)  # noqa: E731 - short, and evaluated only where messages are needed
        return Snapshot(self._memory, self._dialect, self._count_messages, held, is_counted=is_counted)

    def _learn(self, now: Snapshot, memory: ConversationMemory) -> None:
        self._memory = memory

    def append(self, messages: Any) -> None:
        """Append messages and count them, so that later decisions are cheap."""
        document = read(messages if isinstance(messages, Mapping | bytes | str) else list(messages))
        if not self._messages:
            self._dialect = document.dialect
        self._messages.extend(document.messages)
        self._count_messages()

    def sync(self, messages: Any) -> Sync[Self]:
        """Replace the conversation with these messages; a request body also sets the system prompt and tools."""
        document = messages if isinstance(messages, Document) else read(messages)
        system = self.setup.system if document.system is None else plain(document.system.wire)
        tools = document.setting("tools") or self.setup.tools
        if (system, tools) != (self.setup.system, self.setup.tools):
            self.setup.update_prompt(system, tools)
        self._replace(document.messages, document.dialect)
        return Sync(self, 0, len(document.messages))

    def resume(self, messages: Any) -> None:
        """Replace the conversation with these messages and restore the state from a handoff in them."""
        self.sync(messages)
        state = CompactionContext(self._request(self._now(), {})).state
        if state.count:
            self._memory = msgspec.structs.replace(self._memory, state=state)

    def view(self) -> View:
        items = tuple(Item(message) for message in self._messages)
        system = self._system(self._dialect, noted=self._memory.noted)
        return View(items, self._dialect, system, self.setup.tools)

    def unfold(self, handle: str) -> list[Any]:
        return Archive(self.archive).originals(handle)

    def recall(self, page: int = PAGE) -> Recall:
        bounds = AnswerBounds.of(self.setup.budget.threshold_tokens, page)
        return InMemorySource(self.archive).recall(self.setup.redactor or redact, bounds, self.setup.clock)

    def _commit(self, now: Snapshot, request: CompactionRequest, outcome: Outcome, hold: Any) -> Compacted[Self]:
        self.archive.update(outcome.archive)
        noted = self._memory.noted or outcome.system is not request.system
        memory = self._memory.calibrate(self._memory.calibration.without_anchor())
        self._memory = msgspec.structs.replace(memory, state=outcome.state, noted=noted)
        self._replace(outcome.messages, now.dialect)
        return Compacted(outcome.receipt, self)

    def save(self) -> dict[str, Any]:
        memory, shelf, window = self._memory, Archive(self.archive), self.setup.context_length
        saved = SavedConversation(
            state=memory.state, ratio=memory.ratio, samples=memory.samples, context_length=window, health=memory.health
        )
        value: dict[str, Any] = msgspec.to_builtins(saved)
        value["archive"] = {handle: [plain(item) for item in shelf.originals(handle)] for handle in shelf}
        return value

    def restore(self, saved: Mapping[str, Any]) -> None:
        known = msgspec.convert(saved, SavedConversation)
        self.setup.update_model(self.setup.model, known.context_length)
        memory = ConversationMemory(state=known.state, ratio=known.ratio, samples=known.samples, health=known.health)
        self._memory = msgspec.structs.replace(memory, noted=known.state.count > 0)
        self.archive = {handle: read(messages).messages for handle, messages in known.archive.items()}
