"""Schedule full garbage collections of a gateway process for moments when they are short.

A full collection visits every container in memory while it holds the interpreter lock: with a request of 190,000
messages in memory each takes up to 0.65 s, and Python starts a dozen of them while such a request is folded.
Therefore:

1. Python collects only the young generations. Reference counting frees nearly everything; cycles can wait.
2. A thread runs a full collection when there is something to collect and no large request is in memory, and at
   least every `LONGEST_SECONDS`.
3. Objects loaded before the gateway started are never visited.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

CHECK_SECONDS = 5.0
LONGEST_SECONDS = 60.0
QUIET_BYTES = 1_000_000
"""Maximum bytes of unfinished requests at which a full collection is short."""
PENDING = 10
"""Collections of the middle generation that make a full one worthwhile; Python's default."""
NEVER = 1_000_000_000


@contextmanager
def quiet_collections(held_bytes: Callable[[], int]) -> Iterator[None]:
    """Run full collections only while few bytes of requests are in memory; restore Python's thresholds at the end."""
    young, middle, old = gc.get_threshold()
    over = threading.Event()
    thread = threading.Thread(target=_collect, args=(held_bytes, over), name="midfold-gc", daemon=True)
    gc.freeze()
    gc.set_threshold(young, middle, NEVER)
    thread.start()
    try:
        yield
    finally:
        over.set()
        gc.set_threshold(young, middle, old)
        gc.unfreeze()


def _collect(held_bytes: Callable[[], int], over: threading.Event) -> None:
    last = time.monotonic()
    while not over.wait(CHECK_SECONDS):
        if gc.get_count()[2] < PENDING:
            continue
        if held_bytes() <= QUIET_BYTES or time.monotonic() - last >= LONGEST_SECONDS:
            gc.collect()
            last = time.monotonic()
