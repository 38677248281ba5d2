"""Requests never wait for a summary model: folds are prepared in the background and used when due."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.compaction.handoff import MARKER
from midfold.compaction.receipt import Receipt
from midfold.config import Config
from midfold.config.load import parse
from midfold.gateway import background_folds as ahead
from midfold.testing.answers import Answer, error, openai_json
from midfold.testing.doubles import ScriptedProvider
from support.fixtures import assistant, number_lines, user
from support.gateways import STORY_SUMMARY as SUMMARY
from support.gateways import Running, call, free_port, running, serving
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 16_000
TRIGGER = 0.85 * WINDOW
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
WRITER = {"model": "s", "context_length": 200_000}
TOLD = "most of it was told"
"""Text of the model's summary."""


def story(turns: int) -> list[dict[str, Any]]:
    said = number_lines("sentence {n} of a story that has no end, and no tool in it", 20)
    talk = [turn for n in range(turns) for turn in (assistant(f"{n}: {said}"), user(f"{n}? {said}"))]
    return [user("Tell me a story."), *talk]


NEARLY, ENOUGH = 15, 19
"""Turns of a story that reach four fifths of the trigger, and more than all of it."""


def body(wire: str, messages: list[dict[str, Any]], *, stream: bool = False) -> dict[str, Any]:
    model = "claude-x" if wire == "anthropic" else "gpt-4o"
    more: dict[str, Any] = {"max_tokens": 9} if wire == "anthropic" else {}
    return {"model": model, ("input" if wire == "responses" else "messages"): messages, "stream": stream, **more}


def settings(upstream: str, writer: str, *, wait: float = 2.0, timeout: float = 60.0, **more: Any) -> Config:
    values = {
        "gateway": {"upstream": upstream, "summary_wait": wait, **more.pop("gateway", {})},
        "auxiliary": {"compression": {**WRITER, "base_url": f"{writer}/v1", "timeout": timeout}},
        "models": {"*": {"context_window": WINDOW}},
        **more,
    }
    return parse(json.dumps(values)).config


@contextmanager
def gateways(
    answer: Answer | Any, *, sessions: Any = None, **options: Any
) -> Iterator[tuple[Running, RulesProvider, ScriptedProvider]]:
    """Run a gateway between a client, a provider that enforces its rules, and a scripted summary model."""
    with (
        RulesProvider(lambda request: Turn("fine"), window=WINDOW) as provider,
        ScriptedProvider(then=answer) as writer,
        running(provider.url, config=settings(provider.url, writer.url, **options), sessions=sessions) as gateway,
    ):
        yield gateway, provider, writer


def until(is_so: Any, seconds: float = 10.0) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.01)


def settled(gateway: Running) -> None:
    """Wait for background work."""
    until(lambda: gateway.app.gateway.preparer.ahead.count == 0)


def timed(gateway: Running, wire: str, given: Any) -> tuple[float, dict[str, str]]:
    began = time.perf_counter()
    status, head, answer = gateway.post(PATHS[wire], given)
    assert status == 200, answer
    return time.perf_counter() - began, head


def receipt(gateway: Running, head: dict[str, str]) -> Receipt:
    name, _, seq = head["x-midfold-receipt"].partition("#")
    return gateway.sessions.session(name).receipts()[int(seq) - 1].receipt


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("wire", PATHS)
def test_a_request_at_the_trigger_is_not_delayed_by_a_slow_summary_model(wire: str, stream: bool) -> None:
    slow = 3.0
    with gateways(openai_json(SUMMARY).slow(slow)) as (gateway, provider, writer):
        timed(gateway, wire, body(wire, story(9), stream=stream))
        assert writer.requests == [], "there is room enough"
        early, head = timed(gateway, wire, body(wire, story(NEARLY), stream=stream))
        assert head["x-midfold-action"] == "relayed"
        until(lambda: writer.requests)
        assert gateway.sessions.all() == [], "what is only prepared is not stored"
        settled(gateway)
        took, head = timed(gateway, wire, body(wire, story(ENOUGH), stream=stream))
        assert (head["x-midfold-action"], receipt(gateway, head).summary.readiness) == ("compacted", "prepared")
        assert took < slow / 4, f"{took:.2f} s beside {early:.2f} s for a request that is not folded"
        _, again = timed(gateway, wire, body(wire, story(ENOUGH), stream=stream))
        sent = [request for request in provider.requests if request.method == "POST"]
        assert again["x-midfold-action"] == "checkpoint" and sent[-1].raw == sent[-2].raw
        assert TOLD in sent[-1].text and len(writer.requests) == 1 and provider.rejected == []
        since = story(ENOUGH)[2 * NEARLY + 1 :]
        kept = sent[-1].body["input" if wire == "responses" else "messages"][-len(since) :]
        texts = [one["content"] if isinstance(one["content"], str) else one["content"][0]["text"] for one in kept]
        assert texts == [one["content"] for one in since], "what came since stands behind it, word for word"
        assert gateway.sessions.check(deep=True) == []


