"""What makes a transcript legal, and where it may be cut.

Rules of this file:
1. A law is a small class. `forbids` marks the cuts it does not allow; `violations` says what breaks it.
2. A cut at i separates messages[:i] from messages[i:]. Cuts at 0 and at the end are always legal.
3. Engines, the sanitizer and the tests use the same list, `LAWS`. Each law is one pass.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple, Protocol

import msgspec

from midfold.transcript.message import (
    CALL,
    RESULT,
    THINKING,
    Message,
    Opaque,
    Part,
    Problem,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Transcript,
    plain,
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
            between = [index for index in batch if not _is_of_batch(messages[index])]
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
    return message.role == "user" and any(_says_something(part) for part in message.parts)


def _says_something(part: Part) -> bool:
    if isinstance(part, Text):
        return bool(part.text.strip())
    if isinstance(part, Opaque):
        return part.kind not in UNREADABLE
    return not isinstance(part, ToolResult)


def is_empty(message: Message) -> bool:
    return all(isinstance(part, Text) and not part.text.strip() for part in message.parts)


def _is_of_batch(message: Message) -> bool:
    """Whether a message may stand between a call and its result: other calls and results of the batch may, whatever
    role a client gives them."""
    return message.role == "assistant" or bool(message.kinds & (CALL | RESULT))


def _mark(forbidden: bytearray, start: int, end: int) -> None:
    if end > start:
        forbidden[start + 1 : end + 1] = b"\1" * (end - start)


# Repairs that make a transcript legal again, and the list of repairs made.
#
# Rules:
# 1. Results that answer no call are removed. Calls without a result get a stub (`bridge`) or are taken out (`strip`);
#    the calls of the newest batch may still be waiting.
# 2. Text is never lost with a call: a message that loses its calls keeps what it says.
# 3. Messages that are no messages, and empty ones, are removed. Calls without a name are taken out.
# 4. Results stand directly after their calls: what stood between them comes after them, and calls of one batch in
#    several messages are joined, unless the dialect has them as items, and so are results that the user carries.
# 5. Calls without arguments get an empty object; a result takes the id of the call it answers, and both get one where
#    the call has none.
# 6. A transcript with nothing to repair comes back as the same object.


STUB = "[The result of this call was not recorded.]"
STRIPPED = "[A tool call without a result was taken out here.]"
"""Stands for a message that was nothing but such calls, so that its neighbours do not meet."""
MOST_PASSES = 5
"""A repair can uncover another: without its stray result, a message is a turn that leaves a call unanswered."""
OrphanCalls = Literal["bridge", "strip"]


class Repair(msgspec.Struct, frozen=True):
    """One thing that was mended; `message` is its place before the repair, -1 for what was not there."""

    message: int
    what: str


def sanitize(
    messages: Transcript,
    *,
    orphan_calls: OrphanCalls = "bridge",
    result_role: Role = "tool",
    batches_of_items: bool = False,
) -> tuple[Transcript, tuple[Repair, ...]]:
    """A legal transcript and what had to be done for it. `result_role` is what carries results in the dialect."""
    kept = [(index, message) for index, message in enumerate(messages) if not _is_nothing(message)]
    work = _Work(kept, [])
    work.repairs += [
        Repair(index, "removed what is no message") for index, message in enumerate(messages) if _is_nothing(message)
    ]
    work.mend_calls()
    work.give_ids(pair(work.messages))
    for _ in range(MOST_PASSES):
        work.close_ranks(pair(work.messages), result_role, batches_of_items=batches_of_items)
        pairing = work.pairing(batches_of_items=batches_of_items)
        if not pairing.orphans and not pairing.unanswered and not any(map(_is_useless, work.messages[:-1])):
            break
        if pairing.orphans:
            work.remove_orphans(pairing)
            pairing = work.pairing(batches_of_items=batches_of_items)
        missing = work.missing_results(pairing)
        if orphan_calls == "strip":
            work.strip(missing)
        else:
            work.bridge(missing, result_role, batches_of_items=batches_of_items)
        work.remove_empty()
    work.remove_empty()
    if not work.repairs:
        return messages, ()
    return work.messages, tuple(sorted(work.repairs, key=lambda repair: repair.message))


def _is_nothing(message: Message) -> bool:
    return message.role == "other" and message.wire is not None and not isinstance(_value(message), Mapping)


def _value(message: Message) -> object:
    try:
        return plain(message.wire)
    except ValueError:
        return {}


def _is_useless(message: Message) -> bool:
    return is_empty(message)


class _Work:
    def __init__(self, kept: list[tuple[int, Message]], repairs: list[Repair]) -> None:
        self.kept = kept
        self.repairs = repairs

    @property
    def messages(self) -> Transcript:
        return tuple(message for _, message in self.kept)

    def pairing(self, *, batches_of_items: bool) -> Pairing:
        """The pairing as a dialect sees it: where a batch is one message, no call waits before another message."""
        messages = self.messages
        pairing = pair(messages)
        if batches_of_items or not pairing.waiting:
            return pairing
        last = max((index for index, message in enumerate(messages) if not message.kinds & RESULT), default=-1)
        lost = tuple(place for place in pairing.waiting if place.message < last)
        return pairing._replace(
            unanswered=tuple(sorted((*pairing.unanswered, *lost))), waiting=pairing.waiting[len(lost) :]
        )

    def mend_calls(self) -> None:
        """Calls no provider takes: without a name, or without arguments."""
        for number, (index, message) in enumerate(self.kept):
            calls = [part for part in message.parts if isinstance(part, ToolCall)]
            if all(call.name and call.arguments for call in calls):
                continue
            parts = tuple(part for part in message.parts if not (isinstance(part, ToolCall) and not part.name))
            if len(parts) < len(message.parts):
                parts = _unless_hidden(parts)
                self.repairs.append(Repair(index, "took out a call without a name"))
            if any(isinstance(part, ToolCall) and not part.arguments for part in parts):
                self.repairs.append(Repair(index, "gave a call an empty object as arguments"))
            self.kept[number] = (index, message.with_parts(tuple(_with_arguments(part) for part in parts)))

    def give_ids(self, pairing: Pairing) -> None:
        """A result takes the id of its call. A legacy call that its result follows has none, and needs none."""
        changes: dict[int, dict[int, Part]] = {}
        for call_place, result_place in pairing.answers.items():
            answering = self.kept[result_place.message]
            call = self.kept[call_place.message][1].parts[call_place.part]
            result = answering[1].parts[result_place.part]
            if not isinstance(call, ToolCall) or not isinstance(result, ToolResult) or (call.id and result.call_id):
                continue
            if not call.id and self._is_legacy_pair(call_place, result_place):
                continue
            name = call.id or f"call_{call_place.message}_{call_place.part}"
            named = ToolCall(name, call.name, call.arguments, wire=call.wire)
            answered = ToolResult(name, result.parts, result.is_error, result.name, wire=result.wire)
            changes.setdefault(call_place.message, {})[call_place.part] = named
            changes.setdefault(result_place.message, {})[result_place.part] = answered
            self.repairs.append(Repair(answering[0], "gave a result the id of its call"))
        for number, parts in changes.items():
            self._put(number, parts)

    def _is_legacy_pair(self, call: Place, result: Place) -> bool:
        alone = not call.message or not self.kept[call.message - 1][1].kinds & CALL
        follows = result.message == call.message + 1 and len(self.kept[call.message][1].parts) == call.part + 1
        return alone and follows and _is_legacy(self.kept[result.message][1])

    def _put(self, number: int, changed: Mapping[int, Part]) -> None:
        """The message with other parts at these places."""
        index, message = self.kept[number]
        parts = tuple(changed.get(place, part) for place, part in enumerate(message.parts))
        self.kept[number] = (index, message.with_parts(parts))

    def close_ranks(self, pairing: Pairing, result_role: Role, *, batches_of_items: bool) -> None:
        """Brings each batch together: its calls, directly after them its results."""
        for batch in reversed(pairing.batches()):
            inner = self.kept[batch.start : batch.stop]
            first = next(place for place, (_, message) in enumerate(inner) if message.kinds & RESULT)
            is_call = [place < first and _is_of_batch(message) for place, (_, message) in enumerate(inner)]
            calls = [entry for place, entry in enumerate(inner) if is_call[place]]
            results = [entry for entry in inner if entry[1].kinds & RESULT]
            others = [entry for place, entry in enumerate(inner) if not is_call[place] and not entry[1].kinds & RESULT]
            self.repairs += [Repair(index, "moved behind the results of the calls before it") for index, _ in others]
            if len(calls) > 1 and not batches_of_items:
                calls = self._join(calls, "assistant", "joined the calls of one batch")
            if len(results) > 1 and result_role == "user":
                results = self._join(results, "user", "joined the results of one batch")
            self.kept[batch.start : batch.stop] = [*calls, *results, *others]

    def _join(self, entries: list[tuple[int, Message]], role: Role, what: str) -> list[tuple[int, Message]]:
        """One message of several, of this role where one of them has it; its results before everything else."""
        parts = [part for _, message in entries for part in message.parts]
        place = next((place for place, (_, message) in enumerate(entries) if message.role == role), 0)
        index, joined = entries[place]
        self.repairs += [Repair(other, what) for at, (other, _) in enumerate(entries) if at != place]
        parts.sort(key=lambda part: not isinstance(part, ToolResult))
        return [(index, joined.with_parts(tuple(parts)))]

    def remove_orphans(self, pairing: Pairing) -> None:
        drop: dict[int, set[int]] = {}
        for place in pairing.orphans:
            drop.setdefault(place.message, set()).add(place.part)
        for number, parts in drop.items():
            index, message = self.kept[number]
            left = tuple(part for place, part in enumerate(message.parts) if place not in parts)
            self.kept[number] = (index, message.with_parts(left))
            self.repairs.append(Repair(index, f"removed {_count(len(parts), 'result')} without a call"))

    def missing_results(self, pairing: Pairing) -> dict[int, dict[int, ToolCall]]:
        """Calls without a result, by message and place."""
        missing: dict[int, dict[int, ToolCall]] = {}
        for place in pairing.unanswered:
            part = self.kept[place.message][1].parts[place.part]
            if isinstance(part, ToolCall):
                missing.setdefault(place.message, {})[place.part] = part
        return missing

    def strip(self, missing: dict[int, dict[int, ToolCall]]) -> None:
        for number, calls in missing.items():
            index, message = self.kept[number]
            left = _unless_hidden(part for place, part in enumerate(message.parts) if place not in calls)
            self.kept[number] = (index, message.with_parts(left or (Text(STRIPPED),)))
            self.repairs.append(Repair(index, f"took out {_count(len(calls), 'call')} without a result"))
            before = self.kept[number - 1][1] if number else None
            if not left and before is not None and _only_thinks(before):
                self.kept[number - 1] = (self.kept[number - 1][0], before.with_parts(()))

    def bridge(self, missing: dict[int, dict[int, ToolCall]], result_role: Role, *, batches_of_items: bool) -> None:
        for number in sorted(missing, reverse=True):
            index, _ = self.kept[number]
            calls = enumerate(missing[number].items())
            named = {place: _with_id(call, call.id or f"call_{number}_{nth}") for nth, (place, call) in calls}
            self._put(number, named)
            stubs = [ToolResult(call.id, (Text(STUB),)) for call in named.values()]
            self.repairs.append(Repair(index, f"added {_count(len(stubs), 'stub result')}"))
            after = number + 1
            if result_role == "tool":
                after = self._end_of_batch(after, batches_of_items=batches_of_items)
                self.kept[after:after] = [(index, Message("tool", (stub,))) for stub in stubs]
            elif after < len(self.kept) and self.kept[after][1].role == "user":
                later, message = self.kept[after]
                self.kept[after] = (later, message.with_parts((*stubs, *message.parts)))
                self.repairs.append(Repair(later, "carries the stub results of the message before it"))
            else:
                self.kept.insert(after, (index, Message("user", tuple(stubs))))

    def _end_of_batch(self, place: int, *, batches_of_items: bool) -> int:
        """Where the batch ends: in the Responses shape it may stand in several items, with all results after them."""
        if batches_of_items:
            scan = place
            while scan < len(self.kept) and self.kept[scan][1].role in ("assistant", "other"):
                scan += 1
                if any(isinstance(part, ToolCall) for part in self.kept[scan - 1][1].parts):
                    place = scan
        while place < len(self.kept) and _has_results(self.kept[place][1]):
            place += 1
        return place

    def remove_empty(self) -> None:
        last = len(self.kept) - 1
        left: list[tuple[int, Message]] = []
        for number, (index, message) in enumerate(self.kept):
            if _is_useless(message) and not (number == last and message.role == "assistant"):
                self.repairs.append(Repair(index, "removed an empty message"))
            else:
                left.append((index, message))
        self.kept = left


def _with_arguments(part: Part) -> Part:
    if isinstance(part, ToolCall) and not part.arguments:
        return ToolCall(part.id, part.name, "{}", wire=part.wire)
    return part


def _with_id(call: ToolCall, name: str) -> ToolCall:
    return call if call.id == name else ToolCall(name, call.name, call.arguments, wire=call.wire)


def _is_legacy(message: Message) -> bool:
    value = _value(message) if message.wire is not None else None
    return isinstance(value, Mapping) and value.get("role") == "function"


def _unless_hidden(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts that are left without calls; none if only reasoning and blank text are left.

    Providers reject an assistant message without visible content.
    """
    left = tuple(parts)
    visible = (part for part in left if isinstance(part, ToolResult) or _says_something(part))
    return () if all(isinstance(part, Thinking) for part in visible) else left


def _only_thinks(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(part, Thinking) for part in message.parts)


def _has_results(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


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
