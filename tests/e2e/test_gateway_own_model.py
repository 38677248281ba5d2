"""Summaries by the conversation's own model, with the credential of its requests, which is never stored."""

from __future__ import annotations

import base64
import gc
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from midfold.compaction.receipt import Receipt
from midfold.config import Config
from midfold.config.load import parse
from midfold.gateway.client_model_summaries import ClientModelSummarizer
from midfold.testing.answers import error
from midfold.testing.doubles import Request, ScriptedProvider
from support.fixtures import assistant, number_lines, user
from support.gateways import STORY_SUMMARY, Running, call, free_port, running, serving
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 32_768
KEY = "sk-own-5f0c71d29ab84e63-never-written-anywhere"
PATHS = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}
SHOWN = {"chat": "authorization", "responses": "authorization", "anthropic": "x-api-key"}
TOLD = "most of it was told"


def story(turns: int) -> list[dict[str, Any]]:
    said = number_lines("sentence {n} of a story that has no end, and no tool in it", 20)
    talk = [turn for n in range(turns) for turn in (assistant(f"{n}: {said}"), user(f"{n}? {said}"))]
    return [user("Tell me a story."), *talk]


def is_summary(request: Request) -> bool:
    return "Stop working on the task" in request.text or "You write summaries" in request.text


def answer(request: Request) -> Turn:
    return Turn(STORY_SUMMARY if is_summary(request) else "fine")


def body(wire: str, messages: list[dict[str, Any]]) -> dict[str, Any]:
    model = "claude-x" if wire == "anthropic" else "gpt-4o"
    more: dict[str, Any] = {"max_tokens": 9} if wire == "anthropic" else {}
    return {"model": model, ("input" if wire == "responses" else "messages"): messages, **more}


def settings(upstream: str, **task: Any) -> Config:
    values = {
        "gateway": {"upstream": upstream},
        "auxiliary": {"compression": {"provider": "main", **task}},
        "models": {"*": {"context_window": WINDOW}},
    }
    return parse(json.dumps(values)).config


@contextmanager
def held(**task: Any) -> Iterator[tuple[Running, RulesProvider]]:
    with (
        RulesProvider(answer, window=WINDOW) as provider,
        running(provider.url, config=settings(provider.url, **task)) as gateway,
    ):
        yield gateway, provider


def credential(wire: str, key: str = KEY) -> dict[str, str]:
    return {SHOWN[wire]: key if wire == "anthropic" else f"Bearer {key}"}


def until(is_so: Any, seconds: float = 10.0) -> None:
    ends = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < ends, "it did not come to that"
        time.sleep(0.01)


def talk(gateway: Running, wire: str, turns: range, **headers: str) -> dict[str, str]:
    """Run a growing conversation, waiting for background work."""
    head: dict[str, str] = {}
    for number in turns:
        status, head, told = gateway.post(PATHS[wire], body(wire, story(number)), **headers)
        assert status == 200, told
        until(lambda: gateway.app.gateway.preparer.ahead.count == 0)
        if head["x-midfold-action"] == "compacted":
            break
    return head


def receipt(gateway: Running, head: dict[str, str]) -> Receipt:
    name, _, seq = head["x-midfold-receipt"].partition("#")
    return gateway.sessions.session(name).receipts()[int(seq) - 1].receipt


def summaries(provider: RulesProvider) -> list[Request]:
    return [request for request in provider.requests if is_summary(request)]


@pytest.mark.parametrize("wire", PATHS)
def test_the_conversations_own_model_summarises_from_the_prefix_that_it_has_cached(wire: str) -> None:
    with held() as (gateway, provider):
        head = talk(gateway, wire, range(10, 60), **credential(wire))
        found = receipt(gateway, head)
        (asked,) = summaries(provider)
        bill = next(
            served.bill
            for served, request in zip(provider.served, provider.requests, strict=True)
            if is_summary(request)
        )
    assert (found.summary.readiness, found.summary.model) == ("prepared", asked.body["model"])
    assert TOLD in provider.requests[-1].text and provider.rejected == []
    assert asked.path == PATHS[wire] and asked.headers[SHOWN[wire]].endswith(KEY)
    assert bill.read > 0.7 * bill.prompt
    assert f"{bill.read:,} of {bill.prompt:,} prompt tokens came from the cache" in found.notices


def test_what_is_not_cached_is_sent_as_turns_and_a_setting_decides_otherwise() -> None:
    def uncached(request: Request) -> Any:
        from midfold.testing.answers import openai_json

        return openai_json(STORY_SUMMARY if is_summary(request) else "fine")

    for asked, is_prefix in ((None, False), (True, True), (False, False)):
        with (
            ScriptedProvider(then=uncached) as provider,
            running(provider.url, config=settings(provider.url, reuse_prefix=asked)) as gateway,
        ):
            talk(gateway, "chat", range(24, 60), **credential("chat"))
        sent = [request for request in provider.requests if is_summary(request)]
        assert sent and all(("Stop working on the task" in one.text) is is_prefix for one in sent)


