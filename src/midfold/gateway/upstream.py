"""HTTP client of the gateway.

1. Bytes are sent and received unchanged: no decompression, redirects, cookies or additional headers.
2. A connection that fails before the first byte of an answer is retried a limited number of times. An answer of any
   status is an answer; a request is never resent after its answer has begun.
3. Error messages never contain a header, a body or a key.
4. Requests go only to the configured scheme, host and port, without user information.
5. A reset does not end an answer: one without a known length ends when the upstream closes the connection cleanly. The
   gateway never offers an upgrade, so status 101 is an error.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from fnmatch import fnmatchcase
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeGuard
from urllib.parse import urlsplit
from weakref import WeakSet

from midfold.config import Config
from midfold.errors import ConfigError, Misdirected, MissingExtra, UpstreamError
from midfold.gateway.encodings import decode_body
from midfold.gateway.routes import ANTHROPIC, Raw
from midfold.lru import LRU
from midfold.transcript.message import Usage
from midfold.transcript.replies import usage_at_edges

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

    from midfold.gateway.resource_ids import IssuedIds


# Routing by model to a configured address.
#
# 1. Scheme, host and port are configured. A request adds only a path and a query.
# 2. The header of the provider's key is set by the configuration, else by the path, never by the client.


MAX_CACHED_MODELS = 1_000
X_API_KEY = "x-api-key"
ANTHROPIC_HOSTS = frozenset(("api.anthropic.com",))
"""Hosts that require `x-api-key` on routes that both vendors have."""
NO_UPSTREAM = "no upstream is configured: use --upstream URL, or set gateway.upstream or upstreams in config.yaml"


class UpstreamTarget(NamedTuple):
    """Path with a leading slash, and query, both as sent."""

    path: str
    query: str = ""


class Upstream(NamedTuple):
    """One provider. The key is never shown in `repr`."""

    base: str
    path: str
    key: str | None = None
    wire: str = "any"
    timeout: float = 600.0
    key_header: str = "auto"

    def target(self, path: str, query: bytes = b"") -> UpstreamTarget:
        """Return the target for a gateway path; /v1 is not doubled if the base includes it."""
        rest = path.removeprefix("/v1") if self.path.endswith("/v1") and path.startswith("/v1/") else path
        return UpstreamTarget(self.path + rest, query.decode("latin-1"))

    def credential(self, wire: str | None) -> tuple[str, str] | None:
        """Return the header with this upstream's key for a wire; None to send the client's own."""
        if self.key is None:
            return None
        if self._key_header(wire) == X_API_KEY:
            return X_API_KEY, self.key
        return "authorization", f"Bearer {self.key}"

    def _key_header(self, wire: str | None) -> str:
        if self.key_header != "auto":
            return self.key_header
        spoken = self.wire if self.wire != "any" else wire
        if spoken is None and urlsplit(self.base).hostname in ANTHROPIC_HOSTS:
            spoken = ANTHROPIC
        return X_API_KEY if spoken == ANTHROPIC else "bearer"

    @property
    def place(self) -> str:
        """Return the host, which may appear in errors and records."""
        return urlsplit(self.base).netloc

    def __repr__(self) -> str:
        return f"Upstream({self.place}, {self.wire})"


class Upstreams:
    """All upstreams by model pattern; the most specific pattern wins."""

    def __init__(self, config: Config, environment: Mapping[str, str]) -> None:
        gateway = config.gateway
        self.default = (
            None
            if gateway.upstream is None
            else _upstream("gateway.upstream", gateway.upstream, gateway.api_key_env, environment)._replace(
                timeout=gateway.timeout, key_header=gateway.key_header
            )
        )
        self._patterns: list[tuple[str, Upstream]] = []
        for pattern, row in config.upstreams.items():
            where = f"upstreams.{pattern}"
            if row.base_url is None:
                raise ConfigError(f"{where}: base_url is missing")
            found = _upstream(where, row.base_url, row.api_key_env, environment)._replace(
                wire=row.wire, timeout=row.timeout or gateway.timeout, key_header=row.key_header
            )
            self._patterns.append((pattern.lower(), found))
        self._patterns.sort(key=lambda pair: len(pair[0].replace("*", "")), reverse=True)
        if self.default is None and not self._patterns:
            raise ConfigError(NO_UPSTREAM)
        self._known: LRU[tuple[str | None, str | None], Upstream | None] = LRU(MAX_CACHED_MODELS)

    def all(self) -> list[Upstream]:
        """Return each upstream once, the default first."""
        found = [self.default] if self.default else []
        return list(dict.fromkeys([*found, *(upstream for _, upstream in self._patterns)]))

    def find(self, model: str | None, wire: str | None) -> Upstream | None:
        """Return the upstream for a model and wire; without a model, one that matches the wire."""
        if not self._patterns:
            return self.default
        found = self._known.peek((model, wire))
        return found or self._known.get_or_make((model, wire), lambda: self._match(model, wire))

    def _match(self, model: str | None, wire: str | None) -> Upstream | None:
        fitting = [pair for pair in self._patterns if wire is None or pair[1].wire in ("any", wire)]
        if model is None:
            return self.default or next((upstream for _, upstream in fitting), None)
        name = model.lower()
        return next((upstream for pattern, upstream in fitting if fnmatchcase(name, pattern)), self.default)


def _upstream(where: str, url: str, variable: str | None, environment: Mapping[str, str]) -> Upstream:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError(f"{where}: the URL contains a user name or password; set api_key_env instead")
    key = None
    if variable is not None:
        key = environment.get(variable, "").strip()
        if not key:
            raise ConfigError(f"{where}: the environment variable {variable} is not set")
    return Upstream(f"{parts.scheme}://{parts.netloc}", parts.path.rstrip("/"), key)


FIRST_RETRY_SECONDS = 0.1
SWITCHING_PROTOCOLS = 101
MAX_CACHED_URL_CHARS = 200
"""Maximum characters of a path and query whose URL is cached."""
LARGE_BODY_BYTES, PIECE_BYTES = 500_000, 1 << 17
MAX_BODY_BYTES = 64_000_000
"""Maximum bytes of an answer that is read as a whole, such as a hidden turn or a list of models."""
AUTOMATIC_HEADERS = ("accept", "accept-encoding", "user-agent", "content-type")
"""Headers that aiohttp would add if the client sent none."""


def aiohttp_module() -> Any:
    try:
        import aiohttp
    except ImportError:
        raise MissingExtra("the gateway", "gateway") from None
    return aiohttp


_watched: WeakSet[asyncio.Future[None]] = WeakSet()


@cache
def _response_class() -> type[aiohttp.ClientResponse]:
    """Return a response class that records how its connection ended; aiohttp reports a reset as the end of the body."""

    class WatchedResponse(aiohttp_module().ClientResponse):  # type: ignore[misc]
        lost: asyncio.Future[None] | None = None

        async def start(self, connection: Any) -> Any:
            lost = self.lost = connection.protocol.closed
            if lost is not None and lost not in _watched:
                _watched.add(lost)
                lost.add_done_callback(asyncio.Future.exception)
            return await super().start(connection)

    return WatchedResponse


def _is_reset(response: aiohttp.ClientResponse) -> bool:
    """Return whether a body that is delimited by the end of its connection was cut off by a reset."""
    headers = response.headers
    if "content-length" in headers or "chunked" in headers.get("transfer-encoding", "").lower():
        return False
    lost: asyncio.Future[None] | None = getattr(response, "lost", None)
    return lost is not None and lost.done() and not lost.cancelled() and lost.exception() is not None


class UpstreamAnswer:
    """Answer of an upstream, available from its first byte on."""

    __slots__ = ("_head", "_response", "headers", "issued", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self._head: list[bytes] = []
        self.status = response.status
        self.issued: IssuedIds | None = None
        """Reader of ids in the body while it is relayed."""
        self.headers: list[Raw] = [(name.lower(), value) for name, value in response.raw_headers]

    @property
    def is_stream(self) -> bool:
        """Return whether the answer is a stream of server-sent events."""
        kind = next((value for name, value in self.headers if name == b"content-type"), b"")
        return kind.lower().startswith(b"text/event-stream")

    @property
    def length(self) -> int | None:
        return self._response.content_length

    def chunks(self, most: int | None = None, *, is_read: bool = False) -> AsyncIterator[bytes]:
        """Yield the body from its beginning as it arrives; with `is_read` the caller passes its events to `issued`.

        Raises UpstreamError if it breaks off, or has more than `most` bytes.
        """
        chunks = _read_chunks(self._response, most, self._head)
        return chunks if self.issued is None or is_read else self.issued.through(chunks)

    async def head(
        self, most: int, is_enough: Callable[[bytes], bool] | None = None, seconds: float | None = None
    ) -> bytes:
        """Read the beginning until about `most` bytes, `is_enough` or the timeout; it is replayed by `chunks`."""
        size = 0
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), aclosing(_read_chunks(self._response)) as chunks:
                async for chunk in chunks:
                    self._head.append(chunk)
                    size += len(chunk)
                    if size >= most or (is_enough is not None and is_enough(chunk)):
                        break
        return b"".join(self._head)

    async def read(self, most: int = MAX_BODY_BYTES) -> bytes:
        """Read the whole body and release the connection. Raises UpstreamError if it has more than `most` bytes."""
        try:
            return b"".join([chunk async for chunk in self.chunks(most)])
        finally:
            self.close()

    def close(self) -> None:
        """Release the connection if the answer is complete, else close it."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


