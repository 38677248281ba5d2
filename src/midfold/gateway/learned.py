"""Windows of models that turned out to be smaller than the table says, as providers' refusals name them.

Rules of this file:
1. A limit is believed from the shapes that providers give their errors, and only from words of the provider's own: an
   error that repeats what a client wrote teaches nothing by it.
2. It holds for the owner, the upstream and the model of the request that was refused, for `LASTS` seconds, and is never
   below a prompt that the same three have had answered.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from midfold.lru import LRU
from midfold.models import SMALLEST_LIMIT, learn_limit
from midfold.transcript import jsonio
from midfold.transcript.jsonio import elements, entries, first_byte

LASTS = 3_600.0
MOST = 10_000
MOST_PHRASES = 8
"""Of an error that names a limit so often, nothing is believed."""
PIECE, OVERLAP = 1 << 17, 400
_BESIDE = re.compile(r"[\W_]+")
_ENVELOPES = ("error", "detail", "Error")


class Whose(NamedTuple):
    """What a limit holds for."""

    owner: str
    upstream: str
    model: str | None


class _Seen(NamedTuple):
    limit: int = 0
    until: float = 0.0
    answered: int = 0
    """Tokens of the largest prompt that was answered."""


class Learned:
    """The newest of them."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._seen: LRU[Whose, _Seen] = LRU(MOST)
        self.is_any = False
        """Whether there has ever been a limit: mostly there is none."""

    def window(self, whose: Whose) -> int:
        """The size that was learned; 0 without one."""
        seen = self._seen.get(whose)
        return seen.limit if seen is not None and self._clock() < seen.until else 0

    def learn(self, whose: Whose, limit: int) -> bool:
        """Whether this is believed."""
        seen = self._seen.get(whose) or _Seen()
        if limit <= seen.answered:
            return False
        self._seen.put(whose, seen._replace(limit=limit, until=self._clock() + LASTS))
        self.is_any = True
        return True

    def answered(self, whose: Whose, tokens: int) -> None:
        """A prompt of this size was answered, so the window is not smaller."""
        seen = self._seen.peek(whose) or _Seen()
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

    return learn_limit(_told(_value(error)), is_quoted=is_quoted) or 0


def _value(data: bytes) -> Any:
    try:
        return jsonio.decode(data)
    except jsonio.NotJSON:
        return None


def _told(value: Any) -> str:
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
