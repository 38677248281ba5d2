"""Split the two specification documents into statements, to check the map against the originals.

A statement is a sentence of a paragraph or list item, a table row, a line of a code block, or a heading with
parentheses. Not statements: other headings, table headers, lines without a letter or digit (boxes, braces), fences,
admonition titles, and labels of up to three words like "Acceptance:".
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from support.data import SHARED

FOLDER = Path(SHARED).parent / "spec"
DOCUMENTS = ("context-compression-and-caching.md", "conversation-compression-spec.md")

_ITEM = re.compile(r"(?:[-*]|\d+\.)\s+")
_SENTENCE_END = re.compile(r"(?<=[.!?])\s+(?=[A-Z`*\"])|(?<=[.!?]\")\s+(?=[A-Z])")
_LABEL = re.compile(r"[A-Z](?:\S+ ){0,2}\S+:")


class Statement(NamedTuple):
    heading: str
    line: int
    text: str


class _Block(NamedTuple):
    """Consecutive lines of one `kind`: heading, code, row or text."""

    kind: str
    line: int
    text: str


def statements(document: str) -> list[Statement]:
    """Return the statements of one document in order."""
    found: list[Statement] = []
    heading = ""
    for block in _blocks(document.splitlines()):
        if block.kind == "heading":
            heading = block.text
        found += [Statement(heading, block.line, text) for text in _said(block)]
    return found


def _said(block: _Block) -> list[str]:
    if not any(letter.isalnum() for letter in block.text):
        return []
    if block.kind == "heading":
        return [block.text] if "(" in block.text else []
    if block.kind == "text":
        text = block.text[item.end() :] if (item := _ITEM.match(block.text)) else block.text
        return [sentence for sentence in _SENTENCE_END.split(text) if not _LABEL.fullmatch(sentence)]
    return [block.text]


def _blocks(lines: list[str]) -> Iterator[_Block]:
    fenced = False
    open_text: _Block | None = None
    for number, line in enumerate(lines, 1):
        plain = " ".join(line.split())
        following = open_text is not None and plain and _continues(open_text.text, line)
        is_text = not fenced and bool(plain) and not line.startswith(("#", "|", "```", ":::"))
        if open_text and is_text and following:
            open_text = open_text._replace(text=f"{open_text.text} {plain}")
            continue
        if open_text:
            yield open_text
            open_text = None
        if line.startswith("```"):
            fenced = not fenced
        elif fenced:
            yield _Block("code", number, plain)
        elif line.startswith("#"):
            yield _Block("heading", number, plain.lstrip("# "))
        elif line.startswith("|"):
            if not any(below.startswith("|--") for below in lines[number : number + 1]):
                yield _Block("row", number, plain)
        elif is_text:
            open_text = _Block("text", number, plain)
    if open_text:
        yield open_text


def _continues(text: str, line: str) -> bool:
    """Return whether a line continues the open block; a list item only if indented or in lower case."""
    if _ITEM.match(line) or _LABEL.fullmatch(line) or _LABEL.fullmatch(text):
        return False
    return not _ITEM.match(text) or line[0] == " " or not line[0].isupper()
