"""Tool definitions, and the toolbox that runs calls; every failure becomes a tool result for the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from midfold.agent.shapes import Result
from midfold.errors import MidfoldError, ToolRefused
from midfold.transcript import jsonio
from midfold.transcript.message import Message, ToolCall
from midfold.transcript.tools import ToolSpec, arguments

_JSON_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


class AgentTool(msgspec.Struct, frozen=True, kw_only=True):
    """Specification and function of a tool; `changes` requires consent, and `label` describes a call in one line."""

    spec: ToolSpec
    run: Callable[..., str]
    changes: bool = False
    label: Callable[[Mapping[str, Any]], str] = lambda arguments: ""


class Toolbox:
    """Collection of the agent's tools. `limit` is the maximum characters of a result."""

    def __init__(self, tools: Sequence[AgentTool], limit: int = 20_000) -> None:
        self.tools = {tool.spec.name: tool for tool in tools}
        self.limit = limit

    @property
    def specs(self) -> tuple[ToolSpec, ...]:
        return tuple(tool.spec for tool in self.tools.values())

    def about(self, call: ToolCall) -> str:
        """Describe in one line what a call would do."""
        tool, given = self.tools.get(call.name), _object(call.arguments)
        return tool.label(given) if tool is not None and given is not None and not _problem(tool.spec, given) else ""

    def needs_consent(self, call: ToolCall) -> bool:
        tool = self.tools.get(call.name)
        return tool is not None and tool.changes

    def run(self, call: ToolCall) -> Result:
        """Run one call and return its result; only a keyboard interrupt propagates."""
        try:
            return Result(call, shorten_middle(_speakable(self._run(call)), self.limit))
        except (MidfoldError, OSError, ValueError, ArithmeticError, RuntimeError, MemoryError) as error:
            return Result(call, shorten_middle(_speakable(f"error: {_words(error)}"), self.limit), is_error=True)

    def _run(self, call: ToolCall) -> str:
        tool = self.tools.get(call.name)
        if tool is None:
            raise ToolRefused(f"there is no tool {call.name[:80]!r}; there are {', '.join(self.tools)}")
        given = _object(call.arguments)
        if given is None:
            raise ToolRefused("the arguments are not a JSON object; perhaps the answer was cut off: send less at once")
        if problem := _problem(tool.spec, given):
            raise ToolRefused(problem)
        return tool.run(**{name: value for name, value in given.items() if value is not None})


def _object(arguments: str) -> dict[str, Any] | None:
    try:
        value = jsonio.decode(arguments)
    except jsonio.NotJSON:
        return None
    return value if isinstance(value, dict) else None


def _problem(spec: ToolSpec, given: Mapping[str, Any]) -> str:
    """Return a description of what is wrong with the arguments, or an empty string."""
    properties = spec.parameters.get("properties", {})
    unknown = [name for name in given if name not in properties]
    if unknown and not spec.parameters.get("additionalProperties"):
        return f"{spec.name} has no argument {unknown[0]!r}; it has {', '.join(properties)}"
    for name in spec.parameters.get("required", ()):
        if given.get(name) is None:
            return f"{spec.name} needs {name!r}"
    for name, value in given.items():
        kind = properties.get(name, {}).get("type")
        known = _JSON_TYPES.get(kind, object) if isinstance(kind, str) else object
        wrong = not isinstance(value, known) or (kind in ("integer", "number") and isinstance(value, bool))
        if value is not None and wrong:
            return f"{name!r} must be of type {kind}"
    return ""


def _words(error: Exception) -> str:
    return (error.strerror or str(error)).lower() if isinstance(error, OSError) else str(error)


def _speakable(text: str) -> str:
    """Replace lone surrogates, which file names may contain and requests may not."""
    return text.encode("utf-8", "backslashreplace").decode()


def shorten_middle(text: str, limit: int) -> str:
    """Truncate the middle of a text to about `limit` characters and state how much was omitted."""
    if len(text) <= limit:
        return text
    head, tail = limit * 2 // 3, limit // 3
    left = text[head:-tail]
    return (
        f"{text[:head]}\n[... {len(left):,} characters, {left.count(chr(10)):,} line ends left out ...]\n{text[-tail:]}"
    )


# The plan: a list of steps that the model maintains. Compaction never loses it.


NAME = "plan"
STATUSES = ("open", "doing", "done")
SIGNS = {"open": "[ ]", "doing": "[>]", "done": "[x]"}
OPENING, CLOSING = "<todo-snapshot>", "</todo-snapshot>"


def plan_tool() -> AgentTool:
    return AgentTool(spec=SPEC, run=write, label=lambda given: f"{len(given['steps'])} steps")


def write(steps: list[Any]) -> str:
    shown = plan_lines(steps)
    done = shown.count(SIGNS["done"])
    return f"the plan has {len(steps)} steps, {done} done"


def plan_lines(steps: list[Any]) -> str:
    """Render the plan as lines."""
    lines: list[str] = []
    for step in steps:
        text, status = (step.get("step"), step.get("status", "open")) if isinstance(step, dict) else (step, "open")
        if not isinstance(text, str) or not text.strip() or status not in STATUSES:
            raise ToolRefused(f"each step is an object with `step`, a text, and `status`, one of {', '.join(STATUSES)}")
        lines.append(f"{SIGNS[status]} {' '.join(text.split())}")
    return "\n".join(lines)


def newest(messages: Iterable[Message]) -> ToolCall | None:
    """Return the latest plan call in the messages, which are given newest first."""
    for message in messages:
        for part in reversed(message.parts):
            if isinstance(part, ToolCall) and part.name == NAME and _steps(part) is not None:
                return part
    return None


def snapshot(call: ToolCall) -> str:
    """Render the plan as a notice to the model, used after the call that wrote it was folded."""
    return f"{OPENING}\nYour plan, as you last wrote it:\n{plan_lines(_steps(call) or [])}\n{CLOSING}"


def _steps(call: ToolCall) -> list[Any] | None:
    """Return the steps of an accepted call, or None."""
    try:
        given = jsonio.decode(call.arguments)
        steps = given.get("steps") if isinstance(given, dict) else None
        return steps if isinstance(steps, list) and plan_lines(steps) else None
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
