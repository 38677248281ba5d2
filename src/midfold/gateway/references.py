"""Ids of a provider's things inside a request: files, stored responses, conversations, vector stores.

Rules of this file:
1. Most requests name none and are only searched for a few words.
2. Keys are found however they are escaped and however often they stand there: which of two counts is the provider's.
3. What a model or a tool says (a tool's input, a schema, metadata) is data to the provider, and no reference.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, NamedTuple

from midfold.errors import TranscriptError

WORDS = (b'"file_id', b'"input_file_id"')
WORDS_OF_RESPONSES = (*WORDS, b'"previous_response_id"', b'"conversation"', b'"vector_store_ids"')
"""With the quote before them: inside a text it would be escaped, and the word no key."""
_ESCAPED_LETTER = re.compile(rb"\\u00[4-7]")
AT_THE_TOP = frozenset(("previous_response_id", "conversation", "input_file_id"))
ANYWHERE = frozenset(("file_id", "file_ids", "vector_store_ids"))
OPAQUE = frozenset(("input_schema", "parameters", "schema", "arguments", "metadata"))


class Reference(NamedTuple):
    """The key of an id, and the id."""

    key: str
    id: str


class _Object(list[tuple[str, Any]]):
    """An object of JSON with all its pairs."""


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    # A function of Python's own: between two of its calls other threads get their turn.
    return _Object(pairs)


def may_have_references(body: bytes, path: str) -> bool:
    """Whether a body is worth reading. JSON in another encoding than UTF-8 hides every word, and has zero bytes."""
    words = WORDS_OF_RESPONSES if "/responses" in path else WORDS
    if any(word in body for word in words) or b"\0" in body[:8]:
        return True
    return b"\\u00" in body and _ESCAPED_LETTER.search(body) is not None


def references(body: bytes) -> list[Reference]:
    """The ids that a provider would look up. Raises TranscriptError for a body that cannot be read."""
    try:
        value = json.loads(body.decode(), object_pairs_hook=_object)
    except (ValueError, RecursionError):
        raise TranscriptError("the request is not JSON in UTF-8, and what it refers to cannot be known") from None
    if not isinstance(value, _Object):
        return []
    top = [Reference(key, one) for key, held in value if key in AT_THE_TOP for one in _ids(held)]
    return [*top, *_inside(value)]


def _inside(whole: Any) -> Iterator[Reference]:
    waiting = [whole]
    while waiting:
        value = waiting.pop()
        if not isinstance(value, _Object):
            waiting += [one for one in value if isinstance(one, list)]
            continue
        is_call = _is_call(value)
        for key, held in value:
            if key in ANYWHERE:
                yield from (Reference(key, one) for one in _ids(held))
            elif isinstance(held, list) and key not in OPAQUE and not (is_call and key == "input"):
                waiting.append(held)


def _is_call(value: _Object) -> bool:
    """Whether this is a call of a tool, whose input is the model's."""
    kinds = [held for key, held in value if key == "type"]
    return bool(kinds) and all(isinstance(kind, str) and kind.endswith("tool_use") for kind in kinds)


def _ids(value: Any) -> list[str]:
    """A name, names in a list, or an object with an id."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, _Object):
        return [held for key, held in value if key == "id" and isinstance(held, str)]
    return [one for one in value if isinstance(one, str)] if isinstance(value, list) else []
