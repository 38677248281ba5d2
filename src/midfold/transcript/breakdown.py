"""Where the tokens of a conversation go."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from midfold.transcript.message import Media, Message, Part, Text, Thinking, Tool, ToolCall, ToolResult, Transcript
from midfold.transcript.tokens import MESSAGE_UNITS, Meter, part_units

KINDS = (
    "system prompt",
    "tool definitions",
    "user text",
    "assistant text",
    "thinking",
    "tool calls",
    "tool results",
    "media",
    "other",
    "message framing",
)


class MessageSize(NamedTuple):
    """One message and what it costs."""

    position: int
    role: str
    tokens: int
    tools: tuple[str, ...]


def by_kind(
    messages: Transcript, meter: Meter, *, system: Message | None = None, tools: tuple[Tool, ...] = ()
) -> dict[str, int]:
    """Tokens by what they are spent on; the values add up to the size of the request."""
    units = dict.fromkeys(KINDS, 0)
    units["tool definitions"] = meter.tool_units(tools)
    everything = messages if system is None else (system, *messages)
    for message in everything:
        units["message framing"] += MESSAGE_UNITS
        for part in message.parts:
            _add(units, message.role, part, meter)
    total = meter.count(messages, meter.fixed_size(system, tools)).tokens
    tokens = {kind: meter.tokens(amount) for kind, amount in units.items()}
    tokens["message framing"] += total - sum(tokens.values())
    return tokens


def _add(units: dict[str, int], role: str, part: Part, meter: Meter) -> None:
    if isinstance(part, ToolResult):
        pictures = sum(part_units((item,), meter.counter) for item in part.parts if isinstance(item, Media))
        units["media"] += pictures
        units["tool results"] += part_units((part,), meter.counter) - pictures
        return
    kind = {Thinking: "thinking", ToolCall: "tool calls", Media: "media"}.get(type(part), "other")
    if isinstance(part, Text):
        kind = {"system": "system prompt", "user": "user text", "assistant": "assistant text"}.get(role, "other")
    units[kind] += part_units((part,), meter.counter)


def largest(messages: Transcript, meter: Meter, limit: int = 10) -> list[MessageSize]:
    """The messages that cost most, with the tools they speak of."""
    names = {part.id: part.name for message in messages for part in message.parts if isinstance(part, ToolCall)}
    sized = [(meter.units(message), -index, message) for index, message in enumerate(messages)]
    sized.sort(key=lambda item: item[:2], reverse=True)
    return [
        MessageSize(-index, message.role, meter.tokens(units, 1), _tools(message, names))
        for units, index, message in sized[:limit]
    ]


def _tools(message: Message, names: dict[str, str]) -> tuple[str, ...]:
    found: list[str] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            found.append(part.name)
        elif isinstance(part, ToolResult):
            found.append(part.name or names.get(part.call_id, ""))
    return tuple(name for name in dict.fromkeys(found) if name)


class ContextBucket(msgspec.Struct, frozen=True):
    """One category of the context and its share."""

    name: str
    tokens: int


class ContextShare(NamedTuple):
    """A part of the window: a category, the reserve for the answer, or what is free."""

    name: str
    tokens: int
    share: float
    """Of the window; of everything where the window is not known."""


RESERVE, FREE = "reserved for the answer", "free space"


class ContextBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """What fills the context, for a usage bar; no text of it is needed to draw one."""

    categories: tuple[ContextBucket, ...]
    estimated_total_tokens: int
    measured_prompt_tokens: int | None = None
    context_max_tokens: int | None = None
    reserved_tokens: int = 0
    """What the answer needs of the window."""

    @property
    def total_tokens(self) -> int:
        """What the provider measured where it did, else the estimate."""
        return self.measured_prompt_tokens or self.estimated_total_tokens

    def scale_conversation(self, scale: float) -> ContextBreakdown:
        """The same where the conversation is so many times what was counted of it."""
        *fixed, talk = self.categories
        whole = ContextBucket(talk.name, round(talk.tokens * scale))
        total = self.estimated_total_tokens - talk.tokens + whole.tokens
        return msgspec.structs.replace(self, categories=(*fixed, whole), estimated_total_tokens=total)

    @property
    def shares(self) -> tuple[ContextShare, ...]:
        """The window from its beginning to its end: each category there is, the reserve, and what is free.

        Categories are estimates: where the whole was measured they are corrected by it, and add up to it.
        """
        scale = self.total_tokens / max(self.estimated_total_tokens, 1)
        sizes = {bucket.name: round(bucket.tokens * scale) for bucket in self.categories}
        last = next(reversed(sizes), "")
        if last:
            sizes[last] = max(sizes[last] + self.total_tokens - sum(sizes.values()), 0)
        if self.context_max_tokens:
            free = self.context_max_tokens - self.total_tokens - self.reserved_tokens
            sizes |= {RESERVE: self.reserved_tokens, FREE: max(free, 0)}
        whole = self.context_max_tokens or self.total_tokens or 1
        return tuple(ContextShare(name, tokens, tokens / whole) for name, tokens in sizes.items() if tokens)


SECTIONS = ("rules", "skills", "sub-agents", "memory")
"""Parts of a context that a caller may label: they cannot be told apart otherwise."""
MCP_NAMES = ("mcp__", "mcp_")
"""How tools of MCP servers are called, and the definitions that stand for a whole server."""


def context_breakdown(
    messages: Transcript,
    meter: Meter,
    *,
    system: Message | None = None,
    tools: tuple[Tool, ...] = (),
    sections: Mapping[str, str] | None = None,
    measured_prompt_tokens: int | None = None,
    context_max_tokens: int | None = None,
    reserved_tokens: int = 0,
) -> ContextBreakdown:
    """The context by category: static costs apart from the conversation, which alone a compaction can shrink.

    `sections` maps a label (rules, skills, sub-agents, memory, or one's own) to its text: it is taken off the system
    prompt or the conversation where it stands there, and added where it stands in neither.
    """
    labelled = {label: meter.tokens(meter.counter.count(text)) for label, text in (sections or {}).items()}
    prompts = [message for message in (system, *messages) if message is not None and message.role == "system"]
    talk = [message for message in messages if message.role != "system"]
    in_prompts = {label for label, text in (sections or {}).items() if _stands_in(text, prompts)}
    in_talk = {label for label, text in (sections or {}).items() if label not in in_prompts and _stands_in(text, talk)}
    mcp = tuple(tool for tool in tools if _is_mcp(tool))
    own = tuple(tool for tool in tools if not _is_mcp(tool))
    sizes = {
        "system prompt": max(meter.count(prompts).tokens - sum(labelled[label] for label in in_prompts), 0),
        "tool definitions": meter.tokens(meter.tool_units(own)),
        "MCP tools": meter.tokens(meter.tool_units(mcp)),
        **{label: labelled.get(label, 0) for label in SECTIONS},
        **labelled,
    }
    beside = sum(tokens for label, tokens in labelled.items() if label not in in_prompts | in_talk)
    total = meter.count(messages, meter.fixed_size(system, tools)).tokens + beside
    sizes["conversation"] = max(total - sum(sizes.values()), 0)
    return ContextBreakdown(
        categories=tuple(ContextBucket(name, tokens) for name, tokens in sizes.items()),
        estimated_total_tokens=sum(sizes.values()),
        measured_prompt_tokens=measured_prompt_tokens,
        context_max_tokens=context_max_tokens,
        reserved_tokens=reserved_tokens,
    )


def _stands_in(text: str, messages: Iterable[Message]) -> bool:
    return bool(text) and any(text in message.text for message in messages)


def _is_mcp(tool: Tool) -> bool:
    return tool.name == "mcp" or tool.name.startswith(MCP_NAMES)
