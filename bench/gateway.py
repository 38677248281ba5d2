"""The gateway compared with a bare relay, LiteLLM's proxy and Headroom's, with one upstream and one load."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from bench.gateways import programs
from bench.gateways.load import CHAT, Timed, one_by_one, together
from bench.gateways.programs import Program
from bench.workload import report

FULL = bool(os.environ.get("MIDFOLD_SOAK"))
ROUNDS = 5
SMALL_RUNS, LARGE_RUNS = 120, 40
CROWD, CROWD_REQUESTS = 32, 1_500
PEER_REQUESTS = 300
MANY = 10_000
STREAMS = 200
WORDS = {"small": 12, "36k tokens": 7_000}
SENTENCE = "the quick brown fox jumps "
PROBLEM = "  (load on this machine: {:.1f} on {} cores)"


def body(words: int, number: int, *, stream: bool = False, slowly: bool = False) -> bytes:
    text = f"{number}: " + SENTENCE * words + ("slowly" if slowly else "")
    return json.dumps({"model": "gpt-4o", "stream": stream, "messages": [{"role": "user", "content": text}]}).encode()


def marked(number: int) -> bytes:
    """Return an Anthropic request without markers, so that the planner reads it and sets some."""
    said = [f"{number}.{turn}: " + SENTENCE * (WORDS["36k tokens"] // 60) for turn in range(61)]
    messages = [{"role": ("user", "assistant")[turn % 2], "content": text} for turn, text in enumerate(said)]
    return json.dumps({"model": "claude-opus-4-6", "max_tokens": 1_000, "messages": messages}).encode()


def main() -> None:
    print(PROBLEM.format(os.getloadavg()[0], os.cpu_count()))
    with ExitStack() as stack:
        direct = stack.enter_context(programs.upstream())
        bare = stack.enter_context(programs.bare(direct.url))
        ours = stack.enter_context(programs.midfold(direct.url))
        started, cpu = map(min, zip(*(_start(direct.url) for _ in range(3)), strict=True))
        print(f"  start: {cpu:.2f} s of processor time")
        report("start until the first answer, best of 3", f"{started:.2f} s", "< 1.5 s", met=started < 1.5)
        for name, words in WORDS.items():
            _added(name, (direct, bare, ours), partial(body, words), lambda one: one.whole)
        _added("36k tokens, marked for the cache", (direct, bare, ours), marked, lambda one: one.whole, "/v1/messages")
        _added("streaming, first byte", (direct, bare, ours), lambda n: body(12, n, stream=True), lambda one: one.first)
        ours_rate, bare_rate = _rate(ours), _rate(bare)
        print(f"  {CROWD} clients at once: midfold {ours_rate:.0f} requests/s, bare relay {bare_rate:.0f}")
        _streams(ours)
        _memory(ours)
    for make, goal in ((programs.headroom, 5), (programs.litellm, 2)):
        _against(make, goal)


def _start(target: str) -> tuple[float, float]:
    """Return the wall-clock seconds until the first response, and the processor time."""
    with programs.midfold(target) as again:
        return again.started, again.cpu


def _added(
    name: str,
    three: tuple[Program, Program, Program],
    make: Callable[[int], bytes],
    value: Callable[[Timed], float],
    path: str = CHAT,
) -> None:
    """Print the time a relay adds to the median, best of several alternating rounds so that load affects all alike."""
    runs = LARGE_RUNS if "36k" in name else SMALL_RUNS
    best: dict[str, float] = {}
    for round_number in range(ROUNDS):
        for program in three:
            bodies = [make(round_number * runs + n) for n in range(runs)]
            done = asyncio.run(one_by_one(program.url, bodies, path))
            assert all(one.good for one in done), program.name
            median = statistics.median(map(value, done)) * 1000
            best[program.name] = min(median, best.get(program.name, median))
    direct, bare, ours = (best[program.name] for program in three)
    print(
        f"  {name}: direct {direct:.2f} ms, bare relay {bare:.2f} ms, midfold {ours:.2f} ms (median, best of {ROUNDS})"
    )
    ratio = (ours - direct) / max(bare - direct, 0.01)
    report(f"added, {name}", f"{ours - direct:.2f} ms, {ratio:.2f}x the bare relay", "<= 3x", met=ratio <= 3)


def _rate(program: Program, count: int = CROWD_REQUESTS) -> float:
    """Return requests per second, the better of two runs."""
    best = 0.0
    for run in range(2):
        seconds, done = asyncio.run(together(program.url, [body(12, run * count + n) for n in range(count)], CROWD))
        good = sum(one.good for one in done)
        assert good == count, f"{program.name}: {count - good} of {count} requests failed"
        best = max(best, count / seconds)
    return best


def _streams(program: Program) -> None:
    bodies = [body(12, n, stream=True, slowly=True) for n in range(STREAMS)]
    seconds, done = asyncio.run(together(program.url, bodies, STREAMS))
    failed = STREAMS - sum(one.good for one in done)
    report(f"{STREAMS} streams at once, {seconds:.1f} s", f"{failed} failed", "0", met=not failed)


def _memory(program: Program) -> None:
    bodies = [body(12, n) for n in range(MANY)]
    _, done = asyncio.run(together(program.url, bodies, CROWD))
    used = program.resident
    assert all(one.good for one in done)
    report(f"in memory after {MANY:,} requests", f"{used:.0f} MB", "< 120 MB", met=used < 120)


def _against(make: Callable[[str], Program], goal: int) -> None:
    """Run a peer and midfold alternately on the same upstream; processor time is less affected by other load."""
    with programs.upstream() as direct, make(direct.url) as peer, programs.midfold(direct.url) as ours:
        asyncio.run(one_by_one(peer.url, [body(12, n) for n in range(20)]))
        spent = {program: program.cpu for program in (peer, ours)}
        rates = {program: _rate(program, PEER_REQUESTS) for program in (peer, ours)}
        cpu = {program: (program.cpu - spent[program]) / (2 * PEER_REQUESTS) * 1000 for program in rates}
        ratio = rates[ours] / rates[peer]
        print(
            f"  {peer.name}: start {peer.started:.1f} s, {peer.resident:.0f} MB, {rates[peer]:.0f} requests/s, "
            f"{cpu[peer]:.1f} ms of processor time each; midfold {rates[ours]:.0f}/s, {cpu[ours]:.2f} ms"
        )
        report(f"requests per second, against {peer.name}", f"{ratio:.1f}x", f">= {goal}x", met=ratio >= goal)
