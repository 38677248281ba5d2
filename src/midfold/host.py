"""`EngineHost`: an engine with the stateful verbs of the specification, on plain message dicts.

    host = EngineHost(model="claude-opus-4-6")
    host.append(messages)                      # what was said; costs what is new
    host.update_from_response(usage)           # what the provider counted
    if host.should_compress():
        messages = host.compress(messages)

The host keeps the session's state (previous summary, strikes, calibration); `export` and `restore` carry it through
JSON.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from midfold.api import Compaction, believe, budget_for, meter_for, request_for
from midfold.cache.health import Health, Seen
from midfold.cache.prices import Prices, prices_for
from midfold.cache.schedule import Schedule
from midfold.fold.archive import Archive
from midfold.fold.boundary import Protection
from midfold.fold.budget import Budget, Pressure
from midfold.fold.engine import MOST_STRIKES, Compressor, ContextEngine
from midfold.fold.job import Job
from midfold.fold.receipt import Receipt, Timing
from midfold.fold.request import CompactionRequest, CompactionState, Outcome, Prepared, Redactor, prepared
from midfold.models import learn_limit
from midfold.providers import summarizer_for
from midfold.scheduling import aimed, asked_for, early_writer, is_early, may_act, schedule_for, timed
from midfold.summarize import Summarizer, drive, drive_async
from midfold.summarize.cooldown import Guard, cleared
from midfold.transcript.document import Document, read, tool_of
from midfold.transcript.message import Message, Tool, Transcript, Usage, plain, read_usage
from midfold.transcript.tokens import Calibration, Count, Meter, RunningTally, Tally

if TYPE_CHECKING:
    from midfold.config import Config


class Exported(msgspec.Struct, frozen=True, kw_only=True):
    """A host's memory as plain JSON. The calibration's anchor is left out: sizes are measured again after a restart."""

    state: CompactionState = CompactionState()
    ratio: float = 1.0
    samples: int = 0
    context_length: int | None = None
    archive: dict[str, list[Any]] = {}
    health: Health = Health()
    """What the provider's cache did; kept where folds are scheduled."""


