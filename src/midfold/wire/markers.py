"""Cache markers, written into a request in the way its provider reads them.

Rules of this file:
1. Nothing but the markers changes: every other byte, every other object, stays what and where it was.
2. The client's own markers are counted and kept. There are never more than four, and never two on one block.
3. A longer lifetime never stands after a shorter one: a marker takes the lifetime that its neighbours allow.
4. Hints that a block cannot carry are left out. So are hints in excess, the first ones first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from midfold.core.hint import MOST_MARKERS, SYSTEM, TOOLS, Layout, PromptCacheHint, Ttl
from midfold.core.message import Message, plain
from midfold.wire import bedrock, patch
from midfold.wire.carriers import (
    FIELDS,
    carrier,
    document_lacks,
    own_markers,
    system_carrier,
    tool_carrier,
    tool_markers,
    ttl_of,
)
from midfold.wire.document import Document

KEY = "prompt_cache_key"
IMPLICIT = 1
"""OpenAI writes one breakpoint of its own at the end of the newest message."""


def mark(document: Document, hints: Iterable[PromptCacheHint], *, ttl: Ttl | None = None) -> Any:
    """The conversation in the shape it came in, with markers where the hints say; the very source if there are none."""
    asked = list(hints)
    places = [hint for hint in asked if hint.placement != "request"]
    key = next((hint.key for hint in asked if hint.placement == "request" and hint.key), "")
    if places and places[0].layout == "bedrock":
        return bedrock.mark(document, [hint.message_index for hint in places])
    chosen = chosen_hints(document, places, ttl)
    changes = {hint.message_index: _marked(document, hint) for hint in chosen}
    fields: dict[str, Any] = {}
    body = document.body
    if body is not None:
        if SYSTEM in changes:
            fields[str(document.dialect.system_key)] = changes.pop(SYSTEM)
        if TOOLS in changes:
            fields["tools"] = changes.pop(TOOLS)
        if key and body.get(KEY) is None:
            fields[KEY] = key
    if not changes and not fields:
        return document.source
    return patch.document(document, changes, fields)


def chosen_hints(document: Document, hints: Iterable[PromptCacheHint], ttl: Ttl | None = None) -> list[PromptCacheHint]:
    """The hints that can be written: where a block can carry one, no more than are free, lifetimes fitted."""
    known = {hint.message_index: hint for hint in hints}
    if not known:
        return []
    layout = next(iter(known.values())).layout
    own = client_markers(document, layout)
    possible = [
        hint for index, hint in sorted(known.items()) if index not in own and _place(document, hint) is not None
    ]
    taken = sum(len(markers) for markers in own.values()) + (IMPLICIT if layout == "openai" else 0)
    free = MOST_MARKERS - taken - _automatic(document)
    kept = possible[-free:] if free > 0 else []
    lifetimes = {index: [ttl_of(marker) for marker in markers] for index, markers in own.items()}
    return [msgspec.structs.replace(hint, ttl=_fitted(hint, ttl or hint.ttl, lifetimes)) for hint in kept]


def client_markers(document: Document, layout: Layout) -> dict[int, list[Any]]:
    """The markers that are there already, by position."""
    if document_lacks(document, layout):
        return {}
    found: dict[int, list[Any]] = {}
    if layout == "anthropic" and (markers := tool_markers(document.tools, layout)):
        found[TOOLS] = markers
    if document.system is not None and (markers := own_markers(document.system, layout)):
        found[SYSTEM] = markers
    for index, message in enumerate(document.messages):
        if markers := own_markers(message, layout):
            found[index] = markers
    return found


def _automatic(document: Document) -> int:
    """A marker on the request itself is a breakpoint at its end."""
    return int(document.setting("cache_control") is not None)


def _fitted(hint: PromptCacheHint, wanted: Ttl, lifetimes: Mapping[int, list[str]]) -> Ttl:
    before = [ttl for index, ttls in lifetimes.items() if index <= hint.message_index for ttl in ttls]
    after = [ttl for index, ttls in lifetimes.items() if index > hint.message_index for ttl in ttls]
    if "5m" in before:
        return "5m"
    return "1h" if "1h" in after else wanted


def _place(document: Document, hint: PromptCacheHint) -> int | None:
    index = hint.message_index
    if index == TOOLS:
        return tool_carrier(document.tools) if document.body is not None and hint.layout == "anthropic" else None
    if index == SYSTEM:
        beside = hint.layout == "anthropic" and document.system is not None
        return system_carrier(document.system) if beside and document.system is not None else None
    if not 0 <= index < len(document.messages):
        return None
    return carrier(document.messages[index], hint.layout, hint.provider)


def _marked(document: Document, hint: PromptCacheHint) -> Any:
    """The message, system prompt or list of tools with the marker on its block."""
    field = FIELDS[hint.layout]
    marker = marker_for(hint.layout, hint.ttl)
    place = _place(document, hint)
    assert place is not None
    if hint.message_index == TOOLS:
        tools = (document.body or {})["tools"]
        return patch.with_item(tools, place, patch.with_field(patch.items(tools)[place], field, marker))
    if hint.message_index == SYSTEM:
        return _on_block((document.body or {})[str(document.dialect.system_key)], place, field, marker, "text")
    message = document.messages[hint.message_index]
    wire = patch.value_of(message, document.dialect)
    if patch.is_text(wire):
        wire = patch.as_message(wire)
    name = "content" if hint.layout == "anthropic" else _content_name(message)
    text_type = _text_type(document, message)
    return patch.with_field(wire, name, _on_block(patch.field(wire, name), place, field, marker, text_type))


def _on_block(content: Any, place: int, field: str, marker: Any, text_type: str) -> Any:
    if patch.is_text(content):
        return patch.wrapped(content, text_type, field, marker)
    return patch.with_item(content, place, patch.with_field(patch.items(content)[place], field, marker))


def _content_name(message: Message) -> str:
    value = plain(message.wire) if message.wire is not None else {}
    return "output" if isinstance(value, Mapping) and "call_id" in value and "output" in value else "content"


def _text_type(document: Document, message: Message) -> str:
    if document.dialect.name != "openai-responses":
        return "text"
    return "output_text" if message.role == "assistant" else "input_text"


def marker_for(layout: Layout, ttl: Ttl) -> dict[str, Any]:
    """What a marker says. OpenAI keeps every breakpoint for thirty minutes, and takes no other lifetime."""
    if layout == "openai":
        return {"mode": "explicit"}
    return {"type": "ephemeral", "ttl": "1h"} if ttl == "1h" else {"type": "ephemeral"}
