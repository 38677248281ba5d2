"""When a request is large enough to be looked at, and when it must be folded.

Rules of this file:
1. Hygiene acts at 85 % of the model's context length, or where the answer that was asked for would not fit any more.
   It is higher than an agent's own threshold on purpose: an agent that manages its context never meets it.
2. `manage` acts at the engine's own threshold, and before it where folds are scheduled.
3. A body is not read while an upper bound of its tokens is below the trigger: one token for each byte (or more, where
   the provider reported more), the price of each message, and that of each picture or document.
4. What a provider's refusals tell about a window is believed as `LearnedLimits` says.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping
from math import floor
from typing import Any, NamedTuple

import msgspec

from midfold.api import believe, budget_for
from midfold.cache.prices import prices_for
from midfold.cache.schedule import AUTO_FROM, CHEAP_FROM, COLD_FROM
from midfold.compaction.request import Redactor
from midfold.config import Config
from midfold.errors import MidfoldError
from midfold.gateway.exchange import Exchange
from midfold.gateway.routes import betas, compacts_itself
from midfold.lru import LRU
from midfold.model.failures import overflow_phrases
from midfold.models import SMALLEST_LIMIT, Belief, learn_limit, look_up
from midfold.store import SqlStore
from midfold.store.usage import MOST_WINDOWS, LearnedWindows, WindowBounds
from midfold.transcript import jsonio
from midfold.transcript.jsonio import elements, entries, first_byte
from midfold.transcript.tokens import AUDIO_UNITS, DOCUMENT_UNITS, IMAGE_UNITS, Meter

_log = logging.getLogger("midfold.gateway")

# Windows of models that turned out to be smaller than the table says.
#
# Rules:
# 1. A limit is believed from the shapes that providers give their errors, and only from words of the provider's own:
#    an error that repeats what a client wrote teaches nothing by it.
# 2. A refusal that names no limit is an upper bound, the largest size that was answered a lower one. Sizes are those of
#    prompt and answer together. Without a lower bound the window is believed to be well below what was refused.
# 3. Both hold for the owner, the upstream, the model and the beta header of the request that was refused, for `LASTS`,
#    and never below a prompt that the same have had answered.
# 4. They are remembered in the store. What somebody forgets there is forgotten here soon after.


LASTS = 7 * 86_400_000
"""Milliseconds."""
REFRESHED_EVERY = 60.0
"""Seconds after which the store is asked again."""
DOUBT = 1.25
"""A size that was refused is an estimate: a larger prompt that was answered contradicts it from so much on."""
SMALLEST_REFUSED = 1_024
"""Tokens: who refuses a smaller request as too large means something else."""
WORTH_SAVING = 1.02
"""Times the lower bound: a larger answer is written down from so much on."""
MOST_PHRASES = 8
"""Of an error that names a limit so often, nothing is believed."""
PIECE, OVERLAP = 1 << 17, 400
LONGEST_BETA = 300
LONG_CONTEXT = "context-1m"
"""What the name of Anthropic's beta for windows of a million tokens begins with."""
_BESIDE = re.compile(r"[\W_]+")
_ENVELOPES = ("error", "detail", "Error")
_CODES = frozenset(("context_length_exceeded", "exceed_context_size_error"))
"""By which providers say, outside of every text, that a request was too large."""


class LimitKey(NamedTuple):
    """What a limit holds for; `name` is a hash over whose it is and the rest."""

    name: str
    owner: str = ""
    upstream: str = ""
    model: str = ""
    beta: str = ""


class _LargestAnswered(NamedTuple):
    """The largest prompt that was answered, and the largest with the answer that was asked for."""

    prompt: int = 0
    both: int = 0


