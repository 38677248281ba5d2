"""The plan: a list of steps the model keeps. It is never lost to a fold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from midfold.agent.tools.base import Tool
from midfold.errors import ToolRefused
from midfold.transcript import jsonio
from midfold.transcript.message import Message, ToolCall
from midfold.transcript.tools import ToolSpec, arguments

NAME = "plan"
STATUSES = ("open", "doing", "done")
SIGNS = {"open": "[ ]", "doing": "[>]", "done": "[x]"}
OPENING, CLOSING = "<todo-snapshot>", "</todo-snapshot>"


def plan_tool() -> Tool:
    return Tool(spec=SPEC, run=write, told=lambda given: f"{len(given['steps'])} steps")


def write(steps: list[Any]) -> str:
    shown = drawn(steps)
    done = shown.count(SIGNS["done"])
    return f"the plan has {len(steps)} steps, {done} done"


def drawn(steps: list[Any]) -> str:
    """The plan as lines."""
    lines: list[str] = []
    for step in steps:
        text, status = (step.get("step"), step.get("status", "open")) if isinstance(step, dict) else (step, "open")
        if not isinstance(text, str) or not text.strip() or status not in STATUSES:
            raise ToolRefused(f"each step is an object with `step`, a text, and `status`, one of {', '.join(STATUSES)}")
        lines.append(f"{SIGNS[status]} {' '.join(text.split())}")
    return "\n".join(lines)


def newest(messages: Iterable[Message]) -> ToolCall | None:
    """The newest plan that was written in these messages, the newest first."""
    for message in messages:
        for part in reversed(message.parts):
            if isinstance(part, ToolCall) and part.name == NAME and _steps(part) is not None:
                return part
    return None


def snapshot(call: ToolCall) -> str:
    """The plan as a notice to the model, after the call that wrote it was folded."""
    return f"{OPENING}\nYour plan, as you last wrote it:\n{drawn(_steps(call) or [])}\n{CLOSING}"


def _steps(call: ToolCall) -> list[Any] | None:
    """The steps of a call that was accepted; None for one that was not."""
    try:
        given = jsonio.decode(call.arguments)
        steps = given.get("steps") if isinstance(given, dict) else None
        return steps if isinstance(steps, list) and drawn(steps) else None
    except (jsonio.NotJSON, ToolRefused):
        return None


SPEC = ToolSpec(
    name=NAME,
    description="Write down the steps of a longer task and where you are. Each call replaces the whole plan.",
    parameters=arguments(
        {
            "steps": {
                "type": "array",
                "description": "All steps in order.",
                "items": {
                    "type": "object",
                    "properties": {
                        "step": {"type": "string"},
                        "status": {"type": "string", "enum": list(STATUSES)},
                    },
                    "required": ["step", "status"],
                },
            }
        },
        "steps",
    ),
)
