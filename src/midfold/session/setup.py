"""Setup of a conversation: engine, model, context window and prompt, and the limits derived from them."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from copy import copy
from itertools import takewhile
from typing import TYPE_CHECKING, Any

import msgspec

from midfold.api import believe, budget_for, meter_for, request_for
from midfold.cache.health import Health
from midfold.cache.prices import Prices, prices_for
from midfold.cache.schedule import Schedule, Writer
from midfold.compaction.boundary import Protection
from midfold.compaction.budget import Budget
from midfold.compaction.handoff import MARKER
from midfold.compaction.media import MediaReducer
from midfold.compaction.receipt import RecallCost
from midfold.compaction.request import CachedPrefix, CompactionRequest, CompactionState, Redactor
from midfold.decide import Situation
from midfold.engines import ContextEngine
from midfold.model import Summarizer, local_summarizer
from midfold.model.endpoint import Endpoint
from midfold.model.summarizer import summarizer_for
from midfold.plugins import engine_for
from midfold.store.intake import of_messages
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import DIALECTS, Document, tool_of
from midfold.transcript.message import RESULT, Message, Transcript
from midfold.transcript.tokens import FixedSize, Meter

if TYPE_CHECKING:
    from midfold.config import Config

REQUESTS_AHEAD = 10
MARGIN = 1.2
"""Safety factor for the expected growth per message."""
DEFAULT_DIALECT = DIALECTS["openai-chat"]
"""Dialect assumed for messages that have not been read yet."""


class Setup:
    """Engine, model, context window and prompt of a conversation, and the limits derived from them."""

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
        media_reducer: MediaReducer | None = None,
        protection: Protection | None = None,
        system: Any = None,
        tools: Sequence[Any] = (),
        clock: Callable[[], float] = time.time,
        most_messages: int = 0,
        leaves_room: bool = False,
    ) -> None:
        self.engine: ContextEngine = engine_for(config, engine)
        self.given_config = config
        self.config: Config = config or _defaults()
        self.summarizer = summarizer
        self.redactor, self.protection = redactor, protection
        self.media_reducer = media_reducer
        self.output_reservation = output_reservation
        self.clock = clock
        self.most_messages = most_messages
        """Number of messages from which to compact, whatever their size; 0 for no limit."""
        self.leaves_room = leaves_room
        """True to compact deeper if another compaction would soon follow."""
        self.system, self.tools = system, list(tools)
        self.has_unfold_tool = False
        """True if the model can unfold originals with a tool that is not in `tools`."""
        self.late_tools: list[Any] = []
        """Recall tools that the next compaction adds."""
        self.recall = RecallCost()
        """Recall costs so far, if the host counts them."""
        self.cached_prefix: CachedPrefix | None = None
        """Function that builds the request the provider has cached, if the host has its exact bytes; see `request`."""
        self.cached_price: float | None = None
        """Price of a cached token relative to a new one; None to derive it from the cache statistics."""
        self.update_model(model, context_length)

    def copy(self) -> Setup:
        """Return a copy for another conversation."""
        other = copy(self)
        other.tools, other.late_tools = list(self.tools), list(self.late_tools)
        other._derive()
        return other

    def update_model(self, model: str | None, context_length: int | None = None) -> None:
        """Set the model and recompute all limits."""
        self.model, self.context_length = model, context_length
        self._chosen: Summarizer | None = None
        self._derive()

    def update_prompt(self, system: Any, tools: Sequence[Any] = ()) -> None:
        """Set the system prompt and the tools."""
        self.system, self.tools = system, list(tools)
        self._derive()

    def add_late_tools(self) -> None:
        """Append the tools that a compaction adds, at the end, so that the cached prefix before them is unchanged."""
        if self.late_tools:
            tools, self.late_tools = [*self.tools, *self.late_tools], []
            self.update_prompt(self.system, tools)

    def recall_cost(self, dialect: type[Dialect]) -> RecallCost:
        """Return the recall costs, including the cache write that adding tools causes."""
        if not self.late_tools:
            return self.recall
        late = self.meter.tool_units(map(tool_of, self.late_tools))
        fixed = self.fixed_size(dialect)
        tokens = self.meter.tokens(fixed.units + late, fixed.messages)
        return msgspec.structs.replace(self.recall, introduced_tokens=tokens)

    def correct_window(self, limit: int | None) -> bool:
        """Reduce the context window to `limit`; return whether it changed."""
        if limit is None or limit >= self.window:
            return False
        self.context_length = limit
        self._derive()
        return True

    def _derive(self) -> None:
        belief = believe(self.model, self.config)
        reservation = self.output_reservation or self.config.compression.output_reservation
        if not self.context_length and belief.model.kept_for_output:
            reservation = max(reservation or 0, belief.model.kept_for_output)
        self._reservation = reservation or None
        self.window: int = self.context_length or belief.model.context_window
        self.budget: Budget = budget_for(self.window, reservation, self.config)
        self.meter: Meter = meter_for(belief)
        self._fixed: dict[str, FixedSize] = {}
        self._bare: CompactionRequest | None = None

    def fixed_size(self, dialect: type[Dialect]) -> FixedSize:
        """Return the size of the system prompt and tools, which every request contains."""
        found = self._fixed.get(dialect.name)
        if found is None:
            system = None if self.system is None else Message.over(self.system, dialect.read_system)
            found = self._fixed[dialect.name] = self.meter.fixed_size(system, map(tool_of, self.tools))
        return found

    def request(self, document: Document, state: CompactionState) -> CompactionRequest:
        """Return the engine's request for a conversation."""
        request = request_for(
            document,
            system=self.system,
            tools=self.tools,
            model=self.model,
            context_length=self.window,
            output_reservation=self._reservation,
            state=state,
            config=self.config,
            redactor=self.redactor,
            media_reducer=self.media_reducer,
            protection=self.protection,
        )
        late = tuple(map(tool_of, self.late_tools))
        return msgspec.structs.replace(
            request,
            late_tools=late,
            has_unfold_tool=self.has_unfold_tool,
            cached_prefix=self.cached_prefix or request.cached_prefix,
        )

    def bare_request(self, state: CompactionState) -> CompactionRequest:
        """Return a request without messages, cached, for engines that decide by size."""
        if self._bare is None:
            self._bare = self.request(of_messages((), DEFAULT_DIALECT), state)
        return msgspec.structs.replace(self._bare, state=state)

    def forecast(self, situation: Situation, view: Transcript, dialect: type[Dialect]) -> Situation:
        """Add the expected size after a compaction and the expected growth, in the tokens of the measured view."""
        fixed = self.fixed_size(dialect)
        last = [message for message in view[-REQUESTS_AHEAD * 2 :] if MARKER not in message.text]
        mean = sum(self.meter.tokens(self.meter.units(message), 1) for message in last) / max(len(last), 1)
        scale = situation.prompt_tokens / max(self.meter.count(view, fixed).tokens, 1)
        beside, mean = int(self.meter.tokens(*fixed) * scale), mean * scale
        late = int(self.meter.tokens(self.meter.tool_units(map(tool_of, self.late_tools)), 0) * scale)
        unread = takewhile(lambda message: message.kinds & RESULT, reversed(view))
        tail = max(self.budget.tail_tokens, int(mean * min(self.config.compression.protect_last_n, len(view))))
        return msgspec.structs.replace(
            situation,
            leaves_room=True,
            fixed_tokens=beside,
            late_tokens=late,
            usual_tokens=beside + late + tail + self.budget.max_summary_tokens,
            growth_tokens=int(mean * REQUESTS_AHEAD * 2 * MARGIN),
            unread_tokens=int(sum(self.meter.tokens(self.meter.units(message), 1) for message in unread) * scale),
        )

    def writer(self, *, local: bool = False) -> Summarizer:
        """Return the summarizer: the caller's, else the one configured for this model, else the built-in one."""
        if local:
            return local_summarizer
        if self.summarizer is not None:
            return self.summarizer
        if self._chosen is None:
            self._chosen = summarizer_for(self.given_config, self.model)
        return self._chosen

    def price_of_cached(self, health: Health) -> float:
        """Return the price of a cached token relative to a new one; 0 to reuse the cached prefix at any price."""
        if self.config.auxiliary.compression.reuse_prefix:
            return 0.0
        if self.cached_price is not None:
            return self.cached_price
        last = health.last
        is_warm = last is not None and self.clock() - last.at < self.prices.ttl_seconds
        return self.prices.read if is_warm else self.prices.write

    @property
    def prices(self) -> Prices:
        return prices_for(self.model, self.config.prompt_caching.cache_ttl, self.config.models)

    @property
    def schedule(self) -> Schedule | None:
        """Cache schedule; None if compactions wait for the threshold."""
        return schedule_of(self.budget, self.config, self.model, self.writer)


