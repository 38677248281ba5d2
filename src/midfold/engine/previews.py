"""How messages look when they are shown by their beginning and end, and which results nobody has read yet.

Whatever is shortened is behind a handle. Who shortens, and when, is decided by the planner and by `assemble`.
"""

from __future__ import annotations

from typing import NamedTuple

from midfold.fold.digest.digest import shrink_arguments
from midfold.fold.digest.outcomes import error_line, read_body, verdict
from midfold.fold.steps import HARDLY_SHORTER, SHORT_TEXT, ends_of
from midfold.transcript.message import CALL, Message, Part, Text, ToolCall, ToolResult, Transcript

LONG, SHORT = 800, 150
"""Characters kept at each end of a spilled result."""
LEAST_GAP, LONGEST_ENDING = 200, 160


class Ends(NamedTuple):
    """Characters that stay at each end of what must be shortened."""

    results: int
    texts: int

    @property
    def leaf(self) -> int:
        """Characters of a string in a call's arguments."""
        return max(2 * self.texts, 60)


ALL = 1_000_000
EXACT = Ends(ALL, ALL)
"""Nothing is shortened."""
WHOLE_TEXTS = Ends(SHORT, ALL)
"""Only results are shown by their ends."""
LADDER = (
    EXACT,
    WHOLE_TEXTS,
    *(
        Ends(min(max(texts, 40), SHORT), texts)
        for texts in (4_000, 2_000, 1_000, 700, 500, 350, 250, 180, 120, 80, 50, 30)
    ),
)


def preview_text(text: str, handle: str, preview: int = LONG, ending: str = "") -> str:
    """The beginning and the end of a text, by whole lines or words, and how a run ended where neither shows it."""
    head, tail = ends_of(text, preview)
    gap = f"[… {len(text) - len(head) - len(tail):,} characters | unfold {handle} …]"
    told = [gap, f"{ending} […]"] if ending and ending not in head and ending not in tail else [gap]
    return "\n".join((head, *told, tail))


def _is_long(text: str, ends: Ends) -> bool:
    return len(text) > 2 * ends.texts + HARDLY_SHORTER


def shorten(message: Message, handle: str, ends: Ends) -> Message:
    """A message that must stay, its long texts and arguments by their ends; the same one where nothing is long."""
    if message.role not in ("user", "assistant"):
        return message
    calls = any(isinstance(part, ToolCall) for part in message.parts)
    if not calls and len(message.text) <= SHORT_TEXT:
        return message
    return message.with_parts(tuple(_shorten_part(part, handle, ends) for part in message.parts))


def _shorten_part(part: Part, handle: str, ends: Ends) -> Part:
    if isinstance(part, Text) and _is_long(part.text, ends):
        return Text(preview_text(part.text, handle, ends.texts), wire=None)
    if isinstance(part, ToolCall) and _is_long(part.arguments, ends):
        return ToolCall(part.id, part.name, shrink_arguments(part.arguments, ends.leaf), wire=part.wire)
    return part


def spill_results(message: Message, handle: str, preview: int) -> Message:
    """A message whose long results are shown by their ends."""
    return message.with_parts(tuple(_spill(part, handle, preview) for part in message.parts))


def _spill(part: Part, handle: str, preview: int) -> Part:
    if not isinstance(part, ToolResult) or len(part.text) <= smallest(preview):
        return part
    others = tuple(item for item in part.parts if not isinstance(item, Text))
    text = preview_text(part.text, handle, preview, _ending(part))
    return ToolResult(part.call_id, (Text(text), *others), part.is_error, part.name, wire=part.wire)


def _ending(result: ToolResult) -> str:
    """The line that says how a run ended, or what went wrong in it."""
    body = read_body(result)
    has_failed = result.is_error or body.exit_code not in (None, 0)
    return (verdict(body) or (error_line(body) if has_failed else ""))[:LONGEST_ENDING]


def smallest(preview: int) -> int:
    """Results up to this length are not worth spilling with such a preview."""
    return max(3 * preview, 2 * preview + LEAST_GAP)


def newest_batch(messages: Transcript) -> int:
    """Where the newest calls stand, which the newest results follow."""
    places = range(len(messages) - 1, -1, -1)
    return next((index for index in places if messages[index].kinds & CALL), len(messages))
