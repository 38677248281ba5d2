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
from collections.abc import Callable, Iterable, Sequence
from heapq import heapify, heappop, heappush, nsmallest
from itertools import accumulate
from math import exp, log1p
from typing import NamedTuple

from midfold.fold.facts import (
    CALLED,
    GOES_ON,
    LONGEST_TEXT,
    RESULT,
    SAID,
    USER,
    Census,
    NameCounts,
    Shape,
    may_be_order,
    names,
    narrow,
    parts,
    snippet,
    subwords,
)
from midfold.fold.request import SummaryAsk
from midfold.transcript import jsonio
from midfold.transcript.message import Message, Text, ToolCall, ToolResult, Transcript
from midfold.transcript.tokens import estimate_text

# How likely it is that a later turn needs a name: a logistic model with a few dozen constants.
#
# The constants were learned offline, by `python -m bench.fit_ledger`, from half of the conversations of the shared
# data: names that the real future of those conversations used against names that it did not.
# docs/explanation/retention.md says how, and what the other half showed. Nothing here is specific to a tool, a
# language or an agent.


INTERCEPT = -3.19
SINCE_LAST = -0.25
"""Learned: -0.40. The newest names are the tail's, which the ledger need not tell; with less weight on what is new it
keeps as much in all, and more of what was last said long ago."""
NEVER_BY_ASSISTANT = -1.21
MORE_MESSAGES = -0.18
BY_COUNT = {USER: 0.14, SAID: 0.67, CALLED: 0.65, RESULT: 0.22}
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
_LOGS = [log1p(number) for number in range(4_096)]


def worth(census: Census) -> dict[str, float]:
    """Every name, and how likely it is to be needed."""
    return {name: _probability(name, entry, census) for name, entry in census.entries.items()}


def _probability(name: str, entry: NameCounts, census: Census) -> float:
    counts = entry.counts
    score = INTERCEPT + BY_SHAPE[entry.shape] + SINCE_LAST * _log(census.length - entry.last) + LENGTH * _log(len(name))
    for who, weight in BY_COUNT.items():
        if counts[who]:
            score += weight * _log(counts[who])
    if entry.assistant < 0:
        score += NEVER_BY_ASSISTANT
    if entry.messages > 1:
        score += REPEATED + MORE_MESSAGES * _log(entry.messages - 1)
    if counts[USER]:
        score += BY_USER
    if counts[RESULT]:
        score += IN_RESULT
    if census.recent.issuperset(subwords(name)):
        score += TOPICAL
    return 1.0 / (1.0 + exp(-score))


def _log(number: int) -> float:
    return _LOGS[number] if number < len(_LOGS) else log1p(number)


# Which lines go into the ledger: those that add most worth for their tokens.
#
# Rules:
# 1. Each name counts once. A line that adds no name that is not there yet costs its tokens for nothing and is not
#    taken.
# 2. A name is there when a line has it with words that say what it is; without them it counts for a fraction.
# 3. Candidates are the newest places of the worthiest names, so the work grows with the budget, not with the fold.
# 4. The same fold and budget give the same lines.


UNBOUND = 0.25
TOKENS_PER_NAME = 4
FEWEST_NAMES = 40
ENOUGH_LINES = 4
"""Candidates in which a name stands bound; more of them hardly ever make a better choice."""
NEAR = 600
"""Characters on either side of a name that must be free of credentials."""
LINE_TOKENS = 0.6
"""A line break."""
LABEL_TOKENS = 1
"""The brackets around an origin."""


class Line(NamedTuple):
    """A verbatim line, where it stands, and the names it has."""

    text: str
    message: int
    part: int
    names: tuple[str, ...]
    cost: float
    bound: bool
    at: int
    """Where the name that led to it begins."""


class Chosen(NamedTuple):
    lines: list[Line]
    tokens: int
    covered: set[str]
    worths: dict[str, float]


