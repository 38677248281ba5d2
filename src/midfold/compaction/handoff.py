"""Write and recognise the messages that midfold generates.

- A generated message has no key that a provider would reject. It is identified by a mark in its text: the id of its
  fold and a check over that id and the body.
- It is recognised after any round trip through plain JSON by computing the check again. Text that only looks like a
  handoff, quotes one, or is in a tool result is not accepted. Nor is a genuine handoff of another session that a
  user pastes: handoffs are only accepted near the beginning. The check is not secret, so a store is consulted too
  (`Keeper`): a handoff it does not have is treated as a summary written by a client.
- Clients write their own summaries into a history. They are recognised by how they begin (the table of wrappers,
  and Hermes' frame) and become the previous summary, not words of the user. Words beside one remain the user's.
- The frame says that the summary is reference, that the latest user message wins, and where the summary ends, so
  that no model takes a historical request for a new one.
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
"""Sentence added if the model has a tool to unfold originals."""
TERSE_OPENING = "Reference only; the latest user message wins."
TERSE_END = "[END OF CONTEXT COMPACTION]"
"""Short frame for requested target sizes, where every token counts."""
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
"""Default number of messages in the head."""
PINNED = 7
"""Maximum messages between the head and a handoff, tool results aside: pinned user messages, answers and replies."""

_THOUGHTS = re.compile(r"<(think|thinking|analysis|reasoning)>", re.IGNORECASE | re.ASCII)
_THOUGHT_ENDS = re.compile(r"</(think|thinking|analysis|reasoning)>", re.IGNORECASE | re.ASCII)

Kind = Literal["fold", "ack", "bridge"]
RECENT = 20
"""Default number of messages at the end in which client summaries are not searched, unless they are in the head."""
_HERMES = ("[CONTEXT COMPACTION", "[CONTEXT SUMMARY]:")
_HERMES_OPENING = "Earlier turns were compacted"
_HERMES_END = "--- END OF CONTEXT SUMMARY"
_REQUESTS = (
    "\nPlease continue the conversation from where we left",
    "\nContinue the conversation from where it left off",
)
"""Instructions that Claude Code appends to its summary; they carry no information."""
_OPENCODE = "What did we do so far?"
"""User message that opencode puts at the beginning of a compacted conversation; its summary is the answer."""
_NUMBERED = re.compile(r"^[0-9]{1,2}\. ([A-Z][A-Za-z ]{3,40})[^\n:]{0,40}:$", re.MULTILINE)
_SECTIONS = {
    "primary request and intent": "Goal",
    "files and code sections": "Relevant Files",
    "errors and fixes": "Resolved Questions",
    "pending tasks": "Next Steps",
    "current work": "Active State",
    "optional next step": "Next Steps",
}
"""Section headings of Claude Code and the corresponding ones of midfold; other headings are kept."""
_MARK = re.compile(r" \(midfold (fold|ack|bridge) ([0-9a-f]{12}) ([0-9a-f]{12})\)")
_TERSE_FILLERS = {"assistant": f"{MARKER} {TERSE_ACKNOWLEDGEMENT} (midfold ack)", "user": f"{MARKER} (midfold bridge)"}
"""Fillers without a check: their text is fixed."""


class Generated(NamedTuple):
    """Recognised generated message, or a summary written by a client, which has no fold id."""

    kind: Kind
    fold: str
    body: str

    @property
    def is_foreign(self) -> bool:
        return not self.fold


class Keeper(Protocol):
    """Store of originals, which knows the handles and handoffs it issued."""

    def has_handle(self, handle: str) -> bool:
        """Return whether the handle resolves to originals."""
        ...

    def has_handoff(self, handoff: Generated) -> bool:
        """Return whether exactly this handoff was stored."""
        ...


def check(kind: str, fold: str, body: str) -> str:
    return blake2b(f"{kind}\0{fold}\0{body}".encode("utf-8", "surrogatepass"), digest_size=6).hexdigest()


def handoff(body: str, fold: str, role: Role, *, terse: bool = False, unfolds: bool = False) -> Message:
    """Return the message that replaces a fold; `unfolds` says that the model has a tool to show originals."""
    body = body.strip()
    mark = f" (midfold fold {fold} {check('fold', fold, body)})"
    if terse:
        return Message(role, (Text(f"{MARKER} {TERSE_OPENING}{mark}\n{body}\n{TERSE_END}"),))
    opening = OPENING + UNFOLDS if unfolds else OPENING
    return Message(role, (Text(f"{MARKER} {opening}{mark}\n\n{body}\n\n{END_MARKER}"),))


def filler(fold: str, role: Role, *, terse: bool = False) -> Message:
    """Return a short message that separates two neighbours of the same role."""
    if terse:
        return Message(role, (Text(_TERSE_FILLERS[role]),))
    kind: Kind = "ack" if role == "assistant" else "bridge"
    body = CONTINUATION if role != "assistant" else ACKNOWLEDGEMENT
    return Message(role, (Text(f"{MARKER} {body} (midfold {kind} {fold} {check(kind, fold, body)})"),))


def recognise(message: Message) -> Generated | None:
    """Return the kind, fold and body of a generated message; None for any other message."""
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
    """Return a summary written by a client and whether the message also holds words of the user, else None."""
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
    """Return a message without the summary that a client put beside the user's words."""
    if (found := _hermes_summary(message)) is not None:
        return message.with_parts((Text(found[1]),))
    return without_client_summary(message)


