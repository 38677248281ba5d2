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

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

from midfold.cache.markers import (
    IMPLICIT,
    MARKERS,
    MOST_MARKERS,
    SYSTEM,
    TOOLS,
    Layout,
    Placement,
    PromptCacheHint,
    Ttl,
    block_count,
    carrier,
    check_ttl,
    document_lacks,
    has_marker,
    marker_for,
    own_markers,
    system_carrier,
    tool_carrier,
    tool_markers,
)
from midfold.cache.prefix import stable_prefix_cache_key
from midfold.compaction.handoff import HEAD, PINNED, recognise
from midfold.models import ModelOverride, canonical, look_up
from midfold.transcript.document import Document
from midfold.transcript.message import Message, Tool, Transcript, plain
from midfold.transcript.tokens import Meter

# Who caches what, and how it is asked for. Facts of November 2026, as a table.
#
# Rules:
# 1. Claude models are recognised by name, and marked on the hosts that take markers: both are required. Another model
#    is marked where the client marks it.
# 2. Hosts that cache by themselves are left alone: no marker, and at most a key that keeps a session on one machine.
# 3. `auto` marks where it is known to help; `on` wherever a layout exists; `off` never.


Setting = Literal["auto", "on", "off"]


class Host(NamedTuple):
    """One provider: what people call it, in what dialects it takes Anthropic's markers, and its addresses."""

    title: str
    envelope: bool = False
    """In OpenAI's."""
    native: bool = False
    """In Anthropic's own."""
    addresses: tuple[str, ...] = ()


HOSTS: dict[str, Host] = {
    "anthropic": Host("Anthropic", native=True, addresses=("api.anthropic.com",)),
    "openrouter": Host("OpenRouter", envelope=True, native=True, addresses=("openrouter.ai",)),
    "nous": Host("Nous", envelope=True, native=True, addresses=("inference-api.nousresearch.com",)),
    "litellm": Host("LiteLLM", envelope=True, native=True),
    "bedrock": Host("Bedrock", native=True, addresses=("amazonaws.com",)),
    "vertex": Host("Vertex AI", native=True, addresses=("aiplatform.googleapis.com",)),
    "openai": Host("OpenAI", addresses=("api.openai.com",)),
    "azure": Host("Azure OpenAI", addresses=("openai.azure.com",)),
    "gemini": Host("Gemini", addresses=("generativelanguage.googleapis.com",)),
    "deepseek": Host("DeepSeek", addresses=("api.deepseek.com",)),
    "xai": Host("xAI", addresses=("api.x.ai",)),
    "moonshot": Host("Moonshot", addresses=("api.moonshot.ai", "api.moonshot.cn")),
}
KEYED = frozenset({"openai", "azure"})
"""Hosts that route by `prompt_cache_key`."""
_CLAUDE = re.compile(r"(?:^|[/.\-@:])claude(?:[-.@:]|$)|^anthropic/")
_DISTILLED = re.compile(r"^(?!claude|anthropic)[a-z]+[\d.]+[a-z]*-.*claude")
_PASSED_ON = re.compile(r"^(?:qwen|alibaba)/|^qwen")
_ON_REQUEST = re.compile(r"^(?:google/)?gemini")
_EXPLICIT = re.compile(r"^(?:openai/)?gpt-(?:5-(?:[6-9]|\d\d)|[6-9]|\d\d)(?!\d)")


def is_claude(model: str | None) -> bool:
    """Whether a model is Claude, by its name; "qwen3-14b-claude-4.5-distill" is not."""
    name = canonical(model or "")
    return bool(_CLAUDE.search(name)) and not _DISTILLED.search(name.rpartition("/")[2])


def has_explicit_breakpoints(model: str | None) -> bool:
    """OpenAI's models from 5.6 on."""
    return bool(_EXPLICIT.match(canonical(model or "")))


def provider_of(base_url: str) -> str:
    """The provider behind an address; an empty string for one that nobody knows."""
    host = base_url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition(":")[0].lower()
    for name, known in HOSTS.items():
        if any(host == address or host.endswith(f".{address}") for address in known.addresses):
            return name
    return ""


