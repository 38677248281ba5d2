"""Real agent runs compacted to a token target: protected turns stay, and the documented guarantees hold."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from midfold import read
from midfold.lab.sharegpt import ShareGPT
from midfold.lab.trajectory_metrics import Totals
from midfold.lab.trajectory_settings import FIRSTS, TrajectorySettings
from midfold.lab.trajectory_work import CompressedRecord, compress_record
from midfold.transcript.document import Document
from midfold.transcript.laws import pair, violations
from support.data import conversations, lines
from support.trajectories import from_chat

SETTINGS = TrajectorySettings(tokenizer="o200k", retention=True)
LEAST_RETENTION = 0.83


@cache
def compressed() -> list[tuple[dict[str, Any], CompressedRecord]]:
    records = [from_chat(conversation) for conversation in conversations()]
    return [(record, compress_record(json.dumps(record).encode(), SETTINGS)) for record in records]


def test_protected_turns_are_identical_and_everything_that_can_be_within_the_target_is() -> None:
    for record, result in compressed():
        before, after = record["conversations"], json.loads(result.data)["conversations"]
        assert result.metrics.status != "failed"
        assert before[-4:] == after[-4:]
        firsts = [next((turn for turn in before if turn["from"] == kind), None) for kind in FIRSTS]
        assert all(turn in after for turn in firsts if turn is not None)
        if result.metrics.status == "over_limit":
            protected = [turn for turn in firsts if turn is not None] + before[-4:]
            count = compress_record(json.dumps({"conversations": protected}).encode(), SETTINGS).metrics.tokens_before
            assert count > SETTINGS.target_tokens - SETTINGS.summary_tokens
        else:
            assert result.metrics.tokens_after <= SETTINGS.target_tokens


def test_nothing_is_orphaned() -> None:
    for record, result in compressed():
        before, after = (
            pair(Document([], ShareGPT, turns).messages)
            for turns in (record["conversations"], json.loads(result.data)["conversations"])
        )
        assert len(after.orphans) <= len(before.orphans)
        assert len(after.unanswered) <= len(before.unanswered)


def test_summaries_keep_what_the_kept_turns_use() -> None:
    totals = Totals()
    for _, result in compressed():
        totals.add(result.metrics, SETTINGS.target_tokens)
    assert totals.retention_records >= 40
    assert totals.retention is not None
    assert totals.retention >= LEAST_RETENTION


@pytest.mark.parametrize("source", ["miniswe_deepseek", "claude_code_packmind"])
def test_recordings_in_their_own_shape_stay_as_legal_as_they_were(source: str) -> None:
    for line in lines(source):
        result = compress_record(line, SETTINGS)
        assert result.metrics.format == "openai-chat"
        assert len(violations(read(result.data).messages)) <= len(violations(read(line).messages))
        assert json.loads(result.data)["meta"] == json.loads(line)["meta"]
