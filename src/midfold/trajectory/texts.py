"""Turns as one text in which names are looked up: a search in one long text is far quicker than one in each turn."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate

from midfold.trajectory.records import Record


class Texts:
    """Some turns of a record."""

    def __init__(self, record: Record, places: Sequence[int]) -> None:
        self._places = places
        texts = [record.raw(place) for place in places]
        self._starts = list(accumulate((len(text) + 1 for text in texts), initial=0))
        self._text = "\n".join(texts)

    def first(self, name: str) -> int | None:
        """The first turn that mentions a name."""
        at = self._text.find(name)
        return None if at < 0 else self._places[self._number(at)]

    def mentions(self, name: str) -> Iterator[int]:
        """The turns that mention a name, the earliest first."""
        at = self._text.find(name)
        while at >= 0:
            number = self._number(at)
            yield self._places[number]
            at = self._text.find(name, self._starts[number + 1])

    def has(self, name: str, before: int) -> bool:
        """Whether a turn before this one mentions a name."""
        return self._text.find(name, 0, self._starts[bisect_left(self._places, before)]) >= 0

    def newest(self, name: str) -> Iterator[int]:
        """The turns that mention a name, the newest first."""
        at = self._text.rfind(name)
        while at >= 0:
            number = self._number(at)
            yield self._places[number]
            at = self._text.rfind(name, 0, self._starts[number])

    def _number(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1
