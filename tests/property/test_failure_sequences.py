"""For any sequence of failures and answers, a host's history is either unchanged or completely compacted."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from midfold import EngineHost, SummaryAnswer, SummaryFailed, read
from midfold.compaction.handoff import END_MARKER, MARKER, recognise
from midfold.compaction.receipt import FAILURES, KEEPS_HISTORY
from midfold.model.summarizer import ModelSummarizer
from midfold.testing import FakeClock, ScriptedProvider, strategies
from midfold.testing.answers import error, summary
from midfold.testing.engines import rounds
from midfold.transcript.laws import violations
from support.effort import effort
from support.hostile_outputs import HOSTILE
from support.summaries import GOOD, START, troubles

WINDOW = 9_000
DIALECTS = strategies.DIALECTS

failures = st.sampled_from(sorted(FAILURES)).map(SummaryFailed)
slow_failures = st.builds(SummaryFailed, st.sampled_from(sorted(FAILURES)), retry_after=st.floats(0, 9_999))
texts = st.sampled_from(
    [GOOD, "", " ", "I'm sorry, I can't.", "<html>", "## Goal\n" + "words " * 9_000, MARKER, END_MARKER]
    + [hostile.text for hostile in HOSTILE.values()]
) | st.text(max_size=80)
answers = st.builds(
    SummaryAnswer, text=texts, source=st.sampled_from(["model", "local"]), failure=st.just("")
) | st.builds(SummaryAnswer, text=texts, failure=st.sampled_from(sorted(FAILURES)))
odd = st.sampled_from([None, 7, b"x", [], {}, ValueError("boom"), KeyError("k"), RecursionError(), MemoryError()])
lines = failures | slow_failures | texts | answers | odd
steps = st.one_of(
    st.tuples(st.just("compress"), lines, st.booleans()),
    st.tuples(st.just("compress"), lines, st.booleans()),
    st.tuples(st.just("grow"), st.integers(1, 3)),
    st.tuples(st.just("wait"), st.floats(0, 700)),
    st.tuples(st.just("restart")),
    st.tuples(st.just("model"), st.sampled_from(["gpt-4o", None])),
    st.tuples(st.just("usage"), st.integers(0, 20_000)),
)


class Life:
    """Conversation, its host, and the expected state of both."""

    def __init__(self, dialect: str) -> None:
        self.dialect = dialect
        self.clock = FakeClock(START)
        self.line: Any = GOOD
        self.host = self.new_host()
        self.said = 0
        self.messages: list[Any] = []
        self.folds: dict[str, list[Any]] = {}
        self.grow(4)

    def new_host(self) -> EngineHost:
        return EngineHost(context_length=WINDOW, summarizer=self.answer, clock=self.clock)

    def answer(self, ask: Any) -> Any:
        if isinstance(self.line, Exception):
            raise self.line
        return self.line

    def grow(self, count: int) -> None:
        more = [message for messages in rounds(self.dialect, self.said + count)[self.said :] for message in messages]
        self.said += count
        self.messages = [*self.messages, *more]
        self.host.append(more)

    def restart(self) -> None:
        stored = json.loads(json.dumps(self.host.export()))
        self.host = self.new_host()
        self.host.restore(stored)
        self.host.append(self.messages)
        assert json.loads(json.dumps(self.host.export()))["state"] == stored["state"]
        for handle, originals in self.folds.items():
            assert self.host.unfold(handle) == originals

    def compress(self, line: Any, force: bool) -> None:
        self.line = line
        before, kept = self.messages, copy.deepcopy(self.messages)
        after = self.host.compress(before, force=force)
        assert before == kept, "what was given is never changed"
        receipt = self.host.last
        assert receipt is not None
        json.dumps(receipt.to_dict())
        if receipt.status in ("aborted", "unchanged"):
            assert after is before
        else:
            self.check_whole(before, after)
        if receipt.summary.failure in KEEPS_HISTORY and receipt.summary.source != "local":
            assert after is before
        self.messages = after

    def check_whole(self, before: list[Any], after: list[Any]) -> None:
        transcript = read(after, dialect=self.dialect).messages
        assert violations(transcript) == ()
        handoffs = [known for message in transcript if (known := recognise(message)) and known.kind == "fold"]
        assert len(handoffs) <= 1
        receipt = self.host.last
        assert receipt is not None
        hidden = [original for handle in receipt.handles for original in self.host.unfold(handle)]
        for message in before:
            ours = recognise(read([message], dialect=self.dialect).messages[0])
            assert message in after or message in hidden or ours is not None, "a message is lost"
        if receipt.status == "compacted":
            assert len(handoffs) == 1
            assert before[-1] in after
            self.folds[receipt.fold] = self.host.unfold(receipt.fold)
        assert receipt.new_tokens < receipt.old_tokens

    def step(self, what: str, *arguments: Any) -> None:
        match what:
            case "compress":
                self.compress(*arguments)
            case "grow":
                self.grow(*arguments)
            case "wait":
                self.clock.advance(*arguments)
            case "restart":
                self.restart()
            case "model":
                self.host.update_model(arguments[0], WINDOW)
                assert (self.host.state.failure, self.host.state.cooldown_until) == ("", 0.0)
            case "usage":
                self.host.update_from_response({"prompt_tokens": arguments[0]})


@pytest.mark.parametrize("dialect", DIALECTS)
@given(st.lists(steps, min_size=1, max_size=8))
@settings(max_examples=effort(10, 30))
def test_any_life_of_a_host_keeps_its_history_whole(dialect: str, story: list[tuple[Any, ...]]) -> None:
    life = Life(dialect)
    for what in story:
        life.step(*what)
    life.restart()
    everything = [*life.messages, *(message for fold in life.folds.values() for message in fold)]
    for message in (message for messages in rounds(dialect, life.said) for message in messages):
        archived = [item for originals in life.host.export()["archive"].values() for item in originals]
        assert message in everything or message in archived, "a message is lost for good"


OVER_HTTP = {
    **{name: trouble.answer for name, trouble in troubles("openai").items() if "more than" not in name},
    "good": summary("openai", GOOD),
}


@given(st.lists(st.sampled_from(sorted(OVER_HTTP)), min_size=1, max_size=10), st.booleans())
@settings(max_examples=effort(10, 25))
def test_any_sequence_of_answers_over_http_keeps_the_history_whole(names: list[str], has_main: bool) -> None:
    life = Life("openai-chat")
    script = [OVER_HTTP[name] for name in names]
    with ScriptedProvider(script, then=error(503)) as provider:
        main = provider.endpoint(model="own") if has_main else None
        summarizer = ModelSummarizer(provider.endpoint(), main, clock=life.clock, sleep=life.clock.sleep)
        life.host.summarizer = summarizer
        for number in range(3):
            before = life.messages
            after = life.host.compress(before, force=number == 1)
            if life.host.last is not None and life.host.last.status in ("compacted", "pruned"):
                life.check_whole(before, after)
            else:
                assert after is before
            life.messages = after
            life.grow(1)
            life.clock.advance(400)
