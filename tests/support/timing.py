"""Whether work takes time in proportion to its input, on a machine that others use, too.

Small and large inputs are timed in turns, by the processor's clock, and the best run of each counts. What seems slow is
timed again: work that is busy with something else is quick in one of several turns, quadratic work in none.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

Input = TypeVar("Input")
TURNS = 6
QUICK = 0.005
"""Seconds. What takes less is counted as this much."""


def seconds(work: Callable[[], object]) -> float:
    """Of the processor, without looking through what other tests have left."""
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
    """Each larger input takes at most so many times the time of the small one."""
    best = {place: float("inf") for place in range(len(larger) + 1)}
    for _ in range(TURNS):
        for place, given in enumerate((small, *(value for value, _ in larger))):
            best[place] = min(best[place], seconds(lambda given=given: work(given)))  # type: ignore[misc]
        base = max(best[0], quick)
        if all(best[place] <= most * base for place, (_, most) in enumerate(larger, 1)):
            return
    times = [best[place] / base for place in best]
    raise AssertionError(f"times as long as the smallest input: {times}; allowed: {[most for _, most in larger]}")
