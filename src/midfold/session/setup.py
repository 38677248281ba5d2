"""How a conversation is kept: engine, model, window and prompt, and the numbers that follow from them."""

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
"""Times what the last messages brought: the next ones may bring more."""
PLAINEST = DIALECTS["openai-chat"]
"""Of messages that nobody has read yet."""


class Setup:
    """How a conversation is kept: engine, model, window and prompt, and the numbers that follow from them."""

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
        """More messages are folded, whatever their size; 0: any number may be sent."""
        self.leaves_room = leaves_room
        """Whether a fold is made deeper where it would soon be followed by another."""
        self.system, self.tools = system, list(tools)
        self.has_unfold_tool = False
        """Whether the model can have originals shown by a tool that is not among these."""
        self.late_tools: list[Any] = []
        """Tools that the next fold brings along: those for looking back."""
        self.recall = RecallCost()
        """What looking back has cost so far, where somebody counts it."""
        self.cached_prefix: CachedPrefix | None = None
        """Writes the request that the provider has cached, where somebody has the very bytes; see `request`."""
        self.cached_price: float | None = None
        """What a token of it costs, as a share of a new one's price; None: as the cache's health tells."""
        self.update_model(model, context_length)

    def copy(self) -> Setup:
        """The same for another conversation."""
        other = copy(self)
        other.tools, other.late_tools = list(self.tools), list(self.late_tools)
        other._derive()
        return other

    def update_model(self, model: str | None, context_length: int | None = None) -> None:
        """Another model, or other settings: every number is derived anew."""
        self.model, self.context_length = model, context_length
        self._chosen: Summarizer | None = None
        self._derive()

    def update_prompt(self, system: Any, tools: Sequence[Any] = ()) -> None:
        """Another system prompt or other tools beside the messages."""
        self.system, self.tools = system, list(tools)
        self._derive()

    def bring_tools(self) -> None:
        """What a fold brings along is there from now on, at the end: what stands before it stays as it was."""
        if self.late_tools:
            tools, self.late_tools = [*self.tools, *self.late_tools], []
            self.update_prompt(self.system, tools)

    def recall_cost(self, dialect: type[Dialect]) -> RecallCost:
        """What a fold adds to the price of looking back: tools it brings along are written, and all behind them."""
        if not self.late_tools:
            return self.recall
        late = self.meter.tool_units(map(tool_of, self.late_tools))
        fixed = self.fixed_size(dialect)
        tokens = self.meter.tokens(fixed.units + late, fixed.messages)
        return msgspec.structs.replace(self.recall, introduced_tokens=tokens)

    def correct_window(self, limit: int | None) -> bool:
        """The window is smaller than was believed; says whether that is news."""
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
        """What stands beside the messages of every request."""
        found = self._fixed.get(dialect.name)
        if found is None:
            system = None if self.system is None else Message.over(self.system, dialect.read_system)
            found = self._fixed[dialect.name] = self.meter.fixed_size(system, map(tool_of, self.tools))
        return found

    def request(self, document: Document, state: CompactionState) -> CompactionRequest:
        """What an engine is asked to do with a conversation."""
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
        """The same without messages, for who decides by size; it is made once."""
        if self._bare is None:
            self._bare = self.request(of_messages((), PLAINEST), state)
        return msgspec.structs.replace(self._bare, state=state)

    def forecast(self, situation: Situation, view: Transcript, dialect: type[Dialect]) -> Situation:
        """With what a fold of this view would leave, and for how long; in the tokens that the view was measured in."""
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
            usual_tokens=beside + late + tail + self.budget.most_summary_tokens,
            growth_tokens=int(mean * REQUESTS_AHEAD * 2 * MARGIN),
            unread_tokens=int(sum(self.meter.tokens(self.meter.units(message), 1) for message in unread) * scale),
        )

    def writer(self, *, local: bool = False) -> Summarizer:
        """Who writes summaries: the caller's, else the one the settings choose for this model, else the local one."""
        if local:
            return local_summarizer
        if self.summarizer is not None:
            return self.summarizer
        if self._chosen is None:
            self._chosen = summarizer_for(self.given_config, self.model)
        return self._chosen

    def price_of_cached(self, health: Health) -> float:
        """What a token of the cached request costs, as a share of a new one's price; 0: it is used at any price."""
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
        """When folds are cheap; None where the settings fold at the threshold only."""
        return schedule_of(self.budget, self.config, self.model, self.writer)


def _defaults() -> Config:
    from midfold.config import Config

    return Config()


def schedule_of(budget: Budget, config: Config, model: str | None, writer: Callable[[], Summarizer]) -> Schedule | None:
    """Return when compactions are cheap; None where they wait for the threshold."""
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
    """Who is paid for summaries: nobody, the model an endpoint names, or one of whom nothing is known."""
    if summarizer is local_summarizer:
        return None
    endpoint = getattr(summarizer, "endpoint", None)
    if not isinstance(endpoint, Endpoint):
        return Writer()
    prices = prices_for(endpoint.model, overrides=config.models)
    return Writer(prices=prices, reuses_prefix=endpoint.reuse_prefix)
