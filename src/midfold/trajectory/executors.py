"""Where batches are worked on: in this process, in a pool of processes, or on a Ray cluster (on_ray.py).

Rules of this file:
1. An executor only moves tasks; what comes back does not depend on which one it was, nor on how many workers it has.
2. A worker that dies takes no batch with it: another one gets it, `MOST_ATTEMPTS` times at most. Then its records are
   reported as failed and stay as they are.
3. Workers end with their parent, however it ends.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections import deque
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from typing import NamedTuple, Protocol

from midfold.trajectory.work import Done, Task, given_up, work

MOST_ATTEMPTS = 3
LOST = "every worker that took it died; is there enough memory?"


class Ticket(NamedTuple):
    """Which batch of which file a task is."""

    file: int
    number: int


class Executor(Protocol):
    """Takes tasks and gives back results in any order."""

    capacity: int
    """Tasks that are worth having on the way."""

    @property
    def pending(self) -> int:
        """Tasks that were given and have not come back."""
        ...

    def submit(self, ticket: Ticket, task: Task) -> None: ...

    def next(self) -> tuple[Ticket, Done]:
        """Waits for one result; there must be a task pending."""
        ...

    def close(self) -> None: ...


class Inline:
    """In this process."""

    capacity = 1

    def __init__(self) -> None:
        self._waiting: deque[tuple[Ticket, Task]] = deque()

    @property
    def pending(self) -> int:
        return len(self._waiting)

    def submit(self, ticket: Ticket, task: Task) -> None:
        self._waiting.append((ticket, task))

    def next(self) -> tuple[Ticket, Done]:
        ticket, task = self._waiting.popleft()
        return ticket, work(task)

    def close(self) -> None:
        self._waiting.clear()


class Pool:
    """In processes of this machine."""

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self.capacity = 2 * workers + 1
        self._pool = self._new_pool()
        self._running: dict[Future[Done], tuple[Ticket, Task, int]] = {}

    def _new_pool(self) -> ProcessPoolExecutor:
        return ProcessPoolExecutor(self._workers, multiprocessing.get_context("spawn"), _start_worker)

    @property
    def pending(self) -> int:
        return len(self._running)

    def submit(self, ticket: Ticket, task: Task) -> None:
        self._give(ticket, task, 1)

    def _give(self, ticket: Ticket, task: Task, attempt: int) -> None:
        try:
            future = self._pool.submit(work, task)
        except BrokenProcessPool:
            self._pool = self._new_pool()
            future = self._pool.submit(work, task)
        self._running[future] = (ticket, task, attempt)

    def next(self) -> tuple[Ticket, Done]:
        while True:
            finished, _ = wait(self._running, return_when=FIRST_COMPLETED)
            future = next(iter(finished))
            ticket, task, attempt = self._running.pop(future)
            try:
                return ticket, future.result()
            except BrokenProcessPool:
                if attempt >= MOST_ATTEMPTS:
                    return ticket, given_up(task, LOST)
                self._give(ticket, task, attempt + 1)

    def close(self) -> None:
        """Nothing is waited for: whatever is not finished is done again by the next run."""
        self._running.clear()
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _start_worker() -> None:
    """The parent handles an interrupt. A worker whose parent is gone has nobody to work for."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)
