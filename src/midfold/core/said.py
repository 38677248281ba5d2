"""What the user said, word for word, beside a summary that a model wrote: asks and demands are not left to it."""

from __future__ import annotations

from typing import NamedTuple

from midfold.core.boundary import speaks
from midfold.core.compaction import SummaryAsk
from midfold.core.fallback import (
    ASK_CHARACTERS,
    CONSTRAINT,
    NEWEST_ASK_CHARACTERS,
    RULES_SHARE,
    clip,
    fit,
    lines_of,
    sentences,
)
from midfold.core.summary import StructuredSummary, parse_summary

SHORTEST_TASK, MOST_ASKS, EARLIER_SHARE = 300, 8, 0.2
"""Characters of the newest ask however small the budget, earlier asks, and their share of the budget."""


class Said(NamedTuple):
    """The newest ask, those before it, and what was demanded."""

    task: str
    asks: list[str]
    demands: list[str]


def said_by_user(ask: SummaryAsk) -> Said:
    """Asks and demands of the fold and of the summary before it, each within its share of the budget."""
    old = parse_summary(ask.previous) if ask.previous else StructuredSummary()
    said = [text for message in ask.messages if speaks(message) and (text := ask.redact(message.text)).strip()]
    asks = [*lines_of(old.pending), *([f"- {clip(old.task_snapshot, ASK_CHARACTERS)}"] if old.task_snapshot else [])]
    asks += [f"- {clip(text, ASK_CHARACTERS)}" for text in said]
    newest = said[-1] if said else old.task_snapshot
    longest = min(max(ask.budget_tokens, SHORTEST_TASK), NEWEST_ASK_CHARACTERS)
    earlier = list(dict.fromkeys(asks[:-1]))[-MOST_ASKS:]
    demanded = [f"- {sentence}" for text in said for sentence in sentences(text, CONSTRAINT)]
    demands = list(dict.fromkeys([*lines_of(old.constraints), *demanded]))
    return Said(
        clip(newest, longest),
        _within(earlier, ask.budget_tokens * EARLIER_SHARE),
        _within(demands, ask.budget_tokens * RULES_SHARE),
    )


def _within(lines: list[str], tokens: float) -> list[str]:
    return fit(lines, int(tokens), set())[0].splitlines()
