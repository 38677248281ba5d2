"""midfold in LiteLLM, library and proxy: `pip install 'midfold[litellm]'`.

    folding = MidfoldCallback()
    litellm.callbacks = [folding]
    await litellm.acompletion(model="gpt-4o", messages=messages)        # compacted by the hook
    folding.completion(model="gpt-4o", messages=messages)               # LiteLLM calls no hook before sync calls

In the proxy's config: `litellm_settings: {callbacks: midfold_proxy.folding}`, with the first line above in
midfold_proxy.py. The caller's list is never changed, and kept messages are the same objects. midfold's state is in this
object; a request whose history starts like an earlier one continues with that one's compaction.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from hashlib import sha256
from itertools import count
from threading import Lock
from typing import Any, Unpack

import litellm
from litellm.integrations.custom_logger import CustomLogger

from midfold.adapters.folded_history import RECALL_TOOLS, FoldedHistory, Histories, HistorySettings, RunningHistories
from midfold.types import ToolAnswer

CHATS = ("completion", "acompletion")
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_numbers = count(1)
MOST_CONVERSATIONS = 1_000
MOST_BRANCHES = 4
"""Maximum number of conversations with the same beginning whose state is kept."""


class MidfoldCallback(CustomLogger):
    """Callback that keeps requests inside the model's window.

    Async calls and the proxy call its hooks; sync calls use `completion`. The keyword arguments are those of
    `Histories`. Give `tools` to the model if you run its tool calls, and answer them with `answer`.
    """

    def __init__(self, **settings: Unpack[HistorySettings]) -> None:
        super().__init__()
        self._histories = Histories(**settings)
        # LiteLLM notifies only the first of several callbacks with the same class and public numbers about a call's
        # result.
        self.number = next(_numbers)
        self._lock = Lock()
        self._kept: OrderedDict[str, list[dict[str, Any]]] = OrderedDict()
        self._running = RunningHistories()
        self.tools = [spec.definition("openai-chat") for spec in RECALL_TOOLS]

    def completion(self, **request: Any) -> Any:
        """Call `litellm.completion`; after a refusal that names a smaller window, compact and retry once."""
        history = self._history(request)
        history.fold()
        try:
            return self._finish(history, litellm.completion(**self._shorten(request, history)))
        except litellm.BadRequestError as error:
            if not self._histories.learn_refusal(history, error) or history.fold(force=True) is None:
                raise
        return self._finish(history, litellm.completion(**self._shorten(request, history)))

    def answer(self, name: str, arguments: Any, messages: Sequence[Any]) -> ToolAnswer:
        """Answer a call of one of `tools` in the conversation with these messages."""
        return self._history({"messages": messages}).answer(name, arguments)

    async def async_pre_call_hook(
        self, user_api_key_dict: Any, cache: Any, data: dict[str, Any], call_type: Any
    ) -> Any:
        """Compact a proxy request, before the proxy selects a deployment."""
        return await self._fold_async(data, call_type)

    async def async_pre_call_deployment_hook(self, kwargs: dict[str, Any], call_type: Any) -> Any:
        """Compact an async library call; requests from the proxy were already handled."""
        if kwargs.get("proxy_server_request"):
            return None
        return await self._fold_async(kwargs, getattr(call_type, "value", call_type))

    async def async_log_success_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        history = self._running.pop(str(kwargs.get("litellm_call_id")), None)
        if history is not None:
            self._finish(history, response_obj)

    async def async_log_failure_event(self, kwargs: Any, response_obj: Any, start_time: Any, end_time: Any) -> None:
        history = self._running.pop(str(kwargs.get("litellm_call_id")), None)
        if history is not None:
            self._histories.learn_refusal(history, kwargs.get("exception"))

    async def _fold_async(self, request: dict[str, Any], call_type: Any) -> dict[str, Any] | None:
        if call_type not in CHATS or not isinstance(request.get("messages"), list) or not request["messages"]:
            return None
        history = self._history(request)
        await history.fold_async()
        self._keep(history)
        self._running[str(request.get("litellm_call_id"))] = history
        return self._shorten(request, history)

    def _history(self, request: Mapping[str, Any]) -> FoldedHistory:
        messages, model, tools = request["messages"], request.get("model"), request.get("tools") or []
        wires = [_wire(message) for message in messages]
        histories = (
            self._histories.open(messages, wires, kept, kind=_kind, model=model, tools=tools)
            for kept in self._kept.get(_opening(wires), [{}])
        )
        first = next(histories)
        return first if first.is_folded else next((one for one in histories if one.is_folded), first)

    def _shorten(self, request: Mapping[str, Any], history: FoldedHistory) -> dict[str, Any]:
        given = request["messages"]
        return {**request, "messages": history.select(given) if history.is_folded else given}

    def _finish(self, history: FoldedHistory, response: Any) -> Any:
        usage = getattr(response, "usage", None)
        if usage is not None:
            history.observe(usage.model_dump())
        self._keep(history)
        return response

    def _keep(self, history: FoldedHistory) -> None:
        kept, opening = history.keep(), _opening(history.wires)
        mark = kept["plan"].get("mark")
        with self._lock:
            others = [one for one in self._kept.pop(opening, []) if one["plan"].get("mark") not in (mark, None)]
            self._kept[opening] = [kept, *others][:MOST_BRANCHES]
            if len(self._kept) > MOST_CONVERSATIONS:
                self._kept.popitem(last=False)


def _kind(message: Any) -> str:
    role = message.get("role") if isinstance(message, Mapping) else None
    return f"role {str(role)[:40]!r}" if role else type(message).__qualname__


def _wire(message: Any) -> dict[str, Any] | None:
    dump = getattr(message, "model_dump", None)
    wire = dump(exclude_none=True) if callable(dump) else message
    return wire if isinstance(wire, dict) and wire.get("role") in ROLES else None


def _opening(wires: Sequence[dict[str, Any] | None]) -> str:
    """Return a key of the conversation's beginning, up to the first user message."""
    first = next((place for place, wire in enumerate(wires) if wire and wire["role"] == "user"), 0)
    text = json.dumps(wires[: first + 1], sort_keys=True, default=repr)
    return sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
