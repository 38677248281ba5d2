"""Cooldown after a failed summary with a summary model that refuses over HTTP: gateway and agent.

The program restarts between two requests, so the cooldown must come from its store.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import midfold
from midfold.agent import AgentAssembly
from midfold.agent.events import Event, Folded, agree
from midfold.config import Config
from midfold.config.schema import Auxiliary, AuxiliaryTask, GatewaySettings, Provider
from midfold.errors import FailureKind, ModelFailed
from midfold.models import ModelOverride
from midfold.testing import FakeClock, Request, ScriptedProvider
from midfold.testing.answers import Answer, error, summary, turn
from support.build import assistant, user
from support.gateways import running

WINDOW = 16_000
CHAT = "/v1/chat/completions"


class Case(NamedTuple):
    """Failing summary model: its response, failure kind and cooldown, and whether the history stays unfolded."""

    answer: Answer
    kind: FailureKind
    pause: float
    keeps: bool = False
    timeout: float = 30.0


REFUSED = Case(error(401, "bad key"), "auth", 300.0, keeps=True)
LIMITED = Case(error(429, "slow down", headers={"retry-after": "1800"}), "rate_limit", 1800.0)
CASES = [
    pytest.param(REFUSED, id="401"),
    pytest.param(LIMITED, id="429"),
    pytest.param(Case(error(503, "busy", headers={"retry-after": "900"}), "unavailable", 900.0), id="503"),
    pytest.param(Case(summary("openai", "Late.").slow(20.0), "timeout", 60.0, timeout=2.0), id="too late"),
]


def configured(case: Case, summaries: ScriptedProvider, upstream: ScriptedProvider | None = None) -> Config:
    task = AuxiliaryTask(provider="lab", model="small", timeout=case.timeout, context_length=WINDOW * 4)
    return Config(
        gateway=GatewaySettings(
            upstream=None if upstream is None else upstream.url, mode="manage", recall="off", summary_wait=60.0
        ),
        auxiliary=Auxiliary(compression=task),
        providers={"lab": Provider(base_url=f"{summaries.url}/v1")},
        models={"*": ModelOverride(context_window=WINDOW)},
    )


def talk(turns: int, last: str = "And?") -> list[dict[str, Any]]:
    said = [user("Go."), assistant("Yes.")]
    for number in range(turns):
        said += [user(f"Look at part {number}."), assistant(f"Part {number} is fine. " * 60)]
    return [*said, user(last)]


def plain(request: Request) -> Answer:
    return turn("openai", "Fine.", prompt_tokens=len(request.raw) // 4)


class RestartedGateway:
    """Gateway that restarts before every request and keeps only its store."""

    def __init__(self, case: Case, lab: ScriptedProvider, provider: ScriptedProvider, folder: Path) -> None:
        self.config = configured(case, lab, provider)
        self.clock, self.store, self.provider = FakeClock(1_700_000_000.0), f"sqlite:///{folder}/g.db", provider
        self.receipts: list[midfold.Receipt] = []

    def send(self, messages: list[dict[str, Any]]) -> tuple[str, str]:
        """Return the gateway's action on a request, and its reason."""
        with (
            midfold.open(self.store, config=self.config, clock=self.clock) as sessions,
            running(self.provider.url, sessions=sessions, config=self.config) as gateway,
        ):
            status, head, _ = gateway.post(CHAT, {"model": "gpt-4o", "messages": messages})
            assert status == 200
            infos = sorted(sessions.all(), key=lambda info: info.name)
            self.receipts = [row.receipt for info in infos for row in sessions.store.records(info.name)]
        return head["x-midfold-action"], head.get("x-midfold-reason", "")


@pytest.mark.parametrize("case", CASES)
def test_the_gateway_keeps_its_promise_through_restarts(case: Case, tmp_path: Path) -> None:
    with ScriptedProvider(then=plain) as provider, ScriptedProvider(then=case.answer) as lab:
        gateway = RestartedGateway(case, lab, provider, tmp_path)
        told = ("relayed", f"not folded: {case.kind}") if case.keeps else ("compacted", "")
        said = talk(160)
        for count, moment, asked, left in ((80, 0.0, 1, case.pause), (180, case.pause - 0.5, 1, 0.5), (280, 0.5, 2, 0)):
            gateway.clock.advance(moment)
            assert gateway.send([*said[:count], user("And?")][: count - 1]) == told
            assert len(lab.requests) == asked
            if not case.keeps:
                newest = gateway.receipts[-1].summary
                assert (newest.failure, newest.source, newest.cooldown) == (case.kind, "local", left or case.pause)
                assert f"for {1 if left == 0.5 else case.pause:,.0f} s" in newest.next


@pytest.mark.parametrize("case", [REFUSED, LIMITED], ids=["401", "429"])
def test_a_client_that_changes_its_last_message_every_time_is_the_same_conversation(case: Case, tmp_path: Path) -> None:
    """Its histories are branches in the store; clients that add notes at the end of each request do this."""
    with ScriptedProvider(then=plain) as provider, ScriptedProvider(then=case.answer) as lab:
        gateway = RestartedGateway(case, lab, provider, tmp_path)
        counts = []
        for number, moment in enumerate((0.0, 1.0, case.pause - 2, 1.0, 1.0, 1.0)):
            gateway.clock.advance(moment)
            gateway.send(talk(40 + 40 * number, f"Note {number}."))
            counts.append(len(lab.requests))
        assert counts == [1, 1, 1, 2, 2, 2]


