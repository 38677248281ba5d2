"""Measure whether a gateway still answers while one client puts load on it, with a provider for such tests."""

from __future__ import annotations

import http.client
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

EVERY = 0.02
PATIENCE = 120.0
ANSWER = (
    b'{"id":"x","choices":[{"index":0,"message":{"role":"assistant","content":"ok"},"finish_reason":"stop"}],'
    b'"usage":{"prompt_tokens":10,"completion_tokens":1,"total_tokens":11}}'
)
PLAIN = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(ANSWER) + ANSWER


class Pulse:
    """Client that polls `/healthz` on one connection; `longest` is the maximum response time."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)
        self.answers: list[float] = []

    @property
    def longest(self) -> float:
        return max(self.answers, default=PATIENCE)

    def _ask(self) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=PATIENCE)
        try:
            while not self._over.wait(EVERY):
                asked = time.perf_counter()
                try:
                    connection.request("GET", "/healthz")
                    fine = connection.getresponse().read().startswith(b'{"status":"ok"')
                except (OSError, http.client.HTTPException):
                    fine = False
                self.answers.append(time.perf_counter() - asked if fine else PATIENCE)
        finally:
            connection.close()

    def wait(self) -> None:
        """Wait for the first response."""
        ends = time.monotonic() + PATIENCE
        while not self.answers and time.monotonic() < ends:
            time.sleep(0.005)

    def __enter__(self) -> Pulse:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join(PATIENCE)


Answering = Callable[[socket.socket], None]


def answered(connection: socket.socket) -> None:
    connection.sendall(PLAIN)


@contextmanager
def provider(answering: Answering = answered) -> Iterator[str]:
    """Run a provider that discards request bodies of any size and answers each connection once."""
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)

    def serve() -> None:
        with suppress(OSError):
            while True:
                connection, _ = listener.accept()
                threading.Thread(target=one, args=(connection,), daemon=True).start()

    def one(connection: socket.socket) -> None:
        with connection, suppress(OSError, ValueError):
            while (length := _head(connection)) is not None:
                _skip(connection, length)
                answering(connection)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


def _head(connection: socket.socket) -> int | None:
    """Read the headers and return the length of the body."""
    data = b""
    while not data.endswith(b"\r\n\r\n"):
        piece = connection.recv(1)
        if not piece:
            return None
        data += piece
    lengths = [line.partition(b":")[2] for line in data.lower().split(b"\r\n") if line.startswith(b"content-length:")]
    return int(lengths[0]) if lengths else 0


def _skip(connection: socket.socket, left: int) -> None:
    buffer = bytearray(1 << 16)
    while left > 0:
        count = connection.recv_into(buffer, min(left, len(buffer)))
        if not count:
            raise ConnectionError
        left -= count
