"""Two gateways on one PostgreSQL, clients that disconnect, a misbehaving provider, and a gateway that is killed.

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
GROWTH = 1.1
"""Maximum growth of memory from the third to the last quarter of the time: bounded caches may still be filling."""


def test_nothing_is_lost_and_nobody_gets_anothers_answer(postgres_url: str, tmp_path: Path) -> None:
    provider = upstream(tmp_path / "upstream.log")
    config = tmp_path / "config.yaml"
    config.write_text(f"models:\n  {MODEL}:\n    context_window: {WINDOW}\ngateway:\n  timeout: 3\n")
    gateways = [gateway(config, provider.url, postgres_url, tmp_path / f"gateway{n}.log") for n in range(2)]
    during = Run(SECONDS)
    clients = [Client(number, gateways, during) for number in range(SESSIONS)]
    grown = asyncio.run(_run(clients, gateways, during))
    judged = httpx2.get(provider.url + "/soak").json()
    spent = gateways[1].processor()
    ended = [process.stop() for process in gateways]
    provider.stop()
    sys.stdout.write(_table(clients, during, judged["tally"], grown, spent))
    assert [fault for client in clients for fault in client.faults] == []
    assert judged["faults"] == []
    assert ended == [0, 0]
    assert during.folds > 0
    _nothing_lost(postgres_url, clients)
    _no_growth(grown)
    _no_traceback(tmp_path)


async def _run(clients: list[Client], gateways: list[Process], during: Run) -> dict[str, list[int]]:
    """Return memory and open files of the gateway that is not killed, after each quarter of the time."""
    grown: dict[str, list[int]] = {"kilobytes": [], "files": []}

    async def watch() -> None:
        for share in (0.25, 0.5, 0.75, 1.0):
            await asyncio.sleep(max(during.ends - SECONDS * (1 - share) - time.monotonic(), 0))
            grown["kilobytes"].append(gateways[1].memory())
            grown["files"].append(gateways[1].files())

    await asyncio.gather(watch(), killer(gateways[0], KILL_EVERY, during), *(client.run() for client in clients))
    return grown


def _table(clients: list[Client], during: Run, moods: dict[str, int], grown: dict[str, list[int]], spent: float) -> str:
    tally = during.tally
    turns = sum(client.turns for client in clients)
    rows = {
        "clients, seconds": f"{len(clients)}, {SECONDS:g}",
        "conversations, turns": f"{sum(len(client.sent) for client in clients):,}, {turns:,}",
        "folds, after a refusal of the provider": f"{tally['action compacted']:,}, {tally['action recovered']:,}",
        "requests that found their fold": f"{tally['action checkpoint']:,}",
        "gateway killed with -9": f"{tally['gateway killed']}",
        "clients that left in the middle, slow uploads": f"{tally['left']:,}, {tally['slow uploads']:,}",
        "connections that broke": f"{sum(n for name, n in tally.items() if name.startswith('again')):,}",
        "the provider's moods": ", ".join(f"{name} {number:,}" for name, number in sorted(moods.items())),
        "answers by status": ", ".join(f"{name[7:]}: {n:,}" for name, n in sorted(tally.items()) if "status" in name),
        "memory by quarter, MB": ", ".join(f"{kilobytes / 1_024:.0f}" for kilobytes in grown["kilobytes"]),
        "open files by quarter": ", ".join(map(str, grown["files"])),
        "processor time of one gateway, s": f"{spent:.0f}",
    }
    width = max(map(len, rows))
    return "\n" + "".join(f"  {name:<{width}}  {value}\n" for name, value in rows.items())


def _nothing_lost(url: str, clients: list[Client]) -> None:
    """Check that the stored session equals the history from the first turn on, in order, each message once."""
    said = {mark: sent for client in clients for mark, sent in client.sent.items()}
    with midfold.open(url) as sessions:
        assert sessions.check(deep=True) == []
        stored = [session for session in sessions.store.sessions(1_000_000) if session.count]
        assert stored
        for info in stored:
            texts = [str(message["content"]) for message in sessions.session(info.name).history()]
            sent = [message["content"] for message in said[texts[0].split(" ", 1)[0]]]
            assert texts == sent[: len(texts)], info.name


def _no_growth(grown: dict[str, list[int]]) -> None:
    early, *_, late = grown["files"]
    assert late <= early + 3 * SESSIONS
    if SOAK:
        *_, before, last = grown["kilobytes"]
        assert last < before * GROWTH, grown


def _no_traceback(folder: Path) -> None:
    for log in folder.glob("gateway*.log"):
        assert "Traceback" not in log.read_text(errors="replace"), log.name
