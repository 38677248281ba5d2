"""What an agent tells whoever watches: small values, one JSON object each. None of them reaches the model."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from midfold.fold.receipt import Receipt


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Something happened."""


class Started(Event, frozen=True, kw_only=True, tag="started"):
    """A turn begins."""

    session: str
    model: str
    window: int


class Said(Event, frozen=True, kw_only=True, tag="text"):
    """A piece of the answer, as it arrives."""

    text: str


class Answered(Event, frozen=True, kw_only=True, tag="answer"):
    """An answer is complete; the numbers are the provider's, 0 where it gave none."""

    finish: str
    calls: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Calling(Event, frozen=True, kw_only=True, tag="call"):
    """A tool is about to run."""

    id: str
    name: str
    about: str
    arguments: str


class Called(Event, frozen=True, kw_only=True, tag="result"):
    """A tool has run."""

    id: str
    name: str
    text: str
    is_error: bool
    seconds: float


class Preparing(Event, frozen=True, kw_only=True, tag="preparing"):
    """A fold is being made ahead of time, in the background."""

    tokens: int
    threshold: int


class Folded(Event, frozen=True, kw_only=True, tag="compaction"):
    """A compaction was made, or was not, and why."""

    trigger: str
    status: str
    reason: str
    prepared: bool
    old_tokens: int
    new_tokens: int
    old_messages: int
    new_messages: int
    summary: str
    fold: str

    @classmethod
    def of(cls, receipt: Receipt, trigger: str, *, prepared: bool = False) -> Folded:
        return cls(
            trigger=trigger,
            status=receipt.status,
            reason=receipt.reason,
            prepared=prepared,
            old_tokens=receipt.old_tokens,
            new_tokens=receipt.new_tokens,
            old_messages=receipt.old_messages,
            new_messages=receipt.new_messages,
            summary=receipt.summary.source,
            fold=receipt.fold,
        )


class Retrying(Event, frozen=True, kw_only=True, tag="retry"):
    """The model could not answer for a reason that may pass; what was heard of the answer does not count."""

    kind: str
    why: str
    seconds: float


class Overflowed(Event, frozen=True, kw_only=True, tag="overflow"):
    """The provider said that the request is too large; a smaller one follows."""

    size: int
    limit: int


class Finished(Event, frozen=True, kw_only=True, tag="finished"):
    """The turn is over: `done`, `interrupted`, `failed`, or `steps` when there were too many."""

    how: str
    text: str
    steps: int
    why: str = ""


Watch = Callable[[Event], Any]


def unwatched(event: Event) -> None:
    """Nobody looks."""
