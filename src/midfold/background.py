"""Compaction off the critical path: prepared while the pressure is soft, swapped in when it is hard.

    background = BackgroundCompaction(host)
    messages = background.step(messages)       # before each request
    background.close()

Under SOFT pressure the fold is made in a thread and costs the agent nothing. Under HARD pressure `step` swaps it in,
waiting for it if it is still being made; without one, or with one that no longer fits, it compacts there and then, as
it does at a cheap moment where folds are scheduled.
"""

from __future__ import annotations

from concurrent.futures import Executor, Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any

from midfold.fold.budget import Pressure
from midfold.fold.request import Prepared
from midfold.host import EngineHost


class BackgroundCompaction:
    """One conversation's compactions, prepared ahead of time. It belongs to one thread, as its host does."""

    def __init__(self, host: EngineHost, executor: Executor | None = None) -> None:
        self.host = host
        self._own = None if executor is not None else ThreadPoolExecutor(1, thread_name_prefix="midfold")
        self._executor: Executor = executor or self._own or ThreadPoolExecutor(1)
        self._future: Future[Prepared | None] | None = None

    @property
    def in_flight(self) -> bool:
        return self._future is not None and not self._future.done()

    def step(self, messages: Any, current_tokens: int | None = None) -> Any:
        """The messages to send next: the very same ones unless a fold was swapped in."""
        pressure = self.host.pressure(current_tokens)
        if pressure is not Pressure.HARD and self.host.should_compress(current_tokens):
            self._future = None
            return self.host.compress(messages, current_tokens)
        if pressure is Pressure.NONE:
            return messages
        if pressure is Pressure.SOFT:
            if self._future is None:
                self._future = self._executor.submit(self.host.prepare, messages, current_tokens)
            return messages
        ready = self._taken()
        if ready is not None:
            swapped = self.host.swap(messages, ready)
            if swapped is not messages:
                return swapped
        return self.host.compress(messages, current_tokens)

    def _taken(self) -> Prepared | None:
        """The prepared fold, waited for; None if there is none, or if making it failed."""
        future, self._future = self._future, None
        if future is None:
            return None
        try:
            return future.result()
        except Exception:  # noqa: BLE001 - whatever went wrong ahead of time, the compaction now may still succeed
            return None

    def close(self) -> None:
        if self._future is not None:
            self._future.cancel()
        if self._own is not None:
            self._own.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> BackgroundCompaction:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
