"""Search and unfold compacted messages, with the same ranking for people and models.

`words` tokenizes texts and queries, `units` defines what a search finds, `ranking` orders it, `hits` and `excerpts`
render it, `patterns` matches a model's patterns, `recall_tools` defines the tools, `in_memory` searches originals in
memory. The package does no I/O: originals come from a `SearchSource`.
"""

from midfold.recall.hits import Hit, HitPart
from midfold.recall.in_memory import InMemorySource
from midfold.recall.ranking import CONSIDERED, Filters, Positions, SearchSource
from midfold.recall.recall_tools import (
    FOUND,
    MAX_HITS,
    MAX_HITS_CHARS,
    NAMES,
    NEAREST,
    NOTHING,
    NOTHING_FOLDED,
    PAGE,
    TOOLS,
    UNBOUNDED,
    AnswerBounds,
    Recall,
    ToolAnswer,
    search,
)
from midfold.recall.units import Candidate, Unit, original

__all__ = [
    "CONSIDERED",
    "FOUND",
    "MAX_HITS",
    "MAX_HITS_CHARS",
    "NAMES",
    "NEAREST",
    "NOTHING",
    "NOTHING_FOLDED",
    "PAGE",
    "TOOLS",
    "UNBOUNDED",
    "AnswerBounds",
    "Candidate",
    "Filters",
    "Hit",
    "HitPart",
    "InMemorySource",
    "Positions",
    "Recall",
    "SearchSource",
    "ToolAnswer",
    "Unit",
    "original",
    "search",
]