def _defaults() -> Config:
    from midfold.config import Config

    return Config()


def schedule_of(budget: Budget, config: Config, model: str | None, writer: Callable[[], Summarizer]) -> Schedule | None:
    """Return the cache schedule; None if compactions wait for the threshold."""
    settings = config.prompt_caching
    if settings.schedule == "threshold" or not config.compression.enabled:
        return None
    prices, automatic = prices_for(model, settings.cache_ttl, config.models), settings.schedule == "auto"
    if automatic and not prices.are_known:
        return None
    paid = None if settings.schedule_summary == "local" else _summary_writer(writer(), config)
    if automatic:
        return Schedule.automatic_for(budget, prices, paid)
    return Schedule(threshold_tokens=budget.threshold_tokens, prices=prices, writer=paid)


def _summary_writer(summarizer: Summarizer, config: Config) -> Writer | None:
    """Return the paid summary writer: None for built-in summaries, else one with the endpoint's prices, if known."""
    if summarizer is local_summarizer:
        return None
    endpoint = getattr(summarizer, "endpoint", None)
    if not isinstance(endpoint, Endpoint):
        return Writer()
    prices = prices_for(endpoint.model, overrides=config.models)
    return Writer(prices=prices, reuses_prefix=endpoint.reuse_prefix)
