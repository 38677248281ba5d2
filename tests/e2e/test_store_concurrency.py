"""Many processes on one store, some of them killed: nothing is lost, duplicated or incomplete.

Scaled down here; `make soak` (MIDFOLD_SOAK=1) runs at the documented sizes.
"""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

import pytest

from support.store_worker import acknowledged, assert_nothing_lost_or_doubled, start

SOAK = bool(os.environ.get("MIDFOLD_SOAK"))
PROCESSES, SESSIONS, SECONDS = (8, 20, 60.0) if SOAK else (3, 4, 2.0)
KILLS, AT_ONCE = (200, 4) if SOAK else (12, 3)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "postgres":
        address: str = request.getfixturevalue("postgres_url")
        return address
    return f"sqlite:///{tmp_path}/s.db"


def test_many_processes_append_and_compact(url: str, tmp_path: Path) -> None:
    logs = [tmp_path / f"{number}.log" for number in range(PROCESSES)]
    workers = [start(url, f"w{number}", SESSIONS, SECONDS, log) for number, log in enumerate(logs)]
    for worker in workers:
        _, errors = worker.communicate(timeout=SECONDS + 120)
        assert worker.returncode == 0, errors.decode()[-2_000:]
    promised = acknowledged(logs)
    total = assert_nothing_lost_or_doubled(url, promised)
    assert total == sum(map(len, promised.values()))
    outcomes = b"".join(log.read_bytes() for log in logs)
    assert b"# compacted" in outcomes


def test_processes_killed_at_any_moment(url: str, tmp_path: Path) -> None:
    choice = random.Random(7)
    logs: list[Path] = []
    for number in range(0, KILLS, AT_ONCE):
        batch = [tmp_path / f"k{number + offset}.log" for offset in range(min(AT_ONCE, KILLS - number))]
        workers = [start(url, log.stem, 3, 60.0, log) for log in batch]
        logs += batch
        for worker, log in zip(workers, batch, strict=True):
            _wait_until_ready(log)
            time.sleep(choice.random() * 0.25)
            worker.kill()
            worker.communicate()
            assert worker.returncode == -9
    assert_nothing_lost_or_doubled(url, acknowledged(logs))


def _wait_until_ready(log: Path) -> None:
    end = time.monotonic() + 60
    while b"ready" not in log.read_bytes():
        assert time.monotonic() < end, "the worker did not start"
        time.sleep(0.01)
