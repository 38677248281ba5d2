"""Repair a transcript so that it is legal, and list the repairs made.

1. Results without a call are removed. Calls without a result get a stub result (`bridge`) or are removed (`strip`);
   calls of the newest batch may still be waiting.
2. A message that loses its calls keeps its text.
3. Invalid and empty messages are removed, and so are calls without a name.
4. Results are moved directly after their calls, before anything that stood between them. Calls of one batch in several
   messages are joined unless the dialect uses items; results in user messages are joined too.
5. Calls without arguments get an empty object. A result gets the id of its call; if the call has none, both get one.
6. A repeated id of a Responses item is dropped.
7. A transcript without problems is returned as the same object.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from midfold.transcript.laws import Pairing, Place, is_empty, is_of_batch, pair, says_something
from midfold.transcript.message import (
    CALL,
    RESULT,
    Message,
    Part,
    Role,
    Text,
    Thinking,
    ToolCall,
    ToolResult,
    Transcript,
    plain,
)

STUB = "[The result of this call was not recorded.]"
STRIPPED = "[A tool call without a result was taken out here.]"
"""Placeholder for a message that held only such calls, so that its neighbours do not become adjacent."""
MAX_PASSES = 5
"""Maximum repair passes; removing a stray result, for example, can leave a call unanswered."""
OrphanCalls = Literal["bridge", "strip"]


class Repair(msgspec.Struct, frozen=True):
    """One repair; `message` is the index before it, or -1 for a message that did not exist."""

    message: int
    what: str


def sanitize(
    messages: Transcript,
    *,
    orphan_calls: OrphanCalls = "bridge",
    result_role: Role = "tool",
    batches_of_items: bool = False,
    item_ids: set[str] | None = None,
) -> tuple[Transcript, tuple[Repair, ...]]:
    """Return a legal transcript and the repairs made; `result_role` is the role of tool results in the dialect.

    `item_ids` holds the item ids used before these messages and is updated with theirs.
    """
    kept = [(index, message) for index, message in enumerate(messages) if not _is_invalid(message)]
    work = _Work(kept, [])
    work.repairs += [
        Repair(index, "removed an invalid message") for index, message in enumerate(messages) if _is_invalid(message)
    ]
    if batches_of_items:
        work.drop_repeated_item_ids(set() if item_ids is None else item_ids)
    work.fix_calls()
    work.assign_ids(pair(work.messages))
    for _ in range(MAX_PASSES):
        work.group_batches(pair(work.messages), result_role, batches_of_items=batches_of_items)
        pairing = work.pairing(batches_of_items=batches_of_items)
        if not pairing.orphans and not pairing.unanswered and not any(map(is_empty, work.messages[:-1])):
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


def _is_invalid(message: Message) -> bool:
    return message.role == "other" and message.wire is not None and not isinstance(_value(message), Mapping)


def _value(message: Message) -> object:
    try:
        return plain(message.wire)
    except ValueError:
        return {}


def _item(message: Message) -> Mapping[str, Any]:
    """Return the JSON object a message was read from, or an empty one."""
    try:
        value = plain(message.origin)
    except ValueError:
        return {}
    return value if isinstance(value, Mapping) else {}


class _Work:
    def __init__(self, kept: list[tuple[int, Message]], repairs: list[Repair]) -> None:
        self.kept = kept
        self.repairs = repairs

    @property
    def messages(self) -> Transcript:
        return tuple(message for _, message in self.kept)

    def pairing(self, *, batches_of_items: bool) -> Pairing:
        """Return the pairing; without batches of items, calls before a later message are not waiting."""
        messages = self.messages
        pairing = pair(messages)
        if batches_of_items or not pairing.waiting:
            return pairing
        last = max((index for index, message in enumerate(messages) if not message.kinds & RESULT), default=-1)
        lost = tuple(place for place in pairing.waiting if place.message < last)
        return pairing._replace(
            unanswered=tuple(sorted((*pairing.unanswered, *lost))), waiting=pairing.waiting[len(lost) :]
        )

    def drop_repeated_item_ids(self, known: set[str]) -> None:
        """Drop item ids that were used before: OpenAI rejects a repeated id (status 400) and requires none on input."""
        left: list[tuple[int, Message]] = []
        for index, message in self.kept:
            value = _item(message)
            name = value.get("id")
            if not isinstance(name, str) or name not in known:
                known.update([name] if isinstance(name, str) else ())
                left.append((index, message))
            elif value.get("type") == "item_reference":
                self.repairs.append(Repair(index, "removed a repeated item reference"))
            else:
                origin = {key: item for key, item in value.items() if key != "id"}
                left.append((index, Message(message.role, message.parts, None, origin)))
                self.repairs.append(Repair(index, "removed a repeated item id"))
        self.kept = left

    def fix_calls(self) -> None:
        """Remove calls without a name and give those without arguments an empty object."""
        for number, (index, message) in enumerate(self.kept):
            calls = [part for part in message.parts if isinstance(part, ToolCall)]
            if all(call.name and call.arguments for call in calls):
                continue
            parts = tuple(part for part in message.parts if not (isinstance(part, ToolCall) and not part.name))
            if len(parts) < len(message.parts):
                parts = _drop_if_invisible(parts)
                self.repairs.append(Repair(index, "removed a call without a name"))
            if any(isinstance(part, ToolCall) and not part.arguments for part in parts):
                self.repairs.append(Repair(index, "set missing call arguments to an empty object"))
            self.kept[number] = (index, message.with_parts(tuple(_with_arguments(part) for part in parts)))

    def assign_ids(self, pairing: Pairing) -> None:
        """Give each result the id of its call; a legacy call directly followed by its result needs none."""
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
            self.repairs.append(Repair(answering[0], "set a result's id to that of its call"))
        for number, parts in changes.items():
            self._put(number, parts)

    def _is_legacy_pair(self, call: Place, result: Place) -> bool:
        alone = not call.message or not self.kept[call.message - 1][1].kinds & CALL
        follows = result.message == call.message + 1 and len(self.kept[call.message][1].parts) == call.part + 1
        return alone and follows and _is_legacy(self.kept[result.message][1])

    def _put(self, number: int, changed: Mapping[int, Part]) -> None:
        """Replace the parts at these positions of a message."""
        index, message = self.kept[number]
        parts = tuple(changed.get(place, part) for place, part in enumerate(message.parts))
        self.kept[number] = (index, message.with_parts(parts))

    def group_batches(self, pairing: Pairing, result_role: Role, *, batches_of_items: bool) -> None:
        """Move each batch together: its calls, directly followed by its results."""
        for batch in reversed(pairing.batches()):
            inner = self.kept[batch.start : batch.stop]
            first = next(place for place, (_, message) in enumerate(inner) if message.kinds & RESULT)
            is_call = [place < first and is_of_batch(message) for place, (_, message) in enumerate(inner)]
            calls = [entry for place, entry in enumerate(inner) if is_call[place]]
            results = [entry for entry in inner if entry[1].kinds & RESULT]
            others = [entry for place, entry in enumerate(inner) if not is_call[place] and not entry[1].kinds & RESULT]
            self.repairs += [Repair(index, "moved after the results of the preceding calls") for index, _ in others]
            if len(calls) > 1 and not batches_of_items:
                calls = self._join(calls, "assistant", "joined the calls of one batch")
            if len(results) > 1 and result_role == "user":
                results = self._join(results, "user", "joined the results of one batch")
            self.kept[batch.start : batch.stop] = [*calls, *results, *others]

    def _join(self, entries: list[tuple[int, Message]], role: Role, what: str) -> list[tuple[int, Message]]:
        """Join messages into one, taking the first of this role as the base and putting results first."""
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
        """Return calls without a result, by message and part index."""
        missing: dict[int, dict[int, ToolCall]] = {}
        for place in pairing.unanswered:
            part = self.kept[place.message][1].parts[place.part]
            if isinstance(part, ToolCall):
                missing.setdefault(place.message, {})[place.part] = part
        return missing

    def strip(self, missing: dict[int, dict[int, ToolCall]]) -> None:
        for number, calls in missing.items():
            index, message = self.kept[number]
            left = _drop_if_invisible(part for place, part in enumerate(message.parts) if place not in calls)
            self.kept[number] = (index, message.with_parts(left or (Text(STRIPPED),)))
            self.repairs.append(Repair(index, f"removed {_count(len(calls), 'call')} without a result"))
            before = self.kept[number - 1][1] if number else None
            if not left and before is not None and _is_reasoning_only(before):
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
                self.repairs.append(Repair(later, "added the stub results of the preceding message"))
            else:
                self.kept.insert(after, (index, Message("user", tuple(stubs))))

    def _end_of_batch(self, place: int, *, batches_of_items: bool) -> int:
        """Return the end of the batch, which may span several items in the Responses dialect."""
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
            if is_empty(message) and not (number == last and message.role == "assistant"):
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


def _drop_if_invisible(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the remaining parts, or none if only reasoning and blank text are left.

    Providers reject an assistant message without visible content.
    """
    left = tuple(parts)
    visible = (part for part in left if isinstance(part, ToolResult) or says_something(part))
    return () if all(isinstance(part, Thinking) for part in visible) else left


def _is_reasoning_only(message: Message) -> bool:
    return bool(message.parts) and all(isinstance(part, Thinking) for part in message.parts)


def _has_results(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
