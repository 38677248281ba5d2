"""When a request is large enough to be looked at, and when it must be folded.

Rules of this file:
1. Hygiene acts at 85 % of the model's context length, or where the answer that was asked for would not fit any more.
   It is higher than an agent's own threshold on purpose: an agent that manages its context never meets it.
2. `manage` acts at the engine's own threshold, and before it where folds are scheduled.
3. A body with fewer than two bytes for each token of the trigger is not looked at. Text has three to five bytes a
   token; what is denser and overflows all the same is what the recovery is for.
4. A limit that a provider's error names is believed as `learned` says.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import msgspec

from midfold.api import believe, budget_for
from midfold.cache.schedule import CHEAP_FROM, COLD_FROM
from midfold.config import Config
from midfold.fold.archive import handle_of
from midfold.fold.media import replace_historical_media
from midfold.fold.request import Redactor
from midfold.gateway.exchange import Exchange
from midfold.lru import LRU
from midfold.model.refusals import LONGEST_READ, failure_of
from midfold.models import SMALLEST_LIMIT, Belief, learn_limit
from midfold.transcript import jsonio
from midfold.transcript.jsonio import elements, entries, first_byte
from midfold.transcript.message import Transcript
from midfold.transcript.tokens import Meter

# Windows of models that turned out to be smaller than the table says, as providers' refusals name them.
#
# Rules:
# 1. A limit is believed from the shapes that providers give their errors, and only from words of the provider's own:
#    an error that repeats what a client wrote teaches nothing by it.
# 2. It holds for the owner, the upstream and the model of the request that was refused, for `LASTS` seconds, and is
#    never below a prompt that the same three have had answered.


LASTS = 3_600.0
MOST = 10_000
MOST_PHRASES = 8
"""Of an error that names a limit so often, nothing is believed."""
PIECE, OVERLAP = 1 << 17, 400
_BESIDE = re.compile(r"[\W_]+")
_ENVELOPES = ("error", "detail", "Error")


class LimitKey(NamedTuple):
    """What a limit holds for."""

    owner: str
    upstream: str
    model: str | None


class _LimitRecord(NamedTuple):
    limit: int = 0
    until: float = 0.0
    answered: int = 0
    """Tokens of the largest prompt that was answered."""


class LearnedLimits:
    """The newest of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: LRU[LimitKey, _LimitRecord] = LRU(MOST)
        self.is_any = False
        """Whether there has ever been a limit: mostly there is none."""

    def window(self, whose: LimitKey) -> int:
        """The size that was learned; 0 without one."""
        seen = self._seen.get(whose)
        return seen.limit if seen is not None and self._clock() < seen.until else 0

    def learn(self, whose: LimitKey, limit: int) -> bool:
        """Whether this is believed."""
        seen = self._seen.get(whose) or _LimitRecord()
        if limit <= seen.answered:
            return False
        self._seen.put(whose, seen._replace(limit=limit, until=self._clock() + LASTS))
        self.is_any = True
        return True

    def note_answer(self, whose: LimitKey, tokens: int) -> None:
        """A prompt of this size was answered, so the window is not smaller."""
        seen = self._seen.peek(whose) or _LimitRecord()
        if tokens > seen.answered:
            self._seen.put(whose, seen._replace(answered=tokens, limit=seen.limit if seen.limit > tokens else 0))


def is_telling(tokens: int) -> bool:
    """Whether a limit of so many tokens would be believed at all."""
    return tokens >= SMALLEST_LIMIT


def named_limit(error: bytes, request: bytes) -> int:
    """The size of the context that a provider's error names in its own words; 0 if it names none. In a thread."""
    said: list[str] = []
    tried = 0

    def is_quoted(phrase: str) -> bool:
        nonlocal tried
        tried += 1
        essence = _essence(phrase)
        if tried > MOST_PHRASES or len(essence) > OVERLAP:
            return True
        try:
            said.extend(_essences(request) if not said else ())
        except jsonio.NotJSON:
            return True
        return any(essence in piece for piece in said)

    return learn_limit(_error_text(_value(error)), is_quoted=is_quoted) or 0


def _value(data: bytes) -> Any:
    try:
        return jsonio.decode(data)
    except jsonio.NotJSON:
        return None


def _error_text(value: Any) -> str:
    """The message in an error of a provider, and numbers that stand beside it by name; nothing in another shape."""
    if isinstance(value, list) and len(value) == 1:
        value = value[0]
    for _ in range(2):
        inner = next((value[key] for key in _ENVELOPES if key in value), None) if isinstance(value, Mapping) else None
        value = value if inner is None else inner
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
LEAST_MESSAGES = 4
BYTES_PER_TOKEN = 2
SHORTEST_MESSAGE = 20
"""Bytes of the shortest message there is; so many messages take at least so many bytes, and a brace each."""
BESIDE_ANSWER = 0.95
"""Of what the answer leaves of the window."""
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

    @property
    def floor(self) -> int:
        """Bytes of a body below which nothing is looked at."""
        return (self.looked_at or self.trigger) * BYTES_PER_TOKEN


def whose(exchange: Exchange) -> LimitKey:
    """What a limit that is learned from this request holds for."""
    place = exchange.upstream.place if exchange.upstream is not None else ""
    return LimitKey(exchange.owner.id, place, exchange.peek.name if exchange.peek is not None else None)


