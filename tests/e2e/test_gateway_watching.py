"""Every conversation is on the pages from its first response on, with its size and without its content."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from click.testing import CliRunner

import midfold
from midfold.cli.main import main
from midfold.pages import Recorder
from midfold.pages.api_types import SessionFacts
from midfold.pages.lookup import Lookup, Sees, SessionFilter
from midfold.pages.web import everything
from midfold.session.sessions import Sessions
from midfold.store.usage import LastRequests
from midfold.testing.answers import Answer, events, raw
from midfold.testing.doubles import Request, ScriptedProvider
from midfold.transcript import jsonio
from support.gateways import Running, call, running

CHAT = "/v1/chat/completions"
SECRET = "a word nobody else has said"


def reply(request: Request) -> Answer:
    """Report as many tokens as the request has bytes, a third of them cached; no usage for streams."""
    size = len(request.raw)
    choice = {"index": 0, "message": {"role": "assistant", "content": "yes"}, "finish_reason": "stop"}
    usage = {"prompt_tokens": size, "completion_tokens": 3, "prompt_tokens_details": {"cached_tokens": size // 3}}
    if request.body.get("stream"):
        return events([{"choices": [{"index": 0, "delta": {"content": "yes"}}]}], done=True)
    return raw(jsonio.encode({"choices": [choice], "usage": usage}))


class Watched:
    """Gateway and its pages."""

    def __init__(self, gateway: Running, recorder: Recorder, sessions: Sessions) -> None:
        self.gateway, self.recorder, self.sessions = gateway, recorder, sessions

    def ask(self, messages: list[dict[str, Any]], path: str = CHAT, **more: Any) -> None:
        headers = more.pop("headers", {})
        body = {"model": "gpt-4o", "messages": messages, **more}
        status, _, data = call(self.gateway.url, "POST", path, body, **headers)
        assert status == 200, data

    def seen(self, sees: Sees = everything) -> list[SessionFacts]:
        """Return the overview after all writes."""
        time.sleep(0.05)
        self.recorder.close()
        return list(Lookup(self.sessions).overview(sees).sessions)


@contextmanager
def watched(url: str = "memory:", **options: Any) -> Iterator[Watched]:
    with (
        midfold.open(url) as sessions,
        ScriptedProvider(then=reply) as provider,
        running(provider.url, sessions=sessions, **options) as gateway,
    ):
        recorder = Recorder(sessions)
        gateway.app.gateway.watchers.append(recorder.see)
        yield Watched(gateway, recorder, sessions)


def talk(turns: int, word: str = "tell me more", first: str = "hello") -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": first}]
    for turn in range(1, turns):
        said.append({"role": "assistant", "content": f"{turn}: {word}"})
        said.append({"role": "user", "content": f"{word}, please ({turn})"})
    return said


@pytest.fixture(params=["memory", "postgres"])
def url(request: pytest.FixtureRequest) -> str:
    return "memory:" if request.param == "memory" else str(request.getfixturevalue("postgres_url"))


def test_a_conversation_is_listed_from_its_first_answer_on_and_stays_one(url: str) -> None:
    with watched(url) as it:
        it.ask(talk(1, first=SECRET))
        (first,) = it.seen()
        assert (first.messages, first.stored, first.size.basis, first.size.window) == (1, 0, "reported", 32_768)
        assert first.size.tokens > 0
        assert first.size.threshold == int(32_768 * 0.85)
        for turns in (2, 3, 9):
            it.ask(talk(turns, first=SECRET))
        (only,) = it.seen()
        assert (only.messages, only.stored, only.saved.requests) == (17, 0, 4)
        assert only.name != first.name
        assert only.cache.hit_rate == pytest.approx(1 / 3, abs=0.01)
        assert it.sessions.search(f'"{SECRET}"') == []
        assert it.sessions.check(deep=True) == []


def test_two_that_began_alike_are_two_once_they_differ() -> None:
    with watched() as it:
        for _ in range(2):
            it.ask(talk(1))
        it.ask(talk(2, word="one way"))
        it.ask(talk(2, word="another way"))
        assert sorted(item.saved.requests for item in it.seen()) == [1, 3]


def test_without_a_report_a_size_is_an_estimate_and_no_turn() -> None:
    with watched() as it:
        it.ask(talk(3), stream=True)
        (only,) = it.seen()
        assert (only.size.basis, only.saved.requests) == ("estimated", 0)
        assert 0 < only.size.tokens < 200


def test_what_was_noted_before_the_first_fold_belongs_to_the_folded_session() -> None:
    with watched() as it:
        for turns in (2, 20, 450):
            it.ask(talk(turns, word="a longer sentence that is said again and again " * 5))
        (only,) = it.seen()
        assert (only.compactions, only.saved.requests, only.messages, only.stored) == (1, 3, 899, 899)
        page = Lookup(it.sessions).session(only.name, None, everything)
        assert [turn.messages for turn in page.turns] == [3, 39, 899]
        assert [turn.compaction for turn in page.turns] == [0, 0, 1]
        assert it.sessions.check(deep=True) == []


def test_passed_through_is_seen_and_never_due_bypassed_is_not_seen() -> None:
    with watched(mode="passthrough") as it:
        it.ask(talk(4))
        it.ask(talk(4, first="not this one"), headers={"x_midfold_bypass": "true"})
        (only,) = it.seen()
        assert only.size.threshold == only.size.window


def test_a_name_of_the_clients_own_and_a_model_nobody_would_write() -> None:
    with watched() as it:
        it.ask(talk(1), headers={"x_midfold_session": "mine"}, model="evil\u0000" + "x" * 150)
        it.ask(talk(2, first="something else"), headers={"x_midfold_session": "mine"})
        (only,) = it.seen()
        assert (only.name, only.model, only.saved.requests) == ("mine", "gpt-4o", 2)


def test_conversations_nobody_goes_on_with_do_not_pile_up(url: str) -> None:
    with watched(url) as it:
        for number in range(6):
            it.ask(talk(1, first=f"question {number}"))
        kept = it.sessions.session("stored")
        kept.append([{"role": "user", "content": "kept"}])
        assert len(it.seen()) == 7
        assert LastRequests(it.sessions.store.database).forget(2) == 4
        left = [info.name for info in it.sessions.all()]
        assert len(left) == 3
        assert "stored" in left


def test_the_program_that_asks_is_noted_and_sessions_are_chosen_by_it(url: str) -> None:
    with watched(url) as it:
        for place, agent in enumerate(("claude-cli/2.1.14 (external, cli)", "OpenAI/Python 2.1.0", f"sk-{'a1b2' * 9}")):
            it.ask(talk(1, first=f"hello {place}"), headers={"user-agent": agent})
        found = {one.sent_by: one.client for one in it.seen()}
        assert found == {"claude-cli/2.1": "claude-cli", "OpenAI/Python": "OpenAI/Python", "": ""}
        lookup = Lookup(it.sessions)
        listed = lookup.sessions_like(SessionFilter(client="claude-cli"), 0, everything)
        assert [one.sent_by for one in listed.sessions] == ["claude-cli/2.1"]
        assert set(listed.clients) == {"OpenAI/Python", "claude-cli"}
        shown = json.loads(CliRunner().invoke(main, ["sessions", "list", "--json", "--store", url]).stdout or "[]")
        assert url == "memory:" or {one["sent_by"]: one["client"] for one in shown} == found
