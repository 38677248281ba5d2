"""Originals by handle: what a fold, a digest or a spill took out of the view can always be had back."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from hashlib import blake2b
from heapq import nlargest
from math import log
from typing import Any, NamedTuple

from msgspec import Raw

from midfold.fold.facts import search_tokens, told_arguments
from midfold.transcript import jsonio
from midfold.transcript.message import Message, Text, ToolCall, ToolResult, Transcript, plain

# Search over originals: the windows of neighbouring passages that fit a query best.
#
# Rules of this file:
# 1. A passage is a message, or a piece of a long one. A hit is a window of `NEIGHBOURS` passages: what stands beside a
#    hit tells what it is, and is worth more than a further hit (docs/explanation/retention.md).
# 2. Texts and queries fall into the tokens of `core.words`: every spelling of a name finds every other.
# 3. Windows are ranked by BM25 over the rarest terms of the query; of those alike, the newer comes first.
# 4. What comes back is bounded, whatever the originals hold. It is exact: a caller that shows it redacts it.


PASSAGE = 350
NEIGHBOURS = 3
MOST_WINDOWS = 8
MOST_CHARACTERS = 4_000
MOST_TERMS = 30
SATURATION, LENGTH_WEIGHT = 1.2, 0.75
NEWER = 0.5
"""How much more the newest window counts than the oldest."""


class Window(NamedTuple):
    """Neighbouring passages of one entry, around what was found."""

    handle: str
    message: int
    """The place of the message in which the window begins."""
    text: str
    score: float


class Recall:
    """An index over entries of an archive: handle -> messages."""

    def __init__(self, entries: Mapping[str, tuple[Message, ...]]) -> None:
        self._passages: list[tuple[str, int, str]] = []
        self._windows: list[range] = []
        self._lengths: list[int] = []
        self._postings: dict[str, dict[int, int]] = {}
        for handle, messages in entries.items():
            self._add(handle, messages)
        self._mean = sum(self._lengths) / max(len(self._lengths), 1) or 1.0

    def _add(self, handle: str, messages: tuple[Message, ...]) -> None:
        first, start = len(self._passages), len(self._windows)
        pieces = [(handle, at, piece) for at, one in enumerate(messages) for piece in passages(told(one))]
        self._passages += pieces
        count = max(len(pieces) - NEIGHBOURS + 1, 1) if pieces else 0
        self._windows += [range(first + at, first + min(at + NEIGHBOURS, len(pieces))) for at in range(count)]
        self._lengths += [0] * count
        for number, (_, _, piece) in enumerate(pieces):
            tokens = search_tokens(piece)
            for window in range(start + max(number - NEIGHBOURS + 1, 0), start + min(number, count - 1) + 1):
                self._lengths[window] += len(tokens)
                for token in tokens:
                    found = self._postings.setdefault(token, {})
                    found[window] = found.get(window, 0) + 1

    def search(self, query: str, limit: int = MOST_WINDOWS, characters: int = MOST_CHARACTERS) -> list[Window]:
        """The best windows that do not overlap, as many as fit into `characters`."""
        scores = self._scores(query)
        best = nlargest(limit * NEIGHBOURS * 2, scores, key=lambda window: (scores[window], window))
        taken: set[int] = set()
        found: list[Window] = []
        for window in best:
            places = self._windows[window]
            if len(found) == limit or characters <= 0:
                break
            if taken.isdisjoint(places):
                taken.update(places)
                handle, message, _ = self._passages[places.start]
                text = "\n".join(self._passages[place][2] for place in places)[:characters]
                characters -= len(text)
                found.append(Window(handle, message, text, round(scores[window], 3)))
        return found

    def _scores(self, query: str) -> dict[int, float]:
        total = len(self._windows)
        scores: dict[int, float] = {}
        for term, rarity in self._rarest(query, total):
            for window, count in self._postings[term].items():
                norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * self._lengths[window] / self._mean)
                gain = rarity * count * (SATURATION + 1) / (count + norm)
                scores[window] = scores.get(window, 0.0) + gain * (1 + NEWER * window / total)
        return scores

    def _rarest(self, query: str, total: int) -> list[tuple[str, float]]:
        known = sorted(token for token in search_tokens(query) if token in self._postings)
        rarities = [(token, _rarity(len(self._postings[token]), total)) for token in known]
        return nlargest(MOST_TERMS, rarities, key=lambda item: item[1])


def _rarity(having: int, total: int) -> float:
    return log(1 + (total - having + 0.5) / (having + 0.5))


def told(message: Message) -> str:
    """What a message says, arguments of calls included."""
    texts = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            texts.append(f"{part.name}\n{told_arguments(part.arguments)}")
        elif isinstance(part, Text | ToolResult):
            texts.append(part.text)
    return "\n".join(texts)


def passages(text: str) -> Iterator[str]:
    """A text in pieces of about `PASSAGE` characters, cut at line ends where there are any."""
    start = 0
    while len(text) - start > PASSAGE:
        end = text.rfind("\n", start + PASSAGE // 2, start + PASSAGE) + 1 or start + PASSAGE
        yield text[start:end]
        start = end
    yield text[start:]


PREFIX = "mf-"
DIGITS = 12
BATCH = 64


def handle_of(message: Message) -> str:
    """The handle of one message: its content, so the same message has the same handle everywhere."""
    return PREFIX + message.digest.hex()[:DIGITS]


def fold_id(messages: Transcript) -> str:
    """The id of a fold: a hash over the bytes of all of its messages, in order."""
    hasher = blake2b(digest_size=DIGITS // 2)
    for start in range(0, len(messages), BATCH):
        hasher.update(jsonio.encode_quickly([_wire(message) for message in messages[start : start + BATCH]]))
    return hasher.hexdigest()


def _wire(message: Message) -> Any:
    wire = message.wire
    return wire if isinstance(wire, Raw | dict) else message.digest.hex() if wire is None else plain(wire)


def source_bytes(message: Message) -> bytes:
    """The exact bytes of an original; a dict is written compactly."""
    return bytes(message.wire) if isinstance(message.wire, Raw) else jsonio.encode(plain(message.origin))


class Archive(Mapping[str, tuple[Message, ...]]):
    """Handle -> the original messages it stands for."""

    def __init__(self, entries: Mapping[str, tuple[Message, ...]] | None = None) -> None:
        self._entries = dict(entries) if isinstance(entries, dict) else entries or {}
        self._recall: Recall | None = None

    def __getitem__(self, handle: str) -> tuple[Message, ...]:
        return self._entries[handle]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)

    def originals(self, handle: str) -> list[Any]:
        """The originals as the caller gave them: their own objects, or decoded JSON."""
        return [plain(message.wire) if isinstance(message.wire, Raw) else message.wire for message in self[handle]]

    def search(self, query: str, limit: int = MOST_WINDOWS, characters: int = MOST_CHARACTERS) -> list[Window]:
        """The windows of neighbouring passages that fit a query best; see `core.recall`."""
        if self._recall is None:
            self._recall = Recall(self._entries)
        return self._recall.search(query, limit, characters)

    def lines(self) -> Iterator[bytes]:
        """JSON lines `{"handle", "messages"}`; `load` reads them back. Originals keep their exact bytes."""
        for handle, messages in self._entries.items():
            joined = b",".join(source_bytes(message) for message in messages)
            yield b'{"handle":"' + handle.encode() + b'","messages":[' + joined + b"]}"


# Handles in text that is carried on: only one that leads to originals keeps its shape.
#
# Anybody can write something that looks like a handle. A model that finds one in a summary takes it for ours.


_HANDLE = re.compile(rf"(?<![0-9A-Za-z]){PREFIX}([0-9a-f]{{4,64}})(?![0-9A-Za-z])")
_FRAMED = re.compile(rf"\| unfold ({PREFIX}[0-9a-f]{{4,64}})(?: …\]|\]|$)")
"""As digests, previews and placeholders of ours name theirs."""
STRANGE = "mf:"
"""What a handle begins with that is not one of ours."""


def handles_in(text: str) -> set[str]:
    """Everything in a text that looks like a handle."""
    return {PREFIX + digits for digits in _HANDLE.findall(text)}


def framed_handles(texts: Iterable[str]) -> set[str]:
    """Handles in frames of ours: what can be known without a store."""
    return {handle for text in texts for handle in _FRAMED.findall(text)}


def with_own_handles(text: str, is_own: Callable[[str], bool]) -> str:
    """The text in which nothing looks like a handle that is none of ours."""
    strange = {handle for handle in handles_in(text) if not is_own(handle)}

    def written(match: re.Match[str]) -> str:
        return STRANGE + match.group(1) if match.group() in strange else match.group()

    return _HANDLE.sub(written, text) if strange else text
