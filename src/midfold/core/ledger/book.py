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
from collections.abc import Sequence
from typing import NamedTuple

from midfold.core import jsonio
from midfold.core.compaction import SummaryAsk
from midfold.core.ledger.census import LONGEST_TEXT, RESULT, Census
from midfold.core.ledger.choose import Chosen, Line, choose
from midfold.core.message import Message, Text, ToolCall, ToolResult, Transcript
from midfold.core.pairing import Pairing, Place, pair

SCANNED = 300_000
"""Characters that are read at most, more or less."""
ROOMS = (LONGEST_TEXT, 20_000, 8_000, 4_000, 2_000, 1_000, 600, 300, 150)
ORIGIN_KEYS = ("file_path", "path", "filename", "notebook_path", "command", "cmd", "url", "pattern", "query")
PATH_KEYS = frozenset(ORIGIN_KEYS[:4])
LONGEST_ORIGIN = 28
_BULLETS = re.compile(r"^(?:- )+")
"""A line of an earlier ledger has its dash already."""


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
    chosen = choose(census, budget, [*stays, *told], ask.redact)
    text = _written(chosen.lines, _Origins(ask, start + len(earlier)))
    return _book(text, chosen, census, fold)


def _seen(who: int, text: str, ask: SummaryAsk) -> str:
    """What a reader sees of a text that stays: all of it, or its ends where it is long and may be spilled."""
    shown = ask.shown_results if who == RESULT else ask.shown_texts
    return text if not shown or len(text) <= 3 * shown else f"{text[:shown]}\n{text[-shown:]}"


def room_for(messages: Transcript, scanned: int = SCANNED) -> int:
    """How much of each text is read, so that all of them together are not too much."""
    lengths = [len(part.text) for message in messages for part in message.parts if isinstance(part, Text | ToolResult)]
    lengths += [len(part.arguments) for message in messages for part in message.parts if isinstance(part, ToolCall)]
    if sum(lengths) <= scanned:
        return ROOMS[0]
    return next((room for room in ROOMS if sum(min(length, room) for length in lengths) <= scanned), ROOMS[-1])


def _written(lines: list[Line], origins: _Origins) -> str:
    written: list[str] = []
    last = ""
    for line in lines:
        origin = origins.of(line)
        label = f"({origin}) " if origin and origin != last and origin not in line.text else ""
        text = line.text if origin else _BULLETS.sub("", line.text)
        written.append(f"- {label}{text.replace(chr(10), chr(10) + '  ')}")
        last = origin
    return "\n".join(written)


def _book(text: str, chosen: Chosen, census: Census, fold: range) -> Book:
    worths, covered = chosen.worths, chosen.covered
    inside = [name for name, entry in census.entries.items() if any(message in fold for message, _ in entry.places)]
    kept = sum(name in covered for name in inside)
    total = sum(worths[name] for name in inside)
    share = sum(worths[name] for name in inside if name in covered) / total if total else 1.0
    return Book(text, chosen.tokens, kept, len(inside) - kept, round(share, 3))


class _Origins:
    """Where a line comes from, in a word or two."""

    def __init__(self, ask: SummaryAsk, start: int) -> None:
        self._ask = ask
        self._start = start
        self._pairing: Pairing | None = None
        self._calls: dict[Place, Place] = {}

    def of(self, line: Line) -> str:
        index = line.message - self._start
        if not 0 <= index < len(self._ask.messages):
            return ""
        message = self._ask.messages[index]
        readable = [
            number for number, part in enumerate(message.parts) if isinstance(part, Text | ToolCall | ToolResult)
        ]
        part = message.parts[readable[line.part]]
        if isinstance(part, ToolCall):
            return self._short(part)
        if isinstance(part, ToolResult):
            return self._of_result(Place(index, readable[line.part]))
        return message.role

    def _of_result(self, place: Place) -> str:
        if self._pairing is None:
            self._pairing = pair(self._ask.messages)
            self._calls = self._pairing.calls()
        found = self._calls.get(place)
        call = self._ask.messages[found.message].parts[found.part] if found is not None else None
        return self._short(call) if isinstance(call, ToolCall) else "result"

    def _short(self, call: ToolCall) -> str:
        """The file, command or query of a call; else the tool's name."""
        try:
            arguments = jsonio.decode(call.arguments) if len(call.arguments) <= LONGEST_TEXT else None
        except jsonio.NotJSON:
            arguments = None
        values = arguments if isinstance(arguments, dict) else {}
        key = next((key for key in ORIGIN_KEYS if isinstance(values.get(key), str) and values[key].strip()), None)
        if key is None:
            return call.name[:LONGEST_ORIGIN]
        text = " ".join(self._ask.redact(values[key]).split())
        if key in ("command", "cmd"):
            return text[:LONGEST_ORIGIN].rstrip()
        return text.rstrip("/").rpartition("/")[2][-LONGEST_ORIGIN:] if key in PATH_KEYS else text[:LONGEST_ORIGIN]