def test_a_fold_that_is_not_ready_in_time_is_made_without_a_model() -> None:
    wait, slow = 0.3, 20.0
    with gateways(openai_json(SUMMARY).slow(slow), wait=wait) as (gateway, provider, writer):
        took, head = timed(gateway, "chat", body("chat", story(ENOUGH)))
        found = receipt(gateway, head)
        assert (found.summary.readiness, found.summary.source) == ("local", "local")
        assert wait * 0.9 <= took < slow / 4 and TOLD not in provider.requests[-1].text and len(writer.requests) == 1
        assert wait * 0.9 <= gateway.account(0).fold_wait < slow / 4
        first = provider.requests[-1].raw
        _, again = timed(gateway, "chat", body("chat", story(ENOUGH)))
        assert again["x-midfold-action"] == "checkpoint" and provider.requests[-1].raw == first


def test_a_summary_that_comes_within_the_time_a_request_waits_is_used() -> None:
    with gateways(openai_json(SUMMARY).slow(0.3), wait=20.0) as (gateway, provider, writer):
        _, head = timed(gateway, "chat", body("chat", story(ENOUGH)))
        assert receipt(gateway, head).summary.readiness == "waited"
        assert TOLD in provider.requests[-1].text and len(writer.requests) == 1
        assert 0.2 < gateway.account(0).fold_wait < 10


def test_without_a_fallback_nothing_is_folded_before_the_summary_is_there() -> None:
    config = {"compression": {"lossy_fallback": False}}
    with gateways(openai_json(SUMMARY).slow(0.7), wait=0.0, **config) as (gateway, _, writer):
        _, head = timed(gateway, "chat", body("chat", story(ENOUGH)))
        assert (head["x-midfold-action"], head["x-midfold-reason"]) == (
            "relayed",
            "not folded: the summary is not ready",
        )
        settled(gateway)
        _, head = timed(gateway, "chat", body("chat", story(ENOUGH)))
        assert receipt(gateway, head).summary.readiness == "prepared" and len(writer.requests) == 1


def test_a_branch_or_an_undo_in_between_makes_a_prepared_fold_stale() -> None:
    with gateways(openai_json(SUMMARY)) as (gateway, _, writer):
        timed(gateway, "chat", body("chat", story(NEARLY)))
        settled(gateway)
        other = [*story(NEARLY)[:20], user("Another way."), *story(ENOUGH)[21:]]
        _, head = timed(gateway, "chat", body("chat", other))
        assert head["x-midfold-action"] == "compacted"
        assert receipt(gateway, head).summary.readiness == "waited", "it was made of the branch"
        assert len(writer.requests) == 2 and "Another way." in writer.requests[1].text
        name, grown = head["x-midfold-session"], [*other, *story(40)[1:25]]
        timed(gateway, "chat", body("chat", grown))
        settled(gateway)
        asked = len(writer.requests)
        assert asked == 3
        gateway.sessions.session(name).undo()
        status, head, _ = gateway.post(PATHS["chat"], body("chat", [*other, *story(40)[1:29]]))
        assert status == 200
        records = gateway.sessions.session(head["x-midfold-session"]).receipts()
        assert all(record.receipt.summary.readiness != "prepared" for record in records)
        assert gateway.sessions.check(deep=True) == []


def test_branches_that_take_turns_do_not_ask_for_a_summary_every_time() -> None:
    with gateways(openai_json(SUMMARY)) as (gateway, _, writer):
        for number in range(6):
            other = [*story(NEARLY)[:-1], user(f"Branch {number % 2}, request {number}.")]
            timed(gateway, "chat", body("chat", other))
            settled(gateway)
        assert len(writer.requests) == 1


def test_two_gateways_on_one_store_prepare_a_fold_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db?synchronous=normal"
    with midfold.open(url) as one, gateways(openai_json(SUMMARY).slow(1.0), sessions=one) as made:
        first, provider, writer = made
        config = settings(provider.url, writer.url)
        with midfold.open(url) as two, running(provider.url, config=config, sessions=two) as second:
            for gateway in (first, second):
                timed(gateway, "chat", body("chat", story(NEARLY)))
            settled(first)
            settled(second)
            assert len(writer.requests) == 1
            heads = [timed(gateway, "chat", body("chat", story(ENOUGH)))[1] for gateway in (first, second)]
            assert [head["x-midfold-action"] for head in heads] == ["compacted", "checkpoint"]
            sent = [request.raw for request in provider.requests][-2:]
            assert sent[0] == sent[1]


