"""midfold as the conversation manager of Strands agents: `pip install 'midfold[strands]'`.

    manager = MidfoldConversationManager()
    agent = Agent(conversation_manager=manager, tools=[..., *manager.tools])

Strands sends `agent.messages` unchanged, so this manager modifies that list, like the managers that Strands ships. Kept
messages are the same objects. Originals are in the manager's state, which a session manager stores.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Mapping
from typing import Any, Unpack

from strands.agent.conversation_manager import ConversationManager
from strands.hooks import BeforeModelCallEvent
from strands.tools.tools import PythonAgentTool

from midfold import ToolSpec
from midfold.adapters.folded_history import RECALL_TOOLS, THRESHOLD, Histories, HistorySettings, answer_recall

DIALECT = "anthropic"
NAME = "midfold"


class MidfoldConversationManager(ConversationManager):
    """Conversation manager that keeps an agent's messages inside the model's window; use one per agent.

    The keyword arguments are those of `Histories`; a model's `context_window_limit` is used automatically. Give `tools`
    to the agent, to let it search and unfold folded messages.
    """

    def __init__(self, **settings: Unpack[HistorySettings]) -> None:
        super().__init__()
        self._histories = Histories(**settings)
        self._kept: dict[str, Any] = {}
        self._originals: dict[str, list[Any]] = {}
        self._front: list[Any] = []
        self.tools = [self._tool(spec) for spec in RECALL_TOOLS]

    def register_hooks(self, registry: Any, **kwargs: Any) -> None:
        super().register_hooks(registry, **kwargs)
        registry.add_callback(BeforeModelCallEvent, lambda event: self._fold(event.agent))

    def apply_management(self, agent: Any, **kwargs: Any) -> None:
        """Do nothing: compaction is decided before every model call instead."""

    def reduce_context(self, agent: Any, e: Exception | None = None, **kwargs: Any) -> None:
        """Compact after an overflow, using the window that the provider's error names."""
        if not self._fold(agent, error=e, force=True) and e is not None:
            raise e

    def get_state(self) -> dict[str, Any]:
        own = {"kept": self._kept, "originals": self._originals, "front": self._front}
        return {**super().get_state(), NAME: own}

    def restore_from_session(self, state: dict[str, Any]) -> list[Any] | None:
        super().restore_from_session(state)
        own = state.get(NAME, {})
        self._kept, self._originals = own.get("kept", {}), own.get("originals", {})
        self._front = own.get("front", [])
        return list(self._front) or None

    def _fold(self, agent: Any, *, error: Exception | None = None, force: bool = False) -> bool:
        messages = agent.messages
        wires = [_wire(message) for message in messages]
        specs = agent.tool_registry.get_all_tool_specs()
        history = self._histories.open(
            messages,
            wires,
            self._kept,
            kind=_kind,
            model=agent.model.get_config().get("model_id"),
            window=agent.model.context_window_limit,
            system=agent.system_prompt,
            tools=[ToolSpec(one["name"], one["description"], one["inputSchema"].get("json", {})) for one in specs],
            dialect=DIALECT,
        )
        if error is not None:
            history.learn_refusal(error)
        folded = history.fold(force=force) is not None
        self._kept = {**history.keep(), "plan": {}}
        if folded:
            self._originals |= history.originals
            known = {str(_block(block)): block for message in messages for block in message["content"]}
            self._replace(messages, history.select(messages, lambda wire: _message(wire, known)))
        return folded

    def _replace(self, messages: list[Any], sent: list[Any]) -> None:
        """Replace the messages; record what was prepended and how many were removed.

        A session manager stores only the messages one by one.
        """
        same, front = 0, len(self._front) if messages[: len(self._front)] == self._front else 0
        while same < min(len(sent), len(messages) - front) and sent[-1 - same] is messages[-1 - same]:
            same += 1
        self.removed_message_count += len(messages) - front - same
        self._front = sent[: len(sent) - same]
        messages[:] = sent

    def _tool(self, spec: Any) -> PythonAgentTool:
        definition = {
            "name": spec.name,
            "description": spec.description,
            "inputSchema": {"json": dict(spec.parameters)},
        }

        def run(tool_use: Any, **_: Any) -> Any:
            answer = answer_recall(spec.name, tool_use["input"], self._originals, self._kept.get(THRESHOLD), DIALECT)
            status = "error" if answer.is_error else "success"
            return {"toolUseId": tool_use["toolUseId"], "status": status, "content": [{"text": answer.text}]}

        return PythonAgentTool(spec.name, definition, run)


def _kind(message: Mapping[str, Any]) -> str:
    blocks = message["content"]
    results = [part for block in blocks for part in block.get("toolResult", {}).get("content", ())]
    return "with " + ", ".join(sorted({key for block in (*blocks, *results) for key in block}))


def _wire(message: Mapping[str, Any]) -> dict[str, Any] | None:
    blocks = [_block(block) for block in message["content"]]
    return None if None in blocks else {"role": message["role"], "content": blocks}


def _block(block: Mapping[str, Any]) -> dict[str, Any] | None:
    if "text" in block or "image" in block:
        return _part(block)
    if "toolUse" in block:
        use = block["toolUse"]
        return {"type": "tool_use", "id": use["toolUseId"], "name": use["name"], "input": use["input"]}
    if "toolResult" in block:
        result = block["toolResult"]
        parts = [_part(part) for part in result["content"]]
        if None in parts:
            return None
        wire = {"type": "tool_result", "tool_use_id": result["toolUseId"], "content": parts}
        return {**wire, "is_error": True} if result.get("status") == "error" else wire
    if "reasoningContent" in block:
        text = block["reasoningContent"].get("reasoningText", {})
        return {"type": "thinking", "thinking": text.get("text", ""), "signature": text.get("signature", "")}
    return None


def _part(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Convert a part of a message or result: a text, a JSON value, or an inline image."""
    if "image" in part:
        data = part["image"]["source"].get("bytes")
        media = {"type": "base64", "media_type": f"image/{part['image']['format']}"}
        return {"type": "image", "source": {**media, "data": b64encode(data).decode()}} if data else None
    if "text" in part or "json" in part:
        return {"type": "text", "text": part.get("text") or str(part.get("json", ""))}
    return None


def _message(wire: Mapping[str, Any], known: Mapping[str, Any]) -> dict[str, Any]:
    """Convert a generated message, reusing the history's blocks that are unchanged."""
    content = wire["content"] if isinstance(wire["content"], list) else [{"type": "text", "text": wire["content"]}]
    return {"role": wire["role"], "content": [known.get(str(block)) or _write_block(block) for block in content]}


def _write_block(block: Mapping[str, Any]) -> dict[str, Any]:
    if block["type"] == "tool_use":
        return {"toolUse": {"toolUseId": block["id"], "name": block["name"], "input": block["input"]}}
    if block["type"] == "tool_result":
        content = block.get("content") or ""
        parts = [{"text": content}] if isinstance(content, str) else [_write_part(part) for part in content]
        status = "error" if block.get("is_error") else "success"
        return {"toolResult": {"toolUseId": block["tool_use_id"], "status": status, "content": parts}}
    return _write_part(block)


def _write_part(part: Mapping[str, Any]) -> dict[str, Any]:
    if part["type"] == "image":
        source = part["source"]
        kept = {"bytes": b64decode(source["data"])}
        return {"image": {"format": source["media_type"].removeprefix("image/"), "source": kept}}
    return {"text": part["text"]}
