"""Short stand-ins for old tool results: what was done, how it ended, how big it was, and where the original is."""

from midfold.core.digest.action import FAMILIES, Action, Outcome
from midfold.core.digest.arguments import shrink_arguments, shrink_json_string_leaves
from midfold.core.digest.duplicates import duplicates
from midfold.core.digest.line import PLACEHOLDER, back_reference, digest, is_digest
from midfold.core.digest.registry import describe, register_digest

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
