"""`make e2e-model`: a real local language model summarizes real sessions through midfold.

The model is very small: the checks cover how midfold handles its output, not the quality of the output.
"""

from __future__ import annotations

import signal
import sys
import time
from pathlib import Path

from e2e.chat import chatted
from e2e.environment import environment, model_file
from e2e.server import MODEL, Server
from e2e.steps import Done, Steps, conversations, settings

SMALL, LARGE = 2_048, 4_096
SHORT = 14
"""Messages in short conversations: each call of the model takes seconds, and these steps test midfold only."""
EXCERPT = 10
HEAD = f"{'step':<44}{'s':>5} {'status':<10}{'source':<7}{'failure':<16}{'calls':>5}{'read':>8}{'written':>8}"
HEAD += f"{'unver.':>7}{'rem.':>5}{'quot.':>6}{'kept':>5}{'behind':>7}  checks"


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("terminated"))
    python = environment()
    file = model_file(python)
    print(f"model {file.name} ({file.stat().st_size / 1e6:,.0f} MB), served as {MODEL}\n\n{HEAD}", flush=True)
    started = time.monotonic()
    done = [*large(python, file), *small(python, file)]
    show(done)
    broken = [f"{step.name}: {what}" for step in done for what in step.broken]
    calls = sum(len(step.seen.statuses) for step in done)
    print(f"\n{len(done)} steps, {calls} calls, {time.monotonic() - started:,.0f} s; {len(broken)} checks failed")
    sys.exit("\n".join(broken) if broken else 0)


def large(python: Path, file: Path) -> list[Done]:
    """Run the steps with a window that fits a summary request, and with invalid settings."""
    first, second = conversations()
    with Server(python, file, LARGE) as server:
        steps = Steps(server, row)
        config = settings(server.url, LARGE)
        steps.compacts(f"compact {first.name}", first.messages, config)
        steps.hosted(f"host {second.name}", second.messages[:20], config)
        steps.awaited(f"async {first.name}", first.messages[:SHORT], config)
        unknown = settings(server.url, LARGE, model="no-such-model")
        steps.compacts("a model's name that is not served", first.messages[:SHORT], unknown)
        wrong = settings(server.url + "/nowhere", LARGE)
        steps.compacts("an address that is not there", first.messages, wrong, ("model_not_found",))
        hurried = settings(server.url, LARGE, timeout=1.0)
        steps.compacts("one second of patience", first.messages, hurried, ("timeout",))
        return steps.done


def small(python: Path, file: Path) -> list[Done]:
    """Run the steps with a window that barely fits the request, with a window smaller than configured, and with a
    crash.
    """
    first, _ = conversations()
    with Server(python, file, SMALL) as server:
        steps = Steps(server, row)
        steps.compacts(f"compact, window {SMALL:,}", first.messages[: 2 * SHORT], settings(server.url, SMALL))
        chatted(steps, server, SMALL)
        told = settings(server.url, 4 * SMALL)
        steps.compacts(f"told {4 * SMALL:,}, has {SMALL:,}", first.messages[:SHORT], told)
        steps.killed_midway("server killed while it works", first.messages, settings(server.url, SMALL), 5.0)
        steps.gone(first.messages, settings(server.url, SMALL))
        return steps.done


def row(step: Done) -> None:
    facts = step.receipt.summary
    statuses = "" if set(step.seen.statuses) <= {200} else f" {step.seen.statuses}"
    print(
        f"{step.name[:43]:<44}{step.seconds:>5.0f} {step.receipt.status:<10}{facts.source:<7}{facts.failure:<16}"
        f"{len(step.seen.statuses):>5}{step.seen.read:>8,}{step.seen.written:>8,}{facts.unverified:>7}"
        f"{facts.removed:>5}{facts.quoted:>6}{facts.facts_kept:>5}{facts.facts_recoverable:>7}"
        f"  {'; '.join(step.broken) or 'hold'}{statuses}",
        flush=True,
    )
    for notice in step.receipt.notices:
        print(f"    {notice}", flush=True)


def show(done: list[Done]) -> None:
    """Print the first handoff written by the model: its beginning and its end, where unstructured text of the model
    is.
    """
    written = next((step for step in done if step.receipt.summary.source == "model" and step.handoff), None)
    if written is None:
        print("\nthe model wrote no summary that was accepted")
        return
    print(f"\nthe handoff of: {written.name}")
    lines = written.handoff.splitlines()
    for line in [*lines[:EXCERPT], "…", *lines[EXCERPT:][-EXCERPT:]]:
        print(f"  | {line[:116]}")


if __name__ == "__main__":
    main()
