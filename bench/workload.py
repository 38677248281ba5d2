"""Inputs and clocks shared by the benchmarks."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SHARED = ROOT.parent / "shared" / "data"
LONG_SOURCES = ("claude_code_entire", "claude_code_packmind", "codex_agentv", "miniswe_deepseek")


def messages(count: int) -> list[dict[str, Any]]:
    """Return real messages without bookkeeping, repeated up to `count`; the shipped example if the data is absent."""
    real = list(_real())
    return [dict(real[index % len(real)]) for index in range(count)]


def _real() -> Iterator[dict[str, Any]]:
    if SHARED.is_dir():
        for source in LONG_SOURCES:
            for line in (SHARED / source / "conversations.jsonl").read_bytes().splitlines():
                yield from map(_stripped, json.loads(line)["messages"])
    else:
        example = ROOT / "examples" / "coding-session.json"
        yield from json.loads(example.read_text(encoding="utf-8"))["messages"]


def _stripped(message: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in message.items() if key != "_meta"}


def origin() -> str:
    return "shared/data" if SHARED.is_dir() else "examples/coding-session.json, repeated"


def best(work: Callable[[], object], runs: int = 5, clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds of the fastest run by `clock`; results are freed outside the timed part."""
    fastest = float("inf")
    for _ in range(runs):
        gc.collect()
        start = clock()
        result = work()
        fastest = min(fastest, clock() - start)
        del result
    return fastest


def report(label: str, value: str, goal: str, *, met: bool) -> None:
    print(f"  {label:68} {value:>12}   goal {goal:>8}  {'met' if met else 'NOT MET'}")
