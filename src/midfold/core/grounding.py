"""Whether a summary says only what its source says: identifiers that stand nowhere in the source are marked.

Rules of this file:
1. An identifier is a URL, a path, a hash, an id, a version or a number of four digits or more. Words are not checked.
2. Spelling may differ where it often does: case, thousands separators, a path written from its root or from below it,
   or with stars in it.
3. A line that rests on nothing but unknown addresses, paths or ids is taken out; elsewhere the identifier is marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from midfold.core.message import Message, Text, ToolCall, ToolResult

MARK = " [unverified]"
MOST_READ, FEWEST_SEARCHES = 60_000_000, 10
_URL = r"https?://[^\s<>\"')\]}`|]{3,300}+"
_EXTENSIONS = (
    "py pyi js mjs cjs jsx ts tsx vue svelte rs go java kt rb php c h cc cpp hpp cs swift scala sh bash ps1 bat sql md "
    "rst txt json jsonl yaml yml toml ini cfg conf env lock log csv tsv xml html css scss proto ipynb tf gradle patch "
    "diff"
)
_FILE = rf"[\w.@+*-]{{1,120}}\.(?:{_EXTENSIONS.replace(' ', '|')})\b"
_PATH = (
    rf"(?<![\w/.~])(?:~|\.{{1,2}})?/(?:[\w.@+-]{{1,120}}/){{0,24}}+[\w.@+*-]{{1,120}}+"
    rf"|(?<![\w.@+*/-])(?:(?:[\w.@+*-]{{1,120}}/){{2,24}}+[\w.@+*-]{{0,120}}+|(?:[\w.@+-]{{1,120}}/)?{_FILE})"
)
_HASH = r"\b(?=[0-9a-f]{0,39}[0-9])(?=[0-9a-f]{0,39}[a-f])[0-9a-f]{7,64}\b"
_ID = r"\b(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z][A-Za-z0-9]{0,30}(?:[_-][A-Za-z0-9]{1,40}){1,6}\b"
_VERSION = r"\bv?[0-9]{1,5}(?:\.[0-9]{1,6}){1,3}\b"
_NUMBER = r"\b[0-9]{1,3}(?:,[0-9]{3}){1,5}\b|\b[0-9]{4,20}\b"
_IDENTIFIER = re.compile(
    f"(?P<url>{_URL})|(?P<path>{_PATH})|(?P<hash>{_HASH})|(?P<id>{_ID})|(?P<version>{_VERSION})|(?P<number>{_NUMBER})"
)
_HARD = frozenset({"url", "path", "hash"})
_PRODUCT = re.compile(r"[A-Z][A-Za-z]*\.js")
_TRAILING = ".,;:!?*"
_HEADING = re.compile(r"#{1,4} ")


class Identifier(NamedTuple):
    kind: str
    text: str
    end: int


class Grounded(NamedTuple):
    """A text, how many identifiers were marked in it, and how many lines were taken out."""

    text: str
    marked: int
    removed: int


class Source:
    """What a summary may rest on. In a very long one only so many unknown identifiers are looked for to its end."""

    def __init__(self, messages: Iterable[Message], *texts: str) -> None:
        said = [piece for message in messages for part in message.parts for piece in _texts(part)]
        self._text = "\n".join([*said, *texts]).lower().replace("\\/", "/")
        self._plain: str | None = None
        self._searches = max(MOST_READ // max(len(self._text), 1), FEWEST_SEARCHES)

    def has(self, found: Identifier) -> bool:
        """Whether it stands in the source; beyond what may be read of a very long one, it is believed."""
        if self._searches <= 0:
            return True
        known = self._has(found)
        self._searches -= not known
        return known

    def _has(self, found: Identifier) -> bool:
        text = found.text.lower()
        if text in self._text:
            return True
        if found.kind in ("number", "version"):
            return self._has_number(text.lstrip("v"))
        return found.kind == "path" and self._has_path(text)

    def _has_number(self, text: str) -> bool:
        if self._plain is None:
            self._plain = re.sub(r"(?<=[0-9])[,_](?=[0-9]{3})", "", self._text)
        return text.replace(",", "") in self._plain

    def _has_path(self, text: str) -> bool:
        pieces = [piece for piece in re.split(r"[/*]+", text.strip("~./*")) if piece not in ("", ".", "..")]
        return bool(pieces) and all(piece in self._text for piece in pieces)


def _texts(part: object) -> tuple[str, ...]:
    if isinstance(part, Text | ToolResult):
        return (part.text,)
    return (part.name, part.arguments) if isinstance(part, ToolCall) else ()


def identifiers(line: str) -> list[Identifier]:
    """The identifiers of a line, in order."""
    found: list[Identifier] = []
    for match in _IDENTIFIER.finditer(line):
        text = match.group().rstrip(_TRAILING)
        if len(text) >= 3 and any(character.isalnum() for character in text) and not _PRODUCT.fullmatch(text):
            found.append(Identifier(match.lastgroup or "", text, match.start() + len(text)))
    return found


def _marked(line: str, unknown: list[Identifier]) -> str:
    for item in reversed(unknown):
        line = line[: item.end] + MARK + line[item.end :]
    return line


def grounded(text: str, source: Source) -> Grounded:
    """The text with what the source does not know marked or taken out."""
    lines: list[str] = []
    marked = removed = 0
    for line in text.split("\n"):
        found = [] if _HEADING.match(line) else identifiers(line)
        unknown = [item for item in found if not source.has(item)]
        if unknown and len(unknown) == len(found) and all(item.kind in _HARD for item in unknown):
            removed += 1
            continue
        marked += len(unknown)
        lines.append(_marked(line, unknown))
    return Grounded("\n".join(lines), marked, removed)
