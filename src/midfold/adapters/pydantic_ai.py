"""midfold as a capability of pydantic-ai 2.x agents: `pip install 'midfold[pydantic-ai]'`.

    agent = Agent("openai:gpt-4o", capabilities=[MidfoldCapability()])

The run's messages are never changed, only what is sent to the model; kept messages are the same objects. midfold's
state is in the `metadata` of responses, so it travels with the messages and is not sent to the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import replace
from itertools import groupby
from typing import Any, NamedTuple, Unpack

from pydantic_ai import BinaryContent, FunctionToolset, ImageUrl, ModelRequest, ModelResponse, RetryModelRequest, Tool
from pydantic_ai.capabilities import AbstractCapability
from pydantic_ai.messages import (
    InstructionPart,
    RetryFeedbackPart,
    SystemPromptPart,
    TextPart,
    ThinkingPart,
    ToolCallPart,
    ToolReturnPart,
    UserPromptPart,
)

from midfold import ToolSpec, look_up_model
from midfold.adapters.folded_history import (
    RECALL_TOOLS,
    FoldedHistory,
    Histories,
    HistorySettings,
    answer_recall,
    type_name,
)

NAME = "midfold"
"""Metadata key of midfold's state in responses."""


class HistoryUnit(NamedTuple):
    """Unit that midfold treats as a message: one part of a request, or a whole response (`part` is None)."""

    message: Any
    part: Any
    wire: dict[str, Any] | None


class MidfoldCapability(AbstractCapability[Any]):
    """Agent capability that keeps requests inside the model's window.

    The keyword arguments are those of `Histories`. Without `recall` the agent has no recall tools.
    """

    _history: FoldedHistory | None = None
    _kept: dict[str, Any] | None = None
    _refused = False

    def __init__(self, *, recall: bool = True, **settings: Unpack[HistorySettings]) -> None:
        self._histories, self._recall = Histories(**settings), recall

    async def for_run(self, ctx: Any) -> MidfoldCapability:
        run = copy(self)
        found = (message.metadata or {} for message in reversed(ctx.messages) if isinstance(message, ModelResponse))
        run._kept = next((metadata[NAME] for metadata in found if NAME in metadata), None)
        run._history, run._refused = None, False
        return run

    def get_toolset(self) -> Any:
        return FunctionToolset([self._tool(spec) for spec in RECALL_TOOLS]) if self._recall else None

    async def prepare_model_request(self, ctx: Any, request_context: Any) -> Any:
        units = list(_units(request_context.messages))
        parameters = request_context.model_request_parameters
        system = "\n\n".join(part.content for part in parameters.instruction_parts or ()) or None
        tools = parameters.function_tools
        history = self._history = self._histories.open(
            units,
            [unit.wire for unit in units],
            self._kept,
            kind=lambda unit: type_name(unit.message if unit.part is None else unit.part),
            model=_smallest(request_context.model),
            system=system,
            tools=[ToolSpec(tool.name, tool.description or "", tool.parameters_json_schema) for tool in tools],
        )
        await history.fold_async(force=self._refused)
        if not history.is_folded:
            return request_context
        if history.note:
            parts = [*parameters.instruction_parts, InstructionPart(history.note)]
            parameters = replace(parameters, instruction_parts=parts)
        messages = list(_messages(units, history))
        return replace(request_context, messages=messages, model_request_parameters=parameters)

    async def on_model_request_error(self, ctx: Any, *, request_context: Any, error: Exception) -> Any:
        history = self._history
        if history is None or self._refused or not history.learn_refusal(error):
            raise error
        self._kept, self._refused = history.keep(), True
        raise RetryModelRequest

    async def after_model_request(self, ctx: Any, *, request_context: Any, response: Any) -> Any:
        history, before = self._history, self._kept
        if history is None:
            return response
        self._refused, used = False, response.usage
        history.observe_tokens(used.input_tokens, used.output_tokens, used.cache_read_tokens)
        self._kept = history.keep()
        if before is not None and _lasting(before) == _lasting(self._kept):
            return response
        return replace(response, metadata={**(response.metadata or {}), NAME: self._kept})

    def _tool(self, spec: Any) -> Tool[Any]:
        def run(**arguments: Any) -> str:
            answer = answer_recall if self._history is None else self._history.answer
            return answer(spec.name, arguments).text

        return Tool.from_schema(run, spec.name, spec.description, dict(spec.parameters))


def _smallest(model: Any) -> str:
    """Return the model; of a fallback chain, the one with the smallest window."""
    names: list[str] = [one.model_name for one in getattr(model, "models", [model])]
    return min(names, key=lambda name: look_up_model(name).model.context_window)


