"""Place the four cache breakpoints of a request where they save most.

In order of precedence:

1. The end of the request: the next request reads what it wrote.
2. The end of the previous request, which ended before the model's last turn, if it is more than `LOOKBACK` blocks
   back: a breakpoint finds only what was written within that distance.
3. The end of the system prompt, the handoff of the last compaction (later digests change only what follows it), the
   tools (they survive a changed system prompt), and points further back.

A prefix below the model's minimum is not cached, so it is not marked. The client's own markers use up slots.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from functools import partial
from itertools import chain, islice
from typing import Any, Literal, NamedTuple

from midfold.cache.markers import (
    IMPLICIT_BREAKPOINTS,
    MARKERS,
    MAX_MARKERS,
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

# Caching by provider, as of November 2026.
#
# 1. Claude models, recognised by name, are marked on hosts that accept markers. Other models are marked only if the
#    client marks them.
# 2. Hosts that cache automatically get no markers, and at most a key that keeps a session on one machine.
# 3. `auto` marks where it is known to help, `on` wherever a layout exists, `off` never.


Setting = Literal["auto", "on", "off"]


class Host(NamedTuple):
    """Provider: its title, the dialects in which it accepts Anthropic's markers, and its host names."""

    title: str
    envelope: bool = False
    """True if it accepts markers in OpenAI-style requests."""
    native: bool = False
    """True if it accepts markers in Anthropic-style requests."""
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
    """Return whether a model is Claude by its name; "qwen3-14b-claude-4.5-distill" is not."""
    name = canonical(model or "")
    return bool(_CLAUDE.search(name)) and not _DISTILLED.search(name.rpartition("/")[2])


def has_explicit_breakpoints(model: str | None) -> bool:
    """Return whether this is an OpenAI model from 5.6 on, which takes explicit breakpoints."""
    return bool(_EXPLICIT.match(canonical(model or "")))


def provider_of(base_url: str) -> str:
    """Return the provider behind a base URL; empty if it is unknown."""
    host = base_url.partition("://")[2].partition("/")[0].rpartition("@")[2].partition(":")[0].lower()
    for name, known in HOSTS.items():
        if any(host == address or host.endswith(f".{address}") for address in known.addresses):
            return name
    return ""


