"""The door: who may come in, how much they may bring, and how long they may take to bring it.

An ASGI application around the gateway's own. A request's body is complete, and within its limits, before anything
looks at it. Rules of this file:
1. A key of the gateway is taken off the request here; no upstream ever sees one.
2. A refusal says what is wrong and never how close a key was.
3. All requests together hold at most `total_bytes` of bodies, what was decoded included; one more is asked to come
   back.
4. Without keys only this machine is listened to. Pages that a browser shows are `browsers`' to judge.
"""

from __future__ import annotations

import asyncio
import binascii
import hmac
import re
import sys
from base64 import b64decode
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from functools import cache
from hashlib import sha256
from secrets import token_urlsafe
from typing import Any
from urllib.parse import unquote_to_bytes

import msgspec

from midfold.errors import ConfigError
from midfold.gateway.browsers import AdmissionRefused, Browsers, answer_preflight, is_preflight, readable_by
from midfold.gateway.exchange import FULL, HeldBytes, Owner, owner_of
from midfold.gateway.routes import error_body, route_of

# Keys of the gateway: made once, stored only as hashes, compared without telling how close a guess was.
#
# A key is 32 random bytes, so one round of SHA-256 is as good as a slow hash: there is nothing to guess from a list.


PREFIX = "mfk_"
HASH = re.compile(r"sha256:[0-9a-f]{64}")
LONGEST = 256
"""Bytes of a presented key that are looked at: a longer one is not a key."""


def new_key() -> str:
    """A key for one client or team. It is shown once; `hash_key` of it goes into the configuration."""
    return PREFIX + token_urlsafe(32)


def hash_key(key: str) -> str:
    return f"sha256:{sha256(key.encode()).hexdigest()}"


class GatewayKeys:
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
        return 0 < len(text) <= LONGEST and hash_key(text) in self._hashes

    def who(self, presented: str | None) -> str | None:
        """The name that the key belongs to. Every entry is compared, in constant time, whatever was found before."""
        if presented is None or len(presented) > LONGEST:
            presented = ""
        given = hash_key(presented).encode()
        found: str | None = None
        for name, value in self._entries:
            if hmac.compare_digest(given, value):
                found = name
        return found


# Keys of the gateway stay with the gateway: wherever in a request one stands, it is not sent on.
#
# Rules:
# 1. A header with a key of ours is dropped: bare, behind a scheme, as a password, in a cookie, percent-encoded.
# 2. An address with one is refused: it would have to be changed, and addresses end up in logs.


_PREFIX = PREFIX.encode()
_OURS = re.compile(rb"(?=(%b[A-Za-z0-9_-]{43}))" % _PREFIX)
_PLAIN = frozenset((b"accept", b"accept-encoding", b"connection", b"content-length", b"content-type", b"host"))
"""Headers whose values are never a key as a whole."""
MOST_LOOKED_AT = 64
"""What could be keys in one value; one that has more is not sent on."""
DEEPEST = 3
"""How often a value is percent-decoded."""


def without_keys(headers: list[Header], keys: GatewayKeys) -> list[Header]:
    """The headers that have no key of the gateway in them."""
    return [pair for pair in headers if not _has_key(*pair, keys)]


def is_in_address(path: bytes, query: bytes, keys: GatewayKeys) -> bool:
    """Whether a key of the gateway stands in a path or a query."""
    if _has_token(path, keys) or _has_token(query, keys):
        return True
    values = [piece.partition(b"=")[2].replace(b"+", b" ") for piece in query.split(b"&", MOST_LOOKED_AT)]
    return any(_is_key(text, keys) for value in values if value for text in _decodings(value))


def _has_key(name: bytes, value: bytes, keys: GatewayKeys) -> bool:
    if _has_token(value, keys):
        return True
    return name not in _PLAIN and any(_is_key(one, keys) for one in _wholes(name, value))


def _has_token(value: bytes, keys: GatewayKeys) -> bool:
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


def _is_key(text: bytes, keys: GatewayKeys) -> bool:
    return keys.has(text.decode("latin-1"))


