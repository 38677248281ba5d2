"""Repairs that make a transcript legal again, and the list of repairs made.

Rules of this file:
1. Results that answer no call are removed. Calls without a result get a stub (`bridge`) or are taken out (`strip`); the
   calls of the newest batch may still be waiting.
2. Text is never lost with a call: a message that loses its calls keeps what it says.
3. Messages that are no messages, and empty ones, are removed. Calls without a name are taken out.
4. Calls without arguments get an empty object; a result takes the id of the call it answers, and both get one where the
   call has none.
5. A transcript with nothing to repair comes back as the same object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from midfold.core.laws import is_empty
from midfold.core.message import Message, Part, Role, Text, Thinking, ToolCall, ToolResult, Transcript, plain
from midfold.core.pairing import Pairing, pair

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
        pairing = pair(work.messages)
        if not pairing.orphans and not pairing.unanswered and not any(map(_is_useless, work.messages[:-1])):
            break
        work.remove_orphans(pairing)
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

    def mend_calls(self) -> None:
        """Calls no provider takes: without a name, or without arguments."""
        for number, (index, message) in enumerate(self.kept):
            calls = [part for part in message.parts if isinstance(part, ToolCall)]
            if all(call.name and call.arguments for call in calls):
                continue
            parts = tuple(part for part in message.parts if not (isinstance(part, ToolCall) and not part.name))
            if len(parts) < len(message.parts):
                self.repairs.append(Repair(index, "took out a call without a name"))
            if any(isinstance(part, ToolCall) and not part.arguments for part in parts):
                self.repairs.append(Repair(index, "gave a call an empty object as arguments"))
            self.kept[number] = (index, message.with_parts(tuple(_with_arguments(part) for part in parts)))

    def give_ids(self, pairing: Pairing) -> None:
        """A result takes the id of its call. Legacy function calls have none, and need none."""
        changes: dict[int, dict[int, Part]] = {}
        legacy: dict[int, bool] = {}
        for call_place, result_place in pairing.answers.items():
            answering = self.kept[result_place.message]
            call = self.kept[call_place.message][1].parts[call_place.part]
            result = answering[1].parts[result_place.part]
            if not isinstance(call, ToolCall) or not isinstance(result, ToolResult) or (call.id and result.call_id):
                continue
            if result_place.message not in legacy:
                legacy[result_place.message] = _is_legacy(answering[1])
            if legacy[result_place.message]:
                continue
            name = call.id or f"call_{call_place.message}_{call_place.part}"
            named = ToolCall(name, call.name, call.arguments, wire=call.wire)
            answered = ToolResult(name, result.parts, result.is_error, result.name, wire=result.wire)
            changes.setdefault(call_place.message, {})[call_place.part] = named
            changes.setdefault(result_place.message, {})[result_place.part] = answered
            self.repairs.append(Repair(answering[0], "gave a result the id of its call"))
        for number, parts in changes.items():
            self._put(number, parts)

    def _put(self, number: int, changed: Mapping[int, Part]) -> None:
        """The message with other parts at these places."""
        index, message = self.kept[number]
        parts = tuple(changed.get(place, part) for place, part in enumerate(message.parts))
        self.kept[number] = (index, message.with_parts(parts))

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
            left = tuple(part for place, part in enumerate(message.parts) if place not in calls)
            self.kept[number] = (index, message.with_parts(left or (Text(STRIPPED),)))
            self.repairs.append(Repair(index, f"took out {_count(len(calls), 'call')} without a result"))
            before = self.kept[number - 1][1] if number else None
            if not left and before is not None and _only_thinks(before):
                self.kept[number - 1] = (self.kept[number - 1][0], before.with_parts(()))

    def bridge(self, missing: dict[int, dict[int, ToolCall]], result_role: Role, *, batches_of_items: bool) -> None:
        for number in sorted(missing, reverse=True):
            index, _ = self.kept[number]
            calls = enumerate(missing[number].items())
            named = {place: _named(call, call.id or f"call_{number}_{nth}") for nth, (place, call) in calls}
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


def _named(call: ToolCall, name: str) -> ToolCall:
    return call if call.id == name else ToolCall(name, call.name, call.arguments, wire=call.wire)


def _is_legacy(message: Message) -> bool:
    value = _value(message) if message.wire is not None else None
    return isinstance(value, Mapping) and value.get("role") == "function"


def _only_thinks(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(part, Thinking) for part in message.parts)


def _has_results(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
