"""Sentences of the user that constrain: must, never, always, don't, prefer, only.

Facts are identifiers; what a person demands is prose, and is measured on its own. Such a sentence survives if it
stands word for word in what was kept. Code, and what an agent put into the user's turn, is not the user's sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from midfold.transcript.message import Message

SHORTEST, LONGEST = 12, 400
_FENCED = re.compile(r"```.*?(?:```|\Z)", re.DOTALL)
_INSERTED = (
    "system-reminder command-name command-message command-args local-command-stdout local-command-stderr bash-input"
    " bash-stdout bash-stderr environment_context user_instructions INSTRUCTIONS permissions"
)
"""Blocks that agents put into a user's turn."""
_END = re.compile(r"(?<=[.!?])\s+|\n+")
_DEMAND = re.compile(r"\b(?:must|never|always|don['’]?t|do not|prefer(?:s|red|ably)?|only)\b", re.IGNORECASE)
_BULLET = re.compile(r"^\s*(?:[-*>#]+|\d+[.)])?\s*")


def demands(messages: Iterable[Message]) -> tuple[str, ...]:
    """The constraining sentences of what a person wrote, each once."""
    return tuple(dict.fromkeys(sentence for message in messages for sentence in _demands(message.text)))


def _demands(text: str) -> Iterator[str]:
    prose = _FENCED.sub("\n", text)
    for name in _INSERTED.split():
        prose = _without(prose, f"<{name}>", f"</{name}>")
    for sentence in _END.split(prose):
        bare = spaced(_BULLET.sub("", sentence, count=1))
        if SHORTEST <= len(bare) <= LONGEST and _DEMAND.search(bare):
            yield bare


def _without(text: str, opening: str, closing: str) -> str:
    """The text outside the blocks; one that is never closed reaches to the end."""
    first, *rest = text.split(opening)
    return "\n".join([first, *(piece.partition(closing)[2] for piece in rest)])


def spaced(text: str) -> str:
    """With one space for every run of white space."""
    return " ".join(text.split())
