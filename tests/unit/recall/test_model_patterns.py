"""Patterns in a model's searches: matched lines, limits, and plain text search without RE2."""

from __future__ import annotations

import itertools
import re
import subprocess
import sys

import pytest

import midfold
from midfold.compaction.redact import redact
from midfold.recall import InMemorySource, patterns
from midfold.recall import recall_tools as tool_answers
from midfold.recall.patterns import OVERLAP_BYTES, WINDOW_BYTES, PatternRefused, compile_pattern
from midfold.recall.recall_tools import NO_REGEX, TOO_SLOW, Recall
from tests.support.build import user

HEAVY = "(.?.?.?.?.?.?.?.?.?.?){90}~"
"""Pattern with 2,700 states, most of them active together."""


def never() -> bool:
    return False


@pytest.mark.parametrize(
    "pattern", ["^line 7$", "7$", "^é", r"\bnumber\b", "x*", "[^q]9", "NUMBER", r"ne\s+1\d*\s", "^$", "(a|line 2)"]
)
@pytest.mark.parametrize("size", [3, 40, 6_000])
def test_a_pattern_finds_the_lines_that_the_standard_library_finds(pattern: str, size: int) -> None:
    lines = [f"line {number} é number" if number % 3 else f"line {number}" for number in range(size)]
    lines = [*lines, "", "é at the start", "a" * WINDOW_BYTES + " number 9 "]
    flags = re.IGNORECASE if pattern.islower() or not re.search("[A-Za-z]", pattern) else 0
    expected = [(number, line) for number, line in enumerate(lines, 1) if re.search(pattern, line, flags)]
    assert list(compile_pattern(pattern)("\n".join(lines), never)) == expected


def test_a_match_across_the_end_of_a_window_is_found() -> None:
    for start in range(WINDOW_BYTES - 20, WINDOW_BYTES + 2):
        text = "." * start + "needle in a haystack" + "." * OVERLAP_BYTES
        assert list(compile_pattern("needle[ a-z]{14}$|needle.*haystack")(text, never)) == [(1, text)]


@pytest.mark.parametrize("pattern", ["(", "(?=x)", r"(a)\1", "x{2000}", "a" * 501, r"(?:\pL{30}){30}"])
def test_a_pattern_that_re2_cannot_match_is_refused(pattern: str) -> None:
    with pytest.raises(PatternRefused):
        compile_pattern(pattern)


def past() -> InMemorySource:
    talk = [user("The first."), user("the zebra\n" + "word é " * 100_000), user("the okapi " * 10_000)]
    return InMemorySource({"mf-" + "a" * 12: midfold.read(talk).messages})


def test_a_pattern_stops_at_its_time_limit_and_says_how_to_go_on() -> None:
    seconds = itertools.count(0, 0.1)
    answer = Recall(past(), redact, clock=lambda: next(seconds)).run("context_search", {"pattern": HEAVY}).text
    assert TOO_SLOW in answer and answer.endswith("go on with before=1]")
    assert next(seconds) < 4


def test_a_cancelled_call_stops_before_the_next_window() -> None:
    asked = 0

    def is_cancelled() -> bool:
        nonlocal asked
        asked += 1
        return asked > 3

    past().recall(redact).run("context_search", {"pattern": HEAVY}, is_cancelled)
    assert asked == 4


def test_without_re2_a_pattern_is_plain_text_and_the_answer_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (patterns, tool_answers):
        monkeypatch.setattr(module, "HAS_RE2", False)
    tools = InMemorySource({"mf-" + "a" * 12: midfold.read([user("one\nThe zebr[ae] is here")]).messages}).recall(
        redact
    )
    found = tools.run("context_search", {"pattern": "zebr[ae]"}).text
    assert "line 3: The zebr[ae] is here" in found and NO_REGEX in found
    assert "line 3" not in tools.run("context_search", {"pattern": "zeb.*here"}).text


@pytest.mark.parametrize(("has_re2", "said"), [(True, "a regular expression (RE2 syntax)"), (False, "plain text")])
def test_the_description_of_the_tool_says_what_a_pattern_is(has_re2: bool, said: str) -> None:
    without = "" if has_re2 else "sys.modules['re2'] = None; "
    code = f"import sys; {without}from midfold.recall.recall_tools import SEARCH; print(SEARCH.definition('anthropic'))"
    told = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True).stdout
    assert said in told
