"""One full-text search over the past: what an agent with a search tool could still find.

Rules of this file:
1. `Search` is the whole seam: the past and a query in, text out. A real implementation replaces `full_text`.
2. The query is the text of the step that needs facts, with every needed fact blanked out: the searcher does not know
   what it will find.
3. `full_text` ranks windows of three neighbouring passages by BM25. A passage is a message, or a piece of a long one.
4. What comes back is bounded, whatever the past holds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from heapq import nsmallest
from math import log

from midfold.fold.archive import Archive
from midfold.lab.message_text import APART, text_of
from midfold.transcript.message import Transcript

Search = Callable[[Transcript, str], str]

WINDOW = 3
PASSAGE = 700
TOP = 3
MOST_CHARACTERS = 2_000
MOST_TERMS = 12
K1, B = 1.2, 0.75
_TERM = re.compile(r"\w{2,40}+")
BLANK = " "


def query_of(step: str, facts: Iterable[str]) -> str:
    """The words of a step without the facts it needs."""
    for fact in sorted(facts, key=len, reverse=True):
        step = step.replace(fact, BLANK)
    return step


def full_text(past: Transcript, query: str) -> str:
    """The best windows of the past for a query."""
    return _index(past).search(query)


def archive_search(past: Transcript, query: str) -> str:
    """What midfold's own archive brings back for a query."""
    return APART.join(window.text for window in _archive(past).search(query))


@lru_cache(maxsize=2)
def _archive(past: Transcript) -> Archive:
    return Archive({"past": past})


@lru_cache(maxsize=2)
def _index(past: Transcript) -> Index:
    return Index([piece for message in past for piece in passages(text_of(message))])


def passages(text: str) -> Iterator[str]:
    """A text in pieces of about `PASSAGE` characters, cut at line ends where there are any."""
    start = 0
    while len(text) - start > PASSAGE:
        end = text.rfind("\n", start + PASSAGE // 2, start + PASSAGE) + 1 or start + PASSAGE
        yield text[start:end]
        start = end
    yield text[start:]


class Index:
    """BM25 over windows of neighbouring passages."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.texts = texts
        counts = [Counter(_terms(text)) for text in texts]
        self.windows = max(len(texts) - WINDOW + 1, 1)
        self.lengths = [0] * self.windows
        self.postings: dict[str, dict[int, int]] = {}
        for passage, terms in enumerate(counts):
            inside = range(max(passage - WINDOW + 1, 0), min(passage, self.windows - 1) + 1)
            amount = terms.total()
            for window in inside:
                self.lengths[window] += amount
            for term, count in terms.items():
                posting = self.postings.setdefault(term, {})
                for window in inside:
                    posting[window] = posting.get(window, 0) + count
        self.mean = sum(self.lengths) / self.windows or 1.0

    def search(self, query: str) -> str:
        scores: dict[int, float] = {}
        for term, rarity in self._rarest(query):
            for window, count in self.postings[term].items():
                norm = K1 * (1 - B + B * self.lengths[window] / self.mean)
                scores[window] = scores.get(window, 0.0) + rarity * count * (K1 + 1) / (count + norm)
        return self._text(nsmallest(TOP * WINDOW, scores, key=lambda window: (-scores[window], window)))

    def _rarest(self, query: str) -> list[tuple[str, float]]:
        known = {term for term in _terms(query) if term in self.postings}
        rarity = {
            term: log(1 + (self.windows - len(found) + 0.5) / (len(found) + 0.5))
            for term in known
            for found in (self.postings[term],)
        }
        return nsmallest(MOST_TERMS, rarity.items(), key=lambda item: (-item[1], item[0]))

    def _text(self, windows: Iterable[int]) -> str:
        """The passages of the best windows that do not overlap, each once."""
        taken: set[int] = set()
        found: list[str] = []
        for window in windows:
            passages_of = range(window, min(window + WINDOW, len(self.texts)))
            if taken.isdisjoint(passages_of):
                taken.update(passages_of)
                found.append("\n".join(self.texts[passage] for passage in passages_of))
            if len(found) == TOP:
                break
        return APART.join(found)[:MOST_CHARACTERS]


def _terms(text: str) -> list[str]:
    return _TERM.findall(text.lower())


SEARCHES: Mapping[str, Search | None] = {"plain": full_text, "archive": archive_search, "off": None}
"""By name: the built-in one, midfold's own, none."""
