"""Errors that say a request was too large, and what can be done about pictures.

Rules of this file:
1. Only an error of the provider's own words is one; a status alone is not, except 413.
2. Tokens and bytes are different limits: folding helps against the first, and often against the second.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from midfold.fold.archive import handle_of
from midfold.fold.boundary import replace_historical_media
from midfold.model.refusals import LONGEST_READ, failure_of
from midfold.transcript.message import Transcript

STATUSES = frozenset((400, 413, 422, 500))
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


def may_be(status: int) -> bool:
    """Whether an answer of this status is worth reading before it is passed on."""
    return status in STATUSES


def overflow_of(status: int, body: bytes) -> Overflow | None:
    """What an error says about size; None if it is about something else."""
    read = body[:LONGEST_READ]
    about_bytes = bool(_BYTES.search(read))
    failed = failure_of(status, {}, read, "upstream")
    if failed.kind == "overflow":
        return Overflow(failed.limit, about_bytes and not failed.limit, _asked(read, failed.limit), read)
    return Overflow(0, True) if about_bytes and status in (400, 413) else None


def _asked(body: bytes, limit: int) -> int:
    """How many tokens the refused request had, where the error says so: the largest number beyond the limit."""
    numbers = [int(found.replace(b",", b"")) for found in _NUMBER.findall(body)] if limit else []
    return max((number for number in numbers if limit < number < limit * MOST_OVER), default=0)


def without_old_media(view: Transcript) -> Transcript:
    """Pictures before the newest turn that has some become a line of text."""
    return replace_historical_media(view, handle_of)[0]
