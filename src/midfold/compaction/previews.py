"""Truncate messages to their beginning and end, with the rest behind a handle.

The planner and `assemble` decide when to do this.
"""

from __future__ import annotations

from typing import NamedTuple

from midfold.compaction.local.digest import shrink_arguments
from midfold.compaction.local.outcome import error_line, read_body, verdict
from midfold.compaction.request import MIN_SAVED_CHARACTERS, SHORT_TEXT, leaf_characters, max_whole_characters
from midfold.compaction.summary import CHARACTERS_PER_TOKEN
from midfold.compaction.truncate import ends_of, ends_of_result, ends_with, shown_words
from midfold.transcript.message import CALL, Message, Part, Role, Text, ToolCall, ToolResult, Transcript
from midfold.transcript.wrappers import read_user_text, without_reminders

LONG = 800
"""Characters kept at each end of a spilled result with a long preview."""
SHORT = 150
"""Characters kept at each end of a spilled result with a short preview."""
MAX_ENDING_CHARACTERS = 160
TARGET_PER_END = 12
"""Target tokens per character that always stays at each end of a result. Results up to three times as long stay
whole.
"""
MAX_GUARANTEED_END = 600
"""Maximum characters that always stay at each end of a result."""
MIN_USEFUL_END = 180
"""Minimum characters for which the end of the text after the user's words is kept; less would say nothing."""
ANSWER_SHARE_OF_TARGET = 0.2
"""Share of a target size for the answer that the newest user message assents to ("yes, do that")."""


class Ends(NamedTuple):
    """Characters kept at each end of a truncated part."""

    results: int
    texts: int
    asks: int = 0
    """Characters kept at the beginning of the user's words, if that is more."""
    answers: int = 0
    """Characters kept at each end of an answer that the newest user message assents to, if that is more."""

    @property
    def of_answer(self) -> Ends:
        return self._replace(texts=max(self.texts, self.answers))


ALL = 1_000_000
EXACT = Ends(ALL, ALL)
"""No truncation."""
WHOLE_TEXTS = Ends(SHORT, ALL)
"""Truncation of tool results only."""
LADDER = (
    EXACT,
    WHOLE_TEXTS,
    *(
        Ends(min(max(texts, 40), SHORT), texts)
        for texts in (4_000, 2_000, 1_000, 700, 500, 350, 250, 180, 120, 80, 50, 30)
    ),
)


def ladder_for(target_tokens: int, asks: int) -> tuple[Ends, ...]:
    """Return the levels of truncation for a target size, from none to the strongest.

    At least `asks` characters of the user's words stay at every level.
    """
    answers = int(target_tokens * ANSWER_SHARE_OF_TARGET * CHARACTERS_PER_TOKEN)
    guaranteed = min(target_tokens // TARGET_PER_END, MAX_GUARANTEED_END)
    minimums = {"asks": asks, "answers": answers // 2}
    return (EXACT, *(ends._replace(results=max(ends.results, guaranteed), **minimums) for ends in LADDER[1:]))


def preview_text(text: str, handle: str, preview: int = LONG, ending: str = "") -> str:
    """Return the beginning and end of a result in whole lines or words, and `ending` if neither contains it."""
    printed = without_reminders(text)
    head, tail = ends_of_result(printed, preview) if len(printed) > 2 * preview else (printed, "")
    shown = f"{ending} […]" if ending and ending not in head and ending not in tail else ""
    return _with_gap(text, handle, head, shown, tail)


def _with_gap(text: str, handle: str, head: str, *after: str) -> str:
    left_out = len(text) - len(head) - len(after[-1])
    return "\n".join(filter(None, (head, f"[… {left_out:,} chars | unfold {handle}]", *after)))


def _is_long(text: str, ends: Ends) -> bool:
    return len(text) > 2 * ends.texts + MIN_SAVED_CHARACTERS


def shorten(message: Message, handle: str, ends: Ends) -> Message:
    """Return a message with its long texts and arguments truncated; the same object if nothing is long."""
    if message.role not in ("user", "assistant"):
        return message
    calls = any(isinstance(part, ToolCall) for part in message.parts)
    if not calls and len(message.text) <= SHORT_TEXT:
        return message
    return message.with_parts(tuple(_shorten_part(part, handle, ends, message.role) for part in message.parts))


def _shorten_part(part: Part, handle: str, ends: Ends, role: Role) -> Part:
    if isinstance(part, Text) and _is_long(part.text, ends):
        return Text(_preview_words(part.text, handle, ends, role), wire=None)
    if isinstance(part, ToolCall) and _is_long(part.arguments, ends):
        return ToolCall(
            part.id, part.name, shrink_arguments(part.arguments, leaf_characters(ends.texts)), wire=part.wire
        )
    return part


def _preview_words(text: str, handle: str, ends: Ends, role: Role) -> str:
    """Return a truncated text: of a user message, the beginning of the user's words and the end of the message."""
    words = read_user_text(text).words if role == "user" and ends.asks else ""
    head, tail = shown_words(words or text, ends.texts, ends.asks if words else 0)
    if words and not ends_with(text, words):
        tail = ends_of(text, ends.texts)[1] if ends.texts >= MIN_USEFUL_END else ""
    short = _with_gap(text, handle, head, tail)
    return short if len(short) < len(text) else text


def spill_results(message: Message, handle: str, preview: int) -> Message:
    """Return a message with its long results truncated."""
    return message.with_parts(tuple(_spill(part, handle, preview) for part in message.parts))


def _spill(part: Part, handle: str, preview: int) -> Part:
    if not isinstance(part, ToolResult) or len(part.text) <= max_whole_characters(preview):
        return part
    others = tuple(item for item in part.parts if not isinstance(item, Text))
    text = preview_text(part.text, handle, preview, _ending(part))
    return ToolResult(part.call_id, (Text(text), *others), part.is_error, part.name, wire=part.wire)


def _ending(result: ToolResult) -> str:
    """Return the line that says how a run ended or what went wrong."""
    body = read_body(result)
    has_failed = result.is_error or body.exit_code not in (None, 0)
    return (verdict(body) or (error_line(body) if has_failed else ""))[:MAX_ENDING_CHARACTERS]


def newest_batch(messages: Transcript) -> int:
    """Return the index of the newest message with tool calls, or the number of messages."""
    places = range(len(messages) - 1, -1, -1)
    return next((index for index in places if messages[index].kinds & CALL), len(messages))
