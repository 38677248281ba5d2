"""A coding session that never ends: a model that calls tools, and a client that answers them.

    session = CodingSession(OpenAIChat(client, "gpt-4o"), turns=300)
    session.run()

The client resends its whole history with every request, as agents do. Everything is the same on every run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from midfold.testing.doubles import Request
from midfold.testing.fixtures import numbered
from midfold.testing.provider_replies import Turn

SYSTEM = "You are a careful software engineer. Use the tools; keep the user informed. " + numbered(
    "House rule {n}: small commits, tests first, no new dependency without asking.", 12
)
EVERY = 12
"""So many turns after which the user speaks again."""
TOOLS: tuple[tuple[str, str], ...] = (("read_file", "path"), ("terminal", "command"))


def model(request: Request) -> Turn:
    """What the model does next, from what it has seen: two tools in turn, a word to the user now and then."""
    number = sum(map(ord, request.raw[-400:].decode("latin-1"))) % 7919
    said = request.raw.count(b'"assistant"')
    last = request.raw.rfind(b"Go on with module")
    asked = last >= 0 and max(request.raw.rfind(b'"tool_result"'), request.raw.rfind(b'"tool"')) < last
    if b"please report" in request.raw[-600:]:
        return Turn(f"Module {number % 40} is done: its {number % 9} tests pass, and nothing else was touched.")
    thought = "Let me look at it first." if asked else ""
    if number % 2:
        call = (f"call_{number}_{said}", "read_file", {"path": f"src/billing/m{number % 40}.py"})
    else:
        call = (f"call_{number}_{said}", "terminal", {"command": f"pytest tests/m{number % 40} -q"})
    return Turn(thought, (call,))


def tool(name: str, arguments: Mapping[str, Any], turn: int) -> str:
    """What a tool prints; about two kilobytes of code or of test results."""
    if name == "read_file":
        path = str(arguments.get("path"))
        return numbered(f"def total_{turn}_{{n}}(invoice):  # {path}:{{n}} of revision {turn}", 28)
    failing = "\nE   AssertionError: total is 3, expected 4" if turn % 5 == 0 else ""
    return numbered(f"tests/test_{turn}.py::test_{{n}} PASSED", 40) + failing + f"\nexit code {int(bool(failing))}"


def user_text(turn: int) -> str:
    return f"Go on with module {turn % 40}. Keep the public API; ticket BILL-{1000 + turn}."


class Wire:
    """How one SDK is spoken to: a history in its own shape."""

    def __init__(self, send: Callable[[list[Any]], tuple[list[Any], list[tuple[str, str, Mapping[str, Any]]]]]) -> None:
        self.send = send

    def user(self, text: str) -> list[Any]:
        return [{"role": "user", "content": text}]

    def results(self, answers: list[tuple[str, str]]) -> list[Any]:
        return [{"role": "tool", "tool_call_id": call, "content": text} for call, text in answers]


class OpenAIChat(Wire):
    """The official `openai` client on chat completions."""

    def __init__(self, client: Any, model: str, *, stream: bool = False, **options: Any) -> None:
        self.client, self.model, self.stream, self.options = client, model, stream, options
        super().__init__(self._send)

    def _send(self, history: list[Any]) -> tuple[list[Any], list[tuple[str, str, Mapping[str, Any]]]]:
        messages = [{"role": "system", "content": SYSTEM}, *history]
        tools = [{"type": "function", "function": spec} for spec in tool_specs("parameters")]
        options = {"model": self.model, "messages": messages, "tools": tools, **self.options}
        if self.stream:
            with self.client.chat.completions.stream(**options) as stream:
                message = stream.get_final_completion().choices[0].message
        else:
            message = self.client.chat.completions.create(**options).choices[0].message
        calls = [
            (call.id, call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()
        ]
        kept: dict[str, Any] = {"role": "assistant", "content": message.content}
        if calls:
            kept["tool_calls"] = [
                {"id": call, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
                for call, name, arguments in calls
            ]
        return [kept], calls


class OpenAIResponses(Wire):
    """The official `openai` client on responses, stateless."""

    def __init__(self, client: Any, model: str, *, stream: bool = False, **options: Any) -> None:
        self.client, self.model, self.stream, self.options = client, model, stream, options
        super().__init__(self._send)

    def _send(self, history: list[Any]) -> tuple[list[Any], list[tuple[str, str, Mapping[str, Any]]]]:
        tools = [{"type": "function", "strict": False, **spec} for spec in tool_specs("parameters")]
        options = {"model": self.model, "input": history, "instructions": SYSTEM, "tools": tools, **self.options}
        if self.stream:
            with self.client.responses.stream(**options) as stream:
                response = stream.get_final_response()
        else:
            response = self.client.responses.create(**options)
        items = [item.model_dump(exclude_unset=True, exclude={"parsed_arguments"}) for item in response.output]
        calls = [
            (item["call_id"], item["name"], json.loads(item["arguments"]))
            for item in items
            if item["type"] == "function_call"
        ]
        return items, calls

    def results(self, answers: list[tuple[str, str]]) -> list[Any]:
        return [{"type": "function_call_output", "call_id": call, "output": text} for call, text in answers]


class AnthropicMessages(Wire):
    """The official `anthropic` client."""

    def __init__(self, client: Any, model: str, *, stream: bool = False, max_tokens: int = 1_024) -> None:
        self.client, self.model, self.stream, self.max_tokens = client, model, stream, max_tokens
        super().__init__(self._send)

    def _send(self, history: list[Any]) -> tuple[list[Any], list[tuple[str, str, Mapping[str, Any]]]]:
        options = {
            "model": self.model,
            "messages": history,
            "system": SYSTEM,
            "max_tokens": self.max_tokens,
            "tools": tool_specs("input_schema"),
        }
        if self.stream:
            with self.client.messages.stream(**options) as stream:
                message = stream.get_final_message()
        else:
            message = self.client.messages.create(**options)
        fields = {"text": ("type", "text"), "tool_use": ("type", "id", "name", "input")}
        blocks = [{key: getattr(block, key) for key in fields[block.type]} for block in message.content]
        calls = [(block["id"], block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
        return [{"role": "assistant", "content": blocks}], calls

    def results(self, answers: list[tuple[str, str]]) -> list[Any]:
        blocks = [{"type": "tool_result", "tool_use_id": call, "content": text} for call, text in answers]
        return [{"role": "user", "content": blocks}]


def tool_specs(key: str) -> list[dict[str, Any]]:
    return [
        {
            "name": name,
            "description": f"Run {name.replace('_', ' ')}.",
            key: {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]},
        }
        for name, argument in TOOLS
    ]


class CodingSession:
    """A client at work."""

    def __init__(self, wire: Wire, turns: int) -> None:
        self.wire, self.turns = wire, turns
        self.history: list[Any] = []
        self.done = 0

    def run(self, each: Callable[[int], None] | None = None) -> None:
        """All turns; what the client raises ends it, and `done` says how far it came."""
        self.history += self.wire.user("Fix the billing service, module by module. " + user_text(0))
        for turn in range(1, self.turns + 1):
            self.step(turn)
            self.done = turn
            if each is not None:
                each(turn)

    def step(self, turn: int) -> None:
        said, calls = self.wire.send(self.history)
        self.history += said
        if calls:
            answers = [(call, tool(name, arguments, turn)) for call, name, arguments in calls]
            if turn % EVERY == 0:
                answers = [(call, text + "\nplease report") for call, text in answers]
            self.history += self.wire.results(answers)
        else:
            self.history += self.wire.user(user_text(turn))


def unique_calls(text: str) -> int:
    """How many different calls a text has, for tests that look for lost ones."""
    return len(set(re.findall(r"call_\d+_\d+", text)))
