"""What makes a transcript legal, and where it may be cut.

Rules of this file:
1. A law is a small class. `forbids` marks the cuts it does not allow; `violations` says what breaks it.
2. A cut at i separates messages[:i] from messages[i:]. Cuts at 0 and at the end are always legal.
3. Engines, the sanitizer and the tests use the same list, `LAWS`. Each law is one pass.
"""

from __future__ import annotations

from typing import Protocol

from midfold.core.message import CALL, THINKING, Message, Opaque, Part, Text, ToolResult, Transcript
from midfold.core.pairing import Pairing, pair

UNREADABLE = frozenset({"block", "content", "message", "item", "unreadable"})
"""Kinds of opaque parts that were no block at all: nobody says anything in them."""


class Law(Protocol):
    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        """Sets forbidden[i] for every cut i that would break the law."""
        ...

    def violations(self, messages: Transcript, pairing: Pairing, /) -> tuple[str, ...]:
        """What is wrong with the transcript as it stands."""
        ...


class CallsAnswered:
    """Every result stands after its call, every call has its result: providers answer 400 to anything else.

    Calls made together are answered together, so a batch is whole from its first call to its last result. The calls
    of the newest batch may still be waiting.
    """

    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        start = 0
        end = 0
        for call, result in sorted(pairing.answers.items()):
            if call.message < end:
                end = max(end, result.message)
            else:
                _mark(forbidden, start, end)
                start, end = call.message, result.message
        _mark(forbidden, start, end)
        if pairing.waiting:
            _mark(forbidden, pairing.waiting[0].message, pairing.waiting[-1].message)
        follows_calls = False
        for index, message in enumerate(messages):
            is_calls = message.kinds == CALL
            if is_calls and follows_calls:
                forbidden[index] = 1
            follows_calls = is_calls

    def violations(self, messages: Transcript, pairing: Pairing, /) -> tuple[str, ...]:
        found = [f"messages[{place.message}] answers no call" for place in pairing.orphans]
        found += [f"messages[{place.message}] has a call without a result" for place in pairing.unanswered]
        return tuple(found)


class ThinkingKept:
    """Reasoning that is an item of its own belongs to the item after it; providers reject one without the other."""

    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        for index, message in enumerate(messages):
            if message.kinds == THINKING and message.role == "assistant":
                forbidden[index + 1] = 1

    def violations(self, messages: Transcript, pairing: Pairing, /) -> tuple[str, ...]:
        return ()


class UserFirst:
    """After the system prompt a user speaks first; Anthropic rejects a list that starts with the assistant."""

    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        return

    def violations(self, messages: Transcript, pairing: Pairing, /) -> tuple[str, ...]:
        first = next((index for index, message in enumerate(messages) if message.role != "system"), None)
        if first is None or opens(messages[first]):
            return ()
        return (f"messages[{first}] comes first and is not the user's",)


class NothingEmpty:
    """A message says something; providers reject empty ones (an answer that ends the list may still be empty)."""

    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        return

    def violations(self, messages: Transcript, pairing: Pairing, /) -> tuple[str, ...]:
        last = len(messages) - 1
        return tuple(
            f"messages[{index}] is empty"
            for index, message in enumerate(messages)
            if is_empty(message) and not (index == last and message.role == "assistant")
        )


LAWS: tuple[Law, ...] = (CallsAnswered(), ThinkingKept(), UserFirst(), NothingEmpty())


def legal_cuts(messages: Transcript, pairing: Pairing | None = None) -> list[int]:
    """Every place where the transcript may be cut, in order: the intersection of what the laws allow."""
    pairing = pairing or pair(messages)
    forbidden = bytearray(len(messages) + 1)
    for law in LAWS:
        law.forbids(messages, pairing, forbidden)
    forbidden[0] = forbidden[-1] = 0
    return [index for index, bad in enumerate(forbidden) if not bad]


def violations(messages: Transcript) -> tuple[str, ...]:
    """Everything that makes the transcript illegal."""
    pairing = pair(messages)
    return tuple(found for law in LAWS for found in law.violations(messages, pairing))


def opens(message: Message) -> bool:
    """Whether a conversation may begin with this: the user's, and not only results."""
    return message.role == "user" and any(not isinstance(part, ToolResult) for part in message.parts)


def is_human(message: Message) -> bool:
    """Whether a user speaks here: a message of tool results alone, or of blank text, is no turn of the user's."""
    return message.role == "user" and any(_says_something(part) for part in message.parts)


def _says_something(part: Part) -> bool:
    if isinstance(part, Text):
        return bool(part.text.strip())
    if isinstance(part, Opaque):
        return part.kind not in UNREADABLE
    return not isinstance(part, ToolResult)


def is_empty(message: Message) -> bool:
    return all(isinstance(part, Text) and not part.text.strip() for part in message.parts)


def _mark(forbidden: bytearray, start: int, end: int) -> None:
    if end > start:
        forbidden[start + 1 : end + 1] = b"\1" * (end - start)
