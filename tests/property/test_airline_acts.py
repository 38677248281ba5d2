"""Completed acts are reported as done in every shared airline session."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import midfold
from midfold.compaction.handoff import recognise
from midfold.compaction.summary import parse_summary
from midfold.transcript.message import ToolCall, ToolResult

DATA = Path(__file__).parents[3] / "shared" / "data" / "tau_airline_gpt4o" / "conversations.jsonl"
ACTS = ("cancel_reservation", "book_reservation", "update_reservation_flights", "send_certificate")


def sessions() -> list[list[dict[str, object]]]:
    if not DATA.exists():
        return []
    return [json.loads(line)["messages"] for line in DATA.read_text("utf-8").splitlines()]


def acts(messages: list[dict[str, object]]) -> list[tuple[str, str]]:
    """Return the successful acts of a session with their subjects."""
    found: list[tuple[str, str]] = []
    calls: dict[str, tuple[str, str]] = {}
    for message in midfold.read(messages).messages:
        for part in message.parts:
            if isinstance(part, ToolCall) and part.name in ACTS:
                given = json.loads(part.arguments)
                calls[part.id] = (part.name, str(given.get("reservation_id") or given.get("user_id")))
            elif isinstance(part, ToolResult) and part.call_id in calls and not part.text.startswith("Error"):
                found.append(calls.pop(part.call_id))
    return found


@pytest.mark.skipif(not DATA.exists(), reason="the shared airline sessions are not beside this folder")
def test_what_was_done_is_told_as_done_and_not_asked_for_again() -> None:
    told, missing = 0, []
    for number, messages in enumerate(sessions()):
        done = midfold.compact(messages, target_tokens=3_000, force=True)
        view = "\n".join(f"{message.text} {message.parts}" for message in midfold.read(done.messages).messages)
        bodies = [ours.body for message in midfold.read(done.messages).messages if (ours := recognise(message))]
        assert not any(parse_summary(body).pending for body in bodies)
        for act, subject in acts(messages):
            told += 1
            if act not in view or subject not in view:
                missing.append((number, act, subject))
    assert told > 10
    assert missing == []
