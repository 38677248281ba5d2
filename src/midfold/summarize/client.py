"""The one HTTP client, sync and async, that carries out what a summary flow asks for.

Rules of this file:
1. Every transport error becomes one of the failure kinds; no key and no body gets into a text.
2. An answer that trickles, its headers included, is bounded by the endpoint's timeout as a whole, not by each read.
3. Redirects are not followed: a key goes to the address it was configured for, or nowhere.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import cache
from typing import TYPE_CHECKING, Any

from midfold.errors import MissingExtra, SummaryFailed
from midfold.fold.request import SummaryAnswer, SummaryAsk
from midfold.summarize.calls import Call, HttpRequest, Reply, http_request
from midfold.summarize.deadline import Deadline
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
    A connection lives as long as one call takes.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        main: Endpoint | None = None,
        *,
        progress: Callable[[Progress], None] | None = None,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
        sleep_later: Callable[[float], Awaitable[None]] | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.main = main
        self.progress = progress
        self._clock = clock
        self._sleep = sleep
        self._sleep_later = sleep_later

    def __call__(self, ask: SummaryAsk) -> SummaryAnswer:
        httpx = _httpx()
        with httpx.Client(**_options(httpx)) as client:
            return run(self._steps(ask), lambda call: self._send(client, call), self._sleep)

    async def later(self, ask: SummaryAsk) -> SummaryAnswer:
        import asyncio

        httpx = _httpx()
        async with httpx.AsyncClient(**_options(httpx)) as client:
            pause = self._sleep_later or asyncio.sleep
            return await run_async(self._steps(ask), lambda call: self._send_later(client, call), pause)

    def ask_once(self, call: Call) -> Reply:
        """One call, without a policy: for a probe."""
        httpx = _httpx()
        with httpx.Client(**_options(httpx)) as client:
            return self._send(client, call)

    def _steps(self, ask: SummaryAsk) -> Steps:
        return summarise(ask, self.endpoint, self.main, self.progress)

    def _send(self, client: httpx2.Client, call: Call) -> Reply:
        """One call over HTTP."""
        httpx = _httpx()
        request, body, deadline = http_request(call), _Body(call, self._clock), Deadline(call.endpoint.timeout)
        traced = {"trace": deadline.trace}
        try:
            with deadline, client.stream("POST", request.url, extensions=traced, **_arguments(request)) as response:
                body.begin(response)
                for chunk in response.iter_bytes():
                    if not body.take(chunk):
                        break
                if deadline.passed:
                    raise body.failure() or _late(call)
                return body.reply()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            late = _late(call) if deadline.passed else None
            raise body.failure() or late or _transport_failure(httpx, error, call) from None

    async def _send_later(self, client: httpx2.AsyncClient, call: Call) -> Reply:
        import asyncio

        httpx = _httpx()
        request, body = http_request(call), _Body(call, self._clock)
        try:
            async with (
                asyncio.timeout(request.timeout),
                client.stream("POST", request.url, **_arguments(request)) as response,
            ):
                body.begin(response)
                async for chunk in response.aiter_bytes():
                    if not body.take(chunk):
                        break
                return body.reply()
        except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
            raise body.failure() or _transport_failure(httpx, error, call) from None


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


class _Body:
    """The body of an answer as it arrives, bounded in time and in size."""

    def __init__(self, call: Call, clock: Callable[[], float]) -> None:
        self._endpoint = call.endpoint
        self._clock = clock
        self._ends = clock() + call.endpoint.timeout
        self._reader = ReplyReader(call.endpoint.wire)
        self._problem = bytearray()
        self._response: httpx2.Response | None = None

    def begin(self, response: httpx2.Response) -> None:
        self._response = response

    def take(self, chunk: bytes) -> bool:
        """Whether more is wanted. What came of an error's body tells enough of the error."""
        late = self._clock() > self._ends
        if self._is_error:
            self._problem += chunk
            return len(self._problem) <= LONGEST_READ and not late
        if late:
            raise SummaryFailed("timeout", f"{self._endpoint.place} did not finish in time")
        self._reader.feed(chunk)
        return True

    def reply(self) -> Reply:
        failure = self.failure()
        if failure is not None:
            raise failure
        return self._reader.finish()

    def failure(self) -> SummaryFailed | None:
        """What the provider said is wrong, also where its words broke off; None if it said nothing of the kind."""
        if self._response is None or not self._is_error:
            return None
        status, headers = self._response.status_code, self._response.headers
        return failure_of(status, headers, bytes(self._problem), self._endpoint.place, self._clock())

    @property
    def _is_error(self) -> bool:
        return self._response is not None and not self._response.is_success


@cache
def certificates(httpx: Any) -> Any:
    """Read once: it takes longer than a call to a server nearby."""
    return httpx.create_ssl_context()


def _options(httpx: Any) -> dict[str, Any]:
    """No connection is used twice: a server that broke one answer may close it while the next call is on its way."""
    limits = httpx.Limits(max_keepalive_connections=0)
    return {"follow_redirects": False, "verify": certificates(httpx), "limits": limits}


def _arguments(request: HttpRequest) -> dict[str, Any]:
    return {"content": request.body, "headers": request.headers, "timeout": min(request.timeout, 600.0)}


def _late(call: Call) -> SummaryFailed:
    return SummaryFailed("timeout", f"{call.endpoint.place} did not finish in time")


def _transport_failure(httpx: Any, error: Exception, call: Call) -> SummaryFailed:
    place = call.endpoint.place
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError | httpx.ProxyError | httpx.UnsupportedProtocol):
        return SummaryFailed("network", f"{place} could not be reached")
    if isinstance(error, httpx.TimeoutException | TimeoutError):
        return _late(call)
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.DecodingError):
        return SummaryFailed("malformed", f"{place} closed its answer early or broke the protocol")
    return SummaryFailed("network", f"the connection to {place} failed")
