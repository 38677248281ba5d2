"""The agent loop over real HTTP on both wire formats: tools run, the session is durable, the window never ends it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midfold.agent import Agent, AgentAssembly, loop
from midfold.agent.events import Event, Finished, Folded, Overflowed, Preparing, Retrying, Said, agree
from midfold.compaction.handoff import MARKER, UNFOLDS, recognise
from midfold.config import Config
from midfold.config.schema import AgentSettings, Compression, PromptCaching
from midfold.errors import ConfigError, ModelFailed, NotStored
from midfold.model import local_summarizer
from midfold.model.client import ModelClient
from midfold.testing import Request, ScriptedProvider
from midfold.testing.answers import Answer, error, turn
from midfold.transcript.document import DIALECTS
from midfold.transcript.laws import violations
from midfold.transcript.message import Message, Text, ToolResult

WIRES = ["openai", "anthropic"]
BIG = "".join(f"line {number}: the quick brown fox number {number * 7}\n" for number in range(60))


class Bench:
    """Agent in a folder, with its recorded events."""

    def __init__(self, folder: Path, wire: str, window: int | None = None, config: Config | None = None) -> None:
        self.wire: Any = wire
        self.config = config or Config(agent=AgentSettings(max_steps=60))
        self.workshop = AgentAssembly(
            folder, self.config, os.environ, store="memory:", window=window, summarizer=local_summarizer
        )
        self.events: list[Event] = []

    def agent(self, provider: ScriptedProvider, resume: str | None = None, consent: Any = agree) -> Agent:
        endpoint = provider.endpoint(self.wire, model="scripted")
        session = self.workshop.session(endpoint, resume)
        model = ModelClient(endpoint, sleep=lambda seconds: None)
        return self.workshop.agent(session, model, watch=self.events.append, consent=consent)

    def told(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(wire: str, **options: Any) -> Bench:
        (tmp_path / "big.txt").write_text(BIG)
        made.append(Bench(tmp_path, wire, **options))
        return made[-1]

    yield make
    for one in made:
        one.workshop.sessions.close()


def growing(wire: str, calls: int, window: int = 16_000) -> Callable[[Request], Answer]:
    """Return a model that reads the same file repeatedly, then stops; it refuses requests beyond its window."""
    left = iter(range(calls))

    def answer(request: Request) -> Answer:
        tokens = len(request.raw) // 3
        if tokens > window:
            return error(400, f"prompt is too long: {tokens} tokens > {window} maximum")
        if next(left, None) is None:
            return turn(wire, "All read.", prompt_tokens=tokens)
        return turn(wire, "", [("read_file", {"path": "big.txt"})], prompt_tokens=tokens)

    return answer


@pytest.mark.parametrize("wire", WIRES)
@pytest.mark.parametrize("stream", [True, False])
def test_tools_are_run_and_their_results_sent_back(bench: Callable[..., Bench], wire: str, stream: bool) -> None:
    here = bench(wire)
    script = [
        turn(
            wire,
            "Let me look.",
            [("read_file", {"path": "big.txt", "lines": 1}), ("shell", {"command": "echo hi"})],
            stream=stream,
            prompt_tokens=500,
        ),
        turn(wire, "Done, it says hi.", stream=stream, prompt_tokens=600, cached=500),
    ]
    with ScriptedProvider(script) as provider:
        agent = here.agent(provider)
        assert agent.run("What is there?") == "Done, it says hi."
    sent = provider.requests[1].body["messages"]
    results = [str(item) for item in sent[-2:]] if wire == "openai" else [str(item) for item in sent[-1]["content"]]
    assert "line 0: the quick" in results[0]
    assert "hi\\n[exit 0]" in results[1]
    assert {tool.get("name") or tool["function"]["name"] for tool in provider.requests[0].body["tools"]} == {
        "shell", "read_file", "write_file", "patch", "search", "plan",
    }  # fmt: skip
    if stream:
        assert "".join(event.text for event in here.told(Said)) == "Let me look.Done, it says hi."
    assert agent.last is not None
    assert (agent.last.prompt_tokens, agent.last.cache_read_tokens) == (600, 500)
    assert here.told(Finished)[-1].how == "done"
    assert not violations(agent.session.view().transcript)


@pytest.mark.parametrize("wire", WIRES)
def test_without_consent_nothing_is_changed(bench: Callable[..., Bench], wire: str, tmp_path: Path) -> None:
    here = bench(wire)
    calls = [("write_file", {"path": "x", "content": "y"}), ("read_file", {"path": "big.txt"})]
    with ScriptedProvider([turn(wire, "", calls), turn(wire, "As you like.")]) as provider:
        agent = here.agent(provider, consent=lambda call, about: False)
        agent.run("Write x.")
    assert not (tmp_path / "x").exists()
    assert "declined" in str(provider.requests[1].body["messages"])
    assert "quick brown fox" in str(provider.requests[1].body["messages"])


@pytest.mark.parametrize("wire", WIRES)
def test_a_long_turn_is_folded_at_the_threshold_and_never_rejected(bench: Callable[..., Bench], wire: str) -> None:
    here = bench(wire, window=16_000)
    with ScriptedProvider(then=growing(wire, 40)) as provider:
        agent = here.agent(provider)
        assert agent.run("Read the file forty times, and never stop early.") == "All read."
        requests = provider.requests
    folded = [event for event in here.told(Folded) if event.status in ("compacted", "pruned")]
    assert len(folded) >= 2
    assert all(event.trigger == "threshold" for event in folded)
    assert not here.told(Overflowed)
    view = agent.session.view().transcript
    assert sum(1 for message in view if (ours := recognise(message)) and ours.kind == "fold") <= 1
    assert any("Read the file forty times" in message.text for message in view)
    assert not violations(view)
    assert all("context window" not in str(message) for request in requests for message in request.body["messages"][1:])


@pytest.mark.parametrize("wire", WIRES)
def test_the_user_is_heard_in_every_request_and_nobody_else_speaks_for_them(
    bench: Callable[..., Bench], wire: str
) -> None:
    here = bench(wire, window=16_000)
    with ScriptedProvider(then=growing(wire, 40)) as provider:
        agent = here.agent(provider)
        agent.run("First I want the file read.")
        agent.run("Now I want it read once more, and colour 4711 kept in mind.")
    dialect = DIALECTS["openai-chat" if wire == "openai" else "anthropic"]
    folds = 0
    for request in provider.requests:
        said = [Message.over(value, dialect.read) for value in request.body["messages"]]
        texts = [part.text for one in said if one.role == "user" for part in one.parts if isinstance(part, Text)]
        ours = [text for text in texts if not text.startswith(("First I want", "Now I want"))]
        folds += len(ours)
        assert all(text.startswith("[CONTEXT COMPACTION]") for text in ours)
        newest = "Now I want it" if request is provider.requests[-1] else "First I want"
        assert any(newest in text for text in texts)
    assert folds


def test_the_loop_fits_in_the_head() -> None:
    assert len(Path(loop.__file__).read_text().splitlines()) < 150


@pytest.mark.parametrize("wire", WIRES)
def test_the_prefix_of_a_request_is_the_previous_one_but_where_it_was_folded(
    bench: Callable[..., Bench], wire: str
) -> None:
    here = bench(wire, window=16_000)
    with ScriptedProvider(then=growing(wire, 30)) as provider:
        here.agent(provider).run("Read on.")
    changes, brought = 0, 0
    for before, after in zip(provider.requests, provider.requests[1:], strict=False):
        old, new = before.body["messages"], after.body["messages"]
        brought += before.body["tools"] != after.body["tools"]
        changes += new[: len(old)] != old
    assert brought == 1
    assert 0 < changes <= len([event for event in here.told(Folded) if event.status in ("compacted", "pruned")])


@pytest.mark.parametrize("wire", WIRES)
def test_after_the_last_turn_no_fold_is_prepared(bench: Callable[..., Bench], wire: str) -> None:
    def answer(request: Request) -> Answer:
        return turn(wire, "All read.", prompt_tokens=7_900)

    here = bench(wire, window=16_000)
    with ScriptedProvider(then=answer) as provider:
        here.agent(provider).run("Go.", is_last=True)
        assert here.told(Preparing) == []
        here.agent(provider).run("Go.")
    assert len(here.told(Preparing)) == 1


@pytest.mark.parametrize("wire", WIRES)
def test_a_fold_is_prepared_while_there_is_time_and_swapped_in(bench: Callable[..., Bench], wire: str) -> None:
    here = bench(wire, window=32_000)
    with ScriptedProvider(then=growing(wire, 40, window=32_000)) as provider:
        agent = here.agent(provider)
        agent.run("Read on.")
    assert here.told(Preparing)
    assert any(event.prepared for event in here.told(Folded))
    assert here.workshop.sessions.check(deep=True) == []
    history = agent.session.history()
    assert len(history) >= 2 + 2 * 40
    for record in agent.session.receipts():
        for handle in record.receipt.handles[:3]:
            assert agent.session.unfold(handle)


@pytest.mark.parametrize("wire", WIRES)
def test_an_overflow_is_followed_by_smaller_requests_only(bench: Callable[..., Bench], wire: str) -> None:
    """The model's window is far smaller than assumed, and only its error reports it."""
    here = bench(wire, window=200_000)
    with ScriptedProvider(then=growing(wire, 25, window=9_000)) as provider:
        agent = here.agent(provider)
        assert agent.run("Read on.") == "All read."
    assert here.told(Overflowed)
    assert agent.session.setup.window == 9_000
    assert len({request.raw for request in provider.requests}) == len(provider.requests)
    rejected = [place for place, request in enumerate(provider.requests) if len(request.raw) // 3 > 9_000]
    assert rejected
    for place in rejected:
        assert len(provider.requests[place + 1].raw) < len(provider.requests[place].raw)


@pytest.mark.parametrize("wire", WIRES)
def test_recovery_from_overflows_is_bounded(bench: Callable[..., Bench], wire: str) -> None:
    here = bench(wire)

    def refuse(request: Request) -> Answer:
        return error(400, "prompt is too long: 300000 tokens > 200000 maximum")

    with ScriptedProvider(then=refuse) as provider:
        agent = here.agent(provider)
        with pytest.raises(ModelFailed, match="larger than the model"):
            agent.run("Anything at all.")
    assert 1 <= len(provider.requests) <= 4
    assert len({request.raw for request in provider.requests}) == len(provider.requests)
    assert here.told(Finished)[-1].how == "failed"


def test_disabled_means_no_compaction_even_after_an_overflow(bench: Callable[..., Bench]) -> None:
    config = Config(compression=Compression(enabled=False))
    here = bench("openai", config=config, window=16_000)
    with ScriptedProvider(then=growing("openai", 40, window=16_000)) as provider, pytest.raises(ModelFailed):
        here.agent(provider).run("Read on.")
    assert not here.told(Folded)


@pytest.mark.parametrize("wire", WIRES)
def test_the_plan_survives_every_fold(bench: Callable[..., Bench], wire: str) -> None:
    here = bench(wire, window=16_000)
    steps = [{"step": "find the purple elephant", "status": "doing"}, {"step": "feed it", "status": "open"}]
    read = growing(wire, 40)

    def answer(request: Request) -> Answer:
        if len(provider.requests) == 1:
            return turn(wire, "", [("plan", {"steps": steps})])
        assert "find the purple elephant" in request.text
        return read(request)

    with ScriptedProvider(then=answer) as provider:
        agent = here.agent(provider)
        agent.run("Do it.")
        assert len(here.told(Folded)) >= 2
        agent.run("Go on.")
    last = provider.requests[-1]
    assert "find the purple elephant" in last.text
    assert last.text.count("as you last wrote it") <= 1


def test_failures_that_pass_are_tried_again_and_told(bench: Callable[..., Bench]) -> None:
    here = bench("openai")
    whole = turn("openai", "Here you are.")
    script = [error(529, "overloaded"), error(429, headers={"retry-after": "3"}), whole.cut(0.5), whole]
    with ScriptedProvider(script) as provider:
        assert here.agent(provider).run("Hello?") == "Here you are."
    assert [(event.kind, event.seconds) for event in here.told(Retrying)] == [
        ("unavailable", 1.0),
        ("rate_limit", 3.0),
        ("malformed", 4.0),
    ]


@pytest.mark.parametrize("status", [401, 403, 404])
def test_failures_that_do_not_pass_end_the_turn_and_the_session_goes_on(
    bench: Callable[..., Bench], status: int
) -> None:
    here = bench("openai")
    with ScriptedProvider([error(status, "no"), turn("openai", "Better now.")]) as provider:
        agent = here.agent(provider)
        with pytest.raises(ModelFailed):
            agent.run("Hello?")
        assert agent.run("And now?") == "Better now."
    roles = [message["role"] for message in provider.requests[1].body["messages"]]
    assert roles == ["system", "user", "assistant", "user"]


@pytest.mark.parametrize("wire", WIRES)
def test_sessions_are_resumed_and_open_calls_closed(bench: Callable[..., Bench], wire: str) -> None:
    here = bench(wire)
    with ScriptedProvider([turn(wire, "First answer."), turn(wire, "Second answer.")]) as provider:
        first = here.agent(provider)
        first.run("My name is Ada.")
        answer = {"openai": {"role": "assistant", "content": None, "tool_calls": [
            {"id": "c9", "type": "function", "function": {"name": "shell", "arguments": "{}"}}]},
            "anthropic": {"role": "assistant", "content": [
                {"type": "tool_use", "id": "c9", "name": "shell", "input": {}}]}}[wire]  # fmt: skip
        first.session.append({"role": "user", "content": "Crash now."})
        first.session.append(answer)
        second = here.agent(provider, resume=first.session.name)
        assert second.run("What is my name?") == "Second answer."
    sent = provider.requests[1].body["messages"]
    assert "My name is Ada." in str(sent)
    assert "the program ended before this call did" in str(sent)
    view = second.session.view().transcript
    assert not violations(view)
    assert any(isinstance(part, ToolResult) and part.call_id == "c9" for message in view for part in message.parts)


def test_resuming_what_does_not_exist_or_has_a_shape_nobody_speaks_is_refused(bench: Callable[..., Bench]) -> None:
    here = bench("openai")
    with ScriptedProvider([turn("openai", "Yes.")]) as provider:
        here.agent(provider).run("Hello?")
        with pytest.raises(NotStored, match="midfold sessions list"):
            here.agent(provider, resume="nobody")
        item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Hello?"}]}
        here.workshop.sessions.session("foreign", dialect="openai-responses").append([item])
        with pytest.raises(ConfigError, match="openai-chat and anthropic"):
            here.workshop.session(provider.endpoint("openai"), "foreign")


@pytest.mark.parametrize("wire", WIRES)
def test_an_interrupt_keeps_what_was_heard_and_leaves_a_legal_history(bench: Callable[..., Bench], wire: str) -> None:
    here = bench(wire)
    script = [
        turn(wire, "I begin to tell a long story"),
        turn(wire, "", [("shell", {"command": "echo a"}), ("shell", {"command": "echo b"})]),
        turn(wire, "Fine."),
    ]
    with ScriptedProvider(script) as provider:
        agent = here.agent(provider)

        def stop_after_words(event: Event) -> None:
            if isinstance(event, Said):
                raise KeyboardInterrupt

        agent.watch = stop_after_words
        with pytest.raises(KeyboardInterrupt):
            agent.run("Tell me.")
        assert agent.session.view().transcript[-1].text == "I begin to t\n[interrupted by the user]"
        agent.watch = here.events.append

        def stop(call: Any, about: str) -> bool:
            raise KeyboardInterrupt

        agent.runner.consent = stop
        with pytest.raises(KeyboardInterrupt):
            agent.run("Run two commands.")
        assert not violations(agent.session.view().transcript)
        assert agent.run("Never mind.") == "Fine."
    sent = str(provider.requests[2].body["messages"])
    assert "interrupted by the user" in sent
    assert "not run: the user interrupted before it" in sent


def test_folds_come_at_cheap_moments_where_the_settings_ask_for_them(bench: Callable[..., Bench]) -> None:
    config = Config(prompt_caching=PromptCaching(schedule="cheapest"), agent=AgentSettings(max_steps=60))
    here = bench("anthropic", config=config, window=64_000)
    with ScriptedProvider(then=growing("anthropic", 14, window=64_000)) as provider:
        agent = here.agent(provider)
        agent.run("Read on.")
        assert not [event for event in here.told(Folded) if event.trigger == "threshold"]
        agent.session.setup.clock = lambda: time.time() + 3_600  # the cache is cold by then
        agent.run("And now?")
    assert [event.trigger for event in here.told(Folded) if event.status == "compacted"] == ["cheap moment"]


def test_steps_are_bounded(bench: Callable[..., Bench]) -> None:
    here = bench("openai", config=Config(agent=AgentSettings(max_steps=3)))
    with ScriptedProvider(then=growing("openai", 99)) as provider:
        agent = here.agent(provider)
        assert agent.run("For ever.") == ""
    assert len(provider.requests) == 3
    assert here.told(Finished)[-1].how == "steps"
    assert agent.session.view().transcript[-1].text == "[stopped after 3 steps]"


@pytest.mark.parametrize("wire", WIRES)
def test_the_agent_finds_and_reads_what_was_folded(bench: Callable[..., Bench], wire: str) -> None:
    here = bench(wire, window=16_000)
    read = growing(wire, 30)
    found: list[str] = []

    def answer(request: Request) -> Answer:
        step = len(provider.requests)
        if step <= 31:
            return read(request)
        if step == 32:
            return turn(wire, "", [("context_search", {"query": "number 413"})])
        if step == 33:
            found.append(request.text)
            handle = request.text[request.text.rindex("mf-") :][:15]
            return turn(wire, "", [("context_unfold", {"handle": handle})])
        found.append(request.text)
        return turn(wire, "Found.")

    with ScriptedProvider(then=answer) as provider:
        agent = here.agent(provider)
        agent.run("Read on.")
        agent.run("What was number 413?")
    assert "line 59: the quick brown fox number 413" in found[1]


def names(request: Request) -> list[str]:
    return [tool.get("name") or tool["function"]["name"] for tool in request.body["tools"]]


@pytest.mark.parametrize("wire", WIRES)
def test_tools_for_looking_back_come_with_the_first_fold_and_stay(bench: Callable[..., Bench], wire: str) -> None:
    """Also after an undo and in a resumed session; the handoff mentions the tools."""
    here = bench(wire, window=16_000)
    with ScriptedProvider(then=growing(wire, 20)) as provider:
        agent = here.agent(provider)
        agent.run("Read on.")
        first, *later = agent.session.receipts()
        while agent.session.info is not None and agent.session.info.compaction:
            agent.session.undo()
        again = here.agent(provider, resume=agent.session.name)
        last = json.loads(again.request())["tools"]
    offered = ["context_search" in names(request) for request in provider.requests]
    begun = offered.index(True)
    assert begun > 3 and all(offered[begun:])
    folded = next(place for place, request in enumerate(provider.requests) if MARKER in request.text)
    assert folded == begun and UNFOLDS.strip() in provider.requests[begun].text
    assert names(provider.requests[begun]) == [
        *names(provider.requests[0]),
        "context_search",
        "context_unfold",
        "context_timeline",
    ]
    assert last == provider.requests[-1].body["tools"]
    assert first.receipt.recall is not None and first.receipt.recall.introduced_tokens > 300
    assert all(record.receipt.recall is None for record in later)
