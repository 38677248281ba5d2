"""Run official clients on the coding session of `midfold demo`: CodingSession(OpenAIChat(client, "gpt-4o"), 300)."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from midfold.cli.demo_session import SYSTEM, next_turn, tool_specs
from midfold.testing.doubles import Request
from support.provider_replies import Turn


def model(request: Request) -> Turn:
    return Turn(*next_turn(request.raw))


class Wire:
    """Adapter for one SDK that keeps the history in the SDK's own format."""

    def __init__(self, send: Callable[[list[Any]], tuple[list[Any], list[tuple[str, str, Mapping[str, Any]]]]]) -> None:
        self.send = send

    def results(self, answers: list[tuple[str, str]]) -> list[Any]:
        return [{"role": "tool", "tool_call_id": call, "content": text} for call, text in answers]


class OpenAIChat(Wire):
    """Official `openai` client on chat completions."""

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
    """Official `openai` client on the Responses API, stateless."""

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
    """Official `anthropic` client."""

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


def unique_calls(text: str) -> int:
    """Return the number of distinct calls in a text, for tests that look for lost ones."""
    return len(set(re.findall(r"call_\d+_\d+", text)))
