"""Truncate long texts to their beginning and end, at whole lines, sentences or words."""

from __future__ import annotations

import re
from collections.abc import Callable

MIN_END_CHARACTERS = 60
"""Minimum characters of an end that is cut within a line; shorter ones are only whole lines."""
MAX_FRAME_CHARACTERS = 60
MIN_LISTING_END = 600
"""Minimum characters of the ends of a listing with line numbers; below it only the first line is kept."""
_OPENING = re.compile(r"\s{0,4}(?:<(\w{1,20})>(?:[^<>\n]{0,20}</\1>)?\n){1,4}")
_CLOSING = re.compile(r"(?:\n</\w{1,20}>){1,2}\s{0,4}\Z")
"""Tags that a client puts around printed output, on lines of their own."""
_NUMBERED = re.compile(r"\s{0,7}\d{1,7}(?:→|\t|[:-](?=\s))")
"""Line of a file with its number, as tools show it."""


def ends_of(text: str, length: int) -> tuple[str, str]:
    """Return the beginning and the end of a text, without the partial line or word at the cut.

    Short ends consist of the beginning only, in whole lines.
    """
    if length < MIN_END_CHARACTERS:
        return text[:length].rpartition("\n")[0], ""
    return _whole(text[:length]), _whole(text[-length:][::-1])[::-1]


def ends_of_result(text: str, length: int) -> tuple[str, str]:
    """Return the beginning and end of tool output; always the last line if short, which often says how it ended."""
    opening, closing = _OPENING.match(text), _CLOSING.search(text, max(len(text) - MAX_FRAME_CHARACTERS, 0))
    before, behind = opening[0] if opening else "", closing[0] if closing else ""
    inside = text[len(before) : len(text) - len(behind)]
    last = inside.rstrip().rpartition("\n")[2]
    if length < MIN_LISTING_END and _NUMBERED.match(last):
        first = inside.partition("\n")[0]
        return f"{before}{first if len(first) <= 2 * length else _whole(first[:length])}".rstrip(), behind
    head, tail = ends_of(inside, length)
    return f"{before}{head}".rstrip(), (tail or (last if len(last) <= 2 * length else "")) + behind


def ends_with(text: str, piece: str) -> bool:
    """Return whether a text ends with a piece, ignoring trailing whitespace."""
    return text.rstrip().endswith(piece.rstrip())


def shown_words(text: str, ends: int, opening: int = 0) -> tuple[str, str]:
    """Return the beginning and end kept of a long text that a person or model wrote.

    The beginning has up to `opening` characters if that is more than `ends`; if the ends are too short to be
    useful, only the first sentences are kept.
    """
    has_end = ends >= MIN_END_CHARACTERS
    opening = max(opening, 0 if has_end else 2 * MIN_END_CHARACTERS)
    if len(text) <= opening + ends:
        return text, ""
    head, tail = ends_of(text, ends)
    return opening_of(text, opening) if opening > ends else head, tail if has_end else ""


def opening_of(text: str, length: int) -> str:
    """Return the beginning of a text, up to the end of a line or sentence."""
    if len(text) <= length:
        return text
    cut = text[:length]
    place = max(cut.rfind("\n"), *(cut.rfind(end) + 1 for end in (". ", "! ", "? ", ": ")))
    return cut[:place].rstrip() if place > length // 3 else _whole(cut)


def _whole(cut: str) -> str:
    places = (cut.rfind(seam) for seam in "\n ")
    return cut[: next((place for place in places if place > len(cut) // 2), len(cut))]


# Truncation of texts for a summary model.


Redact = Callable[[str], str]
MIN_CHARACTERS_FOR_ERROR = 240
ERROR_WORDS = ("rror", "ERROR", "FAIL", "Traceback", "xception", "fatal", "denied", "panic")
"""Error words, searched literally because tool results are long."""
MAX_ERROR_WORD = max(map(len, ERROR_WORDS))
MIN_MARGIN = 160
MARGIN = 256
"""Characters redacted beyond what is shown, because part of a credential is not recognised."""


def clip(text: str, limit: int, redact: Redact) -> str:
    """Return the beginning (three quarters) and the end of a text, redacted."""
    head, tail = limit * 3 // 4, limit // 4
    margin = min(max(limit, MIN_MARGIN), MARGIN)
    if len(text) <= head + tail + 2 * margin:
        text = redact(text)
        if len(text) <= head + tail:
            return text
        first, last = text[:head], text[-tail:]
    else:
        first, last = redact(text[: head + margin])[:head], redact(text[-tail - margin :])[-tail:]
    return f"{first}\n[… {max(len(text) - head - tail, 0):,} characters left out …]\n{last}"


def clip_result(text: str, limit: int, redact: Redact) -> str:
    """Return the beginning and end of a result, and the first error between them."""
    if len(text) <= limit + 2 * MARGIN or limit < MIN_CHARACTERS_FOR_ERROR:
        return clip(text, limit, redact)
    head, tail = limit * 3 // 8, limit // 4
    place = find_error(text, head, len(text) - tail)
    if place < 0:
        return clip(text, limit, redact)
    start = max(text.rfind("\n", head, place) + 1, place - limit // 8, head, MARGIN)
    end = min(start + limit * 3 // 8, len(text) - tail)
    middle = redact(text[start - MARGIN : end + MARGIN])[MARGIN:-MARGIN]
    first, last = redact(text[: head + MARGIN])[:head], redact(text[-tail - MARGIN :])[-tail:]
    return (
        f"{first}\n[… {start - head:,} characters left out …]\n{middle}\n"
        f"[… {len(text) - tail - end:,} characters left out …]\n{last}"
    )


def find_error(text: str, start: int, end: int) -> int:
    """Return the position of the first error word between two positions; -1 if there is none."""
    first = -1
    for word in ERROR_WORDS:
        place = text.find(word, start, end)
        if place >= 0:
            first = place if first < 0 else min(first, place)
            end = min(end, first + MAX_ERROR_WORD)
    return first


MAX_QUOTED_CODE_LINES = 2
"""Maximum lines of a quoted code block: a command, not a listing."""


def without_long_code(text: str) -> str:
    """Drop fenced code of more than a few lines: parts of it say nothing without the rest."""
    kept: list[str] = []
    code: list[str] = []
    for line in text.split("\n"):
        is_fence = line.lstrip().startswith("```")
        if code or is_fence:
            code.append(line)
            if is_fence and len(code) > 1:
                kept += code if len(code) - 2 <= MAX_QUOTED_CODE_LINES else ()
                code = []
        else:
            kept.append(line)
    return "\n".join(kept)


def from_boundary(text: str) -> str:
    """Return the end of an arbitrarily cut text, from the first whole line or sentence on."""
    for mark in ("\n", ". "):
        place = text.find(mark)
        if place >= 0:
            return text[place + len(mark) :]
    return ""
