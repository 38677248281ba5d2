"""Run the numbered pieces of a plan in one or several processes; the result does not depend on their number."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import Any, TypeVar

from midfold.errors import MidfoldError

Plan = TypeVar("Plan")
Row = TypeVar("Row")
Report = Callable[[int, int], None]
"""Callback with the number of finished pieces and the total."""
Work = Callable[[Any, int], list[Any]]
_shared: tuple[Work, Any] | None = None
SAFE_PATH, BY_MIDFOLD = "PYTHONSAFEPATH", "midfold"


@contextmanager
def safe_path() -> Iterator[None]:
    """Keep worker processes that are started inside this block from importing from the working directory.

    `multiprocessing` starts them with `python -c`, which searches the working directory first, and has no option
    against that. Call `leave_safe_path` in the worker.
    """
    if os.environ.get(SAFE_PATH):
        yield
        return
    os.environ[SAFE_PATH] = BY_MIDFOLD
    try:
        yield
    finally:
        os.environ.pop(SAFE_PATH, None)


def leave_safe_path() -> None:
    """Remove the variable that `safe_path` set, so that programs which a worker starts do not inherit it."""
    if os.environ.get(SAFE_PATH) == BY_MIDFOLD:
        del os.environ[SAFE_PATH]


def work_through(
    work: Callable[[Plan, int], list[Row]], plan: Plan, count: int, workers: int, report: Report | None
) -> list[Row]:
    """Return the rows of `work(plan, number)` for every number below `count`, in order."""
    rows: list[Row] = []
    notify = report or (lambda done, of: None)
    context = _context(plan) if workers > 1 else None
    if context is None:
        notify(0, count)
        for number in range(count):
            rows += work(plan, number)
            notify(number + 1, count)
        return rows
    with safe_path():
        pool = ProcessPoolExecutor(workers, context, _start, (work, plan))
    with pool:
        try:
            with safe_path():
                futures = [pool.submit(_work_on, number) for number in range(count)]
            notify(0, count)  # not earlier: a progress bar starts a thread, and forking with threads is unsafe
            for number, future in enumerate(futures, 1):
                rows += future.result()
                notify(number, count)
        except BrokenProcessPool:
            raise MidfoldError("a worker process died; use fewer --workers to reduce memory use") from None
        finally:
            pool.shutdown(wait=False, cancel_futures=True)
    return rows


def _start(work: Work, plan: Any) -> None:
    global _shared  # noqa: PLW0603
    leave_safe_path()
    _shared = work, plan


def _work_on(number: int) -> list[Any]:
    assert _shared is not None
    work, plan = _shared
    return work(plan, number)


def _context(plan: Any) -> multiprocessing.context.BaseContext | None:
    """Return a context that can pass the plan: fork shares it, spawn must pickle it. None if neither works."""
    if "fork" in multiprocessing.get_all_start_methods() and threading.active_count() == 1:
        return multiprocessing.get_context("fork")
    try:
        pickle.dumps(plan)
    except (pickle.PicklingError, AttributeError, TypeError):
        return None
    return multiprocessing.get_context("spawn")