class EngineHost:
    """One conversation and the engine that keeps it in its window."""

    def __init__(
        self,
        engine: ContextEngine | None = None,
        *,
        model: str | None = None,
        context_length: int | None = None,
        output_reservation: int | None = None,
        config: Config | None = None,
        summarizer: Summarizer | None = None,
        redactor: Redactor | None = None,
        protection: Protection | None = None,
        system: Any = None,
        tools: Sequence[Any] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        given = config
        if config is None:
            from midfold.config import Config

            config = Config()
        self.engine = engine or Compressor()
        self.config = config
        self.summarizer = summarizer
        self.clock = clock
        self._chosen: Summarizer | None = None
        self._by_config = given is not None
        self.redactor = redactor
        self.protection = protection
        self.system = system
        self.tools = list(tools)
        self.output_reservation = output_reservation
        self.state = CompactionState()
        self.last: Receipt | None = None
        self.archive: dict[str, tuple[Message, ...]] = {}
        self.health = Health()
        self._adopted = False
        self._tally = RunningTally(Meter())
        self.update_model(model, context_length)

    def like(self) -> EngineHost:
        """Another conversation's host with the same settings."""
        return EngineHost(
            self.engine,
            model=self.model,
            context_length=self.context_length,
            output_reservation=self.output_reservation,
            config=self.config if self._by_config else None,
            summarizer=self.summarizer,
            redactor=self.redactor,
            protection=self.protection,
            system=self.system,
            tools=self.tools,
            clock=self.clock,
        )

    def update_model(self, model: str | None, context_length: int | None = None) -> None:
        """Another model: every number is derived anew, and earlier strikes and failures are forgotten."""
        self.model = model
        self.context_length = context_length
        self.calibration = Calibration()
        self.state = cleared(self.state)
        self._chosen = None
        self._derive()

    def update_prompt(self, system: Any, tools: Sequence[Any] = ()) -> None:
        """Another system prompt or other tools beside the messages."""
        self.system, self.tools = system, list(tools)
        self._derive()

    def guard(self, *, force: bool = False, timing: Timing | None = None) -> Guard:
        """Who is asked for a summary now, if the session is not cooling down after a failure."""
        writer = self._summarizer()
        writer = early_writer(writer, self.config) if is_early(timing) else writer
        return Guard(writer, self.state, self.clock, force=force)

    def _summarizer(self) -> Summarizer:
        """The caller's, else the one the settings choose for this model, else the local one."""
        if self.summarizer is not None:
            return self.summarizer
        if self._chosen is None:
            self._chosen = summarizer_for(self.config if self._by_config else None, self.model)
        return self._chosen

    def _derive(self) -> None:
        belief = believe(self.model, self.config)
        reservation = self.output_reservation or self.config.compression.output_reservation
        self.window = self.context_length or belief.model.context_window
        self.budget: Budget = budget_for(self.window, reservation, self.config)
        self.meter = meter_for(belief)
        fixed: tuple[Tool, ...] = tuple(tool_of(tool) for tool in self.tools)
        self.fixed_units = self.meter.tool_units(fixed) + (self.meter.counter.count(str(self.system or "")))
        self._tally.meter = self.meter

    def append(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """What was added to the conversation."""
        self._tally.extend(read(list(messages)).messages)

    def adopt(self, messages: Transcript, state: CompactionState, calibration: Calibration) -> None:
        """A conversation that somebody else keeps, and what was learnt about it."""
        self.state, self.calibration = state, calibration
        self._tally = RunningTally(self.meter, messages)
        self._adopted = True

    def extend(self, messages: Transcript) -> None:
        """The same as `append`, for messages that are read already."""
        self._tally.extend(messages)

    def request(self, document: Document, **asked: Any) -> CompactionRequest:
        """What an engine is asked to do with a conversation."""
        request = request_for(
            document,
            system=self.system,
            tools=self.tools,
            model=self.model,
            context_length=self.window,
            output_reservation=self.output_reservation,
            state=self.state,
            config=self.config,
            redactor=self.redactor,
            protection=self.protection,
        )
        return msgspec.structs.replace(request, **asked)

    def update_from_response(self, usage: Any) -> None:
        """What the provider reported for the prompt so far; an answer without usage changes nothing."""
        reported: Usage | None = usage if isinstance(usage, Usage) else read_usage(usage)
        if reported is not None:
            self.calibration = self.calibration.observe(
                self._tally.now, reported.prompt_tokens, fixed_units=self.fixed_units, meter=self.meter
            )
            schedule, threshold = self.schedule, self.budget.threshold_tokens
            if reported.prompt_tokens < (threshold if schedule is None else threshold * schedule.soft):
                self.state = msgspec.structs.replace(self.state, ineffective=0)
            if schedule is not None and not self._adopted:
                self.health = self.health_after(self.health, reported, self.clock(), self.state.count)

    def health_after(self, known: Health, usage: Usage, now: float, compaction: int) -> Health:
        """The health of the cache after one more answer."""
        asked: dict[str, Any] = {"model": self.model, "tools": self.tools, "system": self.system}
        seen = Seen.of(**asked, messages=self.measured, compaction=compaction)
        continues = known.seen is None or self.starts_with(known.seen.messages)
        return known.observe(usage, seen, at=now, prices=self.prices, continues=continues)

    def update_from_error(self, message: str) -> bool:
        """An overflow error that names its limit corrects the window; says whether it did."""
        return self.correct_window(learn_limit(message))

    def correct_window(self, limit: int | None) -> bool:
        """The window is smaller than was believed; says whether that is news."""
        if limit is None or limit >= self.window:
            return False
        self.context_length = limit
        self._derive()
        return True

    @property
    def measured(self) -> Tally:
        """The messages so far, as usage is bound to them."""
        return self._tally.now

    def starts_with(self, tally: Tally) -> bool:
        """Whether these messages are still the beginning of the conversation."""
        return self._tally.starts_with(tally)

    @property
    def size(self) -> Count:
        """The size of the next request, and what that number rests on."""
        return self.calibration.predict(self._tally, fixed_units=self.fixed_units)

    def pressure(self, prompt_tokens: int | None = None) -> Pressure:
        """How urgent it is; independent of the length of the conversation."""
        if not self.config.compression.enabled or self.state.ineffective >= MOST_STRIKES:
            return Pressure.NONE
        return self.budget.pressure(self.size.tokens if prompt_tokens is None else prompt_tokens)

    @property
    def schedule(self) -> Schedule | None:
        """When folds are cheap; None where the settings fold at the threshold only."""
        return schedule_for(self.budget.threshold_tokens, self.config, self.model, self._summarizer)

    @property
    def prices(self) -> Prices:
        return prices_for(self.model, self.config.prompt_caching.cache_ttl, self.config.models)

    def timing(
        self,
        prompt_tokens: int | None = None,
        health: Health | None = None,
        *,
        now: float | None = None,
        upcoming_idle: float | None = None,
    ) -> Timing | None:
        """Whether to fold before the next request, and the numbers behind it; None where folds are not scheduled.

        `upcoming_idle`: how many seconds nothing will be sent from now on, where somebody knows.
        """
        schedule, known = self.schedule, self.health if health is None else health
        if schedule is None:
            return None
        timing = schedule.timing(
            prompt_tokens=self.size.tokens if prompt_tokens is None else prompt_tokens,
            fixed_tokens=self.meter.tokens(self.fixed_units),
            health=known,
            now=self.clock() if now is None else now,
            switched=known.seen is not None and known.seen.model != (self.model or ""),
            upcoming_idle=upcoming_idle,
        )
        return timing if may_act(timing, self.state.ineffective) else None

    def aim(self, prompt_tokens: int | None = None) -> int | None:
        """The size a fold of this conversation should land at, where folds are scheduled."""
        schedule = self.schedule
        tokens = self.size.tokens if prompt_tokens is None else prompt_tokens
        return None if schedule is None else schedule.target(tokens)

    def should_compress(self, prompt_tokens: int | None = None) -> bool:
        """Whether to fold before the next request: at the threshold, or at a cheap moment where folds are scheduled."""
        timing = self.timing(prompt_tokens)
        return self.pressure(prompt_tokens) is Pressure.HARD or (timing is not None and timing.fold)

    def compress(
        self,
        messages: Any,
        current_tokens: int | None = None,
        focus_topic: str | None = None,
        force: bool = False,
        keep_last_exchanges: int | None = None,
    ) -> Any:
        """The conversation folded, in the caller's shape; the very same object if there was nothing to do."""
        asked = {"focus": focus_topic, "force": force, "keep_last_exchanges": keep_last_exchanges}
        if self._is_off(asked):
            return messages
        document = read(messages)
        request, timing = self._due(self.request(document, prompt_tokens=current_tokens, **asked))
        guard = self.guard(force=force, timing=timing)
        return self._settled(document, timed(drive(self.engine.compress(request), guard), timing), guard)

    async def compress_async(self, messages: Any, current_tokens: int | None = None, **asked: Any) -> Any:
        """The same, for an event loop: a summarizer with a `later` is awaited, any other runs in a thread.

        `asked` are fields of a `CompactionRequest`: `focus`, `force`, `keep_last_exchanges`, `target_tokens`.
        """
        if self._is_off(asked):
            return messages
        document = read(messages)
        request, timing = self._due(self.request(document, prompt_tokens=current_tokens, **asked))
        guard = self.guard(force=bool(asked.get("force")), timing=timing)
        outcome = await drive_async(self.engine.compress(request), guard.later)
        return self._settled(document, timed(outcome, timing), guard)

    def _due(self, request: CompactionRequest) -> tuple[CompactionRequest, Timing | None]:
        """An automatic compaction as the schedule wants it; one that was asked for stays as it is."""
        if self.schedule is None or asked_for(request):
            return request, None
        timing = self.timing(Job(request).prompt_tokens)
        return aimed(request, self.schedule, timing), timing

    def _is_off(self, asked: Mapping[str, Any]) -> bool:
        """Whether this would be an automatic compaction, and those are disabled."""
        forced = asked.get("force") or asked.get("keep_last_exchanges") is not None
        return not self.config.compression.enabled and not forced

    def _settled(self, document: Document, outcome: Outcome, guard: Guard) -> Any:
        self.state, self.last = guard.settled(outcome.state), outcome.receipt
        return self._committed(document, outcome) if outcome.changed else document.source

    def prepare(self, messages: Any, current_tokens: int | None = None) -> Prepared | None:
        """A compaction ahead of time, for `swap`. The host stays as it is, so another thread may do this."""
        document, state = read(messages), self.state
        target = self.aim(current_tokens)
        request = self.request(document, prompt_tokens=current_tokens, force=True, target_tokens=target)
        guard = self.guard()
        outcome = drive(self.engine.compress(request), guard)
        if outcome.receipt.summary.failure:
            return None
        return prepared(outcome, document.messages, state)

    def swap(self, messages: Any, ready: Prepared) -> Any:
        """The conversation with a prepared fold in it; the very same object if it no longer fits."""
        document = read(messages)
        if ready.fits(document.messages, self.state):
            return messages
        view = ready.swapped(document.messages)
        outcome = msgspec.structs.replace(ready.outcome, messages=view)
        self.state, self.last = outcome.state, outcome.receipt
        return self._committed(document, outcome)

    def _committed(self, document: Document, outcome: Outcome) -> Any:
        self.archive.update(outcome.archive)
        result = Compaction(document, outcome, self.meter, model=self.model, config=self.config)
        self.calibration = self.calibration.without_anchor()
        self._tally = RunningTally(self.meter, outcome.messages)
        return result.messages

    def has_content_to_compress(self, messages: Any) -> bool:
        """Whether a forced compaction would fold anything."""
        job = Job(request_for(read(messages), context_length=self.window, state=self.state, config=self.config))
        return bool(job.new_turns(job.plan()))

    def unfold(self, handle: str) -> list[Any]:
        """The originals behind a handle of this session."""
        return Archive(self.archive).originals(handle)

    def reset(self) -> None:
        """A new conversation: nothing of the old one is kept."""
        self.state = CompactionState()
        self.archive = {}
        self.last = None
        self.health = Health()
        self.calibration = Calibration()
        self._tally = RunningTally(self.meter)

    def export(self) -> dict[str, Any]:
        """What must survive a restart, as plain JSON."""
        kept = Exported(
            state=self.state,
            ratio=self.calibration.ratio,
            samples=self.calibration.samples,
            context_length=self.context_length,
            health=self.health,
        )
        value: dict[str, Any] = msgspec.to_builtins(kept)
        shelf = Archive(self.archive)
        value["archive"] = {handle: [plain(item) for item in shelf.originals(handle)] for handle in shelf}
        return value

    def restore(self, exported: Mapping[str, Any]) -> None:
        """The memory of an earlier host of the same conversation."""
        kept = msgspec.convert(exported, Exported)
        self.context_length = kept.context_length
        self._derive()
        self.state, self.health = kept.state, kept.health
        self.calibration = Calibration(kept.ratio, kept.samples)
        self.archive = {handle: read(messages).messages for handle, messages in kept.archive.items()}
