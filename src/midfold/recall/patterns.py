"""Find the lines of a text that match a model's pattern.

With google-re2 a pattern is a regular expression in RE2's syntax, without it a plain substring. A pattern without
capital letters ignores case. RE2 is linear, but an expression with many states costs microseconds per byte: a text is
matched in windows of a few kilobytes, and `is_over` is called before each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from importlib.util import find_spec
from typing import Any

from midfold.errors import MidfoldError
from midfold.recall.excerpts import lowercase

HAS_RE2 = find_spec("re2") is not None
MAX_PATTERN_CHARS = 500
MAX_REGEX_BYTES = 1 << 20
"""Maximum memory of one compiled expression; RE2 refuses expressions that need more."""
WINDOW_BYTES = 16_384
OVERLAP_BYTES = 2_048
"""Bytes that two windows share; a longer match may be missed if its line crosses the end of a window."""


class PatternRefused(MidfoldError):
    """Pattern that is too long, or that RE2 cannot compile."""


class OutOfTime(Exception):
    """Signal raised in the middle of a text when the search has to stop."""


Lines = Iterator[tuple[int, str]]
FindLines = Callable[[str, Callable[[], bool]], Lines]
"""Function that yields number and text of each matching line; raises OutOfTime when its second argument returns True.
"""


def compile_pattern(pattern: str) -> FindLines:
    """Return a function that finds the lines matching a pattern."""
    if len(pattern) > MAX_PATTERN_CHARS:
        raise PatternRefused(f"the pattern is longer than {MAX_PATTERN_CHARS} characters")
    ignores_case = pattern.islower() or not any(letter.isalpha() for letter in pattern)
    return _regex(pattern, ignores_case) if HAS_RE2 else _substring(pattern, ignores_case)


def _substring(pattern: str, ignores_case: bool) -> FindLines:
    def find_lines(text: str, is_over: Callable[[], bool]) -> Lines:
        if is_over():
            raise OutOfTime
        searched = lowercase(text) if ignores_case else text
        wanted = lowercase(pattern) if ignores_case else pattern
        return _lines_at(text, "\n", lambda start: searched.find(wanted, start))

    return find_lines


def _regex(pattern: str, ignores_case: bool) -> FindLines:
    import re2

    options = re2.Options()
    options.max_mem = MAX_REGEX_BYTES
    options.case_sensitive = not ignores_case
    options.never_nl = options.never_capture = True
    options.log_errors = False
    try:
        regex = re2.compile(b"(?m)" + pattern.encode("utf-8", "replace"), options)
    except re2.error as error:
        reason = error.args[0].decode("utf-8", "replace") if error.args else "unknown error"
        raise PatternRefused(f"RE2 cannot search for this regular expression: {reason}") from None

    def find_lines(text: str, is_over: Callable[[], bool]) -> Lines:
        data = text.encode("utf-8", "replace")
        for number, line in _lines_at(data, b"\n", lambda start: _search(regex, data, start, is_over)):
            yield number, line.decode("utf-8", "replace")

    return find_lines


def _search(regex: Any, data: bytes, start: int, is_over: Callable[[], bool]) -> int:
    """Return the position of the next match, or -1."""
    while True:
        if is_over():
            raise OutOfTime
        found = regex.search(data, start, start + WINDOW_BYTES)
        if found is not None:
            return int(found.start())
        if start + WINDOW_BYTES >= len(data):
            return -1
        start += WINDOW_BYTES - OVERLAP_BYTES


def _lines_at(text: Any, newline: Any, find: Callable[[int], int]) -> Iterator[tuple[int, Any]]:
    """Yield number and content of each line in which `find` returns a position."""
    number, counted, start = 1, 0, 0
    while start <= len(text) and (place := find(start)) >= 0:
        number += text.count(newline, counted, place)
        end = text.find(newline, place)
        end = len(text) if end < 0 else end
        yield number, text[text.rfind(newline, 0, place) + 1 : end]
        number, counted, start = number + 1, end + 1, end + 1
