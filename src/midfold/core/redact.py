"""Takes credentials out of text and of JSON values: a safety net in front of models, summaries and search.

    redact("export API_KEY=9f8b7c6d5e4f")  ->  "export API_KEY=[REDACTED:api-key]"

Rules of this file:
1. Linear time, whatever the text: a place is found by a literal, and what is read there is bounded or consumed.
2. Nothing but credentials changes; a text without any is returned as the same object.
3. Redacting twice gives what redacting once gave.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any

from midfold.core.redact_keys import MARK, Span, kind_of_name
from midfold.core.redact_rules import credentials

__all__ = ["Redactor", "is_sensitive_key", "redact", "redact_value", "with_credentials"]

Redactor = Callable[[str], str]

MOST_PASSES = 4
SHORTEST = 8
DEEPEST = 200
SEAM = "\n\0\n"
"""Between texts that are searched as one: no credential goes across it."""
_WEAK_KINDS = frozenset({"token", "session", "cookie", "authorization", "credential"})
_SCHEMA_KEYS = frozenset({"type", "$ref", "anyOf", "oneOf", "allOf", "description", "title", "enum", "schema"})
_PLACEHOLDER = re.compile(
    r"\$\{[^}]{0,64}\}|\$[A-Z_][A-Z0-9_]*|\$?\{\{.{0,64}\}\}|\{\w{0,64}\}|<[\w -]{0,64}>"
    r"|%\(?\w{0,64}\)?s?%?|([*xX.•-])\1*"
)


def redact(text: str) -> str:
    """The text with each credential replaced by `[REDACTED:kind]`; the same object if there is none."""
    for _ in range(MOST_PASSES):
        spans = credentials(text) if len(text) >= SHORTEST else ()
        if not spans:
            break
        text = _replaced(text, spans)
    return text


def with_credentials(texts: Sequence[str]) -> set[int]:
    """The places of the texts that `redact` would change: many short ones are searched in one go."""
    spans = credentials(SEAM.join(texts))
    if not spans:
        return set()
    starts = list(accumulate((len(text) + len(SEAM) for text in texts), initial=0))
    return {
        place
        for span in spans
        for place in range(bisect_right(starts, span.start) - 1, bisect_right(starts, span.end - 1))
        if place < len(texts)
    }


def _replaced(text: str, spans: Iterable[Span]) -> str:
    """The text without the spans; of spans that overlap, the union goes and the longest names the kind."""
    pieces: list[str] = []
    position = 0
    for start, end, kind in _united(spans):
        pieces += (text[position:start], MARK, kind, "]")
        position = end
    pieces.append(text[position:])
    return "".join(pieces)


def _united(spans: Iterable[Span]) -> list[Span]:
    united: list[Span] = []
    for span in sorted(spans):
        if united and span.start < united[-1].end:
            last = united[-1]
            longest = last if last.end - last.start >= span.end - span.start else span
            united[-1] = Span(last.start, max(last.end, span.end), longest.kind)
        else:
            united.append(span)
    return united


def is_sensitive_key(key: object) -> bool:
    """Whether a value under this key is a credential: by the words the key ends in, whatever its spelling.

    `password`, `DB_PASSWORD`, `clientSecret`, `x-api-key`, `refresh_token` and `Set-Cookie` are; `max_tokens`,
    `token_count`, `next_page_token`, `eos_token`, `password_field`, `secret_name`, `session_id`, `public_key` are not.
    """
    return isinstance(key, str) and kind_of_name(key) is not None


def redact_value(value: Any) -> Any:
    """A JSON value with its strings redacted, and whole values under sensitive keys replaced.

    What did not change is the same object; nothing is changed in place. Values nested more than 200 levels deep
    and values that contain themselves are replaced rather than trusted.
    """
    return _Walk().visit(value, 0, None)


class _Walk:
    """One walk over a value. `kind` is what everything below a sensitive key is replaced by."""

    def __init__(self) -> None:
        self._open: set[int] = set()
        self._done: dict[tuple[int, str | None], Any] = {}

    def visit(self, value: Any, depth: int, kind: str | None) -> Any:
        if isinstance(value, str):
            return redact(value) if kind is None else _sealed(value, kind)
        if isinstance(value, Mapping | list | tuple):
            return self._container(value, depth, kind)
        if kind is not None and isinstance(value, int | float) and not isinstance(value, bool):
            return value if kind in _WEAK_KINDS else f"{MARK}{kind}]"
        return value

    def _container(self, value: Any, depth: int, kind: str | None) -> Any:
        known = self._done.get((id(value), kind))
        if known is not None:
            return known
        if depth >= DEEPEST or id(value) in self._open:
            return f"{MARK}{'too-deep' if depth >= DEEPEST else 'cycle'}]"
        self._open.add(id(value))
        done = self._mapping(value, depth, kind) if isinstance(value, Mapping) else self._items(value, depth, kind)
        self._open.discard(id(value))
        self._done[id(value), kind] = done
        return done

    def _mapping(self, value: Mapping[Any, Any], depth: int, kind: str | None) -> Any:
        after = {
            key: self.visit(item, depth + 1, self._kind_below(key, item, value, kind)) for key, item in value.items()
        }
        return value if all(after[key] is item for key, item in value.items()) else after

    def _items(self, value: list[Any] | tuple[Any, ...], depth: int, kind: str | None) -> Any:
        after = [self.visit(item, depth + 1, kind) for item in value]
        if all(new is old for new, old in zip(after, value, strict=True)):
            return value
        return after if isinstance(value, list) else tuple(after)

    def _kind_below(self, key: Any, item: Any, parent: Mapping[Any, Any], kind: str | None) -> str | None:
        if kind is not None:
            return kind
        own = kind_of_name(key) if isinstance(key, str) else None
        if own is None or (own == "token" and "logprob" in parent):
            return None
        if isinstance(item, str) and item.startswith(("/", "~/")) and key.lower().endswith("pwd"):
            return None
        if isinstance(item, Mapping) and (own in _WEAK_KINDS or not _SCHEMA_KEYS.isdisjoint(item)):
            return None
        return own


def _sealed(value: str, kind: str) -> str:
    """The mark for a string under a sensitive key; an empty string, a placeholder or a mark stays."""
    stripped = value.strip()
    if not stripped or stripped.startswith(MARK) or _PLACEHOLDER.fullmatch(stripped):
        return redact(value)
    return f"{MARK}{kind}]"
