"""midfold as a Google ADK plugin: `pip install 'midfold[adk]'`.

    plugin = MidfoldPlugin()
    agent = LlmAgent(name="helper", model=..., tools=[..., *plugin.tools])
    runner = Runner(app=App(name="app", root_agent=agent, plugins=[plugin]), session_service=...)

The session's events are never changed, only what is sent to the model; kept contents are the same objects. midfold's
state is in the session's state under `midfold:` and the agent's name.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Unpack

from google.adk.plugins.base_plugin import BasePlugin
from google.adk.tools.base_tool import BaseTool
from google.genai import types

from midfold import ToolSpec
from midfold.adapters.folded_history import (
    RECALL_TOOLS,
    FoldedHistory,
    Histories,
    HistorySettings,
    RunningHistories,
    answer_recall,
)

DIALECT = "anthropic"
Wire = dict[str, Any]


class MidfoldPlugin(BasePlugin):
    """ADK plugin that keeps every agent's requests inside its model's window.

    The keyword arguments are those of `Histories`. Give `tools` to agents, to let them search and unfold folded
    messages.
    """

    def __init__(self, **settings: Unpack[HistorySettings]) -> None:
        super().__init__(name="midfold")
        self._histories = Histories(**settings)
        self._running = RunningHistories()
        self.tools = [RecallTool(spec, self._running) for spec in RECALL_TOOLS]

    async def before_model_callback(self, *, callback_context: Any, llm_request: Any) -> None:
        contents = llm_request.contents
        wires = list(_wires(contents))
        system = llm_request.config.system_instruction
        history = self._histories.open(
            contents,
            wires,
            callback_context.state.get(_place(callback_context)),
            kind=_kind,
            model=llm_request.model,
            system=system if isinstance(system, str) else None,
            tools=[
                ToolSpec(tool.name, tool.description or "", _schema(tool)) for tool in llm_request.tools_dict.values()
            ],
            dialect=DIALECT,
        )
        await history.fold_async()
        self._running[_run(callback_context)] = history
        _keep(callback_context, history)
        if history.is_folded:
            llm_request.contents = history.select(contents, lambda wire: _content(wire, contents, wires))
            if isinstance(system, str):
                llm_request.config.system_instruction = history.system

    async def after_model_callback(self, *, callback_context: Any, llm_response: Any) -> None:
        history, used = self._running.get(_run(callback_context)), llm_response.usage_metadata
        if history is not None and used is not None:
            counts = used.prompt_token_count, used.candidates_token_count, used.cached_content_token_count
            history.observe_tokens(*counts)
            _keep(callback_context, history)

    async def on_model_error_callback(self, *, callback_context: Any, llm_request: Any, error: Exception) -> None:
        """Learn the window from a refusal for the next request; ADK does not allow resending this one."""
        history = self._running.pop(_run(callback_context), None)
        if history is not None:
            self._histories.learn_refusal(history, error)

    async def after_run_callback(self, *, invocation_context: Any) -> None:
        begins = f"{invocation_context.invocation_id}:"
        for key in [key for key in self._running if key.startswith(begins)]:
            del self._running[key]


class RecallTool(BaseTool):
    """A recall tool."""

    def __init__(self, spec: Any, running: Mapping[str, FoldedHistory]) -> None:
        super().__init__(name=spec.name, description=spec.description)
        self._spec, self._running = spec, running

    def _get_declaration(self) -> types.FunctionDeclaration:
        declared = {"name": self.name, "description": self.description}
        return types.FunctionDeclaration(**declared, parameters_json_schema=dict(self._spec.parameters))

    async def run_async(self, *, args: dict[str, Any], tool_context: Any) -> Any:
        history = self._running.get(_run(tool_context))
        answer = answer_recall if history is None else history.answer
        return {"result": answer(self.name, args).text}


def _run(context: Any) -> str:
    return f"{context.invocation_id}:{context.agent_name}"


def _place(context: Any) -> str:
    return f"midfold:{context.agent_name}"


def _keep(context: Any, history: FoldedHistory) -> None:
    kept = history.keep()
    if context.state.get(_place(context)) != kept:
        context.state[_place(context)] = kept


def _schema(tool: Any) -> dict[str, Any]:
    declared = tool._get_declaration()
    if declared is None:
        return {}
    found = declared.parameters_json_schema or declared.parameters or {}
    return dict(found) if isinstance(found, Mapping) else dict(found.model_dump(exclude_none=True, mode="json"))


def _kind(content: Any) -> str:
    return "with " + ", ".join(sorted({name for part in content.parts or () for name in part.model_fields_set}))


def _is_read(part: Any) -> bool:
    return bool(part.function_call or part.function_response or (part.text is not None and not part.thought))


def _wires(contents: Sequence[Any]) -> Iterator[Wire | None]:
    """Convert contents to wires.

    ADK removes ids it generated; a result without id belongs to the first call of its name without one.
    """
    waiting: list[tuple[str, str]] = []
    for place, content in enumerate(contents):
        blocks: list[Wire] = []
        parts = content.parts or []
        for index, part in enumerate(parts):
            if part.function_call:
                call = part.function_call
                key = call.id or f"call-{place}-{index}"
                waiting.append((call.name, key))
                blocks.append({"type": "tool_use", "id": key, "name": call.name, "input": call.args or {}})
            elif part.function_response:
                answer = part.function_response
                key = answer.id or next((one for name, one in waiting if name == answer.name), f"call-{place}-{index}")
                waiting = [pair for pair in waiting if pair[1] != key]
                text = json.dumps(answer.response, ensure_ascii=False, default=str)
                blocks.append({"type": "tool_result", "tool_use_id": key, "content": text})
            elif _is_read(part):
                blocks.append({"type": "text", "text": part.text})
        calls = any(block["type"] != "text" for block in blocks)
        known = calls or (len(blocks) == sum(not part.thought for part in parts) and blocks)
        yield {"role": "assistant" if content.role == "model" else "user", "content": blocks} if known else None


def _content(wire: Wire, contents: Sequence[Any], wires: Sequence[Wire | None]) -> Any:
    """Convert a generated message to a content, reusing the history's parts that are unchanged or unreadable."""
    known: dict[str, tuple[Any, Any]] = {}
    for content, one in zip(contents, wires, strict=True):
        for block, part in zip(one["content"] if one else (), filter(_is_read, content.parts or ()), strict=False):
            known[_key(block)] = part, content
    listed = wire["content"] if isinstance(wire["content"], list) else [{"type": "text", "text": wire["content"]}]
    parts = iter([_part(block, known.get(_key(block), (None,))[0]) for block in listed])
    calls = [_key(block) for block in listed if block["type"] != "text" and _key(block) in known]
    beside = known[calls[0]][1].parts if calls else ()
    placed = [next(parts, None) if _is_read(part) else part for part in beside]
    return types.Content(role="model" if wire["role"] == "assistant" else "user", parts=[*filter(None, placed), *parts])


def _key(block: Wire) -> str:
    kind = block["type"]
    return f"{kind} {block.get('id') or block.get('tool_use_id') or block.get('text')}"


def _part(block: Wire, part: Any) -> Any:
    if block["type"] == "text":
        return part or types.Part(text=block["text"])
    if block["type"] == "tool_use":
        if part is None:
            return types.Part(function_call=types.FunctionCall(name=block["name"], args=block["input"]))
        changed = part.function_call.model_copy(update={"args": block["input"]})
        return part.model_copy(update={"function_call": changed})
    text = block.get("content") or ""
    text = text if isinstance(text, str) else "".join(one.get("text", "") for one in text)
    if part is None:
        return types.Part(text=text)
    changed = part.function_response.model_copy(update={"response": {"result": text}})
    return part.model_copy(update={"function_response": changed})
