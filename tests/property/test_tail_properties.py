"""The kept tail for any conversation and settings, and for malformed histories."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import midfold
from midfold.transcript.laws import violations
from support.broken import broken_history, unanswered_directly
from support.build import setting
from support.effort import effort
from support.fixtures import assistant, call, system, user

HISTORIES = 400


@st.composite
def talks(draw: st.DrawFn) -> list[dict[str, Any]]:
    rng = random.Random(draw(st.integers(0, 10**9)))
    messages = [system(), user("Begin.")]
    for number in range(draw(st.integers(10, 60))):
        kind = rng.random()
        if kind < 0.15:
            messages += [
                user(f"ask {number} " + "why " * rng.choice((3, 200))),
                assistant("so " * rng.choice((5, 300))),
            ]
        else:
            messages += call(number, "sh", {"n": number}, f"{number} " * rng.choice((5, 100, 400, 3_000)))
    return messages


def tail_length(result: midfold.Compaction) -> int:
    assert result.boundary is not None
    return len(result.before) - result.boundary.end


@settings(max_examples=effort(15, 60), deadline=None, suppress_health_check=list(HealthCheck))
@given(talks(), st.sampled_from([8_000, 16_000, 32_000]), st.sampled_from([1, 4, 20]), st.sampled_from([0.1, 0.2, 0.8]))
def test_what_is_configured_stays_word_for_word_wherever_the_view_can_be_below_the_threshold(
    messages: list[dict[str, Any]], window: int, last: int, ratio: float
) -> None:
    config = setting(protect_last_n=last, target_ratio=ratio)
    result = midfold.compact(messages, context_length=window, config=config)
    receipt = result.receipt
    if not result.changed:
        assert receipt.old_tokens < receipt.threshold_tokens or receipt.reason
        return
    assert receipt.new_tokens < receipt.old_tokens
    assert receipt.new_tokens < receipt.threshold_tokens or receipt.impossible
    kept, shortened = tail_length(result), {digest.message for digest in receipt.digests}
    gave_way = any("protect_last_n" in notice for notice in receipt.notices)
    assert kept >= min(last, len(messages) - 2) or gave_way or receipt.status == "pruned"
    for place in range(len(messages) - min(kept, last), len(messages)):
        assert place in shortened or any(messages[place] is mine for mine in result.messages)


@settings(max_examples=20, deadline=None, suppress_health_check=list(HealthCheck))
@given(talks())
def test_a_larger_ratio_never_keeps_less(messages: list[dict[str, Any]]) -> None:
    kept = []
    for ratio in (0.1, 0.2, 0.35, 0.6, 0.8):
        config = setting(protect_last_n=2, target_ratio=ratio, prune="off")
        result = midfold.compact(messages, context_length=32_000, config=config)
        if result.receipt.status != "compacted":
            return
        kept.append(tail_length(result))
    assert kept == sorted(kept)


@pytest.mark.parametrize("dialect", ["openai-chat", "anthropic", "openai-responses"])
@pytest.mark.parametrize("policy", ["bridge", "strip"])
def test_no_output_of_a_broken_history_has_a_call_that_is_not_answered_directly(dialect: str, policy: str) -> None:
    changed = 0
    for seed in range(HISTORIES):
        rng = random.Random(f"{dialect}{policy}{seed}")
        history = broken_history(rng, dialect, rng.choice((4, 10, 25)))
        config = setting(
            orphan_calls=policy, protect_last_n=rng.choice((2, 5, 20)), prune=rng.choice(("digest", "off"))
        )
        how: dict[str, Any] = rng.choice(({"force": True}, {"target_tokens": 600}, {"keep_last_exchanges": 1}, {}))
        result = midfold.compact(history, context_length=rng.choice((3_000, 8_000, 32_000)), config=config, **how)
        if result.changed:
            changed += 1
            assert unanswered_directly(result.messages, dialect) == [], seed
            assert violations(midfold.read(result.messages).messages) == (), seed
    assert changed > HISTORIES // 3


def test_a_lost_call_before_another_batch_at_the_end_gets_a_result() -> None:
    lost, batch = call(900, "sh", {}, "")[:1], call(901, "sh", {}, "done")
    work = [message for number in range(60) for message in call(number, "sh", {}, f"{number} " * 200)]
    result = midfold.compact([user("Go."), *work, *lost, *batch], context_length=16_000)
    assert result.changed
    assert unanswered_directly(result.messages, "openai-chat") == []
    assert result.messages[-1] is batch[1]
    assert any("stub" in repair.what for repair in result.receipt.repairs)
