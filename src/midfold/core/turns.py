"""A fold as text for whoever summarises it: raw, in order, each message clipped around what matters in it.

Of a long text its beginning and end are shown, of a tool result also where it first speaks of trouble.

Reasoning is left out: it is not the conversation, and providers forbid showing it to another model.

A line in a text that begins as our turns do loses that beginning, after the text was cut: a cut can put one there.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Iterator

from midfold.core.message import Media, Message, Opaque, Text, ToolCall, ToolResult, Transcript
from midfold.core.redact import redact as our_rules
from midfold.core.redact import with_credentials

Redact = Callable[[str], str]
MOST_CHARACTERS = 400_000
"""Of all turns together; the longer the fold, the less of each message is shown."""
LONGEST, SHORTEST = 6_000, 60
"""What one message may take at most, and what it gets in the longest fold."""
SMALLEST_WITH_TROUBLE = 240
TROUBLE = ("rror", "ERROR", "FAIL", "Traceback", "xception", "fatal", "denied", "panic")
"""Words of trouble; looked for literally, because tool results are long."""
LONGEST_WORD = max(map(len, TROUBLE))
SMALLEST_MARGIN, MARGIN = 160, 256
"""Texts are redacted this much beyond what is shown: half of a credential is not recognised any more."""
_TURN = re.compile(r"^\[(?=(?:SYSTEM|USER|ASSISTANT|TOOL|OTHER|RESULT)\b[^\n\]]{0,200}\])", re.MULTILINE)
BATCH = 256
"""Messages that are searched for credentials in one go."""


def serialize_turns(messages: Transcript, redact: Redact, most: int = MOST_CHARACTERS) -> str:
    """The turns, each redacted before it is cut; of a very long fold the newest, and what the user said before."""
    room = min(max(most // max(len(messages), 1), SHORTEST), LONGEST)
    newest: list[str] = []
    left = most * 4 // 5
    shown = len(messages)
    while shown and left > 0:
        for piece in reversed(turn_texts(messages[max(shown - BATCH, 0) : shown], room, redact)):
            shown -= 1
            left -= len(piece) + 2
            newest.append(piece)
            if left <= 0:
                break
    older = older_asks(messages[:shown], redact, most // 5) if shown else []
    return "\n\n".join(piece for piece in [*older, *reversed(newest)] if piece)


def older_asks(messages: Transcript, redact: Redact, most: int) -> list[str]:
    """What the user said in messages that are not shown, the newest if there is not enough room."""
    asks: list[str] = []
    for message in reversed(messages):
        if message.role == "user" and most > 0 and message.text.strip():
            asks.append(f"[USER, earlier]: {_inside(clip(message.text, 200, redact))}")
            most -= len(asks[-1])
    return [*reversed(asks), f"[… the other {len(messages):,} older messages are not shown …]"]


def clip(text: str, room: int, redact: Redact) -> str:
    """The beginning and the end of a text, redacted; the beginning gets three quarters."""
    head, tail = room * 3 // 4, room // 4
    margin = min(max(room, SMALLEST_MARGIN), MARGIN)
    if len(text) <= head + tail + 2 * margin:
        text = redact(text)
        if len(text) <= head + tail:
            return text
        first, last = text[:head], text[-tail:]
    else:
        first, last = redact(text[: head + margin])[:head], redact(text[-tail - margin :])[-tail:]
    return f"{first}\n[… {max(len(text) - head - tail, 0):,} characters left out …]\n{last}"


def clip_result(text: str, room: int, redact: Redact) -> str:
    """A result by its beginning, its end, and the first trouble between them."""
    if len(text) <= room + 2 * MARGIN or room < SMALLEST_WITH_TROUBLE:
        return clip(text, room, redact)
    head, tail = room * 3 // 8, room // 4
    place = trouble(text, head, len(text) - tail)
    if place < 0:
        return clip(text, room, redact)
    start = max(text.rfind("\n", head, place) + 1, place - room // 8, head, MARGIN)
    end = min(start + room * 3 // 8, len(text) - tail)
    middle = redact(text[start - MARGIN : end + MARGIN])[MARGIN:-MARGIN]
    first, last = redact(text[: head + MARGIN])[:head], redact(text[-tail - MARGIN :])[-tail:]
    return (
        f"{first}\n[… {start - head:,} characters left out …]\n{middle}\n"
        f"[… {len(text) - tail - end:,} characters left out …]\n{last}"
    )


def trouble(text: str, start: int, end: int) -> int:
    """Where a text first speaks of an error, between two places; -1 if it does not."""
    first = -1
    for word in TROUBLE:
        place = text.find(word, start, end)
        if place >= 0:
            first = place if first < 0 else min(first, place)
            end = min(end, first + LONGEST_WORD)
    return first


def turn_texts(messages: Transcript, room: int, redact: Redact) -> list[str]:
    """Messages as texts. Our own rules look at all pieces at once; only what has a credential is written again."""
    if redact is not our_rules:
        return [turn_text(message, room, redact) for message in messages]
    pieces: list[str] = []
    ends: list[int] = []
    texts: list[str] = []

    def unchanged(piece: str) -> str:
        pieces.append(piece)
        return piece

    for message in messages:
        texts.append(turn_text(message, room, unchanged))
        ends.append(len(pieces))
    for place in {bisect_right(ends, piece) for piece in with_credentials(pieces)}:
        texts[place] = turn_text(messages[place], room, redact)
    return texts


def turn_text(message: Message, room: int, redact: Redact) -> str:
    """One message as text."""
    return "\n\n".join(part_texts(message, room, redact))


def part_texts(message: Message, room: int, redact: Redact) -> Iterator[str]:
    """The parts of one message as texts."""
    who = message.role.upper()
    for part in message.parts:
        if isinstance(part, Text):
            if part.text.strip():
                yield f"[{who}]: {_inside(clip(part.text, room, redact))}"
        elif isinstance(part, ToolCall):
            yield f"[{who} CALLS {part.name}]: {_inside(clip(part.arguments, room // 2, redact))}"
        elif isinstance(part, ToolResult):
            yield f"[RESULT{' (failed)' if part.is_error else ''}]: {_inside(clip_result(part.text, room, redact))}"
        elif isinstance(part, Media | Opaque):
            yield f"[{who}]: ({part.kind})"


def _inside(text: str) -> str:
    """A text in which no turn begins."""
    return _TURN.sub("(", text)
