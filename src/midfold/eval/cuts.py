"""Where sessions are cut.

Rules of this file:
1. A cut stands before an assistant message: every call is answered, and the agent is about to act.
2. The past has at least `LEAST_PAST` tokens, the future at least `LEAST_FUTURE` messages.
3. Cuts are spread evenly: one for each `SPACING` messages where a session may be cut, at most `MOST` of them.
4. A recorded compaction can be a cut too: the past is the session before it, the future the one after its summary.
5. Half of the conversations are for tuning and half for reporting; a hash of the conversation's name decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b
from itertools import accumulate, pairwise
from typing import Literal, NamedTuple

import msgspec

from midfold.eval.sessions import Session
from midfold.eval.sizes import size, total
from midfold.transcript.message import Message, ToolCall, Transcript

LEAST_PAST = 8_000
LEAST_FUTURE = 20
LEAST_SUMMARY = 100
"""Tokens; a shorter one only says that there was a compaction."""
SPACING = 40
MOST = 4
Split = Literal["all", "train", "held"]
Places = Literal["steps", "compactions"]


class Cut(NamedTuple):
    """Before which message of a session."""

    session: Session
    at: int

    @property
    def past(self) -> Transcript:
        return self.session.messages[: self.at]

    @property
    def future(self) -> Transcript:
        return self.session.messages[self.at :]


def cuts_of(session: Session, *, least_past: int = LEAST_PAST, least_future: int = LEAST_FUTURE) -> list[Cut]:
    """The cuts of one session, in order."""
    messages = session.messages
    before = accumulate(map(size, messages), initial=0)
    last = len(messages) - least_future
    allowed = [
        at
        for at, (message, past) in enumerate(zip(messages, before, strict=False))
        if at <= last and past >= least_past and message.role == "assistant" and not _calls(messages[at - 1])
    ]
    if not allowed:
        return []
    span = allowed[-1] - allowed[0]
    count = min(1 + span // SPACING, MOST, len(allowed))
    picked = [allowed[(2 * number + 1) * len(allowed) // (2 * count)] for number in range(count)]
    return [Cut(session, at) for at in picked]


def _calls(message: Message) -> bool:
    return any(isinstance(part, ToolCall) for part in message.parts)


def in_split(session: Session, split: Split) -> bool:
    return split == "all" or split == half_of(session.conversation)


def half_of(conversation: str) -> Split:
    """Which half a conversation belongs to; the same on every machine and in every run."""
    digest = blake2b(conversation.encode("utf-8", "surrogatepass"), digest_size=8).digest()
    return "train" if digest[0] % 2 else "held"


def all_cuts(sessions: Sequence[Session], split: Split = "all", least_past: int = LEAST_PAST) -> list[Cut]:
    """Cuts between steps."""
    return [cut for session in sessions if in_split(session, split) for cut in cuts_of(session, least_past=least_past)]


def recorded_cuts(sessions: Sequence[Session], split: Split = "all", least_past: int = LEAST_PAST) -> list[Cut]:
    """Cuts where the agent itself compacted and its summary was recorded."""
    found = []
    for before, after in pairwise(sessions):
        if before.conversation != after.conversation or not in_split(before, split):
            continue
        summary, *rest = after.messages
        if len(rest) >= LEAST_FUTURE and size(summary) >= LEAST_SUMMARY and total(before.messages) >= least_past:
            both = msgspec.structs.replace(
                before,
                messages=(*before.messages, *rest),
                human=(*before.human, *after.human[1:]),
                summary=summary,
            )
            found.append(Cut(both, len(before.messages)))
    return found
