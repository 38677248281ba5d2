"""Keys of the gateway: made once, stored only as hashes, compared without telling how close a guess was.

A key is 32 random bytes, so one round of SHA-256 is as good as a slow hash: there is nothing to guess from a list.
"""

from __future__ import annotations

import hmac
import re
from collections.abc import Mapping
from hashlib import sha256
from secrets import token_urlsafe

from midfold.errors import ConfigError

PREFIX = "mfk_"
HASH = re.compile(r"sha256:[0-9a-f]{64}")
LONGEST = 256
"""Bytes of a presented key that are looked at: a longer one is not a key."""


def new_key() -> str:
    """A key for one client or team. It is shown once; `hashed` of it goes into the configuration."""
    return PREFIX + token_urlsafe(32)


def hashed(key: str) -> str:
    return f"sha256:{sha256(key.encode()).hexdigest()}"


class Keys:
    """Who may use the gateway: names by the hashes of their keys."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        for name, value in hashes.items():
            if not HASH.fullmatch(value):
                expected = "expected sha256: and 64 hexadecimal digits"
                raise ConfigError(f"keys.{name}.hash: {expected}; `midfold keys new {name}` makes one")
        self._entries = tuple((name, value.encode()) for name, value in hashes.items())
        self._hashes = frozenset(hashes.values())

    def __bool__(self) -> bool:
        return bool(self._entries)

    def has(self, text: str) -> bool:
        """Whether a text is one of the keys: to keep it back, never to let somebody in."""
        return 0 < len(text) <= LONGEST and hashed(text) in self._hashes

    def who(self, presented: str | None) -> str | None:
        """The name that the key belongs to. Every entry is compared, in constant time, whatever was found before."""
        if presented is None or len(presented) > LONGEST:
            presented = ""
        given = hashed(presented).encode()
        found: str | None = None
        for name, value in self._entries:
            if hmac.compare_digest(given, value):
                found = name
        return found
