"""Facts: identifiers with meaning, found in text.

Rules of this file:
1. A fact is a path, URL, hash, id, number of four or more digits, version, date, constant, flag, or a snake_case,
   camelCase, dotted or kebab name. Words of prose are not facts.
2. This is what compactions are judged by. No compactor may import it, and it imports nothing a compactor selects by.
3. A text is cut into chunks by one linear pattern; a chunk is judged on its own, once. An escaped line break in code
   (`"\\nDone"`) is no part of the name after it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Final, Literal

Kind = Literal["url", "path", "hash", "id", "number", "version", "date", "constant", "name", "flag"]

HARD: Final = frozenset({"url", "path", "hash", "id", "number"})
"""What nobody can guess or derive."""
SHORTEST, LONGEST = 4, 300
CHUNKS_REMEMBERED = 1 << 17

_CHUNK = re.compile(r"\\[A-Za-z]|https?://[^\s\"'`<>()\[\]{}\\,;|]++|[\w~/@.+\-]++")
_FILE_ENDINGS = (
    "bash bat c cc cfg cjs conf cpp cs css csv db diff env ex exs gif go gradle h hpp html ini ipynb java jpg js json"
    " jsonl jsx kt less lock log lua m md mdx mjs mod patch pdf php pl png proto ps1 py pyi pyx rb rs rst scala scss sh"
    " sql sqlite sum svelte svg swift tar tf tmpl toml ts tsv tsx txt vue whl xml yaml yml zip zsh"
)
_FILE = re.compile(r"\.?[\w@+-]+(?:\.[\w-]+)*\.(?:" + "|".join(_FILE_ENDINGS.split()) + ")")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HASH = re.compile(r"(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,64}")
_TICKET = re.compile(r"[A-Z][A-Z0-9]+-\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_VERSION = re.compile(r"v\d+(?:\.\d+)+(?:[-+]?[a-z]\w*)?|\d+(?:\.\d+){2,}(?:[-+.]?[a-z]\w*)?")
_NUMBER = re.compile(r"\d{4,}")
_FLAG = re.compile(r"--[A-Za-z][\w-]*[A-Za-z0-9]")
_PATH = re.compile(r"(?:~|\.{1,2})?/?[\w.@+-]+(?:/[\w.@+-]+)*")
_CONSTANT = re.compile(r"_*[A-Z][A-Z0-9]*(?:_+[A-Z0-9]+)+_*")
_SNAKE = re.compile(r"(?=\w++\Z)(?:\w*[A-Za-z0-9]_++[A-Za-z0-9]\w*|_++[A-Za-z]\w{2,})")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_KEBAB = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)+")
_MIXED = re.compile(r"(?=[A-Za-z]*\d[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{6,}")
_CAMEL = re.compile(r"(?=[A-Z]*[a-z0-9]+[A-Z])[A-Za-z][A-Za-z0-9]*")


def facts_in(text: str) -> Iterator[tuple[str, Kind]]:
    """Every fact of a text, in order, as often as it is written."""
    for match in _CHUNK.finditer(text):
        chunk = match.group()
        if SHORTEST <= len(chunk) <= LONGEST and (found := _judged(chunk)) is not None:
            yield found


@lru_cache(maxsize=CHUNKS_REMEMBERED)
def _judged(chunk: str) -> tuple[str, Kind] | None:
    fact = _bare(chunk)
    if len(fact) < SHORTEST:
        return None
    kind = _kind(fact)
    return None if kind is None else (fact, kind)


def _bare(chunk: str) -> str:
    """Without the punctuation of the sentence, list or diff around it."""
    if chunk.startswith("http"):
        return chunk.rstrip(".:!?*_~")
    fact = chunk.rstrip(".-+/@~")
    if not fact.startswith("--") or fact.startswith("---"):
        fact = fact.lstrip("+-@")
    if fact.startswith(".") and not fact.startswith(("./", "../")):
        fact = fact.lstrip(".") if fact.startswith("..") else fact
    return fact


def _kind(fact: str) -> Kind | None:
    if fact.startswith(("http://", "https://")):
        return "url" if len(fact) > len("https://a.b") else None
    if fact[0] == "-":
        return "flag" if _FLAG.fullmatch(fact) else None
    if "/" in fact:
        return "path" if _is_path(fact) else None
    if _FILE.fullmatch(fact):
        return "path"
    if fact[0].isdigit():
        return _numeric(fact)
    if _UUID.fullmatch(fact) or _TICKET.fullmatch(fact):
        return "id"
    if _HASH.fullmatch(fact):
        return "hash"
    return _named(fact)


def _numeric(fact: str) -> Kind | None:
    if _NUMBER.fullmatch(fact):
        return "number"
    if _DATE.fullmatch(fact):
        return "date"
    if _VERSION.fullmatch(fact):
        return "version"
    if _UUID.fullmatch(fact):
        return "id"
    if _HASH.fullmatch(fact):
        return "hash"
    if _MIXED.fullmatch(fact):
        return "id"
    return "name" if "_" in fact and _SNAKE.fullmatch(fact) else None


def _named(fact: str) -> Kind | None:
    if "_" in fact:
        if _CONSTANT.fullmatch(fact):
            return "constant"
        if _SNAKE.fullmatch(fact):
            return "id" if sum(map(str.isdigit, fact)) >= 6 else "name"
    if _VERSION.fullmatch(fact):
        return "version"
    if "." in fact:
        return "name" if _DOTTED.fullmatch(fact) else None
    if "-" in fact:
        return "name" if _KEBAB.fullmatch(fact) else None
    if _MIXED.fullmatch(fact):
        return "id"
    return "name" if _CAMEL.fullmatch(fact) else None


def _is_path(fact: str) -> bool:
    """`and/or` and `3/4` are no paths: it needs a root, two slashes, or a segment no word looks like."""
    if not _PATH.fullmatch(fact) or not any(map(str.isalpha, fact)):
        return False
    if fact.startswith(("/", "~", "./", "../")) or fact.count("/") >= 2:
        return True
    return any(mark in fact for mark in "._-@") or bool(re.search(r"[A-Za-z]\d|\d[A-Za-z]", fact))


def places(text: str, fact: str) -> Iterator[int]:
    """Where a fact stands in a text, not as a piece of a longer word."""
    at = text.find(fact)
    while at >= 0:
        end = at + len(fact)
        escaped = text[max(at - 2, 0) : at - 1] == "\\"
        if (escaped or not _wordy(text[at - 1 : at])) and not _wordy(text[end : end + 1]):
            yield at
            at = text.find(fact, end)
        else:
            at = text.find(fact, at + 1)


def _wordy(character: str) -> bool:
    return character.isalnum() or character == "_"
