"""Break a conversation's tokens down by kind, by message and by context category."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from midfold.transcript.message import Media, Message, Part, Text, Thinking, Tool, ToolCall, ToolResult, Transcript
from midfold.transcript.sections import SECTIONS, find_sections
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
    """Size of one message in tokens, with the tools it calls or answers."""

    position: int
    role: str
    tokens: int
    tools: tuple[str, ...]


def fit_sizes(sizes: Mapping[str, int], total: int) -> dict[str, int]:
    """Scale estimated sizes so that they add up to a known total."""
    scale = total / max(sum(sizes.values()), 1)
    fitted = {name: round(tokens * scale) for name, tokens in sizes.items()}
    if fitted:
        largest = max(reversed(fitted), key=lambda name: fitted[name])
        fitted[largest] += total - sum(fitted.values())
    return fitted


def by_kind(
    messages: Transcript, meter: Meter, *, system: Message | None = None, tools: tuple[Tool, ...] = ()
) -> dict[str, int]:
    """Return the estimated tokens of each kind; they add up to the estimated size of the request."""
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
        media_units = sum(part_units((item,), meter.counter) for item in part.parts if isinstance(item, Media))
        units["media"] += media_units
        units["tool results"] += part_units((part,), meter.counter) - media_units
        return
    kind = {Thinking: "thinking", ToolCall: "tool calls", Media: "media"}.get(type(part), "other")
    if isinstance(part, Text):
        kind = {"system": "system prompt", "user": "user text", "assistant": "assistant text"}.get(role, "other")
    units[kind] += part_units((part,), meter.counter)


def largest(messages: Transcript, meter: Meter, limit: int = 10) -> list[MessageSize]:
    """Return the largest messages and the tools they refer to."""
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
    """One category of the context."""

    name: str
    tokens: int
    foldable: int = 0
    """Tokens of the category that a compaction can shrink: everything after the first response."""


class ContextShare(NamedTuple):
    """Share of the context window: a category, the response reserve or free space."""

    name: str
    tokens: int
    share: float
    """Fraction of the window, or of the total if the window is unknown."""


RESERVE, FREE = "reserved for the answer", "free space"


class ContextBreakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens in the context by category, enough to draw a usage bar without any text."""

    categories: tuple[ContextBucket, ...]
    estimated_total_tokens: int
    measured_prompt_tokens: int | None = None
    context_max_tokens: int | None = None
    reserved_tokens: int = 0
    """Tokens of the window reserved for the response."""

    @property
    def total_tokens(self) -> int:
        """Return the size the provider measured, or the estimate if there is none."""
        return self.measured_prompt_tokens or self.estimated_total_tokens

    def scale_conversation(self, scale: float) -> ContextBreakdown:
        """Return the breakdown with the foldable tokens of each category multiplied by `scale`."""
        scaled = []
        for bucket in self.categories:
            foldable = round(bucket.foldable * scale)
            scaled.append(ContextBucket(bucket.name, bucket.tokens - bucket.foldable + foldable, foldable))
        total = sum(bucket.tokens for bucket in scaled)
        return msgspec.structs.replace(self, categories=tuple(scaled), estimated_total_tokens=total)

    @property
    def shares(self) -> tuple[ContextShare, ...]:
        """Return the non-empty shares of the window in order: categories, response reserve, free space.

        Category sizes are estimates; they are scaled to add up to the measured total if there is one.
        """
        sizes = fit_sizes({bucket.name: bucket.tokens for bucket in self.categories}, self.total_tokens)
        if self.context_max_tokens:
            free = self.context_max_tokens - self.total_tokens - self.reserved_tokens
            sizes |= {RESERVE: self.reserved_tokens, FREE: max(free, 0)}
        whole = self.context_max_tokens or self.total_tokens or 1
        return tuple(ContextShare(name, tokens, tokens / whole) for name, tokens in sizes.items() if tokens)


MCP_NAMES = ("mcp__", "mcp_")
"""Name prefixes of MCP tools."""


def context_breakdown(
    messages: Transcript,
    meter: Meter | None = None,
    *,
    system: Message | None = None,
    tools: tuple[Tool, ...] = (),
    sections: Mapping[str, str] | None = None,
    measured_prompt_tokens: int | None = None,
    context_max_tokens: int | None = None,
    reserved_tokens: int = 0,
) -> ContextBreakdown:
    """Return the context by category for a usage bar, with fixed costs separate from the conversation.

    Rules, skills, sub-agents and memory are detected in what clients send. `sections` maps a label (one of these or a
    custom one) to its text and overrides what was detected under that label: the text is subtracted from the system
    prompt or the conversation if it occurs there, and added to the total otherwise.
    """
    meter = meter or Meter()
    given = sections or {}
    prompts = [message for message in (system, *messages) if message is not None and message.role == "system"]
    conversation = [message for message in messages if message.role != "system"]
    units, in_prompts, outside = dict.fromkeys((*SECTIONS, *given), 0), 0, 0
    foldable = dict.fromkeys(units, 0)
    for label, text in given.items():
        units[label] = meter.counter.count(text)
        if _contains(prompts, text):
            in_prompts += units[label]
        elif not _contains(conversation, text):
            outside += units[label]
    for found in find_sections(messages if system is None else (system, *messages)):
        if found.label not in given and not any(_overlap(found.text, text) for text in given.values()):
            size = meter.counter.count(found.text)
            units[found.label] += size
            in_prompts += size if found.in_prompt else 0
            foldable[found.label] += 0 if found.is_fixed else size
    sizes = {
        "system prompt": max(meter.count(prompts).tokens - meter.tokens(in_prompts), 0),
        "tool definitions": meter.tokens(meter.tool_units(tuple(tool for tool in tools if not _is_mcp(tool)))),
        "MCP tools": meter.tokens(meter.tool_units(tuple(filter(_is_mcp, tools)))),
        **{label: meter.tokens(size) for label, size in units.items()},
    }
    total = meter.count(messages, meter.fixed_size(system, tools)).tokens + meter.tokens(outside)
    sizes["conversation"] = max(total - sum(sizes.values()), 0)
    return ContextBreakdown(
        categories=tuple(
            ContextBucket(name, tokens, tokens if name == "conversation" else meter.tokens(foldable.get(name, 0)))
            for name, tokens in sizes.items()
        ),
        estimated_total_tokens=sum(sizes.values()),
        measured_prompt_tokens=measured_prompt_tokens,
        context_max_tokens=context_max_tokens,
        reserved_tokens=reserved_tokens,
    )


def _contains(messages: Iterable[Message], text: str) -> bool:
    return bool(text) and any(text in message.text for message in messages)


def _overlap(one: str, other: str) -> bool:
    return bool(other) and (one in other or other in one)


def _is_mcp(tool: Tool) -> bool:
    return tool.name == "mcp" or tool.name.startswith(MCP_NAMES)