async def _read_chunks(
    response: aiohttp.ClientResponse, most: int | None = None, head: Sequence[bytes] = ()
) -> AsyncGenerator[bytes, None]:
    aiohttp = aiohttp_module()
    size = sum(map(len, head))
    for chunk in head:
        yield chunk
    try:
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if most is not None and size > most:
                raise UpstreamError(f"{response.url.host} sent more than {most:,} bytes")
            yield chunk
        if _is_reset(response):
            raise UpstreamError(f"{response.url.host} did not complete its response")
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        timed_out = isinstance(error, TimeoutError)
        raise UpstreamError(f"{response.url.host} did not complete its response", timed_out=timed_out) from None


@lru_cache(maxsize=256)
def _origin(base: str) -> URL:
    from yarl import URL

    return URL(base)


def _address(upstream: Upstream, target: UpstreamTarget) -> URL:
    """Return the URL of a target; raises Misdirected if it would leave the upstream."""
    is_short = len(target.path) + len(target.query) <= MAX_CACHED_URL_CHARS
    return _known_address(upstream.base, target) if is_short else _build_url(upstream.base, target)


def _build_url(base: str, target: UpstreamTarget) -> URL:
    from yarl import URL

    origin = _origin(base)
    try:
        built = URL.build(
            scheme=origin.scheme,
            authority=origin.raw_authority,
            path=target.path,
            query_string=target.query,
            encoded=True,
        )
        address = URL(str(built), encoded=True)
    except ValueError:
        raise Misdirected from None
    if _origin_parts(address) != _origin_parts(origin) or (address.raw_path, address.raw_query_string) != target:
        raise Misdirected
    return address


