"""Write cache markers into a request in its provider's format.

1. Only the markers change: all other bytes and objects stay the same.
2. The client's own markers are counted and kept. There are at most four, and never two on one block.
3. A longer lifetime never follows a shorter one: a marker gets the lifetime that its neighbours allow.
4. Hints for blocks that cannot carry a marker are dropped, and so are the first of too many hints.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import msgspec
from msgspec import Raw

from midfold.compaction.handoff import SYSTEM_NOTE
from midfold.errors import ConfigError
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.document import BOM, Document
from midfold.transcript.jsonio import elements, entries, first_byte, places
from midfold.transcript.message import Media, Message, Opaque, Part, Text, Tool, ToolCall, ToolResult, plain
from midfold.transcript.splice import Piece, message_value, replace_values

# Hints say where a stable prefix of a request ends, for any provider.
#
# A hint describes, it never edits. `cache.plan` makes hints, `cache.markers.mark` writes them.


Layout = Literal["anthropic", "envelope", "openai", "bedrock"]
"""Format of a marker: on Anthropic's blocks, on content parts of an OpenAI-style request to Claude, OpenAI's explicit
breakpoint, or a cachePoint block of Bedrock's Converse API.
"""
Placement = Literal["tools", "system", "message", "request"]
Ttl = Literal["5m", "1h"]

MARKERS = ("cache_control", "prompt_cache_breakpoint")
"""Fields of a request that are markers; models do not see them."""
QUOTED_MARKERS = tuple(f'"{name}"'.encode() for name in MARKERS)
MAX_MARKERS = 4
TOOLS = -2
"""Position of the tool definitions."""
SYSTEM = -1
"""Position of a system prompt outside of the messages."""


def check_ttl(ttl: object) -> None:
    """Raise ConfigError if a lifetime is not supported by Anthropic's cache."""
    if ttl not in get_args(Ttl):
        raise ConfigError(f"ttl: expected '5m' or '1h', found {ttl!r}")


def strip_markers(value: Any) -> Any:
    """Return a JSON value without markers at any depth."""
    if isinstance(value, Mapping):
        return {str(key): strip_markers(item) for key, item in value.items() if key not in MARKERS}
    return [strip_markers(item) for item in value] if isinstance(value, list | tuple) else value


class PromptCacheHint(msgspec.Struct, frozen=True, kw_only=True):
    """Cache breakpoint after a message; for the placement `request`, a cache `key` for the request."""

    message_index: int
    placement: Placement
    reason: str
    provider: str = ""
    layout: Layout = "anthropic"
    ttl: Ttl = "5m"
    key: str = ""


# Small edits of JSON values, which are `msgspec.Raw` or Python objects.
#
# Raw values stay raw, and all other bytes are kept. Objects are copied only along the path to the change.


def value_of(message: Message, dialect: type[Dialect]) -> Any:
    """Return a message as the bytes received, or as an object."""
    return message.wire if isinstance(message.wire, Raw) else plain(message_value(message, dialect))


def is_text(value: Any) -> bool:
    return first_byte(value) == b'"' if isinstance(value, Raw) else isinstance(value, str)


def field_of(value: Any, name: str) -> Any:
    return entries(bytes(value)).get(name) if isinstance(value, Raw) else value.get(name)


def with_field(value: Any, name: str, new: Any) -> Any:
    """Return an object with one field replaced or appended."""
    if isinstance(value, Raw):
        return Raw(replace_values(bytes(value), {name: jsonio.encode(new)}))
    return {**value, name: new}


def items(value: Any) -> list[Any]:
    return list(elements(value)) if isinstance(value, Raw) else list(value)


def with_item(value: Any, place: int, new: Any) -> Any:
    """Return a list with one item replaced."""
    if not isinstance(value, Raw):
        return [*value[:place], new, *value[place + 1 :]]
    return Raw(splice_array(bytes(value), elements(value), {place: new}))


def with_items_after(value: Any, new: Mapping[int, Any]) -> Any:
    """Return a list with items inserted after the given places."""
    if not isinstance(value, Raw):
        return [item for place, old in enumerate(value) for item in ((old, new[place]) if place in new else (old,))]
    inside = elements(value)
    return Raw(
        splice_array(
            bytes(value),
            inside,
            {place: Raw(bytes(inside[place]) + b"," + jsonio.encode(item)) for place, item in new.items()},
        )
    )


