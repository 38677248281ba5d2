"""One line of JSON per request on standard error: what was done and how long it took, never what was said.

The fields are fixed here. Nothing of a body, no header, no key and no query string has a place in them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from datetime import UTC, datetime
from traceback import walk_tb
from typing import TextIO

import msgspec


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One request, when it is over."""

    at: str
    owner: str = ""
    method: str
    route: str
    status: int
    milliseconds: float
    first_byte: float = 0.0
    action: str = ""
    receipt: str = ""
    tokens_before: int = 0
    tokens_after: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    reason: str = ""
    """Why nothing was done, in the gateway's own words."""


Log = Callable[[Entry], None]


def now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def to(stream: TextIO | None = None) -> Log:
    """Writes entries as lines."""
    encoder = msgspec.json.Encoder()

    def write(entry: Entry) -> None:
        out = stream or sys.stderr
        out.write(encoder.encode(entry).decode() + "\n")
        out.flush()

    return write


def place_of(error: BaseException) -> str:
    """The last line of ours that an error passed. Its text is not logged: it may hold what was said."""
    frames = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    ours = [f"{name.rpartition('midfold')[2]}:{line}" for name, line in frames if "midfold" in name]
    return ours[-1] if ours else "elsewhere"
