"""For any trajectory, protected turns keep their bytes, no call or result is orphaned, and the target is met."""

from __future__ import annotations

import io
import json

from hypothesis import given
from hypothesis import strategies as st

from midfold.lab.sharegpt import ShareGPT
from midfold.lab.trajectory_files import batches
from midfold.lab.trajectory_plan import plan_trajectory
from midfold.lab.trajectory_records import open_record
from midfold.lab.trajectory_settings import TrajectorySettings
from midfold.lab.trajectory_work import compress_record
from midfold.transcript.document import Document, write
from midfold.transcript.laws import pair
from midfold.transcript.message import Message, Text
from support.trajectories import Words, call, response, turn

TEXTS = st.text("abc_/. <>\n", max_size=120)


@st.composite
def trajectories(draw: st.DrawFn) -> list[dict[str, str]]:
    turns = [turn("system", draw(TEXTS))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(0, 14))):
        kind = draw(st.sampled_from(["human", "gpt", "step", "step", "batch"]))
        if kind in ("human", "gpt"):
            turns.append(turn(kind, draw(TEXTS)))
            continue
        calls = 1 if kind == "step" else draw(st.integers(2, 3))
        asked = [call("bash", command=draw(TEXTS)) for _ in range(calls)]
        turns.append(turn("gpt", "\n".join([draw(TEXTS).replace("<", ""), *asked])))
        results = [response(draw(TEXTS)) for _ in range(calls)]
        if draw(st.booleans()):
            turns += [turn("tool", result) for result in results]
        else:
            turns.append(turn("tool", "\n".join(results)))
    return turns


SETTINGS = st.fixed_dictionaries(
    {
        "target_tokens": st.integers(60, 400),
        "summary_tokens": st.integers(10, 50),
        "protect_last": st.integers(0, 6),
        "protect_first": st.lists(st.sampled_from(("system", "human", "gpt", "tool")), unique=True).map(tuple),
        "turn_tokens": st.integers(0, 4),
        "tokenizer": st.just("estimate"),
    }
).map(lambda fields: TrajectorySettings(**fields))


@given(trajectories(), SETTINGS)
def test_a_fold_keeps_what_is_protected_orphans_nothing_and_tells_the_truth(
    turns: list[dict[str, str]], settings: TrajectorySettings
) -> None:
    data = json.dumps({"id": 7, "conversations": turns, "n": 1.50}).encode()
    result = compress_record(data, settings, None, Words())
    after = json.loads(result.data)["conversations"]
    known = result.metrics
    tokens = sum(len(item["value"].split()) + settings.turn_tokens for item in after)
    assert known.status in ("under_target", "compressed", "over_limit")
    assert (known.status == "over_limit") == (known.tokens_after > settings.target_tokens)
    if known.fold is None:
        assert result.data == data
    else:
        assert known.tokens_after == tokens < known.tokens_before + settings.summary_tokens + 90
        summaries = [place for place, item in enumerate(after) if item["value"].startswith("[CONTEXT SUMMARY]:")]
        assert len(summaries) == 1
        kept = [json.dumps(item) for place, item in enumerate(after) if place != summaries[0]]
        rest = iter([json.dumps(item) for item in turns])
        assert all(item in rest for item in kept), "what stays is a part of what was there, in its order"
        _protected(turns, after, settings)
        before, now = (pair(Document([], ShareGPT, items).messages) for items in (turns, after))
        assert len(now.orphans) <= len(before.orphans)
        assert len(now.unanswered) <= len(before.unanswered)


def _protected(turns: list[dict[str, str]], after: list[dict[str, str]], settings: TrajectorySettings) -> None:
    last = min(settings.protect_last, len(turns))
    assert after[len(after) - last :] == turns[len(turns) - last :]
    for kind in settings.protect_first:
        first = next((item for item in turns if item["from"] == kind), None)
        if first is not None:
            assert first in after


@given(trajectories(), SETTINGS)
def test_what_is_folded_is_no_more_than_the_target_needs(
    turns: list[dict[str, str]], settings: TrajectorySettings
) -> None:
    record = open_record(json.dumps({"conversations": turns}).encode(), Words(), settings.turn_tokens)
    made = plan_trajectory(record, settings)
    firsts = [next((at for at, item in enumerate(turns) if item["from"] == kind), 0) for kind in settings.protect_first]
    if made.spans and made.fits and len(made.spans) == 1 and made.spans[0].start > max(firsts, default=-1):
        span = made.spans[0]
        first = range(span.start, min(cut for cut in record.cuts if cut > span.start))
        last = range(max(cut for cut in record.cuts if cut < span.stop), span.stop)
        room = settings.target_tokens - settings.summary_tokens - settings.turn_tokens
        assert made.kept_tokens <= room
        assert made.kept_tokens + record.total(first) > room
        assert made.kept_tokens + record.total(last) > room


@given(st.lists(trajectories(), max_size=6), st.integers(1, 2_000), st.sampled_from(["lines", "array", "pretty"]))
def test_batches_hold_every_byte_once_and_every_record_whole(
    runs: list[list[dict[str, str]]], size: int, layout: str
) -> None:
    records = [{"id": number, "conversations": turns} for number, turns in enumerate(runs)]
    if layout == "lines":
        data = "".join(json.dumps(item) + "\n" for item in records).encode()
    else:
        data = json.dumps(records, indent=2 if layout == "pretty" else None).encode()
    made = list(batches(io.BytesIO(data), "f.jsonl" if layout == "lines" else "f.json", size))
    assert b"".join(batch.data for batch in made) == data
    if records or layout == "lines":
        assert [json.loads(batch.data[start:end]) for batch in made for start, end in batch.spans] == records


@given(
    trajectories(), SETTINGS, st.sampled_from([None, 1]), st.booleans(), st.sampled_from([b"{", b'{"x": [1],', b"["])
)
def test_the_short_way_of_writing_gives_what_the_long_way_gives(
    turns: list[dict[str, str]], settings: TrajectorySettings, indent: int | None, odd: bool, start: bytes
) -> None:
    array = json.dumps(turns, indent=indent).encode()
    if odd:
        array = array.replace(b'}, {"from"', b'} ,  {"from"', 1)
    data = array if start == b"[" else start + b'"conversations" : ' + array + b', "y": "\\"conversations\\""}'
    record = open_record(data, Words(), settings.turn_tokens)
    made = plan_trajectory(record, settings)
    if made.spans:
        added = Message("user", (Text("summary"),))
        long_way = write(record.document, messages=record.view(made.spans, added))
        assert json.loads(record.write(made.spans, added)) == json.loads(long_way)
        assert odd or len(turns) == made.spans[-1].stop or record.write(made.spans, added) == long_way
