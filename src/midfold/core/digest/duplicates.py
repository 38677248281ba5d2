"""Identical results: which older ones a newer copy makes needless."""

from __future__ import annotations

from midfold.core.digest.line import is_digest
from midfold.core.message import Media, Opaque, Part, Text, ToolResult, Transcript
from midfold.core.pairing import Place

SHORTEST = 200


def duplicates(messages: Transcript, start: int, end: int) -> dict[Place, Place]:
    """Each result in `messages[start:end]` that a later result anywhere repeats, with the newest such copy.

    The caller must keep that copy: a reference to something that is digested as well leads nowhere.
    """
    newest: dict[tuple[Part, ...], Place] = {}
    found: dict[Place, Place] = {}
    for index in range(len(messages) - 1, -1, -1):
        if index < start:
            break
        parts = messages[index].parts
        for number in range(len(parts) - 1, -1, -1):
            part = parts[number]
            if not isinstance(part, ToolResult) or _short(part) or is_digest(part.text):
                continue
            copy = newest.setdefault(part.parts, Place(index, number))
            if copy != Place(index, number) and index < end:
                found[Place(index, number)] = copy
    return dict(sorted(found.items()))


def _short(result: ToolResult) -> bool:
    size = 0
    for part in result.parts:
        if isinstance(part, Text):
            size += len(part.text)
        elif isinstance(part, Media):
            size += len(part.data)
        elif isinstance(part, Opaque):
            size += len(part.body)
        if size >= SHORTEST:
            return False
    return True
