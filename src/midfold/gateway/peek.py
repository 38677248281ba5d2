"""The few fields of a request body that decide what is done with it, read without building anything else."""

from __future__ import annotations

from typing import Any

import msgspec

from midfold.core.jsonio import REFUSALS


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


def peek(body: bytes) -> Peek | None:
    """None for a body that is no JSON object as msgspec reads it: it is the provider's to refuse."""
    try:
        return _decoder.decode(body)
    except REFUSALS:
        return None
