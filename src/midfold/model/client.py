"""HTTP client for models, sync and async: streaming for an agent's turns, complete responses for summaries.

1. Every transport error and error response becomes one of the failure kinds; errors contain no key and no body.
2. Redirects are not followed: a key is sent only to the address it was configured for.
3. `ask` streams to a listener: silence is limited, not the length of the response. Failures that the failure table
   calls transient are retried a few times after a pause, and reported to the listener; an overflow is not retried.
4. `ask_once` returns a complete response and leaves retries to the caller. The endpoint's timeout limits the whole
   response including headers, not each read, so that a slow trickle cannot exceed it.
5. `ask` keeps its connection, which may be closed when it is needed again. If it breaks before the first byte of the
   response, the request is sent once more on a new connection. `ask_once` never reuses one: a server that broke one
   response may close the connection during the next call.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from functools import cache
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from midfold.compaction.receipt import FAILURES
from midfold.errors import FailureKind, MissingExtra, ModelFailed
from midfold.model.endpoint import Endpoint
from midfold.model.failures import LONGEST_READ, failure_in, failure_of
from midfold.transcript.replies import LARGEST_ANSWER, AnswerReader, ModelAnswer

if TYPE_CHECKING:
    import httpx2

TRANSIENT: frozenset[FailureKind] = frozenset(
    kind for kind, row in FAILURES.items() if row.retry_class == "transient" and kind != "overflow"
)
MAX_ATTEMPTS = 4
MAX_PAUSE_SECONDS = 60.0
MAX_RESPONSE_BYTES = 8_000_000
"""Maximum bytes of a response requested as a whole."""
HEADER_PREFIX = "x-midfold-"
MAX_SILENCE_SECONDS = 600.0
KEEPALIVE_SECONDS = 30.0
"""Seconds an idle connection is kept."""
Hear = Callable[[str], None]
Retry = Callable[[ModelFailed, float], None]


class ChatModel(Protocol):
    """Chat model: a provider over HTTP, or a test double."""

    endpoint: Endpoint

    def ask(self, body: bytes, hear: Hear, again: Retry) -> ModelAnswer:
        """Return the answer to a request body; `hear` receives its text, `again` each failure that is retried."""
        ...

    @property
    def heard(self) -> str:
        """Text received of an incomplete answer; empty after a complete one."""
        ...


class ModelClient:
    """Client and context manager for one endpoint, for use by one thread. An interrupt closes the connection."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        tries: int = MAX_ATTEMPTS,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.endpoint = endpoint
        self.tries = tries
        self._clock = clock
        self._sleep = sleep
        self._arrival: _IncomingResponse | None = None
        self._http: httpx2.Client | None = None
        self._answered = False
        """True if a response arrived over a connection that may still be open."""

    def close(self) -> None:
        """Close the connection; the next request opens a new one."""
        http, self._http, self._answered = self._http, None, False
        if http is not None:
            http.close()

    def __enter__(self) -> ModelClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def heard(self) -> str:
        return "" if self._arrival is None else self._arrival.reader.text

    def ask(self, body: bytes, hear: Hear, again: Retry) -> ModelAnswer:
        for attempt in range(1, self.tries + 1):
            try:
                return self._ask(body, hear)
            except ModelFailed as failed:
                if failed.kind not in TRANSIENT or attempt == self.tries:
                    raise
                pause = min(failed.retry_after or 2.0 ** (attempt - 1), MAX_PAUSE_SECONDS)
                again(failed, pause)
                self._sleep(pause)
        raise ModelFailed("other")

    def _ask(self, body: bytes, hear: Hear) -> ModelAnswer:
        httpx, endpoint = _httpx(), self.endpoint
        kept, self._answered = self._answered, False
        arrival = self._arrival = _IncomingResponse(endpoint, self._clock, hear=hear)
        headers = endpoint.headers()
        try:
            with self._connection().stream("POST", endpoint.url, content=body, headers=headers) as response:
                arrival.receive(response)
                for chunk in response.iter_bytes():
                    if not arrival.take(chunk):
                        break
                answer = arrival.answer()
        except _transport_errors(httpx) as error:
            stale = isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError)
            if not (kept and stale and not arrival.has_begun):
                raise arrival.failure(error) from None
            self.close()
            return self._ask(body, hear)
        if not answer.text.strip() and not answer.calls and answer.finish != "filter":
            raise ModelFailed("malformed", "the model returned an empty answer")
        own_headers = {name: value for name, value in response.headers.items() if name.startswith(HEADER_PREFIX)}
        self._arrival, self._answered = None, True
        return msgspec.structs.replace(answer, headers=own_headers)

    def ask_once(self, body: bytes) -> ModelAnswer:
        """Return the complete answer, on its own connection and within the endpoint's timeout."""
        httpx, endpoint = _httpx(), self.endpoint
        arrival = _IncomingResponse(endpoint, self._clock, seconds=endpoint.timeout)
        deadline, headers = Deadline(endpoint.timeout), endpoint.headers()
        traced = {"trace": deadline.trace}
        try:
            with (
                deadline,
                self._client(httpx.Client) as http,
                http.stream("POST", endpoint.url, content=body, headers=headers, extensions=traced) as response,
            ):
                arrival.receive(response)
                for chunk in response.iter_bytes():
                    if not arrival.take(chunk):
                        break
                if deadline.passed:
                    raise arrival.failure(TimeoutError())
                return arrival.answer()
        except _transport_errors(httpx) as error:
            raise arrival.failure(TimeoutError() if deadline.passed else error) from None

    async def ask_once_async(self, body: bytes) -> ModelAnswer:
        """Return the complete answer on an event loop; see `ask_once`."""
        import asyncio

        httpx, endpoint = _httpx(), self.endpoint
        arrival, headers = _IncomingResponse(endpoint, self._clock, seconds=endpoint.timeout), endpoint.headers()
        try:
            async with (
                asyncio.timeout(endpoint.timeout),
                self._client(httpx.AsyncClient) as http,
                http.stream("POST", endpoint.url, content=body, headers=headers) as response,
            ):
                arrival.receive(response)
                async for chunk in response.aiter_bytes():
                    if not arrival.take(chunk):
                        break
                return arrival.answer()
        except _transport_errors(httpx) as error:
            raise arrival.failure(error) from None

    def _connection(self) -> httpx2.Client:
        if self._http is None:
            self._http = http = self._client(_httpx().Client)
            weakref.finalize(self, http.close)
        return self._http

    def _client(self, kind: Any) -> Any:
        """Return an HTTP client, sync or async.

        Certificates are not loaded for plain HTTP: that takes longer than a call to a local server.
        """
        httpx, seconds = _httpx(), self.endpoint.timeout
        is_plain = self.endpoint.base_url.lower().startswith("http://")
        return kind(
            follow_redirects=False,
            verify=False if is_plain else _certificates(),
            timeout=httpx.Timeout(min(seconds, MAX_SILENCE_SECONDS), connect=min(30.0, seconds)),
            limits=httpx.Limits(max_keepalive_connections=1, keepalive_expiry=KEEPALIVE_SECONDS),
        )


