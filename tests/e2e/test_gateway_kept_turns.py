"""Conversations stored by the provider, with the official OpenAI client: folded before they exceed its window."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

import midfold
from midfold.gateway.stored_responses import DAY_MS
from midfold.session.sessions import Sessions
from midfold.store.bodies import inflate
from midfold.testing.answers import value
from midfold.testing.doubles import ScriptedProvider
from support.clients import closing, openai_client
from support.gateways import Running, running, settings
from support.real_clients import ASKS, FACT, RULE, RULES, ShellModel
from support.rules_provider import RulesProvider

WINDOW = 20_600
STEPS = 60
SECRET = "sk-proj-" + "Zx9" * 14
TOOL = {
    "type": "function",
    "name": "shell",
    "strict": False,
    "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
}


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closing():
        yield


@pytest.fixture
def provider() -> Iterator[RulesProvider]:
    with RulesProvider(ShellModel(STEPS, 1), window=WINDOW) as found:
        yield found


class KeptSession:
    """Client that sends only new items and continues from the last response or in a conversation."""

    def __init__(self, url: str, *, stream: bool = False, conversation: str | None = None) -> None:
        self.client, self.stream = openai_client(url), stream
        self.conversation = conversation
        self.new: list[Any] = [{"role": "user", "content": ASKS[0]}]
        self.last: str | None = None
        self.turns = 0

    def move_to(self, url: str) -> None:
        self.client = openai_client(url)

    def run(self, turns: int = 1_000) -> None:
        for _ in range(turns):
            answer = self._ask()
            calls = [item for item in answer.output if item.type == "function_call"]
            self.new = [self._result(call.call_id) for call in calls]
            self.last, self.turns = answer.id, self.turns + 1
            if not calls:
                return

    def _result(self, call: str) -> dict[str, Any]:
        text = f"line of {call}: module_{self.turns} is fine\n" * 45 + f"key {SECRET}"
        return {"type": "function_call_output", "call_id": call, "output": text}

    def _ask(self) -> Any:
        options: dict[str, Any] = {"model": "gpt-4o", "instructions": RULES, "input": self.new, "tools": [TOOL]}
        if self.conversation:
            options["conversation"] = self.conversation
        elif self.last:
            options["previous_response_id"] = self.last
        if not self.stream:
            return self.client.responses.create(**options)
        with self.client.responses.stream(**options) as events:
            return events.get_final_response()


def folds(gateway: Running) -> int:
    return sum(account.action in ("compacted", "pruned", "recovered") for account in gateway.accounts)


def stored(sessions: Sessions) -> list[bytes]:
    """Return kept turns as stored."""
    rows = sessions.store.database.rows("page_of_hidden_turns", place="", chain="", most=1_000)
    return [inflate(*record) for place, _, *record in rows if place.startswith("turns-")]


def test_without_the_gateway_such_a_session_ends_at_turn_29(provider: RulesProvider) -> None:
    session = KeptSession(provider.url)
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        session.run()
    assert session.turns == 29


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
def test_with_the_gateway_it_runs_to_the_end_and_knows_its_task(provider: RulesProvider, stream: bool) -> None:
    with running(provider.url, window=WINDOW) as gateway:
        session = KeptSession(gateway.url, stream=stream)
        session.run()
    assert (session.turns, provider.rejected) == (STEPS + 1, [])
    assert 2 <= folds(gateway) <= STEPS / 10
    last = json.dumps(provider.served[-1].body)
    assert FACT in last and RULE in last
    with_id = [b"previous_response_id" in request.raw for request in provider.requests]
    assert with_id.count(False) == 1 + folds(gateway)


def test_between_folds_requests_pass_byte_for_byte(provider: RulesProvider) -> None:
    with running(provider.url, window=WINDOW) as gateway:
        client = gateway.post("/v1/responses", {"model": "gpt-4o", "input": "hello"}, authorization="Bearer k")
        first = json.loads(client[2])["id"]
        body = f'{{ "input": "go  on",\n"previous_response_id":"{first}", "model":"gpt-4o"}}'.encode()
        assert gateway.post("/v1/responses", body, authorization="Bearer k")[0] == 200
    assert provider.requests[-1].raw == body


def test_a_client_may_go_back_to_any_response_and_on_from_there(provider: RulesProvider) -> None:
    with running(provider.url, window=WINDOW) as gateway:
        session = KeptSession(gateway.url)
        session.run(20)
        early, waiting = session.last, session.new
        session.run(15)
        assert folds(gateway) >= 1
        session.last, session.new = early, waiting
        session.run(14)
    assert provider.rejected == [] and folds(gateway) >= 2


def test_a_window_that_is_smaller_than_believed_costs_one_refusal_that_nobody_sees(provider: RulesProvider) -> None:
    with running(provider.url, window=100_000) as gateway:
        session = KeptSession(gateway.url)
        session.run()
    assert session.turns == STEPS + 1
    assert [problem.is_overflow for problem in provider.rejected] == [True]


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streaming"])
def test_a_conversation_goes_on_under_its_id_after_it_was_folded(provider: RulesProvider, stream: bool) -> None:
    with running(provider.url, window=WINDOW) as gateway:
        made = openai_client(gateway.url).conversations.create(items=[{"role": "user", "content": "Mind the FIRST."}])
        session = KeptSession(gateway.url, stream=stream, conversation=made.id)
        session.run()
    assert (session.turns, provider.rejected) == (STEPS + 1, [])
    assert folds(gateway) >= 2
    assert b"Mind the FIRST." in b"".join(request.raw for request in provider.requests[5:])


def test_what_was_folded_goes_on_after_a_restart(provider: RulesProvider, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/sessions.db"
    with midfold.open(url) as sessions, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
        session = KeptSession(gateway.url)
        session.run(26)
        assert folds(gateway) == 1
    with midfold.open(url) as sessions, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
        session.move_to(gateway.url)
        session.run()
        assert folds(gateway) >= 1
        assert sessions.check(deep=True) == []
    assert (session.turns, provider.rejected) == (STEPS + 1, [])


def test_what_was_never_folded_is_written_nowhere_and_not_known_after_a_restart(
    provider: RulesProvider, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/sessions.db"
    with midfold.open(url) as sessions, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
        session = KeptSession(gateway.url)
        session.run(15)
        assert stored(sessions) == []
    assert not any(b"module_3" in file.read_bytes() for file in tmp_path.iterdir())
    with midfold.open(url) as sessions, running(provider.url, window=WINDOW, sessions=sessions) as gateway:
        session.move_to(gateway.url)
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            session.run()


@pytest.mark.parametrize("redacts", [False, True], ids=["plain", "redacted"])
def test_kept_turns_are_known_after_a_restart_redacted_where_originals_are(
    provider: RulesProvider, tmp_path: Path, redacts: bool
) -> None:
    url, config = f"sqlite:///{tmp_path}/sessions.db", settings(provider.url, WINDOW, keep_turns=7)
    with midfold.open(url, redacts=redacts) as sessions, running(provider.url, config=config, sessions=sessions) as one:
        session = KeptSession(one.url)
        session.run(12)
        assert len(stored(sessions)) == 12
        assert (SECRET.encode() in b"".join(stored(sessions))) is not redacts
    with midfold.open(url, redacts=redacts) as sessions, running(provider.url, config=config, sessions=sessions) as two:
        session.move_to(two.url)
        session.run()
        assert folds(two) >= 2
    assert (session.turns, provider.rejected) == (STEPS + 1, [])


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_kept_turns_end(provider: RulesProvider, tmp_path: Path, kind: str, request: pytest.FixtureRequest) -> None:
    config = settings(provider.url, WINDOW, keep_turns=7)
    url = f"sqlite:///{tmp_path}/s.db" if kind == "sqlite" else request.getfixturevalue("postgres_url")
    with midfold.open(url) as sessions:
        with running(provider.url, config=config, sessions=sessions) as gateway:
            KeptSession(gateway.url).run(5)
        assert len(stored(sessions)) == 5
        sessions.store.hidden_turns.delete_ended("turns-", 7 * DAY_MS)
        assert len(stored(sessions)) == 5
        sessions.store.hidden_turns.delete_ended("turns-", -1)
        assert stored(sessions) == []


def test_another_owner_does_not_reach_the_turns(provider: RulesProvider) -> None:
    with running(provider.url, window=WINDOW) as gateway:
        session = KeptSession(gateway.url)
        session.run(24)
        session.client = session.client.with_options(api_key="another")
        with pytest.raises(openai.BadRequestError, match="maximum context length"):
            session.run()
    assert folds(gateway) == 0


def test_a_client_that_sends_its_whole_history_is_not_written_down_again_and_again(
    provider: RulesProvider, tmp_path: Path
) -> None:
    config = settings(provider.url, WINDOW, keep_turns=7)
    history: list[Any] = [{"role": "user", "content": ASKS[0]}]
    with midfold.open(f"sqlite:///{tmp_path}/s.db") as sessions:
        with running(provider.url, config=config, sessions=sessions) as gateway:
            client = openai_client(gateway.url)
            for _ in range(5):
                answer = client.responses.create(model="gpt-4o", input=history, tools=[TOOL])
                call = next(item for item in answer.output if item.type == "function_call")
                history += [item.model_dump(exclude_none=True) for item in answer.output]
                history.append({"type": "function_call_output", "call_id": call.call_id, "output": "fine"})
        assert len(stored(sessions)) == 1


def test_items_that_are_put_into_a_conversation_are_part_of_it(provider: RulesProvider) -> None:
    with running(provider.url, window=WINDOW) as gateway:
        client = openai_client(gateway.url)
        made = client.conversations.create()
        session = KeptSession(gateway.url, conversation=made.id)
        session.run(32)
        assert folds(gateway) == 1
        session.new.append({"role": "user", "content": "Beside it."})
        gateway.post(
            f"/v1/conversations/{made.id}/items",
            {"items": [{"role": "user", "content": "Put in BY HAND."}]},
            authorization="Bearer k",
        )
        session.run(1)
    assert b"Put in BY HAND." in provider.requests[-1].raw


def test_a_provider_whose_ids_go_in_circles_holds_nobody_up() -> None:
    usage = {"input_tokens": 19_000, "output_tokens": 10, "total_tokens": 19_010}
    told = {"id": "resp_same", "object": "response", "status": "completed", "output": [], "usage": usage}
    request = {"model": "gpt-4o", "input": "go on", "previous_response_id": "resp_same"}
    with ScriptedProvider(then=value(told)) as provider, running(provider.url, window=WINDOW) as gateway:
        gateway.post("/v1/responses", {"model": "gpt-4o", "input": "hello"}, authorization="Bearer k")
        for _ in range(3):
            assert gateway.post("/v1/responses", request, authorization="Bearer k")[0] == 200
    assert [one.body for one in provider.requests[1:]] == [request] * 3


def test_an_answer_that_is_made_in_the_background_is_not_taken_for_a_turn() -> None:
    queued = {"id": "resp_1", "object": "response", "status": "queued", "output": []}
    with ScriptedProvider(then=value(queued)) as provider, running(provider.url, window=WINDOW) as gateway:
        gateway.post("/v1/responses", {"model": "gpt-4o", "input": "hi", "background": True}, authorization="Bearer k")
        assert len(gateway.app.gateway.turns) == 0


def test_a_picture_counts_as_one_and_not_as_so_many_letters(provider: RulesProvider) -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64," + "iVBORw0KGgo" * 9_000}
    with running(provider.url, window=WINDOW) as gateway:
        session = KeptSession(gateway.url)
        session.run(5)
        session.new.append({"role": "user", "content": [{"type": "input_text", "text": "See?"}, picture]})
        session.run(1)
    assert (folds(gateway), provider.rejected) == (0, [])
