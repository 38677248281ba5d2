"""The one HTTP client of the gateway.

Rules of this file:
1. Bytes go out and come in as they are: no decompression, no redirects, no cookies, no headers of its own.
2. A connection that fails before the first byte of an answer is tried again, a bounded number of times. An answer of
   any status is an answer; what has begun is never begun anew.
3. No text of an error has a header, a body or a key in it.
4. Nothing is sent but to the scheme, host and port of the upstream's configuration, and without user information.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeGuard

from midfold.errors import MidfoldError, MissingExtra, UpstreamError
from midfold.gateway.headers import Raw
from midfold.gateway.issued import Issued
from midfold.gateway.upstreams import Target, Upstream

if TYPE_CHECKING:
    import aiohttp
    from yarl import URL

FIRST_PAUSE = 0.1
SHORT = 200
"""Characters of a path and a query that are worth remembering."""
LARGE, PIECE = 500_000, 1 << 17
MOST_OF_ERRORS = 256_000
"""Bytes of an error that are looked at before it is passed on."""
MOST_READ = 64_000_000
"""Bytes of an answer that must be known as a whole: a hidden turn, a list of models."""
AUTOMATIC = ("accept", "accept-encoding", "user-agent", "content-type")
"""Headers the library would add where the client sent none."""


class Misdirected(MidfoldError):
    """The request would not have gone to the configured upstream; it was not sent."""

    status = 400


def aiohttp_module() -> Any:
    try:
        import aiohttp
    except ImportError:
        raise MissingExtra("the gateway", "gateway") from None
    return aiohttp


class Answer:
    """An upstream's answer, from its first byte on."""

    __slots__ = ("_response", "headers", "issued", "status")

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self._response = response
        self.status = response.status
        self.issued: Issued | None = None
        """Sees the body as it passes."""
        self.headers: list[Raw] = [(name.lower(), value) for name, value in response.raw_headers]

    @property
    def is_stream(self) -> bool:
        """Whether it says that it is a stream of events."""
        kind = next((value for name, value in self.headers if name == b"content-type"), b"")
        return kind.lower().startswith(b"text/event-stream")

    @property
    def length(self) -> int | None:
        return self._response.content_length

    def chunks(self, most: int | None = None, *, is_read: bool = False) -> AsyncIterator[bytes]:
        """The body as it arrives, from where it was read last. Who reads its events (`is_read`) shows them to `issued`.

        Raises UpstreamError where it breaks off, and where it has more than `most` bytes.
        """
        chunks = _guarded(self._response, most)
        return chunks if self.issued is None or is_read else self.issued.through(chunks)

    async def head(self, most: int) -> bytes:
        """What it begins with, up to about `most` bytes; the rest is left."""
        pieces: list[bytes] = []
        size = 0
        async with aclosing(_guarded(self._response)) as chunks:
            async for chunk in chunks:
                pieces.append(chunk)
                size += len(chunk)
                if size >= most:
                    break
        return b"".join(pieces)

    async def read(self, most: int = MOST_READ) -> bytes:
        """All of it; the connection is given back. Raises UpstreamError for what has more than `most` bytes."""
        try:
            return b"".join([chunk async for chunk in self.chunks(most)])
        finally:
            self.close()

    def close(self) -> None:
        """A finished answer gives its connection back; one that is not finished is cut off."""
        if self._response.content.at_eof():
            self._response.release()
        else:
            self._response.close()


async def _guarded(response: aiohttp.ClientResponse, most: int | None = None) -> AsyncGenerator[bytes, None]:
    aiohttp = aiohttp_module()
    size = 0
    try:
        async for chunk in response.content.iter_any():
            size += len(chunk)
            if most is not None and size > most:
                raise UpstreamError(f"{response.url.host} answered more than the {most:,} bytes that are read of it")
            yield chunk
    except (aiohttp.ClientError, TimeoutError, OSError) as error:
        timed_out = isinstance(error, TimeoutError)
        raise UpstreamError(f"{response.url.host} broke off its answer", timed_out=timed_out) from None


@lru_cache(maxsize=256)
def _origin(base: str) -> URL:
    from yarl import URL

    return URL(base)


def _address(upstream: Upstream, target: Target) -> URL:
    """The target at its upstream, and at nobody else's."""
    is_short = len(target.path) + len(target.query) <= SHORT
    return _known_address(upstream.base, target) if is_short else _built(upstream.base, target)


def _built(base: str, target: Target) -> URL:
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
    if _place(address) != _place(origin) or (address.raw_path, address.raw_query_string) != target:
        raise Misdirected
    return address


_known_address = lru_cache(maxsize=1024)(_built)


def _place(address: URL) -> tuple[object, ...]:
    return address.scheme, address.raw_host, address.port, address.raw_user, address.raw_password


def _data(body: bytes | AsyncIterator[bytes]) -> bytes | AsyncIterator[bytes] | None:
    """A large body goes out in pieces, with room for others between them."""
    return _pieces(body) if _is_large(body) else body or None


def _is_large(body: bytes | AsyncIterator[bytes]) -> TypeGuard[bytes]:
    return isinstance(body, bytes) and len(body) > LARGE


async def _pieces(body: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(body), PIECE):
        yield body[start : start + PIECE]


class Client:
    """Connections to all upstreams, kept open between requests."""

    def __init__(self, *, connect_timeout: float, retries: int) -> None:
        self._connect_timeout = connect_timeout
        self._retries = retries
        self._session: aiohttp.ClientSession | None = None
        self._timeouts: dict[float, aiohttp.ClientTimeout] = {}

    def _open(self) -> aiohttp.ClientSession:
        """Made inside the event loop that uses it."""
        if self._session is None:
            aiohttp = aiohttp_module()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ttl_dns_cache=300),
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,
                requote_redirect_url=False,
                read_bufsize=2**18,
            )
        return self._session

    async def send(
        self,
        method: str,
        upstream: Upstream,
        target: Target,
        headers: list[tuple[str, str]],
        body: bytes | AsyncIterator[bytes],
    ) -> Answer:
        """The answer, once it has begun. A body that is only passing by cannot be sent twice."""
        aiohttp = aiohttp_module()
        address = _address(upstream, target)
        session = self._session or self._open()
        options: dict[str, Any] = {
            "headers": [*headers, ("content-length", str(len(body)))] if _is_large(body) else headers,
            "allow_redirects": False,
            "skip_auto_headers": AUTOMATIC,
            "timeout": self._timeout(upstream.timeout),
        }
        pause = FIRST_PAUSE
        retries = self._retries if isinstance(body, bytes) else 0
        for left in reversed(range(retries + 1)):
            try:
                return Answer(await session.request(method, address, data=_data(body), **options))
            except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
                failed = UpstreamError(
                    f"{upstream.place} could not be reached", timed_out=isinstance(error, TimeoutError)
                )
            except TimeoutError:
                raise UpstreamError(f"{upstream.place} did not answer in time", timed_out=True) from None
            except (aiohttp.ClientConnectionError, OSError):
                failed = UpstreamError(f"{upstream.place} closed the connection before it answered")
            except (aiohttp.ClientError, ValueError):
                raise UpstreamError(f"{upstream.place} answered something that is not HTTP") from None
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
            # asyncio closes a transport's socket in the next round of its loop, which may be the last one.
            for _ in range(3):
                await asyncio.sleep(0)