def _lasting(kept: Mapping[str, Any]) -> Any:
    """Return the state that must survive; learned numbers are measured again in a new run."""
    return kept["plan"], kept["memory"]["state"]


def _units(messages: Sequence[Any]) -> Iterator[HistoryUnit]:
    for message in messages:
        if isinstance(message, ModelRequest):
            yield from (HistoryUnit(message, part, _request_wire(part)) for part in message.parts)
        else:
            yield HistoryUnit(message, None, _response_wire(message))


def _request_wire(part: Any) -> dict[str, Any] | None:
    if isinstance(part, SystemPromptPart):
        return {"role": "system", "content": part.content}
    if isinstance(part, ToolReturnPart):
        said = part.content_items(mode="str") if part.files else part.model_response_str()
        wire = {"role": "tool", "tool_call_id": part.tool_call_id}
    elif isinstance(part, RetryFeedbackPart | UserPromptPart):
        said = part.content if isinstance(part, UserPromptPart) else part.model_response()
        wire = {"role": "user"}
    else:
        return None
    content = said if isinstance(said, str) else [_block(item) for item in said]
    return None if isinstance(content, list) and None in content else {**wire, "content": content}


def _block(item: Any) -> dict[str, Any] | None:
    if isinstance(item, str):
        return {"type": "text", "text": item}
    if isinstance(item, ImageUrl):
        return {"type": "image_url", "image_url": {"url": item.url}}
    if isinstance(item, BinaryContent) and item.is_image:
        return {"type": "image_url", "image_url": {"url": item.data_uri}}
    return None


def _item(block: Mapping[str, Any]) -> Any:
    if block["type"] != "image_url":
        return block.get("text", "")
    url = block["image_url"]["url"]
    return BinaryContent.from_data_uri(url) if url.startswith("data:") else ImageUrl(url)


def _response_wire(message: Any) -> dict[str, Any] | None:
    """Convert a response; one with calls is always converted, because the results that follow are."""
    parts, calls = message.parts, []
    for part in (part for part in parts if isinstance(part, ToolCallPart)):
        function = {"name": part.tool_name, "arguments": part.args_as_json_str()}
        calls.append({"id": part.tool_call_id, "type": "function", "function": function})
    if not calls and not all(isinstance(part, TextPart | ThinkingPart) for part in parts):
        return None
    text = "".join(part.content for part in parts if isinstance(part, TextPart))
    return {"role": "assistant", "content": text or None, **({"tool_calls": calls} if calls else {})}


def _messages(units: Sequence[HistoryUnit], history: FoldedHistory) -> Iterator[Any]:
    """Yield the messages to send; a request that is sent whole is the same object."""
    known = {("tool", unit.part.tool_call_id): unit for unit in units if isinstance(unit.part, ToolReturnPart)}
    known |= {("assistant", call["id"]): unit for unit in units for call in (unit.wire or {}).get("tool_calls", ())}
    chosen = history.select(units, lambda wire: _unit_for(wire, known))
    for _, group in groupby(chosen, key=lambda unit: id(unit.message)):
        first, *more = group
        sent = first.message.parts if first.part is None else [first.part, *(unit.part for unit in more)]
        whole = list(map(id, sent)) == list(map(id, first.message.parts))
        yield first.message if whole else replace(first.message, parts=sent)


def _unit_for(wire: Mapping[str, Any], known: Mapping[tuple[str, str], HistoryUnit]) -> HistoryUnit:
    """Convert a generated message; if it replaces one of the history, keep the other fields of that message."""
    content, role = wire.get("content") or "", wire["role"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    text = "".join(block.get("text", "") for block in blocks)
    said = text if all(block["type"] == "text" for block in blocks) else [_item(block) for block in blocks]
    if role == "tool":
        unit = known[role, wire["tool_call_id"]]
        return HistoryUnit(unit.message, replace(unit.part, content=said), None)
    if role == "assistant":
        arguments = {call["id"]: call["function"]["arguments"] for call in wire.get("tool_calls") or ()}
        if not arguments:
            return HistoryUnit(ModelResponse([TextPart(text)]), None, None)
        message = known[role, next(iter(arguments))].message
        changed = [
            replace(part, args=arguments[part.tool_call_id]) if isinstance(part, ToolCallPart) else part
            for part in message.parts
        ]
        return HistoryUnit(replace(message, parts=changed), None, None)
    made = SystemPromptPart(text) if role == "system" else UserPromptPart(said)
    return HistoryUnit(ModelRequest([made]), made, None)
