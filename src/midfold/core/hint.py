"""A cache breakpoint belongs here: where a stable prefix of a request ends, whoever serves it.

A hint describes, it never edits. `cache.plan` makes hints, `wire.markers.mark` writes them in a dialect's own way.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Layout = Literal["anthropic", "envelope", "openai", "bedrock"]
"""How a marker is written: on Anthropic's blocks, on the content parts of an OpenAI-style envelope around Claude, as
OpenAI's explicit breakpoint, or as a cachePoint block of Bedrock's Converse."""
Placement = Literal["tools", "system", "message", "request"]
Ttl = Literal["5m", "1h"]

MOST_MARKERS = 4
TOOLS = -2
"""The position of the tool definitions."""
SYSTEM = -1
"""The position of a system prompt that stands beside the messages."""


class PromptCacheHint(msgspec.Struct, frozen=True, kw_only=True):
    """A cache breakpoint belongs after this message; or, for the placement `request`, this `key` on the request."""

    message_index: int
    placement: Placement
    reason: str
    provider: str = ""
    layout: Layout = "anthropic"
    ttl: Ttl = "5m"
    key: str = ""