# Memory that large requests are done with goes back to the system.
#
# The C library keeps what was freed for the next request, in as many places as there were threads: after a few large
# bodies that is gigabytes which nobody uses. Where it is the GNU one, large pieces get pages of their own, and some
# time after a large request everything unused is given back. Elsewhere nothing is done.


LARGE_TO_RETURN = 2_000_000
"""Bytes of a request after which it is worth the while."""
TRIM_SECONDS = (2.0, *(4.0,) * 10)
"""Pauses before each trim after a large request: threads may work on it for a while after its client has gone."""
M_MMAP_THRESHOLD = -3
OWN_PAGES = 1 << 20


class MemoryTrimmer:
    """Returns the memory of large requests to the system, some time after they have ended."""

    def __init__(self) -> None:
        self._next: asyncio.TimerHandle | None = None
        self._pauses: Iterator[float] = iter(())

    def __call__(self, size: int) -> None:
        """Note that a request with a body of this size has ended."""
        if size < LARGE_TO_RETURN:
            return
        soon = asyncio.get_running_loop().time() + TRIM_SECONDS[0]
        self._pauses = iter(TRIM_SECONDS)
        if self._next is None or self._next.when() > soon:
            self._wait()

    def _wait(self) -> None:
        """Schedule the next trim in place of any other; none after the last pause."""
        if self._next is not None:
            self._next.cancel()
        pause = next(self._pauses, None)
        self._next = None if pause is None else asyncio.get_running_loop().call_later(pause, self._trim)

    def _trim(self) -> None:
        asyncio.get_running_loop().run_in_executor(None, give_back)
        self._wait()


def give_back() -> None:
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _libc() -> Any:
    """The C library, if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, OWN_PAGES)
        return libc if hasattr(libc, "malloc_trim") else None
    except (OSError, AttributeError):
        return None


Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

OWN_HEADER = b"x-midfold-key"
BEARER, BASIC = "bearer ", "basic "
LARGE = 1_000_000
"""Bytes of a body that are put together in a thread."""


class AdmissionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What one request, and all of them together, may cost."""

    body_bytes: int = 64 * 1024 * 1024
    body_seconds: float = 60.0
    total_bytes: int = 512 * 1024 * 1024


OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""They need no key: whether the gateway lives is not a secret."""


class Admission:
    """Lets a request through with its body read and its owner known, or answers it.

    The owner is `scope["state"]["owner"]`; its name is empty when the gateway has no keys.
    """

    def __init__(
        self,
        app: App,
        keys: GatewayKeys,
        limits: AdmissionLimits | None = None,
        refused: Callable[[int], None] | None = None,
        browsers: Browsers | None = None,
        held: HeldBytes | None = None,
    ) -> None:
        self.app, self.keys, self.limits = app, keys, limits or AdmissionLimits()
        self.refused = refused
        self.browsers = browsers or Browsers(keyed=bool(keys))
        self.held = held or HeldBytes(self.limits.total_bytes)
        self.slack = MemoryTrimmer()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        body = _Body()
        try:
            page = None
            if scope["path"] not in OPEN_PATHS:
                page = self.browsers.check(scope["method"], scope["headers"])
            if page is not None and is_preflight(scope["method"], scope["headers"]):
                await answer_preflight(page, scope["headers"], send)
                return
            send = send if page is None else readable_by(page, send)
            await self._admit(scope, receive, send, body)
        except AdmissionRefused as refused:
            body.pieces.clear()
            if self.refused is not None:
                self.refused(refused.status)
            await _answer(scope, send, refused)
        finally:
            self._let_go(body.size)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, body: _Body) -> None:
        owner, headers = self._owner(scope)
        await self._read_within(scope, receive, body)
        inner = {**scope, "headers": headers, "state": {**scope.get("state", {}), "owner": owner}}
        whole = [body.whole() if body.size <= LARGE else await asyncio.to_thread(body.whole)]
        await self.app(inner, _BodyReplay(whole, receive), send)

    def _let_go(self, size: int) -> None:
        self.held.release(size)
        self.slack(size)

    def _owner(self, scope: Scope) -> tuple[Owner, list[Header]]:
        headers: list[Header] = list(scope["headers"])
        if not self.keys:
            return scope.get("state", {}).get("owner") or owner_of(headers), headers
        presented, rest = presented_key(headers)
        name = self.keys.who(presented)
        if name is None:
            if scope["path"] in OPEN_PATHS:
                return Owner(), headers
            raise AdmissionRefused(
                401, "this gateway asks for a key of its own: send it as x-midfold-key, or as the API key"
            )
        if is_in_address(scope.get("raw_path") or b"", scope.get("query_string", b""), self.keys):
            raise AdmissionRefused(
                400, "a key of this gateway stands in the address; it belongs in the header x-midfold-key"
            )
        return Owner(name), without_keys(rest, self.keys)

    async def _read_within(self, scope: Scope, receive: Receive, body: _Body) -> None:
        declared = _declared_length(scope["headers"])
        if declared > self.limits.body_bytes:
            raise AdmissionRefused(
                413, f"the body has {declared:,} bytes; this gateway takes {self.limits.body_bytes:,}"
            )
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                await self._read(receive, body, declared)
        except TimeoutError:
            seconds = self.limits.body_seconds
            raise AdmissionRefused(408, f"the body did not arrive within {seconds:g} seconds") from None

    async def _read(self, receive: Receive, body: _Body, declared: int) -> None:
        while True:
            if self.held.total + declared - body.size > self.held.limit:
                raise AdmissionRefused(503, FULL)
            event = await receive()
            if event["type"] == "http.disconnect":
                raise AdmissionRefused(499, "the client went away")
            piece = event.get("body", b"")
            self.held.add(len(piece))
            body.add(piece)
            if body.size > self.limits.body_bytes:
                raise AdmissionRefused(
                    413, f"the body is larger than the {self.limits.body_bytes:,} bytes this gateway takes"
                )
            if not event.get("more_body", False):
                return


def presented_key(headers: list[Header]) -> tuple[str | None, list[Header]]:
    """The key of the gateway, and the headers without it.

    With `x-midfold-key` the provider's own key stays where it is; without, the API key is the gateway's, and the
    provider's comes from the gateway's configuration.
    """
    for wanted in (OWN_HEADER, b"x-api-key", b"authorization"):
        for name, value in headers:
            if name == wanted:
                key = key_in_header(value.decode("latin-1"))
                gone = (OWN_HEADER,) if wanted == OWN_HEADER else (b"x-api-key", b"authorization")
                return key, [pair for pair in headers if pair[0] not in gone]
    return None, headers


def key_in_header(text: str) -> str:
    """The key in a header: bare, as a bearer token, or as the password that a browser asks for."""
    if text.lower().startswith(BEARER):
        return text[len(BEARER) :].strip()
    if text.lower().startswith(BASIC):
        try:
            return b64decode(text[len(BASIC) :]).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            return ""
    return text.strip()


def _declared_length(headers: list[Header]) -> int:
    for name, value in headers:
        if name == b"content-length" and value.isdigit():
            return int(value)
    return 0


class _Body:
    """What has arrived of a request."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)

    def whole(self) -> bytes:
        """In one piece; the pieces are let go."""
        pieces, self.pieces = self.pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _BodyReplay:
    """Gives the body once, which is then whoever's asked for it, and after that what the client still says."""

    def __init__(self, body: list[bytes], receive: Receive) -> None:
        self._body, self._receive = body, receive

    async def __call__(self) -> Event:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        return await self._receive()


async def _answer(scope: Scope, send: Send, refused: AdmissionRefused) -> None:
    body = error_body(route_of(scope["method"], scope["path"]).wire, refused.status, str(refused))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    if refused.status == 503:
        headers.append((b"retry-after", b"1"))
    if refused.status == 401 and scope["method"] == "GET":
        headers.append((b"www-authenticate", b'Basic realm="midfold: any name, the key as the password"'))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
