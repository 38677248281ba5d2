"""Which blocks can carry a cache marker, and which carry one already.

Rules of this file (what providers do, November 2026):
1. Anthropic takes markers on text, images, documents, calls and results; never on thinking, never on empty text.
2. In an OpenAI-style envelope to Claude only text inside content parts counts. A marker on a bare tool message or on an
   empty one is ignored, or hangs; inside the parts of a tool message only `TOOL_PARTS` hosts honour it.
3. OpenAI's explicit breakpoints stand on what the model reads: system, user and tool text, never on its own answers.
4. A marker that the client wrote counts, wherever it stands, and also when it stands inside a tool result.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from msgspec import Raw

from midfold.core.handoff import SYSTEM_NOTE
from midfold.core.hint import Layout
from midfold.core.message import Media, Message, Opaque, Part, Text, Tool, ToolCall, ToolResult, plain
from midfold.wire.document import Document

FIELDS: dict[Layout, str] = {
    "anthropic": "cache_control",
    "envelope": "cache_control",
    "openai": "prompt_cache_breakpoint",
    "bedrock": "cachePoint",
}
TOOL_PARTS = frozenset({"openrouter", "nous"})
"""Hosts that move a marker from a tool message's part to the tool result it becomes."""


def content_of(message: Message) -> tuple[Part, ...]:
    """The parts that stand in the content of an OpenAI-style message; calls and thoughts stand beside it."""
    only = message.parts[0] if len(message.parts) == 1 else None
    parts = only.parts if isinstance(only, ToolResult) else message.parts
    return tuple(part for part in parts if isinstance(part, Text | Media) or _is_block(part))


def _is_block(part: Part) -> bool:
    return isinstance(part, Opaque) and part.wire is not None


def block_count(message: Message) -> int:
    """How many blocks the message is to a provider that looks back by blocks."""
    return max(len(message.parts), 1)


def carrier(message: Message, layout: Layout, provider: str = "") -> int | None:
    """The place in the content of the last block that can carry a marker; None if none can."""
    if layout in ("anthropic", "bedrock"):
        blocks = message.parts
        return next((place for place in range(len(blocks) - 1, -1, -1) if _anthropic(blocks[place])), None)
    if message.role == "tool" and not (layout == "openai" or provider in TOOL_PARTS):
        return None
    if message.role == "other" or (layout == "openai" and message.role == "assistant"):
        return None
    blocks = content_of(message)
    return next((place for place in range(len(blocks) - 1, -1, -1) if _is_said(blocks[place])), None)


def system_carrier(system: Message) -> int | None:
    """The same for a system prompt beside the messages. The note of a first compaction comes after the breakpoint."""
    parts = system.parts
    places = range(len(parts) - 1, -1, -1)
    said = [place for place in places if _is_said(parts[place])]
    lasting = [place for place in said if getattr(parts[place], "text", "") != SYSTEM_NOTE]
    return next(iter(lasting or said), None)


def tool_carrier(tools: tuple[Tool, ...]) -> int | None:
    """The last tool definition that is sent; one that is loaded later may not be marked."""
    for place in range(len(tools) - 1, -1, -1):
        if '"defer_loading"' not in tools[place].body:
            return place
    return None


def _is_said(part: Part) -> bool:
    """Text that is not empty; a bare string among blocks has no place for a marker."""
    return isinstance(part, Text) and bool(part.text.strip()) and not isinstance(part.wire, str)


def _anthropic(part: Part) -> bool:
    if isinstance(part, ToolResult):
        return any(_anthropic(inner) for inner in part.parts)
    if isinstance(part, Media):
        return part.kind in ("image", "document")
    return isinstance(part, ToolCall) or _is_said(part)


def has_marker(message: Message, layout: Layout) -> bool:
    return own_markers(message, layout) != []


_ESCAPED = re.compile(rb"\\u00[5-7]")
"""A letter that is written as an escape: a key may be."""


def lacks(data: bytes, layout: Layout) -> bool:
    """Whether JSON surely has no marker in it."""
    return FIELDS[layout].encode() not in data and _ESCAPED.search(data) is None


def document_lacks(document: Document, layout: Layout) -> bool:
    """The same for a whole request."""
    return document.lacks(f'"{FIELDS[layout]}"'.encode()) and document.lacks(_ESCAPED)


def own_markers(message: Message, layout: Layout) -> list[Any]:
    """The markers that are in a message already, in order."""
    field = FIELDS[layout]
    wire = message.wire if message.wire is not None else message.origin
    if isinstance(wire, Raw) and lacks(bytes(wire), layout):
        return []
    if message.wire is None:
        return [marker for part in message.parts for marker in _found(part.wire, field)]
    value = plain(message.wire)
    if isinstance(value, Mapping):
        inside = [value.get("content"), value.get("output")]
        beside = [value[field]] if value.get(field) is not None else []
        return [*beside, *(marker for item in inside for marker in _found(item, field))]
    return list(_found(value, field))


def _found(value: Any, field: str) -> Iterator[Any]:
    """The markers on blocks and on the blocks inside them; not what a call's arguments or a text happen to say."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _found(item, field)
    elif isinstance(value, Mapping):
        if value.get(field) is not None:
            yield value[field]
        yield from _found(value.get("content"), field)


def tool_markers(tools: tuple[Tool, ...], layout: Layout) -> list[Any]:
    """The markers on tool definitions."""
    field = FIELDS[layout]
    likely = [tool for tool in tools if field in tool.body]
    values = [plain(tool.body.encode("utf-8", "surrogateescape")) for tool in likely]
    return [value[field] for value in values if isinstance(value, Mapping) and value.get(field) is not None]


def ttl_of(marker: Any) -> str:
    """How long a marker asks for; five minutes if it does not say."""
    ttl = marker.get("ttl") if isinstance(marker, Mapping) else None
    return ttl if isinstance(ttl, str) else "5m"