def test_a_gateway_that_ends_cancels_what_it_prepares_and_gives_the_lease_back(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/g.db"
    with midfold.open(url) as sessions:
        with gateways(openai_json(SUMMARY).slow(60), sessions=sessions) as (gateway, _, writer):
            timed(gateway, "chat", body("chat", story(NEARLY)))
            until(lambda: writer.requests)
            began = time.monotonic()
        assert time.monotonic() - began < 15
        assert sessions.store.database.rows("sessions", before=1 << 62, most=9) == []
    with closing(sqlite3.connect(tmp_path / "g.db")) as database:
        assert database.execute("SELECT * FROM leases").fetchall() == [], "nobody waits for it to run out"


def test_tasks_are_bounded_for_each_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "MAX_TASKS_PER_OWNER", 2)
    monkeypatch.setattr(ahead, "MAX_TASKS", 3)
    with gateways(openai_json(SUMMARY).slow(30)) as (gateway, _, writer):
        for number in range(4):
            told = [user(f"Story {number}"), *story(NEARLY)[1:]]
            gateway.post(PATHS["chat"], body("chat", told), authorization="Bearer one")
        until(lambda: len(writer.requests) == 2)
        for number in range(4):
            told = [user(f"Story {number}"), *story(NEARLY)[1:]]
            gateway.post(PATHS["chat"], body("chat", told), authorization="Bearer two")
        until(lambda: len(writer.requests) == 3)
        time.sleep(0.3)
        assert len(writer.requests) == 3 and gateway.app.gateway.preparer.ahead.count == 3


def test_what_is_ready_and_not_used_makes_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    size = len(json.dumps(body("chat", story(NEARLY))))
    monkeypatch.setattr(ahead, "MAX_BYTES_PER_OWNER", int(size * 2.5))
    with gateways(openai_json(SUMMARY)) as (gateway, _, writer):
        for number in range(4):
            told = [user(f"Story {number}"), *story(NEARLY)[1:]]
            timed(gateway, "chat", body("chat", told))
            settled(gateway)
        assert len(writer.requests) == 4
        assert len(gateway.app.gateway.preparer.ahead._pending) == 2


def test_after_a_failure_nobody_is_asked_before_its_pause_is_over() -> None:
    clock_sessions = midfold.open("memory:")
    with gateways(error(401), sessions=clock_sessions) as (gateway, _, writer):
        for turns in (NEARLY, NEARLY + 1, NEARLY + 2):
            timed(gateway, "chat", body("chat", story(turns)))
            settled(gateway)
        assert len(writer.requests) == 1
        _, head = timed(gateway, "chat", body("chat", story(ENOUGH)))
        assert head["x-midfold-reason"] == "not folded: auth"
        _, head = timed(gateway, "chat", body("chat", story(ENOUGH)))
        assert len(writer.requests) == 1


def test_a_prepared_fold_that_is_no_longer_enough_is_followed_by_another() -> None:
    with gateways(openai_json(SUMMARY)) as (gateway, provider, _):
        timed(gateway, "chat", body("chat", story(NEARLY)))
        settled(gateway)
        _, head = timed(gateway, "chat", body("chat", story(NEARLY + 20)))
        records = gateway.sessions.session(head["x-midfold-session"]).receipts()
        assert [record.receipt.summary.readiness for record in records] == ["prepared", "local"]
        assert int(head["x-midfold-tokens-after"]) < TRIGGER and provider.rejected == []


def test_a_summary_that_comes_too_late_takes_the_place_of_the_local_one_where_that_pays() -> None:
    with gateways(openai_json(SUMMARY).slow(1.0), wait=0.0) as (gateway, provider, writer):
        _, first = timed(gateway, "chat", body("chat", story(ENOUGH)))
        assert receipt(gateway, first).summary.readiness == "local"
        _, second = timed(gateway, "chat", body("chat", story(ENOUGH)))
        assert second["x-midfold-receipt"] == first["x-midfold-receipt"], "it is not ready"
        settled(gateway)
        _, third = timed(gateway, "chat", body("chat", [*story(ENOUGH), assistant("So."), user("On.")]))
        found = receipt(gateway, third)
        assert (third["x-midfold-action"], found.summary.readiness) == ("compacted", "late")
        assert TOLD in provider.requests[-1].text and provider.requests[-1].body["messages"][-1] == user("On.")
        _, again = timed(gateway, "chat", body("chat", [*story(ENOUGH), assistant("So."), user("On.")]))
        assert again["x-midfold-receipt"] == third["x-midfold-receipt"]
        assert provider.requests[-1].raw == provider.requests[-2].raw and len(writer.requests) == 1
        session = gateway.sessions.session(third["x-midfold-session"])
        assert session.unfold(found.fold) and gateway.sessions.check(deep=True) == []
        session.undo()
        assert TOLD not in session.view().json().decode()
        assert MARKER in session.view().json().decode(), "the local fold is there again"


