"""Lines around names: verbatim, short, with the words that say what the names are.

Rules of this file:
1. A snippet is one contiguous piece of one text: the line of the name, or a window of it where the line is long. Where
   a line was cut stands an ellipsis: nobody must take it for the whole.
2. Where the line does not tell what the name is, the nearest lines before or after it come along, as far as `REACH`.
3. Nothing else is rewritten but the space around a line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from typing import NamedTuple

from midfold.fold.hostile import is_suspicious
from midfold.transcript import jsonio
from midfold.transcript.message import Message, Text, ToolCall, ToolResult, Transcript

# Words of prose: what says what a name is.
#
# A content word is three or more letters, no piece of a name, no function word of English, no keyword of the usual
# programming languages. Two of them near a name, or a label before it, tell a reader what the name is about. So does
# the path behind a row of figures, as `wc`, `du` and `sha256sum` print it.


_ENGLISH = (
    "the and for are but not you all any can had her was one our out has him his how its may new now old see two way "
    "who did get let put say she too use that this with have from they will would there their what about which when "
    "make like time just know take into your some could them than then other only over also after these most where "
    "been more very were being does such each here both between through during before because while against same own "
    "those should ours theirs yours mine itself themselves himself herself myself yourself again further once under "
    "until above below down off why per via within without upon among else yes"
)
_CODE = (
    "def class return import async await const var function public private static void int str bool float true false "
    "none null undefined self try except finally raise throw catch elif switch case break continue pass lambda yield "
    "assert global nonlocal del print fmt err nil func type struct interface package string byte error map range chan "
    "select defer impl mod pub mut match trait enum extends implements super export default module require console "
    "log echo done esac"
)
STOP = frozenset(f"{_ENGLISH} {_CODE}".split())
_WORD = re.compile(r"(?<![\w./\\@#$%&=~-])[A-Za-z][a-z]{2,40}(?![\w/\\(]|[.@=-]\w)")
_LABEL = re.compile(r"(?<![\w./-])[A-Za-z][\w-]{2,40}[\"'`*]{0,3}:(?=[\s\"'`\[({*])")
_FIGURE = re.compile(r"(?=[a-f]*+[0-9])[0-9a-f][\w.,%-]{0,80}+")
_PATH = re.compile(r"\*?[\w.@~-]*+/[\w./@~+-]++")
MOST_FIGURES = 8


def binds(text: str) -> bool:
    """Whether a text says what the names in it are."""
    seen = ""
    for match in _WORD.finditer(text):
        word = match.group().lower()
        if word not in STOP and word != seen:
            if seen:
                return True
            seen = word
    return _LABEL.search(text) is not None or _is_row(text)


def _is_row(text: str) -> bool:
    """Whether a text is nothing but figures and the path they are of."""
    *figures, path = text.split() or [""]
    return 0 < len(figures) <= MOST_FIGURES and bool(_PATH.fullmatch(path)) and all(map(_FIGURE.fullmatch, figures))


LONGEST_LINE = 150
GOES_ON = "…"
"""Not counted when lines are weighed: a mark must not decide which of two is kept."""
MARGIN, WIDE_MARGIN, NARROW_MARGIN = 45, 110, 30
LONG_ENOUGH = 60
"""Characters; shorter pieces have no narrower one."""
REACH = 130
NEAR = 500
"""Characters on either side of a name in which an order stands that the name is part of."""


class Snippet(NamedTuple):
    """A piece of a text, and whether it says what the names in it are."""

    text: str
    bound: bool


def snippet(text: str, at: int, length: int) -> Snippet:
    """The piece of `text` around a name of `length` characters that begins at `at`."""
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
    """Whether a piece of a text, or the line that it was cut from, may be taken for an order."""
    is_cut = GOES_ON in (piece[:1], piece[-1:])
    return is_suspicious(piece) or (is_cut and is_suspicious(_line_at(text, at)))


def _line_at(text: str, at: int) -> str:
    """The line in which a place stands, as far as it is near."""
    start = max(text.rfind("\n", 0, at) + 1, at - NEAR)
    end = text.find("\n", at, at + NEAR)
    return text[start : at + NEAR if end < 0 else end]


def narrow(text: str, at: int, length: int, than: int) -> str:
    """The words right beside a name, where that is clearly shorter and still says what the name is; else nothing."""
    if than <= LONG_ENOUGH:
        return ""
    start = text.rfind("\n", 0, at) + 1
    end = text.find("\n", at + length)
    end = len(text) if end < 0 else end
    piece = _around(text, start, end, at, length, NARROW_MARGIN)
    return piece if len(piece) < than and binds(piece) else ""


def _window(text: str, start: int, end: int, at: int, length: int) -> Snippet:
    for margin in (MARGIN, WIDE_MARGIN):
        piece = _around(text, start, end, at, length, margin)
        if binds(piece):
            return Snippet(piece, True)
    return Snippet(piece, False)


def _around(text: str, start: int, end: int, at: int, length: int, margin: int) -> str:
    """The words of a line that are not farther than `margin` from a name."""
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
    """The line and the nearest ones before it, or after it, until there are words enough."""
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
    """Lines without the space around them, empty ones left out."""
    return "\n".join(line for raw in text.split("\n") if (line := raw.strip()))


# Names in text: words that mean one thing in this project and that nobody can guess.
#
# Rules:
# 1. A name has a shape that prose does not have: a slash, an underscore, a digit among letters, an inner dot or
#    hyphen, a capital in the middle, or it is a long number.
# 2. Text is cut into chunks by one linear pattern; each chunk is judged once and remembered.
# 3. What is judged here is what the ledger selects by. The measure that judges the ledger has a definition of its own.


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


# Who said which name, how often, and when last: the counts that a name's worth is made of.
#
# Rules:
# 1. One pass; a text is cut into chunks once, and each chunk that was seen before costs one look-up.
# 2. Very long folds are read by the beginning and the end of each text.


USER, SAID, CALLED, RESULT = range(4)
"""Who speaks: a user, the assistant, the assistant in the arguments of a call, a tool."""
PLACES_KEPT = 3
RECENT = 12
"""Messages at the end whose words tell what the conversation is about now."""
RECENT_CHARACTERS = 4_000
LONGEST_TEXT = 200_000
LONGEST_CUT = 200
"""Characters of half a line that are left out where a text is cut."""
_SUBWORD = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}|[0-9]+")


class NameCounts:
    """What is known about one name."""

    __slots__ = ("assistant", "counts", "last", "messages", "places", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.messages = 0
        self.last = -1
        self.assistant = -1
        self.counts = [0, 0, 0, 0]
        self.places: list[tuple[int, int]] = []
        """The newest texts that have it: the message, and which of its texts."""


class Census:
    """The names of a conversation."""

    def __init__(self, messages: Transcript, room: int = LONGEST_TEXT) -> None:
        self.length = len(messages)
        self.entries: dict[str, NameCounts] = {}
        self._known: dict[str, NameCounts | None] = {}
        self.texts: list[list[tuple[int, str]]] = []
        recent: set[str] = set()
        for index, message in enumerate(messages):
            texts = [] if message.role == "system" else list(readable(message, room))
            self.texts.append(texts)
            for number, (who, text) in enumerate(texts):
                self._count(index, number, who, text)
                if index >= self.length - RECENT:
                    recent.update(subwords(text[: RECENT_CHARACTERS // 2] + text[-RECENT_CHARACTERS // 2 :]))
        self.recent = frozenset(recent)
        del self._known

    def _count(self, index: int, number: int, who: int, text: str) -> None:
        known = self._known
        by_assistant = who in (SAID, CALLED)
        place = (index, number)
        for chunk in dict.fromkeys(CHUNK.findall(text)):
            entry = known[chunk] if chunk in known else self._entry(chunk)
            if entry is None:
                continue
            if entry.last != index:
                entry.last = index
                entry.messages += 1
            entry.counts[who] += 1
            if by_assistant:
                entry.assistant = index
            places = entry.places
            places.append(place)
            if len(places) > PLACES_KEPT:
                del places[0]

    def _entry(self, chunk: str) -> NameCounts | None:
        name = judged(chunk)
        entry = None if name is None else self.entries.get(name.text)
        if name is not None and entry is None:
            entry = self.entries[name.text] = NameCounts(name.shape)
        self._known[chunk] = entry
        return entry


def subwords(text: str) -> Iterator[str]:
    """The words that names are made of, in lower case."""
    return (word.lower() for word in _SUBWORD.findall(text))


def readable(message: Message, room: int) -> Iterator[tuple[int, str]]:
    """The texts of a message, and who speaks in each."""
    for part in message.parts:
        if isinstance(part, Text):
            who = USER if message.role == "user" else SAID if message.role == "assistant" else RESULT
            yield who, _ends(part.text, room)
        elif isinstance(part, ToolCall):
            yield CALLED, _ends(told_arguments(part.arguments), room)
        elif isinstance(part, ToolResult):
            yield RESULT, _ends(part.text, room)


def told_arguments(arguments: str) -> str:
    """The arguments of a call as people read them: a line for each value, with real line breaks."""
    try:
        value = jsonio.decode(arguments) if len(arguments) <= LONGEST_TEXT else None
    except jsonio.NotJSON:
        value = None
    if not isinstance(value, dict):
        return arguments
    return "\n".join(f"{key}: {_plain(item)}" for key, item in value.items())


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    return jsonio.encode(value).decode("utf-8", "replace").replace("\\n", "\n")


def _ends(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    head, tail = text[: room * 2 // 3], text[len(text) - room // 3 :]
    last, first = head.rfind("\n", max(len(head) - LONGEST_CUT, 0)), tail.find("\n", 0, LONGEST_CUT)
    return f"{head[:last] if last >= 0 else head}\n{tail[first + 1 :]}"
