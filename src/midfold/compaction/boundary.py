"""Which messages stay and which are folded.

Rules of this file:
1. The head stays on the first compaction: the system prompt and the first exchange, without a tool group that it would
   cut, as in the example of the first document. Afterwards it decays to the system prompt alone, because the handoff
   already tells what it said; an old request must not become immortal.
2. The tail is chosen by tokens from the end, with a floor in messages and a soft ceiling for one oversized message.
3. Every boundary is a legal cut. The tail starts at the cut before its first message, so that no call loses its result.
4. The latest human turn, the latest visible answer and the newest human turn with a picture are never folded: the tail
   grows to hold them if that is cheap, otherwise their group stays on its own, an ask with its direct reply. What stays
   on its own stands before the handoff, which tells what came after it. Only a size that was asked for, and that what
   must stay does not fit, folds an answer: one that announces calls.
5. System messages in the middle stay as far as there is room: what they say still holds.
6. Instructions of the client are no part of the conversation (`standing`): they are never folded, they stand before the
   handoff, and the head is counted without them. A message that holds other things, too, stays by them alone.
7. Messages we generated are neither human turns nor answers.
8. The same transcript and options give the same plan.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from itertools import accumulate
from typing import NamedTuple

import msgspec

from midfold.compaction.client_instructions import NONE, ClientInstructions
from midfold.compaction.handoff import generated_messages
from midfold.compaction.media import newest_picture
from midfold.transcript.laws import first_turn, is_human, legal_cuts
from midfold.transcript.message import (
    CALL,
    OPAQUE,
    Message,
    Opaque,
    Text,
    Transcript,
)
from midfold.transcript.tokens import Meter
from midfold.transcript.wrappers import user_words

SMALLEST_FLOOR = 2
"""The messages that stay at the end where not even `protect_last_n` of them fit."""
LONGEST_ASSENT = 60
"""Characters of an ask that takes up the answer before it."""
LONGEST_REPLY = 3
"""Messages of the direct reply that stays with an ask, tool results included."""


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """What must stay, by the names of the specification."""

    protect_system_prompt: bool = True
    protect_first_n_messages: int = 3
    decay_head_after_first_compaction: bool = True
    protect_last_n: int = 20
    anchor_latest_user: bool = True
    anchor_latest_visible_assistant: bool = True
    soft_ceiling_ratio: float = 1.5


class Plan(NamedTuple):
    """messages[:head_end] and messages[tail_start:] stay; between them everything but `pinned` is folded."""

    head_end: int
    tail_start: int
    pinned: tuple[range, ...] = ()
    partial: tuple[int, ...] = ()
    """Places of what is folded but for the instructions in it."""

    def fold(self) -> list[int]:
        """The places of what is folded."""
        found: list[int] = []
        start = self.head_end
        for pinned in sorted(index for group in self.pinned for index in group):
            found += range(start, min(pinned, self.tail_start))
            start = max(start, pinned + 1)
        return [*found, *range(start, self.tail_start)]


def head_length(
    messages: Transcript,
    cuts: Sequence[int],
    protection: Protection,
    compactions: int,
    instructions: Container[int] = (),
) -> int:
    """How many messages at the beginning stay; those of `instructions` are not counted."""
    system = first_turn(messages)
    if system and not protection.protect_system_prompt:
        return 0
    if compactions and protection.decay_head_after_first_compaction:
        return system
    # The count includes a system prompt, also one that stands beside the messages.
    wanted = max(system, protection.protect_first_n_messages - (0 if system else 1))
    end = system
    while end < len(messages) and wanted > system:
        wanted -= end not in instructions
        end += 1
    return max(system, cuts[bisect_right(cuts, end) - 1])


def select_tail_by_budget(
    messages: Transcript,
    head_end: int,
    token_budget: int,
    min_tail_messages: int = 20,
    soft_ceiling_ratio: float = 1.5,
    sizes: Sequence[int] | None = None,
) -> int:
    """Where the tail starts, walking back from the end; not yet aligned to a legal cut."""
    if sizes is None:
        meter = Meter()
        sizes = [meter.units(message) for message in messages]
    total = 0
    start = len(messages)
    while start > head_end:
        size = sizes[start - 1]
        if len(messages) - start >= min_tail_messages and total + size > token_budget:
            if total < token_budget and total + size <= token_budget * soft_ceiling_ratio:
                start -= 1
            break
        total += size
        start -= 1
    return start


class Layout:
    """The plans that one transcript allows: everything about it that does not depend on where the tail starts."""

    def __init__(
        self,
        messages: Transcript,
        sizes: Sequence[int],
        protection: Protection,
        compactions: int = 0,
        *,
        tail_tokens: int,
        room_for_picture: int | None = None,
        earliest: int = 0,
        cuts: Sequence[int] | None = None,
        ours: Container[int] | None = None,
        standing: ClientInstructions = NONE,
    ) -> None:
        self.messages, self.sizes, self.protection, self.standing = messages, sizes, protection, standing
        self.tail_tokens, self.earliest = tail_tokens, earliest
        self.cuts = legal_cuts(messages) if cuts is None else cuts
        self.ours = generated_messages(messages) if ours is None else ours
        self.room = int(tail_tokens * protection.soft_ceiling_ratio) // 4
        kept = msgspec.structs.replace(protection, protect_system_prompt=True)
        end = head_length(messages, self.cuts, kept, compactions, standing.whole)
        system = first_turn(messages)
        folds_system = system > 0 and not protection.protect_system_prompt
        self.head_end = 0 if folds_system else end
        self.opening = range(system, end) if folds_system else range(0)
        """The first exchange without the system prompt before it, where that is folded; it may be empty."""
        self.asks, self.anchors = self._anchors(room_for_picture)
        self._size_from = [*accumulate(reversed(sizes), initial=0)][::-1]
        self._stays = [index for index, message in enumerate(messages) if _must_stay(message)]
        self._told = [
            index
            for index in range(self.first, len(messages))
            if messages[index].role == "system" and standing.rest.get(index, messages[index]) is not None
        ]

    def plan(self, floor: int | None = None) -> Plan:
        """The plan for the whole tail budget and so many messages at least; `protect_last_n` unless told."""
        floor = self.protection.protect_last_n if floor is None else floor
        ratio = self.protection.soft_ceiling_ratio
        start = select_tail_by_budget(self.messages, self.first, self.tail_tokens, floor, ratio, self.sizes)
        return self.plan_from(self.cut_before(start), ceiling=int(self.tail_tokens * ratio), room=self.room)

    def useful_middle(self) -> Plan:
        """Where the whole conversation would fit its tail: `protect_last_n` messages stay, at most half of them."""
        floor = min(self.protection.protect_last_n, len(self.messages) // 2)
        return self.plan_from(self.cut_before(len(self.messages) - floor), room=self.room)

    @property
    def first(self) -> int:
        """Where a fold may begin: after the head, and after the first exchange where that stays on its own."""
        return max(self.opening.stop, self.head_end)

    def cut_before(self, start: int) -> int:
        """The legal cut at or before `start` where a tail may start."""
        return max(self.cuts[bisect_right(self.cuts, max(start, 0)) - 1], self.first, self.earliest)

    def cuts_between(self, first: int, last: int) -> list[int]:
        """The legal cuts after `first`, up to `last`."""
        return list(self.cuts[bisect_right(self.cuts, first) : bisect_right(self.cuts, last)])

    def plan_from(self, start: int, *, ceiling: int = 0, room: int = 0, only_asks: bool = False) -> Plan:
        """The plan with a tail from `start` on: the anchors outside the fold, the tail grown up to `ceiling` for them,
        and instructions and replies as far as they have `room`. Without the newest answer where that only announces
        calls, if `only_asks`."""
        if start <= self.first:
            return Plan(start, start)
        told = self._instructions(start, room)
        answers = {place for place in self.anchors if not (only_asks and self.messages[place].kinds & CALL)}
        anchors = sorted({*self.asks, *answers, *self._stays, *told}, reverse=True)
        pinned: list[range] = [self.opening] if self.opening else []
        for anchor in anchors:
            if not self.head_end <= anchor < start:
                continue
            group = self._group(anchor, start, room)
            grows = group.stop >= start or self._size_from[group.start] <= ceiling
            if grows and group.start > self.first and group.start >= self.earliest:
                start = group.start
            else:
                pinned.append(group)
        known = {index for group in pinned for index in group}
        places = [place for place in self.standing.stays if self.head_end <= place < start and place not in known]
        alone = [range(place, place + 1) for place in places if place in self.standing.whole]
        alone = [group for group in alone if self._group(group.start, start, 0) == group]
        partial = tuple(place for place in places if range(place, place + 1) not in alone)
        return Plan(self.head_end, start, _merge([*pinned, *alone], start), partial)

    def _group(self, anchor: int, start: int, room: int) -> range:
        """The messages that stay with an anchor: its batch of calls, and the direct reply to an ask."""
        place = bisect_right(self.cuts, anchor) - 1
        group = range(max(self.cuts[place], self.head_end), self.cuts[place + 1])
        if anchor not in self.asks or group.stop >= start or self.messages[group.stop].role != "assistant":
            return group
        reply = range(group.stop, self.cuts[place + 2])
        is_short = len(reply) <= LONGEST_REPLY and sum(self.sizes[reply.start : reply.stop]) <= room
        return range(group.start, reply.stop) if is_short and group.stop not in self.ours else group

    def _anchors(self, room_for_picture: int | None) -> tuple[set[int], set[int]]:
        """Human turns that stay, and the answer that does."""
        messages, protection = self.messages, self.protection
        asks: set[int] = set()
        if protection.anchor_latest_user and (ask := latest_human(messages, self.ours)) is not None:
            asks.add(ask)
        picture = newest_picture(messages)
        has_room = picture is not None and (room_for_picture is None or self.sizes[picture] <= room_for_picture)
        if picture is not None and has_room and picture not in self.ours and is_human(messages[picture]):
            asks.add(picture)
        answer = latest_visible_answer(messages, self.ours) if protection.anchor_latest_visible_assistant else None
        return asks, set() if answer is None else {answer}

    def _instructions(self, start: int, room: int) -> set[int]:
        """System and developer messages in the middle still hold: the newest stay, as far as there is room."""
        found: set[int] = set()
        for index in reversed(self._told):
            if index < start and self.sizes[index] <= room:
                room -= self.sizes[index]
                found.add(index)
        return found


def _must_stay(message: Message) -> bool:
    """Native compaction blocks are signed; which tools there are from here on holds for everything behind it."""
    return bool(message.kinds & OPAQUE) and any(
        isinstance(part, Opaque) and part.kind in ("compaction", "tool_addition", "tool_removal")
        for part in message.parts
    )


def _merge(groups: list[range], start: int) -> tuple[range, ...]:
    """The groups before `start` in order, those that meet as one."""
    merged: list[range] = []
    for group in sorted((group for group in groups if group.start < start), key=lambda group: group.start):
        if merged and group.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, group.stop))
        else:
            merged.append(group)
    return tuple(merged)


def latest_human(messages: Transcript, ours: Container[int] | None = None) -> int | None:
    """The newest message in which a user really speaks."""
    ours = generated_messages(messages) if ours is None else ours
    for index in range(len(messages) - 1, -1, -1):
        if index not in ours and speaks(messages[index]):
            return index
    return None


def speaks(message: Message) -> bool:
    """Whether a person wrote this, and not a client by itself."""
    return is_human(message) and (
        any(not isinstance(part, Text) for part in message.parts) or bool(user_words(message))
    )


def answer_taken_up(messages: Transcript, ours: Container[int]) -> int:
    """The place of an answer that the newest ask takes up in a few words, else -1: "yes" alone says nothing."""
    ask = latest_human(messages, ours) or 0
    answer = messages[ask - 1] if ask > 0 and ask - 1 not in ours else None
    if answer is None or answer.role != "assistant" or not answer.text or answer.kinds & CALL:
        return -1
    return ask - 1 if len(user_words(messages[ask])) <= LONGEST_ASSENT else -1


def latest_visible_answer(messages: Transcript, ours: Container[int] | None = None) -> int | None:
    """The newest message in which the assistant says something a person can read."""
    ours = generated_messages(messages) if ours is None else ours
    for index in range(len(messages) - 1, -1, -1):
        if _is_visible_answer(messages[index]) and index not in ours:
            return index
    return None


def _is_visible_answer(message: Message) -> bool:
    return message.role == "assistant" and any(isinstance(part, Text) and part.text.strip() for part in message.parts)


def split_for_partial_compaction(messages: Transcript, keep_last_exchanges: int) -> tuple[Transcript, Transcript]:
    """Head and tail, the tail starting at the n-th newest human turn; no head if there are no more turns than that."""
    left = max(keep_last_exchanges, 1)
    ours = generated_messages(messages)
    for index in range(len(messages) - 1, -1, -1):
        if index not in ours and speaks(messages[index]):
            left -= 1
            if left == 0:
                return messages[:index], messages[index:]
    return (), messages
