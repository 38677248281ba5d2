"""The agent's own past: what was folded can be found and read again.

Rules of this file:
1. What the model still sees is not told again, unless nothing else is found. Nor are its own searches and what they
   brought: they would soon be most of what is found.
2. A line is told once, by its newest message among equals.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from midfold.agent.shapes import ToolSpec
from midfold.agent.tools.base import Tool
from midfold.errors import ToolRefused
from midfold.fold.archive import DIGITS, PREFIX, handle_of
from midfold.session import Session
from midfold.store.protocol import Candidate
from midfold.store.ranking import ELLIPSIS, Hit
from midfold.transcript.message import Message, ToolCall, ToolResult

MOST_HITS, CONSIDERED = 6, 24
FOUND, ORIGINAL = "Found in earlier messages:", "Original of"
NOTHING = "nothing found; all words must occur: try fewer, or a part of a name"


def recall_tools(session: Callable[[], Session], limit: int) -> list[Tool]:
    """Search and unfold, for whichever session the agent is in when they are called."""
    recall = Recall(session, limit)
    return [
        Tool(spec=SEARCH, run=recall.search, told=lambda given: given["query"]),
        Tool(spec=UNFOLD, run=recall.unfold, told=lambda given: given["handle"]),
    ]


class Recall:
    def __init__(self, session: Callable[[], Session], limit: int) -> None:
        self._session = session
        self._limit = limit

    def search(self, query: str) -> str:
        session = self._session()
        seen = {handle_of(message)[len(PREFIX) :] for message in session.view().transcript}

        def is_folded(found: Candidate) -> bool:
            return found.digest.hex()[:DIGITS] not in seen and not _is_ours(found.message)

        hits = session.search(query, CONSIDERED, wanted=is_folded)
        hits = hits or session.search(query, CONSIDERED, wanted=lambda found: not _is_ours(found.message))
        return "\n".join([FOUND, *_lines(hits)]) if hits else NOTHING

    def unfold(self, handle: str, start: int = 0) -> str:
        """The originals as text, from a character on; with a last line that says how to go on."""
        session = self._session()
        originals = session.store.unfold(session.name, handle.strip())
        text = "\n\n".join([f"{ORIGINAL} {handle.strip()}:", *map(_told, originals)])
        if start and start >= len(text):
            raise ToolRefused(f"{handle} has {len(text)} characters")
        room = max(self._limit - 200, 200)
        page = text[max(start, 0) : max(start, 0) + room]
        end = max(start, 0) + len(page)
        return (
            page
            if end >= len(text)
            else f"{page}\n[characters {start} to {end} of {len(text)}; go on with start={end}]"
        )


def _lines(hits: Iterable[Hit]) -> Iterator[str]:
    """Each hit with the lines that no hit before it had; one that adds nothing is left out."""
    told: set[str] = set()
    left = MOST_HITS
    for hit in hits:
        new = {line: None for line in hit.text.splitlines() if line.strip() not in told}
        new.pop(ELLIPSIS, None)
        if left and any(line.strip() for line in new):
            left -= 1
            told.update(line.strip() for line in new)
            yield f"{hit.handle} (message {hit.position}, {hit.role}):"
            yield from new


def _is_ours(message: Message) -> bool:
    """Whether a message is nothing but a search or an unfolding, or what came of one."""
    results = [part.text for part in message.parts if isinstance(part, ToolResult)]
    if results and all(text.startswith((FOUND, ORIGINAL, NOTHING)) for text in results):
        return True
    calls = [part.name for part in message.parts if isinstance(part, ToolCall)]
    return bool(calls) and not message.text and {SEARCH.name, UNFOLD.name}.issuperset(calls)


def _told(message: Message) -> str:
    calls = [f"{part.name} {part.arguments}" for part in message.parts if isinstance(part, ToolCall)]
    return "\n".join(filter(None, [f"[{message.role}]", message.text, *calls]))


SEARCH = ToolSpec(
    name="context_search",
    description=(
        "Search this conversation from its beginning, also what has been folded into a summary. All words must occur; "
        "parts of names count. Each hit has a handle for context_unfold."
    ),
    properties={"query": {"type": "string", "description": "Words to look for."}},
    required=("query",),
)
UNFOLD = ToolSpec(
    name="context_unfold",
    description="Show the original messages behind a handle (mf-...), as they were before they were folded.",
    properties={
        "handle": {"type": "string", "description": "The handle, as a summary, a digest or a search hit names it."},
        "start": {"type": "integer", "description": "Character to start at (default 0)."},
    },
    required=("handle",),
)