def block_with_marker(text: Any, text_type: str, name: str, marker: Any) -> Any:
    """Return a string as a list of one text block with a marker."""
    if not isinstance(text, Raw):
        return [{"type": text_type, "text": text, name: marker}]
    ending = b"," + jsonio.encode(name) + b":" + jsonio.encode(marker) + b"}]"
    return Raw(b'[{"type":' + jsonio.encode(text_type) + b',"text":' + bytes(text) + ending)


def as_message(text: Any) -> Any:
    """Return a bare string in a list of items as a user message."""
    return Raw(b'{"role":"user","content":' + bytes(text) + b"}") if isinstance(text, Raw) else _user_message(text)


def _user_message(text: Any) -> dict[str, Any]:
    return {"role": "user", "content": text}


def splice_array(source: bytes, old: list[Raw], new: Mapping[int, Any]) -> bytes:
    """Return an array with some elements replaced; the bytes between them are kept."""
    return b"".join(pieces(source, old, new))


def pieces(
    source: bytes | Raw, old: Sequence[Raw], new: Mapping[int, Any], opening: bytes = b"[", between: bytes = b","
) -> list[Piece]:
    """Return an array, or JSON lines, with some elements replaced, as parts to be joined."""
    view = memoryview(source)
    out: list[Piece] = []
    last = 0
    for place, (begin, end) in enumerate(places(view, old[: max(new, default=-1) + 1], opening, between)):
        if place in new:
            out += [view[last:begin], jsonio.encode(new[place])]
            last = end
    return [*out, view[last:]]


def patch_document(source: Document, messages: Mapping[int, Any], fields: Mapping[str, Any]) -> Any:
    """Return a document's source with some messages and body fields replaced."""
    given = source.source
    if not isinstance(given, bytes | bytearray | memoryview | str):
        return _objects(source, messages, fields)
    data = given.encode("utf-8", "surrogatepass") if isinstance(given, str) else bytes(given)
    text = data.removeprefix(BOM)
    written = data[: len(data) - len(text)] + _bytes(source, text, messages, fields)
    return written.decode("utf-8", "surrogatepass") if isinstance(given, str) else written


def _bytes(source: Document, text: bytes, messages: Mapping[int, Any], fields: Mapping[str, Any]) -> bytes:
    wires = [message.wire for message in source.messages]
    if source.lines:
        return b"".join(pieces(text, wires, messages, b"", b""))
    if source.body is None:
        return splice_array(text, wires, messages)
    changed: dict[str, bytes | list[Piece] | None] = {name: jsonio.encode(value) for name, value in fields.items()}
    if messages:
        array = source.body[source.list_key]
        changed[source.list_key] = (
            [b"[", jsonio.encode(messages[0]), b"]"] if is_text(array) else pieces(array, wires, messages)
        )
    return replace_values(text, changed, source.body)


def _objects(source: Document, messages: Mapping[int, Any], fields: Mapping[str, Any]) -> Any:
    values = [
        messages[place] if place in messages else message_value(message, source.dialect)
        for place, message in enumerate(source.messages)
    ]
    if source.body is None:
        return values
    return {**source.body, **fields, **({source.list_key: values} if messages else {})}


# Cache points of Bedrock's Converse API are separate blocks after the block where a prefix ends.
#
# midfold does not compact Converse requests. Their blocks have no `type`; the name of the only field says what a block
# is (`text`, `image`, `toolUse`, `toolResult`).


CACHE_POINT = {"cachePoint": {"type": "default"}}
CARRIERS = ("text", "image", "document", "toolUse", "toolResult")