_known_address = lru_cache(maxsize=1024)(_build_url)


def _origin_parts(address: URL) -> tuple[object, ...]:
    return address.scheme, address.raw_host, address.port, address.raw_user, address.raw_password


def _request_data(body: bytes | AsyncIterator[bytes]) -> bytes | AsyncIterator[bytes] | None:
    """Split a large body into pieces, so that other tasks can run in between."""
    return _pieces(body) if _is_large(body) else body or None


def _is_large(body: bytes | AsyncIterator[bytes]) -> TypeGuard[bytes]:
    return isinstance(body, bytes) and len(body) > LARGE_BODY_BYTES


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE_BYTES):
        yield body[start : start + PIECE_BYTES]


class Client:
    """Connection pool for all upstreams."""

    def __init__(self, *, connect_timeout: float, retries: int) -> None:
        self._connect_timeout = connect_timeout
        self._retries = retries
        self._session: aiohttp.ClientSession | None = None
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}

    def _open(self) -> aiohttp.ClientSession:
        """Create the session inside the event loop that uses it."""
        if self._session is None:
            aiohttp = aiohttp_module()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                requote_redirect_url=False,
                response_class=_response_class(),
                read_bufsize=2**18,
            )
        return self._session

    async def send(
        self,
        method: str,
        upstream: Upstream,
        target: UpstreamTarget,
        headers: list[tuple[str, str]],
        body: bytes | AsyncIterator[bytes],
    ) -> UpstreamAnswer:
        """Send a request and return its answer once it has begun. A streamed body is not retried."""
        aiohttp = aiohttp_module()
        address = _address(upstream, target)
        session = self._session or self._open()
        sent = [*headers, ("content-length", str(len(body)))] if _is_large(body) else headers
        timeout = self._timeout(upstream.timeout)
        pause = FIRST_RETRY_SECONDS
        retries = self._retries if isinstance(body, bytes) else 0
        for left in reversed(range(retries + 1)):
            try:
                response = await session.request(
                    method,
                    address,
                    data=_request_data(body),
                    headers=sent,
                    allow_redirects=False,
                    skip_auto_headers=AUTOMATIC_HEADERS,
                    timeout=timeout,
                )
                if response.status == SWITCHING_PROTOCOLS:
                    response.close()
                    raise UpstreamError(f"{upstream.place} switched protocols without a request to do so")
                return UpstreamAnswer(response)
            except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
                failed = UpstreamError(
                    f"{upstream.place} could not be reached", timed_out=isinstance(error, TimeoutError)
                )
            except TimeoutError:
                raise UpstreamError(f"{upstream.place} did not respond in time", timed_out=True) from None
            except (aiohttp.ClientConnectionError, OSError):
                failed = UpstreamError(f"{upstream.place} closed the connection before responding")
            except (aiohttp.ClientError, ValueError):
                raise UpstreamError(f"{upstream.place} sent an invalid HTTP response") from None
            if not left:
                raise failed
            await asyncio.sleep(pause)
            pause *= 2
        raise AssertionError("unreachable")

    def _timeout(self, silent: float) -> aiohttp.ClientTimeout:
        if silent not in self._timeouts:
            aiohttp = aiohttp_module()
            self._timeouts[silent] = aiohttp.ClientTimeout(
                total=None, sock_connect=self._connect_timeout, sock_read=silent
            )
        return self._timeouts[silent]

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None
            # asyncio closes a transport's socket in the next iteration of its loop, which may be the last one.
            for _ in range(3):
                await asyncio.sleep(0)


