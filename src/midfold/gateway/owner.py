"""Whose a request is: the owner of everything that the gateway keeps because of it.

Rules of this file:
1. The owner is the gateway's own key by its name; without keys it is whoever has the client's credential.
2. A credential is written nowhere. In memory it is known by a hash under a secret of this process. In the store a thing
   of an owner has a name that only the same credential leads to (`bind`), which names the thing, not the owner.
3. What a client says about itself (`x-midfold-session`, `metadata.user_id`, ...) is a label and never enters here.
"""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b, sha256
from secrets import token_bytes

CREDENTIALS = frozenset((b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"))
"""Headers with which clients of providers say who they are."""
_SECRET = token_bytes(32)


class Owner:
    """`name` is the gateway key's; it is empty where the gateway has no keys."""

    def __init__(self, name: str = "", credential: bytes = b"") -> None:
        self.name = name
        self._credential = b"" if name else credential
        self._id = ""

    @property
    def id(self) -> str:
        """What tells owners apart in memory; another one in every process, and never to be written down."""
        if not self._id:
            self._id = blake2b(self._whole, key=_SECRET, digest_size=16).hexdigest()
        return self._id

    def bind(self, *parts: bytes) -> str:
        """A name for something of this owner, the same in every process, that no other owner arrives at."""
        named = blake2b(key=sha256(self._whole).digest(), digest_size=20)
        for part in parts:
            named.update(len(part).to_bytes(8, "big") + part)
        return named.hexdigest()

    @property
    def _whole(self) -> bytes:
        return b"key\0" + self.name.encode() if self.name else b"credential\0" + self._credential


NOBODY = Owner()
"""Of requests without a credential."""


def owner_of(headers: Iterable[tuple[bytes, bytes]]) -> Owner:
    """Whoever has the credential that a client shows to its provider."""
    shown = [name + b":" + value for name, value in headers if name in CREDENTIALS]
    return Owner(credential=b"\0".join(sorted(shown))) if shown else NOBODY