def mark_for_bedrock(document: Document, positions: Sequence[int]) -> Any:
    """Return the request with a cache point at each position that can have one; the client's own count and stay."""
    body = document.body
    if body is None:
        return document.source
    lists = {
        TOOLS: plain(body.get("toolConfig") or {}).get("tools"),
        SYSTEM: plain(body.get("system")),
        **{index: _content(message.wire) for index, message in enumerate(document.messages)},
    }
    own = sum(_count_cache_points(blocks) for blocks in lists.values())
    possible = [
        index
        for index in sorted(set(positions))
        if not _count_cache_points(lists.get(index)) and _cacheable_block_count(lists.get(index))
    ]
    chosen = possible[-(MAX_MARKERS - own) :] if own < MAX_MARKERS else []
    if not chosen:
        return document.source
    messages: dict[int, Any] = {}
    fields: dict[str, Any] = {}
    for index in chosen:
        place = _cacheable_block_count(lists[index]) - 1
        if index == SYSTEM:
            fields["system"] = with_items_after(body["system"], {place: CACHE_POINT})
        elif index == TOOLS:
            held = body["toolConfig"]
            tools = with_items_after(field_of(held, "tools"), {place: CACHE_POINT})
            fields["toolConfig"] = with_field(held, "tools", tools)
        else:
            wire = value_of(document.messages[index], document.dialect)
            content = with_items_after(field_of(wire, "content"), {place: CACHE_POINT})
            messages[index] = with_field(wire, "content", content)
    return patch_document(document, messages, fields)


def _content(wire: Any) -> Any:
    value = plain(wire)
    return value.get("content") if isinstance(value, Mapping) else None


def _count_cache_points(blocks: Any) -> int:
    return sum(isinstance(block, Mapping) and "cachePoint" in block for block in blocks or ())


def _cacheable_block_count(blocks: Any) -> int:
    """Return the number of blocks up to the last one that a cache point can follow; 0 if there is none."""
    if not isinstance(blocks, list | tuple):
        return 0
    for count in range(len(blocks), 0, -1):
        block = blocks[count - 1]
        if isinstance(block, Mapping) and (
            block.get("toolSpec") or any(_has_content(block, name) for name in CARRIERS)
        ):
            return count
    return 0


def _has_content(block: Mapping[str, Any], name: str) -> bool:
    value = block.get(name)
    return bool(value.strip()) if isinstance(value, str) else value is not None


# Blocks that can carry a cache marker, as of November 2026.
#
# 1. Anthropic accepts markers on text, images, documents, tool calls and tool results; never on thinking or empty text.
# 2. In an OpenAI-style request to Claude only text inside content parts counts. A marker on a bare tool message or an
#    empty one is ignored or hangs; inside the parts of a tool message only `TOOL_PARTS` hosts honour it.
# 3. OpenAI's explicit breakpoints belong on model input: system, user and tool text, never on responses.
# 4. A client's own marker counts anywhere, including inside a tool result.


FIELDS: dict[Layout, str] = {
    "anthropic": MARKERS[0],
    "envelope": MARKERS[0],
    "openai": MARKERS[1],
    "bedrock": "cachePoint",
}
TOOL_PARTS = frozenset({"openrouter", "nous"})
"""Hosts that move a marker from a part of a tool message to the resulting tool result."""


def content_of(message: Message) -> tuple[Part, ...]:
    """Return the parts in the content of an OpenAI-style message; tool calls and reasoning are separate fields."""
    only = message.parts[0] if len(message.parts) == 1 else None
    parts = only.parts if isinstance(only, ToolResult) else message.parts
    return tuple(part for part in parts if isinstance(part, Text | Media) or _is_block(part))


def _is_block(part: Part) -> bool:
    return isinstance(part, Opaque) and part.wire is not None


def block_count(message: Message) -> int:
    """Return the number of blocks that a message counts as in a provider's lookback."""
    return max(len(message.parts), 1)


def carrier(message: Message, layout: Layout, provider: str = "") -> int | None:
    """Return the index of the last content block that can carry a marker; None if there is none."""
    if layout in ("anthropic", "bedrock"):
        blocks = message.parts
        return next((place for place in range(len(blocks) - 1, -1, -1) if _anthropic_accepts(blocks[place])), None)
    if message.role == "tool" and not (layout == "openai" or provider in TOOL_PARTS):
        return None
    if message.role == "other" or (layout == "openai" and message.role == "assistant"):
        return None
    blocks = content_of(message)
    return next((place for place in range(len(blocks) - 1, -1, -1) if _is_markable_text(blocks[place])), None)


