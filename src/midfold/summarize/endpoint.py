"""A model that writes summaries: where it is, how it is spoken to, and what may be asked of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal
from urllib.parse import urlsplit

import msgspec

Wire = Literal["openai", "anthropic"]
DEFAULT_TIMEOUT = 120.0
DEFAULT_WINDOW = 128_000
NOWHERE = "(an address that cannot be called)"


class Endpoint(msgspec.Struct, frozen=True, kw_only=True):
    """One model behind one address. The key is never shown."""

    name: str
    wire: Wire
    base_url: str
    model: str
    key: str = ""
    context_length: int = DEFAULT_WINDOW
    max_output: int | None = None
    timeout: float = DEFAULT_TIMEOUT
    extra_body: Mapping[str, Any] = {}
    reasoning_effort: str | None = None
    reuse_prefix: bool = False

    def __repr__(self) -> str:
        return f"Endpoint({self.name}, {self.wire}, {self.place}, {self.model})"

    def __rich_repr__(self) -> list[tuple[str, Any]]:
        return [("name", self.name), ("place", self.place), ("model", self.model)]

    @property
    def place(self) -> str:
        """The host alone: what may appear in errors and receipts."""
        try:
            parts = urlsplit(self.base_url)
            port = f":{parts.port}" if parts.port else ""
        except ValueError:
            return NOWHERE
        return f"{parts.hostname}{port}" if parts.hostname else NOWHERE

    @property
    def is_openai_itself(self) -> bool:
        return self.place == "api.openai.com"

    def same_model(self, other: Endpoint) -> bool:
        return (self.base_url.rstrip("/"), self.model) == (other.base_url.rstrip("/"), other.model)
