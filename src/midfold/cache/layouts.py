"""Who caches what, and how it is asked for. Facts of November 2026, as a table.

Rules of this file:
1. Claude models are recognised by name, on every host that passes markers on.
2. Hosts that cache by themselves are left alone: no marker, and at most a key that keeps a session on one machine.
3. `auto` marks where it is known to help; `on` wherever a layout exists; `off` never.
"""

from __future__ import annotations

import re
from typing import Literal, NamedTuple

from midfold.core.hint import Layout, Ttl
from midfold.models import canonical

Setting = Literal["auto", "on", "off"]


class Host(NamedTuple):
    """One provider: what people call it, the dialects in which it passes Anthropic's markers on, and its addresses."""

    title: str
    envelope: bool = False
    addresses: tuple[str, ...] = ()


HOSTS: dict[str, Host] = {
    "anthropic": Host("Anthropic", addresses=("api.anthropic.com",)),
    "openrouter": Host("OpenRouter", envelope=True, addresses=("openrouter.ai",)),
    "nous": Host("Nous", envelope=True, addresses=("inference-api.nousresearch.com",)),
    "litellm": Host("LiteLLM", envelope=True),
    "bedrock": Host("Bedrock", addresses=("amazonaws.com",)),
    "vertex": Host("Vertex AI", addresses=("aiplatform.googleapis.com",)),
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


def layout_for(provider: str, model: str | None, dialect: str, setting: Setting = "auto") -> Layout | None:
    """How markers are written for this model on this host; None where none belongs."""
    if setting == "off":
        return None
    provider = provider.lower()
    if dialect == "anthropic":
        return "anthropic" if is_claude(model) or provider == "anthropic" or setting == "on" else None
    if dialect == "bedrock-converse":
        return "bedrock" if is_claude(model) or setting == "on" else None
    host = HOSTS.get(provider)
    if dialect == "openai-chat" and ((host is not None and host.envelope) or (host is None and setting == "on")):
        return "envelope" if _takes_markers(provider, model, setting) else None
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


def status_line(provider: str, model: str | None, ttl: Ttl = "5m", setting: Setting = "auto", dialect: str = "") -> str:
    """What a program says about caching when it starts."""
    host = HOSTS.get(provider.lower())
    where = host.title if host is not None else provider or "an unknown provider"
    what = "Claude" if is_claude(model) else model or "no model named"
    if setting == "off":
        return "Prompt caching: DISABLED (prompt_caching.enabled is off)"
    if caching_applies(provider, model, setting, dialect):
        lifetime = "30m" if layout_for(provider, model, dialect or _usual(provider), setting) == "openai" else ttl
        return f"Prompt caching: ENABLED ({what} via {where}, {lifetime} TTL)"
    if host is not None and not host.envelope and not is_claude(model):
        return f"Prompt caching: AUTOMATIC ({where} caches {what} by itself)"
    return f"Prompt caching: DISABLED (no markers for {what} via {where})"
