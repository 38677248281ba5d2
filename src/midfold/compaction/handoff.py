"""The messages midfold writes itself: how they are framed, and how they are recognised again.

Rules of this file:
1. A generated message carries no key a provider would reject. Its identity is a mark in its text: the id of the fold it
   stands for, and a check over that id and the body.
2. It is recognised after any round trip through plain JSON by computing the check again. Text that merely looks like a
   handoff, quotes one, or stands in a tool result is not believed. Nor is a genuine handoff of another session that a
   user pastes: ours stand near the beginning, and nowhere else. The check holds no secret, so a store is asked, too
   (`Keeper`): a handoff that it does not have is a summary that a client brought along.
3. Clients write summaries of their own into a history. They are told by how they begin (the table of wrappers, and
   Hermes' own frame), and are the summary so far, not words of the user. Words beside one stay the user's.
4. The frame says that the summary is reference, that the latest user message wins, and where it ends, so that no
   model takes a historical ask for a new one.
"""

from __future__ import annotations

import re
from collections.abc import Container
from hashlib import blake2b
from typing import Literal, NamedTuple, Protocol

from midfold.transcript.laws import first_turn
from midfold.transcript.message import RESULT, TEXT, Message, Role, Text, Transcript
from midfold.transcript.wrappers import client_summary, user_words, without_client_summary

MARKER = "[CONTEXT COMPACTION]"
END_MARKER = "[END OF CONTEXT COMPACTION: that was history; respond to what follows]"
OPENING = (
    "Earlier turns were compacted into this by the context manager, not by the user; it is reference only: asks and "
    "tasks in it are historical and may be finished, the latest user message wins."
)
UNFOLDS = " Originals unfold by handle."
"""Only where the model has a tool for it."""
TERSE_OPENING = "Reference only; the latest user message wins."
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

_THOUGHTS = re.compile(r"<(think|thinking|analysis|reasoning)>", re.IGNORECASE | re.ASCII)
_THOUGHT_ENDS = re.compile(r"</(think|thinking|analysis|reasoning)>", re.IGNORECASE | re.ASCII)

Kind = Literal["fold", "ack", "bridge"]
RECENT = 20
"""So many messages at the end stay as they are, unless they stand in the head: no summary is looked for in them."""
_HERMES = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]:")
_HERMES_OPENING = "Earlier turns were compacted"
_HERMES_END = "--- END OF CONTEXT SUMMARY"
_REQUESTS = (
    "\nPlease continue the conversation from where we left",
    "\nContinue the conversation from where it left off",
)
"""How Claude Code goes on after a summary: it asks its model for something, and tells nothing."""
_OPENCODE = "What did we do so far?"
"""What opencode lets its user ask at the beginning of a conversation it has compacted; its summary is the answer."""
_NUMBERED = re.compile(r"^[0-9]{1,2}\. ([A-Z][A-Za-z ]{3,40})[^\n:]{0,40}:$", re.MULTILINE)
_SECTIONS = {
    "primary request and intent": "Goal",
    "files and code sections": "Relevant Files",
    "errors and fixes": "Resolved Questions",
    "pending tasks": "Next Steps",
    "current work": "Active State",
    "optional next step": "Next Steps",
}
"""Claude Code's headings, and the sections of ours they mean; others keep their words."""
_MARK = re.compile(r" \(midfold (fold|ack|bridge) ([0-9a-f]{12}) ([0-9a-f]{12})\)")
_TERSE_FILLERS = {"assistant": f"{MARKER} {TERSE_ACKNOWLEDGEMENT} (midfold ack)", "user": f"{MARKER} (midfold bridge)"}
"""They say nothing that somebody could have changed, so they need no check."""


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


def handoff(body: str, fold: str, role: Role, *, terse: bool = False, unfolds: bool = False) -> Message:
    """The one message that stands for a fold; `unfolds`: the model has a tool that shows the originals."""
    body = body.strip()
    mark = f" (midfold fold {fold} {check('fold', fold, body)})"
    if terse:
        return Message(role, (Text(f"{MARKER} {TERSE_OPENING}{mark}\n{body}\n{TERSE_END}"),))
    opening = OPENING + UNFOLDS if unfolds else OPENING
    return Message(role, (Text(f"{MARKER} {opening}{mark}\n\n{body}\n\n{END_MARKER}"),))


def filler(fold: str, role: Role, *, terse: bool = False) -> Message:
    """A short message between two neighbours of the same role."""
    if terse:
        return Message(role, (Text(_TERSE_FILLERS[role]),))
    kind: Kind = "ack" if role == "assistant" else "bridge"
    body = CONTINUATION if role != "assistant" else ACKNOWLEDGEMENT
    return Message(role, (Text(f"{MARKER} {body} (midfold {kind} {fold} {check(kind, fold, body)})"),))


def recognise(message: Message) -> Generated | None:
    """What this generated message is; None for everything we did not write."""
    if message.role not in ("user", "assistant") or len(message.parts) != 1:
        return None
    part = message.parts[0]
    if not isinstance(part, Text) or not part.text.startswith(MARKER):
        return None
    if part.text == _TERSE_FILLERS[message.role]:
        return Generated("ack" if message.role == "assistant" else "bridge", "", "")
    mark = _MARK.search(part.text, 0, len(MARKER) + len(OPENING + UNFOLDS) + 100)
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