def test_a_summary_that_comes_too_late_and_does_not_pay_is_not_used() -> None:
    long = SUMMARY + "".join(f"\n- a further remark on sentence {n} of the story, which has no end" for n in range(99))
    with gateways(openai_json(long).slow(1.0), wait=0.0) as (gateway, provider, _):
        _, first = timed(gateway, "chat", body("chat", story(ENOUGH)))
        settled(gateway)
        _, later = timed(gateway, "chat", body("chat", [*story(ENOUGH), assistant("So."), user("On.")]))
        assert (later["x-midfold-action"], later["x-midfold-receipt"]) == ("checkpoint", first["x-midfold-receipt"])
        assert TOLD not in provider.requests[-1].text


def test_metrics_tell_how_long_requests_waited(tmp_path: Path) -> None:
    with (
        RulesProvider(lambda request: Turn("fine"), window=WINDOW) as provider,
        ScriptedProvider(then=openai_json(SUMMARY)) as writer,
    ):
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps(crash_settings(provider, writer, tmp_path)))
        port = free_port()
        with serving(config, port):
            url = f"http://127.0.0.1:{port}"
            call(url, "POST", PATHS["chat"], body("chat", story(NEARLY)))
            until(lambda: writer.requests)
            until(lambda: b"midfold_folds_in_preparation 0" in call(url, "GET", "/metrics")[2])
            call(url, "POST", PATHS["chat"], body("chat", story(ENOUGH)))
            page = call(url, "GET", "/metrics")[2].decode()
    assert 'midfold_fold_wait_seconds_count{readiness="prepared"} 1' in page
    assert 'midfold_fold_wait_seconds_sum{readiness="prepared"} 0' in page


def crash_settings(provider: RulesProvider, writer: ScriptedProvider, tmp_path: Path) -> dict[str, Any]:
    return {
        "gateway": {"upstream": provider.url},
        "store": {"url": f"sqlite:///{tmp_path}/g.db", "lease_seconds": 60},
        "auxiliary": {"compression": {**WRITER, "base_url": f"{writer.url}/v1", "api_key_env": "SUMMARY_KEY"}},
        "models": {"*": {"context_window": WINDOW}},
    }


def test_a_gateway_that_is_killed_while_it_prepares_loses_nothing_and_blocks_nobody(tmp_path: Path) -> None:
    slow = openai_json(SUMMARY).slow(60)
    with (
        RulesProvider(lambda request: Turn("fine"), window=WINDOW) as provider,
        ScriptedProvider([slow], then=openai_json(SUMMARY)) as writer,
    ):
        config = tmp_path / "config.yaml"
        config.write_text(json.dumps(crash_settings(provider, writer, tmp_path)))
        port = free_port()
        with serving(config, port) as process:
            call(f"http://127.0.0.1:{port}", "POST", PATHS["chat"], body("chat", story(NEARLY)))
            until(lambda: writer.requests)
            os.kill(process.pid, signal.SIGKILL)
        port = free_port()
        with serving(config, port):
            began = time.monotonic()
            status, head, _ = call(f"http://127.0.0.1:{port}", "POST", PATHS["chat"], body("chat", story(ENOUGH)))
            took = time.monotonic() - began
            assert (status, head["x-midfold-action"]) == (200, "compacted")
            assert took < 20, "the lease of the dead one is not waited for"
    with midfold.open(f"sqlite:///{tmp_path}/g.db") as sessions:
        assert sessions.check(deep=True) == []
        session = sessions.session(head["x-midfold-session"])
        assert [message.text for message in session.history().transcript] == [one["content"] for one in story(ENOUGH)]
        assert MARKER in provider.requests[-1].text


def test_concurrent_requests_at_the_trigger_wait_for_one_summary_only() -> None:
    with gateways(openai_json(SUMMARY).slow(0.5), wait=20.0) as (gateway, provider, writer):
        threads = [
            threading.Thread(target=gateway.post, args=(PATHS["chat"], body("chat", story(ENOUGH)))) for _ in range(5)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(writer.requests) == 1 and len({request.raw for request in provider.requests}) == 1
