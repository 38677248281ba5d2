"""The agent's compaction at 50 % behind the gateway's hygiene at 85 %, with a strict provider.

The gateway handles growth between turns, the agent growth inside a turn. Nothing is folded twice, the provider
never
receives two handoffs, and its cached prefix changes only at a fold.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from midfold.agent import Agent, AgentAssembly, ModelClient
from midfold.agent.events import Event, Finished, Folded, Overflowed, Preparing, agree
from midfold.compaction.handoff import recognise
from midfold.config import Config
from midfold.config.schema import AgentSettings, Compression
from midfold.model import local_summarizer
from midfold.model.endpoint import Endpoint, Wire
from midfold.testing.doubles import Request
from midfold.transcript import jsonio
from midfold.transcript.document import read
from support.gateways import Running, running
from support.provider_replies import Turn
from support.provider_rules import prompt_tokens
from support.rules_provider import RulesProvider

WINDOW = 32_768
FOLDED = ("compacted", "pruned")
MODELS: dict[Wire, str] = {"openai": "gpt-4o", "anthropic": "claude-sonnet-4-5"}
BIG = "".join(f"line {number}: the quick brown fox number {number * 7}\n" for number in range(120))


class System:
    """Agent, gateway and provider; the model follows the test's script."""

    def __init__(self, wire: Wire, folder: Path, provider: RulesProvider, gateway: Running) -> None:
        self.wire, self.provider, self.gateway = wire, provider, gateway
        self.events: list[Event] = []
        self.reads = 0
        config = Config(agent=AgentSettings(max_steps=60), compression=Compression(protect_last_n=6))
        self.workshop = AgentAssembly(
            folder, config, os.environ, store="memory:", window=WINDOW, summarizer=local_summarizer
        )
        self.agent = self.another()

    def another(self, resume: str | None = None) -> Agent:
        base = f"{self.gateway.url}/v1" if self.wire == "openai" else self.gateway.url
        endpoint = Endpoint(name=self.wire, wire=self.wire, base_url=base, model=MODELS[self.wire], key="none")
        session = self.workshop.session(endpoint, resume)
        return self.workshop.agent(session, ModelClient(endpoint), watch=self.events.append, consent=agree)

    def say(self, text: str, reads: int = 0) -> str:
        """Run one turn in which the model reads the big file a number of times."""
        self.reads = reads
        return self.agent.run(text)

    def answer(self, request: Request) -> Turn:
        if self.reads:
            self.reads -= 1
            return Turn(text="", calls=((f"call_{len(self.provider.served)}", "read_file", {"path": "big.txt"}),))
        return Turn(text="That is all I know about it.")

    def overnight(self, share: float) -> None:
        """Add messages from elsewhere until the provider would count a share of its window."""
        wire, number = {"openai": "chat", "anthropic": "anthropic"}[self.wire], 0
        while prompt_tokens(wire, jsonio.decode(self.agent.request())) < WINDOW * share:
            for _ in range(4):
                said = f"Message {number} from the group: " + "the build is green after the change to the parser. " * 8
                self.agent.session.append(
                    [{"role": "user", "content": said}, {"role": "assistant", "content": "Noted."}]
                )
                number += 1

    @property
    def own_folds(self) -> list[Folded]:
        return [event for event in self.events if isinstance(event, Folded) and event.status in FOLDED]

    @property
    def actions(self) -> list[str]:
        return [account.action for account in self.gateway.accounts]

    @property
    def gateway_folds(self) -> int:
        sessions = self.gateway.sessions
        records = [record for info in sessions.all() for record in sessions.store.records(info.name)]
        return sum(record.receipt.status in FOLDED for record in records)


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[[Wire], System]]:
    (tmp_path / "big.txt").write_text(BIG)
    with ExitStack() as stack:

        def build(wire: Wire) -> System:
            holder: list[System] = []

            def answer(request: Request) -> Turn:
                return holder[0].answer(request)

            provider = stack.enter_context(RulesProvider(answer, window=WINDOW))
            gateway = stack.enter_context(running(provider.url, window=WINDOW))
            holder.append(System(wire, tmp_path, provider, gateway))
            stack.callback(holder[0].workshop.sessions.close)
            return holder[0]

        yield build


def handoffs(request: Request, wire: str) -> int:
    messages = read(request.raw).messages
    found = (recognise(message) for message in messages)
    return sum(1 for ours in found if ours is not None and ours.kind == "fold")


def changes(requests: list[Request]) -> int:
    """Count requests that do not begin with the whole previous one, ignoring cache markers."""
    sent = [[_bare(message) for message in request.body["messages"]] for request in requests]
    return sum(after[: len(before)] != before for before, after in pairwise(sent))


