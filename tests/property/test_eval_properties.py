"""Properties of the retention measure, for any conversation."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midfold.lab.compactors import bare_list
from midfold.lab.message_text import note
from midfold.lab.recorded_sessions import Cut, RecordedSession
from midfold.lab.retention_facts import facts_in, places, surroundings
from midfold.lab.retention_score import Case, case_at, demands, recall_search, score
from midfold.transcript.document import read
from midfold.transcript.message import Message, Transcript
from support.fixtures import assistant, call, user
from support.timing import assert_in_proportion

WORDS = ["harbour", "gateway", "vessel", "anchor", "crane", "ledger", "invoice", "region", "mayor", "winter"]
FACTS = ["src/a_b.py", "48213", "HarbourGate", "OPS-1432", "9f3c2ab", "--keep-going", "MAX_SHIPS", "v1.2.3"]
texts = st.lists(st.sampled_from(WORDS + FACTS), max_size=7).map(lambda found: " ".join(["harbour gateway", *found]))
"""Texts so short that the first two words are close to everything."""


@st.composite
def messages(draw: st.DrawFn) -> list[dict[str, Any]]:
    turns: list[dict[str, Any]] = []
    for number in range(draw(st.integers(1, 12))):
        kind = draw(st.sampled_from(["user", "assistant", "call"]))
        if kind == "call":
            turns += call(number, "read_file", {"path": draw(texts)}, draw(texts))
        else:
            turns.append({"role": kind, "content": draw(texts)})
    return turns


def exam_of(past: list[dict[str, Any]], future: list[dict[str, Any]]) -> tuple[Transcript, Case]:
    whole = read([*past, *future]).messages
    session = RecordedSession(
        "talk", 1, "project", "openai-chat", whole, tuple(message.role == "user" for message in whole)
    )
    cut = Cut(session, len(past))
    return cut.past, case_at(cut, search=recall_search)


@given(messages(), messages())
def test_keeping_everything_keeps_every_fact(past: Any, future: Any) -> None:
    kept, exam = exam_of(past, future)
    if exam.needs:
        marks = score(kept, exam)
        assert (marks.share, marks.bound, marks.searched) == (1.0, 1.0, 1.0)
        assert {marks.hard, marks.far, marks.action, marks.demands} <= {None, 1.0}


@given(messages(), messages())
def test_a_bare_list_of_identifiers_keeps_nothing(past: Any, future: Any) -> None:
    kept, exam = exam_of(past, future)
    if exam.needs:
        assert score(bare_list(kept, 10_000), exam).bound == 0


@given(messages(), messages(), st.data())
def test_more_text_never_keeps_less(past: Any, future: Any, data: st.DataObject) -> None:
    kept, exam = exam_of(past, future)
    if not exam.needs:
        return
    chosen = data.draw(st.lists(st.booleans(), min_size=len(kept), max_size=len(kept)))
    some = tuple(message for message, taken in zip(kept, chosen, strict=True) if taken)
    more: tuple[Message, ...] = (*some, note(data.draw(texts)), *(set(kept) - set(some)))
    before, after = score(some, exam), score(more, exam)
    for less, greater in zip(before, after, strict=True):
        assert less is None or (greater is not None and less <= greater)


@given(st.text(max_size=300))
def test_every_fact_stands_in_its_text(text: str) -> None:
    for fact, _ in facts_in(text):
        assert fact in text


@given(messages(), messages())
def test_a_search_only_adds(past: Any, future: Any) -> None:
    kept, exam = exam_of(past, future)
    if exam.needs:
        marks = score(kept[-1:], exam)
        assert marks.searched is not None
        assert marks.searched >= marks.bound


HOSTILE = {
    "one chunk": "a_" * 50,
    "dots": "a.",
    "slashes": "a/",
    "hyphens": "a-1-",
    "tags": "<system-reminder>",
    "fences": "``` ",
    "labels": "label: ",
    "escapes": "\\n",
    "hits": "src/a_b.py ",
    "letters": "harbour",
}


def read_all(text: str) -> None:
    list(facts_in(text))
    surroundings(text, "src/a_b.py", list(places(text, "src/a_b.py")))
    demands(read([user(text)]).messages)
    recall_search(read([assistant(text)]).messages, "harbour label")


@pytest.mark.parametrize("unit", HOSTILE.values(), ids=HOSTILE.keys())
def test_reading_is_linear_in_the_text(unit: str) -> None:
    small = unit * (60_000 // len(unit))
    assert_in_proportion(read_all, small, (small * 4, 8))
