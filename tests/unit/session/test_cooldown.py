from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

import midfold
from midfold.compaction.receipt import FAILURES, KEEPS_HISTORY, cooldown, waiting_time
from midfold.errors import FailureKind, SummaryFailed
from midfold.testing.doubles import FakeClock, ScriptedSummarizer
from tests.support.build import WINDOW, assistant, system, user, work

ROOT = Path(__file__).resolve().parents[3]
SESSION = [system(), user("Port the parser."), assistant("Yes."), *work(0, 60)]


class Flaky:
    """Summarizer that fails with `kind` unless it is empty, and counts its requests."""

    def __init__(self, kind: FailureKind, retry_after: float = 0.0) -> None:
        self.kind, self.retry_after, self.asked = kind, retry_after, 0

    def __call__(self, ask: midfold.SummaryRequest) -> str:
        self.asked += 1
        if self.kind:
            raise SummaryFailed(self.kind, retry_after=self.retry_after)
        return "## Goal\nPort the parser."


@pytest.mark.parametrize("kind", sorted(FAILURES))
def test_after_a_failure_the_model_is_left_alone_until_its_pause_is_over(kind: FailureKind) -> None:
    clock, model = FakeClock(), Flaky(kind)
    host = midfold.EngineHost(context_length=WINDOW, summarizer=model, clock=clock)
    outcomes = [host.compress(SESSION) is SESSION for _ in range(2)]
    assert outcomes == [kind in KEEPS_HISTORY] * 2
    assert model.asked == 1
    assert host.last is not None
    assert any("summary model not called" in notice for notice in host.last.notices)
    host.compress(SESSION, force=True)
    assert model.asked == 2
    clock.advance(cooldown(kind) + 1)
    model.kind = ""
    host.compress(SESSION)
    assert model.asked == 3
    assert (host.state.failure, host.state.cooldown_until) == ("", 0.0)


def test_the_pause_is_as_long_as_the_provider_asked_for() -> None:
    clock = FakeClock()
    host = midfold.EngineHost(context_length=WINDOW, summarizer=Flaky("rate_limit", 900), clock=clock)
    host.compress(SESSION)
    assert host.state.cooldown_until == clock.now + 900


@pytest.mark.parametrize("clear", ["reset", "update_model"])
def test_failures_are_forgotten_by_a_reset_and_by_another_model(clear: str) -> None:
    model = Flaky("auth")
    host = midfold.EngineHost(context_length=WINDOW, summarizer=model)
    host.compress(SESSION)
    if clear == "reset":
        host.reset()
    else:
        host.update_model("another", WINDOW)
    model.kind = ""
    assert host.compress(SESSION) is not SESSION
    assert model.asked == 2


def test_the_pause_survives_a_restart_and_is_carried_by_the_state_of_compact() -> None:
    clock, model = FakeClock(), Flaky("network")
    first = midfold.EngineHost(context_length=WINDOW, summarizer=model, clock=clock)
    first.compress(SESSION)
    second = midfold.EngineHost(context_length=WINDOW, summarizer=model, clock=clock)
    second.restore(first.export())
    assert second.compress(SESSION) is SESSION
    one = midfold.compact(SESSION, context_length=WINDOW, summarizer=model, clock=clock)
    midfold.compact(SESSION, context_length=WINDOW, summarizer=model, clock=clock, state=one.state)
    assert model.asked == 2


def test_two_compactions_without_effect_stop_automatic_ones_until_usage_falls() -> None:
    host = midfold.EngineHost(context_length=WINDOW)
    host.state = midfold.CompactionState(ineffective=2)
    assert not host.should_compress(WINDOW)
    host.update_from_response({"prompt_tokens": WINDOW - 1})
    assert not host.should_compress(WINDOW)
    host.update_from_response({"prompt_tokens": 100})
    assert host.should_compress(WINDOW)


def test_waiting_is_bounded_and_grows() -> None:
    assert [waiting_time("network", attempt) for attempt in range(3)] == [1, 2, None]
    assert waiting_time("rate_limit", 0, 7) == 7
    assert waiting_time("rate_limit", 0, 700) is None
    assert waiting_time("auth", 0) is None


def test_the_page_shows_the_table_of_the_code() -> None:
    script = ROOT / "tools" / "gen_failures_doc.py"
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("kind", ["network", "timeout"])
def test_the_same_holds_for_a_compaction_that_is_awaited(kind: FailureKind) -> None:
    clock, model = FakeClock(), Flaky(kind)
    host = midfold.EngineHost(context_length=WINDOW, summarizer=model, clock=clock)

    async def run() -> list[bool]:
        return [await host.compress_async(SESSION) is SESSION for _ in range(2)]

    assert asyncio.run(run()) == [kind in KEEPS_HISTORY] * 2
    assert model.asked == 1
    clock.advance(cooldown(kind) + 1)
    model.kind = ""
    assert asyncio.run(host.compress_async(SESSION)) is not SESSION
    assert (model.asked, host.state.failure) == (2, "")


def test_a_summarizer_that_can_be_awaited_is_awaited() -> None:
    script = ScriptedSummarizer(["## Goal\nPort the parser."])
    host = midfold.EngineHost(context_length=WINDOW, summarizer=script)
    asyncio.run(host.compress_async(SESSION))
    assert host.last is not None
    assert (host.last.summary.source, script.left) == ("model", 0)


@pytest.mark.parametrize("kind", ["rate_limit", "unavailable", "auth"])
def test_a_shorter_pause_that_the_provider_asked_for_does_not_shorten_the_cooldown(kind: FailureKind) -> None:
    clock = FakeClock()
    host = midfold.EngineHost(context_length=WINDOW, summarizer=Flaky(kind, 2), clock=clock)
    host.compress(SESSION)
    assert host.state.cooldown_until == clock.now + FAILURES[kind].cooldown
