"""Evaluation and offline work: retention, replay under other policies, trajectory compression. Imported only by `cli`.

    from midfold.lab import compress_trajectories, evaluate, replay
    evaluate(["session.jsonl"], methods={"mine": my_compactor, "midfold": "midfold"})   # what a compaction keeps
    replay(["sessions.jsonl"], windows=[64_000])                                        # what a policy costs
    compress_trajectories(TrajectoryJob(source="runs/", target="out/"))                 # agent runs within a target

The selection code of compactions and the scoring code here are separate: nothing that compacts imports this package.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from midfold.lab.compactors import METHODS, Compactor
    from midfold.lab.replay_policies import POLICIES, ReplayPolicy, load_policy
    from midfold.lab.replays import Replay, replay
    from midfold.lab.retention import Evaluation, evaluate
    from midfold.lab.trajectory_run import TrajectoryAccount, TrajectoryJob, compress_trajectories
    from midfold.lab.trajectory_settings import TrajectorySettings
    from midfold.lab.trajectory_work import CompressedRecord, compress_record

__all__ = [
    "METHODS",
    "POLICIES",
    "Compactor",
    "CompressedRecord",
    "Evaluation",
    "Replay",
    "ReplayPolicy",
    "TrajectoryAccount",
    "TrajectoryJob",
    "TrajectorySettings",
    "compress_record",
    "compress_trajectories",
    "evaluate",
    "load_policy",
    "replay",
]

_HOMES = {
    "compactors": "METHODS Compactor",
    "replay_policies": "POLICIES ReplayPolicy load_policy",
    "replays": "Replay replay",
    "retention": "Evaluation evaluate",
    "trajectory_run": "TrajectoryAccount TrajectoryJob compress_trajectories",
    "trajectory_settings": "TrajectorySettings",
    "trajectory_work": "CompressedRecord compress_record",
}


def __getattr__(name: str) -> object:
    from importlib import import_module

    for module, names in _HOMES.items():
        if name in names.split():
            return getattr(import_module(f"midfold.lab.{module}"), name)
    raise AttributeError(f"module 'midfold.lab' has no attribute {name!r}")
