"""A task of hundreds of tool calls in windows of 16k to 200k: how often must a file be read again?

The same policy, tools and stub summary run with midfold inside the agent loop, with a sliding window, and with
Hermes'
compressor; midfold with and without the search of past messages that its agent offers. The others keep nothing of
the
messages they drop. `python -m bench.longtask 16000 32000` runs some windows.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from pathlib import Path
from typing import NamedTuple

from bench.peers import HERMES, environment
from bench.task_peers import Hermes, PlainLoop, sliding
from bench.task_policy import Needs, Policy, Tally
from bench.task_work import Repository, sums, work
from bench.workload import report
from midfold.agent import AgentAssembly, Toolbox
from midfold.agent.assembly import system_prompt
from midfold.agent.events import Event, Folded, agree
from midfold.compaction.request import SummaryAnswer, SummaryRequest
from midfold.config import Config
from midfold.config.schema import AgentSettings, Compression
from midfold.model import Summarizer, local_summarizer

WINDOWS = (16_000, 32_000, 64_000, 200_000)
HERMES_WINDOWS = (64_000, 200_000)
HERMES_FLOOR = 64_000
PACKAGES = ("transcript", "fold", "engine", "model", "store")
TOLD: dict[Needs, str] = {
    "findings": "what commands printed: the checksums of the modules they rest on",
    "definitions": "what stands in files: the definitions they import",
}
OF_MIDFOLD = frozenset(("context_search", "context_unfold"))
"""Tools that a plain loop cannot offer, because it keeps nothing of the messages it drops."""
LEAST_CALLS = 400
HEADINGS = (
    f"  {'window':>8} {'':32} {'re-reads':>9} {'of needs':>9} {'recalls':>8} {'in vain':>8} {'tokens':>8} "
    f"{'calls':>6} {'prompt':>8} {'in all':>7} {'folds':>6}  wrong"
)
OUTPUT = 60_000
SUMMARY = """## Goal
Document the source tree, one note per module.

## Progress
### Done
- Notes for the modules so far were written under notes/.
### In Progress
- The notes of the current package.

