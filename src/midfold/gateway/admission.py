"""ASGI middleware that authenticates requests and limits the size and duration of their bodies.

The body is complete and within its limits before the application sees the request.

1. Gateway keys are removed from requests here; no upstream ever receives one.
2. A refusal does not reveal how close a key was.
3. The bodies of all requests together, decoded ones included, take at most `total_bytes`; further requests get a
   503 with `retry-after`.
4. Without keys only this machine is served. `browsers` checks requests of web pages.
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
from midfold.gateway.browsers import AdmissionRefused, Browsers, answer_preflight, is_preflight, with_cors_headers
from midfold.gateway.exchange import GATEWAY_FULL, HeldBytes, Owner, owner_of
from midfold.gateway.routes import error_body, route_of

# Gateway keys are shown once, stored as hashes and compared in constant time.
#
# A key has 32 random bytes, so one round of SHA-256 is as safe as a slow hash: no dictionary attack applies.


PREFIX = "mfk_"
HASH_PATTERN = re.compile(r"sha256:[0-9a-f]{64}")
MAX_KEY_CHARS = 256
"""Maximum length of a presented key in characters; longer values are not keys."""


def new_key() -> str:
    """Return a new key for one client or team. Show it once and store its `hash_key` in the configuration."""
    return PREFIX + token_urlsafe(32)


def hash_key(key: str) -> str:
    return f"sha256:{sha256(key.encode()).hexdigest()}"


class GatewayKeys:
    """Names of the users of the gateway by the hashes of their keys."""

    def __init__(self, hashes: Mapping[str, str]) -> None:
        for name, value in hashes.items():
            if not HASH_PATTERN.fullmatch(value):
                expected = "expected sha256: and 64 hexadecimal digits"
                raise ConfigError(f"keys.{name}.hash: {expected}; `midfold keys new {name}` creates one")
        self._entries = tuple((name, value.encode()) for name, value in hashes.items())
        self._hashes = frozenset(hashes.values())

    def __bool__(self) -> bool:
        return bool(self._entries)

    def has(self, text: str) -> bool:
        """Return whether a text is one of the keys. For removing keys from requests only, never for authentication."""
        return 0 < len(text) <= MAX_KEY_CHARS and hash_key(text) in self._hashes

    def find_name(self, presented: str | None) -> str | None:
        """Return the name that a key belongs to. Compare all entries in constant time."""
        if presented is None or len(presented) > MAX_KEY_CHARS:
            presented = ""
        given = hash_key(presented).encode()
        found: str | None = None
        for name, value in self._entries:
            if hmac.compare_digest(given, value):
                found = name
        return found


# Removal of gateway keys from requests that are forwarded.
#
# 1. A header that contains a key is dropped, whether the key is bare, after a scheme, a password, in a cookie or
#    percent-encoded.
# 2. A URL that contains one is refused: it would have to be rewritten, and URLs end up in logs.


_PREFIX = PREFIX.encode()
_KEY_PATTERN = re.compile(rb"(?=(%b[A-Za-z0-9_-]{43}))" % _PREFIX)
_HEADERS_WITHOUT_KEYS = frozenset(
    (b"accept", b"accept-encoding", b"connection", b"content-length", b"content-type", b"host")
)
"""Headers whose whole value is never a key."""
MAX_KEY_CANDIDATES = 64
"""Maximum key candidates checked in one header value; a header with more is dropped."""
MAX_DECODINGS = 3
"""Maximum rounds of percent-decoding of a value."""


def without_keys(headers: list[Header], keys: GatewayKeys) -> list[Header]:
    """Return the headers that do not contain a gateway key."""
    return [pair for pair in headers if not _has_key(*pair, keys)]


def url_contains_key(path: bytes, query: bytes, keys: GatewayKeys) -> bool:
    """Return whether the path or the query contains a gateway key."""
    if _has_token(path, keys) or _has_token(query, keys):
        return True
    values = [piece.partition(b"=")[2].replace(b"+", b" ") for piece in query.split(b"&", MAX_KEY_CANDIDATES)]
    return any(_is_key(text, keys) for value in values if value for text in _decodings(value))


def _has_key(name: bytes, value: bytes, keys: GatewayKeys) -> bool:
    if _has_token(value, keys):
        return True
    return name not in _HEADERS_WITHOUT_KEYS and any(_is_key(one, keys) for one in _key_candidates(name, value))


def _has_token(value: bytes, keys: GatewayKeys) -> bool:
    """Return whether a value contains one of the gateway's keys, recognised by its prefix."""
    for text in _decodings(value):
        if _PREFIX in text:
            found = _KEY_PATTERN.findall(text)
            if len(found) > MAX_KEY_CANDIDATES or any(_is_key(one, keys) for one in found):
                return True
    return False


