"""The prompt-cache planner on every request where it applies.

Rules of this file:
1. A client that marks its own requests knows what it does: they are left alone, unless a fold took its markers away.
2. What is too small to be cached anywhere is not looked at.
3. Markers are no part of what is cached: a request that is marked anew every turn keeps its prefix.
"""

from __future__ import annotations

from midfold.cache import layout_for, plan_document, provider_of
from midfold.cache.layouts import KEYED
from midfold.config import Config
from midfold.gateway.exchange import Exchange
from midfold.models import ModelOverride
from midfold.wire import read
from midfold.wire.markers import mark

SMALLEST = 2_048
"""Bytes; the smallest prefix any provider caches has 512 tokens."""
_OWN = (b'"cache_control"', b'"prompt_cache_breakpoint"')


class Caching:
    """Marks requests as the settings say."""

    def __init__(self, config: Config) -> None:
        self.settings = config.prompt_caching
        fields = ModelOverride.__struct_fields__
        self._models = {
            pattern: ModelOverride(**{name: getattr(row, name) for name in fields})
            for pattern, row in config.models.items()
        }
        self._applies: dict[tuple[str, str | None, str], str | None] = {}

    def provider(self, exchange: Exchange) -> str | None:
        """Whose rules are planned by; None where nothing belongs into the request."""
        dialect, upstream, peek = exchange.route.dialect, exchange.upstream, exchange.peek
        if dialect is None or upstream is None or peek is None or self.settings.enabled == "off":
            return None
        key = (upstream.base, peek.name, dialect)
        if key not in self._applies:
            if len(self._applies) > 1_000:
                self._applies.clear()
            self._applies[key] = self._provider(*key)
        return self._applies[key]

    def _provider(self, base: str, model: str | None, dialect: str) -> str | None:
        known = provider_of(base)
        provider = known or ("anthropic" if dialect == "anthropic" else "")
        if layout_for(provider, model, dialect, self.settings.enabled) is None and provider not in KEYED:
            return None
        return provider

    def wants(self, exchange: Exchange, body: bytes) -> bool:
        """Whether it is worth reading the request."""
        if len(body) < SMALLEST or exchange.route.kind != "generate" or self.provider(exchange) is None:
            return False
        return body is not exchange.body or not any(own in body for own in _OWN)

    def marked(self, exchange: Exchange, body: bytes) -> bytes:
        """The request with breakpoints where they save most; the very same bytes if there are none to set."""
        provider = self.provider(exchange)
        if provider is None:
            return body
        document = read(body, dialect=exchange.route.dialect, name="the request")
        settings = self.settings
        hints = plan_document(
            document,
            provider=provider,
            ttl=settings.cache_ttl,
            strategy=settings.strategy,
            setting=settings.enabled,
            models=self._models,
            session_id=exchange.asked.session or "",
        )
        return bytes(mark(document, hints)) if hints else body
