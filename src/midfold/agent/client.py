"""The model over HTTP, streaming, one request at a time, over a connection that is kept.

Rules of this file:
1. A failure that may pass (rate limit, overload, a broken connection) is tried again a few times, after a pause.
   An overflow never is: the same request would overflow again.
2. An answer of which something was already heard is not asked for again behind the listener's back: they are told.
3. Redirects are not followed: a key goes to the address it was configured for, or nowhere.
4. No key and no message gets into an error's text.
5. A kept connection may be gone by the time it is needed. One that is seen to be closed is not used; if it breaks only
   then, and before a byte of the answer, the request is sent once more at once, over a new one.
"""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Protocol

import msgspec

from midfold.agent.answers import Answer, AnswerReader
from midfold.errors import FailureKind, MissingExtra, ModelFailed, SummaryFailed
from midfold.summarize.calls import headers_for, url_for
from midfold.summarize.client import certificates
from midfold.summarize.endpoint import Endpoint
from midfold.summarize.trouble import LONGEST_READ, failure_of

if TYPE_CHECKING:
    import httpx2

PASSING: frozenset[FailureKind] = frozenset({"network", "timeout", "rate_limit", "unavailable", "malformed"})
MOST_TRIES = 4
LONGEST_PAUSE = 60.0
HEADERS = "x-midfold-"
KEPT = 30.0
"""Seconds an idle connection is kept."""
Hear = Callable[[str], None]
Retry = Callable[[ModelFailed, float], None]


class Model(Protocol):
    """Whoever answers requests: a provider over HTTP, or a double."""

    endpoint: Endpoint

    def ask(self, body: bytes, hear: Hear, again: Retry) -> Answer:
        """The answer to one request body; `hear` is given its text as it arrives, `again` each failure that passes."""
        ...

    @property
    def heard(self) -> str:
        """What was heard of an answer that did not come to its end; empty after one that did."""
        ...


class ModelClient:
    """One endpoint. Belongs to one thread; an interrupt closes the connection. A context manager."""

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        tries: int = MOST_TRIES,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.endpoint = endpoint
        self.tries = tries
        self._clock = clock
        self._sleep = sleep
        self._reader = AnswerReader(endpoint.wire)
        self._http: httpx2.Client | None = None
        self._answered = False
        """Whether an answer came over a connection that may still be there."""

    def close(self) -> None:
        """Closes the connection; the next request opens a new one."""
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
        return self._reader.heard

    def ask(self, body: bytes, hear: Hear, again: Retry) -> Answer:
        for attempt in range(1, self.tries + 1):
            try:
                return self._once(body, hear)
            except ModelFailed as failed:
                if failed.kind not in PASSING or attempt == self.tries:
                    raise
                pause = min(failed.retry_after or 2.0 ** (attempt - 1), LONGEST_PAUSE)
                again(failed, pause)
                self._sleep(pause)
        raise ModelFailed("other")

    def _once(self, body: bytes, hear: Hear) -> Answer:
        httpx = _httpx()
        kept, self._answered = self._answered, False
        try:
            return self._asked(body, hear)
        except (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError) as error:
            if not kept or self._reader.begun:
                raise _transport_failure(httpx, error, self.endpoint.place) from None
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise _transport_failure(httpx, error, self.endpoint.place) from None
        self.close()
        return self._once(body, hear)

    def _asked(self, body: bytes, hear: Hear) -> Answer:
        self._reader = AnswerReader(self.endpoint.wire)
        try:
            headers = headers_for(self.endpoint)
            with self._connected().stream("POST", url_for(self.endpoint), content=body, headers=headers) as response:
                if not response.is_success:
                    raise self._refusal(response)
                for chunk in response.iter_bytes():
                    for text in self._reader.feed(chunk):
                        hear(text)
                headers = {name: value for name, value in response.headers.items() if name.startswith(HEADERS)}
                answer = msgspec.structs.replace(self._reader.finish(), headers=headers)
        except SummaryFailed as failed:
            raise ModelFailed(failed.kind, str(failed)) from None
        self._reader, self._answered = AnswerReader(self.endpoint.wire), True
        return answer

    def _connected(self) -> httpx2.Client:
        if self._http is None:
            httpx = _httpx()
            timeout = httpx.Timeout(self.endpoint.timeout, connect=min(30.0, self.endpoint.timeout))
            limits = httpx.Limits(max_keepalive_connections=1, keepalive_expiry=KEPT)
            self._http = http = httpx.Client(
                follow_redirects=False, timeout=timeout, limits=limits, verify=_certificates(self.endpoint)
            )
            weakref.finalize(self, http.close)
        return self._http

    def _refusal(self, response: httpx2.Response) -> ModelFailed:
        problem = bytearray()
        for chunk in response.iter_bytes():
            problem += chunk
            if len(problem) > LONGEST_READ:
                break
        place, status = self.endpoint.place, response.status_code
        failed = failure_of(status, response.headers, bytes(problem), place, self._clock())
        return ModelFailed(
            failed.kind, told(failed.kind, str(failed)), retry_after=failed.retry_after, limit=failed.limit
        )


_TELLING: dict[FailureKind, str] = {
    "auth": "the key is missing, wrong, or not allowed to use this model",
    "model_not_found": "there is no such model, or not under this address",
    "overflow": "the request does not fit into the model's window",
    "rate_limit": "too many requests",
    "unavailable": "the provider is overloaded or broken",
    "filtered": "the provider's filter refused it",
}


def told(kind: FailureKind, text: str) -> str:
    """An error in words that say what to do."""
    return f"{text}: {_TELLING[kind]}" if kind in _TELLING else text


def _httpx() -> Any:
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("talking to a model", "models") from None
    return httpx2


def _certificates(endpoint: Endpoint) -> Any:
    """Reading the certificates takes longer than a call to a server nearby that needs none."""
    if endpoint.base_url.lower().startswith("http://"):
        return False
    return certificates(_httpx())


def _transport_failure(httpx: Any, error: Exception, place: str) -> ModelFailed:
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.ProxyError | httpx.UnsupportedProtocol):
        return ModelFailed("network", f"{place} could not be reached")
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return ModelFailed("timeout", f"{place} sent nothing for too long")
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.DecodingError):
        return ModelFailed("malformed", f"{place} closed its answer early or broke the protocol")
    return ModelFailed("network", f"the connection to {place} failed")