def _decodings(value: bytes) -> Iterator[bytes]:
    yield value
    for _ in range(MAX_DECODINGS):
        if b"%" not in value:
            return
        value = unquote_to_bytes(value)
        yield value


def _key_candidates(name: bytes, value: bytes) -> Iterator[bytes]:
    """Yield parts of a header value that may be a key without the usual prefix."""
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
        yield from (pair.partition(b"=")[2].strip().strip(b'"') for pair in value.split(b";", MAX_KEY_CANDIDATES))


def _is_key(text: bytes, keys: GatewayKeys) -> bool:
    return keys.has(text.decode("latin-1"))


# Release of memory after large requests.
#
# glibc keeps freed memory in one arena per thread; after a few large bodies that adds up to gigabytes. With glibc,
# large blocks get their own pages, and `malloc_trim` runs shortly after a large request. With other C libraries this
# does nothing.


TRIM_MIN_BYTES = 2_000_000
"""Minimum bytes of a request body after which memory is trimmed."""
TRIM_SECONDS = (2.0, *(4.0,) * 10)
"""Pauses before each trim after a large request: threads may work on it for a while after its client has gone."""
M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 1 << 20


class MemoryTrimmer:
    """Callable that takes the size of each finished body and trims memory after large ones."""

    def __init__(self) -> None:
        self._next: asyncio.TimerHandle | None = None
        self._pauses: Iterator[float] = iter(())

    def __call__(self, size: int) -> None:
        """Note that a request with a body of this size has ended."""
        if size < TRIM_MIN_BYTES:
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
        asyncio.get_running_loop().run_in_executor(None, trim_memory)
        self._wait()


def trim_memory() -> None:
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _libc() -> Any:
    """Return the C library if it is glibc, else None."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
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
MAX_INLINE_JOIN_BYTES = 1_000_000
"""Maximum bytes of a body that is joined on the event loop; larger ones are joined in a thread."""


class AdmissionLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits of one request body and of all bodies together."""

    body_bytes: int = 64 * 1024 * 1024
    body_seconds: float = 60.0
    total_bytes: int = 512 * 1024 * 1024


OPEN_PATHS = frozenset({"/healthz", "/readyz"})
"""Paths that need no key: that the gateway is alive is not a secret."""


