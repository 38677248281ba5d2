"""What says what a fact is: the content words and labels near it.

Rules of this file:
1. Near is within `NEAR` characters, in the same message.
2. A content word is a run of three or more letters that is no part of an identifier, no function word of English
   and no keyword of a programming language.
3. A label stands before the fact on the same line and ends in a colon: `port: 8123`, `"branch": "fix/x"`.
4. A fact is bound where two words, or one label, stand near it that also stood near it in the past.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from midfold.eval.facts import places
from midfold.eval.lists import FUNCTION_WORDS
from midfold.eval.texts import NEAR

WORDS_NEEDED = 2

_WORD = re.compile(r"(?<![\w./\\@#$%&=~-])[^\W\d_]{3,40}+(?![\w/\\(]|[.@=-]\w)")
_LABEL = re.compile(r"(?<![\w./-])([A-Za-z][\w-]{2,40}+)[\"'`*]{0,3}+:(?=[\s\"'`\[({*])")


class Surroundings(NamedTuple):
    """What stands near a fact, wherever it stands."""

    words: frozenset[str]
    labels: frozenset[str]


def surroundings(text: str, fact: str, at: Sequence[int]) -> Surroundings:
    """Words and labels near any of the places where a fact stands. Places that overlap are read once."""
    found: set[str] = set()
    labels: set[str] = set()
    for start, end in _merged(at, len(fact)):
        found.update(words_of(text[start:end]))
    for place in at:
        labels.update(labels_of(text[_line(text, place) : place]))
    return Surroundings(frozenset(found), frozenset(labels))


def _merged(at: Iterable[int], length: int) -> Iterator[tuple[int, int]]:
    open_at, open_end = -1, -1
    for place in at:
        start, end = max(place - NEAR, 0), place + length + NEAR
        if start > open_end:
            if open_at >= 0:
                yield open_at, open_end
            open_at = start
        open_end = end
    if open_at >= 0:
        yield open_at, open_end


def _line(text: str, at: int) -> int:
    """Where the line of a place begins, as far as it is near."""
    near = max(at - NEAR, 0)
    return max(text.rfind("\n", near, at) + 1, near)


def words_of(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text):
        word = match.group()
        rest = word[1:]
        if rest == rest.lower():
            lowered = word.lower()
            if lowered not in FUNCTION_WORDS:
                yield lowered


def labels_of(text: str) -> Iterator[str]:
    for match in _LABEL.finditer(text):
        label = match.group(1).lower()
        if label not in FUNCTION_WORDS:
            yield label


def is_bound(text: str, fact: str, near: Surroundings) -> bool:
    """Whether a text holds the fact together with what says what it is."""
    for at in places(text, fact):
        if near.labels and not near.labels.isdisjoint(labels_of(text[_line(text, at) : at])):
            return True
        window = text[max(at - NEAR, 0) : at + len(fact) + NEAR]
        if len(near.words.intersection(words_of(window))) >= WORDS_NEEDED:
            return True
    return False