def system_carrier(system: Message) -> int | None:
    """Return the same for a separate system prompt. The note of a first compaction comes after the breakpoint."""
    parts = system.parts
    places = range(len(parts) - 1, -1, -1)
    markable = [place for place in places if _is_markable_text(parts[place])]
    lasting = [place for place in markable if getattr(parts[place], "text", "") != SYSTEM_NOTE]
    return next(iter(lasting or markable), None)


def tool_carrier(tools: tuple[Tool, ...]) -> int | None:
    """Return the index of the last tool definition that can be marked; deferred ones cannot."""
    for place in range(len(tools) - 1, -1, -1):
        if '"defer_loading"' not in tools[place].body:
            return place
    return None


def _is_markable_text(part: Part) -> bool:
    """Return whether a part is nonempty text that can carry a marker; bare strings among blocks cannot."""
    return isinstance(part, Text) and bool(part.text.strip()) and not isinstance(part.wire, str)


def _anthropic_accepts(part: Part) -> bool:
    if isinstance(part, ToolResult):
        return any(_anthropic_accepts(inner) for inner in part.parts)
    if isinstance(part, Media):
        return part.kind in ("image", "document")
    return isinstance(part, ToolCall) or _is_markable_text(part)


def has_marker(message: Message, layout: Layout) -> bool:
    return own_markers(message, layout) != []


_ESCAPED = re.compile(rb"\\u00[5-7]")
"""Escaped letter; a key may be written with escapes."""


def lacks(data: bytes, layout: Layout) -> bool:
    """Return whether JSON surely contains no marker."""
    return FIELDS[layout].encode() not in data and _ESCAPED.search(data) is None


def document_lacks(document: Document, layout: Layout) -> bool:
    """Return whether a request surely contains no marker."""
    return document.lacks(f'"{FIELDS[layout]}"'.encode()) and document.lacks(_ESCAPED)


def own_markers(message: Message, layout: Layout) -> list[Any]:
    """Return the markers in a message, in order."""
    field = FIELDS[layout]
    wire = message.wire if message.wire is not None else message.origin
    if isinstance(wire, Raw) and lacks(bytes(wire), layout):
        return []
    if message.wire is None:
        return [marker for part in message.parts for marker in _find_markers(part.wire, field)]
    value = plain(message.wire)
    if isinstance(value, Mapping):
        inside = [value.get("content"), value.get("output")]
        beside = [value[field]] if value.get(field) is not None else []
        return [*beside, *(marker for item in inside for marker in _find_markers(item, field))]
    return list(_find_markers(value, field))


def _find_markers(value: Any, field: str) -> Iterator[Any]:
    """Yield the markers on blocks and nested blocks, ignoring call arguments and texts."""
    if isinstance(value, list | tuple):
        for item in value:
            yield from _find_markers(item, field)
    elif isinstance(value, Mapping):
        if value.get(field) is not None:
            yield value[field]
        yield from _find_markers(value.get("content"), field)


def tool_markers(tools: tuple[Tool, ...], layout: Layout) -> list[Any]:
    """Return the markers on tool definitions."""
    field = FIELDS[layout]
    likely = [tool for tool in tools if field in tool.body]
    values = [plain(tool.body.encode("utf-8", "surrogateescape")) for tool in likely]
    return [value[field] for value in values if isinstance(value, Mapping) and value.get(field) is not None]


def ttl_of(marker: Any) -> str:
    """Return the lifetime of a marker; five minutes if it has none."""
    ttl = marker.get("ttl") if isinstance(marker, Mapping) else None
    return ttl if isinstance(ttl, str) else "5m"


KEY_FIELD = "prompt_cache_key"
IMPLICIT_BREAKPOINTS = 1
"""Breakpoints that OpenAI sets on its own: one at the end of the newest message."""


