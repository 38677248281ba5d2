"""midfold as a middleware of LangChain 1.x agents (LangGraph, deepagents): `pip install 'midfold[langchain]'`.

    agent = create_agent(model, tools, middleware=[MidfoldMiddleware()], checkpointer=...)

The graph's `messages` are never changed, only what is sent to the model; kept messages are the same objects. midfold's
state is private state of the graph, so a checkpointer stores it, and a fork of a thread has its own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal, NotRequired, Unpack

from langchain.agents.middleware import AgentMiddleware, AgentState, ExtendedModelResponse, ModelRequest, ModelResponse
from langchain.agents.middleware.types import PrivateStateAttr
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage, ToolMessage
from langchain_core.messages.utils import convert_to_messages, convert_to_openai_messages
from langchain_core.tools import BaseTool, StructuredTool
from langchain_core.utils.function_calling import convert_to_openai_tool
from langgraph.types import Command

from midfold import Summarizer, SummaryRequest
from midfold.adapters.folded_history import (
    RECALL_NAMES,
    RECALL_TOOLS,
    THRESHOLD,
    FoldedHistory,
    Histories,
    WindowSettings,
    answer_recall,
)

KNOWN = (HumanMessage, AIMessage, ToolMessage, SystemMessage)
UNSTREAMED = {"tags": ["nostream"], "metadata": {"lc_source": "summarization"}}


def _merge(old: dict[str, Any] | None, new: dict[str, Any] | None) -> dict[str, Any]:
    return {**(old or {}), **(new or {})}


class FoldingState(AgentState[Any]):
    """midfold's state in the graph: memory, rewritten at every call, and originals, written at a compaction."""

    midfold: NotRequired[Annotated[dict[str, Any], PrivateStateAttr]]
    # LangGraph uses only the last annotation as the reducer.
    midfold_originals: NotRequired[Annotated[dict[str, Any], PrivateStateAttr, _merge]]


class AgentModelWriter:
    """Summary writer that uses the agent's own model; summaries are not streamed to the user."""

    def __init__(self, model: Any) -> None:
        self._model = model

    def __call__(self, ask: SummaryRequest) -> str:
        return str(self._model.invoke(ask.prompt(), config=UNSTREAMED).text)

    async def later(self, ask: SummaryRequest) -> str:
        return str((await self._model.ainvoke(ask.prompt(), config=UNSTREAMED)).text)


class MidfoldMiddleware(AgentMiddleware[FoldingState, Any, Any]):
    """Agent middleware that keeps requests inside the model's window.

    The keyword arguments are those of `Histories`; `summarizer="agent"` has the agent's own model write summaries. The
    window comes from the model's profile if it has one. Without `recall` the agent has no recall tools.
    """

    state_schema = FoldingState

    def __init__(
        self,
        *,
        summarizer: Summarizer | Literal["agent"] | None = None,
        recall: bool = True,
        **settings: Unpack[WindowSettings],
    ) -> None:
        super().__init__()
        self._histories, self._summarizer, self._recall = Histories(**settings), summarizer, recall
        self.tools: Sequence[BaseTool] = [_tool(spec) for spec in RECALL_TOOLS] if recall else []

    def wrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], ModelResponse[Any]]
    ) -> ExtendedModelResponse[Any]:
        history = self._history(request)
        history.fold()
        try:
            response = handler(_shorten(request, history))
        except Exception as error:  # each provider package has its own class for prompts that are too long
            if not history.learn_refusal(error) or history.fold(force=True) is None:
                raise
            response = handler(_shorten(request, history))
        return _with_state(response, history)

    async def awrap_model_call(
        self, request: ModelRequest[Any], handler: Callable[[ModelRequest[Any]], Awaitable[ModelResponse[Any]]]
    ) -> ExtendedModelResponse[Any]:
        history = self._history(request)
        await history.fold_async()
        try:
            response = await handler(_shorten(request, history))
        except Exception as error:  # each provider package has its own class for prompts that are too long
            if not history.learn_refusal(error) or await history.fold_async(force=True) is None:
                raise
            response = await handler(_shorten(request, history))
        return _with_state(response, history)

    def wrap_tool_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        return _recall_answer(request) if self._is_recall(request) else handler(request)

    async def awrap_tool_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        return _recall_answer(request) if self._is_recall(request) else await handler(request)

    def _is_recall(self, request: Any) -> bool:
        return self._recall and request.tool_call["name"] in RECALL_NAMES

    def _history(self, request: ModelRequest[Any]) -> FoldedHistory:
        model, state = request.model, dict(request.state)
        return self._histories.open(
            request.messages,
            [_wire(message) for message in request.messages],
            state.get("midfold"),
            model=getattr(model, "model_name", None) or getattr(model, "model", None),
            window=(getattr(model, "profile", None) or {}).get("max_input_tokens"),
            summarizer=AgentModelWriter(model) if self._summarizer == "agent" else self._summarizer,
            system=request.system_message and request.system_message.text,
            tools=[convert_to_openai_tool(tool) for tool in _others(request.tools)],
            recall="folded" if self._recall else "never",
        )


