"""The prompt-cache planner on every request where it applies.

Rules of this file:
1. A client that marks its own requests knows what it does: they are left alone, unless a fold took its markers away.
2. What is too small to be cached anywhere is not looked at.
3. A client sends the same tools with every request: they are read once.
4. Markers are no part of what is cached: a request that is marked anew every turn keeps its prefix.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Raw

from midfold.cache import layout_for, plan_document, provider_of
from midfold.cache.breakpoints import KEYED, Measure
from midfold.cache.markers import QUOTED_MARKERS, mark
from midfold.config import Config
from midfold.gateway.exchange import Exchange
from midfold.lru import LRU
from midfold.models import Belief, look_up
from midfold.transcript.document import Document, read
from midfold.transcript.message import Tool
from midfold.transcript.tokens import Meter

SMALLEST = 2_048
"""Bytes; the smallest prefix any provider caches has 512 tokens."""
MOST_MODELS = 1_000
MOST_TOOL_LISTS = 1_000
MOST_TOOL_BYTES = 4_000_000


class CachingRules(NamedTuple):
    """Whose rules are planned by, and how prefixes are measured."""

    provider: str
    measure: Measure


class Caching:
    """Marks requests as the settings say."""

    def __init__(self, config: Config, meter: Callable[[Belief], Meter]) -> None:
        self.settings = config.prompt_caching
        self._models = config.models
        self._meter = meter
        self._known: LRU[tuple[str, str | None, str], CachingRules | None] = LRU(MOST_MODELS)
        self._tools = ToolMemory()

    def rules(self, exchange: Exchange) -> CachingRules | None:
        """None where nothing belongs into the request."""
        dialect, upstream, peek = exchange.route.dialect, exchange.upstream, exchange.peek
        if dialect is None or upstream is None or peek is None or exchange.is_crowded or self.settings.enabled == "off":
            return None
        key = (upstream.base, peek.name, dialect)
        return self._known.get_or_make(key, lambda: self._rules(*key))

    def _rules(self, base: str, model: str | None, dialect: str) -> CachingRules | None:
        known = provider_of(base)
        provider = known or ("anthropic" if dialect == "anthropic" else "")
        if layout_for(provider, model, dialect, self.settings.enabled) is None and provider not in KEYED:
            return None
        belief = look_up(model, self._models)
        return CachingRules(provider, Measure(self._meter(belief), belief.model.cache_minimum or 0))

    def wants(self, exchange: Exchange, body: bytes) -> bool:
        """Whether it is worth looking through the request."""
        return len(body) >= SMALLEST and exchange.route.kind == "generate" and self.rules(exchange) is not None

    def mark(self, exchange: Exchange, body: bytes) -> bytes:
        """The request with breakpoints where they save most; the very same bytes if there are none to set."""
        rules = self.rules(exchange)
        is_folded = exchange.account.receipt is not None
        if rules is None or (not is_folded and any(own in body for own in QUOTED_MARKERS)):
            return body
        document = exchange.document
        if document is None or document.source is not body:
            document = read(body, dialect=exchange.route.dialect, name="the request")
        self._tools.put_into(document)
        if not is_folded:
            document.surely_lacks(*QUOTED_MARKERS)
        settings = self.settings
        hints = plan_document(
            document,
            provider=rules.provider,
            ttl=settings.cache_ttl,
            strategy=settings.strategy,
            setting=settings.enabled,
            measure=rules.measure,
            session_id=exchange.options.session or "",
        )
        return bytes(mark(document, hints)) if hints else body


class ToolMemory:
    """Lists of tools that were read, by their bytes; the ones used last are kept. Threads may share it."""

    def __init__(self) -> None:
        self._known: LRU[bytes, tuple[int, tuple[Tool, ...]]] = LRU(
            MOST_TOOL_LISTS, most_bytes=MOST_TOOL_BYTES, size=lambda known: known[0]
        )

    def put_into(self, document: Document) -> None:
        """Spares a document the reading of tools that are known."""
        raw = document.body.get("tools") if document.body is not None else None
        if not isinstance(raw, Raw):
            return
        key = blake2b(raw, digest_size=16).digest()
        document.tools = self._known.get_or_make(key, lambda: (memoryview(raw).nbytes, document.tools))[1]
