"""Find names in text: project-specific identifiers, and the probability that a later turn needs each.

A name has a shape that prose does not have: a slash, an underscore, a digit among letters, an inner dot or hyphen, a
capital in the middle, a `#` before a number, or it is a long number. One linear pattern splits text into chunks; each
chunk is classified once and cached.

The probability is a logistic model whose constants `python -m bench.fit_ledger` fits to what followed in half of the
shared conversations. Summaries select by it; the benchmark that scores them defines names independently.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from functools import lru_cache
from math import exp, log1p
from typing import NamedTuple

import msgspec

from midfold.transcript import jsonio
from midfold.transcript.message import Message, Text, ToolCall, ToolResult

# Prose words, which explain a name.

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
MAX_ROW_NUMBERS = 8


def binds(text: str) -> bool:
    """Return whether a text explains the names in it."""
    seen = ""
    for match in _WORD.finditer(text):
        word = match.group().lower()
        if word not in STOP and word != seen:
            if seen:
                return True
            seen = word
    return (":" in text and _LABEL.search(text) is not None) or _is_row(text)


def _is_row(text: str) -> bool:
    """Return whether a text consists of numbers and the path they belong to."""
    *figures, path = text.split() or [""]
    return 0 < len(figures) <= MAX_ROW_NUMBERS and bool(_PATH.fullmatch(path)) and all(map(_FIGURE.fullmatch, figures))


class Shape(IntEnum):
    """Lexical shapes of a name."""

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
    words: tuple[str, ...]
    """Subwords in lower case."""


MIN_NAME_CHARS = 4
_RUN = "(?<![A-Za-z0-9_~/@.+-])[A-Z]?[a-z]*+(?:[A-Z0-9_~/@.+-][A-Za-z0-9_~/@.+-]{1,200}+"
CHUNK = re.compile(rf"#[0-9]{{1,7}}+(?!\w)|{_RUN}|://[^\s\"'`<>()\[\]{{}}\\,;|]{{3,300}}+)", re.ASCII)
"""A run of name characters with at least one that prose words lack after their first letter; or an issue number."""
_PLAIN_CHUNK = re.compile(f"{_RUN})")
"""The same without issue numbers and URLs: a third faster."""
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
"""A file followed by a line number, as search tools print context lines."""


_DEFINES = re.compile(r"[A-Z](?<!\w[A-Z])[A-Z0-9]*_[A-Z0-9_]+\b[^=:]{0,30}[=:]\s*[\"'`0-9]")
"""A constant and the beginning of its value, in any language."""
_VALUED = re.compile(
    r"([A-Z](?<!\w[A-Z])[A-Z0-9]*_[A-Z0-9_]+)(?:: ?\w{1,20})? ?= ?"
    r"(\"[^\"`\n]{1,60}\"|'[^'`\n]{1,60}'|-?[0-9][\w.]{0,20})(?=[;,)`\s]|$)"
)
"""A constant and its complete value."""
_ANY_CONSTANT = re.compile(r"_[A-Z0-9_]{0,60}+(?:: ?\w{1,20})? ?= ?[\"'0-9-]")
"""Cheap prefilter for `_VALUED`: ten times faster."""


def defines_constant(line: str) -> bool:
    """Return whether a line assigns a value to a constant, even if the value is incomplete."""
    return "_" in line and _DEFINES.search(line) is not None


def constants(text: str) -> dict[str, str]:
    """Return the constants that a text assigns, each with its last value."""
    return dict(_VALUED.findall(text)) if _ANY_CONSTANT.search(text) else {}


def names(text: str) -> Iterator[tuple[str, int]]:
    """Yield every name in a text with the offset of its chunk."""
    for match in CHUNK.finditer(text):
        name = classify_name(match.group())
        if name is not None:
            yield name.text, match.start()


@lru_cache(maxsize=1 << 15)
def classify_name(chunk: str) -> Name | None:
    """Return the name in a chunk of text without surrounding punctuation, or None for prose."""
    if chunk.startswith("http") and "://" in chunk:
        return _name(chunk.rstrip(".:!?*_~/"), Shape.URL)
    if chunk.startswith("#"):
        return _name(chunk, Shape.NUMBER)
    text = chunk.rstrip(".-+/@~")
    if not text.startswith("--"):
        text = text.lstrip("+-@")
    if "-" in text and (numbered := _NUMBERED.match(text)):
        text = numbered.group(1)
    if len(text) < MIN_NAME_CHARS:
        return None
    shape = _shape(text)
    return None if shape is None else _name(text, shape)


def _name(text: str, shape: Shape) -> Name:
    return Name(text, shape, tuple(subwords(text)))


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
    """Yield the name and its suffixes: `/repo/src/a.py` also yields `src/a.py` and `a.py`."""
    yield name
    for mark in "/.":
        rest = name
        while mark in rest:
            rest = rest.partition(mark)[2]
            if len(rest) >= MIN_NAME_CHARS:
                yield rest


# Counts of each name by speaker and position, the inputs of `worth`.


USER, SAID, CALLED, RESULT = range(4)
"""Speakers: a user, the assistant, the assistant in call arguments, a tool."""
LONGEST_TEXT = 200_000
MAX_PARTIAL_LINE_CHARS = 200
"""Maximum characters of a partial line dropped at a cut."""
_SUBWORD = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}|[0-9]+")


class NameCounts(msgspec.Struct, eq=False, gc=False):
    """Counts of one name."""

    text: str
    shape: Shape
    words: tuple[str, ...]
    messages: int = 0
    last: int = -1
    assistant: int = -1
    by_user: int = 0
    by_assistant: int = 0
    in_calls: int = 0
    in_results: int = 0

    @property
    def counts(self) -> tuple[int, int, int, int]:
        """Return the number of texts with the name, by speaker."""
        return self.by_user, self.by_assistant, self.in_calls, self.in_results


class IdentifierCounts(dict[str, NameCounts | None]):
    """Counts of all names in a conversation, keyed by chunk of text; None for prose."""

    def __init__(self) -> None:
        self.entries: dict[str, NameCounts] = {}

    def __missing__(self, chunk: str) -> NameCounts | None:
        name = classify_name(chunk)
        entry = None if name is None else self.entries.get(name.text)
        if name is not None and entry is None:
            entry = self.entries[name.text] = NameCounts(*name)
        self[chunk] = entry
        return entry

    def find(self, text: str) -> tuple[NameCounts, ...]:
        """Return the names in a text, in order."""
        pattern = CHUNK if "#" in text or "://" in text else _PLAIN_CHUNK
        chunks = pattern.findall(text)
        if len(chunks) > 1:
            return tuple(filter(None, map(self.__getitem__, dict.fromkeys(chunks))))
        entry = self[chunks[0]] if chunks else None
        return () if entry is None else (entry,)

    def count(self, entries: set[NameCounts], index: int, who: int) -> None:
        """Count these names for one text of a message."""
        for entry in entries:
            if entry.last != index:
                entry.last = index
                entry.messages += 1
            if who == RESULT:
                entry.in_results += 1
            elif who == USER:
                entry.by_user += 1
            else:
                entry.assistant = index
                if who == SAID:
                    entry.by_assistant += 1
                else:
                    entry.in_calls += 1


INTERCEPT = -3.19
SINCE_LAST = -0.25
"""Fitted: -0.40. Lower, because the newest names are in the tail, which the summary need not repeat; the same number of
names is kept in total, and more of the old ones.
"""
NEVER_BY_ASSISTANT = -1.21
MORE_MESSAGES = -0.18
BY_COUNT = (0.14, 0.67, 0.65, 0.22)
"""Weights by speaker: a user, the assistant, the assistant in a call, a tool."""
BY_USER = 0.54
IN_RESULT = -1.07
TOPICAL = 0.38
LENGTH = 0.59
REPEATED = 0.71
BY_SHAPE = {
    Shape.PATH: 0.16,
    Shape.URL: -0.29,
    Shape.NUMBER: 0.77,
    Shape.HASH: -0.10,
    Shape.SNAKE: -0.45,
    Shape.CAMEL: 0.27,
    Shape.DOTTED: -0.16,
    Shape.KEBAB: -0.30,
    Shape.CONSTANT: 0.24,
    Shape.FLAG: -0.14,
    Shape.MIXED: -0.06,
    Shape.VERSION: -0.17,
}


def worth(entry: NameCounts, length: int, recent: frozenset[str]) -> float:
    """Return the probability that a name is needed later.

    `length` is the number of messages, `recent` the subwords of the newest ones.
    """
    score = INTERCEPT + BY_SHAPE[entry.shape] + SINCE_LAST * log1p(length - entry.last)
    score += LENGTH * log1p(len(entry.text))
    if entry.by_user:
        score += BY_COUNT[USER] * log1p(entry.by_user)
    if entry.by_assistant:
        score += BY_COUNT[SAID] * log1p(entry.by_assistant)
    if entry.in_calls:
        score += BY_COUNT[CALLED] * log1p(entry.in_calls)
    if entry.in_results:
        score += BY_COUNT[RESULT] * log1p(entry.in_results)
    if entry.assistant < 0:
        score += NEVER_BY_ASSISTANT
    if entry.messages > 1:
        score += REPEATED + MORE_MESSAGES * log1p(entry.messages - 1)
    if entry.by_user:
        score += BY_USER
    if entry.in_results:
        score += IN_RESULT
    if recent.issuperset(entry.words):
        score += TOPICAL
    return 1.0 / (1.0 + exp(-score))


def subwords(text: str) -> Iterator[str]:
    """Yield the subwords of a name, in lower case."""
    return map(str.lower, _SUBWORD.findall(text))


def readable(message: Message, max_chars: int) -> Iterator[tuple[int, str]]:
    """Yield the texts of a message with their speakers, each truncated to about `max_chars` characters."""
    for part in message.parts:
        if isinstance(part, Text):
            who = USER if message.role == "user" else SAID if message.role == "assistant" else RESULT
            yield who, _ends(part.text, max_chars)
        elif isinstance(part, ToolCall):
            yield CALLED, _ends(arguments_text(part.arguments), max_chars)
        elif isinstance(part, ToolResult):
            yield RESULT, _ends(part.text, max_chars)


def arguments_text(arguments: str) -> str:
    """Return call arguments as readable text: one value per line, with real line breaks."""
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


def _ends(text: str, max_chars: int) -> str:
    if len(text) <= max_chars:
        return text
    head, tail = text[: max_chars * 2 // 3], text[len(text) - max_chars // 3 :]
    last, first = (
        head.rfind("\n", max(len(head) - MAX_PARTIAL_LINE_CHARS, 0)),
        tail.find("\n", 0, MAX_PARTIAL_LINE_CHARS),
    )
    return f"{head[:last] if last >= 0 else head}\n{tail[first + 1 :]}"
