"""How many tokens a conversation costs, and how sure we are.

Rules of this file:
1. A count always says what it rests on: `estimated`, `calibrated` by what a provider reported, or `reported` itself.
2. Messages are counted in units of the o200k vocabulary; a model's factor and overhead turn units into its tokens.
   Units do not depend on the model, so switching models recounts nothing.
3. A message is counted once. The count is kept on the message, and by its bytes in the meter, so that a conversation
   that is sent again costs one look-up per message and one count per new message.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, Literal, NamedTuple, Protocol

from msgspec import Raw

from midfold.core.estimate import estimate_text
from midfold.core.lru import LRU
from midfold.core.message import Media, Message, Opaque, Part, Text, Thinking, Tool, ToolCall, ToolResult

Basis = Literal["estimated", "calibrated", "reported"]

MESSAGE_UNITS = 4
"""Role and separators of one message."""
CALL_UNITS = 12
"""Id, type and the JSON around one tool call."""
NAME_CHARACTERS_PER_UNIT = 4
RESULT_UNITS = 6
"""Id and the wrapping of one tool result."""
TOOL_UNITS = 8
"""The wrapping of one tool definition."""
IMAGE_UNITS = 1_600
"""The most a provider bills for one image at its usual limits; a flat price, on the safe side."""
AUDIO_UNITS = 1_000
MOST_TOOL_LISTS = 32
DOCUMENT_UNITS = 2_000
"""At least this for a document; larger ones by their size."""
DOCUMENT_BYTES_PER_UNIT = 40
LONG_DATA = 2_000
_BLOB = re.compile(r"[A-Za-z0-9+/=_-]{2000,}+")
SIGNATURE_CHARACTERS_PER_UNIT = 4
"""Signatures and encrypted reasoning stand for thoughts that are billed, not for the characters they are made of."""


class Count(NamedTuple):
    """A number of tokens and what it rests on."""

    tokens: int
    basis: Basis


class TokenCounter(Protocol):
    """Anything that can count the tokens of a text."""

    name: str

    def count(self, text: str, /) -> int: ...


class Estimate:
    """The default: by character classes, no vocabulary, within a few per cent of o200k on real conversations."""

    name = "estimate"
    count = staticmethod(estimate_text)


ESTIMATE = Estimate()


class Meter:
    """Counts messages with one counter and remembers every count by the bytes it was made from."""

    def __init__(
        self,
        counter: TokenCounter = ESTIMATE,
        *,
        factor: float = 1.0,
        message_overhead: int = 0,
        remember: int = 200_000,
    ) -> None:
        self.counter = counter
        self.factor = factor
        self.message_overhead = message_overhead
        self._memo: LRU[Any, int] = LRU(remember)
        self._tools: LRU[tuple[Tool, ...], int] = LRU(MOST_TOOL_LISTS)

    def units(self, message: Message) -> int:
        """One message in units, from memory if it was counted before."""
        if self.counter is not ESTIMATE:
            return self._remembered(message)
        if message.units is None:
            # Hashing bytes is far cheaper than counting them; encoding a dict in order to hash it is not.
            message.units = self._remembered(message) if isinstance(message.wire, Raw) else self._counted(message)
        return message.units

    def _counted(self, message: Message) -> int:
        return MESSAGE_UNITS + part_units(message.parts, self.counter)

    def _remembered(self, message: Message) -> int:
        key = message.key
        units = self._memo.peek(key)
        if units is None:
            units = self._counted(message)
            self._memo.put(key, units)
        return units

    def tool_units(self, definitions: Iterable[Tool]) -> int:
        """All definitions in units; they seldom change, and are counted once."""
        tools = tuple(definitions)
        return self._tools.made(tools, lambda: sum(TOOL_UNITS + self.counter.count(tool.body) for tool in tools))

    def tokens(self, units: int, messages: int = 0) -> int:
        """Units as tokens of this meter's model."""
        return round(units * self.factor) + messages * self.message_overhead

    def count(self, messages: Iterable[Message]) -> Count:
        count = self.units
        default = self.counter is ESTIMATE
        units = [message.units if default and message.units is not None else count(message) for message in messages]
        return Count(self.tokens(sum(units), len(units)), "estimated")


def part_units(parts: Iterable[Part], counter: TokenCounter = ESTIMATE) -> int:
    """What the parts of a message cost, with the envelopes around them."""
    total = 0
    count = counter.count
    for part in parts:
        kind = type(part)
        if kind is Text:
            total += count(part.text)  # type: ignore[attr-defined]
        elif isinstance(part, ToolResult):
            only = part.parts[0] if len(part.parts) == 1 else None
            inner = count(only.text) if type(only) is Text else part_units(part.parts, counter)
            total += RESULT_UNITS + inner
        elif isinstance(part, ToolCall):
            total += CALL_UNITS + len(part.name) // NAME_CHARACTERS_PER_UNIT + count(part.arguments)
        elif isinstance(part, Thinking):
            total += count(part.text) or len(part.signature or "") // SIGNATURE_CHARACTERS_PER_UNIT
        elif isinstance(part, Media):
            total += media_units(part)
        elif isinstance(part, Opaque):
            total += _opaque_units(part.body, counter)
    return total


def _opaque_units(body: str, counter: TokenCounter) -> int:
    """What a block costs that nobody reads: long base64 inside it is a picture or a file, not text."""
    if len(body) < LONG_DATA:
        return counter.count(body)
    text, blobs = _BLOB.subn("", body)
    return counter.count(text) + blobs * IMAGE_UNITS


def media_units(media: Media) -> int:
    """A flat, conservative price: what a picture costs has nothing to do with the length of its base64."""
    if media.kind == "image":
        return IMAGE_UNITS
    if media.kind == "audio":
        return AUDIO_UNITS
    if media.mime is not None and media.mime.startswith("text/"):
        return estimate_text(media.data)
    return max(DOCUMENT_UNITS, len(media.data) * 3 // 4 // DOCUMENT_BYTES_PER_UNIT)