def choose(
    census: Census,
    budget: int,
    told: Iterable[str] = (),
    redact: Callable[[str], str] = lambda text: text,
    origin: Callable[[int, int], str] = lambda message, part: "",
) -> Chosen:
    """Lines for about `budget` tokens; `told` are texts whose names the reader has already.

    The `origin` of a text is told once for all its lines, and costs its tokens.
    """
    worths = worth(census)
    covered: set[str] = set()
    for text in told:
        for name, _ in names(text):
            covered.update(parts(name))
    lines = _candidates(census, worths, covered, max(budget // TOKENS_PER_NAME, FEWEST_NAMES))
    heap = [(-_gain(line, worths, covered) / line.cost, number) for number, line in enumerate(lines)]
    heapify(heap)
    chosen: list[Line] = []
    origins = {""}
    left = float(budget)
    while heap:
        promised, number = heappop(heap)
        line = lines[number]
        gain = _gain(line, worths, covered) / line.cost
        if gain <= 0 or line.cost > left:
            continue
        if heap and gain < -heap[0][0] and gain < -promised:
            heappush(heap, (-gain, number))
            continue
        source = origin(line.message, line.part)
        label = 0 if source in origins else estimate_text(source) + LABEL_TOKENS
        if line.cost + label > left:
            continue
        if not _is_clean(line, census, redact):
            continue
        left -= line.cost + label
        origins.add(source)
        chosen.append(line)
        for name in line.names:
            covered.update(parts(name)) if line.bound else covered.add(name)
    chosen.sort(key=lambda line: (line.message, line.part))
    return Chosen(chosen, round(budget - left), covered, worths)


def _gain(line: Line, worths: dict[str, float], covered: set[str]) -> float:
    gain = sum(worths[name] for name in line.names if name not in covered)
    return gain if line.bound else gain * UNBOUND


def _candidates(census: Census, worths: dict[str, float], covered: set[str], most: int) -> list[Line]:
    entries = census.entries
    open_names = [name for name in worths if name not in covered]
    best = nsmallest(most, open_names, key=lambda name: (-worths[name], name))
    found: dict[str, Line] = {}
    seen: dict[str, int] = {}
    for name in best:
        for message, part in reversed(entries[name].places):
            if seen.get(name, 0) >= ENOUGH_LINES:
                break
            line, short = _pieces(census, message, part, name, worths)
            if line is None:
                continue
            if line.text not in found and line.bound:
                for other in line.names:
                    seen[other] = seen.get(other, 0) + 1
            found[line.text] = line
            if short is not None:
                found.setdefault(short.text, short)
    return list(found.values())


def _pieces(
    census: Census, message: int, part: int, name: str, worths: dict[str, float]
) -> tuple[Line | None, Line | None]:
    """The line of a name, and the words right beside it where that is shorter."""
    text = census.texts[message][part][1]
    at = text.find(name)
    if at < 0:
        return None, None
    piece = snippet(text, at, len(name))
    short = narrow(text, at, len(name), len(piece.text))

    def line(words: str, *, bound: bool) -> Line:
        inside = tuple(dict.fromkeys(other for other, _ in names(words) if other in worths))
        cost = estimate_text(words.strip(GOES_ON)) + LINE_TOKENS
        return Line(words, message, part, inside, cost, bound, at)

    return line(piece.text, bound=piece.bound), line(short, bound=True) if short else None


def _is_clean(line: Line, census: Census, redact: Callable[[str], str]) -> bool:
    """Whether there is no credential in the line or near it, and nothing that a reader may take for an order."""
    who, text = census.texts[line.message][line.part]
    if who == RESULT and may_be_order(line.text, text, line.at):
        return False
    around = text[max(line.at - NEAR, 0) : line.at + NEAR]
    return redact(around) == around


# Where a line of the ledger comes from, in a word or two: the file it is about, else the program, tool or speaker.


PATH_KEYS = ("file_path", "path", "filename", "notebook_path")
COMMAND_KEYS = ("command", "cmd")
OTHER_KEYS = ("url", "pattern", "query")
LONGEST_ORIGIN = 28
LONGEST_COMMAND = 2_000
FARTHEST_CALL = 40
"""Messages between a call and its result, at most."""
_FILE = re.compile(r"(?<![\w~.@+-])[\w~.@+-]*(?<![\w@+-])[\w@+-]++\.[A-Za-z]\w{0,4}(?![\w/])", re.ASCII)
"""The last part of a path: it begins where none of its characters stands before, so every part is tried once."""


class Origins:
    """The origin of each text of a fold, found when it is asked for."""

    def __init__(self, ask: SummaryAsk, start: int) -> None:
        self._ask = ask
        self._start = start
        self._known: dict[tuple[int, int], str] = {}

    def of(self, message: int, part: int) -> str:
        """For a message of the census and the number of its readable part; empty for what is not of the fold."""
        found = self._known.get((message, part))
        if found is None:
            found = self._known[message, part] = self._of(message - self._start, part)
        return found

    def _of(self, index: int, readable: int) -> str:
        if not 0 <= index < len(self._ask.messages):
            return ""
        message = self._ask.messages[index]
        numbers = [at for at, part in enumerate(message.parts) if isinstance(part, Text | ToolCall | ToolResult)]
        part = message.parts[numbers[readable]]
        if isinstance(part, ToolCall):
            return self._short(part)
        if isinstance(part, ToolResult):
            return self._of_result(index, part)
        return message.role

    def _of_result(self, index: int, result: ToolResult) -> str:
        """A result stands behind its call: the nearest one of that id before it."""
        for before in range(index - 1, max(index - FARTHEST_CALL, 0) - 1, -1):
            for part in self._ask.messages[before].parts:
                if isinstance(part, ToolCall) and part.id == result.call_id:
                    return self._short(part)
        return "result"

    def _short(self, call: ToolCall) -> str:
        """The file of a call, or the program it runs; else the tool's name."""
        try:
            arguments = jsonio.decode(call.arguments) if len(call.arguments) <= LONGEST_TEXT else None
        except jsonio.NotJSON:
            arguments = None
        values = arguments if isinstance(arguments, dict) else {}
        for keys, told in ((PATH_KEYS, _file), (COMMAND_KEYS, _program), (OTHER_KEYS, _words)):
            key = next((key for key in keys if isinstance(values.get(key), str) and values[key].strip()), None)
            if key is not None:
                return told(self._ask.redact(values[key][:LONGEST_COMMAND]))
        return call.name[:LONGEST_ORIGIN]


def _file(path: str) -> str:
    return " ".join(path.split()).rstrip("/").rpartition("/")[2][-LONGEST_ORIGIN:]


def _program(command: str) -> str:
    """The file a command is about, or what is run."""
    found = _FILE.search(command)
    if found is not None:
        return _file(found.group())
    words = [word for word in command.split()[:12] if not word.startswith(("-", "cd", "/", "&"))]
    return f"$ {words[0][:LONGEST_ORIGIN]}" if words else "$"


def _words(text: str) -> str:
    return " ".join(text.split())[:LONGEST_ORIGIN].rstrip()


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