def _bare(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: _bare(item) for key, item in value.items() if key != "cache_control"}
        if kept.get("role") in ("user", "assistant", "system") and isinstance(kept.get("content"), str):
            kept["content"] = [{"type": "text", "text": kept["content"]}]
        return kept
    return [_bare(item) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_the_two_layers_share_the_work_and_never_fight(make: Callable[[Wire], System], wire: Wire) -> None:
    system = make(wire)
    system.say("Good evening. Remember: the release is called Marigold.")

    system.overnight(0.92)
    assert system.agent.room.size.tokens > system.agent.session.setup.budget.threshold_tokens
    system.say("Good morning. What did I miss?")
    assert system.actions[-1] == "compacted"
    assert system.gateway_folds == 1
    assert system.own_folds == []

    for _ in range(3):
        system.say("And what does that mean?")
        assert system.actions[-1] == "checkpoint"
    assert system.gateway_folds == 1
    assert system.own_folds == []
    assert system.agent.room.size.tokens < system.agent.session.setup.budget.threshold_tokens

    before = len(system.provider.requests)
    system.say("Now read the file a dozen times.", reads=12)
    assert len(system.own_folds) >= 1
    assert system.gateway_folds == 1
    assert system.actions[-1] == "relayed"
    burst = system.provider.requests[before:]
    # A fold made ahead may be followed by another one before the request is sent.
    own = changes(burst)
    assert 1 <= own <= len(system.own_folds)

    system.say("Thank you.")
    assert system.gateway_folds == 1
    assert system.provider.rejected == []
    assert [event.how for event in system.events if isinstance(event, Finished)] == ["done"] * 7
    assert not any(isinstance(event, Overflowed) for event in system.events)
    assert all(handoffs(request, wire) <= 1 for request in system.provider.requests)
    assert handoffs(system.provider.requests[-1], wire) == 1
    # The gateway's fold changes nothing sent before if only the head had been sent; its note is a separate message.
    assert changes(system.provider.requests) - own in ((1,) if wire == "openai" else (0, 1))
    assert "Marigold" in system.provider.requests[-1].text
    assert system.workshop.sessions.check(deep=True) == []


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_a_burst_alone_never_reaches_the_gateway(make: Callable[[Wire], System], wire: Wire) -> None:
    system = make(wire)
    system.say("Read the file thirty times.", reads=30)
    assert len(system.own_folds) >= 2
    assert any(isinstance(event, Preparing) for event in system.events)
    assert set(system.actions) == {"relayed"}
    assert system.gateway_folds == 0
    assert system.provider.rejected == []
    assert changes(system.provider.requests) == len(system.own_folds)
    assert max(served.prompt for served in system.provider.served) < WINDOW * 0.85


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_an_agent_that_is_restarted_overnight_leaves_it_to_the_gateway_again(
    make: Callable[[Wire], System], wire: Wire
) -> None:
    system = make(wire)
    system.say("Good evening.")
    system.overnight(0.92)
    system.say("Good morning.")
    handoff = system.provider.requests[-1].body["messages"][:3]
    system.agent = system.another(resume=system.agent.session.name)
    system.agent.room.behind_gateway = True  # effect of `agent.behind_gateway` before the first response
    system.say("Still there?")
    assert system.actions[-1] == "checkpoint"
    assert _bare(system.provider.requests[-1].body["messages"][:3]) == _bare(handoff)
    assert system.own_folds == []
    assert system.gateway_folds == 1
    assert system.provider.rejected == []


def test_without_a_gateway_the_agent_folds_what_grew_overnight(tmp_path: Path) -> None:
    with RulesProvider(lambda request: Turn(text="Yes."), window=WINDOW) as provider:
        base = Endpoint(name="openai", wire="openai", base_url=f"{provider.url}/v1", model="gpt-4o", key="none")
        workshop = AgentAssembly(
            tmp_path, Config(), os.environ, store="memory:", window=WINDOW, summarizer=local_summarizer
        )
        events: list[Event] = []
        agent = workshop.agent(workshop.session(base), base, watch=events.append)
        agent.run("Good evening.")
        for number in range(200):
            said = f"Message {number}: " + "the build was green again after the change. " * 8
            agent.session.append([{"role": "user", "content": said}, {"role": "assistant", "content": "Noted."}])
            if agent.session.size.tokens > WINDOW * 0.9:
                break
        agent.run("Good morning.")
        assert [event.trigger for event in events if isinstance(event, Folded)] == ["threshold"]
        assert provider.rejected == []
        workshop.sessions.close()
