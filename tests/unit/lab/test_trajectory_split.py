"""Streams split into batches: every byte once, whole records, detected layout, counted lines."""

from __future__ import annotations

import io
import json

import pytest

from midfold.errors import TranscriptError
from midfold.lab import trajectory_files as split
from midfold.lab.trajectory_files import Batch, batches
from support.trajectories import record, run_of

SMALL = 700
RECORDS = [{"id": number, "conversations": [{"from": "human", "value": "x" * (50 * number)}]} for number in range(12)]


def cut(data: bytes, name: str = "f.json", size: int = SMALL) -> list[Batch]:
    return list(batches(io.BytesIO(data), name, size))


def found(made: list[Batch]) -> list[bytes]:
    return [batch.data[start:end] for batch in made for start, end in batch.spans]


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\n\n \n"])
@pytest.mark.parametrize("size", [1, 300, 100_000])
@pytest.mark.parametrize("start", [b"", b"\xef\xbb\xbf", b"\n \n"])
def test_lines_are_cut_into_records_and_nothing_is_lost(ending: str, size: int, start: bytes) -> None:
    data = start + ending.join(map(json.dumps, RECORDS)).encode()
    made = cut(data, "f.jsonl", size)
    assert b"".join(batch.data for batch in made) == data
    assert [json.loads(piece) for piece in found(made)] == RECORDS


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("size", [1, 300, 100_000])
def test_an_array_is_cut_into_records_however_it_is_laid_out(indent: int | None, size: int) -> None:
    data = b" " + json.dumps(RECORDS, indent=indent).encode() + b"\n"
    made = cut(data, size=size)
    assert b"".join(batch.data for batch in made) == data
    assert [json.loads(piece) for piece in found(made)] == RECORDS
    assert len(made) > 1 or size > 300


def test_a_batch_knows_the_lines_of_its_records() -> None:
    data = b"\n".join(json.dumps(item).encode() for item in RECORDS)
    made = cut(data, "f.jsonl")
    assert [line for batch in made for line in batch.lines()] == list(range(1, 13))
    pretty = json.dumps(RECORDS, indent=1).encode()
    places = [line for batch in cut(pretty) for line in batch.lines()]
    assert [pretty.splitlines()[place - 1].strip() for place in places] == [b"{"] * 12


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(record(steps=9), indent=2).encode(),
        json.dumps(run_of(9)).encode(),
        json.dumps(run_of(9), indent=1).encode(),
        "\n".join(map(json.dumps, run_of(9))).encode() + b"\n",
    ],
)
def test_one_record_in_a_file_is_one_record(data: bytes) -> None:
    made = cut(data)
    assert len(made) == 1
    assert found(made) == [data.strip()]


def test_lists_of_turns_on_lines_are_many_records() -> None:
    data = b"\n".join(json.dumps(run_of(3, seed)).encode() for seed in range(5))
    assert len(found(cut(data))) == len(found(cut(data, "f.jsonl"))) == 5


def test_nothing_is_no_record() -> None:
    for data in (b"", b"\n\n", b"  "):
        assert found(cut(data)) == []
        assert b"".join(batch.data for batch in cut(data)) == data


def test_an_array_that_breaks_off_gives_its_rest_as_a_record_that_will_fail() -> None:
    data = json.dumps(RECORDS).encode()[:-40]
    made = cut(data)
    assert b"".join(batch.data for batch in made) == data
    pieces = found(made)
    assert [json.loads(piece) for piece in pieces[:-1]] == RECORDS[:11]
    with pytest.raises(ValueError, match="Unterminated"):
        json.loads(pieces[-1])


def test_a_record_that_never_ends_is_an_error_that_names_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "LARGEST_RECORD", 10_000)
    data = json.dumps(RECORDS[0]).encode() + b"\n" + b"x" * 50_000
    with pytest.raises(TranscriptError, match="line 2: no record ends"):
        cut(data, "f.jsonl")


def test_no_more_than_the_largest_record_is_unpacked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "LARGEST_RECORD", 10_000)
    stream = io.BytesIO(b"x" * 1_000_000)
    with pytest.raises(TranscriptError, match="no record ends"):
        list(batches(stream, "f.jsonl", SMALL))
    assert stream.tell() == 10_001


def test_batches_may_be_larger_than_the_largest_record(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(split, "LARGEST_RECORD", 1_000)
    data = b"\n".join(json.dumps(one).encode() for one in RECORDS * 20)
    assert [json.loads(piece) for piece in found(cut(data, "f.jsonl", 20_000))] == RECORDS * 20
