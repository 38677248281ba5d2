"""A plugin engine's tools reach the model and run with the conversation's originals: agent and gateway."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import midfold
from midfold import local_summarizer
from midfold.agent import AgentAssembly
from midfold.agent.events import agree
from midfold.model.client import ModelClient
from midfold.testing import Request, ScriptedProvider
from midfold.testing.answers import turn
from midfold.transcript.message import ToolResult
from support.clients import closing
from support.engine_plugins import NOTARY, install
from support.fixtures import assistant, number_lines, user
from support.gateways import running, settings
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 16_000
SAID = "the deploy token is called FLAMINGO-77 in the vault"


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    with closing():
        yield


def talk() -> list[Any]:
    said: list[Any] = [user("Port the parser."), assistant("I will."), user(SAID), assistant("I will remember.")]
    for number in range(45):
        said += [user(f"Step {number}?"), assistant(number_lines(f"line {{n}} of {number} is fine", 40))]
    return [*said, user("What was it called?")]


class Curious:
    """Model that counts the handles, reads the first, then requests one that does not exist."""

    def __init__(self) -> None:
        self.answers: list[str] = []

    def __call__(self, request: Request) -> Turn:
        last = request.body["messages"][-1]
        content = last["content"] if isinstance(last["content"], str) else last["content"][-1].get("content", "")
        if last["role"] == "tool" or (
            isinstance(last["content"], list) and last["content"][-1]["type"] == "tool_result"
        ):
            self.answers.append(content if isinstance(content, str) else content[0]["text"])
        calls: list[Any] = [("c1", "notary_count", {})]
        if self.answers:
            found = re.search(r"mf-[0-9a-f]+", self.answers[0])
            calls.append(("c2", "notary_read", {"handle": found.group() if found else ""}))
            calls.append(("c3", "notary_read", {"handle": "mf-000000000000"}))
        return Turn("", (calls[len(self.answers)],)) if len(self.answers) < 3 else Turn("It is FLAMINGO-77.")


@pytest.mark.parametrize(("path", "model"), [("/v1/chat/completions", "gpt-4o"), ("/v1/messages", "claude-opus-4-6")])
@pytest.mark.parametrize("stream", [False, True])
def test_the_gateway_offers_and_runs_them_and_the_client_sees_the_answer(
    path: str, model: str, stream: bool, tmp_path: Path
) -> None:
    known = midfold.load_config(install(tmp_path, "notary", NOTARY)).config
    curious = Curious()
    with RulesProvider(curious, window=WINDOW) as provider:
        own = settings(provider.url, WINDOW, recall="on")
        own = msgspec.structs.replace(own, context=known.context, folder=known.folder)
        with running(provider.url, config=own) as gateway:
            body = {"model": model, "max_tokens": 500, "messages": talk(), "stream": stream}
            status, _, answer = gateway.post(path, body)
            (left_out,) = gateway.app.gateway.recall.engine_tools.notices
    assert (status, provider.rejected) == (200, [])
    assert b"FLAMINGO-77" in answer and b"notary" not in answer
    counted, read, missing = curious.answers
    assert counted.startswith("1 handles")
    assert read.startswith(SAID)
    assert "notary_read failed: KeyError" in missing
    names = [tool.get("name") or tool["function"]["name"] for tool in provider.requests[0].body["tools"]]
    assert names == ["context_search", "context_unfold", "context_timeline", "notary_count", "notary_read"]
    assert left_out == 'Context engine "notary": tool "context_search" omitted: the name is already taken'


def test_the_gateway_leaves_a_tool_to_the_client_that_has_one_of_its_name(tmp_path: Path) -> None:
    known = midfold.load_config(install(tmp_path, "notary", NOTARY)).config
    theirs = {"type": "function", "function": {"name": "notary_count", "parameters": {"type": "object"}}}
    with RulesProvider(lambda request: Turn("", (("c1", "notary_count", {}),)), window=WINDOW) as provider:
        own = settings(provider.url, WINDOW, recall="on")
        own = msgspec.structs.replace(own, context=known.context, folder=known.folder)
        with running(provider.url, config=own) as gateway:
            body = {"model": "gpt-4o", "messages": [user("Hello.")], "tools": [theirs]}
            _, head, answer = gateway.post("/v1/chat/completions", body)
    names = [tool["function"]["name"] for tool in provider.requests[0].body["tools"]]
    assert names == ["notary_count", "context_search", "context_unfold", "context_timeline", "notary_read"]
    assert json.loads(answer)["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "notary_count"
    assert head["x-midfold-reason"].endswith("client tools have the same names: notary_count")


def _next(wire: str, seen: list[str]) -> Callable[[Request], Any]:
    """Return the calls of an agent's model in sequence."""

    def answer(request: Request) -> Any:
        found = re.findall(r"the first is (mf-[0-9a-f]+)", request.text)
        calls: list[Any] = [
            ("notary_count", {}),
            ("notary_read", {"handle": found[-1] if found else ""}),
            ("notary_read", {"handle": "mf-000000000000"}),
        ]
        seen.append(request.text)
        return turn(wire, "", [calls[len(seen) - 1]]) if len(seen) < 4 else turn(wire, "Done.")

    return answer


@pytest.mark.parametrize("wire", ["openai", "anthropic"])
def test_the_agent_offers_and_runs_them(wire: Any, tmp_path: Path) -> None:
    known = midfold.load_config(install(tmp_path, "notary", NOTARY)).config
    seen: list[str] = []
    with (
        ScriptedProvider(then=_next(wire, seen)) as provider,
        AgentAssembly(
            tmp_path, known, os.environ, store="memory:", window=WINDOW, summarizer=local_summarizer
        ) as workshop,
    ):
        endpoint = provider.endpoint(wire, model="scripted")
        session = workshop.session(endpoint)
        session.append(talk()[:-1])
        assert session.compact(force=True).changed
        agent = workshop.agent(session, ModelClient(endpoint), consent=agree)
        assert agent.run("What was it called?") == "Done."
        results = [
            part for message in session.history().transcript for part in message.parts if isinstance(part, ToolResult)
        ]
        notices = workshop.engine_tools.notices
    count, read, missing = results[-3:]
    assert count.text.startswith("1 handles")
    assert read.text.startswith(SAID)
    assert missing.text.startswith("error: notary_read failed: KeyError")
    tools = provider.requests[0].body["tools"]
    names = [tool.get("name") or tool["function"]["name"] for tool in tools]
    assert names[-5:] == ["notary_count", "notary_read", "context_search", "context_unfold", "context_timeline"]
    assert names.count("context_search") == 1
    assert len(notices) == 1 and '"context_search" omitted' in notices[0]
