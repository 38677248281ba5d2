"""Answers that say a request was too large: an error, or a stream that began well and fails before it says anything.

Rules of this file:
1. Only an error of the provider's own words is one; a status alone is not, except 413.
2. Tokens and bytes are different limits: folding helps against the first, and often against the second.
3. A stream is held back until its first event that says something, or that fails, and for `HELD_SECONDS` at most: as
   long as nothing of it has reached the client, the request can be made smaller and sent again.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from midfold.compaction.archive import handle_of
from midfold.compaction.media import replace_historical_media
from midfold.gateway.encodings import decode_body, inflating
from midfold.gateway.routes import encoding_of
from midfold.gateway.upstream import UpstreamAnswer
from midfold.model.failures import LONGEST_READ, failure_of
from midfold.transcript import jsonio
from midfold.transcript.message import Transcript
from midfold.transcript.sse import EventReader, StreamEvent

MOST_OF_ERRORS = 256_000
"""Bytes of an error that are looked at before it is passed on."""
HELD_SECONDS = 10.0
MOST_HELD = 2_000_000
"""Bytes of a stream that says nothing; the first events repeat the instructions and tools of the request."""
SMALLEST = 8_000
"""Bytes of a request that may be too large for any model."""
STATUSES = frozenset((400, 413, 422, 500))
OPENINGS = frozenset(("response.created", "response.in_progress", "response.queued", "message_start", "ping"))
FAILURES = frozenset(("response.failed", "error"))
_BYTES = re.compile(
    rb"request_too_large|payload too large|entity too large|maximum allowed size|exceeds? [\d.,]+ ?(?:mb|bytes)"
    rb"|(?:image|request|body|file)[^.\"]{0,60}(?:\d ?mb|bytes)",
    re.I,
)


_NUMBER = re.compile(rb"(?<![\w.,-])\d{1,3}(?:,\d{3})+(?![\w,])|(?<![\w.,-])\d{4,8}(?![\w-])")
MOST_OVER = 50
"""A number that is so many times the limit is not the size of the request."""


class Overflow(NamedTuple):
    """A refusal because of size; `limit` is the size of the context where the error names it, `asked` the request's.

    Both may be words of the client that the error repeats: they are good for this request alone.
    """

    limit: int
    is_bytes: bool
    asked: int = 0
    error: bytes = b""


def overflow_of(status: int, body: bytes) -> Overflow | None:
    """What an error says about size; None if it is about something else."""
    read = body[:LONGEST_READ]
    about_bytes = bool(_BYTES.search(read))
    failed = failure_of(status, {}, read, "upstream")
    if failed.kind == "overflow":
        return Overflow(failed.limit, about_bytes and not failed.limit, _refused_tokens(read, failed.limit), read)
    return Overflow(0, True) if about_bytes and status in (400, 413) else None


def _refused_tokens(body: bytes, limit: int) -> int:
    """How many tokens the refused request had, where the error says so: the largest number beyond the limit."""
    numbers = [int(found.replace(b",", b"")) for found in _NUMBER.findall(body)] if limit else []
    return max((number for number in numbers if limit < number < limit * MOST_OVER), default=0)


def without_old_media(view: Transcript) -> Transcript:
    """Pictures before the newest turn that has some become a line of text."""
    return replace_historical_media(view, handle_of)[0]


async def find_overflow(answer: UpstreamAnswer) -> Overflow | None:
    """What an answer that nobody has read says about size; all of it can still be read afterwards."""
    encoding = encoding_of(answer.headers)
    if answer.status in STATUSES:
        told = decode_body(await answer.head(MOST_OF_ERRORS), encoding, MOST_OF_ERRORS)
        return overflow_of(answer.status, told)
    if answer.status != 200 or not answer.is_stream:
        return None
    opening = StreamOpening(encoding)
    await answer.head(MOST_HELD, opening.feed, HELD_SECONDS)
    return overflow_of(400, jsonio.encode({"error": opening.error})) if opening.error else None


class StreamOpening:
    """The beginning of a stream, up to the first event that says something; `error` if that is a failure."""

    def __init__(self, encoding: str = "") -> None:
        self._inflate, self._events = inflating(encoding), EventReader()
        self.error: Any = None

    def feed(self, chunk: bytes) -> bool:
        """Whether it is known now what kind of stream it is."""
        try:
            events = list(self._events.feed(self._inflate(chunk)))
        except (ValueError, zlib.error):
            return True
        said = next((event for event in events if not _is_opening(event)), None)
        if said is not None:
            self.error = _error_of(said)
        return said is not None


def _is_opening(event: StreamEvent) -> bool:
    """Whether nothing is said by this."""
    if event.name in OPENINGS:
        return True
    if not event.data:
        return not event.is_crowded
    value = event.value or {}
    choices = value.get("choices")
    if isinstance(choices, list) and not value.get("error"):
        return not any(_is_said(choice) for choice in choices)
    return value.get("type") in OPENINGS


def _is_said(choice: Any) -> bool:
    delta = choice.get("delta") if isinstance(choice, Mapping) else None
    if not isinstance(delta, Mapping) or choice.get("finish_reason"):
        return True
    return any(text for key, text in delta.items() if key != "role")


def _error_of(event: StreamEvent) -> Any:
    """The error that an event tells of; None if it tells of none."""
    value = event.value or {}
    response = value.get("response")
    inner = response.get("error") if isinstance(response, Mapping) else None
    is_failure = event.name in FAILURES or value.get("type") in FAILURES
    return inner or value.get("error") or (value if is_failure else None)
