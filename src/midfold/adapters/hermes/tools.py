"""The two tools an agent gets: search in what was folded, and unfold it by handle.

Rules of this file:
1. An answer is a JSON text and always bounded; what did not fit can be asked for.
2. Snippets are redacted. What is unfolded is the original, exactly: it was in the conversation before.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from midfold.fold.archive import PREFIX
from midfold.transcript.message import Message, Text, ToolCall, ToolResult

SEARCH, UNFOLD = "context_search", "context_unfold"
MOST_HITS, USUAL_HITS = 50, 10
SNIPPET = 160
"""Characters shown on each side of a hit."""
PAGE = 20_000
"""Characters of originals in one answer."""
Entries = Mapping[str, tuple[Message, ...]]

SCHEMAS: tuple[dict[str, Any], ...] = (
    {
        "name": SEARCH,
        "description": (
            "Search earlier turns of this conversation that were folded away to save context space. Finds a phrase, "
            "or else all the words anywhere in one message. Gives snippets and handles for context_unfold."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "Phrase or words to look for; case does not matter."},
                "limit": {"type": "integer", "description": f"Most hits to return (default {USUAL_HITS})."},
            },
            "required": ["query"],
        },
    },
    {
        "name": UNFOLD,
        "description": (
            "Show the original messages behind a handle such as mf-0123456789ab, as they were before they were folded, "
            "digested or spilled. Long originals come in pages: pass the start and offset of `next` for more."
        ),
        "parameters": {
            "type": "object",
            "properties": {
                "handle": {"type": "string", "description": "The handle, as a summary, digest or search hit names it."},
                "start": {"type": "integer", "description": "First message to show (default 0)."},
                "offset": {"type": "integer", "description": "Characters of that message to skip (default 0)."},
            },
            "required": ["handle"],
        },
    },
)


def call(name: str, arguments: Any, entries: Entries, redact: Callable[[str], str]) -> str:
    """Runs a tool; the answer is JSON, also where it is an error."""
    given = arguments if isinstance(arguments, Mapping) else {}
    if name == SEARCH:
        answer = search(entries, str(given.get("query") or ""), _number(given, "limit", USUAL_HITS), redact)
    elif name == UNFOLD:
        handle = str(given.get("handle") or "").strip()
        answer = unfold(entries, handle, _number(given, "start", 0), _number(given, "offset", 0))
    else:
        answer = {"error": f"unknown tool {name[:80]!r}; there are {SEARCH} and {UNFOLD}"}
    return json.dumps(answer, ensure_ascii=False)


def search(entries: Entries, query: str, limit: int, redact: Callable[[str], str]) -> dict[str, Any]:
    """Messages with the phrase, the newest folds first; messages with all of its words if no message has the phrase."""
    wanted = " ".join(query.lower().split())
    if not wanted:
        return {"error": "the query is empty"}
    limit = max(1, min(limit, MOST_HITS))
    words = wanted.split()
    exact = list(_hits(entries, lambda text: text.find(wanted), limit, redact))
    found = exact or list(_hits(entries, lambda text: _all_words(text, words), limit, redact))
    return {"query": query, "matched": "phrase" if exact else "words", "hits": found, "folds": len(entries)}


def _all_words(text: str, words: list[str]) -> int:
    places = [text.find(word) for word in words]
    return min(places) if min(places) >= 0 else -1


def _hits(
    entries: Entries, find: Callable[[str], int], limit: int, redact: Callable[[str], str]
) -> Iterator[dict[str, Any]]:
    seen: set[bytes] = set()
    left = limit
    for handle in reversed(list(entries)):
        for position, message in enumerate(entries[handle]):
            text = shown(message)
            place = find(text.lower())
            if place < 0 or message.digest in seen:
                continue
            seen.add(message.digest)
            # Redacted before it is cut: half a credential is not recognised as one.
            snippet = redact(text[max(place - 4 * SNIPPET, 0) : place + 4 * SNIPPET])
            middle = min(place, 4 * SNIPPET)
            snippet = snippet[max(middle - SNIPPET, 0) : middle + SNIPPET]
            yield {"handle": handle, "message": position, "role": message.role, "snippet": snippet}
            left -= 1
            if left == 0:
                return


def unfold(entries: Entries, handle: str, start: int, offset: int) -> dict[str, Any]:
    """The originals from `start` on, as far as one page goes."""
    handle = handle if handle.startswith(PREFIX) else PREFIX + handle
    if handle not in entries:
        return {"error": f"nothing is known under the handle {handle[:80]}", "handles": list(entries)[-20:]}
    messages = entries[handle]
    answer: dict[str, Any] = {"handle": handle, "messages": [], "total": len(messages)}
    room = PAGE
    for index in range(max(start, 0), len(messages)):
        text = shown(messages[index])
        skip = max(offset, 0) if index == start else 0
        piece = text[skip : skip + room]
        answer["messages"].append({"message": index, "role": messages[index].role, "text": piece})
        room -= len(piece)
        if skip + len(piece) < len(text):
            answer["next"] = {"start": index, "offset": skip + len(piece)}
            break
        if room <= 0 and index + 1 < len(messages):
            answer["next"] = {"start": index + 1, "offset": 0}
            break
    return answer


def shown(message: Message) -> str:
    """A message as text: what was said, called and answered."""
    pieces: list[str] = []
    for part in message.parts:
        if isinstance(part, Text | ToolResult):
            pieces.append(part.text)
        elif isinstance(part, ToolCall):
            pieces.append(f"{part.name}({part.arguments})")
    return "\n".join(pieces)


def _number(given: Mapping[str, Any], key: str, default: int) -> int:
    value = given.get(key)
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else default
