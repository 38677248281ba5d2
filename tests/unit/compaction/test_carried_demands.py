"""User demands stay verbatim, however often a model omits them; nothing is added as filler."""

from __future__ import annotations

from typing import Any

import midfold
from midfold.compaction.handoff import recognise
from support.fixtures import call, number_lines

STUB = "## Goal\nDo the work.\n\n## Progress\n### Done\n- Some of it.\n"
DEMAND = "Every note must end with the line: 'checked for release 4711'."


def folded_again_and_again(times: int) -> str:
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": f"Document the source tree. {DEMAND} Start with the core."},
        {"role": "assistant", "content": "I will."},
    ]
    state: Any = None
    for number in range(times):
        messages.append({"role": "user", "content": f"Now the package number {number}."})
        for step in range(12):
            text = number_lines(f"line {{n}} of step_{number}_{step}: value {number * 1000 + step + 5000}", 12)
            messages += call(number * 100 + step, "terminal", {"command": f"cksum part_{number}_{step}.py"}, text)
        messages.append({"role": "assistant", "content": f"Package {number} is done."})
        done = midfold.compact(messages, context_length=16_000, force=True, summarizer=lambda ask: STUB, state=state)
        assert done.changed
        messages, state = list(done.messages), done.state
    (body,) = [
        ours.body for message in midfold.read(messages).messages if (ours := recognise(message)) and ours.kind == "fold"
    ]
    return body


def test_demands_and_asks_are_carried_from_fold_to_fold() -> None:
    body = folded_again_and_again(5)
    assert DEMAND in body
    assert body.count(DEMAND) <= 2
    assert "Now the package number 2." in body


def test_lines_of_an_earlier_ledger_keep_one_dash() -> None:
    body = folded_again_and_again(6)
    assert "- - " not in body


def test_room_that_a_summary_leaves_is_not_filled_with_lines_of_the_fold() -> None:
    body = folded_again_and_again(3)
    assert "value 5" not in body, "a line of a tool's output that nobody asked for"
    assert midfold.Meter().counter.count(body) < 0.4 * 0.05 * 16_000
