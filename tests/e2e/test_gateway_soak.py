"""Two gateways on one PostgreSQL, clients that leave, a provider that misbehaves, and a gateway that is killed.

Scaled down here; `make soak` (MIDFOLD_SOAK=1) runs ten minutes with fifty sessions.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import httpx2

import midfold
from support.gateway_soak import MODEL, WINDOW, Client, Process, Run, gateway, killer, upstream

SOAK = bool(os.environ.get("MIDFOLD_SOAK"))
SESSIONS, SECONDS, KILL_EVERY = (50, 600.0, 20.0) if SOAK else (6, 5.0, 2.5)
GROWTH = 1.25
"""Of the memory after the first quarter; conversations grow for longer than that, and so does what is remembered."""


def test_nothing_is_lost_and_nobody_gets_anothers_answer(postgres_url: str, tmp_path: Path) -> None:
    provider = upstream(tmp_path / "upstream.log")
    config = tmp_path / "config.yaml"
    config.write_text(f"models:\n  {MODEL}:\n    context_window: {WINDOW}\ngateway:\n  timeout: 3\n")
    gateways = [gateway(config, provider.url, postgres_url, tmp_path / f"gateway{n}.log") for n in range(2)]
    during = Run(SECONDS)
    clients = [Client(number, gateways, during) for number in range(SESSIONS)]
    grown = asyncio.run(_run(clients, gateways, during))
    judged = httpx2.get(provider.url + "/soak").json()
    ended = [process.stop() for process in gateways]
    provider.stop()
    turns = sum(client.turn for client in clients)
    sys.stdout.write(f"\n{turns:,} turns; {dict(sorted(during.tally.items()))}; upstream {judged['tally']}; {grown}\n")
    assert [fault for client in clients for fault in client.faults] == []
    assert judged["faults"] == []
    assert ended == [0, 0]
    assert during.folds > 0
    _nothing_lost(postgres_url, clients)
    _no_growth(grown)


async def _run(clients: list[Client], gateways: list[Process], during: Run) -> dict[str, list[int]]:
    """Memory and open files of the gateway that is not killed: after a quarter of the time, and at the end."""
    grown: dict[str, list[int]] = {"kilobytes": [], "files": []}

    async def watch() -> None:
        for share in (0.25, 1.0):
            await asyncio.sleep(max(during.ends - SECONDS * (1 - share) - time.monotonic(), 0))
            grown["kilobytes"].append(gateways[1].memory())
            grown["files"].append(gateways[1].files())

    await asyncio.gather(watch(), killer(gateways[0], KILL_EVERY, during), *(client.run() for client in clients))
    return grown


def _nothing_lost(url: str, clients: list[Client]) -> None:
    """What the store has of a session is its history, in order, from the first turn on, each message once."""
    with midfold.open(url) as sessions:
        assert sessions.check(deep=True) == []
        stored = [session for session in sessions.store.sessions(1_000) if session.count]
        assert stored
        for info in stored:
            texts = [str(message["content"]) for message in sessions.session(info.name).history()]
            mark = texts[0].split(" ", 1)[0]
            sent = [message["content"] for message in next(one for one in clients if one.mark == mark).sent]
            assert texts == sent[: len(texts)], info.name


def _no_growth(grown: dict[str, list[int]]) -> None:
    early, late = grown["files"]
    assert late <= early + 3 * SESSIONS
    if SOAK:
        early, late = grown["kilobytes"]
        assert late < early * GROWTH, grown
