"""Check that work takes time in proportion to its input, on a shared machine.

Small and large inputs are timed alternately in processor time, and the best run of each counts. A slow result is
repeated: linear work that was disturbed is fast in one of several runs, quadratic work in none.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

Input = TypeVar("Input")
TURNS = 6
QUICK = 0.005
"""Minimum seconds; shorter times are rounded up to this."""


def seconds(work: Callable[[], object]) -> float:
    """Return the processor time of the work, with garbage collection disabled."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        start = time.process_time()
        work()
        return time.process_time() - start
    finally:
        if was_enabled:
            gc.enable()


def assert_in_proportion(
    work: Callable[[Input], object], small: Input, *larger: tuple[Input, float], quick: float = QUICK
) -> None:
    """Assert that each larger input takes at most the given multiple of the small one's time."""
    best = {place: float("inf") for place in range(len(larger) + 1)}
    for _ in range(TURNS):
        for place, given in enumerate((small, *(value for value, _ in larger))):
            best[place] = min(best[place], seconds(lambda given=given: work(given)))  # type: ignore[misc]
        base = max(best[0], quick)
        if all(best[place] <= most * base for place, (_, most) in enumerate(larger, 1)):
            return
    times = [best[place] / base for place in best]
    raise AssertionError(f"times as long as the smallest input: {times}; allowed: {[most for _, most in larger]}")
