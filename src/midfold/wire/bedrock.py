"""Cache points of Bedrock's Converse shape: blocks of their own behind the block where a prefix ends.

Converse is no dialect of midfold's: its requests are carried, not compacted. Its blocks have no `type`; what they are
is the name of their only field (`text`, `image`, `toolUse`, `toolResult`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midfold.core.hint import MOST_MARKERS, SYSTEM, TOOLS
from midfold.core.message import plain
from midfold.wire import patch
from midfold.wire.document import Document

POINT = {"cachePoint": {"type": "default"}}
CARRIERS = ("text", "image", "document", "toolUse", "toolResult")


def mark(document: Document, positions: Sequence[int]) -> Any:
    """The request with a cache point at each position that can have one; the client's own count, and stay."""
    body = document.body
    if body is None:
        return document.source
    lists = {
        TOOLS: plain(body.get("toolConfig") or {}).get("tools"),
        SYSTEM: plain(body.get("system")),
        **{index: _content(message.wire) for index, message in enumerate(document.messages)},
    }
    own = sum(_points(blocks) for blocks in lists.values())
    possible = [index for index in sorted(set(positions)) if not _points(lists.get(index)) and _last(lists.get(index))]
    chosen = possible[-(MOST_MARKERS - own) :] if own < MOST_MARKERS else []
    if not chosen:
        return document.source
    messages: dict[int, Any] = {}
    fields: dict[str, Any] = {}
    for index in chosen:
        place = _last(lists[index]) - 1
        if index == SYSTEM:
            fields["system"] = patch.with_items_after(body["system"], {place: POINT})
        elif index == TOOLS:
            held = body["toolConfig"]
            tools = patch.with_items_after(patch.field(held, "tools"), {place: POINT})
            fields["toolConfig"] = patch.with_field(held, "tools", tools)
        else:
            wire = patch.value_of(document.messages[index], document.dialect)
            content = patch.with_items_after(patch.field(wire, "content"), {place: POINT})
            messages[index] = patch.with_field(wire, "content", content)
    return patch.document(document, messages, fields)


def _content(wire: Any) -> Any:
    value = plain(wire)
    return value.get("content") if isinstance(value, Mapping) else None


def _points(blocks: Any) -> int:
    return sum(isinstance(block, Mapping) and "cachePoint" in block for block in blocks or ())


def _last(blocks: Any) -> int:
    """How many blocks there are up to the last one that a cache point can follow; 0 if there is none."""
    if not isinstance(blocks, list | tuple):
        return 0
    for count in range(len(blocks), 0, -1):
        block = blocks[count - 1]
        if isinstance(block, Mapping) and (block.get("toolSpec") or any(_is_full(block, name) for name in CARRIERS)):
            return count
    return 0


def _is_full(block: Mapping[str, Any], name: str) -> bool:
    value = block.get(name)
    return bool(value.strip()) if isinstance(value, str) else value is not None
