"""`memory:`: the same store in memory, gone with its process. One connection, used by one thread at a time."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

from midfold.store.database import How, Tx
from midfold.store.sqlite import Clock, SQLite

T = TypeVar("T")


class Memory(SQLite):
    def __init__(self, *, clock: Clock = time.time) -> None:
        super().__init__(":memory:", clock=clock)
        self.where = "memory"
        self._only = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._turn = threading.RLock()

    def connect(self) -> sqlite3.Connection:
        return self._only

    def is_alive(self, connection: sqlite3.Connection) -> bool:
        return True

    def write(self, work: Callable[[Tx], T], *, how: How = "write") -> T:
        with self._turn:
            return super().write(work, how=how)

    def read(self, work: Callable[[Tx], T]) -> T:
        with self._turn:
            return super().read(work)

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        with self._turn:
            return super().rows(query, **values)

    def close(self) -> None:
        """It ends with the last reference to it: whoever else uses it is not cut off."""
