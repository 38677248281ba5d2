"""Build sessions as real clients send them: a recorded opening (`tests/data/clients`), tool work, a second user
message.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RECORDED = Path(__file__).parents[1] / "data" / "clients"
FIRST_ASK = "First ask: rename foo to bar. FACT-ONE"
SECOND_ASK = "Second ask: now write the notes for release 3.4.1, in two lines."
RULE = "- Never push to main. RULE-7731"
RULES = "\n".join([RULE, *(f"- Module {number} is owned by team {number * 7}; ask it first." for number in range(30))])
"""Project rules of realistic length, too long for a summary to include in full."""
WINDOW = 25_000


def recorded(name: str) -> dict[str, Any]:
    """Return the client, its dialect and the messages it sent."""
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text())
    return found


def opening(name: str) -> list[dict[str, Any]]:
    """Return the messages before the first answer, or all if the client compacted the conversation itself."""
    messages: list[dict[str, Any]] = json.loads(json.dumps(recorded(name)["messages"]).replace(RULE, _written(RULES)))
    answered = [place for place, message in enumerate(messages) if message["role"] == "assistant"]
    return messages if name.endswith("compacted") else messages[: answered[0]]


def _written(text: str) -> str:
    return json.dumps(text)[1:-1]


def prompt(dialect: str, text: str) -> dict[str, Any]:
    if dialect == "anthropic":
        return {"role": "user", "content": [{"type": "text", "text": text}]}
    if dialect == "openai-responses":
        return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
    return {"role": "user", "content": text}


def answer(dialect: str, text: str) -> dict[str, Any]:
    if dialect == "anthropic":
        return {"role": "assistant", "content": [{"type": "text", "text": text}]}
    if dialect == "openai-responses":
        return {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}
    return {"role": "assistant", "content": text}


def rounds(dialect: str, start: int, count: int, result: str = "") -> list[dict[str, Any]]:
    """Return calls with results of about 450 tokens each, all containing `result`."""
    out: list[dict[str, Any]] = []
    for number in range(start, start + count):
        text = f"{result}step {number} went through\n" + f"line {number} of the log is fine\n" * 55
        given = json.dumps({"command": f"make step-{number}"})
        if dialect == "anthropic":
            call = {"type": "tool_use", "id": f"t{number}", "name": "Bash", "input": json.loads(given)}
            back = {"type": "tool_result", "tool_use_id": f"t{number}", "content": text}
            out += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [back]}]
        elif dialect == "openai-responses":
            out.append({"type": "function_call", "call_id": f"t{number}", "name": "shell", "arguments": given})
            out.append({"type": "function_call_output", "call_id": f"t{number}", "output": text})
        else:
            function = {"name": "shell", "arguments": given}
            call = {"id": f"t{number}", "type": "function", "function": function}
            out.append({"role": "assistant", "content": None, "tool_calls": [call]})
            out.append({"role": "tool", "tool_call_id": f"t{number}", "content": text})
    return out


def pieces(name: str, folds: int = 5, result: str = "") -> list[list[dict[str, Any]]]:
    """Return a session with two user messages, split into pieces that each lead to a fold."""
    dialect = recorded(name)["dialect"]
    work = [rounds(dialect, 60 * number, 60, result) for number in range(folds)]
    done = answer(dialect, "foo is renamed to bar in all 14 files.")
    return [[*opening(name), *work[0]], [*work[1], done, prompt(dialect, SECOND_ASK), *work[2]], *work[3:]]
