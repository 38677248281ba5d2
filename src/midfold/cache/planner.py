"""Where the four breakpoints of a request save most.

Rules of this file:
1. The end of the request is always worth one: the next request reads what it wrote.
2. A breakpoint finds what earlier requests wrote at most `LOOKBACK` blocks before it. The previous request ended before
   the model's last turn; if that is too far back, the second breakpoint stands there.
3. Then, as far as there are slots: the end of the system prompt, the handoff of the last compaction (later digests
   change only what stands behind it), the tools alone (they outlive a changed system prompt), and further points back.
4. A prefix below the model's minimum is not cached, so it is not marked. The client's own markers take slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

from midfold.cache.layouts import KEYED, Setting, layout_for
from midfold.cache.prefix_key import stable_prefix_cache_key
from midfold.core.handoff import HEAD, recognise
from midfold.core.hint import MOST_MARKERS, SYSTEM, TOOLS, Layout, Placement, PromptCacheHint, Ttl
from midfold.core.message import Message, Tool, Transcript
from midfold.core.tokens import Meter
from midfold.models import ModelOverride, look_up
from midfold.wire.carriers import (
    block_count,
    carrier,
    document_lacks,
    has_marker,
    own_markers,
    system_carrier,
    tool_carrier,
    tool_markers,
)
from midfold.wire.document import Document
from midfold.wire.markers import IMPLICIT

Strategy = Literal["planned", "system_and_3"]
LOOKBACK = 20
SAFE_LOOKBACK = 16
"""Hosts that translate a request merge and split blocks; a margin costs nothing."""


class Place(NamedTuple):
    """A position worth a breakpoint, and why."""

    at: int
    placement: Placement
    reason: str


class Measure(NamedTuple):
    """What counts a prefix, and how many tokens it must have to be cached."""

    meter: Meter
    minimum: int


def plan(
    messages: Transcript,
    tools: tuple[Tool, ...] = (),
    *,
    system: Message | None = None,
    provider: str,
    model: str | None,
    ttl: Ttl = "5m",
    strategy: Strategy = "planned",
    dialect: str = "openai-chat",
    setting: Setting = "auto",
    reserved: int = 0,
    models: Mapping[str, ModelOverride] | None = None,
    measure: Measure | None = None,
    unmarked: Callable[[Layout], bool] | None = None,
    session_id: str = "",
) -> tuple[PromptCacheHint, ...]:
    """Where stable prefixes of this request end; nothing where the provider caches by itself or not at all.

    `dialect` is the shape the request is written in, `reserved` the breakpoints that are spoken for elsewhere (a marker
    on the request itself), `models` what the configuration knows better than the built-in table; or `measure`, what was
    made of both before. `unmarked` tells whether the client has surely set no marker of its own. Requests without
    instructions and tools are kept together by their `session_id`.
    """
    routed = setting != "off" and provider.lower() in KEYED
    key = _key_hint(messages, tools, system, provider, session_id) if routed else ()
    layout = layout_for(provider, model, dialect, setting)
    if layout is None:
        return key
    # The documents know no marker inside a tool message of an envelope, so their strategy puts none there.
    host = "" if strategy == "system_and_3" else provider.lower()
    request = _Request(messages, tools, system, layout, host, unmarked is not None and unmarked(layout))
    free = MOST_MARKERS - reserved - request.own - (IMPLICIT if layout == "openai" else 0)
    if strategy == "system_and_3":
        wanted = list(_system_and_3(request))
        places = wanted[: max(free, 0)]
    else:
        least = request.first_cached(*(measure or measure_for(model, models)))
        places = _best(_planned(request), least, free)
    hints = [
        PromptCacheHint(
            message_index=place.at,
            placement=place.placement,
            reason=place.reason,
            provider=provider.lower(),
            layout=layout,
            ttl=ttl,
        )
        for place in sorted(places)
    ]
    return (*hints, *key)


def plan_document(
    document: Document, *, provider: str, model: str | None = None, **asked: Any
) -> tuple[PromptCacheHint, ...]:
    """The same for a request that was read, for `wire.markers.mark`."""
    reserved = int(document.setting("cache_control") is not None)
    return plan(
        document.messages,
        document.tools,
        system=document.system,
        provider=provider,
        model=model or document.model,
        dialect=document.dialect.name,
        reserved=reserved,
        unmarked=partial(document_lacks, document),
        **asked,
    )


def measure_for(model: str | None, models: Mapping[str, ModelOverride] | None = None) -> Measure:
    """How prefixes of this model's requests are measured."""
    row = look_up(model, models).model
    return Measure(Meter(factor=row.factor, message_overhead=row.message_overhead), row.cache_minimum or 0)


def _key_hint(
    messages: Transcript, tools: tuple[Tool, ...], system: Message | None, provider: str, session_id: str
) -> tuple[PromptCacheHint, ...]:
    """A key that keeps requests with the same beginning on one machine, for hosts that route by it."""
    prompt = system or next((message for message in messages[:1] if message.role == "system"), None)
    key = stable_prefix_cache_key(prompt, tools, session_id=session_id)
    if not key:
        return ()
    reason = "requests with the same instructions and tools go to the same machine"
    hint = PromptCacheHint(
        message_index=len(messages),
        placement="request",
        reason=reason,
        provider=provider.lower(),
        layout="openai",
        key=key,
    )
    return (hint,)