@pytest.mark.parametrize(
    ("wire", "headers"),
    [
        ("anthropic", {"authorization": "Bearer sk-ant-oat01-abcdefgh"}),
        ("anthropic", {"authorization": "Bearer whatever", "anthropic_beta": "oauth-2025-04-20,claude-code-20250219"}),
        ("responses", {"authorization": "Bearer eyJhbGciOiJSUzI1NiJ9.e30.x", "chatgpt_account_id": "acc-1"}),
        ("responses", {"authorization": "Bearer eyJhbGciOiJSUzI1NiJ9.e30.x"}),
    ],
)
def test_the_token_of_a_subscription_is_used_only_if_the_settings_say_so(wire: str, headers: dict[str, str]) -> None:
    with held() as (gateway, provider):
        head = talk(gateway, wire, range(20, 60), **headers)
        assert receipt(gateway, head).summary.source == "local" and summaries(provider) == []
    with held(subscriptions=True) as (gateway, provider):
        talk(gateway, wire, range(20, 60), **headers)
        assert len(summaries(provider)) == 1


def test_a_compaction_that_a_client_asks_for_waits_for_its_own_model() -> None:
    with held() as (gateway, provider):
        given = {"model": "gpt-4o", "input": story(20)}
        status, head, told = gateway.post("/v1/responses/compact", given, **credential("responses"))
        assert (status, head["x-midfold-action"]) == (200, "compacted"), told
        assert TOLD in told.decode() and provider.rejected == []
        assert {request.path for request in summaries(provider)} == {"/v1/responses"}


def test_nobody_is_asked_by_default() -> None:
    with held(provider="auto") as (gateway, provider):
        talk(gateway, "chat", range(20, 60), **credential("chat"))
        assert summaries(provider) == []


def test_the_key_ends_with_its_task_within_the_time_of_a_summary() -> None:
    hold = threading.Event()

    def never(request: Request) -> Turn:
        if is_summary(request):
            hold.wait(60)
        return Turn("fine")

    def credentials() -> list[Any]:
        return [one for one in gc.get_objects() if isinstance(one, ClientModelSummarizer) and one._headers]

    with (
        RulesProvider(never, window=WINDOW) as provider,
        running(provider.url, config=settings(provider.url, timeout=5.0)) as gateway,
    ):
        gateway.post(PATHS["chat"], body("chat", story(30)), **credential("chat"))
        until(lambda: summaries(provider))
        assert len(credentials()) == 1
        until(lambda: gateway.app.gateway.preparer.ahead.count == 0, 30)
        assert credentials() == [], "the model has not answered, and the time is over"
        hold.set()


def converse(place: Path, upstream: str) -> list[bytes]:
    """Return all output of a gateway process while a conversation grows and is inspected."""
    place.mkdir()
    values = {
        "gateway": {"upstream": upstream, "log": "requests"},
        "store": {"url": f"sqlite:///{place}/g.db"},
        "auxiliary": {"compression": {"provider": "main"}},
        "models": {"*": {"context_window": WINDOW}},
    }
    (place / "config.yaml").write_text(json.dumps(values))
    port, said = free_port(), list[bytes]()
    url = f"http://127.0.0.1:{port}"
    with serving(place / "config.yaml", port, place / "told.txt"):
        for turns in range(24, 36, 2):
            status, head, told = call(url, "POST", PATHS["chat"], body("chat", story(turns)), **credential("chat"))
            assert status == 200
            said += [told, json.dumps(head).encode()]
            until(lambda: b"midfold_folds_in_preparation 0" in call(url, "GET", "/metrics")[2])
        pages = ("/metrics", "/", "/api/sessions", "/api/overview", "/readyz", "/cache", "/sessions")
        return said + [call(url, "GET", path)[2] for path in pages]


def test_the_key_of_a_client_is_written_nowhere(tmp_path: Path) -> None:
    """Not after a summary, a refusal that repeats the key, or an aborted response."""
    said: list[bytes] = []

    echo = error(401, f"Incorrect API key provided: {KEY}")
    with RulesProvider(answer, window=WINDOW) as provider:
        inner = provider._answer
        provider._server._then = lambda request: (
            echo if is_summary(request) and len(summaries(provider)) == 1 else inner(request)
        )
        for number in range(2):
            said += converse(tmp_path / f"{number}", provider.url)
    assert len(summaries(provider)) >= 2, "the key was used"
    assert all(request.headers["authorization"] == f"Bearer {KEY}" for request in provider.requests)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert any(path.name == "told.txt" and path.stat().st_size for path in files)
    for needle in (KEY.encode(), base64.b64encode(KEY.encode()), KEY[8:24].encode()):
        assert [path for path in files if needle in path.read_bytes()] == []
        assert not any(needle in text for text in said)
