"""Batches on a Ray cluster: the same worker function, on as many machines as there are.

Rules of this file:
1. Only this machine reads and writes files; batches travel through Ray, so the others need no shared folder.
2. Ray gives a batch to another worker when its worker or its machine is lost; after that this file tries once more
   before the records are reported as failed.
3. Nothing is sent to anybody: no usage statistics, no dashboard.
"""

from __future__ import annotations

import importlib
import os
import socket
from typing import Any

from midfold import __version__
from midfold.errors import MidfoldError, MissingExtra
from midfold.trajectory.executors import LOST, MOST_ATTEMPTS, Ticket
from midfold.trajectory.work import Done, Task, given_up, work

RETRIES = 5
SECONDS_TO_CONNECT = 10
QUIET = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_DISABLE_IMPORT_WARNING": "1", "RAY_DEDUP_LOGS": "0"}


class OnRay:
    """A Ray cluster by its address, or one of this machine's own."""

    def __init__(self, address: str | None = None, workers: int | None = None) -> None:
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
        self._running: dict[Any, tuple[Ticket, Task, int]] = {}

    def _connect(self, address: str | None, workers: int | None) -> None:
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "configure_logging": False}
        if address is None:
            options |= {"include_dashboard": False, "num_cpus": workers}
        else:
            _knock(address)
        try:
            self._ray.init(address=address, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise MidfoldError(
                f"no Ray cluster could be reached at {address or 'this machine'}: {str(error).splitlines()[0]}"
            ) from None

    @property
    def pending(self) -> int:
        return len(self._running)

    def submit(self, ticket: Ticket, task: Task) -> None:
        self._give(ticket, task, 1)

    def _give(self, ticket: Ticket, task: Task, attempt: int) -> None:
        self._running[self._work.remote(task, __version__)] = (ticket, task, attempt)

    def next(self) -> tuple[Ticket, Done]:
        while True:
            ready, _ = self._ray.wait(list(self._running), num_returns=1)
            ticket, task, attempt = self._running.pop(ready[0])
            try:
                done: Done = self._ray.get(ready[0])
            except self._ray.exceptions.RayTaskError as error:
                if isinstance(error.cause, MidfoldError):
                    raise error.cause from None
                raise
            except self._ray.exceptions.RayError:
                if attempt >= MOST_ATTEMPTS:
                    return ticket, given_up(task, LOST)
                self._give(ticket, task, attempt + 1)
            else:
                return ticket, done

    def close(self) -> None:
        for reference in self._running:
            self._ray.cancel(reference, force=True)
        self._running.clear()
        if self._ours:
            self._ray.shutdown()


def _knock(address: str) -> None:
    """Whether anybody listens there: Ray itself would try for minutes."""
    host, _, port = address.rpartition("//")[2].rpartition(":")
    if not port.isdigit():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), SECONDS_TO_CONNECT).close()
    except OSError as error:
        reason = error.strerror or error
        raise MidfoldError(f"no Ray cluster could be reached at {address}: {reason}") from None


def _work_of(task: Task, version: str) -> Done:
    if version != __version__:
        raise MidfoldError(f"this machine has midfold {__version__}, the one that reads the files {version}")
    import msgspec

    ray: Any = importlib.import_module("ray")
    node = ray.get_runtime_context().get_node_id()
    return msgspec.structs.replace(work(task), worker=f"{node[:8]}/{os.getpid()}")
