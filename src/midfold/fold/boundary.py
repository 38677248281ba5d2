"""Which messages stay and which are folded.

Rules of this file:
1. The head stays on the first compaction: the system prompt and the first exchange. Afterwards it decays to the system
   prompt alone, because the handoff already tells what it said; an old request must not become immortal.
2. The tail is chosen by tokens from the end, with a floor in messages and a soft ceiling for one oversized message.
3. Every boundary is a legal cut. The head ends at the last legal cut that fits, the tail starts at one.
4. The latest human turn and the latest visible answer are never folded: the tail grows to hold them if that is cheap,
   otherwise their group stays on its own between handoff and tail.
5. System messages in the middle stay as far as there is room: what they say still holds.
6. Messages we generated are neither human turns nor answers.
7. The same transcript and options give the same plan.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Container, Sequence
from typing import NamedTuple, Protocol

import msgspec

from midfold.fold.handoff import generated_messages
from midfold.transcript.laws import is_human, legal_cuts
from midfold.transcript.message import (
    IMAGE,
    OPAQUE,
    Media,
    Message,
    Opaque,
    Part,
    Text,
    ToolResult,
    Transcript,
    kinds_of,
)
from midfold.transcript.tokens import Meter, media_units
from midfold.transcript.wrappers import user_words

SMALLEST_FLOOR = 2
"""The messages that stay at the end when the usual floor would leave nothing to fold."""


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

    def folded(self) -> list[int]:
        kept = {index for group in self.pinned for index in group}
        return [index for index in range(self.head_end, self.tail_start) if index not in kept]


def head_length(messages: Transcript, cuts: Sequence[int], protection: Protection, compactions: int) -> int:
    """How many messages at the beginning stay."""
    system = 0
    while protection.protect_system_prompt and system < len(messages) and messages[system].role == "system":
        system += 1
    if compactions and protection.decay_head_after_first_compaction:
        return system
    # The count includes a system prompt, also one that stands beside the messages.
    wanted = max(system, protection.protect_first_n_messages - (0 if system else 1))
    return max(system, cuts[bisect_right(cuts, wanted) - 1])


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


def plan_fold(
    messages: Transcript,
    sizes: Sequence[int],
    tail_tokens: int,
    protection: Protection,
    compactions: int = 0,
    cuts: Sequence[int] | None = None,
    ours: Container[int] | None = None,
) -> Plan:
    """The plan for a whole compaction; `ours` are the places of generated messages, where they are known."""
    cuts = legal_cuts(messages) if cuts is None else cuts
    ours = generated_messages(messages) if ours is None else ours
    head_end = head_length(messages, cuts, protection, compactions)
    ratio = protection.soft_ceiling_ratio
    start = select_tail_by_budget(messages, head_end, tail_tokens, protection.protect_last_n, ratio, sizes)
    start = _legal_start(cuts, start, head_end)
    if all(index in ours for index in range(head_end, start)):
        floor = min(protection.protect_last_n, SMALLEST_FLOOR)
        start = select_tail_by_budget(messages, head_end, tail_tokens, floor, ratio, sizes)
        start = _legal_start(cuts, start, head_end)
    return with_anchors(messages, sizes, cuts, Plan(head_end, start), int(tail_tokens * ratio), protection, ours)


def _legal_start(cuts: Sequence[int], start: int, head_end: int) -> int:
    """The legal cut at or before `start`; the next one after it where that would leave nothing to fold."""
    before = cuts[bisect_right(cuts, start) - 1]
    if before > head_end:
        return before
    after = cuts[min(bisect_left(cuts, start), len(cuts) - 1)]
    return after if head_end < after < cuts[-1] else max(before, head_end)


def with_anchors(
    messages: Transcript,
    sizes: Sequence[int],
    cuts: Sequence[int],
    plan: Plan,
    tail_ceiling: int,
    protection: Protection,
    ours: Container[int] = (),
) -> Plan:
    """The plan with the latest ask, the latest answer and signed compaction blocks outside the fold."""
    start = plan.tail_start
    told = _instructions(messages, sizes, plan, tail_ceiling // 4)
    anchors = sorted(_anchors(messages, protection, ours) | _sealed(messages, plan) | told, reverse=True)
    pinned: list[range] = []
    for anchor in anchors:
        if not plan.head_end <= anchor < start:
            continue
        place = bisect_right(cuts, anchor) - 1
        group = range(max(cuts[place], plan.head_end), cuts[place + 1])
        grown = sum(sizes[group.start :])
        if grown <= tail_ceiling and group.start > plan.head_end:
            start = group.start
        elif group not in pinned:
            pinned.append(group)
    kept = tuple(sorted((group for group in pinned if group.start < start), key=lambda group: group.start))
    return Plan(plan.head_end, start, kept)


def _anchors(messages: Transcript, protection: Protection, ours: Container[int]) -> set[int]:
    found: set[int] = set()
    if protection.anchor_latest_user and (ask := latest_human(messages, ours)) is not None:
        found.add(ask)
    if protection.anchor_latest_visible_assistant and (answer := latest_visible_answer(messages, ours)) is not None:
        found.add(answer)
    return found


def _sealed(messages: Transcript, plan: Plan) -> set[int]:
    """Native compaction blocks are signed and must stay as they are."""
    return {
        index
        for index in range(plan.head_end, plan.tail_start)
        if messages[index].kinds & OPAQUE
        and any(isinstance(part, Opaque) and part.kind == "compaction" for part in messages[index].parts)
    }


def _instructions(messages: Transcript, sizes: Sequence[int], plan: Plan, room: int) -> set[int]:
    """System and developer messages in the middle still hold: the newest stay, as far as there is room."""
    found: set[int] = set()
    for index in range(plan.tail_start - 1, plan.head_end - 1, -1):
        if messages[index].role == "system" and sizes[index] <= room:
            room -= sizes[index]
            found.add(index)
    return found


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


# Pictures cost tokens; old ones are replaced by a line. Resizing stays in adapters.


class MediaReducer(Protocol):
    """What an adapter that can look into pictures implements."""

    def estimate_media_tokens(self, part: Media, /) -> int: ...

    def replace_historical_media(self, messages: Transcript, /) -> Transcript: ...


class FlatMedia:
    """The default: a flat price, and placeholders for every image before the newest image-bearing user turn."""

    def estimate_media_tokens(self, part: Media, /) -> int:
        return media_units(part)

    def replace_historical_media(self, messages: Transcript, /) -> Transcript:
        return replace_historical_media(messages, lambda message: "")[0]


def newest_picture(messages: Transcript) -> int | None:
    """The newest human turn with an image; without one, the newest message with an image."""
    newest = None
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].kinds & IMAGE:
            if is_human(messages[index]):
                return index
            newest = index if newest is None else newest
    return newest


def has_images(parts: tuple[Part, ...]) -> bool:
    return bool(kinds_of(parts) & IMAGE)


def replace_historical_media(
    messages: Transcript, handle: Callable[[Message], str]
) -> tuple[Transcript, dict[int, str]]:
    """The transcript with older images as placeholders, and the handle of each message that changed."""
    newest = newest_picture(messages)
    if newest is None:
        return messages, {}
    changed: dict[int, str] = {}
    out = list(messages)
    for index in range(newest):
        if messages[index].kinds & IMAGE:
            changed[index] = handle(messages[index])
            out[index] = messages[index].with_parts(_without(messages[index].parts, changed[index]))
    return tuple(out), changed


def placeholder(media: Media, handle: str) -> str:
    unfold = f" | unfold {handle}" if handle else ""
    return f"[{media.mime or 'image'} removed to save context space{unfold}]"


def _without(parts: tuple[Part, ...], handle: str) -> tuple[Part, ...]:
    return tuple(_replaced(part, handle) for part in parts)


def _replaced(part: Part, handle: str) -> Part:
    if isinstance(part, Media) and part.kind == "image":
        return Text(placeholder(part, handle))
    if isinstance(part, ToolResult) and has_images(part.parts):
        inner = _without(part.parts, handle)
        return ToolResult(part.call_id, inner, part.is_error, part.name, wire=part.wire)
    return part
