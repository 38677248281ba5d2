"""The agent's own past: what was folded can be found and read again."""

from __future__ import annotations

from collections.abc import Callable

from midfold.agent.shapes import ToolSpec
from midfold.agent.tools.base import Tool
from midfold.core.message import Message, ToolCall
from midfold.errors import ToolRefused
from midfold.session import Session

MOST_HITS = 10


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
        hits = self._session().search(query, MOST_HITS)
        lines = [f"{hit.handle} (message {hit.position}, {hit.role}): {' '.join(hit.text.split())}" for hit in hits]
        return "\n".join(lines) or "nothing found; all words must occur: try fewer, or a part of a name"

    def unfold(self, handle: str, start: int = 0) -> str:
        """The originals as text, from a character on; with a last line that says how to go on."""
        session = self._session()
        originals = session.store.unfold(session.name, handle.strip())
        text = "\n\n".join(map(_told, originals))
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
