"""The few fields of a request body that decide what is done with it, read without building anything else."""

from __future__ import annotations

from typing import Any

import msgspec

from midfold.core.jsonio import REFUSALS, NotJSON, decode
from midfold.core.spans import entries


class Peek(msgspec.Struct, gc=False):
    """Values as they were sent, whatever their type."""

    model: Any = None
    stream: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None

    @property
    def name(self) -> str | None:
        """The model's name."""
        return self.model if isinstance(self.model, str) else None

    @property
    def is_streaming(self) -> bool:
        return self.stream is True

    @property
    def is_continued(self) -> bool:
        """Whether the provider keeps the conversation: then its messages are not in the request."""
        return bool(self.previous_response_id or self.conversation)

    @property
    def output(self) -> int:
        """The longest answer that is asked for; 0 if nothing is said."""
        asked = (self.max_output_tokens, self.max_completion_tokens, self.max_tokens)
        return next((value for value in asked if type(value) is int and value > 0), 0)


_decoder = msgspec.json.Decoder(Peek)


HALVES = (b"\\ud", b"\\uD")
"""Half of a character, where a client cut a text in two: JSON has it, msgspec does not."""
LARGEST_WITH_HALVES = 8_000_000
USABLE = range(1, 1_000)
"""Bytes of a value worth reading."""


def peek(body: bytes) -> Peek | None:
    """None for a body that is no JSON object: it is the provider's to refuse."""
    try:
        return _decoder.decode(body)
    except REFUSALS:
        if len(body) > LARGEST_WITH_HALVES or not any(half in body for half in HALVES):
            return None
    return _peek_slowly(body)


def _peek_slowly(body: bytes) -> Peek | None:
    try:
        found = entries(body)
        values = {name: decode(found[name]) for name in Peek.__struct_fields__ if len(found.get(name, b"")) in USABLE}
    except NotJSON:
        return None
    return Peek(**values)