class _IncomingResponse:
    """Incoming response, limited in time and size."""

    def __init__(
        self,
        endpoint: Endpoint,
        clock: Callable[[], float],
        *,
        hear: Hear | None = None,
        seconds: float = math.inf,
    ) -> None:
        self._endpoint = endpoint
        self._clock = clock
        self._hear = hear
        self._is_bounded = seconds < math.inf
        self._ends = clock() + seconds
        largest = MAX_RESPONSE_BYTES if self._is_bounded else LARGEST_ANSWER
        self.reader = AnswerReader(endpoint.dialect, largest=largest)
        self._refusal = bytearray()
        self._response: httpx2.Response | None = None

    def receive(self, response: httpx2.Response) -> None:
        """Store the response once its status and headers have arrived."""
        self._response = response

    @property
    def has_begun(self) -> bool:
        return self._response is not None

    def take(self, chunk: bytes) -> bool:
        """Read a chunk and return whether to read more; the body of an error response is read only up to a limit."""
        late = self._clock() > self._ends
        if self._is_refusal:
            self._refusal += chunk
            return len(self._refusal) <= LONGEST_READ and not late
        if late:
            raise self.failure(TimeoutError())
        for text in self.reader.feed(chunk):
            if self._hear is not None:
                self._hear(text)
        return not self.reader.has_failed

    def answer(self) -> ModelAnswer:
        if self._is_refusal:
            raise self.failure(None)
        answer = self.reader.finish()
        if answer.error:
            raise failure_in(answer.error)
        if answer.problem:
            raise ModelFailed("malformed", answer.problem)
        return answer

    def failure(self, error: Exception | None) -> ModelFailed:
        """Return the failure that a (possibly incomplete) error response reports, else that of the connection."""
        place, response = self._endpoint.place, self._response
        if response is not None and self._is_refusal:
            return failure_of(response.status_code, response.headers, bytes(self._refusal), place, self._clock())
        httpx = _httpx()
        if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.ProxyError | httpx.UnsupportedProtocol):
            return ModelFailed("network", f"{place} could not be reached")
        if isinstance(error, httpx.TimeoutException | TimeoutError):
            late = "did not finish in time" if self._is_bounded else "sent nothing for too long"
            return ModelFailed("timeout", f"{place} {late}")
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.DecodingError):
            return ModelFailed("malformed", f"{place} closed its response early or violated the protocol")
        return ModelFailed("network", f"the connection to {place} failed")

    @property
    def _is_refusal(self) -> bool:
        return self._response is not None and not self._response.is_success


class Deadline:
    """Time limit of a sync request: `with Deadline(30) as deadline:`, with `deadline.trace` as its `trace` extension.

    The HTTP library limits each read, so a server that sends a byte now and then could keep a call open forever. A
    timer shuts down the connection when the time is up, which ends the read.
    """

    CONNECTED = ("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._socket: Any = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._timer.cancel()
            self._socket = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """Record the socket when the HTTP library reports its connection."""
        if event.endswith(self.CONNECTED):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self.passed:
                    self._shut()

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            self._shut()

    def _shut(self) -> None:
        """Shut down the plain socket; the method of a TLS socket would detach the connection while it is being read."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _httpx() -> Any:
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("calling a model", "models") from None
    return httpx2


def _transport_errors(httpx: Any) -> tuple[type[Exception], ...]:
    return (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError)


@cache
def _certificates() -> Any:
    """Load the certificates once for all clients."""
    return _httpx().create_ssl_context()
