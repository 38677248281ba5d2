"""Run the model as a server on a loopback port, and read requests and token counts from its log.

The log gives counts that are independent of midfold.
"""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from e2e.environment import HOME

HOST = "127.0.0.1"
MODEL = "smollm2-135m-instruct"
LONGEST_START = 120.0
_REQUEST = re.compile(r'"POST [^"]*/chat/completions HTTP/1\.1" (\d{3})')
_READ = re.compile(r"prompt eval time =.*?/\s*(\d+) tokens")
_REUSED = re.compile(r"(\d+) prefix-match hit")
_WRITTEN = re.compile(r"(?<!prompt )eval time =.*?/\s*(\d+) runs")


class Witnessed(NamedTuple):
    """Requests and tokens that the server logged since the last call."""

    statuses: tuple[int, ...]
    read: int
    written: int


class Server:
    """Model server; a context manager: `with Server(python, file, window) as server:`."""

    def __init__(self, python: Path, file: Path, window: int) -> None:
        self.window = window
        self.port = free_port()
        self.url = f"http://{HOST}:{self.port}/v1"
        self.log = HOME / f"server-{window}.log"
        self._place = 0
        arguments = {"model": file, "model_alias": MODEL, "n_ctx": window, "host": HOST, "port": self.port}
        arguments |= {"n_threads": 1, "n_threads_batch": 1}
        options = [f"--{name}={value}" for name, value in arguments.items()]
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                [str(python), "-m", "llama_cpp.server", *options],
                stdout=log,
                stderr=log,
                env=os.environ | {"PYTHONUNBUFFERED": "1", "NO_PROXY": HOST},
            )

    def __enter__(self) -> Server:
        started = time.monotonic()
        while not self._answers():
            if self._process.poll() is not None or time.monotonic() - started > LONGEST_START:
                self.kill()
                sys.exit(f"the server did not start; its log ends with:\n{self._text()[-2_000:]}")
            time.sleep(0.25)
        self.witnessed()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill()

    def kill(self) -> None:
        """Kill the server, as in a crash."""
        self._process.kill()
        self._process.wait()

    def witnessed(self) -> Witnessed:
        """Return the requests and tokens logged since the last call."""
        if self._process.poll() is None:
            time.sleep(0.3)
        text = self._text()
        new, self._place = text[self._place :], len(text)
        read = [int(match) for pattern in (_READ, _REUSED) for match in pattern.findall(new)]
        return Witnessed(
            tuple(int(status) for status in _REQUEST.findall(new)),
            sum(read),
            sum(int(match) for match in _WRITTEN.findall(new)),
        )

    def _text(self) -> str:
        return self.log.read_text(encoding="utf-8", errors="replace")

    def _answers(self) -> bool:
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(f"{self.url}/models", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
