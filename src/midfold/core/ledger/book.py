"""The ledger of a fold, written so that a person and a model can use it: one verbatim line each, with its origin.

    - (user) the port must stay 8123
    - (src/server.py) def bind(port: int) -> Socket:  # retries twice
    - ($ make test) FAILED tests/test_bind.py::test_port_in_use

Rules of this file:
1. Lines stand in the order of the conversation; an origin is told when it changes.
2. Names that the reader has anyway (in the messages that stay, or elsewhere in the summary) are not told again.
3. No line is taken from near a credential: half of one would not be recognised any more.
4. What the receipt says of it is an estimate: the names of the fold, weighted by how likely each is needed.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

from midfold.core.compaction import SummaryAsk
from midfold.core.ledger.census import LONGEST_TEXT, RESULT, Census
from midfold.core.ledger.choose import Chosen, Line, choose
from midfold.core.ledger.origins import Origins
from midfold.core.message import Message, Text, ToolCall, ToolResult, Transcript

_HEADING = re.compile(r"^#", re.MULTILINE)
SCANNED = 300_000
"""Characters that are read at most, more or less."""
HARDLY_SHORTER = 120
"""Characters; no text is shortened that is only so much longer than what would be left of it."""
ROOMS = (LONGEST_TEXT, 20_000, 8_000, 4_000, 2_000, 1_000, 600, 300, 150)


class Book(NamedTuple):
    """Lines of a ledger, and how much of what the fold says a reader now has."""

    text: str = ""
    tokens: int = 0
    kept: int = 0
    """Names of the fold that are in the summary or in messages that stay."""
    recoverable: int = 0
    """Names that are only behind the fold's handle."""
    estimate: float = 1.0
    """The share of names likely to be needed that is kept, each weighted by how likely."""


def ledger(ask: SummaryAsk, budget: int, told: Sequence[str] = (), scanned: int = SCANNED) -> Book:
    """Lines for about `budget` tokens; `told` is what the rest of the summary says."""
    earlier = (Message("assistant", (Text(ask.previous),)),) if ask.previous else ()
    messages = (*ask.before, *earlier, *ask.messages, *ask.after)
    census = Census(messages, room_for(messages, scanned))
    start = len(ask.before)
    fold = range(start, start + len(earlier) + len(ask.messages))
    stays = [_seen(who, text, ask) for at, texts in enumerate(census.texts) if at not in fold for who, text in texts]
    origins = Origins(ask, start + len(earlier))
    chosen = choose(census, budget, [*stays, *told], ask.redact, origins.of)
    text = _written(chosen.lines, origins)
    return _book(text, chosen, census, fold)


def _seen(who: int, text: str, ask: SummaryAsk) -> str:
    """What a reader sees of a text that stays."""
    if who == RESULT:
        return text if len(text) <= 3 * ask.shown_results else seen_of(text, ask.shown_results)
    return seen_of(text, ask.shown_texts)


def seen_of(text: str, shown: int) -> str:
    """All of a text, or its ends where it is long and may be shortened."""
    return text if not shown or len(text) <= 2 * shown + HARDLY_SHORTER else f"{text[:shown]}\n{text[-shown:]}"


def room_for(messages: Transcript, scanned: int = SCANNED) -> int:
    """How much of each text is read, so that all of them together are not too much."""
    lengths = sorted(
        len(part.arguments) if isinstance(part, ToolCall) else len(part.text)
        for message in messages
        for part in message.parts
        if isinstance(part, Text | ToolResult | ToolCall)
    )
    before = list(accumulate(lengths, initial=0))
    for room in ROOMS:
        short = bisect_right(lengths, room)
        if before[-1] <= scanned or before[short] + room * (len(lengths) - short) <= scanned:
            return room
    return ROOMS[-1]


def _written(lines: list[Line], origins: Origins) -> str:
    """Lines by their origin, those of one origin in the order of the conversation."""
    groups: dict[str, list[str]] = {}
    for line in lines:
        groups.setdefault(origins.of(line.message, line.part), []).append(line.text)
    return "\n\n".join(_group(origin, texts) for origin, texts in groups.items())


def _group(origin: str, texts: list[str]) -> str:
    label = "" if not origin or origin in texts[0] else f"({origin}) "
    return _HEADING.sub(" #", label + "\n".join(texts))


def _book(text: str, chosen: Chosen, census: Census, fold: range) -> Book:
    worths, covered = chosen.worths, chosen.covered
    start, stop = fold.start, fold.stop
    inside = [
        name
        for name, entry in census.entries.items()
        if start <= entry.places[-1][0] < stop or any(start <= message < stop for message, _ in entry.places)
    ]
    kept = sum(name in covered for name in inside)
    total = sum(worths[name] for name in inside)
    share = sum(worths[name] for name in inside if name in covered) / total if total else 1.0
    return Book(text, chosen.tokens, kept, len(inside) - kept, round(share, 3))
