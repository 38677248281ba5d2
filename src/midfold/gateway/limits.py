"""Token limits per model: when to read a request's body and when to fold it.

1. Hygiene mode folds at 85 % of the context window, or earlier if the requested output would not fit. This is above the
   usual threshold of agents, so an agent that manages its own context never reaches it.
2. `manage` mode folds at the engine's threshold, and earlier if folds are scheduled.
3. A body is read only if an upper bound of its tokens reaches the trigger: one token per byte (more if the provider
   reported more), plus the overhead of each message, image and document.
4. `LearnedLimits` lowers a window after the provider refused requests as too large.
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
from midfold.cache.schedule import AUTO_SOFT_SHARE, CHEAP_SOFT_SHARE, COLD_MIN_TOKENS
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

# Context windows that are smaller than the model table says.
#
# 1. A limit is learned only from known shapes of provider errors and only from the provider's own text: an error may
#    quote text of the client.
# 2. A refusal without a limit is an upper bound, the largest answered request a lower bound; both count prompt plus
#    output. Without a lower bound the window is assumed to be well below the refused size.
# 3. Both bounds apply to one owner, upstream, model and beta header, expire after `LASTS`, and are never below an
#    answered prompt of the same key.
# 4. Bounds are persisted in the store. Bounds deleted there are dropped here at the next refresh.


LASTS = 7 * 86_400_000
"""Milliseconds until a learned limit expires."""
REFRESH_SECONDS = 60.0
"""Seconds between reads from the store."""
DOUBT = 1.25
"""Factor by which an answered prompt must exceed a refused size to contradict it; refused sizes are estimates."""
SMALLEST_REFUSED = 1_024
"""Tokens of the smallest refused request that counts as an overflow; smaller ones were refused for another reason."""
WORTH_SAVING = 1.02
"""Factor by which an answered request must exceed the stored lower bound to be saved."""
MAX_PHRASES = 8
"""Maximum candidate phrases checked per error; further ones count as quoted and are ignored."""
PIECE, OVERLAP = 1 << 17, 400
MAX_BETA_CHARS = 300
LONG_CONTEXT = "context-1m"
"""Prefix of Anthropic's beta name for windows of one million tokens."""
_BESIDE = re.compile(r"[\W_]+")
_ENVELOPES = ("error", "detail", "Error")
_CODES = frozenset(("context_length_exceeded", "exceed_context_size_error"))
"""Error codes that report an oversized request independently of the error's text."""


class LimitKey(NamedTuple):
    """Scope of a learned limit; `name` is a hash over the owner and the other fields."""

    name: str
    owner: str = ""
    upstream: str = ""
    model: str = ""
    beta: str = ""


class _LargestAnswered(NamedTuple):
    """Largest answered prompt, and largest answered prompt plus requested output, in tokens."""

    prompt: int = 0
    both: int = 0


class LearnedLimits:
    """Learned limits by key. Used on one event loop; `load` and `save` may run in threads."""

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
        """Return whether any limit was learned; usually there is none."""
        return bool(self._bounds)

    def window(self, whose: LimitKey) -> int:
        """Return the learned window in tokens, or 0."""
        seen = self._bounds.get(whose.name)
        return seen.window if seen is not None and self._now < seen.ends else 0

    def learn(self, whose: LimitKey, limit: int) -> bool:
        """Record a limit named by a refusal; return whether it was accepted."""
        if limit <= self._largest(whose).prompt:
            return False
        self._put(self._bounds_of(whose), named=limit, ends=self._now + LASTS)
        return True

    def refuse(self, whose: LimitKey, tokens: int) -> bool:
        """Record the size of a request that was refused without naming a limit; return whether it was accepted."""
        seen, answered = self._bounds_of(whose), self._largest(whose)
        if answered.prompt > tokens * DOUBT or tokens < SMALLEST_REFUSED:
            return False
        refused = max(min(tokens, seen.refused or tokens), answered.prompt + 1)
        fitted = max((size for size in (*answered, seen.fitted) if size < refused), default=0)
        self._put(seen, refused=refused, fitted=fitted, ends=self._now + LASTS)
        return True

    def note_answer(self, whose: LimitKey, prompt: int, output: int = 0) -> None:
        """Record an answered prompt as a lower bound. Whether the output counts towards the window is unknown."""
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
        """Return whether the bounds should be read from the store again."""
        return self.is_any and self._clock() >= self._loaded + REFRESH_SECONDS

    @property
    def is_saved(self) -> bool:
        return not self._unsaved

    def load(self) -> None:
        """Load the bounds from the store; keep the current ones if the store fails."""
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
        """Write unsaved bounds to the store."""
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
    """Return whether a limit of this many tokens is plausible."""
    return tokens >= SMALLEST_LIMIT


