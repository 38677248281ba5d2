"""Which tool result answers which tool call.

Rules of this file:
1. A batch is a run of calls that no user message and no result interrupts; the results that follow answer it.
2. Results are paired inside their batch by id, each call once, in order. Ids are never looked up globally: real
   recordings use one id for several calls of one conversation.
3. A result without an id answers the oldest open call of its batch, one without an id first.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import NamedTuple

from midfold.core.message import CALL, RESULT, THINKING, Message, ToolCall, ToolResult, Transcript


class Place(NamedTuple):
    """A part of a message: `messages[message].parts[part]`."""

    message: int
    part: int


class Pairing(NamedTuple):
    answers: dict[Place, Place]
    """Call -> result."""
    unanswered: tuple[Place, ...]
    waiting: tuple[Place, ...]
    """Calls of the newest batch that nothing but results has followed: they may still be running."""
    orphans: tuple[Place, ...]
    """Results that answer no call of the batch before them."""
    reused: tuple[Place, ...]
    """Calls whose id an earlier call of the conversation had."""

    def calls(self) -> dict[Place, Place]:
        """Result -> call."""
        return {result: call for call, result in self.answers.items()}


def pair(messages: Transcript) -> Pairing:
    walk = _Walk()
    for index, message in enumerate(messages):
        if walk.open:
            walk.turn(message)
        if not message.kinds & (CALL | RESULT):
            continue
        for number, part in enumerate(message.parts):
            if isinstance(part, ToolCall):
                walk.call(Place(index, number), part.id)
            elif isinstance(part, ToolResult):
                walk.result(Place(index, number), part.call_id)
    waiting = walk.finish()
    return Pairing(walk.answers, tuple(walk.unanswered), waiting, tuple(walk.orphans), tuple(walk.reused))


class _Walk:
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

    def turn(self, message: Message) -> None:
        """A user speaks, or the assistant goes on without calling: whatever is still open was given up."""
        if message.role == "user":
            if not message.kinds & RESULT:
                self.interrupted = self.moved_on = True
        elif message.role == "assistant" and message.parts:
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
        self.answers[waiting.popleft()] = place
        if not waiting:
            del self.open[name]

    def close(self) -> None:
        """The batch is over: what is still open stays unanswered."""
        if self.open:
            self.unanswered.extend(sorted(place for places in self.open.values() for place in places))
            self.open.clear()
        self.interrupted = self.moved_on = False

    def finish(self) -> tuple[Place, ...]:
        if self.moved_on:
            self.close()
        return tuple(sorted(place for places in self.open.values() for place in places))
