"""Repairs that make a transcript legal again, and the list of repairs made.

Rules of this file:
1. Results that answer no call are removed. Calls without a result get a stub (`bridge`) or are taken out (`strip`); the
   calls of the newest batch may still be waiting.
2. Text is never lost with a call: a message that loses its calls keeps what it says.
3. Messages that are no messages, and empty ones, are removed.
4. A transcript with nothing to repair comes back as the same object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from midfold.core.laws import is_empty
from midfold.core.message import Message, Part, Role, Text, ToolCall, ToolResult, Transcript, plain
from midfold.core.pairing import Pairing, pair

STUB = "[The result of this call was not recorded.]"
OrphanCalls = Literal["bridge", "strip"]


class Repair(msgspec.Struct, frozen=True):
    """One thing that was mended; `message` is its place in the transcript before the repair."""

    message: int
    what: str


def sanitize(
    messages: Transcript, *, orphan_calls: OrphanCalls = "bridge", result_role: Role = "tool"
) -> tuple[Transcript, tuple[Repair, ...]]:
    """A legal transcript and what had to be done for it. `result_role` is what carries results in the dialect."""
    kept = [(index, message) for index, message in enumerate(messages) if not _is_nothing(message)]
    repairs = [
        Repair(index, "removed what is no message") for index, message in enumerate(messages) if _is_nothing(message)
    ]
    pairing = pair(tuple(message for _, message in kept))
    if not repairs and not pairing.orphans and not pairing.unanswered and not any(map(_is_useless, messages)):
        return messages, ()
    work = _Work(kept, repairs)
    work.remove_orphans(pairing)
    missing = work.missing_results(pairing)
    if orphan_calls == "strip":
        work.strip(missing)
    else:
        work.bridge(missing, result_role)
    work.remove_empty()
    if not work.repairs:
        return messages, ()
    return tuple(message for _, message in work.kept), tuple(sorted(work.repairs, key=lambda repair: repair.message))


def _is_nothing(message: Message) -> bool:
    return message.role == "other" and message.wire is not None and not isinstance(_value(message), Mapping)


def _value(message: Message) -> object:
    try:
        return plain(message.wire)
    except ValueError:
        return {}


def _is_useless(message: Message) -> bool:
    return is_empty(message) and message.role != "system"


class _Work:
    def __init__(self, kept: list[tuple[int, Message]], repairs: list[Repair]) -> None:
        self.kept = kept
        self.repairs = repairs

    def remove_orphans(self, pairing: Pairing) -> None:
        drop: dict[int, set[int]] = {}
        for place in pairing.orphans:
            drop.setdefault(place.message, set()).add(place.part)
        for number, parts in drop.items():
            index, message = self.kept[number]
            left = tuple(part for place, part in enumerate(message.parts) if place not in parts)
            self.kept[number] = (index, message.with_parts(left))
            self.repairs.append(Repair(index, f"removed {_count(len(parts), 'result')} without a call"))

    def missing_results(self, pairing: Pairing) -> dict[int, list[ToolCall]]:
        """Calls without a result, by message."""
        missing: dict[int, list[ToolCall]] = {}
        for place in pairing.unanswered:
            part = self.kept[place.message][1].parts[place.part]
            if isinstance(part, ToolCall):
                missing.setdefault(place.message, []).append(part)
        return missing

    def strip(self, missing: dict[int, list[ToolCall]]) -> None:
        for number, calls in missing.items():
            index, message = self.kept[number]
            left = tuple(part for part in message.parts if not any(part is call for call in calls))
            self.kept[number] = (index, message.with_parts(left))
            self.repairs.append(Repair(index, f"took out {_count(len(calls), 'call')} without a result"))

    def bridge(self, missing: dict[int, list[ToolCall]], result_role: Role) -> None:
        for number in sorted(missing, reverse=True):
            index, _ = self.kept[number]
            stubs: list[Part] = [ToolResult(call.id, (Text(STUB),)) for call in missing[number]]
            self.repairs.append(Repair(index, f"added {_count(len(stubs), 'stub result')}"))
            after = number + 1
            if result_role == "tool":
                after = self._end_of_batch(after)
                self.kept[after:after] = [(index, Message("tool", (stub,))) for stub in stubs]
            elif after < len(self.kept) and self.kept[after][1].role == "user":
                place, message = self.kept[after]
                self.kept[after] = (place, message.with_parts((*stubs, *message.parts)))
            else:
                self.kept.insert(after, (index, Message("user", tuple(stubs))))

    def _end_of_batch(self, place: int) -> int:
        """Where the batch ends: a batch may stand in several items, and its results follow all of them."""
        while place < len(self.kept) and _only(self.kept[place][1], ToolCall):
            place += 1
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


def _has_results(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _only(message: Message, kind: type[Part]) -> bool:
    return bool(message.parts) and all(isinstance(part, kind) for part in message.parts)


def _count(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