def named_limit(error: bytes, request: bytes) -> int:
    """Return the context size that a provider's error names in its own text, or 0. Runs in a thread."""
    return learn_limit(_error_text(_value(error)), is_quoted=_Quotes(request)) or 0


def is_provider_refusal(error: bytes, request: bytes) -> bool:
    """Return whether the provider's own text or code refused the request as too large. Runs in a thread."""
    value = _error_value(_value(error))
    if isinstance(value, Mapping) and _CODES & {str(value.get("code")), str(value.get("type"))}:
        return True
    is_quoted = _Quotes(request)
    return any(not is_quoted(phrase) for phrase in overflow_phrases(_error_text(value)))


class _Quotes:
    """Check for phrases of an error that are quoted from the request."""

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._said: list[str] = []
        self._tried = 0

    def __call__(self, phrase: str) -> bool:
        self._tried += 1
        essence = _essence(phrase)
        if self._tried > MAX_PHRASES or len(essence) > OVERLAP:
            return True
        try:
            self._said.extend(_normalized_texts(self._request) if not self._said else ())
        except jsonio.NotJSON:
            return True
        return any(essence in piece for piece in self._said)


def _value(data: bytes) -> Any:
    try:
        return jsonio.decode(data)
    except jsonio.NotJSON:
        return None


def _error_value(value: Any) -> Any:
    """Unwrap the error from the provider's envelope."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    for _ in range(2):
        inner = next((value[key] for key in _ENVELOPES if key in value), None) if isinstance(value, Mapping) else None
        value = value if inner is None else inner
    return value


def _error_text(value: Any) -> str:
    """Return the message of a provider's error and its named integers; "" if the shape is unknown."""
    value = _error_value(value)
    if isinstance(value, str):
        return value
    if not isinstance(value, Mapping):
        return ""
    numbers = [f"{name}: {number}" for name, number in value.items() if type(number) is int]
    message = value.get("message")
    return "\n".join([message if isinstance(message, str) else "", *numbers])


def _normalized_texts(request: bytes) -> Iterator[str]:
    """Yield all texts of a request, normalized, in overlapping pieces so that no call holds the GIL for long."""
    before = ""
    for value in _values(request):
        for text in _texts(value):
            for start in range(0, len(text), PIECE):
                before = before[-OVERLAP:] + _essence(text[start : start + PIECE])
                yield before


def _values(request: bytes) -> Iterator[Any]:
    """Yield the keys and values of a request; lists element by element. Raises NotJSON."""
    for name, raw in entries(request).items():
        yield name
        yield from map(jsonio.decode, elements(raw) if first_byte(raw) == b"[" else (raw,))


def _texts(value: Any) -> Iterator[str]:
    """Yield every string in a value."""
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
    """Return only the letters and digits, lowercased; these survive any kind of quoting."""
    return _BESIDE.sub("", text.lower())


HYGIENE_RATIO = 0.85
AHEAD_FROM = 0.75
"""Share of the trigger at which the next fold is prepared if an LLM writes the summary."""
LEAST_MESSAGES = 4
TOKENS_PER_BYTE = 1.0
"""Maximum tokens per byte of text; vocabularies are built from bytes."""
MESSAGE_FIELDS = (b'"role"', b'"call_id"')
"""Fields that identify messages; every message or item contains one of them."""
MEDIA_FIELDS = (
    b'"image"', b'"image_url"', b'"input_image"', b'"document"', b'"file"', b'"input_file"', b'"input_audio"',
)  # fmt: skip
"""Fields that identify images and documents, including those referenced by URL."""
MEDIA_UNITS = max(IMAGE_UNITS, AUDIO_UNITS, DOCUMENT_UNITS)
DENSITY_DECAY = 0.9
"""Factor applied to the highest reported density at each lower report; conversations of one owner alternate."""
MIN_MESSAGE_BYTES = 20
"""Bytes of the shortest possible message, which also contains at least one brace."""
MAX_INPUT_SHARE = 0.95
"""Share of the window without the output that a request may use."""
MAX_FIXED_SHARE = 0.75
"""Maximum share of the trigger for system prompt and tools before the trigger is raised."""
MOST_REMEMBERED = 1_000
MAX_METERS = 100
MOST_COUNTED = 50_000
"""Maximum messages with remembered sizes, about 300 bytes each."""


