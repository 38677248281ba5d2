"""A bounded cache shared by threads.

It is bounded by a number of entries and, with a `size` function, by bytes; the least recently used entry is evicted
first. A value larger than the whole cache is not kept. No value is computed under the lock: two threads may compute
the same one, and either is used.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

_MISSING: Any = object()


class LRU(Generic[K, V]):
    """Least-recently-used cache of `most` entries and, with `size`, `most_bytes`."""

    __slots__ = ("_bytes", "_entries", "_lock", "_size", "most", "most_bytes", "peek")

    def __init__(self, most: int, *, most_bytes: int = 0, size: Callable[[V], int] | None = None) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.peek: Callable[[K], V | None] = self._entries.get
        """Returns a value without marking it as used and without a lock, for hot loops and searches that mostly miss.
        """
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, key: K) -> V | None:
        """Return a value and mark it as used."""
        found = self._use(key)
        return None if found is _MISSING else found

    def _use(self, key: K) -> V:
        with self._lock:
            found: V = self._entries.get(key, _MISSING)
            if found is not _MISSING:
                self._entries.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> None:
        """Store a value as the most recently used."""
        with self._lock:
            if self._size is not None:
                self._drop(key)
                self._bytes += self._size(value)
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.most or self._bytes > self.most_bytes:
                self._drop(next(iter(self._entries)))

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """Return the value of a key, computing it if missing."""
        found = self._use(key)
        if found is _MISSING:
            found = make()
            self.put(key, found)
        return found

    def forget(self, key: K, value: V | None = None) -> None:
        """Remove an entry; with `value`, only if it is still that value."""
        with self._lock:
            if value is None or self._entries.get(key) is value:
                self._drop(key)

    def forget_where(self, is_old: Callable[[K], bool]) -> None:
        """Remove the entries whose keys match."""
        with self._lock:
            for key in [key for key in self._entries if is_old(key)]:
                self._drop(key)

    def _drop(self, key: K) -> None:
        gone = self._entries.pop(key, _MISSING)
        if gone is not _MISSING and self._size is not None:
            self._bytes -= self._size(gone)
