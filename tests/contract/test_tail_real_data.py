"""Real conversations keep the configured tail verbatim, below the threshold."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import midfold
from support.build import setting
from support.data import conversations, need
from support.effort import effort

RATIOS = (0.1, 0.2, 0.35, 0.4, 0.6, 0.8)


def sent(talk: dict[str, Any]) -> list[dict[str, Any]]:
    return [{key: value for key, value in message.items() if key != "_meta"} for message in talk["messages"]]


def tiled(source: str, least: int) -> list[dict[str, Any]]:
    """Return concatenated conversations of a source with at least so many tokens."""
    messages: list[dict[str, Any]] = []
    for talk in conversations(source):
        messages += [message for message in sent(talk) if not messages or message["role"] != "system"]
        if midfold.Meter().count(midfold.read(messages).messages).tokens >= least:
            return messages
    need(messages, f"no conversations of {source}")
    return messages


def tail_of(result: midfold.Compaction) -> tuple[int, int]:
    """Return messages and tokens of the tail."""
    assert result.boundary is not None
    tail = result.before[result.boundary.end :]
    return len(tail), sum(result.meter.tokens(result.meter.units(message), 1) for message in tail)


def is_exact(result: midfold.Compaction, messages: list[dict[str, Any]]) -> bool:
    count = tail_of(result)[0]
    return all(mine is theirs for mine, theirs in zip(result.messages[-count:], messages[-count:], strict=True))


@pytest.mark.parametrize("source", ["claude_code_entire", "codex_agentv"])
def test_the_tail_is_the_configured_share_of_the_threshold_over_the_whole_range(source: str) -> None:
    messages = tiled(source, 250_000)
    tails = []
    for ratio in RATIOS[:: effort(2, 1)]:
        result = midfold.compact(messages, context_length=200_000, config=setting(target_ratio=ratio))
        count, tokens = tail_of(result)
        tails.append(tokens)
        assert is_exact(result, messages)
        assert count >= 20
        assert result.receipt.new_tokens < result.receipt.threshold_tokens == 100_000
        assert not result.receipt.digests
        fixed = result.receipt.new_tokens - tokens
        largest = max(result.meter.tokens(result.meter.units(message), 1) for message in result.before[-count - 40 :])
        assert min(100_000 * ratio, 100_000 - fixed - 10_000) - largest <= tokens <= 100_000 * ratio * 1.5
    assert all(one <= two for one, two in itertools.pairwise(tails)), tails


@pytest.mark.parametrize("window", [32_000, 64_000, 200_000])
def test_folds_of_real_conversations_land_below_the_threshold_and_keep_protect_last_n(window: int) -> None:
    folds = 0
    for talk in itertools.islice(conversations(), 0, None, effort(3, 1)):
        messages = sent(talk)
        result = midfold.compact(messages, context_length=window)
        if not result.changed:
            continue
        folds += 1
        count, _ = tail_of(result)
        receipt = result.receipt
        assert receipt.new_tokens < receipt.threshold_tokens or receipt.impossible
        gave_way = [notice for notice in receipt.notices if "protect_last_n" in notice]
        assert bool(gave_way) == (count < min(20, len(messages)) and receipt.status == "compacted"), receipt.notices
        changed = {digest.message for digest in receipt.digests} | {repair.message for repair in receipt.repairs}
        for place in range(len(messages) - count, len(messages)):
            assert place in changed or any(messages[place] is mine for mine in result.messages[-count - 2 :])
    assert folds >= effort(2, 12)


def test_a_forced_fold_of_a_short_conversation_keeps_half_of_it_or_protect_last_n() -> None:
    messages = sent(next(talk for talk in conversations("claude_code_entire") if len(talk["messages"]) >= 60))
    for count in range(20, 46, 3):
        result = midfold.compact(messages[:count], context_length=200_000, force=True)
        if result.receipt.status == "compacted":
            assert tail_of(result)[0] >= min(20, count // 2)
