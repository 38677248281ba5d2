"""Words from arguments and outputs, made safe to show: one line, bounded, redacted before they are cut.

Rule of this file: a text is redacted while it is still long, and cut afterwards. Half a secret is not recognised as
one, so the other order would show it.
"""

from __future__ import annotations

import re
from collections.abc import Callable

Redactor = Callable[[str], str]

REDACTED_AT_ONCE = 4_000
PATH_LIMIT = 90

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")


def identity(text: str) -> str:
    return text


def flat(text: str) -> str:
    """One printable line: white space becomes one space, control characters and terminal colours go."""
    if text.isprintable() and "  " not in text and "| unfold" not in text:
        return text.strip()
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = " ".join(text.split())
    if not text.isprintable():
        text = "".join(character for character in text if character.isprintable())
    return text.replace("| unfold", "/ unfold")


def clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clip_start(text: str, limit: int) -> str:
    """The end of a long text: of a path it is the telling half."""
    return text if len(text) <= limit else "…" + text[1 - limit :]


def plural(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('ch') else 's'}"