class ModelLimits(NamedTuple):
    """Limits for one model and one output length."""

    window: int
    trigger: int
    """Tokens at which a request is folded."""
    reservation: int
    """Tokens reserved for the output if that lowers the trigger."""
    meter: Meter
    looked_at: int = 0
    """Tokens at which a request may be folded at a cheap moment; 0: same as `trigger`."""
    ratio: float = 0.0
    """Share of the window at which a request is folded; 0: as configured."""
    output: int = 0
    """Tokens of the window used by the output."""
    is_deferred: bool = False
    """Whether the client is expected to compact on its own."""

    def may_reach_trigger(self, body: bytes, density: float = TOKENS_PER_BYTE) -> bool:
        """Return whether a request with this body may be large enough to act on, by an upper bound of its tokens."""
        least = self.looked_at or self.trigger
        most = int(len(body) * density)
        if self.meter.tokens(most) >= least:
            return True
        media, messages = (sum(map(body.count, fields)) for fields in (MEDIA_FIELDS, MESSAGE_FIELDS))
        return self.meter.tokens(most + media * MEDIA_UNITS, messages) >= least

    def after_client(self) -> ModelLimits:
        """Return limits for a client that compacts on its own: fold only when the window is almost full."""
        left = 1.0 - self.output / self.window if self.output < self.window else 1.0
        ratio = floor(min(MAX_INPUT_SHARE, left) * 100) / 100
        later = self._replace(trigger=int(self.window * ratio), reservation=0, ratio=ratio)
        return (later if later.trigger > self.trigger else self)._replace(looked_at=0, is_deferred=True)

    def beside(self, fixed: int) -> ModelLimits:
        """Return limits for a system prompt and tools that leave little space below the trigger.

        Then nothing is reserved for the requested output, and the trigger rises as far as needed.
        """
        if fixed <= self.trigger * MAX_FIXED_SHARE:
            return self
        ratio = HYGIENE_RATIO if fixed <= self.window * HYGIENE_RATIO * MAX_FIXED_SHARE else MAX_INPUT_SHARE
        trigger = int(self.window * ratio)
        return self._replace(trigger=trigger, reservation=0, ratio=ratio) if trigger > self.trigger else self


def whose(exchange: Exchange) -> LimitKey:
    """Return the scope of a limit learned from this request."""
    place = exchange.upstream.place if exchange.upstream is not None else ""
    model = (exchange.peek.name if exchange.peek is not None else None) or ""
    parts = [place, model.encode("utf-8", "replace").decode(), ",".join(betas(exchange.headers))[:MAX_BETA_CHARS]]
    name = exchange.owner.bind(b"window", *(part.encode() for part in parts))
    return LimitKey(name, exchange.owner.name, *parts)


class ReportedDensities:
    """Tokens per byte of body as reported by providers, by owner, upstream and model.

    Requests that reference images or documents by URL have far more tokens than bytes. Only densities above that of any
    text are kept.
    """

    def __init__(self) -> None:
        self._known: LRU[str, float] = LRU(MOST_REMEMBERED)

    def note(self, exchange: Exchange, tokens: int, size: int) -> None:
        """Record the tokens reported for a body of this size."""
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
        """Return the maximum tokens per byte for a request of this owner and model."""
        known = self._known.peek(whose(exchange).name) if self._known else None
        return known or TOKENS_PER_BYTE


def is_scheduled(config: Config) -> bool:
    """Return whether requests may also be folded at cheap moments below the trigger."""
    chosen = config.prompt_caching.schedule != "threshold"
    return chosen and config.gateway.mode == "manage" and config.compression.enabled


