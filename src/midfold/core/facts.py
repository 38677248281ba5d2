"""Facts of a fold that later turns are likely to need, and what a summary has of them."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from midfold.core.compaction import SummaryAsk
from midfold.core.estimate import estimate_text
from midfold.core.fallback import Findings
from midfold.core.grounding import identifiers
from midfold.core.summary import StructuredSummary

TOOLS_LINE = "- Tools used:"
SECTIONS = {"files": "files", "blocked": "critical", "critical": "critical"}
"""Where facts come from, and where those that a summary left out are added."""


class Coverage(NamedTuple):
    """Facts of a fold: in the summary as it came, added to it, and only behind the handle. None is ever lost."""

    kept: int = 0
    added: int = 0
    recoverable: int = 0
    lost: int = 0


def cover(ask: SummaryAsk, summary: StructuredSummary, room: int) -> tuple[StructuredSummary, Coverage]:
    """The summary with facts it left out, the newest first, as far as there is room."""
    text = summary.render().lower()
    findings = Findings(ask)
    added: dict[str, list[str]] = {}
    kept = left = 0
    for source, section in SECTIONS.items():
        for line in reversed(findings.lines(source)):
            if line.startswith(TOOLS_LINE):
                continue
            if _is_told(line, text):
                kept += 1
                continue
            cost = estimate_text(line) + 1
            if cost > room:
                left += 1
                continue
            room -= cost
            added.setdefault(section, []).append(line)
    more = {
        section: "\n".join(filter(None, [getattr(summary, section).strip(), *reversed(lines)]))
        for section, lines in added.items()
    }
    count = sum(len(lines) for lines in added.values())
    return msgspec.structs.replace(summary, **more), Coverage(kept, count, left)


def _is_told(line: str, text: str) -> bool:
    """Whether a summary already speaks of what a line is about: all of its names, or else its words."""
    names = [item.text.lower() for item in identifiers(line)]
    if names:
        return all(name in text for name in names)
    return line.strip("- ").lower() in text
