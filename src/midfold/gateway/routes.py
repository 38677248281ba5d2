"""Which paths the gateway understands; everything else is passed through."""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

Kind = Literal["generate", "count", "compact", "other"]
OPENAI, ANTHROPIC = "openai", "anthropic"


class Route(NamedTuple):
    """What a path asks for. `dialect` is the shape of its body, where midfold reads it."""

    kind: Kind
    dialect: str | None = None
    vendor: str | None = None
    """Who alone has the path, where midfold does not read its body."""

    @property
    def name(self) -> str:
        """For figures and logs."""
        return self.kind if self.dialect is None else f"{self.dialect} {self.kind}"

    @property
    def wire(self) -> str | None:
        """Whose protocol it is; None where both have the path."""
        if self.dialect is None:
            return self.vendor
        return ANTHROPIC if self.dialect == "anthropic" else OPENAI


OTHER = Route("other")
OTHER_ANTHROPIC = Route("other", vendor=ANTHROPIC)
_PATHS = {
    "/chat/completions": Route("generate", "openai-chat"),
    "/responses": Route("generate", "openai-responses"),
    "/responses/compact": Route("compact", "openai-responses"),
    "/messages": Route("generate", "anthropic"),
    "/messages/count_tokens": Route("count", "anthropic"),
}
ROUTES = {prefix + path: route for prefix in ("", "/v1") for path, route in _PATHS.items()}
"""Clients are given a base address with or without /v1."""
_ANTHROPIC_ONLY = ("/v1/messages", "/messages", "/v1/complete", "/complete")


UNSERVED = frozenset(("CONNECT", "TRACE"))
"""One asks for a tunnel, the other for an echo of the headers, the provider's key among them."""
NOT_A_PATH = "the request target must be a path that begins with / and has no spaces, backslashes or fragment"
_TARGET = re.compile(rb"/[!-\"$->@-\[\]-~]*(\?[!-\"$-~]*)?")


def is_origin_form(target: bytes) -> bool:
    """Whether a request target is a path and perhaps a query (RFC 9112, 3.2.1), and no address."""
    return _TARGET.fullmatch(target) is not None


def route_of(method: str, path: str) -> Route:
    found = ROUTES.get(path) if method == "POST" else None
    if found is not None:
        return found
    return OTHER_ANTHROPIC if path.startswith(_ANTHROPIC_ONLY) else OTHER
