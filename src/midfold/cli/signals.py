"""Ctrl-C and SIGTERM, from a command's first moment to its last.

Rules of this file:
1. Python drops an exception where it cannot raise it, as in the callback of a weak reference. An interrupt that was
   dropped is sent again, and before something serves it is asked whether there was one. While it serves and starts to,
   signals are not exceptions. What a library makes of an interrupt is told as one.
2. SIGTERM ends a command at once, as the kernel does it, and the first process of a container, too, for which the
   kernel does not. A server ends its answers first and is content (exit status 0).
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
"""Seconds until an interrupt that was dropped is sent again: by then the finalizer that dropped it has ended."""
LATELY = 1.0
_heard: dict[int, float] = {}
"""Signals, and when they came last."""


def hear() -> None:
    """From now on; what is ignored (nohup, jobs in the background) stays so."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
    if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
        signal.signal(signal.SIGTERM, _terminate)
    sys.unraisablehook = _send_again


def is_interrupted() -> bool:
    """Whether somebody just did: what is raised now comes of it."""
    return signal.SIGINT in _heard and time.monotonic() - _heard[signal.SIGINT] < LATELY


def end_at_once(number: int, frame: FrameType | None) -> None:
    """For SIGINT where a thread waits for standard input: nothing wakes it, and the interpreter would wait for it."""
    sys.stderr.write("midfold: interrupted\n")
    os._exit(INTERRUPTED)


def serve(server: uvicorn.Server, sockets: list[socket.socket]) -> None:
    """Until SIGINT, which is raised as KeyboardInterrupt in the end, or SIGTERM, whenever they came."""

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
    """Starts no `Thread`: this may be run while one is made, and its locks are not to be had twice."""
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
