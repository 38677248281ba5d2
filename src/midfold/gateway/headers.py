"""Which headers pass through, in either direction.

Rules of this file (RFC 9110, 7.6.1):
1. What concerns one connection (`connection` and what it lists, `transfer-encoding`, ...) ends here.
2. `host` and `content-length` are made anew. `x-midfold-*` is between the client and us, in both directions.
3. Of `accept-encoding` only what the tap can read is passed on; the answer's own encoding is never changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from midfold.gateway.owner import CREDENTIALS

Raw = tuple[bytes, bytes]

HOP_BY_HOP = frozenset(
    (
        b"connection",
        b"http2-settings",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
    )
)
_NOT_SENT = HOP_BY_HOP | {b"host", b"content-length", b"expect"}
_NOT_WITH_OUR_KEY = CREDENTIALS | {
    b"cookie",
    b"x-http-method",
    b"x-http-method-override",
    b"x-method-override",
    b"x-original-url",
    b"x-rewrite-url",
}
"""What would speak for a client beside the gateway's key, or make another request of the one that was looked at."""
OURS = b"x-midfold-"
LONGEST_SESSION = 200
"""Bytes; a longer label is none."""
READABLE = ("gzip", "deflate", "identity")


class Asked(NamedTuple):
    """What a client asks of the gateway itself."""

    session: str | None
    bypass: bool


def asked(headers: Iterable[Raw]) -> Asked:
    session, bypass = None, False
    for name, value in headers:
        if name == b"x-midfold-session":
            session = value.decode("latin-1").strip() or None if len(value) <= LONGEST_SESSION else None
        elif name == b"x-midfold-bypass":
            bypass = value.strip().lower() in (b"true", b"1", b"yes")
    return Asked(session, bypass)


def to_upstream(headers: Iterable[Raw], credential: tuple[str, str] | None = None) -> list[tuple[str, str]]:
    """The client's headers as they are sent on; with a `credential`, that instead of the client's own."""
    given = list(headers)
    dropped = _NOT_SENT | _listed(given)
    if credential is not None:
        dropped |= _NOT_WITH_OUR_KEY
    sent: list[tuple[str, str]] = []
    for name, value in given:
        if name in dropped or name.startswith(OURS):
            continue
        text = value.decode("latin-1")
        sent.append((name.decode("latin-1"), _readable(text) if name == b"accept-encoding" else text))
    if credential is not None:
        sent.append(credential)
    return sent


def _readable(encodings: str) -> str:
    kept = [one.strip() for one in encodings.split(",") if one.partition(";")[0].strip().lower() in READABLE]
    return ", ".join(kept) or "identity"


def _listed(headers: Iterable[Raw]) -> frozenset[bytes]:
    named = [value for name, value in headers if name == b"connection"]
    return frozenset(one.strip().lower() for value in named for one in value.split(b","))


def to_client(headers: Iterable[Raw], *, without_length: bool = False) -> list[Raw]:
    """The upstream's headers as the client gets them."""
    given = [(name.lower(), value) for name, value in headers]
    dropped = HOP_BY_HOP | _listed(given)
    if without_length:
        dropped |= {b"content-length", b"content-encoding"}
    return [(name, value) for name, value in given if name not in dropped and not name.startswith(OURS)]


def encoding_of(headers: Iterable[Raw]) -> str:
    return next((value.decode("latin-1").strip().lower() for name, value in headers if name == b"content-encoding"), "")
