"""Who said which name, how often, and when last: the counts that a name's worth is made of.

Rules of this file:
1. One pass; a text is cut into chunks once, and each chunk that was seen before costs one look-up.
2. Very long folds are read by the beginning and the end of each text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from midfold.core import jsonio
from midfold.core.ledger.names import CHUNK, Shape, judged
from midfold.core.message import Message, Text, ToolCall, ToolResult, Transcript

USER, SAID, CALLED, RESULT = range(4)
"""Who speaks: a user, the assistant, the assistant in the arguments of a call, a tool."""
PLACES_KEPT = 3
RECENT = 12
"""Messages at the end whose words tell what the conversation is about now."""
RECENT_CHARACTERS = 4_000
LONGEST_TEXT = 200_000
LONGEST_CUT = 200
"""Characters of half a line that are left out where a text is cut."""
_SUBWORD = re.compile(r"[A-Z]?[a-z]{2,}|[A-Z]{2,}|[0-9]+")


class Entry:
    """What is known about one name."""

    __slots__ = ("assistant", "counts", "last", "messages", "places", "shape")

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.messages = 0
        self.last = -1
        self.assistant = -1
        self.counts = [0, 0, 0, 0]
        self.places: list[tuple[int, int]] = []
        """The newest texts that have it: the message, and which of its texts."""


class Census:
    """The names of a conversation."""

    def __init__(self, messages: Transcript, room: int = LONGEST_TEXT) -> None:
        self.length = len(messages)
        self.entries: dict[str, Entry] = {}
        self._known: dict[str, Entry | None] = {}
        self.texts: list[list[tuple[int, str]]] = []
        recent: set[str] = set()
        for index, message in enumerate(messages):
            texts = [] if message.role == "system" else list(readable(message, room))
            self.texts.append(texts)
            for number, (who, text) in enumerate(texts):
                self._count(index, number, who, text)
                if index >= self.length - RECENT:
                    recent.update(subwords(text[: RECENT_CHARACTERS // 2] + text[-RECENT_CHARACTERS // 2 :]))
        self.recent = frozenset(recent)
        del self._known

    def _count(self, index: int, number: int, who: int, text: str) -> None:
        known = self._known
        by_assistant = who in (SAID, CALLED)
        place = (index, number)
        for chunk in dict.fromkeys(CHUNK.findall(text)):
            entry = known[chunk] if chunk in known else self._entry(chunk)
            if entry is None:
                continue
            if entry.last != index:
                entry.last = index
                entry.messages += 1
            entry.counts[who] += 1
            if by_assistant:
                entry.assistant = index
            places = entry.places
            places.append(place)
            if len(places) > PLACES_KEPT:
                del places[0]

    def _entry(self, chunk: str) -> Entry | None:
        name = judged(chunk)
        entry = None if name is None else self.entries.get(name.text)
        if name is not None and entry is None:
            entry = self.entries[name.text] = Entry(name.shape)
        self._known[chunk] = entry
        return entry


def subwords(text: str) -> Iterator[str]:
    """The words that names are made of, in lower case."""
    return (word.lower() for word in _SUBWORD.findall(text))


def readable(message: Message, room: int) -> Iterator[tuple[int, str]]:
    """The texts of a message, and who speaks in each."""
    for part in message.parts:
        if isinstance(part, Text):
            who = USER if message.role == "user" else SAID if message.role == "assistant" else RESULT
            yield who, _ends(part.text, room)
        elif isinstance(part, ToolCall):
            yield CALLED, _ends(told_arguments(part.arguments), room)
        elif isinstance(part, ToolResult):
            yield RESULT, _ends(part.text, room)


def told_arguments(arguments: str) -> str:
    """The arguments of a call as people read them: a line for each value, with real line breaks."""
    try:
        value = jsonio.decode(arguments) if len(arguments) <= LONGEST_TEXT else None
    except jsonio.NotJSON:
        value = None
    if not isinstance(value, dict):
        return arguments
    return "\n".join(f"{key}: {_plain(item)}" for key, item in value.items())


def _plain(value: object) -> str:
    if isinstance(value, str):
        return value
    return jsonio.encode(value).decode("utf-8", "replace").replace("\\n", "\n")


def _ends(text: str, room: int) -> str:
    if len(text) <= room:
        return text
    head, tail = text[: room * 2 // 3], text[len(text) - room // 3 :]
    last, first = head.rfind("\n", max(len(head) - LONGEST_CUT, 0)), tail.find("\n", 0, LONGEST_CUT)
    return f"{head[:last] if last >= 0 else head}\n{tail[first + 1 :]}"
