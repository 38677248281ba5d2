"""The model client reuses its connection and recovers from a lost one, as counted by a real server on loopback."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Literal

import pytest

from midfold.agent import ModelClient
from midfold.errors import ModelFailed
from midfold.model.endpoint import Endpoint

BODY = b'{"choices":[{"message":{"role":"assistant","content":"Hello."},"finish_reason":"stop"}]}'
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
Habit = Literal["keeps", "closes after it", "closes instead", "breaks off"]


class Server:
    """Server that counts connections and requests, with a scripted action per request number; by default it keeps
    alive.
    """

    def __init__(self, habits: dict[int, Habit]) -> None:
        self.habits = habits
        self.connections = self.requests = 0
        self.closed = threading.Event()
        self._socket = socket.create_server(("127.0.0.1", 0))
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def endpoint(self) -> Endpoint:
        port = self._socket.getsockname()[1]
        return Endpoint(name="counted", wire="openai", base_url=f"http://127.0.0.1:{port}/v1", model="m")

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._socket.accept()
                self.connections += 1
                threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, connection.makefile("rb") as lines:
            while self._answered(connection, lines):
                pass
        self.closed.set()

    def _answered(self, connection: socket.socket, lines: object) -> bool:
        """Read one request and perform its scripted action; return whether the connection stays open."""
        length = 0
        while (line := lines.readline()) not in (b"\r\n", b""):  # type: ignore[attr-defined]
            name, _, value = line.partition(b":")
            length = int(value) if name.lower() == b"content-length" else length
        if not line:
            return False
        lines.read(length)  # type: ignore[attr-defined]
        self.requests += 1
        habit = self.habits.get(self.requests, "keeps")
        if habit == "closes instead":
            return False
        connection.sendall(HEAD % len(BODY) + (BODY[:40] if habit == "breaks off" else BODY))
        return habit == "keeps"

    def stop(self) -> None:
        self._socket.close()


@contextmanager
def served(habits: dict[int, Habit] | None = None) -> Iterator[tuple[Server, ModelClient, list[ModelFailed]]]:
    server = Server(habits or {})
    retries: list[ModelFailed] = []
    with ModelClient(server.endpoint, sleep=lambda seconds: None) as client:
        yield server, client, retries
    server.stop()


def ask(client: ModelClient, retries: list[ModelFailed]) -> str:
    return client.ask(b"{}", lambda text: None, lambda failed, seconds: retries.append(failed)).text


def test_requests_share_one_connection_and_leaving_closes_it() -> None:
    with served() as (server, client, retries):
        assert [ask(client, retries) for _ in range(5)] == ["Hello."] * 5
        assert (server.connections, server.requests) == (1, 5)
        assert not server.closed.is_set()
    assert server.closed.wait(10)
    assert retries == []


def test_a_closed_client_opens_a_new_connection_when_it_is_asked() -> None:
    with served() as (server, client, retries):
        ask(client, retries)
        client.close()
        assert server.closed.wait(10)
        assert ask(client, retries) == "Hello."
        assert server.connections == 2


def test_a_connection_that_the_server_dropped_between_requests_is_replaced_without_a_word() -> None:
    with served({2: "closes after it"}) as (server, client, retries):
        for _ in range(2):
            ask(client, retries)
        assert server.closed.wait(10)
        assert ask(client, retries) == "Hello."
        assert (server.connections, server.requests) == (2, 3)
    assert retries == []


def test_a_connection_that_breaks_under_a_request_is_replaced_once_without_a_word() -> None:
    with served({2: "closes instead"}) as (server, client, retries):
        ask(client, retries)
        assert ask(client, retries) == "Hello."
        assert (server.connections, server.requests) == (2, 3)
    assert retries == []


def test_a_server_that_always_hangs_up_is_tried_a_few_times_and_told() -> None:
    hangs_up: dict[int, Habit] = dict.fromkeys(range(2, 20), "closes instead")
    with served(hangs_up) as (server, client, retries):
        ask(client, retries)
        with pytest.raises(ModelFailed, match="closed its response early"):
            ask(client, retries)
        assert len(retries) == client.tries - 1
        assert server.requests == 1 + 1 + client.tries


def test_an_answer_that_breaks_off_is_told_before_it_is_asked_for_again() -> None:
    with served({2: "breaks off"}) as (server, client, retries):
        ask(client, retries)
        assert ask(client, retries) == "Hello."
        assert server.connections == 2
    assert [failed.kind for failed in retries] == ["malformed"]
