"""Apply the prompt-cache planner to requests.

1. A client's own markers stay in place and use up slots. A request whose conversation the client marks is not
   changed, unless a fold removed those markers. If it marks only tools and system prompt, the free slots are used.
2. Requests too small for any provider's cache are skipped.
3. Clients send the same tools with every request; they are parsed once.
4. Markers are not part of the cached prefix, so moving them every turn keeps the cache valid.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from msgspec import Raw

from midfold.cache import layout_for, plan_document, provider_of
from midfold.cache.breakpoints import KEYED, Measure
from midfold.cache.markers import MARKERS, MAX_MARKERS, QUOTED_MARKERS, Layout, client_markers, mark
from midfold.config import Config
from midfold.gateway.exchange import Exchange
from midfold.lru import LRU
from midfold.models import Belief, look_up
from midfold.transcript.document import Document, read
from midfold.transcript.message import Tool
from midfold.transcript.tokens import Meter

SMALLEST = 2_048
"""Minimum bytes of a request; the smallest prefix that any provider caches has 512 tokens."""
MOST_MODELS = 1_000
MOST_TOOL_LISTS = 1_000
MOST_TOOL_BYTES = 4_000_000


class CachingRules(NamedTuple):
    """Provider whose caching rules apply, the layout of its markers, and the measure of prefixes."""

    provider: str
    layout: Layout | None
    measure: Measure
    takes_markers: bool
    """True if the client's own markers show that this upstream caches the model."""


class Caching:
    """Cache markers of requests, set according to the settings."""

    def __init__(self, config: Config, meter: Callable[[Belief], Meter]) -> None:
        self.settings = config.prompt_caching
        self._models = config.models
        self._meter = meter
        self._known: LRU[tuple[str, str | None, str, bool], CachingRules | None] = LRU(MOST_MODELS)
        self._tools = ToolMemory()

    def rules(self, exchange: Exchange, body: bytes) -> CachingRules | None:
        """Return the caching rules for a request, or None if it gets neither markers nor a cache key."""
        dialect, upstream, peek = exchange.route.dialect, exchange.upstream, exchange.peek
        if (
            dialect is None
            or upstream is None
            or peek is None
            or exchange.exceeds_limits
            or self.settings.enabled == "off"
        ):
            return None
        key = (upstream.base, peek.name, dialect, QUOTED_MARKERS[0] in body)
        return self._known.get_or_make(key, lambda: self._rules(*key))

    def _rules(self, base: str, model: str | None, dialect: str, is_marked: bool) -> CachingRules | None:
        provider = provider_of(base) or ("anthropic" if dialect == "anthropic" else "")
        layout = layout_for(provider, model, dialect, self.settings.enabled, is_marked=is_marked)
        if layout is None and provider not in KEYED:
            return None
        belief = look_up(model, self._models)
        return CachingRules(provider, layout, Measure(self._meter(belief), belief.model.cache_minimum or 0), is_marked)

    def wants(self, exchange: Exchange, body: bytes) -> bool:
        """Return whether the request is worth parsing."""
        is_candidate = len(body) >= SMALLEST and exchange.route.kind == "generate"
        return is_candidate and self.rules(exchange, body) is not None

    def mark(self, exchange: Exchange, body: bytes) -> bytes:
        """Return the request with cache breakpoints where they save most; the same bytes if there are none to set."""
        rules = self.rules(exchange, body)
        own = sum(map(body.count, QUOTED_MARKERS))
        is_folded = exchange.account.receipt is not None
        if rules is None or (not is_folded and own >= MAX_MARKERS):
            return body
        document = exchange.document
        if document is None or document.source is not body:
            document = read(body, dialect=exchange.route.dialect, name="the request")
        self._tools.put_into(document)
        if not own:
            document.mark_absent(*QUOTED_MARKERS)
        elif not is_folded and _marks_conversation(document, rules.layout):
            return body
        settings = self.settings
        hints = plan_document(
            document,
            provider=rules.provider,
            ttl=settings.cache_ttl,
            strategy=settings.strategy,
            setting=settings.enabled,
            is_marked=rules.takes_markers,
            measure=rules.measure,
            session_id=exchange.options.session or "",
        )
        return bytes(mark(document, hints)) if hints else body


def _marks_conversation(document: Document, layout: Layout | None) -> bool:
    """Return whether the client marks more than tools and system prompt."""
    if layout is None or document.setting(MARKERS[0]) is not None:
        return True
    places = client_markers(document, layout)
    return any(index >= 0 and document.messages[index].role != "system" for index in places)


class ToolMemory:
    """Thread-safe LRU cache of parsed tool lists by their bytes."""

    def __init__(self) -> None:
        self._known: LRU[bytes, tuple[int, tuple[Tool, ...]]] = LRU(
            MOST_TOOL_LISTS, most_bytes=MOST_TOOL_BYTES, size=lambda known: known[0]
        )

    def put_into(self, document: Document) -> None:
        """Set a document's tools from the cache, or parse and cache them."""
        raw = document.body.get("tools") if document.body is not None else None
        if not isinstance(raw, Raw):
            return
        key = blake2b(raw, digest_size=16).digest()
        document.tools = self._known.get_or_make(key, lambda: (memoryview(raw).nbytes, document.tools))[1]
