"""`midfold.compact`: any message shape in, the same shape out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import msgspec

from midfold.cache import PromptCacheHint
from midfold.cache.breakpoints import default_hints
from midfold.cache.markers import mark
from midfold.compaction.archive import Archive
from midfold.compaction.boundary import Protection
from midfold.compaction.budget import Budget, plan_budget
from midfold.compaction.context import with_size
from midfold.compaction.media import MediaReducer
from midfold.compaction.receipt import Boundary, Receipt
from midfold.compaction.redact import redact
from midfold.compaction.request import CompactionRequest, CompactionState, Options, Outcome, Redactor
from midfold.decide import Decision, decide, situation_of
from midfold.engines import ContextEngine
from midfold.engines.guard import ask_engine, carry_out
from midfold.errors import ConfigError
from midfold.model import Summarizer, drive, local_summarizer
from midfold.model.run import CooldownGuard
from midfold.models import Belief, look_up
from midfold.plugins import engine_for
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import Document, prefix_request, read, tool_of, write
from midfold.transcript.message import Message, Tool, Transcript, Usage, read_usage
from midfold.transcript.tokens import Meter

if TYPE_CHECKING:
    from midfold.config import Config


class Compaction:
    """Result of `compact`: the conversation in the caller's own shape, and the receipt."""

    def __init__(
        self,
        document: Document,
        outcome: Outcome,
        meter: Meter,
        *,
        tools: tuple[Tool, ...] = (),
        model: str | None = None,
        config: Config | None = None,
    ) -> None:
        self._document = document
        self._tools, self._model, self._config = tools, model, config
        self.meter = meter
        self._outcome = outcome
        self.receipt: Receipt = outcome.receipt
        self.state: CompactionState = outcome.state
        self.archive: Archive = outcome.archive
        self.transcript: Transcript = outcome.messages

    @property
    def report(self) -> Receipt:
        """Return the receipt (its name in version 0.1)."""
        return self.receipt

    @cached_property
    def messages(self) -> Any:
        """Return the shape that came in: a list, a request body, or bytes; the same object if nothing changed."""
        if not self._outcome.changed:
            return self._document.source
        inside = self._document.system is not None
        return write(self._document, messages=self.transcript, system=self._outcome.system if inside else None)

    @property
    def system(self) -> Any:
        """Return the separate system prompt in the caller's shape, with the note of the first compaction."""
        system = self._outcome.system
        if system is None or system.wire is not None:
            return None if system is None else system.wire
        return self._document.dialect.system_value(system, system.origin)

    @property
    def dialect(self) -> type[Dialect]:
        return self._document.dialect

    @property
    def before(self) -> Transcript:
        """Return the transcript as it was read."""
        return self._document.messages

    @property
    def changed(self) -> bool:
        return self._outcome.changed

    @property
    def boundary(self) -> Boundary | None:
        return self.receipt.boundary

    @cached_property
    def cache_hints(self) -> tuple[PromptCacheHint, ...]:
        """Return where stable prefixes end, for the provider that this shape and model usually mean."""
        return hints_of(
            self.transcript,
            self._tools,
            _settings(self._config),
            system=self._outcome.system,
            dialect=self._document.dialect.name,
            model=self._model,
        )


def compact(
    messages: Any,
    *,
    system: Any = None,
    tools: list[Any] | None = None,
    model: str | None = None,
    context_length: int | None = None,
    output_reservation: int | None = None,
    target_tokens: int | None = None,
    usage: Usage | Mapping[str, Any] | None = None,
    state: CompactionState | Mapping[str, Any] | None = None,
    lineage: str = "",
    focus: str | None = None,
    force: bool = False,
    keep_last_exchanges: int | None = None,
    config: Config | None = None,
    summarizer: Summarizer | None = None,
    redactor: Redactor | None = None,
    media_reducer: MediaReducer | None = None,
    engine: ContextEngine | None = None,
    protection: Protection | None = None,
    clock: Callable[[], float] = time.time,
) -> Compaction:
    """Compact a conversation if it has reached its threshold, or if asked to.

    `messages` is a list, a whole request body, or the bytes of either, in OpenAI chat, OpenAI Responses or Anthropic
    shape. Without a `summarizer`, the one named by `config` writes the summary; without a `config`, it is written
    locally, without a model. `protection` sets what must stay, by the names of the specification. A `media_reducer`
    gets the pictures of old messages and may return a smaller picture or a text. A `state` belongs to the
    conversation whose handoff is in the messages; without such a handoff it is used only for its own `lineage`, and
    cleared otherwise. Raises TranscriptError if a value holds NaN or an infinity, because originals are stored as
    JSON. A compaction that fails, or would not help, returns its input, and `receipt` says why.
    """
    document = read(messages)
    if not isinstance(messages, bytes | bytearray | memoryview | str):
        document.require_valid_json()
    request = request_for(
        document,
        system=system,
        tools=tools,
        model=model,
        context_length=context_length,
        output_reservation=output_reservation,
        usage=usage,
        state=state,
        lineage=lineage,
        config=config,
        redactor=redactor,
        media_reducer=media_reducer,
        protection=protection,
    )
    request = msgspec.structs.replace(
        request, focus=focus, force=force, target_tokens=target_tokens, keep_last_exchanges=keep_last_exchanges
    )
    chosen, request = engine_for(config, engine), with_size(request)
    decision = _decide(request, chosen, clock())
    guard = CooldownGuard(summarizer or _default_summarizer(config, request.model), decision, clock)
    outcome = drive(carry_out(chosen, request, decision), guard)
    outcome = msgspec.structs.replace(outcome, state=guard.settle(outcome.state))
    return Compaction(document, outcome, request.meter, tools=request.tools, model=request.model, config=config)


