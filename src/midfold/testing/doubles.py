"""Test doubles: a scripted summarizer and provider, a fake clock, and a server for applications.

The servers listen on loopback, so that clients are tested with real connections. Nothing leaves the machine.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any

import msgspec

from midfold.compaction.request import SummaryAnswer, SummaryRequest
from midfold.model.endpoint import Endpoint, Wire
from midfold.testing.answers import Answer, error
from midfold.transcript import jsonio

Line = str | SummaryAnswer | BaseException


class ScriptEnded(BaseException):
    """Raised when a ScriptedSummarizer is called more often than its script has answers.

    Deliberately not an Exception: drivers treat any Exception as a failing model, and a mistake in a test is not that.
    """


class ScriptedSummarizer:
    """Summarizer that replays a list: texts and answers are returned, exceptions raised; requests are recorded.

    summarizer = ScriptedSummarizer(["first summary", SummaryFailed("network")])
    compact(messages, summarizer=summarizer)
    summarizer.asks[0].prompt()
    """

    def __init__(self, script: Iterable[Line] = ()) -> None:
        self._script = list(script)
        self.asks: list[SummaryRequest] = []

    @property
    def left(self) -> int:
        """The number of answers not used yet."""
        return max(len(self._script) - len(self.asks), 0)

    def __call__(self, ask: SummaryRequest) -> str | SummaryAnswer:
        self.asks.append(ask)
        if len(self.asks) > len(self._script):
            raise ScriptEnded(f"called {len(self.asks)} times, the script has {len(self._script)} answers")
        line = self._script[len(self.asks) - 1]
        if isinstance(line, BaseException):
            raise line
        return line

    async def later(self, ask: SummaryRequest) -> str | SummaryAnswer:
        """Return the next answer like `__call__`, to be awaited: `await host.compress_async(messages)`."""
        return self(ask)


class FakeClock:
    """Clock that only advances explicitly. Call it like `time.monotonic` or `time.time`; `sleep` does not wait."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> float:
        """Advance the time; it never goes back."""
        if seconds < 0:
            raise ValueError(f"time cannot go back: {seconds}")
        self.now += seconds
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.advance(seconds)

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


NO_CONTENT = 204
"""Status codes whose responses have no body, not even an empty chunked one."""


class Request(msgspec.Struct, frozen=True, kw_only=True):
    """A recorded client request. `body` is its JSON value, or None."""

    method: str
    path: str
    headers: dict[str, str]
    body: Any
    raw: bytes

    @property
    def text(self) -> str:
        return self.raw.decode("utf-8", "replace")


Entry = Answer | Callable[[Request], Answer]


class ScriptedProvider:
    """HTTP server that answers requests from a script, in order; a function in the script receives the request.

        with ScriptedProvider([error(529), openai_json("## Goal")]) as provider:  # midfold.testing.answers
            compact(messages, summarizer=ModelSummarizer(provider.endpoint("openai")))
        provider.requests[0].body["messages"]

    Leaving the block stops the server, and fails if there were more requests than answers.
    """

    def __init__(self, script: Iterable[Entry] = (), *, then: Entry | None = None) -> None:
        self._script = list(script)
        self._then = then
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self.requests: list[Request] = []
        self._server = _Server(("127.0.0.1", 0), _handler(self._respond, self._stopped))
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    @property
    def left(self) -> int:
        """The number of answers not used yet."""
        return max(len(self._script) - len(self.requests), 0)

    def endpoint(self, wire: Wire = "openai", **changes: Any) -> Endpoint:
        """Return this server as the endpoint of a summary model."""
        base = f"{self.url}/v1" if wire == "openai" else self.url
        made = Endpoint(name="scripted", wire=wire, base_url=base, model="scripted", timeout=5.0)
        return msgspec.structs.replace(made, **changes)

    def __enter__(self) -> ScriptedProvider:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
        if kind is None and self._then is None and len(self.requests) > len(self._script):
            raise ScriptEnded(f"called {len(self.requests)} times, the script has {len(self._script)} answers")

    def _respond(self, request: Request) -> Answer:
        with self._lock:
            place = len(self.requests)
            self.requests.append(request)
        entry = self._script[place] if place < len(self._script) else self._then
        if entry is None:
            return error(418, "the script has ended")
        return entry if isinstance(entry, Answer) else entry(request)


