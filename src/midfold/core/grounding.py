"""Whether a summary says only what its source says: identifiers that stand nowhere in the source are marked.

Rules of this file:
1. An identifier is a URL, a path, a hash, an id, a version or a number of four digits or more. Words are not checked.
2. Spelling may differ where it often does: case, thousands separators, a path written from its root or from below it,
   or with stars in it.
3. A path may be joined from a place and what stands below it, but not from pieces of paths that lead elsewhere.
4. A line that rests on nothing but unknown addresses, paths or ids is taken out; elsewhere the identifier is marked.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from midfold.core.message import Message, Text, ToolCall, ToolResult

MARK = " [unverified]"
MOST_READ, FEWEST_SEARCHES = 120_000_000, 20
NEAR, MOST_OCCURRENCES = 1_000, 64
"""Characters between a folder and a name that was seen in it, and how often the name is looked at."""
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
_IN_PATH = frozenset(bytes([code]) for code in b"abcdefghijklmnopqrstuvwxyz0123456789_-./@+")
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
        said = [_bytes(piece) for message in messages for part in message.parts for piece in _texts(part)]
        self._text = b"\n".join([*said, *map(_bytes, texts)]).lower().replace(b"\\/", b"/")
        self._searches = max(MOST_READ // max(len(self._text), 1), FEWEST_SEARCHES)
        self._known: dict[bytes, bool] = {}

    def has(self, found: Identifier) -> bool:
        """Whether it stands in the source; beyond what may be read of a very long one, it is believed."""
        if self._searches <= 0:
            return True
        text = _bytes(found.text).lower()
        if found.kind == "path":
            return self._has_path(text)
        if found.kind in ("number", "version"):
            return any(map(self._stands, _spellings(text.lstrip(b"v"))))
        return self._stands(text)

    def _has_path(self, text: bytes) -> bool:
        pieces = [piece for piece in re.split(rb"[/*]+", text.strip(b"~./*")) if piece not in (b"", b".", b"..")]
        if not pieces or not self._stands(pieces[-1]):
            return False
        if b"*" not in text and self._stands(b"/".join(pieces)):
            return True
        if b"*" in text or (text[:1].isalnum() and not any(b"." in piece for piece in pieces)):
            return all(map(self._stands, pieces))
        return len(pieces) == 1 or self._is_joined(pieces)

    def _is_joined(self, pieces: list[bytes]) -> bool:
        """Whether it is a place and a path below that place, told apart; a name alone must stand near its place."""
        for cut in range(1, len(pieces)):
            head, tail = b"/".join(pieces[:cut]), b"/".join(pieces[cut:])
            reach = NEAR if cut == len(pieces) - 1 else 0
            if self._stands(head) and self._stands(tail) and self._stands_alone(tail, head, reach):
                return True
        return False

    def _stands(self, piece: bytes) -> bool:
        known = self._known.get(piece)
        if known is None:
            known = self._known[piece] = piece in self._text
            self._searches -= not known
        return known

    def _stands_alone(self, tail: bytes, head: bytes, reach: int) -> bool:
        """Whether a path stands somewhere without another place before it; with a reach, near its own place."""
        at = len(self._text)
        for _ in range(MOST_OCCURRENCES):
            at = self._text.rfind(tail, 0, at)
            if at < 0:
                return False
            before = self._text[max(at - 2, 0) : at]
            is_alone = before == b"./" or before[-1:] not in _IN_PATH
            if is_alone and (not reach or head in self._text[max(at - reach, 0) : at + reach]):
                return True
        return False


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogatepass")


def _spellings(number: bytes) -> Iterator[bytes]:
    """A number as it may be written: plain, and with a comma or an underscore before each thousand."""
    plain = number.replace(b",", b"")
    yield plain
    if plain.isdigit() and len(plain) > 3:
        grouped = f"{int(plain):,}".encode()
        yield grouped
        yield grouped.replace(b",", b"_")


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
