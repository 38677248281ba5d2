"""Read the few fields of a request body that decide how it is handled, without building anything else.

1. Every field has a length limit. A longer field is known to be present but is not read.
2. Requests with more messages or values than the limits below are not read: one body of tiny values would cost minutes
   and gigabytes.
3. No call holds the GIL for more than a few milliseconds, whatever the body.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import msgspec
from msgspec import Raw

from midfold.transcript.jsonio import REFUSALS, NotJSON, decode, elements, entries, first_byte

MAX_MODEL_CHARS = 200
"""Maximum characters of a model's name."""
SMALL_BODY_BYTES = 65_536
"""Bytes of a body small enough to decode every field."""
MAX_VALUE_BYTES = 1_000
"""Maximum bytes of a value that is read."""
MAX_MESSAGES = 50_000
"""Maximum messages of a request; reading and folding this many takes about 4 s of a thread."""
MOST_VALUES = 500_000
"""Maximum values of all kinds in a request; a message with a tool call has about ten."""
MAX_VALUES_PER_MESSAGE = 25_000
"""Maximum lists and objects in one message, which is read at once."""
MARKS = b",[{"
"""Characters that count values; nested values need no commas."""
LONE_SURROGATES = (b"\\ud", b"\\uD")
"""Start of an escaped lone surrogate, from text cut in half by a client; valid JSON, but rejected by msgspec."""
MAX_SURROGATE_BODY_BYTES = 8_000_000
PIECE_BYTES = 1 << 18
"""Bytes scanned at once."""

TOO_LONG: Any = object()
_NONE = Raw(b"")


class Peek(msgspec.Struct, gc=False):
    """Peeked values of any type as sent; `TOO_LONG` marks a value that was not read."""

    model: Any = None
    stream: Any = None
    previous_response_id: Any = None
    conversation: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None

    @property
    def name(self) -> str | None:
        """Return the model's name."""
        return self.model if isinstance(self.model, str) else None

    @property
    def is_overlong(self) -> bool:
        """Return whether the model's name is too long to be one."""
        return self.model is TOO_LONG or (isinstance(self.model, str) and len(self.model) > MAX_MODEL_CHARS)

    @property
    def is_streaming(self) -> bool:
        return self.stream is True

    @property
    def is_continued(self) -> bool:
        """Return whether the provider keeps the conversation, so its messages are not in the request."""
        return bool(self.previous_response_id or self.conversation)

    @property
    def output(self) -> int:
        """Return the requested maximum output in tokens; 0 if not given."""
        limits = (self.max_output_tokens, self.max_completion_tokens, self.max_tokens)
        return next((value for value in limits if type(value) is int and value > 0), 0)


class _PeekedFields(msgspec.Struct, gc=False):
    """Undecoded fields of a body."""

    model: Raw = _NONE
    stream: Raw = _NONE
    previous_response_id: Raw = _NONE
    conversation: Raw = _NONE
    max_tokens: Raw = _NONE
    max_completion_tokens: Raw = _NONE
    max_output_tokens: Raw = _NONE


_decoder = msgspec.json.Decoder(Peek)
_fields = msgspec.json.Decoder(_PeekedFields)


def peek(body: bytes) -> Peek | None:
    """Return the peeked fields; None for a body that is not a JSON object or needs `peek_slowly`."""
    try:
        return _decoder.decode(body) if len(body) <= SMALL_BODY_BYTES else _peek_from(_fields.decode(body))
    except (*REFUSALS, NotJSON):
        return None


def peek_slowly(body: bytes) -> Peek | None:
    """Return the peeked fields of any body, in a thread; None if it is not a JSON object."""
    found = peek(body)
    return _peek_leniently(body) if found is None else found


def _peek_leniently(body: bytes) -> Peek | None:
    if len(body) > MAX_SURROGATE_BODY_BYTES or not any(half in body for half in LONE_SURROGATES):
        return None
    try:
        found = entries(body)
        return _peek_from(
            _PeekedFields(**{name: found[name] for name in _PeekedFields.__struct_fields__ if name in found})
        )
    except NotJSON:
        return None


def _peek_from(fields: _PeekedFields) -> Peek:
    found = ((name, getattr(fields, name)) for name in _PeekedFields.__struct_fields__)
    return Peek(**{name: _read(raw) for name, raw in found if raw is not _NONE})


def _read(raw: Raw) -> Any:
    return decode(raw) if memoryview(raw).nbytes < MAX_VALUE_BYTES else TOO_LONG


def exceeds_limits(body: bytes) -> bool:
    """Return whether a request exceeds the limits of messages or values.

    This many values need as many marks and twice as many bytes, which decides most bodies quickly.
    """
    if len(body) < 2 * MAX_VALUES_PER_MESSAGE or _marks(body) < MAX_VALUES_PER_MESSAGE:
        return False
    values = structural_values(body, MOST_VALUES)
    return values >= MOST_VALUES or (values >= MAX_VALUES_PER_MESSAGE and _exceeds_limits(body))


def _exceeds_limits(body: bytes) -> bool:
    try:
        found = entries(body)
        if len(found) > MAX_VALUES_PER_MESSAGE:
            return True
        listed = [key for key in ("messages", "input") if key in found and first_byte(found[key]) == b"["]
        lists = [elements(found.pop(key)) for key in listed]
    except NotJSON:
        return False
    return any(len(one) > MAX_MESSAGES for one in lists) or any(
        map(_exceeds_message_limit, chain(found.values(), *lists))
    )


def _exceeds_message_limit(one: Raw) -> bool:
    """Return whether one message, or the tools, contain more values than are read at once."""
    if memoryview(one).nbytes < 2 * MAX_VALUES_PER_MESSAGE:
        return False
    return structural_values(bytes(one), MAX_VALUES_PER_MESSAGE, b"[{") >= MAX_VALUES_PER_MESSAGE


def _marks(body: bytes) -> int:
    starts = range(0, len(body), PIECE_BYTES)
    return sum(body.count(mark, start, start + PIECE_BYTES) for start in starts for mark in MARKS)


def structural_values(body: bytes, most: int, marks: bytes = MARKS) -> int:
    """Count the marks outside of strings in a JSON text, up to `most`: approximately its number of values."""
    count = start = 0
    inside = False
    while start < len(body) and count < most:
        piece = body[start : start + PIECE_BYTES]
        cut = (len(piece) - len(piece.rstrip(b"\\"))) % 2
        start += len(piece) + cut
        # Escaped quotes end no string; if the piece ends in half an escape, its other half is skipped, too.
        plain = piece[: len(piece) - cut].replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
        count += sum(part.count(mark) for part in plain[inside::2] for mark in marks)
        inside ^= len(plain) % 2 == 0
    return min(count, most)