def test_a_client_that_goes_back_is_the_same_conversation(tmp_path: Path) -> None:
    with ScriptedProvider(then=plain) as provider, ScriptedProvider(then=REFUSED.answer) as lab:
        gateway = RestartedGateway(REFUSED, lab, provider, tmp_path)
        said = talk(80)
        for count in (150, 120, 90):
            gateway.send(said[: count + 1])
        assert len(lab.requests) == 1


def test_a_request_that_the_provider_refuses_as_too_large_does_not_end_the_pause(tmp_path: Path) -> None:
    too_long = error(400, "This model's maximum context length is 9000 tokens", code="context_length_exceeded")

    def answer(request: Request) -> Answer:
        return too_long if len(request.raw) > 30_000 else plain(request)

    with ScriptedProvider(then=answer) as provider, ScriptedProvider(then=LIMITED.answer) as lab:
        gateway = RestartedGateway(LIMITED, lab, provider, tmp_path)
        assert gateway.send(talk(40))[0] == "compacted"
        assert gateway.send(talk(60))[0] in ("compacted", "recovered")
        assert len(lab.requests) == 1


def test_an_undo_does_not_end_the_pause(tmp_path: Path) -> None:
    clock = FakeClock()
    with ScriptedProvider(then=LIMITED.answer) as lab:
        config = configured(LIMITED, lab)
        with midfold.open("memory:", config=config, clock=clock) as sessions:
            session = sessions.session("s", context_length=WINDOW)
            session.append(talk(40))
            assert session.compact().changed
            session.undo()
            assert (session.state.failure, session.state.cooldown_until) == ("rate_limit", clock.now + 1800)


class RestartedAgent:
    """Agent that restarts before every turn, on one session."""

    def __init__(self, case: Case, lab: ScriptedProvider, provider: ScriptedProvider, folder: Path) -> None:
        self.config, self.provider, self.folder = configured(case, lab), provider, folder
        self.name: str | None = None
        self.folds: list[Folded] = []

    def watch(self, event: Event) -> None:
        if isinstance(event, Folded):
            self.folds.append(event)

    def turn(self, share: float, model: str = "scripted") -> midfold.CompactionState:
        """Run one turn at a share of the threshold; return the session's state."""
        store = f"sqlite:///{self.folder}/a.db"
        endpoint = self.provider.endpoint("openai", model=model)
        with AgentAssembly(self.folder, self.config, os.environ, store=store, window=WINDOW) as workshop:
            session = workshop.session(endpoint, self.name)
            while session.size.tokens < WINDOW // 2 * share:
                session.append([user("Look."), assistant("This is fine. " * 20)])
            agent = workshop.agent(session, endpoint, watch=self.watch, consent=agree)
            self.name = session.name
            try:
                agent.run("And?")
            except ModelFailed as failed:
                assert failed.kind == "overflow"
            _wait(lambda: not agent.room._ahead.in_flight)
            agent.room.keep_pause()
            return session.state


@pytest.mark.parametrize("case", [REFUSED, LIMITED], ids=["401", "429"])
@pytest.mark.parametrize("share", [0.9, 1.05], ids=["in the background", "at the threshold"])
def test_the_agent_keeps_its_promise_through_restarts(case: Case, share: float, tmp_path: Path) -> None:
    with ScriptedProvider(then=plain) as provider, ScriptedProvider(then=case.answer) as lab:
        agent = RestartedAgent(case, lab, provider, tmp_path)
        for _ in range(3):
            state = agent.turn(share)
            assert (state.failure, len(lab.requests)) == (case.kind, 1)
            assert case.pause - 60 < state.cooldown_until - time.time() <= case.pause
        agent.turn(share, model="another")
        assert len(lab.requests) == 2


@pytest.mark.parametrize("case", [REFUSED, LIMITED], ids=["401", "429"])
def test_an_overflow_of_the_agent_does_not_end_the_pause(case: Case, tmp_path: Path) -> None:
    too_long = error(400, "This model's maximum context length is 9000 tokens", code="context_length_exceeded")

    def answer(request: Request) -> Answer:
        return too_long if len(request.raw) > 9_500 else plain(request)

    with ScriptedProvider(then=answer) as provider, ScriptedProvider(then=case.answer) as lab:
        agent = RestartedAgent(case, lab, provider, tmp_path)
        agent.turn(1.05)
        assert len(lab.requests) == 1
    overflowed = [fold for fold in agent.folds if fold.trigger == "overflow"]
    assert [fold.status for fold in overflowed] == (["aborted"] if case.keeps else ["compacted"] * len(overflowed))
    assert not any("as asked" in fold.reason for fold in overflowed)
    assert overflowed


def _wait(done: Callable[[], bool]) -> None:
    ends = time.monotonic() + 30
    while not done():
        assert time.monotonic() < ends
        time.sleep(0.01)
