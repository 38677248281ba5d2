"""Cache key for the stable part of a job's requests (instructions and tools), and diffs of request prefixes.

1. The key does not depend on the order of tools and keys, white space, markers or session ids.
2. It does not depend on the note that a first compaction adds to the system prompt.
3. It is only a routing hint: jobs with the same key are served by the same machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import zip_longest
from typing import Any, Literal, NamedTuple

import msgspec

from midfold.cache.markers import MARKERS, strip_markers
from midfold.cache.prices import Prices
from midfold.compaction.handoff import SYSTEM_NOTE, recognise
from midfold.compaction.local.digest import is_digest
from midfold.transcript import jsonio
from midfold.transcript.document import Document, tool_of
from midfold.transcript.message import Message, Text, Tool, ToolResult, plain
from midfold.transcript.splice import message_value
from midfold.transcript.tokens import Meter

PREFIX = "mfpk_"
"""Prefix of keys; session ids never begin with it."""
MAX_KEY_CHARS = 64


def stable_prefix_cache_key(system_prompt: Any, tools: Iterable[Any] | None = None, *, session_id: str = "") -> str:
    """Return a cache key: at most 64 characters of SHA-256 over the instructions, a NUL and the sorted tools.

    `system_prompt` is a text, a list of blocks or a message; `tools` are definitions in any dialect, sorted by name
    and type. Without either the key is derived from `session_id`, or empty.
    """
    instructions = _instructions(system_prompt)
    schemas = sorted(
        (_schema(tool) for tool in tools or ()), key=lambda schema: (_name(schema), _kind(schema), _json(schema))
    )
    if not instructions and not schemas:
        return _key(b"session\0" + session_id.encode("utf-8", "surrogatepass")) if session_id else ""
    return _key(instructions.encode("utf-8", "surrogatepass") + b"\0" + _json(schemas))


def _key(data: bytes) -> str:
    return (PREFIX + sha256(data).hexdigest())[:MAX_KEY_CHARS]


def _instructions(prompt: Any) -> str:
    if isinstance(prompt, Message):
        text = "\n".join(prompt.texts())
    else:
        value = plain(prompt)
        if isinstance(value, Mapping):
            value = value.get("content") or value.get("text")
        blocks = value if isinstance(value, list | tuple) else [value]
        text = "\n".join(_text(block) for block in blocks)
    return text.replace(SYSTEM_NOTE, "").rstrip()


def _text(block: Any) -> str:
    if isinstance(block, Mapping):
        return str(block.get("text") or "")
    return block if isinstance(block, str) else ""


def _schema(tool: Any) -> Any:
    value = jsonio.decode(tool.body) if isinstance(tool, Tool) else plain(tool)
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if key not in MARKERS}
    return value


def _name(schema: Any) -> str:
    function = schema.get("function") if isinstance(schema, Mapping) else None
    held = function if isinstance(function, Mapping) else schema
    return str(held.get("name") or "") if isinstance(held, Mapping) else ""


def _kind(schema: Any) -> str:
    return str(schema.get("type") or "") if isinstance(schema, Mapping) else ""


def _json(value: Any) -> bytes:
    return jsonio.encode(_sort_keys(value))


def _sort_keys(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sort_keys(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_sort_keys(item) for item in value]
    return value


# Difference of two requests: the first place, its cost and its cause.
#
# 1. Requests are compared in the order in which providers cache them: model, tools, system prompt, messages.
# 2. Markers are ignored, and a string equals one text block.
# 3. Everything after the first difference is written again; the cost is what reading it would have saved.


Cause = Literal["none", "client", "compaction", "digest", "tool list", "model"]
SETTINGS = ("tool_choice", "thinking", "reasoning", "reasoning_effort")


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    """First difference of two requests, without any message text."""

    same: bool
    block: str = ""
    """Name of the block: `tools[3]`, `system[0]`, `messages[12]`."""
    field: str = ""
    byte: int = 0
    """Byte offset in the block's JSON without markers."""
    what: str = ""
    who: Cause = "none"
    shared_tokens: int = 0
    lost_tokens: int = 0
    """Tokens of the first request after the difference, which can no longer be read."""
    rewritten_tokens: int = 0
    """Tokens of the second request that must be sent at full price or written again."""
    extra_units: float = 0.0
    """Extra cost in tokens at the base price, if the first request was fully cached and is still warm."""
    extra_money: float = 0.0


class _Block(NamedTuple):
    name: str
    value: Any
    units: int = 0
    messages: int = 0
    message: Message | None = None


def prefix_diff(
    first: Document, second: Document, *, meter: Meter | None = None, prices: Prices | None = None
) -> Difference:
    """Return the first difference between a request and the one after it."""
    meter, prices = meter or Meter(), prices or Prices()
    old, new = _blocks(first, meter), _blocks(second, meter)
    for place, (before, after) in enumerate(zip_longest(old, new)):
        if before is None:
            break
        if after is None or before.name != after.name or before.value != after.value:
            sizes = (_tokens(blocks, meter) for blocks in (old[:place], old, new))
            return _difference(before, after, _Sizes(*sizes), (len(old), len(new)), prices)
    grown = len(new) - len(old)
    what = "the requests are the same" if not grown else f"the second continues the first by {grown} block(s)"
    return Difference(same=True, what=what, shared_tokens=_tokens(old, meter))


