"""The one HTTP client, sync and async, that carries out what a summary flow asks for.

Rules of this file:
1. Every transport error becomes one of the failure kinds; no key and no body gets into a text.
2. A body that trickles is bounded by the endpoint's timeout as a whole, not by each read.
3. Redirects are not followed: a key goes to the address it was configured for, or nowhere.
4. A connection serves one call: servers close one behind a broken answer, and the next call would break with it.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Iterator
from types import TracebackType
from typing import TYPE_CHECKING, Any

from midfold.core.compaction import SummaryAnswer, SummaryAsk
from midfold.errors import MissingExtra, SummaryFailed
from midfold.summarize.calls import Call, HttpRequest, Reply, http_request
from midfold.summarize.endpoint import Endpoint
from midfold.summarize.flow import Pause, Progress, Steps, summarise
from midfold.summarize.replies import ReplyReader
from midfold.summarize.trouble import LONGEST_READ, failure_of

if TYPE_CHECKING:
    import httpx2


def _httpx() -> Any:
    try:
        import httpx2
    except ImportError:
        raise MissingExtra("calling a summary model", "models") from None
    return httpx2


class ModelSummarizer:
    """A summarizer that asks a model over HTTP: `compact(..., summarizer=ModelSummarizer(endpoint))`.

    `main` is the conversation's own model, asked once where the failure table says so. `later` is the same, awaited.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        main: Endpoint | None = None,
        *,
        progress: Callable[[Progress], None] | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.endpoint = endpoint
        self.main = main
        self.progress = progress
        self._clock = clock
        self._sleep = sleep
        self._client: Any = None

    def __call__(self, ask: SummaryAsk) -> SummaryAnswer:
        return run(self._steps(ask), self.send, self._sleep)

    async def later(self, ask: SummaryAsk) -> SummaryAnswer:
        import asyncio

        httpx = _httpx()
        async with httpx.AsyncClient(**_options(httpx)) as client:
            return await run_async(self._steps(ask), lambda call: self._send_async(client, call), asyncio.sleep)

    def _steps(self, ask: SummaryAsk) -> Steps:
        return summarise(ask, self.endpoint, self.main, self.progress)

    def send(self, call: Call) -> Reply:
        """One call over HTTP."""
        httpx = _httpx()
        if self._client is None:
            self._client = httpx.Client(**_options(httpx))
        request, deadline = http_request(call), _Deadline(call, self._clock)
        try:
            with self._client.stream("POST", request.url, **_arguments(request)) as response:
                return _read(call, response, response.iter_bytes(), deadline)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise _transport_failure(httpx, error, call) from None

    async def _send_async(self, client: Any, call: Call) -> Reply:
        httpx = _httpx()
        request, deadline = http_request(call), _Deadline(call, self._clock)
        try:
            async with client.stream("POST", request.url, **_arguments(request)) as response:
                body = [chunk async for chunk in _bounded(response.aiter_bytes(), deadline)]
                return _read(call, response, iter(body), deadline)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise _transport_failure(httpx, error, call) from None

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None

    def __enter__(self) -> ModelSummarizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def run(steps: Steps, send: Callable[[Call], Reply], sleep: Callable[[float], None]) -> SummaryAnswer:
    """Drives a summary flow."""
    given: Reply | SummaryFailed | None = None
    try:
        while True:
            step = steps.send(given)
            given = sleep(step.seconds) if isinstance(step, Pause) else _tried(send, step)  # type: ignore[func-returns-value]
    except StopIteration as stop:
        answer: SummaryAnswer = stop.value
        return answer


def _tried(send: Callable[[Call], Reply], call: Call) -> Reply | SummaryFailed:
    try:
        return send(call)
    except SummaryFailed as failed:
        return failed


async def run_async(steps: Steps, send: Any, sleep: Any) -> SummaryAnswer:
    """The same, awaited."""
    given: Reply | SummaryFailed | None = None
    try:
        while True:
            step = steps.send(given)
            try:
                given = await (sleep(step.seconds) if isinstance(step, Pause) else send(step))
            except SummaryFailed as failed:
                given = failed
    except StopIteration as stop:
        answer: SummaryAnswer = stop.value
        return answer


class _Deadline:
    def __init__(self, call: Call, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.place = call.endpoint.place
        self.ends = clock() + call.endpoint.timeout

    @property
    def now(self) -> float:
        return self._clock()

    def check(self) -> None:
        if self._clock() > self.ends:
            raise SummaryFailed("timeout", f"{self.place} did not finish in time")


def _read(call: Call, response: httpx2.Response, chunks: Iterator[bytes], deadline: _Deadline) -> Reply:
    if not response.is_success:
        body = bytearray()
        for chunk in chunks:
            body += chunk
            if len(body) > LONGEST_READ:
                break
        raise failure_of(response.status_code, response.headers, bytes(body), call.endpoint.place, deadline.now)
    reader = ReplyReader(call.endpoint.wire, response.headers.get("content-type", ""))
    for chunk in chunks:
        deadline.check()
        reader.feed(chunk)
    return reader.finish()


async def _bounded(chunks: AsyncIterator[bytes], deadline: _Deadline) -> AsyncIterator[bytes]:
    async for chunk in chunks:
        deadline.check()
        yield chunk


def _options(httpx: Any) -> dict[str, Any]:
    limits = httpx.Limits(max_keepalive_connections=0)
    return {"follow_redirects": False, "timeout": httpx.Timeout(60.0, connect=10.0), "limits": limits}


def _arguments(request: HttpRequest) -> dict[str, Any]:
    return {"content": request.body, "headers": request.headers, "timeout": min(request.timeout, 600.0)}


def _transport_failure(httpx: Any, error: Exception, call: Call) -> SummaryFailed:
    place = call.endpoint.place
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.ProxyError | httpx.UnsupportedProtocol):
        return SummaryFailed("network", f"{place} could not be reached")
    if isinstance(error, httpx.TimeoutException):
        return SummaryFailed("timeout", f"{place} did not finish in time")
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.DecodingError):
        return SummaryFailed("malformed", f"{place} closed its answer early or broke the protocol")
    return SummaryFailed("network", f"the connection to {place} failed")