class LearnedLimits:
    """The newest of them. Used on one event loop; `load` and `save` may run in threads."""

    def __init__(self, store: SqlStore | None = None, clock: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self._rows = None if store is None else LearnedWindows(store.database)
        self._answered: LRU[str, _LargestAnswered] = LRU(MOST_WINDOWS)
        self._bounds: dict[str, WindowBounds] = {}
        self._unsaved: dict[str, WindowBounds] = {}
        self._loaded = 0.0
        self.load()

    @property
    def is_any(self) -> bool:
        """Whether anything was ever refused: mostly nothing was."""
        return bool(self._bounds)

    def window(self, whose: LimitKey) -> int:
        """The size that was learned; 0 without one."""
        seen = self._bounds.get(whose.name)
        return seen.window if seen is not None and self._now < seen.ends else 0

    def learn(self, whose: LimitKey, limit: int) -> bool:
        """A refusal named this limit; says whether it is believed."""
        if limit <= self._largest(whose).prompt:
            return False
        self._put(self._bounds_of(whose), named=limit, ends=self._now + LASTS)
        return True

    def refuse(self, whose: LimitKey, tokens: int) -> bool:
        """A request of this size was refused without a word on what would fit; says whether that is believed."""
        seen, answered = self._bounds_of(whose), self._largest(whose)
        if answered.prompt > tokens * DOUBT or tokens < SMALLEST_REFUSED:
            return False
        refused = max(min(tokens, seen.refused or tokens), answered.prompt + 1)
        fitted = max((size for size in (*answered, seen.fitted) if size < refused), default=0)
        self._put(seen, refused=refused, fitted=fitted, ends=self._now + LASTS)
        return True

    def note_answer(self, whose: LimitKey, prompt: int, output: int = 0) -> None:
        """A prompt of this size was answered, so the window is not smaller; whether the answer counts is not known."""
        before = self._largest(whose)
        self._answered.put(whose.name, _LargestAnswered(max(prompt, before.prompt), max(prompt + output, before.both)))
        seen = self._bounds.get(whose.name)
        if seen is None:
            return
        named, refused = (bound if bound > prompt else 0 for bound in (seen.named, seen.refused))
        fitted = prompt + output if prompt + output < refused else prompt
        if (named, refused) != (seen.named, seen.refused) or fitted > seen.fitted * WORTH_SAVING:
            self._put(seen, named=named, refused=refused, fitted=max(fitted, seen.fitted))

    @property
    def is_stale(self) -> bool:
        """Whether it is time to ask the store again."""
        return self.is_any and self._clock() >= self._loaded + REFRESHED_EVERY

    @property
    def is_saved(self) -> bool:
        return not self._unsaved

    def load(self) -> None:
        """What the store remembers; one that does not answer changes nothing."""
        self._loaded = self._clock()
        if self._rows is None:
            return
        try:
            rows = {row.name: row for row in self._rows.all(self._now)}
        except MidfoldError as error:
            _log.warning("what is known about windows was not read: %s", type(error).__name__)
            return
        self._bounds = rows | self._unsaved

    def save(self) -> None:
        """Writes down what is new."""
        while self._unsaved and self._rows is not None:
            name, bounds = self._unsaved.popitem()
            try:
                if bounds.window:
                    self._rows.put(bounds, self._now)
                else:
                    self._rows.forget(name)
            except MidfoldError as error:
                _log.warning("what was learned about a window was not stored: %s", type(error).__name__)

    def _bounds_of(self, whose: LimitKey) -> WindowBounds:
        seen = self._bounds.get(whose.name)
        return seen if seen is not None and self._now < seen.ends else WindowBounds(*whose)

    def _largest(self, whose: LimitKey) -> _LargestAnswered:
        return self._answered.get(whose.name) or _LargestAnswered()

    def _put(self, seen: WindowBounds, **changes: int) -> None:
        bounds = msgspec.structs.replace(seen, **changes)
        self._bounds.pop(bounds.name, None)
        if len(self._bounds) >= MOST_WINDOWS:
            del self._bounds[next(iter(self._bounds))]
        self._bounds[bounds.name] = bounds
        if self._rows is not None:
            self._unsaved[bounds.name] = bounds

    @property
    def _now(self) -> int:
        return int(self._clock() * 1_000)


def is_telling(tokens: int) -> bool:
    """Whether a limit of so many tokens would be believed at all."""
    return tokens >= SMALLEST_LIMIT


def named_limit(error: bytes, request: bytes) -> int:
    """The size of the context that a provider's error names in its own words; 0 if it names none. In a thread."""
    return learn_limit(_error_text(_value(error)), is_quoted=_Quotes(request)) or 0


def is_own_refusal(error: bytes, request: bytes) -> bool:
    """Whether a provider says in its own words, or by a code, that a request was too large. In a thread."""
    value = _error_value(_value(error))
    if isinstance(value, Mapping) and _CODES & {str(value.get("code")), str(value.get("type"))}:
        return True
    is_quoted = _Quotes(request)
    return any(not is_quoted(phrase) for phrase in overflow_phrases(_error_text(value)))


class _Quotes:
    """Whether a phrase of an error is one of the request's, repeated."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._said: list[str] = []
        self._tried = 0

    def __call__(self, phrase: str) -> bool:
        self._tried += 1
        essence = _essence(phrase)
        if self._tried > MOST_PHRASES or len(essence) > OVERLAP:
            return True
        try:
            self._said.extend(_essences(self._request) if not self._said else ())
        except jsonio.NotJSON:
            return True
        return any(essence in piece for piece in self._said)


def _value(data: bytes) -> Any:
    try:
        return jsonio.decode(data)
    except jsonio.NotJSON:
        return None


def _error_value(value: Any) -> Any:
    """The error inside what providers wrap around it."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    for _ in range(2):
        inner = next((value[key] for key in _ENVELOPES if key in value), None) if isinstance(value, Mapping) else None
        value = value if inner is None else inner
    return value


def _error_text(value: Any) -> str:
    """The message in an error of a provider, and numbers that stand beside it by name; nothing in another shape."""
    value = _error_value(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        return ""
    numbers = [f"{name}: {number}" for name, number in value.items() if type(number) is int]
    message = value.get("message")
    return "\n".join([message if isinstance(message, str) else "", *numbers])


def _essences(request: bytes) -> Iterator[str]:
    """All texts of a request, in pieces that overlap: no call holds the interpreter for long."""
    before = ""
    for value in _values(request):
        for text in _texts(value):
            for start in range(0, len(text), PIECE):
                before = before[-OVERLAP:] + _essence(text[start : start + PIECE])
                yield before


def _values(request: bytes) -> Iterator[Any]:
    """What a request is made of; lists one element after the other. Raises NotJSON."""
    for name, raw in entries(request).items():
        yield name
        yield from map(jsonio.decode, elements(raw) if first_byte(raw) == b"[" else (raw,))


def _texts(value: Any) -> Iterator[str]:
    """Every text in a value."""
    waiting = [value]
    while waiting:
        value = waiting.pop()
        if isinstance(value, str):
            yield value
        elif isinstance(value, Mapping):
            waiting += [*value.values(), *value]
        elif isinstance(value, list):
            waiting += value


def _essence(text: str) -> str:
    """Letters and digits alone: however an error quotes a text, these are the same."""
    return _BESIDE.sub("", text.lower())


HYGIENE_RATIO = 0.85
AHEAD_FROM = 0.75
"""Of the trigger: from here on the next fold is prepared, where a model writes its summary."""
LEAST_MESSAGES = 4
TOKENS_PER_BYTE = 1.0
"""The most that text has: vocabularies are made of bytes."""
MESSAGE_FIELDS = (b'"role"', b'"call_id"')
"""One of these is in each message or item."""
MEDIA_FIELDS = (
    b'"image"', b'"image_url"', b'"input_image"', b'"document"', b'"file"', b'"input_file"', b'"input_audio"',
)  # fmt: skip
"""One of these is in each picture or document, also in one that is only named by its address."""
MEDIA_UNITS = max(IMAGE_UNITS, AUDIO_UNITS, DOCUMENT_UNITS)
DENSITY_DECAY = 0.9
"""Of the highest reported density, with each later report of less: conversations of one owner take turns."""
SHORTEST_MESSAGE = 20
"""Bytes of the shortest message there is; so many messages take at least so many bytes, and a brace each."""
BESIDE_ANSWER = 0.95
"""Of what the answer leaves of the window."""
MOST_FIXED = 0.75
"""Of the trigger: what may be fixed before room is made for the conversation otherwise."""
MOST_REMEMBERED = 1_000
MOST_METERS = 100
MOST_COUNTED = 50_000
"""Messages whose sizes are remembered, at some 300 bytes each."""


class ModelLimits(NamedTuple):
    """The numbers for one model and one length of answers."""

    window: int
    trigger: int
    """Tokens from which a request is folded."""
    reservation: int
    """What the answer takes of the window, where that lowers the trigger."""
    meter: Meter
    looked_at: int = 0
    """Tokens from which a request may be folded at a cheap moment; 0: from the trigger."""
    ratio: float = 0.0
    """The share of the window at which a crowded request is folded; 0: as the settings say."""
    output: int = 0
    """Tokens of the window that the answer takes."""
    is_deferred: bool = False
    """Whether the client is left to compact by itself."""

    def may_be_reached(self, body: bytes, density: float = TOKENS_PER_BYTE) -> bool:
        """Return whether a request with this body may be large enough to act on, by an upper bound of its tokens."""
        least = self.looked_at or self.trigger
        most = int(len(body) * density)
        if self.meter.tokens(most) >= least:
            return True
        media, messages = (sum(map(body.count, fields)) for fields in (MEDIA_FIELDS, MESSAGE_FIELDS))
        return self.meter.tokens(most + media * MEDIA_UNITS, messages) >= least

    def after_client(self) -> ModelLimits:
        """The same where the client compacts by itself: folds begin when hardly anything else fits."""
        left = 1.0 - self.output / self.window if self.output < self.window else 1.0
        ratio = floor(min(BESIDE_ANSWER, left) * 100) / 100
        later = self._replace(trigger=int(self.window * ratio), reservation=0, ratio=ratio)
        return (later if later.trigger > self.trigger else self)._replace(looked_at=0, is_deferred=True)

    def beside(self, fixed: int) -> ModelLimits:
        """The same where the system prompt and tools take so much that hardly a conversation fits below the trigger.

        Then no room is kept for the answer that was asked for, and as much of the window is used as must be.
        """
        if fixed <= self.trigger * MOST_FIXED:
            return self
        ratio = HYGIENE_RATIO if fixed <= self.window * HYGIENE_RATIO * MOST_FIXED else BESIDE_ANSWER
        trigger = int(self.window * ratio)
        return self._replace(trigger=trigger, reservation=0, ratio=ratio) if trigger > self.trigger else self


def whose(exchange: Exchange) -> LimitKey:
    """What a limit that is learned from this request holds for."""
    place = exchange.upstream.place if exchange.upstream is not None else ""
    model = (exchange.peek.name if exchange.peek is not None else None) or ""
    parts = [place, model.encode("utf-8", "replace").decode(), ",".join(betas(exchange.headers))[:LONGEST_BETA]]
    name = exchange.owner.bind(b"window", *(part.encode() for part in parts))
    return LimitKey(name, exchange.owner.name, *parts)


class ReportedDensities:
    """Tokens per byte of body, as providers reported them, by owner, upstream and model.

    Requests that name pictures or documents by an address have far more tokens than bytes. Only densities above that
    of any text are kept.
    """

    def __init__(self) -> None:
        self._known: LRU[str, float] = LRU(MOST_REMEMBERED)

    def note(self, exchange: Exchange, tokens: int, size: int) -> None:
        """Note what was reported for a body of this size."""
        found = tokens / max(size, 1)
        if found <= TOKENS_PER_BYTE and not self._known:
            return
        name = whose(exchange).name
        known = (self._known.peek(name) or 0.0) * DENSITY_DECAY
        if max(found, known) > TOKENS_PER_BYTE:
            self._known.put(name, max(found, known))
        else:
            self._known.forget(name)

    def of(self, exchange: Exchange) -> float:
        """Return the most tokens per byte that a request of this owner and model may have."""
        known = self._known.peek(whose(exchange).name) if self._known else None
        return known or TOKENS_PER_BYTE


def is_scheduled(config: Config) -> bool:
    """Return whether requests may be folded at cheap moments, too."""
    chosen = config.prompt_caching.schedule != "threshold"
    return chosen and config.gateway.mode == "manage" and config.compression.enabled


def least_fold_tokens(config: Config, model: str | None, trigger: int) -> int:
    """Return the tokens from which a request may have to be folded."""
    if not is_scheduled(config):
        return trigger
    if config.prompt_caching.schedule == "cheapest":
        return min(int(trigger * CHEAP_FROM), COLD_FROM)
    prices = prices_for(model, config.prompt_caching.cache_ttl, config.models)
    return min(int(trigger * AUTO_FROM), COLD_FROM) if prices.are_known else trigger


class Policy:
    """The limits by model."""

    def __init__(self, config: Config, learned: LearnedLimits | None = None) -> None:
        self.config = config
        self.mode = config.gateway.mode
        self.most_messages = config.gateway.hygiene_hard_message_limit
        self.redactor: Redactor | None = None
        """What originals go through before they are hashed and stored, where the store asks for it."""
        self.asks_engine = False
        """Whether an engine decides by something else than the size: then every request is looked at in `manage`."""
        self.prepares = False
        """Whether folds are prepared before they are needed: then requests are looked at earlier."""
        self.enabled = config.compression.enabled and self.mode != "passthrough"
        self._meters: LRU[tuple[float, int], Meter] = LRU(MOST_METERS)
        self._known: LRU[tuple[str | None, int, int], ModelLimits] = LRU(MOST_REMEMBERED)
        self.learned = learned or LearnedLimits()

    def engine_config(self, ratio: float = 0.0) -> Config:
        """The settings compactions run with: in hygiene mode, or with a ratio, the trigger is the threshold."""
        if self.mode == "manage" and not ratio:
            return self.config
        compression = msgspec.structs.replace(
            self.config.compression, threshold=ratio or HYGIENE_RATIO, minimum_context_floor=0, output_reservation=0
        )
        caching = msgspec.structs.replace(self.config.prompt_caching, schedule="threshold")
        return msgspec.structs.replace(self.config, compression=compression, prompt_caching=caching)

    def limits_of(self, exchange: Exchange) -> ModelLimits:
        """The numbers for a request whose body was peeked into."""
        assert exchange.peek is not None
        learned = self.learned.window(whose(exchange)) if self.learned.is_any else 0
        model = exchange.peek.name
        if model is not None and any(beta.startswith(LONG_CONTEXT) for beta in betas(exchange.headers)):
            model = f"{model}[1m]"
        limits = self.limits(model, exchange.peek.output, learned)
        return limits.after_client() if self._is_left_to_client(exchange, model, limits) else limits

    def _is_left_to_client(self, exchange: Exchange, model: str | None, limits: ModelLimits) -> bool:
        """Whether a client compacts by itself before the limit: it goes by what vendors document, so of a model that
        nobody knows, or with a smaller window than it believes, it does not know when."""
        if not self.config.gateway.defer_to_client or not compacts_itself(exchange.headers):
            return False
        documented = look_up(model)
        return documented.known and limits.window >= documented.model.context_window

    def limits(self, model: str | None, output: int, learned: int = 0) -> ModelLimits:
        """The numbers; `learned` is what is known better than the table, if anything."""
        found = self._known.peek((model, output, learned))
        return found or self._known.get_or_make((model, output, learned), lambda: self._limits(model, output, learned))

    def _limits(self, model: str | None, output: int, learned: int) -> ModelLimits:
        belief = believe(model, self.config)
        window = min(learned or belief.model.context_window, belief.model.context_window)
        meter = self.meter(belief)
        output = max(output, 0 if learned else belief.model.kept_for_output)
        if self.mode == "manage":
            reservation = self.config.compression.output_reservation or output
            trigger = budget_for(window, reservation, self.config).threshold_tokens
            looked_at = 1 if self.asks_engine else least_fold_tokens(self.config, model, trigger)
            looked_at = self._first_look(trigger, looked_at)
            return ModelLimits(window, trigger, reservation, meter, looked_at, output=output)
        trigger = int(window * HYGIENE_RATIO)
        beside = int((window - output) * BESIDE_ANSWER) if output < window else trigger
        lower = min(trigger, beside)
        kept = output if beside < trigger else 0
        return ModelLimits(window, lower, kept, meter, self._first_look(lower, 0), output=output)

    def _first_look(self, trigger: int, otherwise: int) -> int:
        soon = int(trigger * AHEAD_FROM)
        return min(soon, otherwise or soon) if self.prepares else otherwise

    def meter(self, belief: Belief) -> Meter:
        """What counts for a model; models that count alike share it, and what it remembers."""
        facts = belief.model
        key = (facts.factor, facts.message_overhead)
        return self._meters.get_or_make(
            key, lambda: Meter(factor=key[0], message_overhead=key[1], remember=MOST_COUNTED)
        )

    def may_be_many(self, body: bytes) -> bool:
        """Whether a body can hold as many messages as the hard limit allows."""
        return len(body) >= self.most_messages * SHORTEST_MESSAGE and body.count(b"{") >= self.most_messages
