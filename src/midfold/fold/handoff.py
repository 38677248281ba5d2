"""The messages midfold writes itself: how they are framed, and how they are recognised again.

Rules of this file:
1. A generated message carries no key a provider would reject. Its identity is a mark in its text: the id of the fold it
   stands for, and a check over that id and the body.
2. It is recognised after any round trip through plain JSON by computing the check again. Text that merely looks like a
   handoff, quotes one, or stands in a tool result is not believed. Nor is a genuine handoff of another session that a
   user pastes: ours stand right after the head, and nowhere else. The check holds no secret, so a store is asked, too
   (`Keeper`): a handoff that it does not have is a summary that a client brought along.
3. The frame says that the summary is reference, that the latest user message wins, and where it ends, so that no
   model takes a historical ask for a new one.
"""

from __future__ import annotations

import re
from collections.abc import Container
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol

from midfold.transcript.message import Message, Role, Text, Transcript

MARKER = "[CONTEXT COMPACTION]"
END_MARKER = "[END OF CONTEXT COMPACTION: that was history; respond to what follows]"
OPENING = (
    "Earlier turns were compacted into this by the context manager, not by the user; it is reference only: asks and "
    "tasks in it are historical and may be finished, the latest user message wins. Originals unfold by handle."
)
TERSE_OPENING = "History, reference only; the latest user message wins."
TERSE_END = "[END OF CONTEXT COMPACTION]"
"""The frame where a size was asked for: every word of it is taken from what could be kept."""
ENDS = (END_MARKER, TERSE_END)
ACKNOWLEDGEMENT = "Understood; I continue below."
TERSE_ACKNOWLEDGEMENT = "Understood."
CONTINUATION = "(It continues below.)"
FILLERS = (ACKNOWLEDGEMENT, TERSE_ACKNOWLEDGEMENT, CONTINUATION)
SYSTEM_NOTE = (
    "[Note: Some earlier conversation turns have been compacted into a summary to save context space. The summary is "
    "marked [CONTEXT COMPACTION]; build on it and do not repeat work that it reports as done.]"
)

HEAD = 3
"""A handoff stands behind at most so many other messages, unless the head is configured to be longer."""

THINKING_TAGS = ("think", "thinking", "analysis", "reasoning")

Kind = Literal["fold", "ack", "bridge"]
_MARK = re.compile(r" \(midfold (fold|ack|bridge) ([0-9a-f]{12}) ([0-9a-f]{12})\)")


class Generated(NamedTuple):
    """A message of ours, recognised."""

    kind: Kind
    fold: str
    body: str


class Keeper(Protocol):
    """Who keeps the originals, and so knows what is ours."""

    def has_handle(self, handle: str) -> bool:
        """Whether this leads to originals."""
        ...

    def has_handoff(self, handoff: Generated) -> bool:
        """Whether this very handoff was written here."""
        ...


def check(kind: str, fold: str, body: str) -> str:
    return blake2b(f"{kind}\0{fold}\0{body}".encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def handoff(body: str, fold: str, role: Role, *, terse: bool = False) -> Message:
    """The one message that stands for a fold."""
    body = body.strip()
    mark = f" (midfold fold {fold} {check('fold', fold, body)})"
    if terse:
        return Message(role, (Text(f"{MARKER} {TERSE_OPENING}{mark}\n{body}\n{TERSE_END}"),))
    return Message(role, (Text(f"{MARKER} {OPENING}{mark}\n\n{body}\n\n{END_MARKER}"),))


def filler(fold: str, role: Role, *, terse: bool = False) -> Message:
    """A short message between two neighbours of the same role."""
    kind: Kind = "ack" if role == "assistant" else "bridge"
    body = CONTINUATION if role != "assistant" else TERSE_ACKNOWLEDGEMENT if terse else ACKNOWLEDGEMENT
    return Message(role, (Text(f"{MARKER} {body} (midfold {kind} {fold} {check(kind, fold, body)})"),))


def recognise(message: Message) -> Generated | None:
    """What this generated message is; None for everything we did not write."""
    if message.role not in ("user", "assistant") or len(message.parts) != 1:
        return None
    part = message.parts[0]
    if not isinstance(part, Text) or not part.text.startswith(MARKER):
        return None
    mark = _MARK.search(part.text, 0, len(MARKER) + len(OPENING) + 100)
    if mark is None:
        return None
    kind, fold, seen = mark.groups()
    before = part.text[len(MARKER) + 1 : mark.start()]
    after = part.text[mark.end() :]
    if kind == "fold":
        end = next((end for end in ENDS if after.endswith(end)), None)
        if end is None:
            return None
        body = after.removesuffix(end).strip()
    else:
        body = before
        if after or body not in FILLERS:
            return None
    if seen != check(kind, fold, body):
        return None
    return Generated(kind, fold, body)  # type: ignore[arg-type]


def bare_summary(text: str) -> str:
    """A summary without its reasoning, and without frames a model may have copied: handoffs are never nested."""
    for tag in THINKING_TAGS:
        text = _without_tag(text, tag)
    text = _without_fence(text.strip())
    lines = [line for line in text.split("\n") if not line.startswith(MARKER) and line.strip() not in ENDS]
    return "\n".join(lines).strip()


def _without_fence(text: str) -> str:
    """Models like to put a whole summary into a block of code."""
    first, _, rest = text.partition("\n")
    is_fenced = first.startswith("```") and text.endswith("\n```") and text.count("\n```") == 1
    return rest.removesuffix("```").strip() if is_fenced else text


def _without_tag(text: str, tag: str) -> str:
    start, end = f"<{tag}>", f"</{tag}>"
    pieces: list[str] = []
    while True:
        before, opened, rest = text.partition(start)
        pieces.append(before)
        if not opened:
            return "".join(pieces)
        text = rest.partition(end)[2]


def generated_messages(messages: Transcript, head: int = HEAD, known: Container[str] = ()) -> dict[int, Generated]:
    """The messages of ours, by their places; handoffs of a known fold, or behind no more than a head of messages."""
    found: dict[int, Generated] = {}
    others = 0
    for index, message in enumerate(messages):
        ours = recognise(message)
        if ours is not None and (others <= head or ours.fold in known or ours.kind != "fold"):
            found[index] = ours
        elif message.role != "system":
            others += 1
    return found


def newest_handoff(found: dict[int, Generated]) -> tuple[int, Generated] | None:
    """The last handoff among messages of ours."""
    return next(((index, ours) for index, ours in reversed(found.items()) if ours.kind == "fold"), None)
