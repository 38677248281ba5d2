"""Choose which messages stay and which are folded. The same transcript and options produce the same plan.

- Head: on the first compaction the system prompt and the first exchange stay, without a tool group that the head
  would split. Afterwards only the system prompt stays: the handoff covers the rest, and an old request must not
  stay forever.
- Tail: chosen by tokens from the end, with a minimum number of messages and a soft ceiling for one oversized
  message.
- Every boundary is a legal cut. The tail starts at the cut before its first message, so no call loses its result.
- The latest human turn, the latest visible answer and the newest human turn with a picture are never folded. The
  tail grows to include them if that is cheap; otherwise their group is pinned (a user message with its direct
  reply) before the handoff. An answer that announces tool calls is folded if an explicit target size is otherwise
  out of reach.
- System messages in the middle stay while the budget allows, because they are still in force.
- Client instructions (`instructions`) are never folded. They precede the handoff and do not count towards the head. If
  a message holds other text too, only its instructions stay.
- Generated messages are neither human turns nor answers.
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

MIN_TAIL_MESSAGES = 2
"""Minimum messages of the tail if `protect_last_n` messages do not fit."""
MAX_ASSENT_CHARACTERS = 60
"""Maximum characters of a user message that only assents to the answer before it."""
MAX_REPLY_MESSAGES = 3
"""Maximum messages of the direct reply pinned with a user message, tool results included."""


class Protection(msgspec.Struct, frozen=True, kw_only=True):
    """Protection settings, with the names of the specification."""

    protect_system_prompt: bool = True
    protect_first_n_messages: int = 3
    decay_head_after_first_compaction: bool = True
    protect_last_n: int = 20
    anchor_latest_user: bool = True
    anchor_latest_visible_assistant: bool = True
    soft_ceiling_ratio: float = 1.5


class Plan(NamedTuple):
    """Split of a transcript: messages[:head_end] and messages[tail_start:] stay, the rest except `pinned` is
    folded.
    """

    head_end: int
    tail_start: int
    pinned: tuple[range, ...] = ()
    partial: tuple[int, ...] = ()
    """Indices of folded messages whose client instructions stay."""

    def fold(self) -> list[int]:
        """Return the indices of the folded messages."""
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
    """Return the number of messages in the head; indices in `instructions` are not counted."""
    system = first_turn(messages)
    if system and not protection.protect_system_prompt:
        return 0
    if compactions and protection.decay_head_after_first_compaction:
        return system
    # The count includes a system prompt, even one that is separate from the messages.
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
    """Return the index where the tail starts, walking back from the end; not yet aligned to a legal cut."""
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
    """Plans that one transcript allows; holds everything that does not depend on where the tail starts."""

    def __init__(
        self,
        messages: Transcript,
        sizes: Sequence[int],
        protection: Protection,
        compactions: int = 0,
        *,
        tail_tokens: int,
        max_picture_tokens: int | None = None,
        earliest: int = 0,
        cuts: Sequence[int] | None = None,
        generated: Container[int] | None = None,
        instructions: ClientInstructions = NONE,
    ) -> None:
        self.messages, self.sizes, self.protection, self.instructions = messages, sizes, protection, instructions
        self.tail_tokens, self.earliest = tail_tokens, earliest
        self.cuts = legal_cuts(messages) if cuts is None else cuts
        self.generated = generated_messages(messages) if generated is None else generated
        self.pin_budget = int(tail_tokens * protection.soft_ceiling_ratio) // 4
        kept = msgspec.structs.replace(protection, protect_system_prompt=True)
        end = head_length(messages, self.cuts, kept, compactions, instructions.whole)
        system = first_turn(messages)
        folds_system = system > 0 and not protection.protect_system_prompt
        self.head_end = 0 if folds_system else end
        self.opening = range(system, end) if folds_system else range(0)
        """First exchange if the system prompt before it is folded, else an empty range."""
        self.user_turns, self.anchors = self._anchors(max_picture_tokens)
        self._size_from = [*accumulate(reversed(sizes), initial=0)][::-1]
        self._stays = [index for index, message in enumerate(messages) if _must_stay(message)]
        self._system_messages = [
            index
            for index in range(self.first, len(messages))
            if messages[index].role == "system" and instructions.rest.get(index, messages[index]) is not None
        ]

    def plan(self, floor: int | None = None) -> Plan:
        """Return the plan for the full tail budget with at least `floor` tail messages (default: `protect_last_n`)."""
        floor = self.protection.protect_last_n if floor is None else floor
        ratio = self.protection.soft_ceiling_ratio
        start = select_tail_by_budget(self.messages, self.first, self.tail_tokens, floor, ratio, self.sizes)
        return self.plan_from(self.cut_before(start), ceiling=int(self.tail_tokens * ratio), pin_budget=self.pin_budget)

    def useful_middle(self) -> Plan:
        """Return a plan for a conversation that would fit its tail: keep `protect_last_n` messages, at most half of
        them.
        """
        floor = min(self.protection.protect_last_n, len(self.messages) // 2)
        return self.plan_from(self.cut_before(len(self.messages) - floor), pin_budget=self.pin_budget)

    @property
    def first(self) -> int:
        """Earliest index of a fold: after the head, and after the first exchange if that is pinned."""
        return max(self.opening.stop, self.head_end)

    def cut_before(self, start: int) -> int:
        """Return the last legal cut at or before `start` where a tail may start."""
        return max(self.cuts[bisect_right(self.cuts, max(start, 0)) - 1], self.first, self.earliest)

    def cuts_between(self, first: int, last: int) -> list[int]:
        """Return the legal cuts after `first`, up to and including `last`."""
        return list(self.cuts[bisect_right(self.cuts, first) : bisect_right(self.cuts, last)])

    def plan_from(self, start: int, *, ceiling: int = 0, pin_budget: int = 0, fold_announcement: bool = False) -> Plan:
        """Return the plan with a tail from `start`.

        Anchors stay outside the fold: the tail grows up to `ceiling` tokens for them, else they are pinned. System
        messages and replies stay within `pin_budget` tokens. With `fold_announcement`, a newest answer that
        announces tool calls is folded.
        """
        if start <= self.first:
            return Plan(start, start)
        system = self._instructions(start, pin_budget)
        answers = {place for place in self.anchors if not (fold_announcement and self.messages[place].kinds & CALL)}
        anchors = sorted({*self.user_turns, *answers, *self._stays, *system}, reverse=True)
        pinned: list[range] = [self.opening] if self.opening else []
        for anchor in anchors:
            if not self.head_end <= anchor < start:
                continue
            group = self._group(anchor, start, pin_budget)
            grows = group.stop >= start or self._size_from[group.start] <= ceiling
            if grows and group.start > self.first and group.start >= self.earliest:
                start = group.start
            else:
                pinned.append(group)
        known = {index for group in pinned for index in group}
        places = [place for place in self.instructions.stays if self.head_end <= place < start and place not in known]
        alone = [range(place, place + 1) for place in places if place in self.instructions.whole]
        alone = [group for group in alone if self._group(group.start, start, 0) == group]
        partial = tuple(place for place in places if range(place, place + 1) not in alone)
        return Plan(self.head_end, start, _merge([*pinned, *alone], start), partial)

    def _group(self, anchor: int, start: int, pin_budget: int) -> range:
        """Return the messages that stay with an anchor: its batch of calls, and the direct reply to a user message."""
        place = bisect_right(self.cuts, anchor) - 1
        group = range(max(self.cuts[place], self.head_end), self.cuts[place + 1])
        if anchor not in self.user_turns or group.stop >= start or self.messages[group.stop].role != "assistant":
            return group
        reply = range(group.stop, self.cuts[place + 2])
        is_short = len(reply) <= MAX_REPLY_MESSAGES and sum(self.sizes[reply.start : reply.stop]) <= pin_budget
        return range(group.start, reply.stop) if is_short and group.stop not in self.generated else group

    def _anchors(self, max_picture_tokens: int | None) -> tuple[set[int], set[int]]:
        """Return the indices of the human turns that stay and of the answer that stays."""
        messages, protection = self.messages, self.protection
        user_turns: set[int] = set()
        if protection.anchor_latest_user and (turn := latest_human(messages, self.generated)) is not None:
            user_turns.add(turn)
        picture = newest_picture(messages)
        fits = picture is not None and (max_picture_tokens is None or self.sizes[picture] <= max_picture_tokens)
        if picture is not None and fits and picture not in self.generated and is_human(messages[picture]):
            user_turns.add(picture)
        answer = latest_visible_answer(messages, self.generated) if protection.anchor_latest_visible_assistant else None
        return user_turns, set() if answer is None else {answer}

    def _instructions(self, start: int, pin_budget: int) -> set[int]:
        """Return the newest system messages in the middle that fit into `pin_budget` tokens; they are still in
        force.
        """
        found: set[int] = set()
        for index in reversed(self._system_messages):
            if index < start and self.sizes[index] <= pin_budget:
                pin_budget -= self.sizes[index]
                found.add(index)
        return found


def _must_stay(message: Message) -> bool:
    """Return whether a message must stay: native compaction blocks are signed, tool changes apply to all later
    messages.
    """
    return bool(message.kinds & OPAQUE) and any(
        isinstance(part, Opaque) and part.kind in ("compaction", "tool_addition", "tool_removal")
        for part in message.parts
    )


def _merge(groups: list[range], start: int) -> tuple[range, ...]:
    """Return the groups before `start` in order, merging adjacent ones."""
    merged: list[range] = []
    for group in sorted((group for group in groups if group.start < start), key=lambda group: group.start):
        if merged and group.start <= merged[-1].stop:
            merged[-1] = range(merged[-1].start, max(merged[-1].stop, group.stop))
        else:
            merged.append(group)
    return tuple(merged)


def latest_human(messages: Transcript, generated: Container[int] | None = None) -> int | None:
    """Return the index of the newest message written by a person."""
    generated = generated_messages(messages) if generated is None else generated
    for index in range(len(messages) - 1, -1, -1):
        if index not in generated and is_user_turn(messages[index]):
            return index
    return None


def is_user_turn(message: Message) -> bool:
    """Return whether a person wrote this message, as opposed to a client automatically."""
    return is_human(message) and (
        any(not isinstance(part, Text) for part in message.parts) or bool(user_words(message))
    )


def assented_answer(messages: Transcript, generated: Container[int]) -> int:
    """Return the index of the answer to which the newest user message only assents ("yes"), else -1."""
    turn = latest_human(messages, generated) or 0
    answer = messages[turn - 1] if turn > 0 and turn - 1 not in generated else None
    if answer is None or answer.role != "assistant" or not answer.text or answer.kinds & CALL:
        return -1
    return turn - 1 if len(user_words(messages[turn])) <= MAX_ASSENT_CHARACTERS else -1


def latest_visible_answer(messages: Transcript, generated: Container[int] | None = None) -> int | None:
    """Return the index of the newest assistant message with visible text."""
    generated = generated_messages(messages) if generated is None else generated
    for index in range(len(messages) - 1, -1, -1):
        if _is_visible_answer(messages[index]) and index not in generated:
            return index
    return None


def _is_visible_answer(message: Message) -> bool:
    return message.role == "assistant" and any(isinstance(part, Text) and part.text.strip() for part in message.parts)


def split_for_partial_compaction(messages: Transcript, keep_last_exchanges: int) -> tuple[Transcript, Transcript]:
    """Return head and tail, the tail starting at the n-th newest human turn; the head is empty if there are fewer
    turns.
    """
    left = max(keep_last_exchanges, 1)
    generated = generated_messages(messages)
    for index in range(len(messages) - 1, -1, -1):
        if index not in generated and is_user_turn(messages[index]):
            left -= 1
            if left == 0:
                return messages[:index], messages[index:]
    return (), messages
