"""Where folds of real conversations land: at half of the threshold, unless what must stay is larger."""

from __future__ import annotations

from typing import Any

import pytest

import midfold
from tests.support.data import conversations

LONG_HEADS = 2
"""Conversations whose first exchange alone is larger than half of a small window's threshold."""


def compacted(window: int) -> list[midfold.Compaction]:
    results = [midfold.compact(sent(talk), context_length=window) for talk in conversations()]
    return [result for result in results if result.changed]


def sent(talk: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in message.items() if key != "_meta"} for message in talk["messages"]]


@pytest.mark.parametrize(("window", "exceptions"), [(32_000, 4), (64_000, LONG_HEADS), (200_000, 0)])
def test_folds_land_at_half_of_the_threshold_whenever_the_anchors_allow(window: int, exceptions: int) -> None:
    results = compacted(window)
    assert len(results) >= 12
    high = [result for result in results if result.receipt.new_tokens > result.receipt.threshold_tokens / 2]
    assert len(high) <= exceptions
    for result in high:
        boundary = result.boundary
        assert boundary is not None
        kept = result.transcript
        sizes = sorted((result.meter.tokens(result.meter.units(message), 1) for message in kept), reverse=True)
        assert sum(sizes[:4]) > result.receipt.threshold_tokens / 4, "a few large messages, not many small ones"
        assert result.receipt.new_tokens <= result.receipt.threshold_tokens or result.receipt.impossible