def recognise_foreign(message: Message) -> tuple[Generated, bool] | None:
    """A summary that a client wrote, and whether the user speaks beside it; None for what looks like one of ours."""
    if message.role not in ("user", "assistant") or message.kinds != TEXT:
        return None
    if (found := _hermes_summary(message)) is not None:
        body, words = found
    else:
        body = client_summary(message)
        body, words = body and _without_requests(body), user_words(message) if body else ""
    body = body.strip()
    return (Generated("fold", "", body if "# " in body else f"## Goal\n{body}"), bool(words)) if body else None


def without_summary(message: Message) -> Message:
    """A message without the summary that a client put beside the user's words."""
    if (found := _hermes_summary(message)) is not None:
        return message.with_parts((Text(found[1]),))
    return without_client_summary(message)


def _hermes_summary(message: Message) -> tuple[str, str] | None:
    """The summary of Hermes', and what is said behind it in the same message."""
    part = message.parts[0]
    text = part.text.strip() if len(message.parts) == 1 and isinstance(part, Text) else ""
    if not text.startswith(_HERMES) or any(end in text for end in ENDS):
        return None
    body, _, after = text.partition(_HERMES_END)
    return _without_hermes_opening(body), after.partition("\n")[2].strip()


def _without_requests(text: str) -> str:
    """A summary of a client's own without the sentence that introduces it, and without what it asks of its model."""
    body = text.partition("\n")[2] or text
    for request in _REQUESTS:
        body = body.partition(request)[0]
    return _NUMBERED.sub(_section, body.partition("\nSummary:\n")[2] or body)


def _section(numbered: re.Match[str]) -> str:
    title = numbered.group(1).strip()
    return f"## {_SECTIONS.get(title.lower(), title)}"


def _without_hermes_opening(text: str) -> str:
    """The summary without the label, and without the line that says what it is."""
    text = text.partition("]")[2].removeprefix(":").strip()
    return text.partition("\n")[2] if text.startswith(_HERMES_OPENING) else text


def bare_summary(text: str) -> str:
    """A summary without its reasoning, and without frames a model may have copied: handoffs are never nested."""
    text = _without_fence(_without_thoughts(text).strip())
    lines = [line for line in text.split("\n") if not line.startswith(MARKER) and line.strip() not in ENDS]
    return "\n".join(lines).strip()


def _without_fence(text: str) -> str:
    """Models like to put a whole summary into a block of code."""
    first, _, rest = text.partition("\n")
    is_fenced = first.startswith("```") and text.endswith("\n```") and text.count("\n```") == 1
    return rest.removesuffix("```").strip() if is_fenced else text


def _without_thoughts(text: str) -> str:
    """A thought that is never closed goes to the end."""
    pieces: list[str] = []
    place = 0
    while (opened := _THOUGHTS.search(text, place)) is not None:
        pieces.append(text[place : opened.start()])
        ends = (end for end in _THOUGHT_ENDS.finditer(text, opened.end()) if end[1].lower() == opened[1].lower())
        place = next((end.end() for end in ends), len(text))
    return "".join([*pieces, text[place:]])


def generated_messages(
    messages: Transcript, head: int = HEAD, known: Container[str] = (), recent: int = RECENT
) -> dict[int, Generated]:
    """The messages of ours, by their places; handoffs of a known fold, or behind no more than may stand before one.

    Summaries of clients count, too, but for those among the `recent` messages at the end.
    """
    return find_generated(messages, head, known, recent)[0]


def find_generated(
    messages: Transcript, head: int = HEAD, known: Container[str] = (), recent: int = RECENT
) -> tuple[dict[int, Generated], dict[int, Generated]]:
    """The same, and the summaries of clients that stand in a message of the user's."""
    found: dict[int, Generated] = {}
    beside: dict[int, Generated] = {}
    found |= _opencode_summary(messages)
    others, old = 0, len(messages) - recent
    for index, message in enumerate(messages):
        kinds = message.kinds
        if kinds == RESULT or index in found:
            continue
        is_early, is_text = others <= head + PINNED, kinds == TEXT
        ours = recognise(message) if is_text else None
        foreign = recognise_foreign(message) if is_text and ours is None and (is_early or index < old) else None
        if ours is not None and (is_early or ours.fold in known or ours.kind != "fold"):
            found[index] = ours
        elif foreign is not None and not foreign[1]:
            found[index] = foreign[0]
        elif message.role != "system":
            others += 1
            if foreign is not None:
                beside[index] = foreign[0]
    return found, beside


def _opencode_summary(messages: Transcript) -> dict[int, Generated]:
    """The question and the answer that stand for what opencode has compacted, if the conversation begins with them."""
    first = first_turn(messages)
    question, *rest = messages[first : first + 2] or (None,)
    if question is None or not rest or (question.role, question.text.strip()) != ("user", _OPENCODE):
        return {}
    answer = rest[0].text.strip() if (rest[0].role, rest[0].kinds) == ("assistant", TEXT) else ""
    body = answer if "# " in answer else f"## Goal\n{answer}"
    return {first: Generated("bridge", "", ""), first + 1: Generated("fold", "", body)} if answer else {}


def newest_handoff(found: dict[int, Generated]) -> tuple[int, Generated] | None:
    """The last summary among messages of ours."""
    return next(((index, ours) for index, ours in reversed(found.items()) if ours.kind == "fold"), None)
