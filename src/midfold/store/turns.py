"""Waiting in turn: who came first is served first.

The semaphores of the standard library let a thread that comes later go first: under load somebody waits for seconds.
"""

from __future__ import annotations

import threading
from collections import deque


class Turns:
    """A number of places, given to threads in the order in which they asked."""

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    def acquire(self, timeout: float) -> bool:
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        if gate.acquire(timeout=timeout):
            return True
        with self._lock:
            if gate in self._waiting:
                self._waiting.remove(gate)
                return False
        return True  # the place was handed over in the very moment the waiting ended

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1
