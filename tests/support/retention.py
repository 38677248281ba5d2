"""Small agent session with a known future: which information it needs, and when."""

from __future__ import annotations

from typing import Any

from midfold.lab.recorded_sessions import Cut, RecordedSession, sessions_of
from midfold.transcript.document import read
from support.fixtures import assistant, call, user

STEPS = 40
LEAST_PAST = 400


def path(number: int) -> str:
    return f"services/billing/ledger_{number}.py"


def port(number: int) -> int:
    return 41_000 + 7 * number


def conversation(steps: int = STEPS, *, name: str = "talk") -> dict[str, Any]:
    """Build a session whose steps each read one file; from the tenth on it reuses a finding of nine steps before."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "You are careful. The hidden_rule is not for the measure."},
        user(f"Please tidy up {name}. You must never touch the invoices table. Thanks!"),
    ]
    for number in range(steps):
        found = f"The handler of region {number} listens on port: {port(number)} and writes orders.\n" + "filler " * 40
        arguments = {"path": path(number), "reason": "look at the handler"}
        messages += call(number, "read_file", arguments, found)
        if number >= 9:
            old = number - 9
            messages += call(500 + number, "connect", {"to": f"the region handler at {port(old)}"}, "connected")
            messages.append(assistant(f"Going back to {path(old)}, which I read to look at the handler."))
            messages.append(user("Go on."))
    return {"id": name, "source": "tests", "messages": messages}


def session(steps: int = STEPS, *, name: str = "talk") -> RecordedSession:
    (only,) = sessions_of(read(conversation(steps, name=name)))
    return only


def cut(at: int = 60, steps: int = STEPS) -> Cut:
    return Cut(session(steps), at)