def layout_for(
    provider: str, model: str | None, dialect: str, setting: Setting = "auto", *, is_marked: bool = False
) -> Layout | None:
    """Return the layout of markers for this model on this host, or None if it gets no markers.

    `is_marked` says that the client marks the request, so that the host accepts markers whatever the model's name.
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
    """Return whether midfold marks requests to this model on this host."""
    return layout_for(provider, model, dialect or _default_dialect(provider), setting) is not None


def _default_dialect(provider: str) -> str:
    """Return the usual dialect of requests to a provider."""
    return "anthropic" if provider.lower() in ("anthropic", "bedrock", "vertex") else "openai-chat"


SIGN = "💾 "


def status_line(provider: str, model: str | None, ttl: Ttl = "5m", setting: Setting = "auto", dialect: str = "") -> str:
    """Return a status line for program start: whether caching is on, and why."""
    host = HOSTS.get(provider.lower())
    where = host.title if host is not None else provider or "an unknown provider"
    what = "Claude" if is_claude(model) else model or "its models"
    if setting == "off":
        return f"{SIGN}Prompt caching: DISABLED (prompt_caching.enabled is off)"
    layout = layout_for(provider, model, dialect or _default_dialect(provider), setting)
    if layout is not None:
        return f"{SIGN}Prompt caching: ENABLED ({what} via {where}, {'30m' if layout == 'openai' else ttl} TTL)"
    if host is not None and not (host.envelope or host.native) and not is_claude(model):
        return f"{SIGN}Prompt caching: AUTOMATIC ({where} caches {what} automatically)"
    return f"{SIGN}Prompt caching: NOT MARKED ({_why_unmarked(provider, model, dialect or _default_dialect(provider))})"


def _why_unmarked(provider: str, model: str | None, dialect: str) -> str:
    """Return why a request gets no marker. Automatic caching by the host is not affected."""
    host = HOSTS.get(provider.lower())
    where = host.title if host is not None else provider or "an unknown provider"
    if layout_for(provider, "claude", dialect) is not None:
        return f"{model} via {where} is not a Claude model" if model else "no model given; only Claude is marked"
    if host is not None and host.native:
        return f"{where} accepts markers only in Anthropic-style requests; this one is {dialect}"
    return f"{where} is not known to accept cache markers"


Strategy = Literal["planned", "system_and_3"]
ROLLING = 3
LOOKBACK = 20
"""Blocks before a breakpoint in which Anthropic looks for an earlier cache entry."""
SAFE_LOOKBACK = LOOKBACK - 4
"""Lookback in blocks with a margin, because hosts that translate requests merge and split blocks."""


class MarkerPlace(NamedTuple):
    """Position worth a breakpoint, and the reason."""

    at: int
    placement: Placement
    reason: str


class Measure(NamedTuple):
    """Token meter for prefixes, and the minimum tokens of a cached prefix."""

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
    """Return hints for the ends of stable prefixes; none if the provider caches automatically or not at all.

    `dialect` is the format of the request; `reserved` the number of breakpoints used elsewhere, such as a marker on
    the request itself; `models` the configured model overrides, or `measure` what was derived from them. `unmarked`
    returns whether the client surely set no markers; `is_marked` says that the client's markers show that the host
    accepts them. Requests without instructions and tools are routed by their `session_id`.
    """
    check_ttl(ttl)
    routed = setting != "off" and provider.lower() in KEYED
    key = _key_hint(messages, tools, system, provider, session_id) if routed else ()
    layout = layout_for(provider, model, dialect, setting, is_marked=is_marked)
    if layout is None:
        return key
    # The documentation has no marker inside a tool message of an envelope, so `system_and_3` puts none there.
    host = "" if strategy == "system_and_3" else provider.lower()
    request = _Request(messages, tools, system, layout, host, unmarked is not None and unmarked(layout))
    free = MAX_MARKERS - reserved - request.own - (IMPLICIT_BREAKPOINTS if layout == "openai" else 0)
    if strategy == "system_and_3":
        places = list(_documented_places(request, free))
    else:
        first = request.first_cached(*(measure or measure_for(model, models)))
        places = _best(_planned_places(request), first, free)
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
    document: Document, *, provider: str, model: str | None = None, **options: Any
) -> tuple[PromptCacheHint, ...]:
    """Return hints for a parsed request, for use with `cache.markers.mark`."""
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
        **options,
    )


def measure_for(model: str | None, models: Mapping[str, ModelOverride] | None = None) -> Measure:
    """Return the measure of prefixes for this model."""
    row = look_up(model, models).model
    return Measure(Meter(factor=row.factor, message_overhead=row.message_overhead), row.cache_minimum or 0)


def _key_hint(
    messages: Transcript, tools: tuple[Tool, ...], system: Message | None, provider: str, session_id: str
) -> tuple[PromptCacheHint, ...]:
    """Return a key that keeps requests with the same prefix on one machine, for hosts that route by it."""
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
    """Request with the facts about its blocks."""

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
        """Return whether a new marker can be placed here."""
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
        """Yield the messages before this one that can be marked, last one first."""
        found = (index for index in range(before - 1, -1, -1) if self.carries(index))
        return (index for index in found if self.messages[index].role != "system")

    def last_carrier(self, before: int) -> int | None:
        return next(self.carriers(before), None)

    def begins_with_system(self) -> bool:
        return bool(self.messages) and self.messages[0].role == "system"

    def leading_system(self) -> int | None:
        """Return the end of the system prompt: the separate one, or the leading system messages."""
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
        """Return the first position whose prefix is large enough to be cached."""
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
    """Return the positions of the documented strategy: the system prompt and the last three other carriers.

    `carriers` are the other positions that can carry a marker, newest first; at most `free` positions are returned.
    """
    wanted = ([] if system is None else [system], islice(carriers, ROLLING))
    return list(islice(chain(*wanted), max(free, 0)))


def _documented_places(request: _Request, free: int) -> Iterator[MarkerPlace]:
    system = SYSTEM if request.system is not None else 0 if request.begins_with_system() else None
    if system is not None and not request.carries(system):
        system = None
    for at in system_and_3(system, request.carriers(len(request.messages)), free):
        is_system = at == system
        yield MarkerPlace(at, *(("system", "system prompt") if is_system else ("message", "rolling window")))


def _best(places: Iterable[MarkerPlace], first: int, free: int) -> list[MarkerPlace]:
    """Return up to `free` distinct positions at or after `first`, evaluating no more than needed."""
    found: dict[int, MarkerPlace] = {}
    worth = (place for place in places if place.at >= first)
    while len(found) < free and (place := next(worth, None)) is not None:
        found.setdefault(place.at, place)
    return list(found.values())


def _planned_places(request: _Request) -> Iterator[MarkerPlace]:
    """Yield positions by what they save, best first."""
    messages = request.messages
    end = request.last_carrier(len(messages))
    previous = request.last_carrier(_previous_end(messages))
    if end is not None and request.layout != "openai":
        yield MarkerPlace(end, "message", "end of the request: the next request reads it")
    far = end is not None and previous is not None and request.blocks_between(previous, end) >= SAFE_LOOKBACK
    back = [] if previous is None else [MarkerPlace(previous, "message", "the previous request ended here")]
    if far or request.layout == "openai":
        yield from back
    system = request.leading_system()
    if system is not None:
        yield MarkerPlace(system, "system", "the system prompt survives every compaction")
    handoff = _handoff(messages)
    if handoff is not None and request.carries(handoff):
        yield MarkerPlace(handoff, "message", "the handoff stays until the next compaction")
    if request.tools and request.carries(TOOLS) and system is not None:
        yield MarkerPlace(TOOLS, "tools", "the tools survive a changed system prompt")
    yield from back
    yield from _earlier_points(request, previous)


def _previous_end(messages: Transcript) -> int:
    """Return the number of messages in the previous request: all before the model's last turn."""
    index = len(messages)
    while index and messages[index - 1].role != "assistant":
        index -= 1
    while index and messages[index - 1].role == "assistant":
        index -= 1
    return index