def min_fold_tokens(config: Config, model: str | None, trigger: int) -> int:
    """Return the smallest size in tokens at which a request may be folded."""
    if not is_scheduled(config):
        return trigger
    if config.prompt_caching.schedule == "cheapest":
        return min(int(trigger * CHEAP_SOFT_SHARE), COLD_MIN_TOKENS)
    prices = prices_for(model, config.prompt_caching.cache_ttl, config.models)
    return min(int(trigger * AUTO_SOFT_SHARE), COLD_MIN_TOKENS) if prices.are_known else trigger


class Policy:
    """Limits by model for the configured mode."""

    def __init__(self, config: Config, learned: LearnedLimits | None = None) -> None:
        self.config = config
        self.mode = config.gateway.mode
        self.most_messages = config.gateway.hygiene_hard_message_limit
        self.redactor: Redactor | None = None
        """Redactor applied to originals before hashing and storing, if the store requires it."""
        self.asks_engine = False
        """Whether an engine decides by something other than size; then `manage` mode reads every request."""
        self.prepares = False
        """Whether folds are prepared in advance; then requests are read earlier."""
        self.enabled = config.compression.enabled and self.mode != "passthrough"
        self._meters: LRU[tuple[float, int], Meter] = LRU(MAX_METERS)
        self._known: LRU[tuple[str | None, int, int], ModelLimits] = LRU(MOST_REMEMBERED)
        self.learned = learned or LearnedLimits()

    def engine_config(self, ratio: float = 0.0) -> Config:
        """Return the settings for compactions; in hygiene mode, or with a ratio, the trigger is the threshold."""
        if self.mode == "manage" and not ratio:
            return self.config
        compression = msgspec.structs.replace(
            self.config.compression, threshold=ratio or HYGIENE_RATIO, minimum_context_floor=0, output_reservation=0
        )
        caching = msgspec.structs.replace(self.config.prompt_caching, schedule="threshold")
        return msgspec.structs.replace(self.config, compression=compression, prompt_caching=caching)

    def limits_of(self, exchange: Exchange) -> ModelLimits:
        """Return the limits for a request whose body was peeked at."""
        assert exchange.peek is not None
        learned = self.learned.window(whose(exchange)) if self.learned.is_any else 0
        model = exchange.peek.name
        if model is not None and any(beta.startswith(LONG_CONTEXT) for beta in betas(exchange.headers)):
            model = f"{model}[1m]"
        limits = self.limits(model, exchange.peek.output, learned)
        return limits.after_client() if self._is_left_to_client(exchange, model, limits) else limits

    def _is_left_to_client(self, exchange: Exchange, model: str | None, limits: ModelLimits) -> bool:
        """Return whether the client compacts on its own before the limit.

        Clients rely on documented windows: for unknown models or smaller learned windows they compact too late.
        """
        if not self.config.gateway.defer_to_client or not compacts_itself(exchange.headers):
            return False
        documented = look_up(model)
        return documented.known and limits.window >= documented.model.context_window

    def limits(self, model: str | None, output: int, learned: int = 0) -> ModelLimits:
        """Return the limits; a nonzero `learned` window overrides the model table if it is smaller."""
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
            looked_at = 1 if self.asks_engine else min_fold_tokens(self.config, model, trigger)
            looked_at = self._first_look(trigger, looked_at)
            return ModelLimits(window, trigger, reservation, meter, looked_at, output=output)
        trigger = int(window * HYGIENE_RATIO)
        beside = int((window - output) * MAX_INPUT_SHARE) if output < window else trigger
        lower = min(trigger, beside)
        kept = output if beside < trigger else 0
        return ModelLimits(window, lower, kept, meter, self._first_look(lower, 0), output=output)

    def _first_look(self, trigger: int, otherwise: int) -> int:
        soon = int(trigger * AHEAD_FROM)
        return min(soon, otherwise or soon) if self.prepares else otherwise

    def meter(self, belief: Belief) -> Meter:
        """Return the token meter for a model; models with equal parameters share one and its cache."""
        facts = belief.model
        key = (facts.factor, facts.message_overhead)
        return self._meters.get_or_make(
            key, lambda: Meter(factor=key[0], message_overhead=key[1], remember=MOST_COUNTED)
        )

    def may_exceed_message_limit(self, body: bytes) -> bool:
        """Return whether the body may contain as many messages as the hard limit."""
        return len(body) >= self.most_messages * MIN_MESSAGE_BYTES and body.count(b"{") >= self.most_messages
