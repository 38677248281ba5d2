"""Searching and unfolding what was folded: one search for every face, its tools for models, and their words.

`words` says what a text can be found by, `units` what a search finds, `ranking` in which order, `hits` and `excerpts`
what is shown, `patterns` are a model's patterns, `tool_answers` the tools, `memory_past` a past in memory.
Pure: whoever keeps originals brings them as a `SearchSource`.
"""

from midfold.recall.hits import Hit, HitPart
from midfold.recall.in_memory import InMemorySource
from midfold.recall.ranking import CONSIDERED, Filters, Positions, SearchSource
from midfold.recall.recall_tools import (
    FOUND,
    MOST_CHARACTERS,
    MOST_HITS,
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
    "MOST_CHARACTERS",
    "MOST_HITS",
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
