"""Size of a recall answer: limited by the window, and including the searched passage."""

from __future__ import annotations

import json

import pytest

import midfold
from midfold.recall import MAX_HITS_CHARS, PAGE, AnswerBounds, InMemorySource
from midfold.transcript.document import read
from tests.support.build import assistant, call, user

FILLER = "\n".join(f"    value = skip(source, end)  # def of line {number}" for number in range(400))
SOURCE = f"{FILLER}\ndef value_end_of(source):\n{FILLER}\ndef value_end(source: bytes) -> int:\n{FILLER}"
TALK = [user("Go."), *call(1, "read_file", {"path": "src/jsonio.py"}, SOURCE), assistant("Read.")]


def test_bounds_grow_with_the_threshold_between_a_least_and_a_most() -> None:
    sizes = [AnswerBounds.of(tokens) for tokens in (1, 8_000, 16_000, 32_000, 64_000, 1_000_000)]
    assert sizes == sorted(sizes)
    assert (sizes[0].hits, sizes[-1]) == (800, AnswerBounds(MAX_HITS_CHARS, PAGE))
    assert AnswerBounds.of(16_000) == AnswerBounds(1_600, 16_000)


@pytest.mark.parametrize(("window", "most"), [(16_000, 1_500), (64_000, 4_500), (1_000_000, 7_500)])
def test_an_answer_of_a_session_has_a_share_of_what_its_window_can_bear(window: int, most: int) -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s", context_length=window)
        for number in range(8):
            source = SOURCE.replace("value", f"value_{number}")
            session.append(call(number, "read_file", {"path": f"src/part_{number}.py"}, source))
        found = session.recall().run("context_search", {"query": "source skip def"}).text
        assert most / 3 < len(found) <= most
        handle = session.search("source skip def")[0].handle
        shown = session.recall().run("context_unfold", {"handle": handle, "start": 0}).text
        assert len(shown) <= min(window // 2 + 200, PAGE + 200)
        assert "go on with start=" in shown


def test_the_passage_that_was_typed_is_shown_and_not_one_with_its_words_alone() -> None:
    recall = InMemorySource({"mf-000000000001": read(TALK).messages}).recall(lambda text: text, AnswerBounds(800, 800))
    answer = recall.run("context_search", {"query": "def value_end"})
    assert "def value_end(source: bytes) -> int:" in answer.text
    assert "def value_end_of" not in answer.text
    assert len(json.dumps(answer.text)) < 1_500


def test_a_sign_beside_a_word_is_part_of_what_was_typed() -> None:
    source = "\n".join([*(f"use(STUB, {n})" for n in range(200)), 'STUB = "[lost]"', *(f"use({n})" for n in range(99))])
    talk = [user("Go."), *call(1, "read_file", {"path": "src/laws.py"}, source), assistant("Read.")]
    recall = InMemorySource({"mf-000000000001": read(talk).messages}).recall(lambda text: text, AnswerBounds(800, 800))
    assert 'STUB = "[lost]"' in recall.run("context_search", {"query": "STUB ="}).text