# Read the reported usage of an answer without delaying or changing it.
#
# 1. While the answer is relayed, only its first and last kilobytes are kept. They are parsed after its end.
# 2. An encoded answer is kept whole up to a limit, and decoded only if its encoding is known.


HEAD_BYTES = 8_192
TAIL_BYTES = 65_536
MAX_ENCODED_BYTES = 4_000_000
MAX_DECODED_BYTES, MAX_LIGHT_DECODED_BYTES = 64_000_000, 4_000_000
LIGHT_BYTES = 50_000
"""Maximum bytes of an encoded answer that are decoded on the event loop."""


class UsageTap:
    """Collector of one relayed answer's usage."""

    __slots__ = ("_encoding", "_head", "_kept", "_pieces", "_usage", "size")

    def __init__(self, encoding: str = "") -> None:
        self._encoding = encoding
        self._head = bytearray()
        self._pieces: deque[bytes] = deque()
        self._kept = 0
        self._usage: Usage | None = None
        self.size = 0

    def feed(self, chunk: bytes) -> None:
        self.size += len(chunk)
        if len(self._head) < HEAD_BYTES and not self._encoding:
            self._head += chunk[: HEAD_BYTES - len(self._head)]
        self._pieces.append(chunk)
        self._kept += len(chunk)
        most = MAX_ENCODED_BYTES if self._encoding else TAIL_BYTES
        while self._kept - len(self._pieces[0]) >= most:
            self._kept -= len(self._pieces.popleft())

    def usage(self) -> Usage | None:
        """Return the reported usage; None if missing or unreadable. Call it after the end of the answer."""
        if self._pieces:
            self._usage = self._read()
            self._pieces.clear()
        return self._usage

    @property
    def is_heavy(self) -> bool:
        """Return whether parsing is slow: a decoded body may be many times as large."""
        return bool(self._encoding) and self._kept > LIGHT_BYTES

    def _read(self) -> Usage | None:
        tail = b"".join(self._pieces)
        if not self._encoding:
            return usage_at_edges(bytes(self._head), tail)
        most = MAX_DECODED_BYTES if self._kept > LIGHT_BYTES else MAX_LIGHT_DECODED_BYTES
        whole = decode_body(tail, self._encoding, most) if self._kept == self.size else b""
        return usage_at_edges(whole, whole)
