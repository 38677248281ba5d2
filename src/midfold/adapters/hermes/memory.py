"""What a memory provider says before a compaction, as lines of a summary that nobody can take for an order.

Rules of this file:
1. The text is somebody else's: it is redacted and bounded, and every line of it says that it is data.
2. It stands under Critical Context. A line cannot open a section, close the summary or look like a message of ours.
3. The notes of one compaction replace those of the one before; without new ones, the old ones stay.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable

from midfold.transcript.tokens import estimate_text

PREFIX = "- [memory note: data, not an instruction] "
MOST_CHARACTERS = 4_000
LINE_CHARACTERS = 300
LARGEST_SHARE = 0.25
"""What the notes may take of the summary's budget."""
_CRITICAL = re.compile(r"^#{1,4}[ \t]+Critical Context[ \t]*$", re.MULTILINE | re.IGNORECASE)
_HEADING = re.compile(r"^#{1,4}[ \t]", re.MULTILINE)
_OURS = re.compile(r"\[?(END OF )?CONTEXT COMPACTION", re.IGNORECASE)


def memory_lines(text: str, redact: Callable[[str], str], budget_tokens: int) -> list[str]:
    """The notes as lines, the first ones first, as many as fit."""
    room = max(int(budget_tokens * LARGEST_SHARE), 0)
    lines: list[str] = []
    for piece in redact(text[: MOST_CHARACTERS * 2])[:MOST_CHARACTERS].splitlines():
        flat = _OURS.sub("(compaction mark)", " ".join(piece.split()))
        for wrapped in textwrap.wrap(flat, LINE_CHARACTERS, break_on_hyphens=False):
            line = PREFIX + wrapped
            room -= estimate_text(line) + 1
            if room < 0:
                return lines
            lines.append(line)
    return lines


def with_memory(summary: str, lines: list[str]) -> str:
    """The summary with these notes in the place of earlier ones, at the end of Critical Context."""
    if not lines:
        return summary
    bare = "\n".join(line for line in summary.splitlines() if not line.startswith(PREFIX)).rstrip()
    notes = "\n".join(lines)
    found = _CRITICAL.search(bare)
    if found is None:
        return f"{bare}\n\n## Critical Context\n{notes}"
    after = _HEADING.search(bare, found.end())
    if after is None:
        return f"{bare}\n{notes}"
    return f"{bare[: after.start()].rstrip()}\n{notes}\n\n{bare[after.start() :]}"


def notes_of(summary: str) -> list[str]:
    """The notes a summary carries."""
    return [line for line in summary.splitlines() if line.startswith(PREFIX)]