def refusing_url() -> str:
    """Return a local address that refuses connections."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


def http_date(seconds: float) -> str:
    """Format a time as an HTTP date, for Retry-After."""
    return formatdate(seconds, usegmt=True)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: some tests disconnect on purpose."""


def _handler(respond: Callable[[Request], Answer], stopped: threading.Event) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        head_pause = 0.0
        _headers_buffer: list[bytes]

        def do_POST(self) -> None:
            self._handle()

        do_GET = do_DELETE = do_POST  # noqa: N815 - the names are the base class's

        def _handle(self) -> None:
            data = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(method=self.command, path=self.path, headers=headers, body=_json(data), raw=data)
            answer = respond(request)
            stopped.wait(answer.pause)
            if answer.ending == "whole" or answer.pieces:
                self._write(answer)
            self.close_connection = self.close_connection or answer.ending != "whole"
            if answer.ending == "reset":
                self._reset()

        def flush_headers(self) -> None:
            _write_slowly(self.wfile.write, self._headers_buffer, self.head_pause, stopped)
            self._headers_buffer = []

        def _write(self, answer: Answer) -> None:
            self.head_pause = answer.head_pause
            self.send_response(answer.status)
            self.send_header("content-type", answer.content_type)
            for name, header in answer.headers.items():
                self.send_header(name, header)
            chunked = answer.promised is None and answer.status != NO_CONTENT
            if chunked:
                self.send_header("transfer-encoding", "chunked")
            elif answer.promised is not None:
                self.send_header("content-length", str(answer.promised))
            self.end_headers()
            for number, piece in enumerate(answer.pieces):
                if number:
                    stopped.wait(answer.pause)
                if piece and not stopped.is_set():
                    self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece) if chunked else piece)
            if chunked:
                self.wfile.write(b"0\r\n\r\n")

        def _reset(self) -> None:
            """Close the connection with zero linger, which resets it."""
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()

        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the name is the base class's
            """Do nothing: tests print nothing."""

    return Handler


def _write_slowly(write: Callable[[bytes], Any], pieces: list[bytes], pause: float, stopped: threading.Event) -> None:
    """Write the bytes at once, or one by one with a pause after each."""
    data = b"".join(pieces)
    for piece in (data[at : at + 1] for at in range(len(data))) if pause else (data,):
        write(piece)
        stopped.wait(pause)


def _json(data: bytes) -> Any:
    try:
        return jsonio.decode(data)
    except jsonio.NotJSON:
        return None


LONGEST_START = 20.0


def uvicorn_module() -> Any:
    import uvicorn

    return uvicorn


@contextmanager
def served(app: Any, **options: Any) -> Iterator[str]:
    """Serve `app` with uvicorn, as `midfold serve` does, until the block ends; `options` are uvicorn's."""
    uvicorn = uvicorn_module()
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    usual = {"log_level": "critical", "lifespan": "on", "server_header": False, "date_header": False}
    config = uvicorn.Config(app, **{**usual, "timeout_graceful_shutdown": 2, **options})
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
    thread.start()
    ends = time.monotonic() + LONGEST_START
    while not server.started:
        if not thread.is_alive() or time.monotonic() > ends:
            raise RuntimeError("the server did not start")
        time.sleep(0.002)
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()


def at_once(work: Callable[[int], None], count: int) -> None:
    """Call `work` in `count` threads with their numbers, and re-raise what one raises."""
    with ThreadPoolExecutor(count) as pool:
        list(pool.map(work, range(count)))
