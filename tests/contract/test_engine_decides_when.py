"""The engine decides when to compact: HARD far below the threshold compacts through every interface."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

import midfold
from midfold.compaction.budget import Pressure
from midfold.compaction.receipt import Receipt
from midfold.compaction.request import CompactionRequest
from midfold.engines import Compressor
from support.gateways import running, settings
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 20_000
TALK: list[Any] = [{"role": "user", "content": "Go."}]
for number in range(25):
    TALK += [
        {"role": "assistant", "content": f"Step {number}: " + "I look at it closely. " * 20},
        {"role": "user", "content": f"Result {number}: " + "all is well here. " * 20},
    ]


class Early(Compressor):
    """Engine that requests a compaction at 3,000 tokens, whatever the threshold."""

    name: ClassVar[str] = "early"

    def should_compress(self, request: CompactionRequest) -> Pressure:
        return Pressure.HARD if (request.prompt_tokens or 0) >= 3_000 else Pressure.NONE


class Always(Early):
    """Engine that always reports HARD, even with nothing left to compact."""

    def should_compress(self, request: CompactionRequest) -> Pressure:
        return Pressure.HARD


def by_compact() -> Receipt:
    return midfold.compact(TALK, engine=Early(), context_length=WINDOW).receipt


def by_host() -> Receipt:
    host = midfold.EngineHost(Early(), context_length=WINDOW)
    host.append(TALK)
    assert host.should_compress()
    host.compress(TALK)
    assert host.last is not None
    return host.last


def by_async_host() -> Receipt:
    host = midfold.EngineHost(Early(), context_length=WINDOW)
    asyncio.run(host.compress_async(TALK))
    assert host.last is not None
    return host.last


def by_step() -> Receipt:
    host = midfold.EngineHost(Early(), context_length=WINDOW)
    host.step(TALK)
    assert host.last is not None
    return host.last


def by_session() -> Receipt:
    with midfold.open("memory:", engine=Early()) as sessions:
        session = sessions.session("a", context_length=WINDOW)
        session.append(TALK)
        assert session.should_compact()
        return session.compact().receipt


def by_gateway() -> Receipt:
    with (
        RulesProvider(lambda request: Turn("Fine."), window=WINDOW) as provider,
        midfold.open("memory:", engine=Early()) as sessions,
        running(provider.url, config=settings(provider.url, WINDOW, mode="manage"), sessions=sessions) as gateway,
    ):
        gateway.post("/v1/chat/completions", {"model": "gpt-4o", "messages": TALK})
        (info,) = gateway.sessions.all()
        return gateway.sessions.session(info.name).receipts()[0].receipt


@pytest.mark.parametrize("face", [by_compact, by_host, by_async_host, by_step, by_session, by_gateway])
def test_hard_pressure_below_the_threshold_compacts(face: Callable[[], Receipt]) -> None:
    receipt = face()
    assert receipt.old_tokens < receipt.threshold_tokens * 0.7
    assert receipt.status == "compacted"
    assert receipt.new_tokens < receipt.old_tokens * 0.9
    assert receipt.reason.startswith("the engine requested a compaction at")


def test_engine_that_always_reports_hard_does_not_loop() -> None:
    host = midfold.EngineHost(Always(), context_length=WINDOW)
    messages, sizes = TALK, []
    for _ in range(10):
        messages = host.compress(messages)
        sizes.append(host.size.tokens)
    assert sizes == sorted(sizes, reverse=True)
    assert not host.should_compress()
    assert host.last is not None
    assert host.last.status == "unchanged"
