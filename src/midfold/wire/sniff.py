"""Which of the three shapes a list of messages or a request body has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from midfold.core.message import plain
from midfold.wire.anthropic import Anthropic
from midfold.wire.dialect import Dialect
from midfold.wire.notes import kind_of
from midfold.wire.openai_chat import OpenAIChat
from midfold.wire.openai_responses import OpenAIResponses

DIALECTS: dict[str, type[Dialect]] = {dialect.name: dialect for dialect in (OpenAIChat, OpenAIResponses, Anthropic)}

CHAT_ROLES = frozenset({"tool", "function"})
CHAT_FIELDS = ("tool_calls", "tool_call_id", "function_call", "reasoning_content", "refusal")
CHAT_BLOCKS = frozenset({"image_url", "input_audio", "file"})
RESPONSES_ITEMS = frozenset({"reasoning", "item_reference", "compaction", "mcp_list_tools", "mcp_approval_request"})
RESPONSES_BLOCKS = frozenset({"input_text", "output_text", "input_image", "input_file"})
ANTHROPIC_BLOCKS = frozenset(
    {
        "tool_use",
        "tool_result",
        "thinking",
        "redacted_thinking",
        "image",
        "document",
        "compaction",
        "server_tool_use",
        "web_search_tool_result",
        "mcp_tool_use",
        "mcp_tool_result",
        "search_result",
        "container_upload",
    }
)


def sniff(messages: Iterable[Any], body: Mapping[str, Any] | None = None) -> type[Dialect]:
    """The dialect by the first evidence found; a list that fits all of them is OpenAI chat."""
    evidence = _from_body(body) if body is not None else None
    if evidence is not None:
        return evidence
    for message in messages:
        evidence = _from_message(message)
        if evidence is not None:
            return evidence
    return OpenAIChat


def _from_body(body: Mapping[str, Any]) -> type[Dialect] | None:
    if "messages" not in body:
        return OpenAIResponses if "input" in body else None
    if "system" in body or "anthropic_version" in body or "stop_sequences" in body:
        return Anthropic
    tools = plain(body.get("tools"))
    first = tools[0] if isinstance(tools, list) and tools else None
    if isinstance(first, Mapping):
        return Anthropic if "input_schema" in first else OpenAIChat if "function" in first else None
    return None


def _from_message(value: Any) -> type[Dialect] | None:
    if not isinstance(value, Mapping):
        return None
    role = value.get("role")
    kind = kind_of(value)
    # An Anthropic answer that was appended whole also says `type: message`; its blocks decide below.
    if role is None and (kind in RESPONSES_ITEMS or kind.endswith(("_call", "_call_output"))):
        return OpenAIResponses
    if (isinstance(role, str) and role in CHAT_ROLES and not kind) or any(field in value for field in CHAT_FIELDS):
        return OpenAIChat
    content = value.get("content")
    for block in content if isinstance(content, list | tuple) else ():
        evidence = _from_block(block)
        if evidence is not None:
            return evidence
    return OpenAIResponses if kind == "message" and "stop_reason" not in value else None


def _from_block(block: Any) -> type[Dialect] | None:
    kind = kind_of(block) if isinstance(block, Mapping) else ""
    if kind in ANTHROPIC_BLOCKS:
        return Anthropic
    if kind in RESPONSES_BLOCKS:
        return OpenAIResponses
    return OpenAIChat if kind in CHAT_BLOCKS else None
