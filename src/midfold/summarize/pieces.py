"""Texts cut and put together such that a model's window can take them; all sizes are tokens by the estimate.

Rules of this file:
1. No piece, no part and no group of parts is larger than it may be.
2. Cutting into pieces leaves nothing out. Only `held` does, and its text ends with a line that says so.
"""

from __future__ import annotations

from collections.abc import Sequence

from midfold.fold.request import SummaryAsk
from midfold.fold.summary import chunks
from midfold.transcript.tokens import estimate_text

CHARACTERS_PER_TOKEN = 4
MOST_ROUNDS = 5
LABEL = 12
"""What the line above a part takes."""
CUT_NOTE = "[This summary was cut by the model's output limit.]"


def pieces_of(ask: SummaryAsk, room: int) -> list[str]:
    """The turns in pieces of at most `room` tokens. How long such a piece is depends on what it is made of."""
    characters = room * CHARACTERS_PER_TOKEN
    pieces: list[str] = []
    for _ in range(MOST_ROUNDS):
        pieces = chunks(ask.messages, ask.redact, characters)
        largest = max(map(estimate_text, pieces), default=0)
        if largest <= room:
            break
        characters = int(characters * room / largest * 0.95)
    return pieces


def split(text: str, room: int) -> list[str]:
    """A text in pieces of at most `room` tokens, cut between lines where there are any."""
    pieces: list[str] = []
    while estimate_text(text) > room:
        cut = _fitting(text, room)
        cut = text.rfind("\n", cut // 2, cut) + 1 or cut
        pieces.append(text[:cut])
        text = text[cut:]
    return [*pieces, text] if text else pieces


def half_of(room: int) -> int:
    """The largest part of which two fit into a room."""
    return room // 2 - LABEL


def held(text: str, room: int) -> str:
    """A text that keeps to its room: a longer one is cut at a line, and its end says so."""
    if estimate_text(text) <= room:
        return text
    return f"{split(text, room - estimate_text(CUT_NOTE) - 2)[0].rstrip()}\n{CUT_NOTE}"


def size_of(parts: Sequence[str]) -> int:
    """What parts take in one call."""
    return sum(estimate_text(part) + LABEL for part in parts)


def groups_of(parts: Sequence[str], room: int) -> list[list[str]]:
    """Neighbours that fit one call together."""
    groups: list[list[str]] = []
    for part in parts:
        if not groups or size_of([*groups[-1], part]) > room:
            groups.append([])
        groups[-1].append(part)
    return groups


def numbered(parts: Sequence[str]) -> str:
    """Parts under their labels, as a model is shown them."""
    return "\n\n".join(f"[PART {number} of {len(parts)}]\n{part}" for number, part in enumerate(parts, 1))


def _fitting(text: str, room: int) -> int:
    """How many characters of a text that is larger than a room go into it."""
    cut = len(text)
    while cut > 1 and (size := estimate_text(text[:cut])) > room:
        cut = max(min(int(cut * room / size * 0.98), cut - 1), 1)
    return cut