## Next Steps
- Go on with the next module.
"""


class Run(NamedTuple):
    """Result of one run, with the errors in its output."""

    tally: Tally
    compactions: int
    wrong: int
    seconds: float


def stub(ask: SummaryRequest) -> SummaryAnswer:
    """Return a fixed summary that is accepted although it says little."""
    ask.prompt()
    return SummaryAnswer(text=SUMMARY)


def with_midfold(
    window: int,
    summarizer: Summarizer = stub,
    needs: Needs = "findings",
    most: int | None = None,
    floor: int = 0,
    *,
    may_recall: bool = True,
    last: int = 20,
) -> Run:
    """Run the agent as shipped; `floor` is `compression.minimum_context_floor`, `last` is `protect_last_n`."""
    folds: list[Folded] = []

    def watch(event: Event) -> None:
        if isinstance(event, Folded) and event.status in ("compacted", "pruned"):
            folds.append(event)

    def loop(policy: Policy, folder: Path) -> Callable[[str], str]:
        settings = AgentSettings(output_characters=OUTPUT, max_steps=10_000)
        config = Config(agent=settings, compression=Compression(minimum_context_floor=floor, protect_last_n=last))
        workshop = AgentAssembly(folder, config, os.environ, store="memory:", window=window, summarizer=summarizer)
        agent = workshop.agent(workshop.session(policy.endpoint), policy, watch=watch, consent=agree)
        return agent.run

    return _run(window, loop, lambda: len(folds), needs, most, may_recall=may_recall)


def with_sliding(window: int, landing: float, needs: Needs = "findings", most: int | None = None) -> Run:
    loops: list[PlainLoop] = []

    def loop(policy: Policy, folder: Path) -> Callable[[str], str]:
        shrink = sliding(policy, window // 2, int(window // 2 * landing))
        loops.append(PlainLoop(policy, _toolbox(folder), system_prompt(folder), shrink))
        return loops[0].run

    return _run(window, loop, lambda: loops[0].compactions, needs, most)


def with_hermes(window: int, needs: Needs = "findings", most: int | None = None) -> Run:
    loops: list[PlainLoop] = []
    with Hermes(window, SUMMARY) as hermes:

        def loop(policy: Policy, folder: Path) -> Callable[[str], str]:
            loops.append(PlainLoop(policy, _toolbox(folder), system_prompt(folder), hermes.shrink))
            return loops[0].run

        return _run(window, loop, lambda: loops[0].compactions, needs, most)


def _toolbox(folder: Path) -> Toolbox:
    config = Config(agent=AgentSettings(output_characters=OUTPUT))
    workshop = AgentAssembly(folder, config, os.environ, store="memory:")
    tools = workshop.tools(lambda: workshop.sessions.session("none"))
    return Toolbox([tool for tool in tools if tool.spec.name not in OF_MIDFOLD], OUTPUT)


def _run(
    window: int,
    make: Callable[[Policy, Path], Callable[[str], str]],
    compactions: Callable[[], int],
    needs: Needs,
    most: int | None,
    *,
    may_recall: bool = True,
) -> Run:
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as name:
        repository = Repository(Path(name).resolve(), PACKAGES, most)
        policy = Policy(repository, window, needs, may_recall=may_recall)
        say = make(policy, repository.folder)
        for package, modules in repository.work:
            say(policy.begin(package, modules))
        return Run(policy.tally, compactions(), _wrong(repository, needs), time.perf_counter() - started)


def _wrong(repository: Repository, needs: Needs) -> int:
    """Count quotes in the notes that are missing or wrong."""
    wrong = 0
    for _, modules in repository.work:
        for module in modules:
            note = repository.folder / module.note
            lines = set(note.read_text().splitlines()) if note.exists() else set()
            facts = [*module.own, *(fact for _, facts in module.imported for fact in facts)]
            sums = [repository.sums[path] for path in (module.path, *(path for path, _ in module.imported))]
            wrong += sum(line not in lines for line in (sums if needs == "findings" else [fact.line for fact in facts]))
    return wrong


Make = Callable[[int, Needs], Run]
OURS, PLAIN, LOCAL = "midfold", "midfold, without recall", "midfold, summary without a model"
SLIDING, LATE = "sliding window, always full", "midfold, no recall, from 85 % on"
ROWS: dict[str, Make] = {
    OURS: lambda window, needs: with_midfold(window, stub, needs),
    PLAIN: lambda window, needs: with_midfold(window, stub, needs, may_recall=False),
    LOCAL: lambda window, needs: with_midfold(window, local_summarizer, needs),
    SLIDING: lambda window, needs: with_sliding(window, 1.0, needs),
    HERMES: with_hermes,
    LATE: lambda window, needs: with_midfold(window, stub, needs, floor=HERMES_FLOOR, may_recall=False),
}


def rows_at(window: int, needs: Needs) -> list[str]:
    """Return the rows to run. Hermes starts at 85 % of a window of 64,000; midfold has a setting for the same."""
    rows = [OURS, PLAIN, SLIDING] if needs == "definitions" else [OURS, PLAIN, LOCAL, SLIDING]
    theirs = [HERMES] if window in HERMES_WINDOWS else []
    return [*rows, *theirs, *([LATE] if theirs and window <= HERMES_FLOOR else [])]


def one(name: str, window: int, needs: Needs) -> Run:
    return ROWS[name](window, needs)


def main(windows: tuple[int, ...] = WINDOWS) -> None:
    print(f"  midfold's own source, packages {', '.join(PACKAGES)}, in a temporary folder; sizes by o200k")
    print("  re-read: what a note must quote had been seen, was no longer in the context, and was looked up again")
    print("  recall: it was first asked of a tool of the agent that searches the conversation, where there is one")
    work(PACKAGES), sums()  # once, before the worker processes start
    if set(windows) & set(HERMES_WINDOWS):
        environment(HERMES)
    with ProcessPoolExecutor() as pool:
        runs = {
            (needs, window, name): pool.submit(one, name, window, needs)
            for needs in TOLD
            for window in windows
            for name in rows_at(window, needs)
        }
        for needs, told in TOLD.items():
            print(f"  notes quote {told}")
            print(HEADINGS)
            for window in windows:
                _compared(window, {name: runs[needs, window, name] for name in rows_at(window, needs)})


def _compared(window: int, running: dict[str, Future[Run]]) -> None:
    runs = {name: _told(window, name, run.result()) for name, run in running.items()}
    pairs = [("a sliding window", OURS, SLIDING), ("a sliding window, both without recall", PLAIN, SLIDING)]
    if HERMES in runs:
        pairs += [("Hermes", OURS, HERMES), ("Hermes, both without recall", PLAIN, HERMES)]
    if LATE in runs:
        pairs += [("Hermes, both without recall and from 85 % on", LATE, HERMES)]
    for told, mine, other in pairs:
        ratio = runs[mine].tally.rereads / max(runs[other].tally.rereads, 1)
        report(f"re-reads at {window:,} against {told}", f"{ratio:.2f}x", "< 0.5x", met=ratio < 0.5)
    calls = runs[OURS].tally.calls
    report(f"the task at {window:,} came to its end", f"{calls} calls", f">= {LEAST_CALLS}", met=calls >= LEAST_CALLS)


def _told(window: int, name: str, run: Run) -> Run:
    tally = run.tally
    share = f"{tally.rereads / max(tally.needed, 1):.0%}"
    mean = tally.prompt_tokens // max(tally.requests, 1)
    in_vain = tally.recalls - tally.helpful
    lost = f"   {tally.unsigned} times the user's rule was forgotten" if tally.unsigned else ""
    print(
        f"  {window:>8,} {name:32} {tally.rereads:>9,} {share:>9} {tally.recalls:>8,} {in_vain:>8,} "
        f"{tally.recalled_tokens:>8,} {tally.calls:>6,} {mean:>8,} {tally.prompt_tokens / 1e6:>6.1f}M "
        f"{run.compactions:>6} {run.wrong:>6}{lost}",
        flush=True,
    )
    return run


if __name__ == "__main__":
    main(tuple(int(word) for word in sys.argv[1:]) or WINDOWS)
