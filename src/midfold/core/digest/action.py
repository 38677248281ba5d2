"""What one tool call did and how it ended: the value every digest is written from."""

from __future__ import annotations

from typing import Literal

import msgspec

Outcome = Literal["ok", "failed", "unknown"]

FAMILIES = (
    "shell",
    "read",
    "write",
    "patch",
    "search",
    "list",
    "web",
    "agent",
    "process",
    "browser",
    "plan",
    "other",
)


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """One tool call and its result in a few words. Texts are single lines, bounded, and come from untrusted output."""

    family: str
    tool: str
    did: str
    outcome: Outcome = "unknown"
    detail: str = ""
    paths: tuple[str, ...] = ()
    wrote: bool = False
    error: str = ""
    lines: int = 0
    characters: int = 0
