"""A request the provider has in its cache, with one instruction more at its end.

The same system prompt, tools and messages in the same order: the provider reads them from its cache, and only the
instruction and the answer cost full price.
"""

from __future__ import annotations

from typing import Any

from midfold.core.message import Transcript, plain
from midfold.wire.document import Document
from midfold.wire.splice import message_value

WIRES = {"openai-chat": "openai", "anthropic": "anthropic"}
"""Dialects in which a summary can be asked for, and the wires they are spoken on."""
KEPT = ("system", "tools", "tool_choice", "thinking", "reasoning_effort", "parallel_tool_calls", "prompt_cache_key")
"""Fields of a request that are part of what is cached, or that decide where it is looked for."""


def prefix_request(
    document: Document, messages: Transcript, instruction: str, wire: str, *, system: Any = None, tools: Any = None
) -> dict[str, Any] | None:
    """The body of the request; None where the wire speaks another dialect than the conversation."""
    if WIRES.get(document.dialect.name) != wire:
        return None
    body: dict[str, Any] = {}
    if system is not None and wire == "anthropic":
        body["system"] = plain(system)
    if tools:
        body["tools"] = [plain(tool) for tool in tools]
    for key in KEPT:
        if document.body is not None and document.body.get(key) is not None:
            body[key] = document.setting(key)
    values = [message_value(message, document.dialect) for message in messages]
    return {**body, "messages": [*values, {"role": "user", "content": instruction}]}
