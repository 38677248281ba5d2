"""What an agent tells whoever watches: small values, one JSON object each. None of them reaches the model."""

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
    """An answer is complete: `calls`, `stop`, `length` or `filter`. The numbers are the provider's, 0 without any."""

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
    """A tool has run, or was declined."""

    id: str
    name: str
    text: str
    is_error: bool
    seconds: float
    declined: bool = False


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


class EngineFault(Event, frozen=True, kw_only=True, tag="engine_fault"):
    """The context engine could not say when to fold; the size of the prompt decides."""

    why: str


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


def ignore(event: Event) -> None:
    """Nobody looks."""


# Acting: a call of the model's, with the user's consent where it changes something, told before and after.


Consent = Callable[[ToolCall, str], bool]
DECLINED = "The user declined this call. Ask what they want instead, or go on without it."
NOBODY = "Not run: it needs the user's consent, and nobody can be asked. Go on without it, and say what is left."


def refuse(call: ToolCall, about: str) -> bool:
    """Nobody is there to be asked."""
    return False


def agree(call: ToolCall, about: str) -> bool:
    """Whatever it is: for scripts that said so beforehand."""
    return True


class Runner:
    """Runs calls, one after the other."""

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
