"""Local compaction without an LLM: one-line digests of tool results and the built-in summary."""

from __future__ import annotations

from midfold.compaction.local.digest import (
    PLACEHOLDER,
    back_reference,
    describe,
    digest,
    duplicates,
    is_digest,
    register_digest,
    shrink_arguments,
    shrink_json_string_leaves,
)
from midfold.compaction.local.tool_call import FAMILIES, Action, Outcome

__all__ = [
    "FAMILIES",
    "PLACEHOLDER",
    "Action",
    "Outcome",
    "back_reference",
    "describe",
    "digest",
    "duplicates",
    "is_digest",
    "register_digest",
    "shrink_arguments",
    "shrink_json_string_leaves",
]
