"""Attacker tools for tests: raw bytes on a socket, and a listener that records every request it receives."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self
from urllib.parse import urlsplit

import midfold
from midfold.config import Config
from midfold.gateway import create_app
from midfold.gateway.metrics import Operations
from midfold.gateway.server import PatientProtocol
from midfold.session.sessions import Sessions
from midfold.testing.doubles import served

PROVIDERS_KEY = "sk-of-the-provider-0123456789"


@contextmanager
def behind_the_door(
    config: Config, environment: Mapping[str, str] | None = None, sessions: Sessions | None = None
) -> Iterator[str]:
    """Run everything of `midfold serve` except its process: HTTP protocol, access checks and gateway."""
    own = sessions or midfold.open("memory:")
    given = {"K": PROVIDERS_KEY} if environment is None else environment
    app = Operations(config, own).around(create_app(config, sessions=own, environment=given))
    with served(app, http=PatientProtocol, ws="none") as url:
        yield url
    if sessions is None:
        own.close()


def raw(url: str, *pieces: bytes, seconds: float = 10.0, answers: int = 1) -> bytes:
    """Send each piece in its own segment and return the reply, up to `answers` responses with their bodies."""
    place = urlsplit(url)
    with socket.create_connection((place.hostname or "", place.port or 80), timeout=seconds) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for piece in pieces:
            connection.sendall(piece)
            threading.Event().wait(0.05 if len(pieces) > 1 else 0)
        got = b""
        while not _is_whole(got, answers):
            try:
                more = connection.recv(65_536)
            except ConnectionError:
                break
            if not more:
                break
            got += more
        return got


def _is_whole(got: bytes, answers: int) -> bool:
    for _ in range(answers):
        head, found, got = got.partition(b"\r\n\r\n")
        if not found:
            return False
        lines = head.lower().split(b"\r\n")
        if b"transfer-encoding: chunked" in lines:
            _, found, got = got.partition(b"0\r\n\r\n")
            if not found:
                return False
            continue
        length = next((int(line.partition(b":")[2]) for line in lines if line.startswith(b"content-length:")), 0)
        if len(got) < length:
            return False
        got = got[length:]
    return True


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


class Listener:
    """Attacker-controlled host that answers and records every request."""

    def __init__(self, answer: bytes = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}") -> None:
        self.heard: list[bytes] = []
        self._answer = answer
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.place = f"127.0.0.1:{self._socket.getsockname()[1]}"
        self.url = f"http://{self.place}"

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *problem: Any) -> None:
        self._socket.close()

    def _listen(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection:
            while data := connection.recv(65_536):
                self.heard.append(data)
                connection.sendall(self._answer)
