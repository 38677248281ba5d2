"""A model of Anthropic's prompt cache, written from its documentation and independently of the planner it checks.

    cache = PrefixCache(minimum=1024)
    usage = cache.bill(body, at=0.0).usage()        # Anthropic's `usage` for this request
    cache.bill(too_many_markers)                    # raises Refused; the provider answers 400

Rules (Anthropic, November 2026):

1. A request is a chain of blocks: tools, system, messages. A marker is not part of a block; a string is one text block.
2. At most four markers, with lifetimes that never increase, on blocks that may carry one. Everything else is refused.
3. A marker looks for an entry at its own block and at the 19 before it. The longest live one is read and refreshed.
4. Everything between that entry and the last marker is written, at the price of its marker's lifetime. A prefix below
   the minimum is neither read nor written.
5. The model and the tools are part of every prefix, `tool_choice` and `thinking` part of every prefix of messages.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

LIFETIMES = {"5m": 300.0, "1h": 3600.0}
MAX_MARKERS = 4
POSITIONS = 20
TOOL_PART_HOSTS = ("openrouter", "nous")


class Refused(Exception):
    """Error for a request that the provider would reject with status 400 or never answer."""


class Block(NamedTuple):
    """One block of the chain."""

    place: str
    value: Any
    marker: Any = None


class Bill(NamedTuple):
    """Tokens of one request by price."""

    uncached: int
    read: int
    written_5m: int
    written_1h: int

    @property
    def prompt(self) -> int:
        return sum(self)

    def cost(self, *, read: float = 0.1, write: float = 1.25, write_long: float = 2.0) -> float:
        """Return the cost in tokens at the base price."""
        return self.uncached + self.read * read + self.written_5m * write + self.written_1h * write_long

    def usage(self, output_tokens: int = 0) -> dict[str, Any]:
        """Return the usage as Anthropic reports it."""
        return {
            "input_tokens": self.uncached,
            "cache_read_input_tokens": self.read,
            "cache_creation_input_tokens": self.written_5m + self.written_1h,
            "cache_creation": {
                "ephemeral_5m_input_tokens": self.written_5m,
                "ephemeral_1h_input_tokens": self.written_1h,
            },
            "output_tokens": output_tokens,
        }


class _Entry:
    def __init__(self, expires: float, lifetime: float) -> None:
        self.expires, self.lifetime = expires, lifetime


def rough_count(value: Any) -> int:
    """Count four characters per token."""
    return len(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)) // 4 + 1


class PrefixCache:
    """Cache of one organisation at Anthropic, or at a host that forwards markers to it."""

    def __init__(
        self,
        *,
        minimum: int = 1024,
        positions: int = POSITIONS,
        count: Callable[[Any], int] = rough_count,
        host: str = "anthropic",
    ) -> None:
        self.minimum, self.positions, self.count, self.host = minimum, positions, count, host
        self._entries: dict[str, _Entry] = {}

    def bill(self, body: Mapping[str, Any], *, at: float = 0.0) -> Bill:
        """Bill one request at a time in seconds; `body` is Anthropic's or an OpenAI-style envelope."""
        blocks = self.blocks(body)
        markers = _legal(blocks)
        sizes = [0, *accumulate(self.count(block.value) for block in blocks)]
        keys = list(_chain(body, blocks))
        hit = self._longest(keys, sizes, [place for place, _ in markers], at)
        written = {"5m": 0, "1h": 0}
        position = hit
        for place, lifetime in markers:
            if place <= hit or sizes[place + 1] < self.minimum:
                continue
            written[lifetime] += sizes[place + 1] - sizes[position + 1]
            position = place
            self._entries[keys[place]] = _Entry(at + LIFETIMES[lifetime], LIFETIMES[lifetime])
        for place, _ in markers:
            if place <= hit:
                self._touch(keys[place], at)
        return Bill(sizes[-1] - sizes[position + 1], sizes[hit + 1], written["5m"], written["1h"])

    def _longest(self, keys: Sequence[str], sizes: Sequence[int], markers: Sequence[int], at: float) -> int:
        """Return the last block of the longest cached prefix, or -1."""
        best = -1
        for marker in markers:
            for place in range(marker, max(marker - self.positions, -1), -1):
                if place > best and sizes[place + 1] >= self.minimum and self._is_live(keys[place], at):
                    best = place
                    break
        if best >= 0:
            self._touch(keys[best], at)
        return best

    def _is_live(self, key: str, at: float) -> bool:
        entry = self._entries.get(key)
        return entry is not None and entry.expires >= at

    def _touch(self, key: str, at: float) -> None:
        if self._is_live(key, at):
            self._entries[key].expires = at + self._entries[key].lifetime

    def blocks(self, body: Mapping[str, Any]) -> list[Block]:
        """Return the chain of blocks of a request."""
        roles = {message.get("role") for message in body.get("messages", ())}
        is_envelope = "tool" in roles or ("system" in roles and "system" not in body)
        is_envelope = is_envelope or any("function" in tool for tool in body.get("tools", ()) or ())
        blocks = list(_envelope_blocks(body, self.host) if is_envelope else _native_blocks(body))
        if body.get("cache_control") is not None:
            last = max((place for place, block in enumerate(blocks) if can_carry(block.value)), default=None)
            if last is not None and blocks[last].marker is None:
                blocks[last] = blocks[last]._replace(marker=body["cache_control"])
        return blocks

    def best_read(self, body: Mapping[str, Any]) -> int:
        """Return the maximum cacheable tokens: up to the last block that can carry a marker."""
        sizes = list(accumulate(self.count(block.value) for block in self.blocks(body)))
        places = [place for place, block in enumerate(self.blocks(body)) if self._could_be_marked(block)]
        return max((sizes[place] for place in places if sizes[place] >= self.minimum), default=0)

    def _could_be_marked(self, block: Block) -> bool:
        if self.host == "anthropic" or block.place in ("tools", "system"):
            return can_carry(block.value)
        kind = block.value.get("type")
        return can_carry(block.value) and (kind == "text" or (kind == "tool_result" and self.host in TOOL_PART_HOSTS))


