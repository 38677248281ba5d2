"""Regular expressions in linear time: every state at once, one step for each character, and never back.

1. A line fits if the pattern fits somewhere in it. Known are characters, classes, `.`, groups, `|`, `*`, `+`, `?`,
   `{2,5}`, `^`, `$`, and `\\d \\w \\s` with their opposites. Look-around and references need going back: refused.
2. Sets of states are remembered with the characters that lead from one to another, so most steps are one look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from midfold.errors import MidfoldError

LONGEST_PATTERN, MOST_STATES, MOST_REMEMBERED = 500, 2_000, 2_000
_CLASSES: dict[str, Callable[[str], bool]] = {
    "d": str.isdigit,
    "w": lambda letter: letter.isalnum() or letter == "_",
    "s": str.isspace,
}
_LETTERS = {"n": "\n", "t": "\t", "r": "\r", "f": "\f", "v": "\v"}
Test = Callable[[str], bool]


class PatternRefused(MidfoldError):
    """A regular expression that cannot be looked for in linear time, or not be read."""


class _State(NamedTuple):
    """A step over a character that passes a test, or (without one) free steps to others."""

    test: Test | None
    after: tuple[int, ...]


class _Piece(NamedTuple):
    """A part of a pattern: its first state, and the states whose steps are still open."""

    first: int
    ends: list[int]


class LinearPattern:
    """A pattern that is looked for in lines."""

    def __init__(self, text: str) -> None:
        if len(text) > LONGEST_PATTERN:
            raise PatternRefused(f"the pattern is longer than {LONGEST_PATTERN} characters")
        self._text, self._place = text, 0
        self._ignores_case = text.islower() or not any(letter.isalpha() for letter in text)
        self._tests: list[Test | None] = []
        self._after: list[list[int]] = []
        piece = self._either()
        if self._place < len(text):
            raise self._refusal(f"{text[self._place]!r} closes nothing")
        self._accept = self._state(None)
        self._join(piece, self._accept)
        self._first = self._closure({piece.first}, at_start=True, at_end=False)
        self._later = self._closure({piece.first}, at_start=False, at_end=False)
        self._steps: dict[tuple[frozenset[int], str], frozenset[int]] = {}

    def lines(self, text: str, most: int) -> Iterator[tuple[int, str]]:
        """The first lines that fit, with their numbers."""
        for number, line in enumerate(text.split("\n"), 1):
            if most and self.fits(line):
                most -= 1
                yield number, line

    def fits(self, line: str) -> bool:
        states, later, steps = self._first, self._later, self._steps
        for letter in line.lower() if self._ignores_case else line:
            if self._accept in states:
                return True
            key = (states, letter)
            found = steps.get(key)
            if found is None:
                if len(steps) >= MOST_REMEMBERED:
                    steps.clear()
                found = steps[key] = self._step(states, letter) | later
            states = found
        return self._accept in self._closure(set(states), at_start=not line, at_end=True)

    def _step(self, states: frozenset[int], letter: str) -> frozenset[int]:
        reached: set[int] = set()
        for state in states:
            test = self._tests[state]
            if test is not None and not isinstance(test, _Edge) and test(letter):
                reached.update(self._after[state])
        return self._closure(reached, at_start=False, at_end=False)

    def _closure(self, states: set[int], *, at_start: bool, at_end: bool) -> frozenset[int]:
        """With everything that is reached without a character."""
        todo, known = list(states), set(states)
        while todo:
            state = todo.pop()
            test = self._tests[state]
            if test is None or (isinstance(test, _Edge) and (at_end if test.is_end else at_start)):
                fresh = [after for after in self._after[state] if after not in known]
                known.update(fresh)
                todo += fresh
        return frozenset(known)

    # Reading a pattern

    def _refusal(self, why: str) -> PatternRefused:
        return PatternRefused(f"this regular expression cannot be searched for: {why}")

    def _state(self, test: Test | None) -> int:
        if len(self._tests) >= MOST_STATES:
            raise self._refusal("it repeats too much")
        self._tests.append(test)
        self._after.append([])
        return len(self._tests) - 1

    def _join(self, piece: _Piece, target: int) -> None:
        for end in piece.ends:
            self._after[end].append(target)

    def _peek(self) -> str:
        return self._text[self._place : self._place + 1]

    def _take(self) -> str:
        letter = self._peek()
        self._place += 1
        return letter

    def _either(self, depth: int = 0) -> _Piece:
        if depth > 20:
            raise self._refusal("its groups are nested too deep")
        first = self._state(None)
        ends: list[int] = []
        while True:
            branch = self._sequence(depth)
            self._after[first].append(branch.first)
            ends += branch.ends
            if self._peek() != "|":
                return _Piece(first, ends)
            self._place += 1

    def _sequence(self, depth: int) -> _Piece:
        start = self._state(None)
        whole = _Piece(start, [start])
        while self._peek() not in ("", "|", ")"):
            piece = self._repetition(depth)
            self._join(whole, piece.first)
            whole = _Piece(start, piece.ends)
        return whole

    def _repetition(self, depth: int) -> _Piece:
        begin = self._place
        piece = self._atom(depth)
        least, most = self._counts()
        if (least, most) == (1, 1):
            return piece
        if self._peek() in ("*", "+", "?") and self._peek():
            self._place += 1  # greedy or not, the same lines fit
        end = self._place
        copies = [piece]
        for _ in range((most if most is not None else max(least, 1)) - 1):
            self._place = begin
            copies.append(self._atom(depth))
        self._place = end
        start = self._state(None)
        whole, open_ends = _Piece(start, [start]), []
        for number, copy in enumerate(copies):
            if number >= least:
                open_ends += whole.ends
            self._join(whole, copy.first)
            whole = _Piece(start, copy.ends)
        if most is None:
            self._join(whole, copies[-1].first)
        if least == 0:
            open_ends.append(start)
        return _Piece(start, [*whole.ends, *open_ends])

    def _counts(self) -> tuple[int, int | None]:
        letter = self._peek()
        if letter and letter in "*+?":
            self._place += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[letter]
        close = self._text.find("}", self._place)
        inside = self._text[self._place + 1 : close] if letter == "{" and close > 0 else ""
        low, comma, high = inside.partition(",")
        if not low.isdecimal() or (high and not high.isdecimal()):
            return 1, 1
        self._place = close + 1
        least = int(low)
        most = least if not comma else int(high) if high else None
        if least > 200 or (most or 1) > 200 or most == 0 or (most is not None and most < least):
            raise self._refusal("a count is too large, or makes no sense")
        return least, most

    def _atom(self, depth: int) -> _Piece:
        letter = self._take()
        if letter == "(":
            if self._text.startswith("?:", self._place):
                self._place += 2
            elif self._peek() == "?":
                raise self._refusal("look-around, names and flags of groups are not known")
            piece = self._either(depth + 1)
            if self._take() != ")":
                raise self._refusal("a group is not closed")
            return piece
        if letter and letter in "*+?":
            raise self._refusal(f"{letter!r} repeats nothing")
        state = self._state(self._test(letter))
        return _Piece(state, [state])

    def _test(self, letter: str) -> Test:
        if letter == ".":
            return lambda other: True
        if letter == "^":
            return _Edge(is_end=False)
        if letter == "$":
            return _Edge(is_end=True)
        if letter == "[":
            return self._set()
        return self._escape() if letter == "\\" else self._same(letter)

    def _same(self, letter: str) -> Test:
        return letter.__eq__

    def _escape(self) -> Test:
        letter = self._take()
        if letter.lower() in _CLASSES:
            test = _CLASSES[letter.lower()]
            return test if letter.islower() else lambda other: not test(other)
        if not letter or (letter.isalnum() and letter not in _LETTERS):
            raise self._refusal(f"\\{letter} is not known")
        return self._same(_LETTERS.get(letter, letter))

    def _set(self) -> Test:
        is_negated = self._peek() == "^"
        self._place += is_negated
        tests: list[Test] = []
        while self._peek() != "]" or not tests:
            letter = self._take()
            if not letter:
                raise self._refusal("a class is not closed")
            if letter == "\\":
                tests.append(self._escape())
            elif self._peek() == "-" and self._text[self._place + 1 : self._place + 2] not in ("", "]"):
                self._place += 1
                tests.append(_Range(letter, self._take()))
            else:
                tests.append(self._same(letter))
        self._place += 1
        return lambda other: any(test(other) for test in tests) is not is_negated


class _Edge:
    """The beginning or the end of a line."""

    def __init__(self, *, is_end: bool) -> None:
        self.is_end = is_end

    def __call__(self, letter: str) -> bool:
        return False


class _Range:
    """Characters from one to another."""

    def __init__(self, low: str, high: str) -> None:
        self._low, self._high = low, high

    def __call__(self, letter: str) -> bool:
        return self._low <= letter <= self._high
