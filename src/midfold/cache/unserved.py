"""Hints where nobody has said yet who will serve the request: by the shape it is written in, and the model's name.

Rules of this file:
1. A provider that is named is planned for; the rest of this file is for when none is.
2. Anthropic's shape goes to Anthropic. A model of OpenAI's goes to OpenAI. In every other shape only hosts of Claude
   take markers, so they are planned for Claude, and as the strictest of those hosts would take them.
3. A model that is known to be no Claude gets no marker there: its provider caches by itself, or not at all.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from midfold.cache.layouts import Setting, is_claude
from midfold.cache.planner import Strategy, plan
from midfold.core.hint import PromptCacheHint, Ttl
from midfold.core.message import Message, Tool, Transcript
from midfold.models import ModelOverride, canonical

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
    anybody = not provider and (model is None or is_claude(model))
    return plan(
        messages,
        tools,
        system=system,
        provider=provider,
        model=ANY_CLAUDE if model is None and anybody else model,
        ttl=ttl,
        strategy=strategy,
        dialect=dialect,
        setting="on" if anybody and setting == "auto" else setting,
        models=ANY if model is None and anybody else models,
        session_id=session_id,
    )


def likely_provider(dialect: str, model: str | None) -> str:
    """Who is usually asked in this shape for this model; an empty string where that is open."""
    if dialect == "anthropic":
        return "anthropic"
    return "openai" if _OPENAI.match(canonical(model or "")) else ""
