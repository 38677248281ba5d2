"""SIGINT and SIGTERM handling of all commands.

1. Python drops an exception that it cannot raise, for example in a weak reference callback. A dropped interrupt is
   sent again, and `serve` checks for an earlier one before it starts. While serving, signals set a flag instead of
   raising. An error that a library makes of an interrupt is reported as an interrupt.
2. SIGTERM ends a command at once, also as the first process of a container, where the kernel's default does not
   apply. A server finishes its responses first and exits with 0.
"""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading
import time
from types import FrameType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import socket

    import uvicorn

INTERRUPTED = 130
BETWEEN = 0.01
"""Seconds until a dropped interrupt is sent again, enough for the finalizer that dropped it to end."""
LATELY = 1.0
_heard: dict[int, float] = {}
"""Time of the last signal of each kind, on the monotonic clock."""


def hear() -> None:
    """Install the handlers; ignored signals (nohup, background jobs) stay ignored."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _send_again


def is_interrupted() -> bool:
    """Return whether SIGINT arrived within the last second, so that the current error comes from it."""
    return signal.SIGINT in _heard and time.monotonic() - _heard[signal.SIGINT] < LATELY


def end_at_once(number: int, frame: FrameType | None) -> None:
    """Exit on SIGINT without waiting for a thread that is blocked reading standard input."""
    sys.stderr.write("midfold: interrupted\n")
    os._exit(INTERRUPTED)


def serve(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
    """Run a server until SIGINT, which raises KeyboardInterrupt at the end, or SIGTERM."""

    def stop(number: int, frame: FrameType | None) -> None:
        _heard[number] = time.monotonic()
        server.should_exit = True

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        if not _heard:
            server.run(sockets=sockets)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in _heard:
        raise KeyboardInterrupt


def _interrupt(number: int, frame: FrameType | None) -> None:
    _heard[number] = time.monotonic()
    raise KeyboardInterrupt


def _terminate(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)
    os._exit(128 + number)


def _send_again(dropped: sys.UnraisableHookArgs) -> None:
    """Send a dropped interrupt again, without a `Thread`: this may run while one is created and holds its locks."""
    if dropped.exc_type is not KeyboardInterrupt:
        sys.__unraisablehook__(dropped)
        return
    _thread.start_new_thread(_interrupt_later, ())


def _interrupt_later() -> None:
    time.sleep(BETWEEN)
    if sys.platform == "win32":
        _thread.interrupt_main()
    else:
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
