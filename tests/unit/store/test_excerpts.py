"""What a search shows of a hit: whole lines, the best first, redacted; and which hit comes first."""

from __future__ import annotations

import pytest

import midfold
from midfold.fold.facts import parse_query
from midfold.fold.redact import redact
from midfold.store.ranking import ELLIPSIS, LONGEST_LINE, Matcher, excerpt

FILE = "\n".join(
    [
        '"""Queries and what they mean."""',
        "from words import Query, parse_query",
        *(f"FILLER_{number} = {number}  # nothing to see here" for number in range(400)),
        "def parse_query(text: str) -> Query:",
        '    """Words that must all occur."""',
        "    return Query(text)",
        *(f"OTHER_{number} = parse_query('{number}')" for number in range(20)),
    ]
)


def shown(text: str, query: str) -> list[str]:
    return excerpt(text, Matcher(parse_query(query)), redact).splitlines()


def test_the_line_that_was_asked_for_is_whole_wherever_it_stands() -> None:
    lines = shown(FILE, "def parse_query")
    assert "def parse_query(text: str) -> Query:" in lines
    assert '    """Words that must all occur."""' in lines
    assert lines[0] == lines[-1] == ELLIPSIS


def test_without_the_phrase_the_line_with_most_of_the_words_is_looked_for_in_all_of_the_text() -> None:
    assert "FILLER_399 = 399  # nothing to see here" in shown(FILE, "FILLER_399 see nothing")


def test_letters_as_typed_come_before_letters_of_another_case() -> None:
    text = "hits are shown here\n" * 200 + "class Hit(Struct):\n" + "some hits are not\n" * 200
    assert "class Hit(Struct):" in shown(text, "Hit")


def test_words_on_different_lines_bring_each_their_line() -> None:
    text = "the port is 8123\n" + "nothing\n" * 50 + "the host is example\n" + "nothing\n" * 50
    assert [line for line in shown(text, "port host") if line.startswith("the ")] == [
        "the port is 8123",
        "the host is example",
    ]


def test_a_line_that_is_too_long_is_cut_around_the_word_and_says_so() -> None:
    (line,) = shown("word " * 500 + "needle_here " + "more " * 500, "needle_here")
    assert line.startswith(ELLIPSIS) and line.endswith(ELLIPSIS)
    assert "needle_here" in line
    assert len(line) <= LONGEST_LINE + 2


@pytest.mark.parametrize("query", ["needle", "TOKEN", "Zx9Qw8Er7Ty6"])
def test_a_secret_is_never_shown(query: str) -> None:
    key = "sk-" + "ant-api03-" + "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1Jk0Lz" * 2
    text = "x" * 3_000 + f"\nneedle TOKEN = '{key}'\n" + "y" * 3_000
    assert all(key[place : place + 16] not in "\n".join(shown(text, query)) for place in range(10, len(key) - 16))


def test_nothing_but_blank_or_odd_text_is_no_trouble() -> None:
    for text in ("", "\n\n", "\u2028", "a\tb"):
        assert isinstance(excerpt(text, Matcher(parse_query("a")), redact), str)
        assert isinstance(excerpt(text, Matcher(parse_query("")), redact), str)


def test_the_query_as_typed_comes_first_then_the_denser_then_the_newer() -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        for text in (
            "class Plan: the first",
            "a plan of plans, planned: plan plan plan " * 3,
            "PLAN",
            "class Plan: the first " + "and much more about other things " * 200,
            "class Plan: the last!",
        ):
            session.append([{"role": "user", "content": text}, {"role": "assistant", "content": "ok"}])
        found = [hit.text.splitlines()[0][:21] for hit in session.search("class Plan")]
        assert found[:2] == ["class Plan: the last!", "class Plan: the first"]
        assert session.search("Plan")[-1].position in (2, 4)
