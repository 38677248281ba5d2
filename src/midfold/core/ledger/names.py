"""Names in text: words that mean one thing in this project and that nobody can guess.

Rules of this file:
1. A name has a shape that prose does not have: a slash, an underscore, a digit among letters, an inner dot or hyphen, a
   capital in the middle, or it is a long number.
2. Text is cut into chunks by one linear pattern; each chunk is judged once and remembered.
3. What is judged here is what the ledger selects by. The measure that judges the ledger has a definition of its own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple


class Shape(IntEnum):
    """What a name looks like."""

    PATH = 0
    URL = 1
    NUMBER = 2
    HASH = 3
    SNAKE = 4
    CAMEL = 5
    DOTTED = 6
    KEBAB = 7
    CONSTANT = 8
    FLAG = 9
    MIXED = 10
    VERSION = 11


class Name(NamedTuple):
    text: str
    shape: Shape


SHORTEST, LONGEST = 4, 200
CHUNK = re.compile(
    r"(?<![\w~/@.+-])[A-Za-z]?[a-z]*+(?:[A-Z0-9_~/@.+-][\w~/@.+-]{1,200}+|://[^\s\"'`<>()\[\]{}\\,;|]{3,300}+)",
    re.ASCII,
)
"""A run of characters that names are made of, with one that ordinary words do not have behind their first letter."""
_NUMBER = re.compile(r"[0-9]{4,}")
_VERSION = re.compile(r"v?[0-9]+(?:\.[0-9]+){1,3}(?:[-+.]?[a-z][\w.]*)?|[0-9]{4}-[0-9]{2}-[0-9]{2}\w*")
_HEX = re.compile(r"[0-9a-f]{7,64}")
_UUID = re.compile(r"[0-9a-fA-F]{8}-[0-9a-fA-F-]{20,30}")
_CONSTANT = re.compile(r"[A-Z0-9]+(?:_[A-Z0-9]+)+")
_CAMEL = re.compile(r"(?=[A-Za-z0-9]++\Z)(?:[A-Za-z]*[a-z0-9][A-Z]|[A-Z]{2,}[a-z])[A-Za-z0-9]*")
_MIXED = re.compile(r"(?=.*[0-9].*[0-9])(?=.*[A-Za-z])[A-Za-z0-9]{6,}")
_FLAG = re.compile(r"--[A-Za-z][\w-]+")
_FILE = re.compile(r"[\w.@+-]*\w\.[A-Za-z][A-Za-z0-9]{0,4}")

_NUMBERED = re.compile(r"([\w./@+~-]*?\w\.[a-z]{1,4})-[0-9]+(?:-.*)?$")
"""A file with the number of a line behind it, as searches print the lines around a hit."""


def names(text: str) -> Iterator[tuple[str, int]]:
    """Every name of a text with the place where its chunk begins."""
    for match in CHUNK.finditer(text):
        name = judged(match.group())
        if name is not None:
            yield name.text, match.start()


@lru_cache(maxsize=1 << 15)
def judged(chunk: str) -> Name | None:
    """The name a chunk of text is, without the punctuation around it; None for words of prose."""
    if chunk.startswith("http") and "://" in chunk:
        return Name(chunk.rstrip(".:!?*_~/"), Shape.URL)
    text = chunk.rstrip(".-+/@~")
    if not text.startswith("--"):
        text = text.lstrip("+-@")
    if "-" in text and (numbered := _NUMBERED.match(text)):
        text = numbered.group(1)
    if len(text) < SHORTEST:
        return None
    shape = _shape(text)
    return None if shape is None else Name(text, shape)


def _shape(text: str) -> Shape | None:
    if "/" in text:
        return Shape.PATH if _is_path(text) else None
    if text.startswith("--"):
        return Shape.FLAG if _FLAG.fullmatch(text) else None
    if text[0].isdigit() or text[0] == "v":
        if _NUMBER.fullmatch(text):
            return Shape.NUMBER
        if _VERSION.fullmatch(text):
            return Shape.VERSION
    if _HEX.fullmatch(text) and not text.isdigit() and not text.isalpha():
        return Shape.HASH
    if _UUID.fullmatch(text):
        return Shape.HASH
    if "_" in text:
        return Shape.CONSTANT if _CONSTANT.fullmatch(text) else Shape.SNAKE if text.strip("_") else None
    if "." in text:
        return Shape.PATH if _FILE.fullmatch(text) and text.count(".") == 1 else Shape.DOTTED
    if "-" in text:
        return Shape.KEBAB
    if _MIXED.fullmatch(text):
        return Shape.MIXED
    return Shape.CAMEL if _CAMEL.fullmatch(text) else None


def _is_path(text: str) -> bool:
    if not any(map(str.isalpha, text)):
        return False
    return (
        text[0] in "/~." or text.count("/") >= 2 or any(mark in text for mark in "._-@") or any(map(str.isdigit, text))
    )


def parts(name: str) -> Iterator[str]:
    """The name and what it ends in: who has `/repo/src/a.py` has `src/a.py` and `a.py`, too."""
    yield name
    for mark in "/.":
        rest = name
        while mark in rest:
            rest = rest.partition(mark)[2]
            if len(rest) >= SHORTEST:
                yield rest
