"""Whole runs: names, order, formats, failures, continuing after an interruption."""

from __future__ import annotations

import errno
import gzip
import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard

from midfold import atomic
from midfold.errors import ConfigError, MidfoldError, TranscriptError
from midfold.lab import trajectory_run as job
from midfold.lab.trajectory_metrics import RecordMetrics
from midfold.lab.trajectory_run import (
    SUFFIX,
    TrajectoryAccount,
    TrajectoryJob,
    TrajectoryProgress,
    compress_trajectories,
)
from midfold.lab.trajectory_settings import TrajectorySettings
from support.trajectories import lines, record

SETTINGS = TrajectorySettings(target_tokens=2_000, summary_tokens=200, tokenizer="estimate", batch_bytes=30_000)


class Witness:
    """Observer that records all events of a run."""

    def __init__(self) -> None:
        self.steps: list[TrajectoryProgress] = []
        self.failures: list[RecordMetrics] = []
        self.lines: list[dict[str, Any]] = []

    def progress(self, progress: TrajectoryProgress, /) -> None:
        self.steps.append(progress)

    def report_failure(self, record: RecordMetrics, /) -> None:
        self.failures.append(record)

    def record_lines(self, lines: Iterator[bytes], /) -> None:
        self.lines = [json.loads(line) for line in lines]


def done(source: Path, target: Path, witness: Witness | None = None, **options: Any) -> TrajectoryAccount:
    return compress_trajectories(
        TrajectoryJob(source=str(source), target=str(target), **{"settings": SETTINGS, **options}), witness
    )


def test_a_folder_keeps_names_order_ids_and_formats(tmp_path: Path) -> None:
    data = lines(6)
    inside = tmp_path / "in" / "deep"
    inside.mkdir(parents=True)
    (tmp_path / "in" / "a.jsonl").write_bytes(data)
    (inside / "b.jsonl.gz").write_bytes(gzip.compress(data))
    (inside / "c.json.zst").write_bytes(zstandard.compress(json.dumps([record(n) for n in range(6)]).encode()))
    (tmp_path / "in" / "notes.txt").write_text("not a trajectory")
    witness = Witness()
    finished = done(tmp_path / "in", tmp_path / "out", witness)
    out = tmp_path / "out"
    assert sorted(str(path.relative_to(out)) for path in out.rglob("*.*")) == [
        "a.jsonl",
        "deep/b.jsonl.gz",
        "deep/c.json.zst",
    ]
    first = [json.loads(line) for line in (out / "a.jsonl").read_bytes().splitlines()]
    assert [item["id"] for item in first] == [f"run-{number}" for number in range(6)]
    assert gzip.decompress((out / "deep/b.jsonl.gz").read_bytes()) == (out / "a.jsonl").read_bytes()
    packed = zstandard.ZstdDecompressor().decompress((out / "deep/c.json.zst").read_bytes())
    assert json.loads(packed) == first
    assert (finished.totals.records, finished.totals.compressed) == (18, 18)
    assert [line["id"] for line in witness.lines[:6]] == [f"run-{number}" for number in range(6)]
    assert {line["file"] for line in witness.lines} == {"a.jsonl", "deep/b.jsonl.gz", "deep/c.json.zst"}
    assert witness.steps[-1].bytes_done == witness.steps[-1].bytes_all > 0
    assert not Path(f"{out}{SUFFIX}").exists()


