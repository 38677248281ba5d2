"""Keys of the gateway stay with the gateway: wherever in a request one stands, it is not sent on.

Rules of this file:
1. A header with a key of ours is dropped: bare, behind a scheme, as a password, in a cookie, percent-encoded.
2. An address with one is refused: it would have to be changed, and addresses end up in logs.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode
from collections.abc import Iterator
from urllib.parse import unquote_to_bytes

from midfold.gateway.keys import PREFIX, Keys

Header = tuple[bytes, bytes]

_PREFIX = PREFIX.encode()
_OURS = re.compile(rb"(?=(%b[A-Za-z0-9_-]{43}))" % _PREFIX)
_PLAIN = frozenset((b"accept", b"accept-encoding", b"connection", b"content-length", b"content-type", b"host"))
"""Headers whose values are never a key as a whole."""
MOST_LOOKED_AT = 64
"""What could be keys in one value; one that has more is not sent on."""
DEEPEST = 3
"""How often a value is percent-decoded."""


def without_keys(headers: list[Header], keys: Keys) -> list[Header]:
    """The headers that have no key of the gateway in them."""
    return [pair for pair in headers if not _has_key(*pair, keys)]


def is_in_address(path: bytes, query: bytes, keys: Keys) -> bool:
    """Whether a key of the gateway stands in a path or a query."""
    if _has_token(path, keys) or _has_token(query, keys):
        return True
    values = [piece.partition(b"=")[2].replace(b"+", b" ") for piece in query.split(b"&", MOST_LOOKED_AT)]
    return any(_is_key(text, keys) for value in values if value for text in _decodings(value))


def _has_key(name: bytes, value: bytes, keys: Keys) -> bool:
    if _has_token(value, keys):
        return True
    return name not in _PLAIN and any(_is_key(one, keys) for one in _wholes(name, value))


def _has_token(value: bytes, keys: Keys) -> bool:
    """Whether something in a value looks like one of our keys and is one."""
    for text in _decodings(value):
        if _PREFIX in text:
            found = _OURS.findall(text)
            if len(found) > MOST_LOOKED_AT or any(_is_key(one, keys) for one in found):
                return True
    return False


def _decodings(value: bytes) -> Iterator[bytes]:
    yield value
    for _ in range(DEEPEST):
        if b"%" not in value:
            return
        value = unquote_to_bytes(value)
        yield value


def _wholes(name: bytes, value: bytes) -> Iterator[bytes]:
    """What of a header may be a key that does not look like one."""
    yield value.strip()
    scheme, _, rest = value.strip().partition(b" ")
    if scheme.lower() == b"basic":
        try:
            yield from b64decode(rest).split(b":", 1)
        except (binascii.Error, ValueError):
            return
    elif rest:
        yield rest.strip()
    if name == b"cookie":
        yield from (pair.partition(b"=")[2].strip().strip(b'"') for pair in value.split(b";", MOST_LOOKED_AT))


def _is_key(text: bytes, keys: Keys) -> bool:
    return keys.has(text.decode("latin-1"))
