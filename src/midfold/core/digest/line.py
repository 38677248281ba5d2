"""The line that stands for an old tool result, and how such a line is known again.

Rules of this file:
1. One line, at most LIMIT characters before the handle, whatever the tool printed.
2. It says what was done and how it ended; a failure is called one.
3. Everything from arguments and output goes through the caller's redactor.
4. What `digest` and `back_reference` write, `is_digest` knows, so that nothing is digested twice.
"""

from __future__ import annotations

import re

from midfold.core.digest.action import Action
from midfold.core.digest.registry import describe_with
from midfold.core.digest.wording import REDACTED_AT_ONCE, Redactor, clip, flat, identity, plural
from midfold.core.message import ToolCall, ToolResult

LIMIT = 240
PLACEHOLDER = "[Old tool output cleared to save context space]"
NOT_KEPT = " | the original was not kept"

_LONGEST = 400
_SAME = "[Same tool output as in "
_OURS = re.compile(r"\[[^\]\n]{1,60}\] [^\n]{1,320} \| (?:unfold \S{1,80}|the original was not kept)")


def digest(call: ToolCall | None, result: ToolResult, *, handle: str, redact: Redactor = identity) -> str:
    """One line for one tool result: `[Bash] ran `pytest -q` -> exit 1, 54 lines, ... | unfold mf-1a2b3c4d5e6f`."""
    return write_line(describe_with(call, result, redact), handle=handle, redact=redact)


def write_line(action: Action, *, handle: str, redact: Redactor = identity) -> str:
    tool = _shown(action.tool, redact, 48).replace("[", "(").replace("]", ")") or "tool"
    detail = _shown(action.detail, redact, LIMIT)
    if action.outcome == "failed" and not detail.startswith(("failed", "exit ")):
        detail = f"failed: {detail}" if detail else "failed"
    size = f" ({plural(action.characters, 'character')})"
    start = f"[{tool}] {_shown(action.did, redact, 150) or 'was called'}"
    room = LIMIT - len(start) - len(size) - len(" -> ")
    line = f"{start} -> {clip(detail, room)}{size}" if detail else start + size
    return line + _suffix(handle)


def back_reference(handle_of_copy: str, where: str) -> str:
    """What stays of a result whose text a later result repeats: where the copy is, and its handle."""
    return f"{_SAME}{clip(flat(where[:REDACTED_AT_ONCE]), 150)}, kept there]" + _suffix(handle_of_copy)


def is_digest(text: str) -> bool:
    """Whether a text is a digest, a back-reference or the placeholder."""
    if len(text) > _LONGEST or text[:1] != "[":
        return False
    if text == PLACEHOLDER or _OURS.fullmatch(text):
        return True
    return text.startswith(_SAME) and ", kept there] | " in text and "\n" not in text


def _suffix(handle: str) -> str:
    handle = clip("".join(flat(handle[:160]).split()), 80)
    return f" | unfold {handle}" if handle else NOT_KEPT


def _shown(text: str, redact: Redactor, limit: int) -> str:
    return clip(flat(redact(text[:REDACTED_AT_ONCE])), limit)
