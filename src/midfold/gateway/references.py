"""Ids of a provider's things inside a request: files, stored responses, conversations, vector stores.

Rules of this file:
1. Most requests name none and are only searched for a few words.
2. Keys are found however they are escaped, in whichever case, and however often they stand there: which of them count
   is the provider's.
3. What a model or a tool says (a tool's input, a schema, metadata) is data to the provider, and no reference.
4. Nothing here keeps the interpreter for itself: a body is searched in pieces, and read if its values are few enough.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import Any, NamedTuple

from midfold.errors import MidfoldError, TranscriptError
from midfold.gateway.peek import structural_values

WORDS = (b'"file_id"', b'"file_ids"', b'"input_file_id"')
WORDS_OF_RESPONSES = (*WORDS, b'"previous_response_id"', b'"conversation"', b'"vector_store_ids"')
"""With their quotes: inside a text the second one is escaped, and the word no key."""
_ESCAPED_LETTER = re.compile(rb"\\u(?:00[4-7]|017f)")
LONG_S = "\u017f".encode()
"""The one letter besides a capital that some parsers (Go's) take for one of ours."""
PIECE, OVERLAP = 1 << 20, 64
"""Bytes that are searched at once, and more than any word has."""
MOST_VALUES = 400_000
"""In a body that is read."""
AT_THE_TOP = frozenset(("previous_response_id", "conversation", "input_file_id"))
ANYWHERE = frozenset(("file_id", "file_ids", "vector_store_ids"))
OPAQUE = frozenset(("input_schema", "parameters", "schema", "arguments", "metadata"))


class Reference(NamedTuple):
    """The key of an id, and the id."""

    key: str
    id: str


class TooMuch(MidfoldError):
    """The request refers to ids of the provider, and has too many values to be checked for whose they are."""

    status = 413


class _Object(list[tuple[str, Any]]):
    """An object of JSON with all its pairs."""


def _object(pairs: list[tuple[str, Any]]) -> _Object:
    """A function of Python's, not the class: others have their turn between two objects."""
    return _Object((key.casefold(), held) for key, held in pairs)


def references_in(body: bytes, path: str) -> list[Reference]:
    """The ids that a provider would look up. Raises TranscriptError or TooMuch for a body that cannot be read."""
    if not is_object(body):
        raise TranscriptError("the request is not a JSON object in UTF-8, and what it refers to cannot be known")
    return references(body) if may_have_references(body, path) else []


def is_object(body: bytes) -> bool:
    """Whether a body may be a JSON object: forms, and other encodings, hide every word."""
    head = body[:PIECE]
    return head.removeprefix(BOM_UTF8).lstrip()[:1] == b"{" and b"\0" not in head


def may_have_references(body: bytes, path: str) -> bool:
    """Whether a body is worth reading."""
    words = (*(WORDS_OF_RESPONSES if "/responses" in path else WORDS), LONG_S)
    return any(
        any(word in piece for word in words) or (b"\\u" in piece and _ESCAPED_LETTER.search(piece) is not None)
        for piece in (body[start : start + PIECE + OVERLAP].lower() for start in range(0, len(body), PIECE))
    )


def references(body: bytes) -> list[Reference]:
    """All of them in a JSON object."""
    if structural_values(body, MOST_VALUES) >= MOST_VALUES:
        raise TooMuch
    try:
        value = json.loads(body.decode("utf-8-sig"), object_pairs_hook=_object)
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
        is_call = value is not whole and _is_call(value)
        for key, held in value:
            if key in ANYWHERE:
                yield from (Reference(key, one) for one in _ids(held))
            elif key == "variables" and isinstance(held, _Object):
                waiting += [one for _, one in held if isinstance(one, list)]  # their names are the client's
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
