"""Anchors of the summary without a model: which tools were called under which ids, and which blockers were stated."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from midfold.transcript.message import CALL, Message, ToolCall
from midfold.transcript.tokens import estimate_text

TOOLS_USED = "- Tools used: "
IDS_SHARE = 0.04
"""Share of the budget that call ids may take; the newest id of each tool is always named."""
TOKENS_PER_TOOL, MAX_TOOLS = 500, 8
"""Budget tokens for each tool that is listed, and the most tools."""
STATED = "- The assistant said: "
MAX_STATED = 2
MAX_STATED_CHARS = 300
_BLOCKED = re.compile(
    r"\b(?:(?:i|we|it|this|work|task|everything)(?:['’]m| am|['’]re| are|['’]s| is|['’]ve been| (?:have|has) been)"
    r"(?: still| now| currently)? (?:blocked|stuck)\b"
    r"|blocked (?:by|on|until|because)\b"
    r"|(?:can(?:not|['’]t| not)|unable to) (?:proceed|continue|go on|finish|move on)\b"
    r"|(?:waiting|wait) (?:for|on) (?:\w+ ){0,3}(?:approval|permission|access|credentials|sign-off|confirmation|review)"
    r"|(?:missing|without|lack(?:s|ing)?|no) (?:the |an? |your )?(?:approval|permissions?|credentials)\b)",
    re.I,
)
_UNBLOCKED = re.compile(
    r"\b(?:unblocked|no longer blocked|(?:approval|permission|access|credentials)[^.\n]{0,30} "
    r"(?:arrived|granted|given|is there|are there))\b",
    re.I,
)


def tools_used(messages: Iterable[Message], budget: int) -> str:
    """Return one line with the tools that were called, how often, and the ids of their calls, the newest first."""
    parts = [part for message in messages if message.kinds & CALL for part in message.parts]
    ids: dict[str, list[str]] = {}
    for part in parts:
        if type(part) is ToolCall:
            ids.setdefault(part.name, []).append(part.id)
    most = max(min(budget // TOKENS_PER_TOOL, MAX_TOOLS), 1)
    used = sorted(ids, key=lambda name: -len(ids[name]))[:most]
    share = budget * IDS_SHARE / max(len(used), 1)
    listed = (f"{name} x{len(ids[name])}{_ids_text(ids[name], share)}" for name in used)
    return f"{TOOLS_USED}{', '.join(listed)}" if used else ""


def _ids_text(ids: Sequence[str], left: float) -> str:
    shown: list[str] = []
    known = [one for one in reversed(ids) if one]
    for one in known:
        left -= estimate_text(one) + 1
        if shown and left < 0:
            break
        shown.append(one)
    if not shown:
        return ""
    return f" ({', '.join(shown)}{' and older ones' if len(shown) < len(known) else ''})"


def stated_blockers(sentences: Iterable[str], earlier: Iterable[str] = ()) -> list[str]:
    """Return the newest sentences in which the assistant says what blocks it, quoted, unless it said later that nothing
    does.

    `earlier` are such lines of an earlier summary.
    """
    found = [line for line in earlier if line.startswith(STATED)]
    for sentence in sentences:
        if _UNBLOCKED.search(sentence):
            found = []
        elif _BLOCKED.search(sentence) and len(sentence) <= MAX_STATED_CHARS:
            found.append(f"{STATED}{sentence.lstrip('-*# ')}")
    return list(dict.fromkeys(found))[-MAX_STATED:]
