"""Clients, gateways and process kills for soak runs; used by tests/e2e/test_gateway_soak.py."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import random
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2

WINDOW = 6_000
MODEL = "soak-model"
PATIENCE = 8.0
TURNS = (60, 140)
"""Turns per conversation; then the client starts a new one, so that the load stays constant."""


class Run:
    """Duration of a run: a number of seconds, extended on slow machines until something was folded."""

    LONGER = 60.0

    def __init__(self, seconds: float) -> None:
        self.ends = time.monotonic() + seconds
        self.tally: Counter[str] = Counter()

    @property
    def folds(self) -> int:
        return self.tally["action compacted"] + self.tally["action recovered"]

    def goes_on(self) -> bool:
        now = time.monotonic()
        return now < self.ends or (self.folds < 3 and now < self.ends + self.LONGER)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class Process:
    """Listening program that can be killed and restarted."""

    def __init__(self, arguments: list[str], port: int, probe: str, log: Path) -> None:
        self.arguments, self.port, self.probe, self.log = arguments, port, probe, log
        self.url = f"http://127.0.0.1:{port}"
        self.start()

    def start(self) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        with self.log.open("ab") as log:
            self.running = subprocess.Popen(self.arguments, stdout=log, stderr=log, env=environment)
        ends = time.monotonic() + 60
        while not self.answers():
            assert self.running.poll() is None, self.log.read_text(errors="replace")[-2_000:]
            assert time.monotonic() < ends, "it did not begin to listen"
            time.sleep(0.05)

    def answers(self) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(self.url + self.probe, timeout=2).status_code == 200
        return False

    def kill(self) -> None:
        self.running.kill()
        self.running.wait()

    def stop(self) -> int:
        self.running.terminate()
        return self.running.wait(60)

    def memory(self) -> int:
        """Return the resident memory in kilobytes."""
        status = Path(f"/proc/{self.running.pid}/status").read_text()
        return int(status.split("VmRSS:")[1].split()[0])

    def processor(self) -> float:
        """Return the processor time in seconds."""
        fields = Path(f"/proc/{self.running.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def files(self) -> int:
        return len(list(Path(f"/proc/{self.running.pid}/fd").iterdir()))


def upstream(log: Path, *mood: str) -> Process:
    """Start a provider with changing behaviour, or with a fixed one: good, slow, error, ..."""
    port = free_port()
    program = str(Path(__file__).with_name("soak_upstream.py"))
    return Process([sys.executable, program, str(port), str(WINDOW), *mood], port, "/soak", log)


def gateway(config: Path, target: str, store: str, log: Path) -> Process:
    port = free_port()
    arguments = [sys.executable, "-m", "midfold", "serve", "--port", str(port), "--upstream", target]
    return Process([*arguments, "--store", store, "--config", str(config)], port, "/healthz", log)


class Client:
    """Agent that keeps its whole history and sends it with each request to one of the gateways."""

    def __init__(self, number: int, gateways: list[Process], during: Run) -> None:
        self.number = number
        self.gateways, self.during, self.tally = gateways, during, during.tally
        self.choice = random.Random(number)
        self.sent: dict[str, list[dict[str, str]]] = {}
        """Messages sent, by the mark of their conversation."""
        self.turns = 0
        self.faults: list[str] = []
        self.begin()

    def begin(self) -> None:
        """Start a conversation with a new mark."""
        self.mark = f"S{self.number + 1_000 * len(self.sent)}."
        self.history: list[dict[str, str]] = []
        self.turn, self.last = 0, self.choice.randint(*TURNS)

    async def run(self) -> None:
        async with httpx2.AsyncClient(timeout=PATIENCE) as client:
            while self.during.goes_on():
                if self.turn >= self.last:
                    self.begin()
                self.turn += 1
                filler = " ".join(
                    f"{self.mark[:-1]}w{self.choice.randrange(10**6)}" for _ in range(self.choice.randrange(5, 60))
                )
                self.history.append({"role": "user", "content": f"{self.mark} T{self.turn} {filler}"})
                self.sent[self.mark] = list(self.history)
                said = await self.asked(client)
                if said is None:
                    self.history.pop()
                    self.turn -= 1
                else:
                    self.turns += 1
                    self.history.append({"role": "assistant", "content": said})
                await asyncio.sleep(self.choice.random() * 0.2)

    async def asked(self, client: httpx2.AsyncClient) -> str | None:
        """Return the answer, or None if there is none and the turn is abandoned."""
        while self.during.goes_on():
            target = self.choice.choice(self.gateways).url + "/v1/chat/completions"
            stream = self.choice.random() < 0.6
            body = {"model": MODEL, "messages": self.history, "stream": stream}
            try:
                said = await (self.streamed if stream else self.whole)(client, target, body)
            except (httpx2.HTTPError, OSError) as error:
                self.tally[f"again after {type(error).__name__}"] += 1
                await asyncio.sleep(0.1)
                continue
            if said is not None:
                return self.checked(said)
        return None

    async def whole(self, client: httpx2.AsyncClient, target: str, body: dict[str, Any]) -> str | None:
        slow = self.choice.random() < 0.05
        self.tally["slow uploads"] += slow
        answer = await client.post(target, content=_slowly(body)) if slow else await client.post(target, json=body)
        self.noted(answer)
        if answer.status_code != 200:
            return None
        said: str = answer.json()["choices"][0]["message"]["content"]
        return said

    async def streamed(self, client: httpx2.AsyncClient, target: str, body: dict[str, Any]) -> str | None:
        leave = self.choice.random() < 0.08
        said = ""
        async with client.stream("POST", target, json=body) as answer:
            self.noted(answer)
            if answer.status_code != 200:
                return None
            async for line in answer.aiter_lines():
                said += _delta(line)
                if leave and said:
                    self.tally["left"] += 1
                    return None
                if line == "data: [DONE]":
                    return said
        return None

    def noted(self, answer: httpx2.Response) -> None:
        self.tally[f"status {answer.status_code}"] += 1
        action = answer.headers.get("x-midfold-action")
        if action:
            self.tally[f"action {action}"] += 1

    def checked(self, said: str) -> str:
        if said != f"{self.mark} answer to T{self.turn}":
            self.faults.append(f"{self.mark} T{self.turn} was answered {said[:80]!r}")
        return said


async def _slowly(body: dict[str, Any]) -> AsyncIterator[bytes]:
    data = json.dumps(body).encode()
    for start in range(0, len(data), len(data) // 4 + 1):
        yield data[start : start + len(data) // 4 + 1]
        await asyncio.sleep(0.1)


def _delta(line: str) -> str:
    if not line.startswith("data: {"):
        return ""
    try:
        event = json.loads(line[6:])
    except ValueError:
        return ""
    choices = event.get("choices") or [{}]
    piece: str = choices[0].get("delta", {}).get("content", "")
    return piece


async def killer(target: Process, every: float, during: Run) -> None:
    """Kill a gateway with SIGKILL and restart it repeatedly, until shortly before the end."""
    while time.monotonic() + every < during.ends:
        await asyncio.sleep(every)
        target.kill()
        during.tally["gateway killed"] += 1
        await asyncio.to_thread(target.start)