def test_zstd_files_of_several_frames_are_read_to_their_end_and_written_as_one(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl.zst"
    source.write_bytes(b"".join(zstandard.compress(line + b"\n") for line in lines(4).splitlines()))
    done(source, tmp_path / "out.jsonl.zst")
    whole = zstandard.ZstdDecompressor().stream_reader(io.BytesIO((tmp_path / "out.jsonl.zst").read_bytes())).read()
    assert len(whole.splitlines()) == 4


def test_any_number_of_workers_gives_the_same_bytes(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(8))
    (tmp_path / "again.jsonl.gz").write_bytes(b"")
    done(tmp_path / "in.jsonl", tmp_path / "one.jsonl.gz")
    done(tmp_path / "in.jsonl", tmp_path / "two.jsonl.gz", workers=2)
    assert (tmp_path / "one.jsonl.gz").read_bytes() == (tmp_path / "two.jsonl.gz").read_bytes()


def test_bad_records_stay_as_they_are_and_are_named_by_file_and_line(tmp_path: Path) -> None:
    good = lines(3).splitlines()
    source = tmp_path / "in.jsonl"
    source.write_bytes(b"\n".join([good[0], b'{"broken": ', good[1], b"[1, 2]", good[2]]))
    witness = Witness()
    finished = done(source, tmp_path / "out.jsonl", witness)
    out = (tmp_path / "out.jsonl").read_bytes().splitlines()
    assert (out[1], out[3]) == (b'{"broken": ', b"[1, 2]")
    assert [(item.file, item.line) for item in witness.failures] == [("in.jsonl", 2), ("in.jsonl", 4)]
    assert (finished.totals.failed, finished.totals.compressed) == (2, 3)


def test_strict_stops_at_the_first_bad_record_and_writes_nothing(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(2) + b"nonsense\n" + lines(2))
    with pytest.raises(TranscriptError, match=r"in\.jsonl, line 3: not JSON"):
        done(source, tmp_path / "out.jsonl", strict=True)
    assert not (tmp_path / "out.jsonl").exists()


def test_a_damaged_file_gets_no_output_and_the_others_do(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(lines(4))[:-300])
    (tmp_path / "in" / "b.jsonl").write_bytes(lines(2))
    finished = done(tmp_path / "in", tmp_path / "out")
    assert [item.file for item in finished.failed_files] == ["a.jsonl.gz"]
    assert "damaged or truncated" in finished.failed_files[0].reason
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["b.jsonl"]


def interrupted(source: Path, target: Path, monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """Run until it fails after `after` finished batches."""
    keep = job.Workplace.keep
    count = 0

    def failing(self: Any, *arguments: Any) -> None:
        nonlocal count
        if count == after:
            raise KeyboardInterrupt
        count += 1
        keep(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setattr(job.Workplace, "keep", failing)
        with pytest.raises(KeyboardInterrupt):
            done(source, target)


def test_an_interrupted_run_goes_on_and_finished_batches_are_not_done_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(10))
    done(source, tmp_path / "whole.jsonl")
    interrupted(source, target, monkeypatch, after=4)
    assert not target.exists()
    parts = sorted(Path(f"{target}{SUFFIX}").rglob("*.part"))
    assert len(parts) == 4
    before = [part.stat().st_mtime_ns for part in parts]
    interrupted(source, target, monkeypatch, after=2)
    assert [part.stat().st_mtime_ns for part in parts] == before
    finished = done(source, target)
    assert finished.resumed
    assert finished.totals.records == 10
    assert target.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()
    assert not Path(f"{target}{SUFFIX}").exists()


def test_a_finished_batch_whose_bytes_were_lost_is_done_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(10))
    done(source, tmp_path / "whole.jsonl")
    interrupted(source, target, monkeypatch, after=4)
    parts = sorted(Path(f"{target}{SUFFIX}").rglob("*.part"))
    parts[1].write_bytes(b"")
    parts[2].write_bytes(parts[2].read_bytes()[:-1] + b"?")
    done(source, target)
    assert target.read_bytes() == (tmp_path / "whole.jsonl").read_bytes()


def test_work_of_other_settings_or_other_inputs_is_not_mixed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(10))
    interrupted(source, target, monkeypatch, after=2)
    other = TrajectorySettings(target_tokens=3_000, summary_tokens=200, tokenizer="estimate", batch_bytes=30_000)
    with pytest.raises(MidfoldError, match="the settings changed"):
        done(source, target, settings=other)
    source.write_bytes(lines(11))
    with pytest.raises(MidfoldError, match="the input files changed"):
        done(source, target)
    finished = done(source, target, restart=True)
    assert (finished.resumed, finished.totals.records) == (False, 11)


def test_two_runs_at_the_same_place_are_refused(tmp_path: Path) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(2))
    place = job.Workplace(str(target), job.inputs(str(source), str(target)), SETTINGS)
    with pytest.raises(MidfoldError, match="another run is using"):
        done(source, target)
    place.close(finished=False)
    assert done(source, target).totals.records == 2


def test_an_input_is_never_overwritten(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines(1))
    for target in (source, tmp_path):
        with pytest.raises(TranscriptError, match="is also an input"):
            done(source, target)


def test_a_pipe_or_a_device_is_never_replaced_by_a_file(tmp_path: Path) -> None:
    source, pipe = tmp_path / "in.jsonl", tmp_path / "pipe"
    source.write_bytes(lines(1))
    os.mkfifo(pipe)
    with pytest.raises(TranscriptError, match="exists and is not a regular file; choose another OUT"):
        compress_trajectories(TrajectoryJob(source=str(source), target=str(pipe), settings=SETTINGS))
    assert pipe.is_fifo()