def is_scheduled(config: Config) -> bool:
    """Whether requests are folded at cheap moments, too."""
    chosen = config.prompt_caching.schedule == "cheapest"
    return chosen and config.gateway.mode == "manage" and config.compression.enabled


def least_fold_tokens(config: Config, trigger: int) -> int:
    """Tokens from which a request may have to be folded."""
    if not is_scheduled(config):
        return trigger
    return min(int(trigger * CHEAP_FROM), COLD_FROM)


class Policy:
    """The limits by model."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.mode = config.gateway.mode
        self.most_messages = config.gateway.hygiene_hard_message_limit
        self.redactor: Redactor | None = None
        """What originals go through before they are hashed and stored, where the store asks for it."""
        self.asks_engine = False
        """Whether an engine decides by something else than the size: then every request is looked at in `manage`."""
        self.enabled = config.compression.enabled and self.mode != "passthrough"
        self.engine_config = self._engine_config()
        self._meters: LRU[tuple[float, int], Meter] = LRU(MOST_METERS)
        self._known: LRU[tuple[str | None, int, int], ModelLimits] = LRU(MOST_REMEMBERED)
        self.learned = LearnedLimits()

    def _engine_config(self) -> Config:
        """The settings compactions run with: in hygiene mode the trigger is the threshold."""
        if self.mode == "manage":
            return self.config
        compression = msgspec.structs.replace(
            self.config.compression, threshold=HYGIENE_RATIO, minimum_context_floor=0, output_reservation=0
        )
        caching = msgspec.structs.replace(self.config.prompt_caching, schedule="threshold")
        return msgspec.structs.replace(self.config, compression=compression, prompt_caching=caching)

    def limits_of(self, exchange: Exchange) -> ModelLimits:
        """The numbers for a request whose body was peeked into."""
        assert exchange.peek is not None
        learned = self.learned.window(whose(exchange)) if self.learned.is_any else 0
        return self.limits(exchange.peek.name, exchange.peek.output, learned)

    def limits(self, model: str | None, output: int, learned: int = 0) -> ModelLimits:
        """The numbers; `learned` is what is known better than the table, if anything."""
        found = self._known.peek((model, output, learned))
        return found or self._known.get_or_make((model, output, learned), lambda: self._limits(model, output, learned))

    def _limits(self, model: str | None, output: int, learned: int) -> ModelLimits:
        belief = believe(model, self.config)
        window = min(learned or belief.model.context_window, belief.model.context_window)
        meter = self.meter(belief)
        if self.mode == "manage":
            reservation = self.config.compression.output_reservation or output
            trigger = budget_for(window, reservation, self.config).threshold_tokens
            looked_at = 1 if self.asks_engine else least_fold_tokens(self.config, trigger)
            return ModelLimits(window, trigger, reservation, meter, looked_at)
        trigger = int(window * HYGIENE_RATIO)
        beside = int((window - output) * BESIDE_ANSWER) if output < window else trigger
        return ModelLimits(window, min(trigger, beside), output if beside < trigger else 0, meter)

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


# Errors that say a request was too large, and what can be done about pictures.
#
# Rules:
# 1. Only an error of the provider's own words is one; a status alone is not, except 413.
# 2. Tokens and bytes are different limits: folding helps against the first, and often against the second.


STATUSES = frozenset((400, 413, 422, 500))
_BYTES = re.compile(
    rb"request_too_large|payload too large|entity too large|maximum allowed size|exceeds? [\d.,]+ ?(?:mb|bytes)"
    rb"|(?:image|request|body|file)[^.\"]{0,60}(?:\d ?mb|bytes)",
    re.I,
)


_NUMBER = re.compile(rb"(?<![\w.,-])\d{1,3}(?:,\d{3})+(?![\w,])|(?<![\w.,-])\d{4,8}(?![\w-])")
MOST_OVER = 50
"""A number that is so many times the limit is not the size of the request."""


class Overflow(NamedTuple):
    """A refusal because of size; `limit` is the size of the context where the error names it, `asked` the request's.

    Both may be words of the client that the error repeats: they are good for this request alone.
    """

    limit: int
    is_bytes: bool
    asked: int = 0
    error: bytes = b""


def may_be(status: int) -> bool:
    """Whether an answer of this status is worth reading before it is passed on."""
    return status in STATUSES


def overflow_of(status: int, body: bytes) -> Overflow | None:
    """What an error says about size; None if it is about something else."""
    read = body[:LONGEST_READ]
    about_bytes = bool(_BYTES.search(read))
    failed = failure_of(status, {}, read, "upstream")
    if failed.kind == "overflow":
        return Overflow(failed.limit, about_bytes and not failed.limit, _refused_tokens(read, failed.limit), read)
    return Overflow(0, True) if about_bytes and status in (400, 413) else None


def _refused_tokens(body: bytes, limit: int) -> int:
    """How many tokens the refused request had, where the error says so: the largest number beyond the limit."""
    numbers = [int(found.replace(b",", b"")) for found in _NUMBER.findall(body)] if limit else []
    return max((number for number in numbers if limit < number < limit * MOST_OVER), default=0)


def without_old_media(view: Transcript) -> Transcript:
    """Pictures before the newest turn that has some become a line of text."""
    return replace_historical_media(view, handle_of)[0]
