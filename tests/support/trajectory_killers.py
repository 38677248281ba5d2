"""Summarizers that end their process, to test how an executor handles it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from midfold import SummaryRequest


def kill_once(ask: SummaryRequest) -> str:
    """End the process on the first call, which a file records."""
    mark = Path(os.environ["MIDFOLD_TEST_KILL_ONCE"])
    try:
        mark.touch(exist_ok=False)
    except FileExistsError:
        return "some turns"
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def kill_always(ask: SummaryRequest) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""
