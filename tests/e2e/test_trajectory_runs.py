"""Trajectory runs as users have them: killed commands, dying workers, pipes, files far larger than memory."""

from __future__ import annotations

import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from midfold.lab.executors import LOST, MOST_ATTEMPTS
from midfold.lab.trajectory_run import SUFFIX, TrajectoryJob, compress_trajectories
from midfold.lab.trajectory_settings import TrajectorySettings
from support.trajectories import lines, record

TESTS = Path(__file__).resolve().parents[1]
OPTIONS = ["--target-tokens", "2000", "--summary-tokens", "200", "--tokenizer", "estimate", "--batch-kb", "30"]
SETTINGS = TrajectorySettings(
    target_tokens=2_000, summary_tokens=200, tokenizer="estimate", batch_bytes=30 * 1024, calls=1
)
SLOW = ["--summarizer", "support.trajectories:slow_summary", "--calls", "1"]


def command(*arguments: str | Path) -> list[str]:
    return [sys.executable, "-m", "midfold", "trajectories", "compress", *map(str, arguments), *OPTIONS]


def finished(*arguments: str | Path) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(command(*arguments), cwd=TESTS, capture_output=True, check=False)


def wait_for(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "nothing happened in time"
        time.sleep(0.02)


def parts(target: Path) -> list[Path]:
    return sorted(Path(f"{target}{SUFFIX}").rglob("[0-9]*.json"))


def test_a_command_that_is_killed_goes_on_where_it_was_and_leaves_no_half_file(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(16))
    asked = command(source, target, "--workers", "2", *SLOW)
    running = subprocess.Popen(asked, cwd=TESTS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    wait_for(lambda: len(parts(target)) >= 3)
    children = _children(running.pid)
    running.kill()
    running.wait()
    kept = {part: part.stat().st_mtime_ns for part in parts(target)}
    assert len(kept) >= 3
    assert not target.exists()
    assert len(children) >= 2
    wait_for(lambda: not any(_alive(child) for child in children))
    again = finished(source, target, "--workers", "1", *SLOW, "--json")
    assert again.returncode == 0, again.stderr
    shown = json.loads(again.stdout)
    assert shown["run"]["resumed"] is True
    assert shown["totals"]["records"] == shown["totals"]["compressed"] == 16
    slow = msgspec.structs.replace(SETTINGS, summarizer=SLOW[1])
    compress_trajectories(TrajectoryJob(source=str(source), target=str(tmp_path / "whole.jsonl"), settings=slow))
    assert target.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir() if path.name.startswith(("out", ".out"))) == [
        "out.jsonl",
        "out.jsonl.metrics.json",
        "out.jsonl.records.jsonl",
        "out.jsonl.report.html",
    ]


def test_however_often_and_wherever_it_is_killed_files_are_whole_or_not_there(tmp_path: Path) -> None:
    """Two files, two workers, a kill after a random time; the last run completes."""
    kills = 40 if os.environ.get("MIDFOLD_SOAK") else 3
    source, target = tmp_path / "in", tmp_path / "out"
    source.mkdir()
    (source / "a.jsonl").write_bytes(lines(6))
    (source / "b.jsonl").write_bytes(lines(2 * kills))
    slow = msgspec.structs.replace(SETTINGS, summarizer=SLOW[1])
    compress_trajectories(TrajectoryJob(source=str(source), target=str(tmp_path / "whole"), settings=slow))
    rng = random.Random(kills)
    asked = command(source, target, "--workers", "2", *SLOW)
    for _ in range(kills):
        running = subprocess.Popen(asked, cwd=TESTS, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            running.wait(timeout=rng.uniform(0.2, 2.5))
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()
        for path in target.glob("*.jsonl"):
            assert path.read_bytes() == (tmp_path / "whole" / path.name).read_bytes()
    last = finished(source, target, "--workers", "2", *SLOW)
    assert last.returncode == 0, last.stderr
    names = sorted(path.name for path in target.iterdir())
    assert names == ["a.jsonl", "b.jsonl"]
    assert all((target / name).read_bytes() == (tmp_path / "whole" / name).read_bytes() for name in names)


def _children(process: int) -> list[int]:
    found = Path(f"/proc/{process}/task/{process}/children")
    if not found.exists():
        pytest.skip("the processes of a process cannot be listed here (no /proc)")
    return [int(child) for child in found.read_text().split()]


def _alive(process: int) -> bool:
    try:
        return "Z" not in Path(f"/proc/{process}/stat").read_text().rpartition(")")[2][:3]
    except OSError:
        return False


def test_an_interrupt_says_how_to_go_on(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(16))
    running = subprocess.Popen(
        command(source, target, "--workers", "2", *SLOW), cwd=TESTS, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    wait_for(lambda: len(parts(target)) >= 1)
    running.send_signal(signal.SIGINT)
    _, told = running.communicate(timeout=60)
    assert running.returncode == 130
    assert told.decode().strip() == "midfold: interrupted; run the same command to resume"
    assert parts(target)


def with_summarizer(name: str) -> TrajectorySettings:
    return msgspec.structs.replace(SETTINGS, summarizer=f"support.trajectory_killers:{name}")


def test_a_worker_that_dies_takes_no_record_with_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(12))
    monkeypatch.setenv("MIDFOLD_TEST_KILL_ONCE", str(tmp_path / "killed"))
    job = TrajectoryJob(
        source=str(source), target=str(tmp_path / "out.jsonl"), settings=with_summarizer("kill_once"), workers=2
    )
    done = compress_trajectories(job)
    assert (tmp_path / "killed").exists()
    assert (done.totals.compressed, done.totals.failed) == (12, 0)


def test_a_batch_that_kills_every_worker_is_reported_and_stays_as_it_is(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(json.dumps(record(1, steps=200)).encode() + b"\n")
    done = compress_trajectories(
        TrajectoryJob(source=str(source), target=str(target), settings=with_summarizer("kill_always"), workers=2)
    )
    assert done.totals.reasons == {LOST: 1}
    assert target.read_bytes() == source.read_bytes()
    assert MOST_ATTEMPTS > 1


def test_pipes(tmp_path: Path) -> None:
    data = lines(12)
    (tmp_path / "in.jsonl").write_bytes(data)
    compress_trajectories(
        TrajectoryJob(source=str(tmp_path / "in.jsonl"), target=str(tmp_path / "out.jsonl"), settings=SETTINGS)
    )
    piped = subprocess.run(command("-", "-", "--workers", "2"), input=data, capture_output=True, check=True)
    assert piped.stdout == (tmp_path / "out.jsonl").read_bytes()
    assert b"12 records" in piped.stderr


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """Peak memory of the whole command for a small file and for one many times as large."""
    soak = bool(os.environ.get("MIDFOLD_SOAK"))
    small, large = (64 << 20, 5 << 30) if soak else (3 << 20, 15 << 20)
    block = lines(200)
    peaks = [_peak(tmp_path, block, size) for size in (small, large)]
    grown = peaks[1] - peaks[0]
    told = f"peak {peaks[0] >> 10} MB for {small >> 20} MB, {peaks[1] >> 10} MB for {large >> 20} MB"
    logging.getLogger(__name__).warning(told)
    assert grown < (64 << 10 if soak else 12 << 10), told


PEAK = """
import resource, sys
from midfold.lab.trajectory_run import TrajectoryJob as Job, compress_trajectories as run
from midfold.lab.trajectory_settings import TrajectorySettings as Settings
settings = Settings(target_tokens=2000, summary_tokens=200, tokenizer="estimate", batch_bytes=1 << 20)
done = run(Job(source=sys.argv[1], target=sys.argv[2], settings=settings))
print(done.totals.records, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def _peak(folder: Path, block: bytes, size: int) -> int:
    source, target = folder / f"in-{size}.jsonl", folder / "out.jsonl"
    repeats = -(-size // len(block))
    with source.open("wb") as stream:
        for _ in range(repeats):
            stream.write(block)
    shown = subprocess.run([sys.executable, "-c", PEAK, source, target], capture_output=True, check=True, text=True)
    source.unlink()
    target.unlink()
    records, peak = shown.stdout.split()
    assert int(records) == 200 * repeats
    return int(peak)