def _decide(request: CompactionRequest, engine: ContextEngine, now: float) -> Decision:
    situation = situation_of(request, request.prompt_tokens or 0, now)
    if not situation.asked and situation.enabled:
        situation = ask_engine(engine, request, situation)
    return decide(situation)


def _default_summarizer(config: Config | None, model: str | None) -> Summarizer:
    if config is None:
        return local_summarizer
    from midfold.model.summarizer import summarizer_for

    return summarizer_for(config, model)


def request_for(
    document: Document,
    *,
    system: Any = None,
    tools: list[Any] | None = None,
    model: str | None = None,
    context_length: int | None = None,
    output_reservation: int | None = None,
    usage: Usage | Mapping[str, Any] | None = None,
    state: CompactionState | Mapping[str, Any] | None = None,
    lineage: str = "",
    config: Config | None = None,
    redactor: Redactor | None = None,
    media_reducer: MediaReducer | None = None,
    protection: Protection | None = None,
) -> CompactionRequest:
    """Return the compaction request for a document."""
    settings = _settings(config)
    belief = believe(model or document.model, settings)
    reservation = output_reservation if output_reservation is not None else settings.compression.output_reservation
    reservation = reservation or document.max_output or 0
    if not context_length and belief.model.kept_for_output:
        reservation = max(reservation, belief.model.kept_for_output)
    return CompactionRequest(
        messages=document.messages,
        system=document.system or _system(document, system),
        tools=document.tools if tools is None else tuple(tool_of(tool) for tool in tools),
        budget=budget_for(context_length or belief.model.context_window, reservation, settings),
        meter=meter_for(belief),
        redact=redactor or redact,
        media_reducer=media_reducer,
        usage=usage if usage is None or isinstance(usage, Usage) else read_usage(usage),
        state=state if isinstance(state, CompactionState) else msgspec.convert(state or {}, CompactionState),
        lineage=lineage,
        options=options_for(settings, document, protection),
        window_source="given" if context_length else belief.why,
        model=model or document.model,
        cached_prefix=partial(
            _marked_prefix, document, system=system, tools=tools, model=model or document.model, settings=settings
        ),
    )


def _marked_prefix(
    document: Document,
    messages: Transcript,
    instruction: str,
    wire: str,
    *,
    system: Any,
    tools: Any,
    model: str | None,
    settings: Config,
) -> Any:
    """Return the cached request with an instruction at its end, with cache markers and a key where the provider uses
    them.

    Markers are placed before the instruction, which no later request repeats.
    """
    body = prefix_request(document, messages, instruction, wire, system=system, tools=tools)
    dialect = document.dialect.name
    if body is None or (model is None and dialect != "anthropic"):
        return body
    asked = read(body, dialect=dialect)
    hints = hints_of(asked.messages[:-1], asked.tools, settings, system=asked.system, dialect=dialect, model=model)
    return mark(asked, hints)


def _settings(config: Config | None) -> Config:
    if config is not None:
        return config
    from midfold.config import Config

    return Config()


def believe(model: str | None, settings: Config) -> Belief:
    """Return what is known about a model, with the configuration's overrides."""
    if model is not None and not isinstance(model, str):
        raise ConfigError(f"model: expected the name of a model, found {model!r}")
    return look_up(model, settings.models)


def hints_of(
    messages: Transcript,
    tools: tuple[Tool, ...],
    settings: Config,
    *,
    system: Message | None,
    dialect: str,
    model: str | None,
    provider: str = "",
    session_id: str = "",
) -> tuple[PromptCacheHint, ...]:
    """Return cache hints according to the settings."""
    caching = settings.prompt_caching
    return default_hints(
        messages,
        tools,
        system=system,
        dialect=dialect,
        model=model,
        provider=provider,
        ttl=caching.cache_ttl,
        strategy=caching.strategy,
        setting=caching.enabled,
        models=settings.models,
        session_id=session_id,
    )


def budget_for(context_length: int, reservation: int | None, settings: Config) -> Budget:
    compression = settings.compression
    if not _is_count(context_length):
        raise ConfigError(f"context_length: expected a positive number of tokens, found {context_length!r}")
    return plan_budget(
        context_length,
        output_reservation=reservation,
        ratio=compression.threshold,
        target_ratio=compression.target_ratio,
        minimum_context_floor=compression.minimum_context_floor,
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def meter_for(belief: Belief) -> Meter:
    return Meter(factor=belief.model.factor, message_overhead=belief.model.message_overhead)


def options_for(settings: Config, document: Document | None = None, protection: Protection | None = None) -> Options:
    compression = settings.compression
    dialect = "" if document is None else document.dialect.name
    return Options(
        enabled=compression.enabled,
        protection=protection or Protection(protect_last_n=compression.protect_last_n),
        prune=compression.prune,
        orphan_calls=compression.orphan_calls,
        lossy_fallback=compression.lossy_fallback,
        verify=compression.verify,
        result_role="user" if dialect == "anthropic" else "tool",
        batches_of_items=dialect == "openai-responses",
    )


def _system(document: Document, system: Any) -> Message | None:
    return None if system is None else Message.over(system, document.dialect.read_system)
