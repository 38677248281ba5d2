"""Filled store, and its pages on a real server on loopback."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import uvicorn

from midfold.pages import Access, app
from midfold.session.sessions import Sessions, open_sessions
from support.data import ROOT
from tools.pages_demo import Clock, replay

CODING, AIRLINE = "coding/agent", "airline"
HOSTILE = "<script>alert('x')</script>\"'&/..?#"
MARKUP = "<script>alert(1)</script><img src=x onerror=alert(2)> {{ 7*7 }} </pre></textarea>"
SECRET = "sk-" + "ant-api03-" + "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1Jk0Lz" * 2
WINDOW = 12_000


def filled(url: str = "memory:") -> Sessions:
    """Return a store with real transcripts, folded several times with reported usage, and a session with hostile
    content.
    """
    clock = Clock()
    sessions = open_sessions(url, clock=clock)
    for name, file, window in ((CODING, "coding-session", WINDOW), (AIRLINE, "airline-session", 128_000)):
        conversation = json.loads((ROOT / "examples" / f"{file}.json").read_text(encoding="utf-8"))
        replay(sessions, clock, conversation, began=time.time() - 7_200, name=name, window=window)
    session = sessions.session(HOSTILE, model=MARKUP)
    session.append([{"role": "user", "content": f"{MARKUP} my key is {SECRET}"}, {"role": "assistant", "content": ""}])
    return sessions


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    text: str

    @property
    def json(self) -> Any:
        return json.loads(self.text)


class Served(NamedTuple):
    """Running server."""

    port: int

    def get(self, path: str, *, method: str = "GET", host: str = "", **headers: str) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.putrequest(method, path, skip_host=True)
            for name, value in {"host": host or f"127.0.0.1:{self.port}", **headers}.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            body = answer.read().decode()
            return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, body)
        finally:
            connection.close()


@contextmanager
def served(sessions: Sessions, access: Access | None = None) -> Iterator[Served]:
    config = uvicorn.Config(app(sessions, access=access), port=0, log_level="error", lifespan="off")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        until = time.monotonic() + 20
        while not server.started and time.monotonic() < until:
            time.sleep(0.01)
        yield Served(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
