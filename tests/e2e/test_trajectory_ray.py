"""Real local Ray cluster of two nodes: the same bytes as without it, even if a node is lost."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from midfold.errors import MidfoldError
from midfold.lab.trajectory_metrics import RecordMetrics
from midfold.lab.trajectory_run import TrajectoryJob, TrajectoryProgress, compress_trajectories
from midfold.lab.trajectory_settings import TrajectorySettings
from support.data import need
from support.trajectories import lines

SETTINGS = TrajectorySettings(
    target_tokens=2_000, summary_tokens=200, tokenizer="estimate", batch_bytes=30 * 1024, calls=1
)
TESTS = str(Path(__file__).resolve().parents[1])
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Start a head with one processor. Its workers inherit the environment it is started in."""
    need(importlib.util.find_spec("ray"), "Ray is not installed (pip install 'midfold[ray]')")
    os.environ.update(RAY_USAGE_STATS_ENABLED="0", PYTHONPATH=f"{TESTS}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    os.environ["MIDFOLD_TEST_KILL_ONCE"] = str(tmp_path_factory.mktemp("ray") / "killed")
    made = start()
    try:
        yield made
    finally:
        made.shutdown()


def start() -> Any:
    """Start a node, with a retry: Ray allows thirty seconds, which a busy machine may exceed."""
    from ray.cluster_utils import Cluster

    node = {"num_cpus": 1, "include_dashboard": False, "object_store_memory": 80 << 20}
    for attempt in range(3):
        try:
            return Cluster(initialize_head=True, head_node_args=node)
        except Exception:
            if attempt == 2:
                raise
    return None


def add_node(cluster: Any) -> Any:
    node = cluster.add_node(num_cpus=1, object_store_memory=80 << 20)
    cluster.wait_for_nodes()
    return node


class Loss:
    """Observer that removes a node as soon as a few batches are finished."""

    def __init__(self, cluster: Any, node: Any) -> None:
        self.cluster, self.node = cluster, node
        self.lost = threading.Event()

    def progress(self, progress: TrajectoryProgress, /) -> None:
        if progress.totals.records >= 2 and not self.lost.is_set():
            self.lost.set()
            self.cluster.remove_node(self.node, allow_graceful=False)

    def report_failure(self, record: RecordMetrics, /) -> None:
        raise AssertionError(record.reason)

    def record_lines(self, lines: Iterator[bytes], /) -> None:
        assert len(list(lines)) == 12


def test_two_nodes_give_the_same_bytes_and_the_loss_of_one_loses_no_record(cluster: Any, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(12))
    settings = msgspec.structs.replace(SETTINGS, summarizer="support.trajectories:slow_summary")
    compress_trajectories(TrajectoryJob(source=str(source), target=str(tmp_path / "here.jsonl"), settings=settings))
    node = add_node(cluster)
    on_ray = TrajectoryJob(
        source=str(source),
        target=str(tmp_path / "ray.jsonl"),
        settings=settings,
        executor="ray",
        ray_address=cluster.address,
    )
    both = compress_trajectories(on_ray)
    assert (tmp_path / "ray.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()
    assert both.workers >= 2
    loss = Loss(cluster, node)
    again = compress_trajectories(msgspec.structs.replace(on_ray, target=str(tmp_path / "lossy.jsonl")), loss)
    assert loss.lost.is_set()
    assert again.totals.compressed == 12
    assert (tmp_path / "lossy.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()


def test_a_worker_that_is_killed_on_a_node_loses_no_record(cluster: Any, tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(3))
    settings = msgspec.structs.replace(SETTINGS, summarizer="support.trajectory_killers:kill_once")
    job = TrajectoryJob(source=str(source), target=str(tmp_path / "out.jsonl"), settings=settings, executor="ray")
    killed = Path(os.environ["MIDFOLD_TEST_KILL_ONCE"])
    assert not killed.exists()
    done = compress_trajectories(msgspec.structs.replace(job, ray_address=cluster.address))
    assert killed.exists()
    assert (done.totals.compressed, done.totals.failed) == (3, 0)
    compress_trajectories(TrajectoryJob(source=str(source), target=str(tmp_path / "here.jsonl"), settings=settings))
    assert (tmp_path / "out.jsonl").read_bytes() == (tmp_path / "here.jsonl").read_bytes()


def test_a_cluster_that_is_not_there_is_an_error_that_says_so(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(1))
    job = TrajectoryJob(source=str(tmp_path / "in.jsonl"), target=str(tmp_path / "out.jsonl"), executor="ray")
    with pytest.raises(MidfoldError, match="no Ray cluster could be reached"):
        compress_trajectories(msgspec.structs.replace(job, ray_address="127.0.0.1:1"))


def test_a_run_without_an_address_does_not_join_another_cluster(cluster: Any, tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(1))
    command = ["trajectories", "compress", "in.jsonl", "out.jsonl", "--executor", "ray", "--workers", "1"]
    command += ["--target-tokens", "2000", "--summary-tokens", "200", "--tokenizer", "estimate"]
    environment = {name: value for name, value in os.environ.items() if name != "RAY_ADDRESS"}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "midfold", *command],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out.jsonl").exists()
