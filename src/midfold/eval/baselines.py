"""What people do without midfold: built-in compactors to compare with.

Each takes the past and a number of tokens and gives the messages that stay. They are baselines, not products: what
they give need not be a legal transcript of any provider.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from itertools import accumulate

from midfold.eval.facts import facts_in
from midfold.eval.sizes import CHARACTERS_PER_TOKEN, note, piece, size
from midfold.eval.texts import text_of
from midfold.transcript.message import Message, Part, Text, ToolResult, Transcript

HEAD_SHARE = 0.25
LEDGER_SHARE = 0.4
NEWEST_RESULTS_SHARE = 0.25
"""The newest tool results stay as they are while they take no more of the budget than this."""
CLIP = 400
MASK = "[old tool result masked]"
Change = Callable[[str], str]


def sliding_window(past: Transcript, target: int) -> Transcript:
    """The newest messages; of the one that no longer fits, its end."""
    start, left = _tail(past, target)
    cut = piece(past[start - 1], left, end=True) if start else None
    return (*([cut] if cut else []), *past[start:])


def _tail(past: Transcript, target: int) -> tuple[int, int]:
    start, left = len(past), target
    while start and size(past[start - 1]) <= left:
        start -= 1
        left -= size(past[start])
    return start, left


def head_tail(past: Transcript, target: int) -> Transcript:
    """The oldest messages with a quarter of the budget, the newest with the rest; the middle is dropped."""
    head, end = _head(past, int(target * HEAD_SHARE))
    rest = target - sum(map(size, head))
    return (*head, *sliding_window(past[end:], rest))


def _head(past: Transcript, target: int) -> tuple[list[Message], int]:
    head: list[Message] = []
    for message in past:
        cost = size(message)
        if cost > target:
            cut = piece(message, target, end=False)
            return [*head, *([cut] if cut else [])], len(head) + bool(cut)
        head.append(message)
        target -= cost
    return head, len(past)


def masked(past: Transcript, target: int) -> Transcript:
    """Old tool results give way first, the oldest before the newer; then the oldest messages."""
    return _masked(past, target)


def clipped(past: Transcript, target: int) -> Transcript:
    """Long tool results keep their first and last 400 characters, then the old ones are masked."""
    return _masked(tuple(_changed(message, _clip) for message in past), target)


def _masked(past: Transcript, target: int) -> Transcript:
    sizes = list(map(size, past))
    excess = sum(sizes) - target
    messages = list(past)
    for index in _old_results(past, target):
        if excess <= 0:
            break
        bare = _changed(past[index], lambda _: MASK)
        saved = sizes[index] - size(bare)
        if saved > 0:
            messages[index] = bare
            excess -= saved
    return tuple(messages) if excess <= 0 else sliding_window(tuple(messages), target)


def _old_results(past: Transcript, target: int) -> list[int]:
    room = int(target * NEWEST_RESULTS_SHARE)
    results = [index for index, message in enumerate(past) if _has_result(message)]
    while results and (room := room - size(past[results[-1]])) >= 0:
        results.pop()
    return results


def _has_result(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _clip(text: str) -> str:
    if len(text) <= 2 * CLIP:
        return text
    return f"{text[:CLIP]}\n[... {len(text) - 2 * CLIP} characters ...]\n{text[-CLIP:]}"


def _changed(message: Message, change: Change) -> Message:
    if not _has_result(message):
        return message
    return Message(message.role, tuple(_changed_part(part, change) for part in message.parts))


def _changed_part(part: Part, change: Change) -> Part:
    if not isinstance(part, ToolResult):
        return part
    return ToolResult(part.call_id, (Text(change(part.text)),), part.is_error, part.name)


def random_messages(past: Transcript, target: int) -> Transcript:
    """Whole messages drawn by lot until nothing more fits; the same draw for the same past."""
    order = list(range(len(past)))
    random.Random(len(past)).shuffle(order)
    chosen = []
    for index in order:
        cost = size(past[index])
        if cost <= target:
            chosen.append(index)
            target -= cost
    return tuple(past[index] for index in sorted(chosen))


def ledger(past: Transcript, target: int) -> Transcript:
    """A bare list of identifiers, the newest first, with 40 % of the budget; head and tail with the rest."""
    listed = bare_list(past, int(target * LEDGER_SHARE))
    return (*listed, *head_tail(past, target - sum(map(size, listed))))


def bare_list(past: Transcript, target: int) -> Transcript:
    """Identifiers without a word, one per line."""
    names = dict.fromkeys(fact for message in reversed(past) for fact, _ in facts_in(text_of(message)))
    for share in (1.0, 0.8, 0.64, 0.5, 0.4, 0.3):
        made = note("\n".join(_up_to(names, int(target * share) * CHARACTERS_PER_TOKEN)))
        if size(made) <= target:
            return (made,)
    return ()


def _up_to(names: Iterable[str], characters: int) -> list[str]:
    named = list(names)
    lengths = accumulate(len(name) + 1 for name in named)
    return [name for name, length in zip(named, lengths, strict=True) if length <= characters]
