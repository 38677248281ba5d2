"""Effects of a failed summary on a conversation, through `compact` and a host, with a real client and server."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import midfold
from midfold import EngineHost, SummaryAnswer, SummaryFailed
from midfold.compaction.handoff import recognise
from midfold.compaction.receipt import FAILURES, KEEPS_HISTORY
from midfold.config import Config
from midfold.config.schema import Auxiliary, AuxiliaryTask, Compression
from midfold.errors import FailureKind
from midfold.model.summarizer import ModelSummarizer
from midfold.testing import FakeClock, ScriptedProvider, ScriptedSummarizer, refusing_url
from midfold.testing.answers import error, summary
from midfold.testing.engines import long_conversation
from support.summaries import GOOD, KEY, START, troubles

MESSAGES = long_conversation("openai-chat", 14)
WINDOW = 20_000
KINDS: list[FailureKind] = sorted(set(FAILURES) - {"no_provider", "timeout"})
"""Failure kinds without timeout, which is slow, and without the one that needs no server."""


@contextmanager
def failing(kind: FailureKind, clock: FakeClock, **changes: Any) -> Iterator[tuple[ScriptedProvider, ModelSummarizer]]:
    """Run a provider that always fails in one way."""
    found = [trouble.answer for trouble in troubles("openai").values() if trouble.kind == kind]
    with ScriptedProvider(then=found[0] if found else error(500)) as provider:
        where = {"base_url": refusing_url()} if kind == "network" else {}
        endpoint = provider.endpoint(key=KEY, **{**where, **changes})
        yield provider, ModelSummarizer(endpoint, clock=clock, sleep=clock.sleep)


def compact(summarizer: Any, clock: FakeClock, **options: Any) -> midfold.Compaction:
    known = {"context_length": WINDOW, "summarizer": summarizer, "clock": clock}
    return midfold.compact(MESSAGES, **{**known, **options})


def lossless() -> Config:
    return Config(compression=Compression(lossy_fallback=False))


@pytest.mark.parametrize("kind", KINDS)
def test_each_failure_keeps_the_conversation_or_leads_to_the_local_summary(kind: FailureKind) -> None:
    clock = FakeClock(START)
    with failing(kind, clock) as (_, summarizer):
        result = compact(summarizer, clock)
    facts = result.receipt.summary
    assert (facts.failure, facts.retry_class) == (kind, FAILURES[kind].retry_class)
    if kind in KEEPS_HISTORY:
        assert result.receipt.status == "aborted"
        assert result.messages is MESSAGES
        assert FAILURES[kind].description in result.receipt.reason
        assert facts.source == "none"
        assert dict(result.archive) == {}
    else:
        assert result.receipt.status == "compacted"
        assert (facts.source, facts.confidence) == ("local", "lower")
        assert "Locally generated" in result.state.summary
    assert facts.cooldown == FAILURES[kind].cooldown
    assert facts.done.startswith(FAILURES[kind].description)
    assert ("nothing was folded" in facts.done) is (kind in KEEPS_HISTORY)
    assert f"{FAILURES[kind].cooldown:,} s" in facts.next
    assert FAILURES[kind].remedy in facts.next
    assert result.state.failure == kind
    assert result.state.cooldown_until == clock.now + FAILURES[kind].cooldown, "the pause begins when the calls ended"


@pytest.mark.parametrize("kind", sorted(FAILURES))
def test_without_lossy_summaries_every_failure_keeps_the_conversation(kind: FailureKind) -> None:
    clock = FakeClock(START)
    result = compact(ScriptedSummarizer([SummaryFailed(kind)]), clock, config=lossless())
    assert result.receipt.status == "aborted"
    assert result.messages is MESSAGES
    assert result.state.failure == kind
    assert result.state.summary == ""


def test_auth_and_network_are_what_keeps_every_message() -> None:
    assert set(KEEPS_HISTORY) == {"auth", "network"}
    assert FAILURES["no_provider"].then == "local"
    assert all(row.cooldown >= 30 for row in FAILURES.values())


@pytest.mark.parametrize("kind", KINDS)
def test_while_it_cools_down_no_model_is_asked_and_the_outcome_stays_the_same(kind: FailureKind) -> None:
    clock = FakeClock(START)
    with failing(kind, clock) as (provider, summarizer):
        first = compact(summarizer, clock)
        asked = len(provider.requests)
        clock.advance(FAILURES[kind].cooldown / 2)
        second = compact(summarizer, clock, state=first.state)
        assert len(provider.requests) == asked
        assert any("summary model not called" in notice for notice in second.receipt.notices)
        assert second.receipt.status == first.receipt.status
        facts = second.receipt.summary
        assert (facts.failure, facts.cooldown, facts.calls) == (kind, FAILURES[kind].cooldown / 2, 0)
        assert f"{facts.cooldown:,.0f} s" in facts.next
        assert second.state.cooldown_until == first.state.cooldown_until, "looking again does not make it longer"
        assert (second.messages is MESSAGES) is (kind in KEEPS_HISTORY)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "network"])
def test_force_asks_again_at_once_and_so_does_anybody_when_the_pause_is_over(kind: FailureKind) -> None:
    clock = FakeClock(START)
    with failing(kind, clock) as (provider, summarizer):
        state = compact(summarizer, clock).state
        asked = len(provider.requests)
        again = compact(summarizer, clock, state=state, force=True)
        assert len(provider.requests) > asked
        assert again.state.cooldown_until > state.cooldown_until or clock.now == START
        asked = len(provider.requests)
        clock.now = again.state.cooldown_until + 1
        compact(summarizer, clock, state=again.state)
        assert len(provider.requests) > asked


def test_a_summary_ends_the_pause() -> None:
    clock = FakeClock(START)
    state = compact(ScriptedSummarizer([SummaryFailed("rate_limit")]), clock).state
    after = compact(ScriptedSummarizer([GOOD]), clock, state=state, force=True)
    assert (after.state.failure, after.state.cooldown_until) == ("", 0.0)
    facts = after.receipt.summary
    assert (facts.source, facts.failure, facts.cooldown, facts.done, facts.next) == ("model", "", 0, "", "")


def test_a_pause_that_the_provider_asked_for_is_kept() -> None:
    clock = FakeClock(START)
    with ScriptedProvider([error(429, headers={"retry-after": "3600"})]) as provider:
        result = compact(ModelSummarizer(provider.endpoint(), clock=clock, sleep=clock.sleep), clock)
    assert (result.receipt.summary.retry_after, result.receipt.summary.cooldown) == (3_600, 3_600)
    assert "3,600 s" in result.receipt.summary.next
    assert result.state.cooldown_until == START + 3_600
    assert clock.slept == []


def test_the_pause_begins_when_the_failing_call_ended_not_when_it_began() -> None:
    clock = FakeClock(START)

    def slow(ask: midfold.SummaryRequest) -> str:
        clock.advance(500)
        raise SummaryFailed("timeout")

    assert compact(slow, clock).state.cooldown_until == START + 500 + FAILURES["timeout"].cooldown


def test_a_failure_counts_also_where_the_fold_was_not_worth_it() -> None:
    """The local summary saves too little: nothing changes, and the cooldown still starts."""
    clock = FakeClock(START)
    talk = [{"role": ("user", "assistant")[n % 2], "content": f"{n} " + "short words here " * 40} for n in range(7)]
    result = midfold.compact(
        talk, context_length=1_500, summarizer=ScriptedSummarizer([SummaryFailed("unavailable")]), clock=clock
    )
    assert result.receipt.status != "aborted"
    assert result.state.failure == "unavailable"
    assert result.state.cooldown_until == START + FAILURES["unavailable"].cooldown


def test_recovery_by_the_own_model_is_told_and_leaves_no_pause() -> None:
    clock = FakeClock(START)
    with ScriptedProvider(then=error(404)) as aux, ScriptedProvider([summary("anthropic", GOOD)]) as own:
        main = own.endpoint("anthropic", model="own-model")
        result = compact(ModelSummarizer(aux.endpoint(), main, clock=clock, sleep=clock.sleep), clock)
    facts = result.receipt.summary
    assert (facts.source, facts.model, facts.recovered_from, facts.failure) == (
        "model", "own-model", "model_not_found", "",
    )  # fmt: skip
    assert result.state.failure == ""


@pytest.mark.parametrize("answer", [None, "", "   ", 5, b"bytes", ["x"], SummaryAnswer(), {"text": "x"}])
def test_an_answer_that_is_no_text_is_malformed(answer: Any) -> None:
    result = compact(lambda ask: answer, FakeClock(START))
    assert result.receipt.summary.failure == "malformed"
    assert result.receipt.summary.source == "local"


@pytest.mark.parametrize("problem", [ValueError("x"), KeyError(1), RuntimeError(KEY), MemoryError(), RecursionError()])
def test_whatever_a_summarizer_raises_is_told_without_its_words(problem: Exception) -> None:
    result = compact(ScriptedSummarizer([problem]), FakeClock(START))
    assert result.receipt.summary.failure == "other"
    assert KEY not in json.dumps(result.receipt.to_dict())


# Keys


@pytest.mark.parametrize("kind", KINDS)
def test_no_key_gets_into_a_receipt_a_state_an_export_or_a_handoff(kind: FailureKind) -> None:
    clock = FakeClock(START)
    with failing(kind, clock) as (_, summarizer):
        host = EngineHost(context_length=WINDOW, summarizer=summarizer, clock=clock)
        host.append(MESSAGES)
        messages = host.compress(MESSAGES)
    assert host.last is not None
    shown = json.dumps([host.last.to_dict(), host.export(), messages]) + repr([host.last, host.state, summarizer])
    assert KEY not in shown
    assert KEY[3:] not in shown


def test_endpoints_and_requests_show_no_key_however_they_are_printed() -> None:
    from rich.pretty import pretty_repr

    from midfold.model.client import ModelClient
    from midfold.model.endpoint import Endpoint
    from midfold.model.summary_call import SummaryCall

    base = f"https://user:{KEY}@example.com/v1"
    for wire in ("openai", "anthropic"):
        endpoint = Endpoint(name="x", wire=wire, base_url=base, model="m", key=KEY)  # type: ignore[arg-type]
        call = SummaryCall(endpoint=endpoint, messages=(("user", "hello"),), max_tokens=5)
        for thing in (endpoint, call, ModelClient(endpoint), ModelSummarizer(endpoint, endpoint)):
            for shown in (repr(thing), str(thing), f"{thing}", pretty_repr(thing)):
                assert KEY not in shown
        assert endpoint.place == "example.com"


# A host


def host_of(summarizer: Any, clock: FakeClock, **options: Any) -> EngineHost:
    host = EngineHost(context_length=WINDOW, summarizer=summarizer, clock=clock, **options)
    host.append(MESSAGES)
    return host


def test_a_host_keeps_its_pause_through_json_and_forgets_it_with_another_model_or_a_reset() -> None:
    clock = FakeClock(START)
    script = [SummaryFailed("auth")]
    host = host_of(ScriptedSummarizer(script), clock)
    assert host.compress(MESSAGES) is MESSAGES
    assert host.state.failure == "auth"
    stored = json.loads(json.dumps(host.export()))

    other = host_of(ScriptedSummarizer([]), clock)
    other.restore(stored)
    assert other.compress(MESSAGES) is MESSAGES, "the restored host must not ask"
    assert other.last is not None
    assert any("summary model not called" in notice for notice in other.last.notices)

    for forget in (lambda host: host.update_model("gpt-4o", WINDOW), lambda host: host.reset()):
        fresh = host_of(ScriptedSummarizer([GOOD]), clock)
        fresh.restore(stored)
        forget(fresh)
        assert (fresh.state.failure, fresh.state.cooldown_until, fresh.state.ineffective) == ("", 0.0, 0)
        assert fresh.compress(MESSAGES) is not MESSAGES
        assert fresh.last is not None
        assert fresh.last.summary.source == "model"


def test_a_later_unrelated_failure_is_told_as_what_it_is() -> None:
    """Hermes 0.19: a flag of an earlier failure made a later one abort as `auth`."""
    clock = FakeClock(START)
    host = host_of(ScriptedSummarizer([SummaryFailed("auth"), SummaryFailed("timeout")]), clock)
    host.compress(MESSAGES)
    folded = host.compress(MESSAGES, force=True)
    assert host.last is not None
    assert host.last.summary.failure == "timeout"
    assert folded is not MESSAGES


def test_two_compactions_that_did_not_help_stop_automatic_ones_until_something_changes() -> None:
    clock = FakeClock(START)
    host = host_of(ScriptedSummarizer([]), clock)
    host.state = midfold.CompactionState(ineffective=2)
    assert not host.should_compress(10**6)
    assert host.compress(MESSAGES) is MESSAGES
    host.update_from_response({"prompt_tokens": 100})
    assert host.state.ineffective == 0
    host.state = midfold.CompactionState(ineffective=2)
    host.update_model("gpt-4o", WINDOW)
    assert host.should_compress(10**6)


# Settings


def configured(provider: ScriptedProvider, **task: Any) -> Config:
    known = {"base_url": f"{provider.url}/v1", "model": "scripted", "context_length": 200_000, "timeout": 5.0}
    return Config(auxiliary=Auxiliary(compression=AuxiliaryTask(**{**known, **task})))


def test_the_settings_name_the_model_and_the_receipt_says_who_wrote_the_summary() -> None:
    with ScriptedProvider([summary("openai", GOOD)]) as provider:
        result = midfold.compact(
            MESSAGES,
            context_length=WINDOW,
            config=configured(provider, extra_body='{"seed": 7}', reasoning_effort="low"),
        )
    assert (result.receipt.summary.source, result.receipt.summary.model) == ("model", "scripted")
    assert provider.requests[0].body["seed"] == 7
    assert provider.requests[0].body["reasoning_effort"] == "low"
    assert any(recognise(message) for message in result.transcript)


def test_a_host_with_settings_asks_the_model_they_name() -> None:
    with ScriptedProvider([summary("openai", GOOD), summary("openai", GOOD)]) as provider:
        host = EngineHost(context_length=WINDOW, config=configured(provider))
        host.append(MESSAGES)
        host.compress(MESSAGES)
        host.update_model("gpt-4o", WINDOW)
        host.compress(MESSAGES, force=True)
    assert host.last is not None
    assert host.last.summary.model == "scripted"
    assert len(provider.requests) == 2


def test_a_provider_that_is_configured_without_its_key_is_a_failure_that_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("MIDFOLD_NO_SUCH_KEY", raising=False)
    clock = FakeClock(START)
    config = Config(
        auxiliary=Auxiliary(compression=AuxiliaryTask(provider="openai", api_key_env="MIDFOLD_NO_SUCH_KEY"))
    )
    result = midfold.compact(MESSAGES, context_length=WINDOW, config=config, clock=clock)
    assert result.receipt.status == "compacted"
    assert (result.receipt.summary.source, result.receipt.summary.failure) == ("local", "no_provider")
    assert result.state.cooldown_until == START + FAILURES["no_provider"].cooldown


def test_settings_that_choose_no_model_are_no_failure() -> None:
    config = Config(auxiliary=Auxiliary(compression=AuxiliaryTask(provider="local")))
    result = midfold.compact(MESSAGES, context_length=WINDOW, config=config)
    assert (result.receipt.summary.source, result.receipt.summary.failure) == ("local", "")
