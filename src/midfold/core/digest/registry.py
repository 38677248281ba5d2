"""Describing a result: first with what users registered, then with the built-in families."""

from __future__ import annotations

from collections.abc import Callable

from midfold.core.digest.action import Action
from midfold.core.digest.look import take_a_look
from midfold.core.digest.recognise import recognise
from midfold.core.digest.wording import Redactor, identity
from midfold.core.message import ToolCall, ToolResult

DigestFunction = Callable[[ToolCall | None, ToolResult], Action | None]

_registered: tuple[DigestFunction, ...] = ()


def register_digest(function: DigestFunction) -> Callable[[], None]:
    """Let `function` describe results before the built-in families do; the newest is asked first.

    It returns None for what it does not know. Calling the returned function takes it back.
    """
    global _registered  # noqa: PLW0603
    _registered = (function, *_registered)
    done = False

    def unregister() -> None:
        global _registered  # noqa: PLW0603
        nonlocal done
        if not done:
            done = True
            remaining = list(_registered)
            remaining.remove(function)
            _registered = tuple(remaining)

    return unregister


def describe(call: ToolCall | None, result: ToolResult) -> Action:
    """What a tool call did and how it ended. Texts in the answer are not redacted."""
    return describe_with(call, result, identity)


def describe_with(call: ToolCall | None, result: ToolResult, redact: Redactor) -> Action:
    for function in _registered:
        try:
            action = function(call, result)
        except Exception:  # noqa: BLE001  a user's function must not stop a compaction; the built-in families answer
            continue
        if isinstance(action, Action):
            return action
    look = take_a_look(call, result, redact)
    return recognise(look)(look)