class _Sizes(NamedTuple):
    """Tokens of the common prefix and of both requests."""

    shared: int
    old: int
    new: int


def _tokens(blocks: Sequence[_Block], meter: Meter) -> int:
    """Return the tokens of blocks, rounded once to match the size of the whole request."""
    return meter.tokens(sum(block.units for block in blocks), sum(block.messages for block in blocks))


def _difference(
    before: _Block, after: _Block | None, sizes: _Sizes, counts: tuple[int, int], prices: Prices
) -> Difference:
    missed = max(min(sizes.old, sizes.new) - sizes.shared, 0)
    units = (prices.write - prices.read) * missed
    changed = after if after is not None else before
    field, byte = ("", 0) if after is None else _first_field(before.value, after.value)
    return Difference(
        same=False,
        block=changed.name,
        field=field,
        byte=byte,
        what=_describe_change(before, after, *counts),
        who=_cause(before, after),
        shared_tokens=sizes.shared,
        lost_tokens=sizes.old - sizes.shared,
        rewritten_tokens=sizes.new - sizes.shared,
        extra_units=units,
        extra_money=prices.money(units),
    )


def _blocks(document: Document, meter: Meter) -> list[_Block]:
    blocks = [_Block("model", document.model or "")]
    tools = document.setting("tools")
    for index, tool in enumerate(tools if isinstance(tools, list | tuple) else ()):
        blocks.append(_Block(f"tools[{index}]", strip_markers(tool), meter.tool_units((tool_of(tool),))))
    if document.system is not None:
        blocks += _system_blocks(document.system, meter)
    blocks += [_Block(name, strip_markers(document.setting(name))) for name in SETTINGS]
    for index, message in enumerate(document.messages):
        value = strip_markers(plain(message_value(message, document.dialect)))
        if isinstance(value, Mapping) and isinstance(value.get("content"), str):
            value = {**value, "content": _as_blocks(value["content"])}
        blocks.append(_Block(f"{document.list_key}[{index}]", value, meter.units(message), 1, message))
    return blocks


def _system_blocks(system: Message, meter: Meter) -> Iterator[_Block]:
    """Yield the blocks of a system prompt; the overhead of the message counts in the first."""
    values = _as_blocks(plain(system.wire))
    texts = [value.get("text") if isinstance(value, Mapping) else None for value in values]
    sizes = [meter.counter.count(text) if isinstance(text, str) else 0 for text in texts]
    for index, value in enumerate(values):
        units = sizes[index] if index else meter.units(system) - sum(sizes[1:])
        yield _Block(f"system[{index}]", value, units, 0 if index else 1, system)


def _as_blocks(value: Any) -> list[Any]:
    return [{"type": "text", "text": value}] if isinstance(value, str) else strip_markers(list(value or ()))


def _first_field(old: Any, new: Any, path: str = "") -> tuple[str, int]:
    """Return the path to the first value that differs, and its byte offset in the block's JSON."""
    one, two = jsonio.encode(old), jsonio.encode(new)
    byte = next((at for at, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    return _path(old, new, path), byte


def _path(old: Any, new: Any, path: str) -> str:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in dict.fromkeys((*old, *new)):
            if key not in old or key not in new or old[key] != new[key]:
                inner = f"{path}.{key}" if path else str(key)
                return inner if key not in old or key not in new else _path(old[key], new[key], inner)
    if isinstance(old, list) and isinstance(new, list):
        for index, (one, two) in enumerate(zip_longest(old, new)):
            if one != two:
                return _path(one, two, f"{path}[{index}]")
    return path


def _cause(before: _Block, after: _Block | None) -> Cause:
    kind = before.name.partition("[")[0]
    if kind == "model":
        return "model"
    if kind == "tools" or (after is not None and after.name.startswith("tools")):
        return "tool list"
    if after is None:
        return "client"
    if kind == "system":
        text = jsonio.text_of(after.value)
        return "compaction" if SYSTEM_NOTE in text and SYSTEM_NOTE not in jsonio.text_of(before.value) else "client"
    if after.name.startswith("system") and SYSTEM_NOTE in jsonio.text_of(after.value):
        return "compaction"
    if after.message is not None:
        if recognise(after.message) is not None:
            return "compaction"
        if _has_digest(after.message) and not (before.message is not None and _has_digest(before.message)):
            return "digest"
    return "client"


def _has_digest(message: Message) -> bool:
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    return any(is_digest(part.text) for result in results for part in result.parts if isinstance(part, Text))


def _describe_change(before: _Block, after: _Block | None, old: int, new: int) -> str:
    if after is None:
        return f"the second request ends here: it has {new} blocks, the first has {old}"
    if before.name != after.name:
        return f"the first request has {before.name} here, the second has {after.name}"
    if before.name == "model":
        return "models do not share a cache"
    return "the block changed"
