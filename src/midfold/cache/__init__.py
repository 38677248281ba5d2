"""Prompt caching: where stable prefixes end. Separate from compaction: it describes, it never edits."""

from midfold.cache.hints import PromptCacheHint, system_and_3

__all__ = ["PromptCacheHint", "system_and_3"]
