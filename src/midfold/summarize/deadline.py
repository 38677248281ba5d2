"""One bound for a whole call of the sync client, headers included.

The HTTP client bounds each read. A server that sends a byte now and then keeps every read short and the call endless,
so a timer shuts the connection down when the time is up, and whoever reads from it sees it end.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any

_CONNECTED = ("connect_tcp.complete", "connect_unix_socket.complete", "start_tls.complete")


class Deadline:
    """`with Deadline(30) as deadline:` around a request that has `deadline.trace` as its `trace` extension."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._socket: Any = None
        self._lock = threading.Lock()
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Deadline:
        self._timer.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with self._lock:
            self._timer.cancel()
            self._socket = None

    def trace(self, event: str, info: Mapping[str, Any]) -> None:
        """What the HTTP client tells about its connection: where it is."""
        if event.endswith(_CONNECTED):
            with self._lock:
                self._socket = info["return_value"].get_extra_info("socket")
                if self.passed:
                    self._shut()

    def _end(self) -> None:
        with self._lock:
            self.passed = True
            self._shut()

    def _shut(self) -> None:
        """The plain socket's own method: that of a TLS socket would take the connection away under its reader."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)
