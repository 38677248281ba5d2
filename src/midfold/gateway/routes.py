"""Which paths the gateway understands; everything else is passed through."""

from __future__ import annotations

from typing import Literal, NamedTuple

Kind = Literal["generate", "count", "compact", "other"]
OPENAI, ANTHROPIC = "openai", "anthropic"


class Route(NamedTuple):
    """What a path asks for. `dialect` is the shape of its body, where midfold reads it."""

    kind: Kind
    dialect: str | None = None

    @property
    def name(self) -> str:
        """For figures and logs."""
        return self.kind if self.dialect is None else f"{self.dialect} {self.kind}"

    @property
    def wire(self) -> str | None:
        """Whose protocol it is; None where both have the path."""
        if self.dialect is None:
            return None
        return ANTHROPIC if self.dialect == "anthropic" else OPENAI


OTHER = Route("other")
_PATHS = {
    "/chat/completions": Route("generate", "openai-chat"),
    "/responses": Route("generate", "openai-responses"),
    "/responses/compact": Route("compact", "openai-responses"),
    "/messages": Route("generate", "anthropic"),
    "/messages/count_tokens": Route("count", "anthropic"),
}
ROUTES = {prefix + path: route for prefix in ("", "/v1") for path, route in _PATHS.items()}
"""Clients are given a base address with or without /v1."""


def route_of(method: str, path: str) -> Route:
    return ROUTES.get(path, OTHER) if method == "POST" else OTHER
