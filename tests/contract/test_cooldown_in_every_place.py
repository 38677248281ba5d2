"""The cooldown after a failed summary equals the receipt's, in hosts, stored sessions, the agent and the gateway."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import anthropic
import httpx
import pytest

import midfold
from midfold.agent.events import Event, ignore
from midfold.agent.window import AgentWindow
from midfold.compaction.receipt import FAILURES
from midfold.gateway.prepare import REST
from midfold.session.session import Session
from midfold.testing import FakeClock
from support.build import assistant, user
from support.gateways import running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 16_000
THRESHOLD = WINDOW // 2
TALK = [turn for n in range(40) for turn in (user(f"Look at part {n}."), assistant(f"Part {n} is fine. " * 60))]
ASKED = httpx.Request("POST", "http://127.0.0.1/")


class Refusing:
    """Summarizer whose provider refuses, with a count of requests."""

    def __init__(self, status: int = 401, **headers: str) -> None:
        self.answer = httpx.Response(status, headers=headers, request=ASKED)
        self.asked = 0

    def __call__(self, ask: midfold.SummaryRequest) -> str:
        self.asked += 1
        raise anthropic.APIStatusError("no", response=self.answer, body=None)


CASES = [
    pytest.param({"status": 401}, 300.0, id="auth"),
    pytest.param({"status": 429, "retry-after": "1800"}, 1800.0, id="the provider named a time"),
    pytest.param({"status": 500}, 60.0, id="unavailable"),
]


@pytest.mark.parametrize(("refusal", "pause"), CASES)
def test_a_stored_session_asks_again_when_the_pause_is_over_and_not_before(
    refusal: dict[str, object], pause: float, tmp_path: Path
) -> None:
    clock, model = FakeClock(), Refusing(**refusal)  # type: ignore[arg-type]
    url = f"sqlite:///{tmp_path}/s.db"

    def compact(again: int) -> midfold.Receipt:
        """Compact as a new process would: with no state except the store."""
        with midfold.open(url, summarizer=model, clock=clock) as sessions:
            session = sessions.session("s", context_length=WINDOW)
            session.append([user(f"Go {again}."), assistant("Yes."), *TALK])
            return session.compact().receipt

    first = compact(0)
    assert (first.summary.cooldown, model.asked) == (pause, 1)
    assert f"{pause:,.0f} s" in first.summary.next
    clock.advance(pause - 1)
    paused = compact(1)
    assert (paused.summary.failure, paused.summary.cooldown, model.asked) == (first.summary.failure, 1.0, 1)
    clock.advance(1)
    compact(2)
    assert model.asked == 2


def filled(session: Session, share: float) -> None:
    """Append messages until the session reaches a share of its threshold."""
    number = 0
    while session.size.tokens < THRESHOLD * share:
        session.append([user(f"Look at part {number}."), assistant(f"Part {number} is fine. " * 20)])
        number += 1


def test_the_agent_keeps_the_pause_of_a_fold_that_failed_in_the_background() -> None:
    clock, model, events = FakeClock(), Refusing(), list[Event]()
    with midfold.open("memory:", summarizer=model, clock=clock) as sessions:
        session = sessions.session("s", context_length=WINDOW)
        room = AgentWindow(session, events.append)
        filled(session, 0.9)
        room.before(first=True)
        _wait(lambda: model.asked == 1 and not room._ahead.in_flight)
        filled(session, 1.01)
        for _ in range(3):
            room.before(first=False)
        assert model.asked == 1
        assert session.state.failure == "auth"
        assert session.state.cooldown_until == clock.now + FAILURES["auth"].cooldown
        clock.advance(FAILURES["auth"].cooldown)
        room.before(first=False)
        assert model.asked == 2


def test_a_host_keeps_the_pause_of_a_fold_that_failed_in_the_background() -> None:
    clock, model = FakeClock(), Refusing()
    host = midfold.EngineHost(context_length=WINDOW, summarizer=model, clock=clock)
    assert host.step(TALK, int(THRESHOLD * 0.9)) is TALK
    _wait(lambda: model.asked == 1 and not host.in_flight)
    for _ in range(3):
        assert host.step(TALK, THRESHOLD + 1) is TALK
    assert model.asked == 1
    assert host.last is not None
    assert (host.last.status, host.last.summary.failure, host.last.summary.cooldown) == ("aborted", "auth", 300)


def test_the_agent_goes_on_without_a_word_about_it_to_the_model() -> None:
    with midfold.open("memory:", summarizer=Refusing()) as sessions:
        session = sessions.session("s", context_length=WINDOW)
        filled(session, 1.01)
        before = session.view().messages
        AgentWindow(session, ignore).before(first=False)
        assert session.view().messages == before


@pytest.mark.parametrize(("refusal", "pause"), CASES[:2])
def test_the_gateway_keeps_the_pause_and_sends_what_it_was_given(refusal: dict[str, object], pause: float) -> None:
    assert pause > REST, "or the pause could be that of a fold that was not worth it"
    clock, model = FakeClock(), Refusing(**refusal)  # type: ignore[arg-type]
    body = {"model": "gpt-4o", "messages": [user("Go."), assistant("Yes."), *TALK, user("And?")]}
    with (
        RulesProvider(lambda request: Turn("Fine."), window=WINDOW * 10) as provider,
        midfold.open("memory:", summarizer=model, clock=clock) as sessions,
        running(provider.url, sessions=sessions, window=WINDOW, compression={"lossy_fallback": False}) as gateway,
    ):
        for moment, times in ((0.0, 1), (pause - 2, 1), (1.0, 1), (1.0, 2)):
            clock.advance(moment)
            status, head, _ = gateway.post("/v1/chat/completions", body)
            assert (status, head["x-midfold-action"], model.asked) == (200, "relayed", times)
        assert len(provider.requests[-1].body["messages"]) == len(body["messages"])


def _wait(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.01)
