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

from midfold.core import jsonio
from midfold.core.lru import LRU
from midfold.models import learn_limit

LASTS = 3_600.0
MOST = 10_000
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
        return True

    def answered(self, whose: Whose, tokens: int) -> None:
        """A prompt of this size was answered, so the window is not smaller."""
        seen = self._seen.get(whose) or _Seen()
        if tokens > seen.answered:
            self._seen.put(whose, seen._replace(answered=tokens, limit=seen.limit if seen.limit > tokens else 0))


def named_limit(error: bytes, request: bytes) -> int:
    """The size of the context that a provider's error names in its own words; 0 if it names none.

    Where nobody can say what the client wrote, everything may be the client's.
    """
    said: str | None = None

    def is_quoted(phrase: str) -> bool:
        nonlocal said
        if said is None:
            asked = _value(request)
            said = _essence(" ".join(_texts(asked))) if asked is not None else ""
        return not said or _essence(phrase) in said

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


def _texts(value: Any) -> Iterator[str]:
    """Every text in a request."""
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