class _Request:
    """A request with what is known about its blocks."""

    def __init__(
        self,
        messages: Transcript,
        tools: tuple[Tool, ...],
        system: Message | None,
        layout: Layout,
        provider: str,
        unmarked: bool = False,
    ) -> None:
        self.messages, self.tools, self.system = messages, tools, system
        self.layout, self.provider = layout, provider
        self.unmarked, self.own = unmarked, 0
        if unmarked:
            return
        markers = [own_markers(message, layout) for message in messages]
        beside = [] if system is None else own_markers(system, layout)
        self.own = sum(map(len, markers)) + len(beside) + len(tool_markers(tools, layout))

    def carries(self, index: int) -> bool:
        """Whether a marker of ours can stand here."""
        if index == TOOLS:
            possible = self.layout in ("anthropic", "bedrock") and tool_carrier(self.tools) is not None
            return possible and (self.unmarked or not tool_markers(self.tools, self.layout))
        if index == SYSTEM:
            beside = self.system is not None and self.layout in ("anthropic", "bedrock")
            return beside and self._free(self.system) and system_carrier(self.system) is not None  # type: ignore[arg-type]
        message = self.messages[index]
        return carrier(message, self.layout, self.provider) is not None and self._free(message)

    def _free(self, message: Message | None) -> bool:
        return message is not None and (self.unmarked or not has_marker(message, self.layout))

    def last_carrier(self, before: int, least: int = 0) -> int | None:
        """The last message before this one that can be marked."""
        found = (index for index in range(before - 1, least - 1, -1) if self.carries(index))
        return next((index for index in found if self.messages[index].role != "system"), None)

    def leading_system(self) -> int | None:
        """Where the system prompt ends: beside the messages, or as the first of them."""
        if self.system is not None:
            return SYSTEM if self.carries(SYSTEM) else None
        last = None
        for index, message in enumerate(self.messages):
            if message.role != "system":
                break
            last = index if self.carries(index) else last
        return last

    def blocks_between(self, first: int, last: int) -> int:
        return sum(block_count(message) for message in self.messages[first + 1 : last + 1])

    def first_cached(self, meter: Meter, minimum: int) -> int:
        """The first position whose prefix is large enough to be cached."""
        total = meter.tokens(meter.tool_units(self.tools))
        if total >= minimum:
            return TOOLS
        if self.system is not None:
            total += meter.tokens(meter.units(self.system), 1)
            if total >= minimum:
                return SYSTEM
        for index, message in enumerate(self.messages):
            total += meter.tokens(meter.units(message), 1)
            if total >= minimum:
                return index
        return len(self.messages)


def _system_and_3(request: _Request) -> Iterator[Place]:
    """The documented strategy: the system prompt, and the last three others that can carry a marker."""
    messages = request.messages
    system = SYSTEM if request.system is not None else 0 if messages and messages[0].role == "system" else None
    if system is not None and request.carries(system):
        yield Place(system, "system", "system prompt")
    index: int | None = len(messages)
    for _ in range(3):
        index = request.last_carrier(index or 0)
        if index is None:
            return
        yield Place(index, "message", "rolling window")


def _best(places: Iterable[Place], least: int, free: int) -> list[Place]:
    """The first ones that are worth a slot, each position once; no more are looked for than there are slots."""
    found: dict[int, Place] = {}
    worth = (place for place in places if place.at >= least)
    while len(found) < free and (place := next(worth, None)) is not None:
        found.setdefault(place.at, place)
    return list(found.values())


def _planned(request: _Request) -> Iterator[Place]:
    """Places by what they save, the best first."""
    messages = request.messages
    end = request.last_carrier(len(messages))
    previous = request.last_carrier(_previous_end(messages))
    if end is not None and request.layout != "openai":
        yield Place(end, "message", "the end: the next request reads it")
    far = end is not None and previous is not None and request.blocks_between(previous, end) >= SAFE_LOOKBACK
    back = [] if previous is None else [Place(previous, "message", "the previous request ended here")]
    if far or request.layout == "openai":
        yield from back
    system = request.leading_system()
    if system is not None:
        yield Place(system, "system", "the system prompt outlives every compaction")
    handoff = _handoff(messages)
    if handoff is not None and request.carries(handoff):
        yield Place(handoff, "message", "the handoff stays until the next fold")
    if request.tools and request.carries(TOOLS) and system is not None:
        yield Place(TOOLS, "tools", "the tools outlive a changed system prompt")
    yield from back
    yield from _further_back(request, previous)


def _previous_end(messages: Transcript) -> int:
    """How many messages the previous request had: all before the model's last turn."""
    index = len(messages)
    while index and messages[index - 1].role != "assistant":
        index -= 1
    while index and messages[index - 1].role == "assistant":
        index -= 1
    return index


def _handoff(messages: Transcript) -> int | None:
    """The handoff of the last compaction; it stands right behind the head."""
    near = range(min(len(messages), 2 * HEAD + 2))
    return next(
        (i for i in reversed(near) if (ours := recognise(messages[i])) is not None and ours.kind == "fold"), None
    )


def _further_back(request: _Request, start: int | None) -> Iterator[Place]:
    """Points less than the lookback apart, from the previous request backwards: for a client that skipped turns."""
    index = start
    for _ in range(MOST_MARKERS):
        if index is None or index <= 0:
            return
        blocks, at = 0, index
        while at > 0 and blocks + block_count(request.messages[at]) < SAFE_LOOKBACK:
            blocks += block_count(request.messages[at])
            at -= 1
        index = request.last_carrier(min(at + 1, index))
        if index is not None:
            yield Place(index, "message", "rolling point: less than the lookback before the next one")