def layout_for(
    provider: str, model: str | None, dialect: str, setting: Setting = "auto", *, is_marked: bool = False
) -> Layout | None:
    """Return how markers are written for this model on this host, or None where none belongs.

    `is_marked` says that the client marks the request itself: then the host takes markers, whatever the model's name.
    """
    if setting == "off":
        return None
    provider = provider.lower()
    host = HOSTS.get(provider)
    if dialect == "anthropic":
        takes = host is None or host.native
        return "anthropic" if setting == "on" or (takes and (is_marked or is_claude(model))) else None
    if dialect == "bedrock-converse":
        return "bedrock" if is_claude(model) or setting == "on" else None
    envelope = host.envelope if host is not None else setting == "on" or is_marked
    if dialect == "openai-chat" and envelope:
        return "envelope" if is_marked or _takes_markers(provider, model, setting) else None
    if provider == "openai" and has_explicit_breakpoints(model):
        return "openai"
    return None


def _takes_markers(provider: str, model: str | None, setting: Setting) -> bool:
    if is_claude(model):
        return True
    name = canonical(model or "")
    if provider != "openrouter":
        return False
    return bool(_PASSED_ON.match(name)) or (setting == "on" and bool(_ON_REQUEST.match(name)))


def caching_applies(provider: str, model: str | None, setting: Setting = "auto", dialect: str = "") -> bool:
    """Whether midfold marks requests to this model on this host."""
    return layout_for(provider, model, dialect or _usual(provider), setting) is not None


def _usual(provider: str) -> str:
    """The dialect a host is usually spoken to in."""
    return "anthropic" if provider.lower() in ("anthropic", "bedrock", "vertex") else "openai-chat"


SIGN = "💾 "


def status_line(provider: str, model: str | None, ttl: Ttl = "5m", setting: Setting = "auto", dialect: str = "") -> str:
    """What a program says about caching when it starts, with the reason."""
    host = HOSTS.get(provider.lower())
    where = host.title if host is not None else provider or "an unknown provider"
    what = "Claude" if is_claude(model) else model or "its models"
    if setting == "off":
        return f"{SIGN}Prompt caching: DISABLED (prompt_caching.enabled is off)"
    layout = layout_for(provider, model, dialect or _usual(provider), setting)
    if layout is not None:
        return f"{SIGN}Prompt caching: ENABLED ({what} via {where}, {'30m' if layout == 'openai' else ttl} TTL)"
    if host is not None and not (host.envelope or host.native) and not is_claude(model):
        return f"{SIGN}Prompt caching: AUTOMATIC ({where} caches {what} by itself)"
    return f"{SIGN}Prompt caching: NOT MARKED ({_why_unmarked(provider, model, dialect or _usual(provider))})"


def _why_unmarked(provider: str, model: str | None, dialect: str) -> str:
    """Why no marker belongs into a request. What a host caches by itself, it caches all the same."""
    host = HOSTS.get(provider.lower())
    where = host.title if host is not None else provider or "an unknown provider"
    if layout_for(provider, "claude", dialect) is not None:
        return f"{model} via {where} is no Claude model" if model else "no model is named, and only Claude is marked"
    if host is not None and host.native:
        return f"{where} takes markers in requests of Anthropic's shape, and this is {dialect}"
    return f"{where} is not known to take cache markers"


Strategy = Literal["planned", "system_and_3"]
ROLLING = 3
LOOKBACK = 20
"""Blocks before a breakpoint in which Anthropic looks for what an earlier request wrote."""
SAFE_LOOKBACK = LOOKBACK - 4
"""Hosts that translate a request merge and split blocks; a margin costs nothing."""


