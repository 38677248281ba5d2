"""Running gateway for tests, and raw HTTP requests to it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import midfold
from midfold.config import Config
from midfold.config.schema import Compression, GatewaySettings, PromptCaching
from midfold.gateway import create_app
from midfold.gateway.exchange import RequestAccount
from midfold.models import ModelOverride
from midfold.session.sessions import Sessions
from midfold.testing.doubles import served

WINDOW = 32_768
STORY_SUMMARY = (
    "## Goal\nTell a story.\n\n## Progress\n### Done\n- most of it was told\n"
    + "".join(
        f"- the sentences of part {number} of the story that has no end were told, no tool in it\n"
        for number in range(25)
    )
    + "\n## Active State\n- the story goes on\n\n## Next Steps\n- the end"
)
"""Summary that a model writes about a story of many sentences."""


class Running:
    """Gateway; `accounts` has an entry for every finished request."""

    def __init__(self, url: str, app: Any, sessions: Sessions) -> None:
        self.url, self.app, self.sessions = url, app, sessions
        self.accounts: list[RequestAccount] = []
        app.gateway.accountants.append(self.accounts.append)

    def account(self, number: int = 0) -> RequestAccount:
        """Wait for the account entry of a request: it is written after the response was relayed, so a client may be
        earlier.
        """
        ends = time.monotonic() + 20
        while len(self.accounts) <= number and time.monotonic() < ends:
            time.sleep(0.01)
        return self.accounts[number]

    def post(self, path: str, body: Any, **headers: str) -> tuple[int, dict[str, str], bytes]:
        return call(self.url, "POST", path, body, **headers)


def settings(upstream: str | None, window: int = WINDOW, **gateway: Any) -> Config:
    compression = gateway.pop("compression", {})
    caching = gateway.pop("caching", "auto")
    return Config(
        gateway=GatewaySettings(upstream=upstream, **gateway),
        compression=Compression(**compression),
        prompt_caching=PromptCaching(enabled=caching),
        models={"*": ModelOverride(context_window=window)},
    )


@contextmanager
def running(
    upstream: str, *, sessions: Sessions | None = None, config: Config | None = None, **options: Any
) -> Iterator[Running]:
    own = sessions or midfold.open("memory:")
    app = create_app(config or settings(upstream, **options), sessions=own, environment={})
    with served(app) as url:
        yield Running(url, app, own)
    if sessions is None:
        own.close()


def call(url: str, method: str, path: str, body: Any = b"", **headers: str) -> tuple[int, dict[str, str], bytes]:
    """Send one request on a new connection; underscores in header names become hyphens."""
    place = urlsplit(url)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=30)
    try:
        given = {name.replace("_", "-"): text for name, text in headers.items()}
        connection.request(method, path, data, given)
        answer = connection.getresponse()
        return answer.status, {name.lower(): text for name, text in answer.getheaders()}, answer.read()
    finally:
        connection.close()


@contextmanager
def serving(config: Path, port: int, told: Path | None = None) -> Iterator[subprocess.Popen[bytes]]:
    """Run a gateway process and kill it at the end; its output goes to the file `told`."""
    command = [sys.executable, "-m", "midfold", "serve", "--config", str(config), "--port", str(port)]
    with (told or Path(os.devnull)).open("ab") as out:
        process = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, "SUMMARY_KEY": "k"})
    try:
        ends = time.monotonic() + 60
        while time.monotonic() < ends:
            try:
                call(f"http://127.0.0.1:{port}", "GET", "/healthz")
                break
            except ConnectionError:
                time.sleep(0.05)
        yield process
    finally:
        process.kill()
        process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
