"""Short verbatim pieces of text around names, with the words that explain the names.

1. A snippet is one contiguous piece of one text: the name's line, or a window of a long line. An ellipsis marks a cut,
   so that it is not taken for the whole line.
2. If the line does not explain the name, the nearest lines before or after it are included, up to `REACH`.
3. Nothing is rewritten except the white space around lines.
"""

from __future__ import annotations

from typing import NamedTuple

from midfold.compaction.injection import is_suspicious
from midfold.compaction.local.identifiers import binds

LONGEST_LINE = 150
GOES_ON = "…"
MARGIN, WIDE_MARGIN = 45, 110
REACH = 130
NEAR = 500
"""Characters on either side of a name that are checked for an instruction."""


class Snippet(NamedTuple):
    """A piece of a text, and whether it explains the names in it."""

    text: str
    bound: bool


def snippet(text: str, at: int, length: int) -> Snippet:
    """Return the piece of `text` around a name of `length` characters at `at`."""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at + length)
    end = len(text) if end < 0 else end
    if end - start > LONGEST_LINE:
        return _window(text, start, end, at, length)
    line = text[start:end].strip()
    if binds(line):
        return Snippet(line, True)
    return _with_neighbours(text, start, end, line)


def may_be_order(piece: str, text: str, at: int) -> bool:
    """Return whether a piece of a text, or the line that it was cut from, may be taken for an instruction."""
    is_cut = GOES_ON in (piece[:1], piece[-1:])
    return is_suspicious(piece) or (is_cut and is_suspicious(_line_at(text, at)))


def _line_at(text: str, at: int) -> str:
    """Return the line at a position, within `NEAR`."""
    start = max(text.rfind("\n", 0, at) + 1, at - NEAR)
    end = text.find("\n", at, at + NEAR)
    return text[start : at + NEAR if end < 0 else end]


def _window(text: str, start: int, end: int, at: int, length: int) -> Snippet:
    for margin in (MARGIN, WIDE_MARGIN):
        piece = _around(text, start, end, at, length, margin)
        if binds(piece):
            return Snippet(piece, True)
    return Snippet(piece, False)


def _around(text: str, start: int, end: int, at: int, length: int, margin: int) -> str:
    """Return the words of a line within `margin` of a name."""
    first = _word_start(text, max(at - margin, start), start, at)
    last = _word_end(text, min(at + length + margin, end), end, at + length)
    before = GOES_ON if text[start:first].strip() else ""
    after = GOES_ON if text[last:end].strip() else ""
    return f"{before}{text[first:last].strip()}{after}"


def _word_start(text: str, place: int, start: int, at: int) -> int:
    if place <= start:
        return start
    space = text.find(" ", place, at)
    return space + 1 if space >= 0 else place


def _word_end(text: str, place: int, end: int, after: int) -> int:
    if place >= end:
        return end
    space = text.rfind(" ", after, place)
    return space if space >= 0 else place


def _with_neighbours(text: str, start: int, end: int, line: str) -> Snippet:
    """Add the nearest lines before or after the line until there are enough words."""
    above, below = start, end
    while above > 0 or below < len(text):
        if above > 0:
            above = text.rfind("\n", 0, above - 1) + 1
            if end - above <= REACH + len(line) and binds(text[above:end]):
                return Snippet(_tidy(text[above:end]), True)
        if below < len(text):
            below = text.find("\n", below + 1)
            below = len(text) if below < 0 else below
            if below - start <= REACH + len(line) and binds(text[start:below]):
                return Snippet(_tidy(text[start:below]), True)
        if end - above > REACH + len(line) and below - start > REACH + len(line):
            break
        above = 0 if end - above > REACH + len(line) else above
        below = len(text) if below - start > REACH + len(line) else below
    return Snippet(line, False)


def _tidy(text: str) -> str:
    """Strip the lines and drop empty ones."""
    return "\n".join(line for raw in text.split("\n") if (line := raw.strip()))