class MarkerPlace(NamedTuple):
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
    is_marked: bool = False,
    session_id: str = "",
) -> tuple[PromptCacheHint, ...]:
    """Where stable prefixes of this request end; nothing where the provider caches by itself or not at all.

    `dialect` is the shape the request is written in, `reserved` the breakpoints that are spoken for elsewhere (a marker
    on the request itself), `models` what the configuration knows better than the built-in table; or `measure`, what was
    made of both before. `unmarked` tells whether the client has surely set no marker of its own, `is_marked` whether
    the client's markers show that the host takes them. Requests without instructions and tools are kept together by
    their `session_id`.
    """
    check_ttl(ttl)
    routed = setting != "off" and provider.lower() in KEYED
    key = _key_hint(messages, tools, system, provider, session_id) if routed else ()
    layout = layout_for(provider, model, dialect, setting, is_marked=is_marked)
    if layout is None:
        return key
    # The documents know no marker inside a tool message of an envelope, so their strategy puts none there.
    host = "" if strategy == "system_and_3" else provider.lower()
    request = _Request(messages, tools, system, layout, host, unmarked is not None and unmarked(layout))
    free = MOST_MARKERS - reserved - request.own - (IMPLICIT if layout == "openai" else 0)
    if strategy == "system_and_3":
        places = list(_documented_places(request, free))
    else:
        least = request.first_cached(*(measure or measure_for(model, models)))
        places = _best(_planned_places(request), least, free)
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
    """The same for a request that was read, for `cache.markers.mark`."""
    reserved = int(document.setting(FIELD) is not None)
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

    def carriers(self, before: int) -> Iterator[int]:
        """The messages before this one that can be marked, the last one first."""
        found = (index for index in range(before - 1, -1, -1) if self.carries(index))
        return (index for index in found if self.messages[index].role != "system")

    def last_carrier(self, before: int) -> int | None:
        return next(self.carriers(before), None)

    def begins_with_system(self) -> bool:
        return bool(self.messages) and self.messages[0].role == "system"

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


def system_and_3(system: int | None, carriers: Iterable[int], free: int) -> list[int]:
    """The documented strategy: the system prompt, and the last three others that can carry a marker, as far as any are
    free. `carriers` are those others, the newest first."""
    wanted = ([] if system is None else [system], islice(carriers, ROLLING))
    return list(islice(chain(*wanted), max(free, 0)))


def _documented_places(request: _Request, free: int) -> Iterator[MarkerPlace]:
    system = SYSTEM if request.system is not None else 0 if request.begins_with_system() else None
    if system is not None and not request.carries(system):
        system = None
    for at in system_and_3(system, request.carriers(len(request.messages)), free):
        is_system = at == system
        yield MarkerPlace(at, *(("system", "system prompt") if is_system else ("message", "rolling window")))


def _best(places: Iterable[MarkerPlace], least: int, free: int) -> list[MarkerPlace]:
    """The first ones that are worth a slot, each position once; no more are looked for than there are slots."""
    found: dict[int, MarkerPlace] = {}
    worth = (place for place in places if place.at >= least)
    while len(found) < free and (place := next(worth, None)) is not None:
        found.setdefault(place.at, place)
    return list(found.values())


def _planned_places(request: _Request) -> Iterator[MarkerPlace]:
    """Places by what they save, the best first."""
    messages = request.messages
    end = request.last_carrier(len(messages))
    previous = request.last_carrier(_previous_end(messages))
    if end is not None and request.layout != "openai":
        yield MarkerPlace(end, "message", "the end: the next request reads it")
    far = end is not None and previous is not None and request.blocks_between(previous, end) >= SAFE_LOOKBACK
    back = [] if previous is None else [MarkerPlace(previous, "message", "the previous request ended here")]
    if far or request.layout == "openai":
        yield from back
    system = request.leading_system()
    if system is not None:
        yield MarkerPlace(system, "system", "the system prompt outlives every compaction")
    handoff = _handoff(messages)
    if handoff is not None and request.carries(handoff):
        yield MarkerPlace(handoff, "message", "the handoff stays until the next fold")
    if request.tools and request.carries(TOOLS) and system is not None:
        yield MarkerPlace(TOOLS, "tools", "the tools outlive a changed system prompt")
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
    """The handoff of the last compaction; it stands behind the head and what is pinned."""
    near = range(min(len(messages), 2 * (HEAD + PINNED) + 2))
    return next(
        (i for i in reversed(near) if (ours := recognise(messages[i])) is not None and ours.kind == "fold"), None
    )


def _further_back(request: _Request, start: int | None) -> Iterator[MarkerPlace]:
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
            yield MarkerPlace(index, "message", "rolling point: less than the lookback before the next one")


# The documented function: `system_and_3` on plain dicts, by the documented table of content types. It copies deeply:
# whatever becomes of the result, the caller's own objects stay as they are.


FIELD = MARKERS[0]


