"""Rules for a legal transcript, and the places where it may be cut.

A law is a small class: `forbids` marks the cuts it does not allow, `violations` describes what breaks it. A cut at i
separates messages[:i] from messages[i:]; cuts at 0 and at the end are always legal. Engines, the sanitizer and the
tests share the list `LAWS`. Each law is one pass.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple, Protocol

import msgspec

from midfold.transcript.message import (
    CALL,
    RESULT,
    THINKING,
    Message,
    Opaque,
    Part,
    Problem,
    Text,
    ToolCall,
    ToolResult,
    Transcript,
)

# Pairing of tool results with tool calls. A batch is a run of calls uninterrupted by user messages and results; the
# results that follow answer it. Results are paired by id inside their batch, each call once, in order. Ids are never
# looked up globally, because real recordings reuse one id for several calls. A result without an id answers the oldest
# open call of its batch, preferring one without an id.


class Place(msgspec.Struct, frozen=True, order=True, gc=False):
    """Position of a part: `messages[message].parts[part]`."""

    message: int
    part: int


class Pairing(NamedTuple):
    answers: dict[Place, Place]
    """Result of each call."""
    unanswered: tuple[Place, ...]
    waiting: tuple[Place, ...]
    """Calls of the newest batch followed only by results, so they may still be running. An open call before an
    answered call of a later message is lost instead.
    """
    orphans: tuple[Place, ...]
    """Results that answer no call of their batch."""
    reused: tuple[Place, ...]
    """Calls whose id an earlier call also has."""

    def calls(self) -> dict[Place, Place]:
        """Return the call of each result."""
        return {result: call for call, result in self.answers.items()}

    def batches(self) -> list[range]:
        """Return the message range of each batch, from its first call to its last result."""
        found: list[range] = []
        for start, end in sorted((call.message, result.message) for call, result in self.answers.items()):
            if found and start < found[-1].stop:
                found[-1] = range(found[-1].start, max(found[-1].stop, end + 1))
            else:
                found.append(range(start, end + 1))
        return found


def pair(messages: Transcript) -> Pairing:
    walk = _PairingWalk()
    for index, message in enumerate(messages):
        if walk.open and message.role != "tool":
            walk.turn(message)
        if not message.kinds & (CALL | RESULT):
            continue
        for number, part in enumerate(message.parts):
            if type(part) is ToolCall:
                walk.call(Place(index, number), part.id)
            elif type(part) is ToolResult:
                walk.result(Place(index, number), part.call_id)
    waiting = walk.finish()
    return Pairing(walk.answers, tuple(walk.unanswered), waiting, tuple(walk.orphans), tuple(walk.reused))


class _PairingWalk:
    def __init__(self) -> None:
        self.answers: dict[Place, Place] = {}
        self.unanswered: list[Place] = []
        self.orphans: list[Place] = []
        self.reused: list[Place] = []
        self.seen: set[str] = set()
        self.open: OrderedDict[str, deque[Place]] = OrderedDict()
        """Open calls by id ('' for none), oldest first."""
        self.interrupted = False
        self.moved_on = False
        self.newest_answered = -1
        """Index of the last message with an answered call in this batch."""

    def turn(self, message: Message) -> None:
        """Note a user or system message, or an assistant message without calls: open calls were given up."""
        role = message.role
        if role == "system" or (role == "user" and not message.kinds & RESULT):
            self.interrupted = self.moved_on = True
        elif role == "assistant" and message.parts:
            self.moved_on = not message.kinds & (CALL | THINKING)

    def call(self, place: Place, call_id: str) -> None:
        if self.interrupted:
            self.close()
        self.moved_on = False
        if call_id:
            if call_id in self.seen:
                self.reused.append(place)
            self.seen.add(call_id)
        if call_id in self.open:
            self.open[call_id].append(place)
        else:
            self.open[call_id] = deque((place,))

    def result(self, place: Place, call_id: str) -> None:
        self.interrupted = True
        name = call_id if call_id or call_id in self.open else next(iter(self.open), call_id)
        waiting = self.open.get(name)
        if waiting is None:
            self.orphans.append(place)
            return
        answered = waiting.popleft()
        self.answers[answered] = place
        self.newest_answered = max(self.newest_answered, answered.message)
        if not waiting:
            del self.open[name]

    def close(self) -> None:
        """End the batch; its open calls stay unanswered."""
        if self.open:
            self.unanswered.extend(self._still_open())
            self.open.clear()
        self.interrupted = self.moved_on = False
        self.newest_answered = -1

    def finish(self) -> tuple[Place, ...]:
        if self.moved_on:
            self.close()
        still_open = self._still_open()
        lost = [place for place in still_open if place.message < self.newest_answered]
        self.unanswered += lost
        return tuple(still_open[len(lost) :])

    def _still_open(self) -> list[Place]:
        return sorted(place for places in self.open.values() for place in places)


UNREADABLE = frozenset({"block", "content", "message", "item", "unreadable"})
"""Kinds of opaque parts that were not valid blocks and carry no content."""


class Law(Protocol):
    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        """Set forbidden[i] for every cut i that would break the law."""
        ...

    def violations(self, messages: Transcript, pairing: Pairing, /) -> tuple[str, ...]:
        """Return descriptions of what breaks the law."""
        ...


class CallsAnswered:
    """Every call is answered in the messages directly after it; otherwise providers respond with status 400.

    Calls made together are answered together, so a batch is never cut between its first call and its last result. Calls
    of the newest batch may still be waiting.
    """

    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        for batch in pairing.batches():
            _mark(forbidden, batch.start, batch.stop - 1)
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
        for batch in pairing.batches():
            between = [index for index in batch if not is_of_batch(messages[index])]
            found += [f"messages[{index}] is between a call and its result" for index in between]
        return tuple(found)


class ThinkingKept:
    """A reasoning item belongs to the item after it; providers reject one without the other."""

    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        for index, message in enumerate(messages):
            if message.kinds == THINKING and message.role == "assistant":
                forbidden[index + 1] = 1

    def violations(self, messages: Transcript, pairing: Pairing, /) -> tuple[str, ...]:
        return ()


class UserFirst:
    """The first message after the system prompt is the user's; Anthropic rejects an assistant message there."""

    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        return

    def violations(self, messages: Transcript, pairing: Pairing, /) -> tuple[str, ...]:
        first = first_turn(messages)
        if first == len(messages) or may_open(messages[first]):
            return ()
        return (f"messages[{first}] is first but not from the user",)


