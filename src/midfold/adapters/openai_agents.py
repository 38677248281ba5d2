"""midfold in the OpenAI Agents SDK: `pip install 'midfold[agents]'`.

    session = MidfoldSession("alice", midfold.open("sqlite:///sessions.db"))
    folding = Folding(session)
    agent = Agent("helper", tools=[..., *folding.tools])
    config = RunConfig(call_model_input_filter=folding)
    await Runner.run(agent, "...", session=session, hooks=folding, run_config=config)

The session keeps every item; only what is sent to the model is shorter. Kept items are the same objects.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from hashlib import sha256
from threading import Lock
from typing import Any, TypeVar, Unpack

from agents import FunctionTool, RunHooks
from agents.memory import SessionSettings
from agents.run import CallModelData, ModelInputData

from midfold import Sessions, ToolSpec
from midfold.adapters.folded_history import (
    RECALL_TOOLS,
    FoldedHistory,
    Histories,
    HistorySettings,
    answer_recall,
)

DIALECT = "openai-responses"
MOST_HISTORIES = 16
"""Maximum number of histories with their own compaction; an agent used as a tool shares its caller's run config."""
T = TypeVar("T")


class MidfoldSession:
    """Agents SDK session in a midfold store, safe for use by several processes.

    Items removed with `pop_item` are hidden, not deleted: stored history is append-only.
    """

    def __init__(self, session_id: str, sessions: Sessions, *, session_settings: SessionSettings | None = None) -> None:
        self.session_id, self.session_settings = session_id, session_settings or SessionSettings()
        self._sessions, self._session = sessions, sessions.session(session_id, dialect=DIALECT)
        self._lock = Lock()

    async def get_items(self, limit: int | None = None) -> list[Any]:
        items = [item for _, item in await self._work(self._visible)]
        limit = self.session_settings.limit if limit is None else limit
        return items if limit is None else items[max(len(items) - limit, 0) :]

    async def add_items(self, items: list[Any]) -> None:
        if items:
            await self._work(lambda: self._session.append(items))

    async def pop_item(self) -> Any:
        return await self._work(self._take_back)

    async def clear_session(self) -> None:
        await self._work(lambda: self._session.delete() if self._session.info else None)

    async def load_folds(self) -> dict[str, Any]:
        """Return the states saved by `save_fold`, by name."""
        folds: dict[str, Any] = (await self._work(self._state)).get("folds", {})
        return folds

    async def save_fold(self, name: str, kept: dict[str, Any]) -> None:
        """Save one state without overwriting others saved since `load_folds`."""
        await self._work(lambda: self._keep(folds=_with_fold(self._state().get("folds", {}), name, kept)))

    async def _work(self, work: Callable[[], T]) -> T:
        def alone() -> T:
            with self._lock:
                return work()

        return await asyncio.to_thread(alone)

    def _state(self) -> dict[str, Any]:
        return self._sessions.host_state(self.session_id)

    def _keep(self, **news: Any) -> None:
        self._sessions.set_host_state(self.session_id, {**self._state(), **news})

    def _visible(self) -> list[tuple[int, Any]]:
        if self._session.info is None:
            return []
        gone = set(self._state().get("taken_back", ()))
        items = enumerate(self._session.history().messages)
        return [(position, item) for position, item in items if position not in gone]

    def _take_back(self) -> Any:
        visible = self._visible()
        if not visible:
            return None
        position, item = visible[-1]
        self._keep(taken_back=[*self._state().get("taken_back", ()), position])
        return item


class Folding(RunHooks[Any]):
    """The `call_model_input_filter` of one conversation, which keeps requests inside the model's window.

    As `hooks` of the run it also records reported usage. Give `tools` to the agent, to let it search and unfold folded
    messages. The state is kept in `session`, or in this object without one. The other keyword arguments are those of
    `Histories`.
    """

    def __init__(self, session: MidfoldSession | None = None, **settings: Unpack[HistorySettings]) -> None:
        self._session, self._histories = session, Histories(**settings)
        self._folds: dict[str, Any] = {}
        # Agents used as tools run concurrently, so the last request is tracked per task.
        self._last: ContextVar[tuple[str, FoldedHistory] | None] = ContextVar("midfold_last", default=None)
        self._originals: dict[str, list[Any]] = {}
        self.tools = [self._tool(spec) for spec in RECALL_TOOLS]

    async def __call__(self, data: CallModelData[Any]) -> ModelInputData:
        """Return the input to send instead of the full history."""
        items, instructions = data.model_data.input, data.model_data.instructions
        if _goes_on(items):
            self._last.set(None)
            return data.model_data
        wires = [item if _is_known(item) else None for item in items]
        if self._session is not None:
            self._folds = await self._session.load_folds()
        opening = sha256(json.dumps(items[:1], default=repr).encode("utf-8", "surrogatepass")).hexdigest()[:16]
        tools = [tool for tool in data.agent.tools if isinstance(tool, FunctionTool)]
        history = self._histories.open(
            items,
            wires,
            self._folds.get(opening),
            kind=_kind,
            model=_model(data.agent.model),
            system=instructions,
            tools=[ToolSpec(tool.name, tool.description, tool.params_json_schema) for tool in tools],
            dialect=DIALECT,
        )
        await history.fold_async()
        self._last.set((opening, history))
        self._originals |= history.originals
        await self._keep(opening, history)
        if not history.is_folded:
            return data.model_data
        return ModelInputData(input=history.select(items), instructions=history.system)

    async def on_llm_end(self, context: Any, agent: Any, response: Any) -> None:
        used, last = response.usage, self._last.get()
        if last is not None:
            opening, history = last
            cached = getattr(used.input_tokens_details, "cached_tokens", None)
            history.observe_tokens(used.input_tokens, used.output_tokens, cached)
            await self._keep(opening, history)

    async def _keep(self, opening: str, history: FoldedHistory) -> None:
        kept = history.keep()
        if self._folds.get(opening) == kept:
            return
        self._folds = _with_fold(self._folds, opening, kept)
        if self._session is not None:
            await self._session.save_fold(opening, kept)

    def _tool(self, spec: Any) -> FunctionTool:
        async def answer(_: Any, arguments: str) -> str:
            last = self._last.get()
            threshold = None if last is None else last[1].threshold
            return answer_recall(spec.name, arguments, self._originals, threshold, DIALECT).text

        return FunctionTool(spec.name, spec.description, dict(spec.parameters), answer, strict_json_schema=False)


def _with_fold(folds: Mapping[str, Any], name: str, kept: dict[str, Any]) -> dict[str, Any]:
    others = [(key, value) for key, value in folds.items() if key != name]
    return dict([*others[1 - MOST_HISTORIES :], (name, kept)])


def _model(model: Any) -> str | None:
    name = model if isinstance(model, str) else getattr(model, "model", None)
    return name if isinstance(name, str) else None


def _kind(item: Any) -> str:
    return str(item.get("type") or sorted(item)) if isinstance(item, dict) else type(item).__qualname__


def _goes_on(items: Sequence[Any]) -> bool:
    """Return whether the provider holds the earlier history (`conversation_id`): the first result has no call."""
    first = items[0] if items and _is_known(items[0]) else {}
    return str(first.get("type")).endswith("_output")


def _is_known(item: Any) -> bool:
    """Return whether the item is a message, a reasoning item, or a call or result with a call id."""
    if not isinstance(item, dict):
        return False
    kind = str(item.get("type") or "message")
    if kind.endswith(("_call", "_output")):
        return "call_id" in item
    return kind == "reasoning" or (kind == "message" and "role" in item)
