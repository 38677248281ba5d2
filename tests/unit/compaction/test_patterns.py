"""Every regular expression takes time in proportion to the text, for any text.

A running pattern holds the interpreter, so with a quadratic one a small text blocks a whole gateway. New patterns
are
found automatically. `python tests/support/patterns.py` lists them all.
"""

from __future__ import annotations

import math
import re

import pytest

from support.patterns import Found, Pump, census, pumps, seconds

SHORT, LONG = 2_000, 4
QUICK = 0.001
"""Seconds that a quadratic pattern exceeds even on a short text."""
WORST = 9.0
"""Maximum ratio of times for a text four times as long: 4 if linear, 16 if quadratic."""


def is_slow(found: Found, pump: Pump) -> bool:
    if seconds(found, pump.text(24)) > QUICK * 20:
        return True
    short = pump.text(SHORT)
    if (first := seconds(found, short)) < QUICK or math.isinf(first):
        return math.isinf(first)
    if seconds(found, short) < QUICK:
        return False
    long = pump.text(SHORT * LONG)
    return all(seconds(found, long) > WORST * max(seconds(found, short), QUICK) for _ in range(4))


def slow_ones(found: Found) -> list[Pump]:
    return [pump for pump in pumps(found.pattern) if is_slow(found, pump)]


def test_every_pattern_takes_time_in_proportion_to_the_text() -> None:
    everything = census()
    assert len(everything) > 200
    assert any(found.where == "midfold.gateway.request_size._MARKER" for found in everything)
    bad = {found.where: (found.pattern.pattern, slow[:1]) for found in everything if (slow := slow_ones(found))}
    assert bad == {}


def test_no_group_is_possessive() -> None:
    """Before Python 3.11.5 `(?:ab|a){0,3}+` may fail to match; `(?>(?:ab|a){0,3})` does not."""
    texts = {found.where: str(found.pattern.pattern) for found in census()}
    assert [where for where, text in texts.items() if re.search(r"(?<!\\)\)(?:[*?+]|\{[0-9,]+\})\+", text)] == []


@pytest.mark.parametrize(
    ("pattern", "method"),
    [
        (r"\s*,\s*x", "search"),
        (r"[\w.]*\w\.py", "search"),
        (r"\w*[a-z]_\w*", "fullmatch"),
        (r"<a>.*</a>", "search"),
        (r"^.*?,.*?,.*?;", "search"),
        (rb"\s*,\s*\"cache_control\"", "search"),
    ],
)
def test_patterns_that_are_slow_are_found(pattern: str | bytes, method: str) -> None:
    found = Found("here", re.compile(pattern), method)
    # A busy machine may be slow once; a slow pattern is slow in every attempt.
    assert any(is_slow(found, pump) for _ in range(6) for pump in pumps(found.pattern))


def test_a_pattern_that_never_ends_is_found_with_a_few_characters() -> None:
    found = Found("here", re.compile(r"(?:a+)+b"), "match")
    assert any(seconds(found, one.text(22)) > 8 * seconds(found, one.text(16)) for one in pumps(found.pattern))


@pytest.mark.parametrize("pattern", [r"\w++", r"[ab]{1,40}c", r"x(?<![ab])[ab]*+c", r"(?<!\s)\s*+,"])
def test_patterns_that_are_linear_are_not(pattern: str) -> None:
    assert slow_ones(Found("here", re.compile(pattern), "search")) == []
