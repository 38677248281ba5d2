"""Detect responses that refuse a request as too large: an error, or a stream that fails before its first output.

1. Only the provider's own error text counts; a status alone does not, except 413.
2. Tokens and bytes are different limits: folding helps against the first, and often against the second.
3. A stream is held back until its first event with output or an error, for at most `HELD_SECONDS`: as long as nothing
   has reached the client, the request can be made smaller and sent again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from midfold.compaction.archive import handle_of
from midfold.compaction.media import replace_historical_media
from midfold.gateway.encodings import decode_body, incremental_decoder
from midfold.gateway.routes import encoding_of
from midfold.gateway.upstream import UpstreamAnswer
from midfold.model.failures import LONGEST_READ, failure_of
from midfold.transcript import jsonio
from midfold.transcript.message import Transcript
from midfold.transcript.sse import EventReader, StreamEvent

MAX_ERROR_BYTES = 256_000
"""Maximum bytes of an error inspected before it is passed on."""
HELD_SECONDS = 10.0
MAX_HELD_BYTES = 2_000_000
"""Maximum bytes of a stream held back; the first events repeat the request's instructions and tools."""
SMALLEST = 8_000
"""Bytes of the smallest request that may be too large for any model."""
STATUSES = frozenset((400, 413, 422, 500))
OPENINGS = frozenset(("response.created", "response.in_progress", "response.queued", "message_start", "ping"))
FAILURES = frozenset(("response.failed", "error"))
_BYTES = re.compile(
    rb"request_too_large|payload too large|entity too large|maximum allowed size|exceeds? [\d.,]+ ?(?:mb|bytes)"
    rb"|(?:image|request|body|file)[^.\"]{0,60}(?:\d ?mb|bytes)",
    re.I,
)


_NUMBER = re.compile(rb"(?<![\w.,-])\d{1,3}(?:,\d{3})+(?![\w,])|(?<![\w.,-])\d{4,8}(?![\w-])")
MAX_LIMIT_MULTIPLE = 50
"""Multiple of the limit from which a number in an error is not the request's size."""


class Overflow(NamedTuple):
    """Refusal because of size, with the context `limit` and the request's size `asked` if the error names them.

    Both may come from client text quoted in the error, so they apply to this request only.
    """

    limit: int
    is_bytes: bool
    asked: int = 0
    error: bytes = b""


def overflow_of(status: int, body: bytes) -> Overflow | None:
    """Return what an error says about size; None if it is about something else."""
    read = body[:LONGEST_READ]
    about_bytes = bool(_BYTES.search(read))
    failed = failure_of(status, {}, read, "upstream")
    if failed.kind == "overflow":
        return Overflow(failed.limit, about_bytes and not failed.limit, _refused_tokens(read, failed.limit), read)
    return Overflow(0, True) if about_bytes and status in (400, 413) else None


def _refused_tokens(body: bytes, limit: int) -> int:
    """Return the refused request's tokens if the error names them: the largest plausible number above the limit."""
    numbers = [int(found.replace(b",", b"")) for found in _NUMBER.findall(body)] if limit else []
    return max((number for number in numbers if limit < number < limit * MAX_LIMIT_MULTIPLE), default=0)


def without_old_media(view: Transcript) -> Transcript:
    """Replace images before the newest turn that has some by a line of text."""
    return replace_historical_media(view, handle_of)[0]


async def find_overflow(answer: UpstreamAnswer) -> Overflow | None:
    """Return the overflow that an unread answer reports, if any; the answer stays readable in full."""
    encoding = encoding_of(answer.headers)
    if answer.status in STATUSES:
        body = decode_body(await answer.head(MAX_ERROR_BYTES), encoding, MAX_ERROR_BYTES)
        return overflow_of(answer.status, body)
    if answer.status != 200 or not answer.is_stream:
        return None
    opening = StreamOpening(encoding)
    await answer.head(MAX_HELD_BYTES, opening.feed, HELD_SECONDS)
    return overflow_of(400, jsonio.encode({"error": opening.error})) if opening.error else None


class StreamOpening:
    """Beginning of a stream up to the first event with output; `error` is set if that event is a failure."""

    def __init__(self, encoding: str = "") -> None:
        self._inflate, self._events = incremental_decoder(encoding), EventReader()
        self.error: Any = None

    def feed(self, chunk: bytes) -> bool:
        """Feed a chunk; return whether the kind of stream is known."""
        try:
            events = list(self._events.feed(self._inflate(chunk)))
        except (ValueError, zlib.error):
            return True
        said = next((event for event in events if not _is_opening(event)), None)
        if said is not None:
            self.error = _error_of(said)
        return said is not None


def _is_opening(event: StreamEvent) -> bool:
    """Return whether an event carries no output."""
    if event.name in OPENINGS:
        return True
    if not event.data:
        return not event.exceeds_limits
    value = event.value or {}
    choices = value.get("choices")
    if isinstance(choices, list) and not value.get("error"):
        return not any(_has_output(choice) for choice in choices)
    return value.get("type") in OPENINGS


def _has_output(choice: Any) -> bool:
    delta = choice.get("delta") if isinstance(choice, Mapping) else None
    if not isinstance(delta, Mapping) or choice.get("finish_reason"):
        return True
    return any(text for key, text in delta.items() if key != "role")


def _error_of(event: StreamEvent) -> Any:
    """Return the error in an event, or None."""
    value = event.value or {}
    response = value.get("response")
    inner = response.get("error") if isinstance(response, Mapping) else None
    is_failure = event.name in FAILURES or value.get("type") in FAILURES
    return inner or value.get("error") or (value if is_failure else None)
