"""Summarizers that end the process they run in, for tests of what an executor does then."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from midfold import SummaryRequest


def kill_once(ask: SummaryRequest) -> str:
    """The first one that asks dies; a file remembers it."""
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
