"""Memory that large requests are done with goes back to the system.

The C library keeps what was freed for the next request, in as many places as there were threads: after a few large
bodies that is gigabytes which nobody uses. Where it is the GNU one, large pieces get pages of their own, and some time
after a large request everything unused is given back. Elsewhere nothing is done.
"""

from __future__ import annotations

import asyncio
import sys
from functools import cache
from typing import Any

LARGE = 2_000_000
"""Bytes of a request after which it is worth the while."""
PAUSE = 2.0
"""Seconds; by then a request is recorded, too."""
M_MMAP_THRESHOLD = -3
OWN_PAGES = 1 << 20


class Slack:
    """Told about every body that is over, it gives back what large ones have left."""

    def __init__(self) -> None:
        self._is_waiting = False

    def __call__(self, size: int) -> None:
        if size < LARGE or self._is_waiting:
            return
        self._is_waiting = True
        asyncio.get_running_loop().call_later(PAUSE, self._begin)

    def _begin(self) -> None:
        self._is_waiting = False
        asyncio.get_running_loop().run_in_executor(None, give_back)


def give_back() -> None:
    libc = _libc()
    if libc is not None:
        libc.malloc_trim(0)


@cache
def _libc() -> Any:
    """The C library, if it is glibc."""
    if not sys.platform.startswith("linux"):
        return None
    import ctypes

    try:
        libc = ctypes.CDLL(None)
        libc.mallopt(M_MMAP_THRESHOLD, OWN_PAGES)
        return libc if hasattr(libc, "malloc_trim") else None
    except (OSError, AttributeError):
        return None
