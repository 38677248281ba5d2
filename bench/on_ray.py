"""Overhead of Ray: the same trajectories with two workers of the pool, and on a real cluster of two nodes.

Processor time includes the command, its workers, and Ray's own processes.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers import HOME
from bench.sharegpt import convert
from bench.workload import ROOT, SHARED
from midfold.lab.trajectory_run import TrajectoryJob, compress_trajectories
from midfold.lab.trajectory_settings import TrajectorySettings

FEW, MANY = 2, 14
"""Copies of the recorded sessions in a small and a large input, to separate fixed costs."""
NODE = {"num_cpus": 1, "object_store_memory": 256 << 20}
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    HOME.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=HOME) as name:
        folder = Path(name)
        sizes = [_input(folder / f"{copies}.jsonl", copies) for copies in (FEW, MANY)]
        print(
            f"  {sizes[0]:.0f} MB and {sizes[1]:.0f} MB of trajectories, two workers; Ray: two nodes of one processor"
        )
        pool = _both(folder, "pool", None)
        cluster = _cluster()
        try:
            on_ray = _both(folder, "ray", cluster.address)
        finally:
            cluster.shutdown()
        each: dict[str, float] = {}
        for executor, (small, large) in {"pool": pool, "ray": on_ray}.items():
            each[executor] = (large[0] - small[0]) / (sizes[1] - sizes[0]) * 1000
            once = small[0] - each[executor] * sizes[0] / 1000
            told = f"{each[executor]:5.1f} s of processor time per GB and {once:4.1f} s once"
            print(f"  {executor:5} {told}; {small[1]:.1f} s and {large[1]:.1f} s by the clock")
        outputs = [(folder / f"{executor}-{MANY}.jsonl").read_bytes() for executor in ("pool", "ray")]
        same = "the same, byte for byte" if outputs[0] == outputs[1] else "NOT the same"
        print(f"  Ray takes {each['ray'] / each['pool'] - 1:+.0%} processor time per GB; the output is {same}")


def _both(folder: Path, executor: str, address: str | None) -> list[tuple[float, float]]:
    names = [f"{copies}.jsonl" for copies in (FEW, MANY)]
    return [_spent(folder / name, folder / f"{executor}-{name}", executor, address) for name in names]


def _input(path: Path, copies: int) -> float:
    """Write copies of the recorded sessions into one file; return its size in MB."""
    if SHARED.is_dir():
        found = sorted(SHARED.glob("*/conversations.jsonl"))
        recorded = [json.loads(line) for item in found for line in item.read_text("utf-8").splitlines()]
    else:
        recorded = [json.loads((ROOT / "examples" / "coding-session.json").read_text("utf-8")) | {"id": "example"}] * 20
    lines = [json.dumps(convert(item), ensure_ascii=False) + "\n" for item in recorded]
    path.write_text("".join(lines * copies), "utf-8")
    return path.stat().st_size / 1e6


def _cluster() -> Any:
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={**NODE, "include_dashboard": False})
    cluster.add_node(**NODE)
    cluster.wait_for_nodes()
    return cluster


def _spent(source: Path, target: Path, executor: str, address: str | None) -> tuple[float, float]:
    """Return processor time and wall-clock time in seconds."""
    job = TrajectoryJob(
        source=str(source),
        target=str(target),
        settings=TrajectorySettings(tokenizer="o200k"),
        workers=2,
        executor=executor,
        ray_address=address,
        restart=True,
    )
    watch, start = _Watch(), time.monotonic()
    compress_trajectories(job, watch)
    return watch.spent, time.monotonic() - start


class _Watch:
    """Sampler of processor time: workers end with the run, so their usage is read while they are alive."""

    def __init__(self) -> None:
        self._before = _processor()
        self._after = dict(self._before)

    @property
    def spent(self) -> float:
        return sum(ticks - self._before.get(process, 0) for process, ticks in self._after.items()) / TICKS

    def progress(self, progress: object, /) -> None:
        self._after.update(_processor())

    def report_failure(self, record: Any, /) -> None:
        raise AssertionError(record.reason)

    def record_lines(self, lines: Iterator[bytes], /) -> None:
        for _ in lines:
            pass
        self._after.update(_processor())


def _processor() -> dict[int, int]:
    """Return the processor ticks of this process and each descendant."""
    parents: dict[int, int] = {}
    used: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(entry.name)], used[int(entry.name)] = int(fields[1]), int(fields[11]) + int(fields[12])
    ours = {os.getpid()}
    while more := {process for process, parent in parents.items() if parent in ours} - ours:
        ours |= more
    return {process: used[process] for process in ours}


if __name__ == "__main__":
    main()