class NothingEmpty:
    """No message is empty, as providers reject it; only a final assistant message may be."""

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
    """Return the indexes of all cuts that every law allows, in order."""
    pairing = pairing or pair(messages)
    forbidden = bytearray(len(messages) + 1)
    for law in LAWS:
        law.forbids(messages, pairing, forbidden)
    forbidden[0] = forbidden[-1] = 0
    return [index for index, bad in enumerate(forbidden) if not bad]


def violations(messages: Transcript) -> tuple[str, ...]:
    """Return descriptions of everything that makes the transcript illegal."""
    pairing = pair(messages)
    return tuple(found for law in LAWS for found in law.violations(messages, pairing))


def first_turn(messages: Transcript) -> int:
    """Return the index of the first message after the system prompt."""
    turns = (index for index, message in enumerate(messages) if message.role != "system" or message.kinds & CALL)
    return next(turns, len(messages))


def may_open(message: Message) -> bool:
    """Return whether a conversation may begin with this message: a user message with more than tool results."""
    return message.role == "user" and any(not isinstance(part, ToolResult) for part in message.parts)


def is_human(message: Message) -> bool:
    """Return whether a user speaks here; tool results or blank text alone do not count."""
    return message.role == "user" and any(says_something(part) for part in message.parts)


def says_something(part: Part) -> bool:
    if isinstance(part, Text):
        return bool(part.text.strip())
    if isinstance(part, Opaque):
        return part.kind not in UNREADABLE
    return not isinstance(part, ToolResult)


def is_empty(message: Message) -> bool:
    return all(isinstance(part, Text) and not part.text.strip() for part in message.parts)


def is_of_batch(message: Message) -> bool:
    """Return whether the message may stand between a call and its result: calls and results of the batch."""
    return message.role == "assistant" or bool(message.kinds & (CALL | RESULT))


def _mark(forbidden: bytearray, start: int, end: int) -> None:
    if end > start:
        forbidden[start + 1 : end + 1] = b"\1" * (end - start)


# Problems of calls and results that do not match.


def pairing_problems(messages: Transcript, key: str) -> list[Problem]:
    pairing = pair(messages)
    found: dict[Place, str] = dict.fromkeys(pairing.reused, "an earlier tool call has the same id")
    for place in pairing.orphans:
        part = messages[place.message].parts[place.part]
        nameless = isinstance(part, ToolResult) and not part.call_id
        found[place] = (
            "this tool result has no id and no open call"
            if nameless
            else "this tool result answers no call of the preceding turn"
        )
    found.update(dict.fromkeys(pairing.unanswered, "this tool call was never answered"))
    return [Problem(f"{key}[{place.message}]", found[place]) for place in sorted(found)]
