"""The messages midfold writes itself: how they are framed, and how they are recognised again.

Rules of this file:
1. A generated message carries no key a provider would reject. Its identity is a mark in its text: the id of the fold it
   stands for, and a check over that id and the body.
2. It is recognised after any round trip through plain JSON by computing the check again. Text that merely looks like a
   handoff, quotes one, or stands in a tool result is not believed. Nor is a genuine handoff of another session that a
   user pastes: ours stand near the beginning, and nowhere else. The check holds no secret, so a store is asked, too
   (`Keeper`): a handoff that it does not have is a summary that a client brought along.
3. Hermes and Claude Code write summaries of their own into a history. They are told by how they begin, and are the
   summary so far, not words of the user. One that is followed by such words in the same message is left alone.
4. The frame says that the summary is reference, that the latest user message wins, and where it ends, so that no
   model takes a historical ask for a new one.
"""

from __future__ import annotations

import re
from collections.abc import Container
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol

from midfold.transcript.message import RESULT, Message, Role, Text, Transcript

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
"""So many messages at the beginning stay, unless more are configured."""
PINNED = 7
"""So many may stay between them and a handoff, results aside: an ask, a picture, an answer, and replies to them."""

THINKING_TAGS = ("think", "thinking", "analysis", "reasoning")

Kind = Literal["fold", "ack", "bridge"]
RECENT = 20
"""So many messages at the end stay as they are, unless they stand in the head: no summary is looked for in them."""
_HERMES = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]:")
_HERMES_OPENING = "Earlier turns were compacted"
_HERMES_END = "--- END OF CONTEXT SUMMARY"
_CLAUDE_CODE = "This session is being continued from a previous conversation"
_CLAUDE_CODE_END = "\nPlease continue the conversation from where we left"
_NUMBERED = re.compile(r"^[0-9]{1,2}\. ([A-Z][A-Za-z ]{3,40})[^\n:]{0,40}:$", re.MULTILINE)
_SECTIONS = {
    "primary request and intent": "Goal",
    "files and code sections": "Relevant Files",
    "errors and fixes": "Resolved Questions",
    "pending tasks": "Pending Asks",
    "current work": "In Progress",
    "optional next step": "Next Steps",
}
"""Claude Code's headings, and the sections of ours they mean; others keep their words."""
_MARK = re.compile(r" \(midfold (fold|ack|bridge) ([0-9a-f]{12}) ([0-9a-f]{12})\)")


class Generated(NamedTuple):
    """A message of ours, recognised; or a summary that a client wrote, of no fold that we know."""

    kind: Kind
    fold: str
    body: str

    @property
    def is_foreign(self) -> bool:
        return not self.fold


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


def recognise_foreign(message: Message) -> Generated | None:
    """A summary that Hermes or Claude Code wrote; None for everything else, also for what looks like one of ours."""
    if message.role not in ("user", "assistant") or len(message.parts) != 1:
        return None
    part = message.parts[0]
    text = part.text.strip() if isinstance(part, Text) and part.text.lstrip()[:1] in ("[", "T") else ""
    body = ""
    if text.startswith(_CLAUDE_CODE) and message.role == "user":
        body = text.partition("\n")[2].partition(_CLAUDE_CODE_END)[0]
        body = _NUMBERED.sub(_section, body.partition("\nSummary:\n")[2] or body)
    elif text.startswith(_HERMES) and not any(end in text for end in ENDS):
        body, ended, after = text.partition(_HERMES_END)
        body = "" if ended and "\n" in after else _without_hermes_opening(body)
    body = body.strip()
    return Generated("fold", "", body if "# " in body else f"## Goal\n{body}") if body else None


def _section(numbered: re.Match[str]) -> str:
    title = numbered.group(1).strip()
    return f"## {_SECTIONS.get(title.lower(), title)}"


def _without_hermes_opening(text: str) -> str:
    """The summary without the label, and without the line that says what it is."""
    text = text.partition("]")[2].removeprefix(":").strip()
    return text.partition("\n")[2] if text.startswith(_HERMES_OPENING) else text


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


def generated_messages(
    messages: Transcript, head: int = HEAD, known: Container[str] = (), recent: int = RECENT
) -> dict[int, Generated]:
    """The messages of ours, by their places; handoffs of a known fold, or behind no more than may stand before one.

    Summaries of clients count, too, but for those among the `recent` messages at the end.
    """
    found: dict[int, Generated] = {}
    others, old = 0, len(messages) - recent
    for index, message in enumerate(messages):
        is_early = others <= head + PINNED
        ours = recognise(message) or (recognise_foreign(message) if is_early or index < old else None)
        if ours is not None and (is_early or ours.fold in known or ours.kind != "fold" or ours.is_foreign):
            found[index] = ours
        elif message.role != "system" and message.kinds != RESULT:
            others += 1
    return found


def newest_handoff(found: dict[int, Generated]) -> tuple[int, Generated] | None:
    """The last summary among messages of ours."""
    return next(((index, ours) for index, ours in reversed(found.items()) if ours.kind == "fold"), None)
