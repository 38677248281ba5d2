"""What makes a transcript legal, and where it may be cut.

Rules of this file:
1. A law is a small class. `forbids` marks the cuts it does not allow; `violations` says what breaks it.
2. A cut at i separates messages[:i] from messages[i:]. Cuts at 0 and at the end are always legal.
3. Engines, the sanitizer and the tests use the same list, `LAWS`. Each law is one pass.
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

# Which tool result answers which tool call.
#
# Rules:
# 1. A batch is a run of calls that no user message and no result interrupts; the results that follow answer it.
# 2. Results are paired inside their batch by id, each call once, in order. Ids are never looked up globally: real
#    recordings use one id for several calls of one conversation.
# 3. A result without an id answers the oldest open call of its batch, one without an id first.


class Place(msgspec.Struct, frozen=True, order=True, gc=False):
    """A part of a message: `messages[message].parts[part]`."""

    message: int
    part: int


class Pairing(NamedTuple):
    answers: dict[Place, Place]
    """Call -> result."""
    unanswered: tuple[Place, ...]
    waiting: tuple[Place, ...]
    """Calls of the newest batch that nothing but results has followed: they may still be running. One before a call of
    another message that was answered is not: it was lost."""
    orphans: tuple[Place, ...]
    """Results that answer no call of the batch before them."""
    reused: tuple[Place, ...]
    """Calls whose id an earlier call of the conversation had."""

    def calls(self) -> dict[Place, Place]:
        """Result -> call."""
        return {result: call for call, result in self.answers.items()}

    def batches(self) -> list[range]:
        """The messages from the first call of each batch to its last result."""
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
        """Calls by id, none without any; the first is found in no time however many went before it."""
        self.interrupted = False
        self.moved_on = False
        self.newest_answered = -1
        """The message of the last call of this batch that was answered."""

    def turn(self, message: Message) -> None:
        """Somebody speaks, or the assistant goes on without calling: whatever is still open was given up."""
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
        """The batch is over: what is still open stays unanswered."""
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
"""Kinds of opaque parts that were no block at all: nobody says anything in them."""


class Law(Protocol):
    def forbids(self, messages: Transcript, pairing: Pairing, forbidden: bytearray, /) -> None:
        """Sets forbidden[i] for every cut i that would break the law."""
        ...

    def violations(self, messages: Transcript, pairing: Pairing, /) -> tuple[str, ...]:
        """What is wrong with the transcript as it stands."""
        ...


class CallsAnswered:
    """Every call is answered in the messages directly after it: providers answer 400 to anything else.

    Calls made together are answered together, so a batch is whole from its first call to its last result. The calls
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
            found += [f"messages[{index}] stands between a call and its result" for index in between]
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
        first = first_turn(messages)
        if first == len(messages) or may_open(messages[first]):
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


def first_turn(messages: Transcript) -> int:
    """Where the system prompt ends: the first message that is not the system's, or that calls a tool."""
    turns = (index for index, message in enumerate(messages) if message.role != "system" or message.kinds & CALL)
    return next(turns, len(messages))


def may_open(message: Message) -> bool:
    """Whether a conversation may begin with this: the user's, and not only results."""
    return message.role == "user" and any(not isinstance(part, ToolResult) for part in message.parts)


def is_human(message: Message) -> bool:
    """Whether a user speaks here: a message of tool results alone, or of blank text, is no turn of the user's."""
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
    """Whether a message may stand between a call and its result: other calls and results of the batch may, whatever
    role a client gives them."""
    return message.role == "assistant" or bool(message.kinds & (CALL | RESULT))


def _mark(forbidden: bytearray, start: int, end: int) -> None:
    if end > start:
        forbidden[start + 1 : end + 1] = b"\1" * (end - start)


# What is wrong between messages: calls and results that do not find each other.


def pairing_problems(messages: Transcript, key: str) -> list[Problem]:
    pairing = pair(messages)
    found: dict[Place, str] = dict.fromkeys(pairing.reused, "an earlier call of this conversation has the same id")
    for place in pairing.orphans:
        part = messages[place.message].parts[place.part]
        nameless = isinstance(part, ToolResult) and not part.call_id
        found[place] = (
            "this tool result has no id and no open call"
            if nameless
            else "this tool result answers no call of the turn before it"
        )
    found.update(dict.fromkeys(pairing.unanswered, "this tool call was never answered"))
    return [Problem(f"{key}[{place.message}]", found[place]) for place in sorted(found)]
