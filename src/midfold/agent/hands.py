"""Acting: a call of the model's, with the user's consent where it changes something, told before and after."""

from __future__ import annotations

import time
from collections.abc import Callable

from midfold.agent.events import Called, Calling, Watch
from midfold.agent.shapes import Result
from midfold.agent.tools.base import Toolbox
from midfold.transcript.message import ToolCall

Consent = Callable[[ToolCall, str], bool]
DECLINED = "The user declined this call. Ask what they want instead, or go on without it."


def refuse(call: ToolCall, about: str) -> bool:
    """Nobody is there to be asked."""
    return False


def agree(call: ToolCall, about: str) -> bool:
    """Whatever it is: for scripts that said so beforehand."""
    return True


class Hands:
    """Runs calls, one after the other."""

    def __init__(self, toolbox: Toolbox, consent: Consent, watch: Watch) -> None:
        self.toolbox, self.consent, self.watch = toolbox, consent, watch

    def act(self, call: ToolCall) -> Result:
        about = self.toolbox.about(call)
        self.watch(Calling(id=call.id, name=call.name, about=about, arguments=call.arguments))
        refused = self.toolbox.needs_consent(call) and not self.consent(call, about)
        started = time.monotonic()
        result = Result(call, DECLINED, True) if refused else self.toolbox.run(call)
        seconds = round(time.monotonic() - started, 3)
        self.watch(Called(id=call.id, name=call.name, text=result.text, is_error=result.is_error, seconds=seconds))
        return result