class Admission:
    """ASGI middleware that passes on a request with its body read and its owner known, or refuses it.

    The owner is `scope["state"]["owner"]`; its name is empty if the gateway has no keys.
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
        self._trim = MemoryTrimmer()

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
            send = send if page is None else with_cors_headers(page, send)
            await self._admit(scope, receive, send, body)
        except AdmissionRefused as refused:
            body.pieces.clear()
            if self.refused is not None:
                self.refused(refused.status)
            await _send_refusal(scope, send, refused)
        finally:
            self._release(body.size)

    async def _admit(self, scope: Scope, receive: Receive, send: Send, body: _Body) -> None:
        owner, headers = self._owner(scope)
        await self._read_within(scope, receive, body)
        inner = {**scope, "headers": headers, "state": {**scope.get("state", {}), "owner": owner}}
        whole = [body.whole() if body.size <= MAX_INLINE_JOIN_BYTES else await asyncio.to_thread(body.whole)]
        await self.app(inner, _BodyReplay(whole, receive), send)

    def _release(self, size: int) -> None:
        self.held.release(size)
        self._trim(size)

    def _owner(self, scope: Scope) -> tuple[Owner, list[Header]]:
        headers: list[Header] = list(scope["headers"])
        if not self.keys:
            return scope.get("state", {}).get("owner") or owner_of(headers), headers
        presented, rest = presented_key(headers)
        name = self.keys.find_name(presented)
        if name is None:
            if scope["path"] in OPEN_PATHS:
                return Owner(), headers
            raise AdmissionRefused(401, "this gateway requires a key: send it as x-midfold-key or as the API key")
        if url_contains_key(scope.get("raw_path") or b"", scope.get("query_string", b""), self.keys):
            raise AdmissionRefused(400, "the URL contains a gateway key; send it in the header x-midfold-key instead")
        return Owner(name), without_keys(rest, self.keys)

    async def _read_within(self, scope: Scope, receive: Receive, body: _Body) -> None:
        declared = _declared_length(scope["headers"])
        if declared > self.limits.body_bytes:
            raise AdmissionRefused(413, f"the body has {declared:,} bytes; the limit is {self.limits.body_bytes:,}")
        try:
            async with asyncio.timeout(self.limits.body_seconds):
                await self._read(receive, body, declared)
        except TimeoutError:
            seconds = self.limits.body_seconds
            raise AdmissionRefused(408, f"the body did not arrive within {seconds:g} seconds") from None

    async def _read(self, receive: Receive, body: _Body, declared: int) -> None:
        while True:
            if self.held.total + declared - body.size > self.held.limit:
                raise AdmissionRefused(503, GATEWAY_FULL)
            event = await receive()
            if event["type"] == "http.disconnect":
                raise AdmissionRefused(499, "the client disconnected")
            piece = event.get("body", b"")
            self.held.add(len(piece))
            body.add(piece)
            if body.size > self.limits.body_bytes:
                raise AdmissionRefused(413, f"the body is larger than the limit of {self.limits.body_bytes:,} bytes")
            if not event.get("more_body", False):
                return


def presented_key(headers: list[Header]) -> tuple[str | None, list[Header]]:
    """Return the gateway key of a request, and the headers without it.

    A client that sends `x-midfold-key` keeps its provider API key. Otherwise its API key is the gateway key, and
    the provider's key comes from the gateway's configuration.
    """
    for wanted in (OWN_HEADER, b"x-api-key", b"authorization"):
        for name, value in headers:
            if name == wanted:
                key = key_in_header(value.decode("latin-1"))
                gone = (OWN_HEADER,) if wanted == OWN_HEADER else (b"x-api-key", b"authorization")
                return key, [pair for pair in headers if pair[0] not in gone]
    return None, headers


def key_in_header(text: str) -> str:
    """Return the key in a header value: bare, a bearer token, or the password of basic authentication."""
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
    """Parts of a request body that have arrived."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.size = 0

    def add(self, piece: bytes) -> None:
        self.pieces.append(piece)
        self.size += len(piece)

    def whole(self) -> bytes:
        """Return the body as one bytes object and drop the parts."""
        pieces, self.pieces = self.pieces, []
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


class _BodyReplay:
    """ASGI receive callable that returns the body once and drops it, then forwards the client's events."""

    def __init__(self, body: list[bytes], receive: Receive) -> None:
        self._body, self._receive = body, receive

    async def __call__(self) -> Event:
        if self._body:
            return {"type": "http.request", "body": self._body.pop(), "more_body": False}
        return await self._receive()


async def _send_refusal(scope: Scope, send: Send, refused: AdmissionRefused) -> None:
    body = error_body(route_of(scope["method"], scope["path"]).wire, refused.status, str(refused))
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    headers.append((b"connection", b"close"))
    if refused.status == 503:
        headers.append((b"retry-after", b"1"))
    if refused.status == 401 and scope["method"] == "GET":
        headers.append((b"www-authenticate", b'Basic realm="midfold: any name, the key as the password"'))
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