def _hermes_summary(message: Message) -> tuple[str, str] | None:
    """Return the summary in a Hermes message and the text that follows it."""
    part = message.parts[0]
    text = part.text.strip() if len(message.parts) == 1 and isinstance(part, Text) else ""
    if not text.startswith(_HERMES) or any(end in text for end in ENDS):
        return None
    body, _, after = text.partition(_HERMES_END)
    return _without_hermes_opening(body), after.partition("\n")[2].strip()


def _without_requests(text: str) -> str:
    """Return a client's summary without its introductory sentence and its instructions to the model."""
    body = text.partition("\n")[2] or text
    for request in _REQUESTS:
        body = body.partition(request)[0]
    return _NUMBERED.sub(_section, body.partition("\nSummary:\n")[2] or body)


def _section(numbered: re.Match[str]) -> str:
    title = numbered.group(1).strip()
    return f"## {_SECTIONS.get(title.lower(), title)}"


def _without_hermes_opening(text: str) -> str:
    """Return the summary without its label and its introductory line."""
    text = text.partition("]")[2].removeprefix(":").strip()
    return text.partition("\n")[2] if text.startswith(_HERMES_OPENING) else text


def bare_summary(text: str) -> str:
    """Return a summary without reasoning and without frames that the model copied: handoffs are never nested."""
    text = _without_fence(_without_thoughts(text).strip())
    lines = [line for line in text.split("\n") if not line.startswith(MARKER) and line.strip() not in ENDS]
    return "\n".join(lines).strip()


def _without_fence(text: str) -> str:
    """Remove a code fence around the whole text, which models like to add."""
    first, _, rest = text.partition("\n")
    is_fenced = first.startswith("```") and text.endswith("\n```") and text.count("\n```") == 1
    return rest.removesuffix("```").strip() if is_fenced else text


def _without_thoughts(text: str) -> str:
    """Remove reasoning blocks; an unclosed one extends to the end."""
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
    """Return the generated messages by index: handoffs of a known fold, or near the beginning.

    Includes client summaries, except those among the `recent` messages at the end.
    """
    return find_generated(messages, head, known, recent)[0]


def find_generated(
    messages: Transcript, head: int = HEAD, known: Container[str] = (), recent: int = RECENT
) -> tuple[dict[int, Generated], dict[int, Generated]]:
    """Return the generated messages, and the client summaries that share a message with the user's words, by index."""
    found: dict[int, Generated] = {}
    beside: dict[int, Generated] = {}
    found |= _opencode_summary(messages)
    others, old = 0, len(messages) - recent
    for index, message in enumerate(messages):
        kinds = message.kinds
        if kinds == RESULT or index in found:
            continue
        is_early, is_text = others <= head + PINNED, kinds == TEXT
        generated = recognise(message) if is_text else None
        foreign = recognise_foreign(message) if is_text and generated is None and (is_early or index < old) else None
        if generated is not None and (is_early or generated.fold in known or generated.kind != "fold"):
            found[index] = generated
        elif foreign is not None and not foreign[1]:
            found[index] = foreign[0]
        elif message.role != "system":
            others += 1
            if foreign is not None:
                beside[index] = foreign[0]
    return found, beside


def _opencode_summary(messages: Transcript) -> dict[int, Generated]:
    """Return the question and answer with which opencode begins a compacted conversation."""
    first = first_turn(messages)
    question, *rest = messages[first : first + 2] or (None,)
    if question is None or not rest or (question.role, question.text.strip()) != ("user", _OPENCODE):
        return {}
    answer = rest[0].text.strip() if (rest[0].role, rest[0].kinds) == ("assistant", TEXT) else ""
    body = answer if "# " in answer else f"## Goal\n{answer}"
    return {first: Generated("bridge", "", ""), first + 1: Generated("fold", "", body)} if answer else {}


def newest_handoff(found: dict[int, Generated]) -> tuple[int, Generated] | None:
    """Return the last summary among generated messages."""
    return next(((index, generated) for index, generated in reversed(found.items()) if generated.kind == "fold"), None)
