"""Events an agent reports to its observer, each serializable as one JSON object. None of them reaches the model."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import msgspec

from midfold.agent.shapes import Result
from midfold.agent.tools.base import Toolbox
from midfold.compaction.receipt import Receipt
from midfold.transcript.message import ToolCall


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event"):
    """Base class of the events."""


class Started(Event, frozen=True, kw_only=True, tag="started"):
    """Start of a turn."""

    session: str
    model: str
    window: int


class Said(Event, frozen=True, kw_only=True, tag="text"):
    """A piece of the response, as it streams in."""

    text: str


class Answered(Event, frozen=True, kw_only=True, tag="answer"):
    """End of a response: `calls`, `stop`, `length` or `filter`; token counts as reported by the provider, else 0."""

    finish: str
    calls: int
    prompt_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0


class Calling(Event, frozen=True, kw_only=True, tag="call"):
    """Start of a tool call."""

    id: str
    name: str
    about: str
    arguments: str


class Called(Event, frozen=True, kw_only=True, tag="result"):
    """End of a tool call that ran or was declined."""

    id: str
    name: str
    text: str
    is_error: bool
    seconds: float
    declined: bool = False


class Preparing(Event, frozen=True, kw_only=True, tag="preparing"):
    """Start of a compaction in the background, ahead of time."""

    tokens: int
    threshold: int


class Folded(Event, frozen=True, kw_only=True, tag="compaction"):
    """Outcome of a compaction attempt, with the reason."""

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


class EngineFault(Event, frozen=True, kw_only=True, tag="engine_fault"):
    """Failure of the context engine's decision; the prompt size decides instead."""

    why: str


class Retrying(Event, frozen=True, kw_only=True, tag="retry"):
    """Retry after a transient model failure; the partial response is discarded."""

    kind: str
    why: str
    seconds: float


class Overflowed(Event, frozen=True, kw_only=True, tag="overflow"):
    """Rejection of a request as too large; a smaller one follows."""

    size: int
    limit: int


class Finished(Event, frozen=True, kw_only=True, tag="finished"):
    """End of the turn: `done`, `interrupted`, `failed`, or `steps` if the step limit was reached."""

    how: str
    text: str
    steps: int
    why: str = ""


Watch = Callable[[Event], Any]


def ignore(event: Event) -> None:
    """Ignore the event."""


# Run tool calls, asking for consent before calls that change something and reporting events before and after.


Consent = Callable[[ToolCall, str], bool]
DECLINED = "The user declined this call. Ask what they want instead, or go on without it."
NOBODY = "Not run: it needs the user's consent, and nobody can be asked. Go on without it, and say what is left."


def refuse(call: ToolCall, about: str) -> bool:
    """Refuse every call; used when there is no user to ask."""
    return False


def agree(call: ToolCall, about: str) -> bool:
    """Approve every call; used by scripts that opted in beforehand."""
    return True


class Runner:
    """Runner of tool calls, one at a time."""

    def __init__(self, toolbox: Toolbox, consent: Consent, watch: Watch) -> None:
        self.toolbox, self.consent, self.watch = toolbox, consent, watch

    def act(self, call: ToolCall) -> Result:
        about = self.toolbox.about(call)
        self.watch(Calling(id=call.id, name=call.name, about=about, arguments=call.arguments))
        refused = self.toolbox.needs_consent(call) and not self.consent(call, about)
        started = time.monotonic()
        why = NOBODY if self.consent is refuse else DECLINED
        result = Result(call, why, True) if refused else self.toolbox.run(call)
        seconds = round(time.monotonic() - started, 3)
        self.watch(
            Called(
                id=call.id,
                name=call.name,
                text=result.text,
                is_error=result.is_error,
                seconds=seconds,
                declined=refused,
            )
        )
        return result
