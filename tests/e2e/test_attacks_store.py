"""A store that loses its file or disk: no write is acknowledged that would be lost, and `/readyz` reports it.

Runs a real `midfold serve` process.
"""

from __future__ import annotations

import json
import random
import resource
import sqlite3
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

import midfold
from midfold.errors import StoreUnavailable
from support.gateway_soak import Process, gateway
from support.gateways import call
from support.pulse import provider

PATH = "/v1/chat/completions"
LOST = "the file was deleted or replaced while open; restart to open the current one"
UNMANAGED = "not looked at: StoreUnavailable"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Process]:
    config = tmp_path / "config.yaml"
    config.write_text("models: {'*': {context_window: 32_768}}\n")
    with provider() as upstream:
        process = gateway(config, upstream, f"sqlite:///{tmp_path}/s.db", tmp_path / "log")
        try:
            yield process
        finally:
            process.kill()


def conversation(seed: int) -> dict[str, Any]:
    """Return a unique conversation that must be folded."""
    choice = random.Random(seed)
    words = [" ".join(choice.randbytes(8).hex() for _ in range(200)) for _ in range(41)]
    turns = [{"role": ("user", "assistant")[place % 2], "content": text} for place, text in enumerate(words)]
    return {"model": "m", "messages": turns}


def fold(process: Process, seed: int) -> dict[str, str]:
    status, headers, _ = call(process.url, "POST", PATH, conversation(seed))
    assert status == 200, "the client gets its answer, whatever became of the store"
    return headers


def readiness(process: Process) -> tuple[int, dict[str, Any]]:
    answer = httpx2.get(process.url + "/readyz")
    return answer.status_code, answer.json()


def remove(folder: Path) -> None:
    for file in folder.glob("s.db*"):
        file.unlink()


def replace_database(folder: Path) -> None:
    other = folder / "other.db"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE somebody_elses (x)")
    remove(folder)
    other.rename(folder / "s.db")


@pytest.mark.parametrize("lose", [remove, replace_database])
def test_deleted_or_replaced_database_is_reported_and_not_written(served: Process, tmp_path: Path, lose: Any) -> None:
    assert fold(served, 1)["x-midfold-action"] == "compacted"
    assert readiness(served) == (200, {"status": "ready", "store": "ok"})
    lose(tmp_path)
    status, told = readiness(served)
    assert (status, told["status"], told["store"]) == (503, "not ready", LOST)
    assert str(tmp_path) not in json.dumps(told)
    headers = fold(served, 2)
    assert (headers["x-midfold-action"], headers["x-midfold-reason"]) == ("relayed", UNMANAGED)


def test_restart_after_a_deletion_serves_again(served: Process, tmp_path: Path) -> None:
    fold(served, 1)
    remove(tmp_path)
    assert readiness(served)[0] == 503
    served.kill()
    served.start()
    assert readiness(served)[0] == 200
    assert fold(served, 2)["x-midfold-action"] == "compacted"


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the limit of another process is set")
def test_disk_that_cannot_be_written_is_reported(served: Process, tmp_path: Path) -> None:
    """A file size limit simulates a full disk; reading still works."""
    assert fold(served, 1)["x-midfold-action"] == "compacted"
    largest = max(file.stat().st_size for file in tmp_path.glob("s.db*"))
    resource.prlimit(served.running.pid, resource.RLIMIT_FSIZE, (largest + 4_096, resource.RLIM_INFINITY))
    reasons = [fold(served, seed).get("x-midfold-reason") for seed in range(2, 12)]
    assert UNMANAGED in reasons
    status, told = readiness(served)
    assert (status, told["status"]) == (503, "not ready")
    assert told["store"] == "the store failed less than 30 seconds ago; a request was passed unmanaged"


def test_open_session_refuses_to_write_to_a_deleted_file(tmp_path: Path) -> None:
    with midfold.open(f"sqlite:///{tmp_path}/s.db") as sessions:
        session = sessions.session("s", context_length=64_000)
        session.append([{"role": "user", "content": "hi"}])
        remove(tmp_path)
        with pytest.raises(StoreUnavailable, match="deleted or replaced"):
            session.append([{"role": "user", "content": "lost"}])
        assert not (tmp_path / "s.db").exists()