def test_an_output_that_is_a_link_stays_one(tmp_path: Path) -> None:
    source, link, real = tmp_path / "in.jsonl", tmp_path / "link.jsonl", tmp_path / "elsewhere" / "real.jsonl"
    source.write_bytes(lines(1, steps=2))
    real.parent.mkdir()
    link.symlink_to(real)
    compress_trajectories(TrajectoryJob(source=str(source), target=str(link), settings=SETTINGS))
    assert link.is_symlink()
    assert real.read_bytes() == source.read_bytes()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(1))
    (tmp_path / "file").touch()
    with pytest.raises(MidfoldError, match=r"file/out\.jsonl\.midfold-work could not be created: Not a directory"):
        compress_trajectories(
            TrajectoryJob(
                source=str(tmp_path / "in.jsonl"), target=str(tmp_path / "file" / "out.jsonl"), settings=SETTINGS
            )
        )


def test_utf_16_is_named_for_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(1).decode().encode("utf-16"))
    done = compress_trajectories(
        TrajectoryJob(source=str(tmp_path / "in.jsonl"), target=str(tmp_path / "out.jsonl"), settings=SETTINGS)
    )
    assert done.failed_files[0].reason == "in.jsonl is UTF-16 or UTF-32; expected JSON in UTF-8"
    assert not (tmp_path / "out.jsonl").exists()


def test_a_full_disk_ends_the_run_with_an_error_and_what_is_finished_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, target = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    source.write_bytes(lines(10))
    made = atomic.replace_file

    def full(path: Path, **options: Any) -> Any:
        if path.name == "000003.part":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return made(path, **options)

    with monkeypatch.context() as patch:
        patch.setattr(atomic, "replace_file", full)
        with pytest.raises(MidfoldError, match="No space left"):
            done(source, target)
    assert not target.exists()
    assert len(list(Path(f"{target}{SUFFIX}").rglob("*.part"))) == 3
    assert done(source, target).totals.records == 10


def test_out_is_not_inside_in_and_hidden_folders_are_not_read(tmp_path: Path) -> None:
    (tmp_path / ".cache").mkdir()
    for name in ("in.jsonl", ".cache/old.jsonl"):
        (tmp_path / name).write_bytes(lines(1))
    with pytest.raises(TranscriptError, match="is inside"):
        done(tmp_path, tmp_path / "out")
    assert done(tmp_path, tmp_path.with_name(f"{tmp_path.name}-out")).totals.records == 1


def test_a_file_goes_into_a_folder_under_its_name(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(1))
    (tmp_path / "out").mkdir()
    done(tmp_path / "in.jsonl", tmp_path / "out")
    assert (tmp_path / "out" / "in.jsonl").exists()


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        (TrajectorySettings(target_tokens=500, summary_tokens=500), "must be smaller"),
        (TrajectorySettings(tokenizer="klingon"), "unknown tokenizer"),
        (TrajectorySettings(summarizer="anthropic"), "ANTHROPIC_API_KEY is not set"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_anything_is_read(
    tmp_path: Path, settings: TrajectorySettings, told: str
) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(1))
    with pytest.raises(ConfigError, match=told):
        done(tmp_path / "in.jsonl", tmp_path / "out.jsonl", settings=settings)
    assert not list(tmp_path.glob("out*"))


def test_a_summarizer_of_ones_own_is_asked_and_its_failures_are_counted(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_bytes(lines(3))
    own = TrajectorySettings(target_tokens=2_000, tokenizer="estimate", summarizer="support.trajectories:slow_summary")
    finished = done(tmp_path / "in.jsonl", tmp_path / "out.jsonl", settings=own)
    assert (finished.totals.summary_calls, finished.totals.summary_errors) == (3, 0)
    assert b"turns were here." in (tmp_path / "out.jsonl").read_bytes()
    failing = TrajectorySettings(target_tokens=2_000, tokenizer="estimate", summarizer="support.trajectories:words")
    finished = done(tmp_path / "in.jsonl", tmp_path / "failing.jsonl", settings=failing)
    assert (finished.totals.compressed, finished.totals.summary_errors) == (3, 3)
    assert b"Done:" in (tmp_path / "failing.jsonl").read_bytes()