def apply_anthropic_cache_control(
    messages: Sequence[Any], ttl: Ttl = "5m", native_anthropic: bool = False
) -> list[Any]:
    """Markers on the system prompt and on the last three other messages that can carry one; the client's own count.

    `native_anthropic` says that the messages will be translated into Anthropic's own shape: then tool messages carry
    the marker on themselves, where the translation finds it. Elsewhere they are skipped. `cache.plan` and
    `cache.markers.mark` are stricter: they mark no empty message either, because no provider honours that.
    """
    out = deepcopy([plain(message) for message in messages])
    free = MOST_MARKERS - sum(map(_own, out))
    marker = marker_for("anthropic", ttl)
    carriers = [at for at, value in enumerate(out) if _carries_marker(value, native_anthropic)]
    system = 0 if carriers[:1] == [0] and out[0].get("role") == "system" and not _own(out[0]) else None
    others = (at for at in reversed(carriers) if out[at].get("role") != "system")
    for index in system_and_3(system, others, free):
        if not _own(out[index]):
            out[index] = _with_marker(out[index], marker)
    return out


def _own(message: Any) -> int:
    """How many markers a message has already."""
    if not isinstance(message, Mapping):
        return 0
    content = message.get("content")
    blocks = content if isinstance(content, list | tuple) else ()
    inside = sum(isinstance(block, Mapping) and block.get(FIELD) is not None for block in blocks)
    return inside + (message.get(FIELD) is not None)


def _carries_marker(message: Any, native: bool) -> bool:
    if not isinstance(message, Mapping):
        return False
    content = message.get("content")
    if message.get("role") == "tool":
        return native
    if isinstance(content, str):
        return not content or bool(content.strip())
    if isinstance(content, list | tuple) and content:
        return isinstance(content[-1], Mapping) and not _is_refused(content[-1])
    return not content


def _is_refused(block: Mapping[str, Any]) -> bool:
    kind = block.get("type")
    if kind in ("thinking", "redacted_thinking"):
        return True
    return kind == "text" and not str(block.get("text") or "").strip()


def _with_marker(message: Mapping[str, Any], marker: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if message.get("role") == "tool" or not content:
        return {**message, FIELD: dict(marker)}
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content, FIELD: dict(marker)}]}
    return {**message, "content": [*content[:-1], {**content[-1], FIELD: dict(marker)}]}


# Hints where nobody has said yet who will serve the request: by the shape it is written in, and the model's name.
#
# Rules:
# 1. A provider that is named is planned for; the rest of this file is for when none is.
# 2. Anthropic's shape goes to Anthropic. A model of OpenAI's goes to OpenAI. In every other shape only hosts of Claude
#    take markers, so they are planned for Claude, and as the strictest of those hosts would take them.
# 3. A model that is known to be no Claude gets no marker there: its provider caches by itself, or not at all.


ANY_CLAUDE = "claude"
ANY = {ANY_CLAUDE: ModelOverride(cache_minimum=512)}
"""A model that nobody named: the smallest prefix that any of them caches."""
_OPENAI = re.compile(r"^(?:openai/)?(?:gpt-|o\d|chatgpt-|codex-)")


def default_hints(
    messages: Transcript,
    tools: tuple[Tool, ...] = (),
    *,
    system: Message | None = None,
    dialect: str,
    model: str | None = None,
    provider: str = "",
    ttl: Ttl = "5m",
    strategy: Strategy = "planned",
    setting: Setting = "auto",
    models: Mapping[str, ModelOverride] | None = None,
    session_id: str = "",
) -> tuple[PromptCacheHint, ...]:
    """Where the stable prefixes of a transcript end, for a provider that is named or the likely one."""
    provider = provider or likely_provider(dialect, model)
    nameless = model is None and (not provider or dialect == "anthropic")
    anybody = not provider and (model is None or is_claude(model))
    return plan(
        messages,
        tools,
        system=system,
        provider=provider,
        model=ANY_CLAUDE if nameless else model,
        ttl=ttl,
        strategy=strategy,
        dialect=dialect,
        setting="on" if anybody and setting == "auto" else setting,
        models=ANY if nameless else models,
        session_id=session_id,
    )


def likely_provider(dialect: str, model: str | None) -> str:
    """Who is usually asked in this shape for this model; an empty string where that is open."""
    if dialect == "anthropic":
        return "anthropic"
    return "openai" if _OPENAI.match(canonical(model or "")) else ""