def mark(document: Document, hints: Iterable[PromptCacheHint], *, ttl: Ttl | None = None) -> Any:
    """Return the request in its own format with markers where the hints say; the source object if nothing changes."""
    given = list(hints)
    places = [hint for hint in given if hint.placement != "request"]
    key = next((hint.key for hint in given if hint.placement == "request" and hint.key), "")
    if places and places[0].layout == "bedrock":
        return mark_for_bedrock(document, [hint.message_index for hint in places])
    chosen = chosen_hints(document, places, ttl)
    changes = {hint.message_index: _with_marker(document, hint) for hint in chosen}
    fields: dict[str, Any] = {}
    body = document.body
    if body is not None:
        if SYSTEM in changes:
            fields[str(document.dialect.system_key)] = changes.pop(SYSTEM)
        if TOOLS in changes:
            fields["tools"] = changes.pop(TOOLS)
        if key and body.get(KEY_FIELD) is None:
            fields[KEY_FIELD] = key
    if not changes and not fields:
        return document.source
    return patch_document(document, changes, fields)


def chosen_hints(document: Document, hints: Iterable[PromptCacheHint], ttl: Ttl | None = None) -> list[PromptCacheHint]:
    """Return the hints that can be written: on blocks that can carry a marker, within the free slots, lifetimes
    adjusted.
    """
    known = {hint.message_index: hint for hint in hints}
    if not known:
        return []
    layout = next(iter(known.values())).layout
    own = client_markers(document, layout)
    possible = [
        hint for index, hint in sorted(known.items()) if index not in own and _place(document, hint) is not None
    ]
    taken = sum(len(markers) for markers in own.values()) + (IMPLICIT_BREAKPOINTS if layout == "openai" else 0)
    free = MAX_MARKERS - taken - _count_request_markers(document)
    kept = possible[-free:] if free > 0 else []
    lifetimes = {index: [ttl_of(marker) for marker in markers] for index, markers in own.items()}
    return [msgspec.structs.replace(hint, ttl=_fit_ttl(hint, ttl or hint.ttl, lifetimes)) for hint in kept]


def client_markers(document: Document, layout: Layout) -> dict[int, list[Any]]:
    """Return the client's own markers by position."""
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


def _count_request_markers(document: Document) -> int:
    """Return 1 if the request itself has a marker, which is a breakpoint at its end."""
    return int(document.setting(MARKERS[0]) is not None)


def _fit_ttl(hint: PromptCacheHint, wanted: Ttl, lifetimes: Mapping[int, list[str]]) -> Ttl:
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


def _with_marker(document: Document, hint: PromptCacheHint) -> Any:
    """Return the message, system prompt or tool list with the marker on its block."""
    field = FIELDS[hint.layout]
    marker = marker_for(hint.layout, hint.ttl)
    place = _place(document, hint)
    assert place is not None
    if hint.message_index == TOOLS:
        tools = (document.body or {})["tools"]
        return with_item(tools, place, with_field(items(tools)[place], field, marker))
    if hint.message_index == SYSTEM:
        return _mark_block((document.body or {})[str(document.dialect.system_key)], place, field, marker, "text")
    message = document.messages[hint.message_index]
    wire = value_of(message, document.dialect)
    if is_text(wire):
        wire = as_message(wire)
    name = "content" if hint.layout == "anthropic" else _content_name(message)
    text_type = _text_type(document, message)
    return with_field(wire, name, _mark_block(field_of(wire, name), place, field, marker, text_type))


def _mark_block(content: Any, place: int, field: str, marker: Any, text_type: str) -> Any:
    if is_text(content):
        return block_with_marker(content, text_type, field, marker)
    return with_item(content, place, with_field(items(content)[place], field, marker))


def _content_name(message: Message) -> str:
    value = plain(message.wire) if message.wire is not None else {}
    return "output" if isinstance(value, Mapping) and "call_id" in value and "output" in value else "content"


def _text_type(document: Document, message: Message) -> str:
    if document.dialect.name != "openai-responses":
        return "text"
    return "output_text" if message.role == "assistant" else "input_text"


def marker_for(layout: Layout, ttl: Ttl) -> dict[str, Any]:
    """Return a marker. OpenAI keeps every breakpoint for thirty minutes and accepts no other lifetime."""
    check_ttl(ttl)
    if layout == "openai":
        return {"mode": "explicit"}
    return {"type": "ephemeral", "ttl": "1h"} if ttl == "1h" else {"type": "ephemeral"}
