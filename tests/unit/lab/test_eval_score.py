from __future__ import annotations

from midfold.lab.retention_score import query_of, recall_search
from midfold.recall import MAX_HITS_CHARS
from midfold.transcript.document import read
from support.fixtures import assistant, user

PAST = read(
    [
        *(user(f"Filler about topic {number}, nothing more to say.") for number in range(40)),
        user("The harbour master keeps a list of vessels at 48213."),
        assistant("Thank you kindly."),
        *(user(f"Filler about topic {number}, nothing more to say.") for number in range(40, 80)),
    ]
).messages


def test_the_query_is_the_step_without_any_needed_fact() -> None:
    assert query_of('open "src/a_b.py" at 48213 now', ["48213", "src/a_b.py"]).split() == ["open", "at", "now"]


def test_the_search_is_what_a_tool_tells() -> None:
    assert "48213" in recall_search(PAST, "which list of vessels has the harbour master")
    assert "48213" not in recall_search(PAST, "topic")
    assert recall_search((), "harbour") == recall_search(PAST, "") == ""
    long = read([user("harbour vessel\n" * 50_000)]).messages
    assert len(recall_search(long, "harbour")) <= MAX_HITS_CHARS + 200
