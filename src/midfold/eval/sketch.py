"""The first sketch of keeping by snippet: short verbatim lines that hold identifiers, beside head and tail.

Rules of this file:
1. What is a name is decided here, by one pattern of its own: nothing is chosen by what the measure is judged by.
2. A snippet is a piece of one line, verbatim, of at most `WIDTH` characters on either side of the name.
3. Names that calls, people and answers use are worth more than names that only results print.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from math import log
from typing import NamedTuple

from midfold.eval.baselines import head_tail
from midfold.eval.sizes import note, size
from midfold.eval.texts import text_of
from midfold.transcript.message import Transcript

SNIPPET_SHARE = 0.4
WIDTH = 70
_WORTH = {"user": 2.0, "assistant": 1.5, "tool": 0.0}
_NAME = re.compile(r"(?<![\w/.-])(?=[\w/.~-]{0,80}?(?:[_/\d]|[a-z][A-Z]|\w[.-]\w))[\w/~.-]{4,120}+")


class Name(NamedTuple):
    """A name and its best snippet."""

    name: str
    worth: float
    place: int
    snippet: str


def snippets(past: Transcript, target: int) -> Transcript:
    """Verbatim snippets around names with 40 % of the budget; head and tail with the rest."""
    ends = head_tail(past, target - int(target * SNIPPET_SHARE))
    room = target - sum(map(size, ends))
    kept = "\n".join(map(text_of, ends))
    chosen: list[Name] = []
    covered: set[str] = set()
    for found in ranked(past):
        if room <= 0:
            break
        if found.name in covered or found.name in kept:
            continue
        cost = size(note(found.snippet)) - size(note(""))
        if cost <= room:
            chosen.append(found)
            covered.update(names_in(found.snippet))
            room -= cost + 1
    lines = "\n".join(found.snippet for found in sorted(chosen, key=lambda found: found.place))
    return _placed(ends, lines, target)


def _placed(ends: Transcript, lines: str, target: int) -> Transcript:
    """The note between head and tail, shortened until the budget holds."""
    room = target - sum(map(size, ends))
    while lines and size(note(lines)) > room:
        lines = lines[: len(lines) * 19 // 20].rpartition("\n")[0]
    return (*ends[:1], note(lines), *ends[1:]) if lines else ends


@lru_cache(maxsize=2)
def ranked(past: Transcript) -> tuple[Name, ...]:
    """Names by how often, how lately and by whom they were written."""
    count: dict[str, int] = {}
    worth: dict[str, float] = {}
    best: dict[str, tuple[float, int, str]] = {}
    for place, message in enumerate(past):
        text = text_of(message)
        role = _WORTH.get(message.role, 0.0)
        for name, at in dict(_named(text)).items():
            count[name] = count.get(name, 0) + 1
            worth[name] = max(worth.get(name, 0.0), role)
            if name not in best or role >= best[name][0]:
                best[name] = (role, place, _around(text, at, len(name)))
    length = max(len(past), 1)
    found = [
        Name(name, worth[name] + log(1 + count[name]) + best[name][1] / length, best[name][1], best[name][2])
        for name in count
    ]
    return tuple(sorted(found, key=lambda item: (-item.worth, item.place, item.name)))


def names_in(text: str) -> Iterator[str]:
    for name, _ in _named(text):
        yield name


def _named(text: str) -> Iterator[tuple[str, int]]:
    for match in _NAME.finditer(text):
        yield match.group().rstrip(".-"), match.start()


def _around(text: str, at: int, length: int) -> str:
    start = max(text.rfind("\n", 0, at) + 1, at - WIDTH)
    stop = text.find("\n", at)
    end = min(len(text) if stop < 0 else stop, at + length + WIDTH)
    return text[start:end].strip()