def _wire(message: BaseMessage) -> dict[str, Any] | None:
    if not isinstance(message, KNOWN):
        return None
    try:
        [wire] = convert_to_openai_messages([message], pass_through_unknown_blocks=True)
    except (ValueError, TypeError, KeyError):  # a block that LangChain cannot read, or results inside a message
        return None
    return dict(wire)


def _others(tools: Sequence[Any]) -> Iterator[Any]:
    return (tool for tool in tools if isinstance(tool, dict) or tool.name not in RECALL_NAMES)


def _shorten(request: ModelRequest[Any], history: FoldedHistory) -> ModelRequest[Any]:
    tools = list(_others(request.tools))
    if not history.is_folded:
        return request.override(tools=tools)
    tools += [tool for tool in request.tools if tool not in tools]  # last, so that the other tools keep their order
    ids = {key: message for message in request.messages for key in _calls(message)}
    messages = history.select(request.messages, lambda wire: _message(wire, ids))
    system = request.system_message
    if system is not None and history.note:
        system = system.model_copy(update={"content": _system_content(system, history)})
    return request.override(messages=messages, system_message=system, tools=tools)


def _system_content(system: SystemMessage, history: FoldedHistory) -> Any:
    """Append the note at the end, so that the blocks before it and their cache markers stay unchanged."""
    if isinstance(system.content, str):
        return history.system
    return [*system.content, {"type": "text", "text": history.note}]


def _calls(message: BaseMessage) -> Iterator[tuple[str, str]]:
    if isinstance(message, ToolMessage):
        yield "tool", message.tool_call_id
    elif isinstance(message, AIMessage):
        yield from (("assistant", call["id"] or "") for call in message.tool_calls)


def _message(wire: dict[str, Any], ids: Mapping[tuple[str, str], BaseMessage]) -> BaseMessage:
    """Convert a generated message; if it replaces one of the history, keep the other fields of that message."""
    message = convert_to_messages([wire])[0]
    original = next((ids[key] for key in _calls(message) if key in ids), None)
    if original is None:
        return message
    calls = {"tool_calls": message.tool_calls} if isinstance(message, AIMessage) else {}
    return original.model_copy(update={"content": message.content, **calls})


def _with_state(response: ModelResponse[Any], history: FoldedHistory) -> ExtendedModelResponse[Any]:
    for message in response.result:
        if isinstance(message, AIMessage) and message.usage_metadata:
            used = message.usage_metadata
            cached = used.get("input_token_details", {}).get("cache_read")
            history.observe_tokens(used["input_tokens"], used["output_tokens"], cached)
    update: dict[str, Any] = {"midfold": history.keep()}
    if history.conversation.archive:
        update["midfold_originals"] = history.originals
    return ExtendedModelResponse(model_response=response, command=Command(update=update))


def _recall_answer(request: Any) -> ToolMessage:
    call, state = request.tool_call, request.state
    threshold = (state.get("midfold") or {}).get(THRESHOLD)
    answer = answer_recall(call["name"], call["args"], state.get("midfold_originals"), threshold)
    status: Literal["error", "success"] = "error" if answer.is_error else "success"
    return ToolMessage(answer.text, tool_call_id=call["id"], name=call["name"], status=status)


def _tool(spec: Any) -> BaseTool:
    """Return a tool that the graph knows by name; `wrap_tool_call` answers it because it has the state."""

    def unreachable(**_: Any) -> str:
        return "this tool is answered by midfold's middleware"

    tool: BaseTool = StructuredTool.from_function(
        unreachable, name=spec.name, description=spec.description, args_schema=dict(spec.parameters)
    )
    return tool
