"""Executors for batches: this process, a process pool, or a Ray cluster.

An executor only moves tasks; results do not depend on the executor or its number of workers. A batch whose worker dies
is given to another one, at most `MOST_ATTEMPTS` times; then its records are reported as failed and left unchanged.
Workers end with their parent, however it ends. On Ray only this machine reads and writes files, and nothing is reported
to third parties: no usage statistics, no dashboard.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import socket
import sys
import threading
from abc import ABC, abstractmethod
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Any, NamedTuple

import msgspec

from midfold import __version__
from midfold.errors import MidfoldError, MissingExtra
from midfold.lab.processes import leave_safe_path, safe_path
from midfold.lab.trajectory_work import FinishedBatch, Task, give_up, work

MOST_ATTEMPTS = 3
LOST = "every worker that ran it died; is there enough memory?"


class Ticket(NamedTuple):
    """File and batch number of a task."""

    file: int
    number: int


class WorkerLost(Exception):
    """Loss of the worker that had a task."""


class Executor(ABC):
    """Base of executors, which take tasks and return results in any order."""

    capacity = 1
    """Number of tasks worth having in flight."""

    def __init__(self) -> None:
        self._running: dict[Any, tuple[Ticket, Task, int]] = {}

    @property
    def pending(self) -> int:
        """The number of submitted tasks without a result."""
        return len(self._running)

    def submit(self, ticket: Ticket, task: Task, attempt: int = 1) -> None:
        self._running[self._begin(task)] = (ticket, task, attempt)

    def next(self) -> tuple[Ticket, FinishedBatch]:
        """Wait for one result; at least one task must be pending."""
        while True:
            handle = self._first_done()
            ticket, task, attempt = self._running.pop(handle)
            try:
                return ticket, self._result(handle)
            except WorkerLost:
                if attempt >= MOST_ATTEMPTS:
                    return ticket, give_up(task, LOST)
                self.submit(ticket, task, attempt + 1)

    @abstractmethod
    def _begin(self, task: Task) -> Any:
        """Start a task and return an object that represents it."""

    @abstractmethod
    def _first_done(self) -> Any: ...

    @abstractmethod
    def _result(self, handle: Any) -> FinishedBatch: ...

    @abstractmethod
    def close(self) -> None:
        """Stop without waiting; the next run repeats unfinished work."""


class Inline(Executor):
    """Executor in this process."""

    def _begin(self, task: Task) -> Any:
        return partial(work, task)

    def _first_done(self) -> Any:
        return next(iter(self._running))

    def _result(self, handle: Any) -> FinishedBatch:
        done: FinishedBatch = handle()
        return done

    def close(self) -> None:
        self._running.clear()


class Pool(Executor):
    """Executor with processes on this machine."""

    def __init__(self, workers: int) -> None:
        super().__init__()
        self._workers = workers
        self.capacity = 2 * workers + 1
        self._pool = self._new_pool()

    def _new_pool(self) -> ProcessPoolExecutor:
        with safe_path():
            pool = ProcessPoolExecutor(self._workers, multiprocessing.get_context("spawn"), _start_worker)
        queue: Any = getattr(pool, "_call_queue", None)
        if queue is not None and sys.version_info < (3, 11, 5):
            # On those versions, a pool whose workers are gone waits forever on a full pipe (python/cpython#94777).
            queue.cancel_join_thread()
        return pool

    def _begin(self, task: Task) -> Any:
        with safe_path():
            try:
                return self._pool.submit(work, task)
            except BrokenProcessPool:
                self._pool = self._new_pool()
                return self._pool.submit(work, task)

    def _first_done(self) -> Any:
        return next(iter(wait(self._running, return_when=FIRST_COMPLETED).done))

    def _result(self, handle: Any) -> FinishedBatch:
        try:
            done: FinishedBatch = handle.result()
        except BrokenProcessPool:
            raise WorkerLost from None
        return done

    def close(self) -> None:
        self._running.clear()
        processes = list((getattr(self._pool, "_processes", None) or {}).values())
        self._pool.shutdown(wait=False, cancel_futures=True)
        for process in processes:
            process.terminate()


def _start_worker() -> None:
    """Ignore interrupts, which the parent handles, and end when the parent is gone."""
    leave_safe_path()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: multiprocessing.process.BaseProcess) -> None:
    parent.join()
    os._exit(1)


RETRIES = 5
SECONDS_TO_CONNECT = 10
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_DEDUP_LOGS": "0"}


class OnRay(Executor):
    """Executor on a Ray cluster, by its address or a local one."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
        super().__init__()
        for name, value in QUIET.items():
            os.environ.setdefault(name, value)
        try:
            self._ray: Any = importlib.import_module("ray")
        except ImportError:
            raise MissingExtra("the Ray executor", "ray") from None
        self._ours = not self._ray.is_initialized()
        if self._ours:
            self._connect(address, workers)
        slots = int(self._ray.cluster_resources().get("CPU", 1))
        self.capacity = 2 * (min(workers, slots) if workers and address else slots) + 1
        self._work: Any = self._ray.remote(max_retries=RETRIES, num_cpus=1)(_work_of)

    def _connect(self, address: str | None, workers: int | None) -> None:
        job = self._ray.job_config.JobConfig()
        # Otherwise Ray puts the working directory first on the workers' module search path.
        job._client_job = True
        begin = partial(
            self._ray.init,
            # Without an address Ray joins any cluster on this machine, whose workers import from where it was started.
            address=address or "local",
            job_config=job,
            log_to_driver=False,
            logging_level="ERROR",
            configure_logging=False,
        )
        if address is None:
            begin = partial(begin, include_dashboard=False, num_cpus=workers)
        else:
            _check_reachable(address)
        try:
            begin()
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise MidfoldError(
                f"no Ray cluster could be reached at {address or 'this machine'}: {str(error).splitlines()[0]}"
            ) from None

    def _begin(self, task: Task) -> Any:
        return self._work.remote(task, __version__)

    def _first_done(self) -> Any:
        return self._ray.wait(list(self._running), num_returns=1)[0][0]

    def _result(self, handle: Any) -> FinishedBatch:
        try:
            done: FinishedBatch = self._ray.get(handle)
        except self._ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, MidfoldError):
                raise error.cause from None
            raise
        except self._ray.exceptions.RayError:
            raise WorkerLost from None
        return done

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._ours:
            self._ray.shutdown()


def _check_reachable(address: str) -> None:
    """Raise if nothing listens at the address: Ray itself would retry for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except OSError as error:
        reason = error.strerror or error
        raise MidfoldError(f"no Ray cluster could be reached at {address}: {reason}") from None


def _work_of(task: Task, version: str) -> FinishedBatch:
    if version != __version__:
        raise MidfoldError(f"this machine has midfold {__version__}, the one that reads the files {version}")
    ray: Any = importlib.import_module("ray")
    node = ray.get_runtime_context().get_node_id()
    return msgspec.structs.replace(work(task), worker=f"{node[:8]}/{os.getpid()}")