def can_carry(value: Any) -> bool:
    """Return whether Anthropic accepts a marker on this block."""
    if not isinstance(value, Mapping):
        return False
    kind = value.get("type")
    if kind == "text":
        return bool(str(value.get("text") or "").strip())
    if kind == "tool_result":
        content = value.get("content")
        return bool(content.strip()) if isinstance(content, str) else any(map(can_carry, content or ()))
    if "input_schema" in value or "function" in value or "parameters" in value:
        return not value.get("defer_loading")
    return kind in ("image", "document", "tool_use")


def _legal(blocks: Sequence[Block]) -> list[tuple[int, str]]:
    """Return the markers of a chain by position and lifetime; raise Refused for an illegal plan."""
    markers: list[tuple[int, str]] = []
    for place, block in enumerate(blocks):
        if block.marker is None:
            continue
        if not can_carry(block.value):
            raise Refused(f"block {place}: cache_control cannot be set here ({block.value.get('type')})")
        ttl = block.marker.get("ttl", "5m") if isinstance(block.marker, Mapping) else None
        if ttl not in LIFETIMES or block.marker.get("type") != "ephemeral":
            raise Refused(f"block {place}: not a cache_control")
        markers.append((place, str(ttl)))
    if len(markers) > MAX_MARKERS:
        raise Refused(f"a maximum of 4 blocks with cache_control may be provided, found {len(markers)}")
    for (_, before), (place, after) in pairwise(markers):
        if LIFETIMES[after] > LIFETIMES[before]:
            raise Refused(f"block {place}: a ttl='1h' block must not come after a ttl='5m' block")
    return markers


def _chain(body: Mapping[str, Any], blocks: Sequence[Block]) -> Iterator[str]:
    """Yield a hash of every prefix."""
    key = sha256(str(body.get("model")).encode()).hexdigest()
    settings = json.dumps([body.get("tool_choice"), body.get("thinking")], sort_keys=True)
    before = ""
    for block in blocks:
        if block.place.startswith("messages") and not before.startswith("messages"):
            key = sha256((key + settings).encode()).hexdigest()
        before = block.place
        said = json.dumps([block.place, block.value], sort_keys=True, ensure_ascii=False)
        key = sha256((key + said).encode("utf-8", "surrogatepass")).hexdigest()
        yield key


def _native_blocks(body: Mapping[str, Any]) -> Iterator[Block]:
    for tool in body.get("tools") or ():
        yield _block("tools", tool)
    for block in _listed(body.get("system")):
        yield _block("system", block)
    for message in body.get("messages") or ():
        for block in _listed(message.get("content")):
            yield _block(f"messages {message.get('role')}", block)


def _envelope_blocks(body: Mapping[str, Any], host: str) -> Iterator[Block]:
    """Yield the blocks of an OpenAI-style request as its host forwards them, tools and system first."""
    for tool in body.get("tools") or ():
        yield Block("tools", tool)
    messages = list(body.get("messages") or ())
    for message in messages:
        if message.get("role") in ("system", "developer"):
            yield from (_block("system", block) for block in _listed(message.get("content")))
    for message in messages:
        role = message.get("role")
        if role == "tool":
            yield _tool_message(message, host)
        elif role not in ("system", "developer"):
            yield from (_block(f"messages {role}", block) for block in _listed(message.get("content")))
            for call in message.get("tool_calls") or ():
                yield Block(f"messages {role}", {"type": "tool_use", **call.get("function", {}), "id": call.get("id")})


def _tool_message(message: Mapping[str, Any], host: str) -> Block:
    if message.get("cache_control") is not None:
        raise Refused("a marker on a bare tool message hangs the request")
    inner = [_block("", block) for block in _listed(message.get("content"))]
    markers = [block.marker for block in inner if block.marker is not None]
    if markers and host not in TOOL_PART_HOSTS:
        raise Refused("this host takes no marker in a tool message")
    result = {
        "type": "tool_result",
        "tool_use_id": message.get("tool_call_id"),
        "content": [one.value for one in inner],
    }
    return Block("messages user", result, markers[-1] if markers else None)


def _listed(content: Any) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}] if content else []
    return list(content or ())


def _block(place: str, value: Any) -> Block:
    """Separate a block from its marker; a tool result's marker may also be inside it."""
    if not isinstance(value, Mapping):
        return Block(place, value)
    marker = value.get("cache_control")
    bare = {key: item for key, item in value.items() if key != "cache_control"}
    if value.get("type") == "tool_result":
        inner = [_block("", one) for one in _listed(value.get("content"))]
        inside = [one.marker for one in inner if one.marker is not None]
        if len(inside) + (marker is not None) > 1:
            raise Refused("two markers on one tool result")
        marker = marker if marker is not None else next(iter(inside), None)
        bare = {**bare, "content": [one.value for one in inner]}
    return Block(place, bare, marker)
