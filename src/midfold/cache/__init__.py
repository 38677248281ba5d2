"""Prompt caching: find the ends of stable prefixes and mark them. Independent of compaction; `plan` never edits.

hints = cache.plan_document(document, provider="anthropic")     # where breakpoints belong, and why
cache.markers.mark(document, hints)                             # the request with markers in its provider's format
"""

from midfold.cache.breakpoints import (
    apply_anthropic_cache_control,
    caching_applies,
    is_claude,
    layout_for,
    plan,
    plan_document,
    provider_of,
    status_line,
)
from midfold.cache.markers import PromptCacheHint
from midfold.cache.prefix import stable_prefix_cache_key
from midfold.cache.schedule import break_even

__all__ = [
    "PromptCacheHint",
    "apply_anthropic_cache_control",
    "break_even",
    "caching_applies",
    "is_claude",
    "layout_for",
    "plan",
    "plan_document",
    "provider_of",
    "stable_prefix_cache_key",
    "status_line",
]
