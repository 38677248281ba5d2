"""Worker process that appends to and compacts sessions until stopped or killed, and checks for the results.

    python store_worker.py URL NAME SESSIONS SECONDS SEED

Every acknowledged append is printed to standard output in one write, directly after it returned.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import IO

WINDOW = 6_000


def main(url: str, name: str, sessions: int, seconds: float, seed: int) -> None:
    import midfold

    choice = random.Random(seed)
    number = 0
    with midfold.open(url, lease_seconds=5) as store:
        store.session("s0", context_length=WINDOW)
        os.write(1, b"ready\n")
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            session = store.session(f"s{choice.randrange(sessions)}", context_length=WINDOW)
            kind = choice.random()
            if kind < 0.75:
                marks = [f"{name}-{number + offset}" for offset in range(choice.choice((1, 1, 2, 5)))]
                number += len(marks)
                texts = [f"{mark} " + "word " * choice.randrange(150) for mark in marks]
                session.append([{"role": "user", "content": text} for text in texts])
                os.write(1, "".join(f"{session.name} {mark}\n" for mark in marks).encode())
            elif kind < 0.93:
                receipt = session.compact(force=choice.random() < 0.3).receipt
                os.write(1, f"# {receipt.status}\n".encode())
            elif session.info is not None:
                view = session.view()
                assert view.messages or not session.info.count
                store.search(f"{name}-{choice.randrange(number + 1)}", limit=3)


def start(url: str, name: str, sessions: int, seconds: float, log: Path) -> subprocess.Popen[bytes]:
    """Start a worker that logs acknowledged appends to `log`."""
    file: IO[bytes]
    with log.open("ab") as file:
        arguments = [sys.executable, __file__, url, name, str(sessions), str(seconds), str(sum(name.encode()))]
        return subprocess.Popen(arguments, stdout=file, stderr=subprocess.PIPE)


def acknowledged(logs: list[Path]) -> dict[str, set[str]]:
    """Return acknowledged marks by session, ignoring lines truncated by a kill."""
    promised: dict[str, set[str]] = {}
    for log in logs:
        for line in log.read_bytes().decode().split("\n")[:-1]:
            session, _, mark = line.partition(" ")
            if mark and session != "#":
                promised.setdefault(session, set()).add(mark)
    return promised


def assert_nothing_lost_or_doubled(url: str, promised: dict[str, set[str]]) -> int:
    """Check that every acknowledged append is stored once, in writer order, and no two compactions share a span."""
    import midfold

    total = 0
    with midfold.open(url) as store:
        assert store.check(deep=True) == []
        for info in store.all(10_000):
            session = store.session(info.name)
            marks = [message["content"].split(" ", 1)[0] for message in session.history()]
            total += len(marks)
            assert [mark for mark, count in Counter(marks).items() if count > 1] == []
            assert promised.get(info.name, set()) <= set(marks)
            for writer in {mark.rpartition("-")[0] for mark in marks}:
                numbers = [int(mark.rpartition("-")[2]) for mark in marks if mark.rpartition("-")[0] == writer]
                assert numbers == sorted(numbers)
            records = session.receipts()
            bases = [record.base for record in records if record.undone is None]
            assert len(bases) == len(set(bases))
            fences = [record.fence for record in records]
            assert fences == sorted(set(fences))
        assert set(promised) <= {info.name for info in store.all(10_000)}
    return total


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4]), int(sys.argv[5]))
