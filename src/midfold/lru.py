"""The one memory of what was worked out before. Threads may share it.

Rules of this file:
1. It is bounded by a number of entries and, where sizes are told, by bytes. What was used longest ago goes first.
2. What is larger than the whole memory is not kept.
3. Nothing is worked out under its lock: two threads may make the same value, and either is as good.
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
    """The entries used last; `most` of them, and `most_bytes` of what `size` says of each."""

    __slots__ = ("_bytes", "_entries", "_lock", "_size", "most", "most_bytes", "peek")

    def __init__(self, most: int, *, most_bytes: int = 0, size: Callable[[V], int] | None = None) -> None:
        self.most, self.most_bytes = most, most_bytes
        self._size = size
        self._entries: OrderedDict[K, V] = OrderedDict()
        self.peek: Callable[[K], V | None] = self._entries.get
        """The value, without its being used; takes no lock. For searches that mostly find nothing, and hot loops."""
        self._bytes = 0
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def bytes(self) -> int:
        return self._bytes

    def get(self, key: K) -> V | None:
        """The value, which is then the one used last."""
        found = self._use(key)
        return None if found is _MISSING else found

    def _use(self, key: K) -> V:
        with self._lock:
            found: V = self._entries.get(key, _MISSING)
            if found is not _MISSING:
                self._entries.move_to_end(key)
            return found

    def put(self, key: K, value: V) -> None:
        """As the one used last."""
        with self._lock:
            if self._size is not None:
                self._drop(key)
                self._bytes += self._size(value)
            self._entries[key] = value
            self._entries.move_to_end(key)
            while len(self._entries) > self.most or self._bytes > self.most_bytes:
                self._drop(next(iter(self._entries)))

    def get_or_make(self, key: K, make: Callable[[], V]) -> V:
        """The value, made if it is not known."""
        found = self._use(key)
        if found is _MISSING:
            found = make()
            self.put(key, found)
        return found

    def forget(self, key: K, value: V | None = None) -> None:
        """Without the entry; with `value`, only if that is still what it is."""
        with self._lock:
            if value is None or self._entries.get(key) is value:
                self._drop(key)

    def forget_where(self, is_old: Callable[[K], bool]) -> None:
        """Without the entries whose keys are so."""
        with self._lock:
            for key in [key for key in self._entries if is_old(key)]:
                self._drop(key)

    def _drop(self, key: K) -> None:
        gone = self._entries.pop(key, _MISSING)
        if gone is not _MISSING and self._size is not None:
            self._bytes -= self._size(gone)