def _handoff(messages: Transcript) -> int | None:
    """Return the handoff of the last compaction; it follows the head and the pinned messages."""
    near = range(min(len(messages), 2 * (HEAD + PINNED) + 2))
    return next(
        (i for i in reversed(near) if (ours := recognise(messages[i])) is not None and ours.kind == "fold"), None
    )


def _earlier_points(request: _Request, start: int | None) -> Iterator[MarkerPlace]:
    """Yield points less than the lookback apart before the previous request, for clients that skipped turns."""
    index = start
    for _ in range(MAX_MARKERS):
        if index is None or index <= 0:
            return
        blocks, at = 0, index
        while at > 0 and blocks + block_count(request.messages[at]) < SAFE_LOOKBACK:
            blocks += block_count(request.messages[at])
            at -= 1
        index = request.last_carrier(min(at + 1, index))
        if index is not None:
            yield MarkerPlace(index, "message", "rolling point within the lookback of the next one")


# The documented function: `system_and_3` on plain dicts, by the documented table of content types. It makes deep
# copies, so that changes of the result do not affect the caller's objects.


FIELD = MARKERS[0]


def apply_anthropic_cache_control(
    messages: Sequence[Any], ttl: Ttl = "5m", native_anthropic: bool = False
) -> list[Any]:
    """Return copies of messages with markers on the system prompt and on the last three other messages that can carry
    one.

    The client's own markers count. `native_anthropic` says that the messages will be translated into Anthropic's
    format: then tool messages get the marker at the message level, where the translation finds it; otherwise they
    are skipped. `cache.plan` and `cache.markers.mark` are stricter: they do not mark empty messages, because no
    provider honours that.
    """
    out = deepcopy([plain(message) for message in messages])
    free = MAX_MARKERS - sum(map(_count_markers, out))
    marker = marker_for("anthropic", ttl)
    carriers = [at for at, value in enumerate(out) if _carries_marker(value, native_anthropic)]
    system = 0 if carriers[:1] == [0] and out[0].get("role") == "system" and not _count_markers(out[0]) else None
    others = (at for at in reversed(carriers) if out[at].get("role") != "system")
    for index in system_and_3(system, others, free):
        if not _count_markers(out[index]):
            out[index] = _with_marker(out[index], marker)
    return out


def _count_markers(message: Any) -> int:
    """Return the number of markers in a message."""
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


# Hints for a request whose provider is not known, by its format and the model's name.
#
# 1. If a provider is given, hints are planned for it.
# 2. Requests in Anthropic's format go to Anthropic, OpenAI models to OpenAI. In any other format only hosts of Claude
#    accept markers, so hints are planned for Claude and for the strictest of these hosts.
# 3. A model known not to be Claude gets no markers there: its provider caches automatically or not at all.


ANY_CLAUDE = "claude"
ANY_CLAUDE_OVERRIDES = {ANY_CLAUDE: ModelOverride(cache_minimum=512)}
"""Overrides for an unnamed model: the smallest prefix that any Claude model caches."""
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
    """Return hints for the ends of stable prefixes, for the given or the likely provider."""
    provider = provider or likely_provider(dialect, model)
    is_unnamed = model is None and (not provider or dialect == "anthropic")
    is_any_host = not provider and (model is None or is_claude(model))
    return plan(
        messages,
        tools,
        system=system,
        provider=provider,
        model=ANY_CLAUDE if is_unnamed else model,
        ttl=ttl,
        strategy=strategy,
        dialect=dialect,
        setting="on" if is_any_host and setting == "auto" else setting,
        models=ANY_CLAUDE_OVERRIDES if is_unnamed else models,
        session_id=session_id,
    )


def likely_provider(dialect: str, model: str | None) -> str:
    """Return the usual provider for this format and model; empty if it is not clear."""
    if dialect == "anthropic":
        return "anthropic"
    return "openai" if _OPENAI.match(canonical(model or "")) else ""
