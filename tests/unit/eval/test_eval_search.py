from __future__ import annotations

from midfold.eval.search import MOST_CHARACTERS, full_text, passages, query_of
from midfold.transcript.document import read
from support.fixtures import assistant, user

PAST = read(
    [
        *(user(f"Filler about topic {number}, nothing more to say.") for number in range(40)),
        user("The harbour master keeps a list of vessels."),
        assistant("Its address is 48213."),
        user("Thank you kindly."),
        *(user(f"Filler about topic {number}, nothing more to say.") for number in range(40, 80)),
    ]
).messages


def test_the_query_is_the_step_without_any_needed_fact() -> None:
    assert query_of("open src/a_b.py at 48213 now", ["48213", "src/a_b.py"]).split() == ["open", "at", "now"]


def test_a_hit_brings_its_neighbours() -> None:
    assert "48213" in full_text(PAST, "list of vessels of the harbour master")
    assert "48213" not in full_text(PAST, "topic")


def test_what_comes_back_is_bounded() -> None:
    long = read([user("harbour vessel\n" * 50_000)]).messages
    assert len(full_text(long, "harbour")) <= MOST_CHARACTERS
    assert full_text((), "harbour") == ""
    assert full_text(PAST, "") == ""


def test_passages_are_the_whole_text_in_order() -> None:
    text = "".join(f"line {number} of it\n" for number in range(300)) + "x" * 3_000
    assert "".join(passages(text)) == text
    assert max(map(len, passages(text))) <= 700
