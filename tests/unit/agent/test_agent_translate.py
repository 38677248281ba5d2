"""A conversation continues on another wire format: a strict provider accepts it, and nothing is lost."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from midfold.agent import AgentAssembly
from midfold.agent.events import agree
from midfold.agent.shapes import render_message, translate_message
from midfold.config import Config
from midfold.model import local_summarizer
from midfold.model.endpoint import Endpoint
from midfold.testing.doubles import Request
from midfold.transcript.document import DIALECTS
from midfold.transcript.laws import violations
from midfold.transcript.message import Message
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

CHAT, ANTHROPIC = DIALECTS["openai-chat"], DIALECTS["anthropic"]


def thinking_and_reading(request: Request) -> Turn:
    """Read a file twice in parallel for every user message, then answer."""
    last = str(request.body["messages"][-1])
    if "[exit 0]" in last or "line 1" in last:
        return Turn("It says line 1.", thinking="so it is" if "/messages" in request.path else "")
    number = len(str(request.body["messages"]))
    calls = [(f"call_{number}a", "read_file", {"path": "a.txt"}), (f"call_{number}b", "shell", {"command": "ls"})]
    return Turn("I look.", calls=calls, thinking="I must look" if "/messages" in request.path else "")


def endpoint(provider: RulesProvider, wire: Any) -> Endpoint:
    base = f"{provider.url}/v1" if wire == "openai" else provider.url
    return Endpoint(name="rules", wire=wire, base_url=base, model=f"{wire}-model", key="k")


@pytest.mark.parametrize(("first", "second"), [("openai", "anthropic"), ("anthropic", "openai")])
def test_a_session_goes_on_over_the_other_wire_and_back(first: Any, second: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line 1\nline 2\n" + "words\n" * 1_500)
    model: Callable[[Request], Turn] = thinking_and_reading
    with (
        RulesProvider(model, window=60_000) as provider,
        AgentAssembly(tmp_path, Config(), os.environ, store="memory:", summarizer=local_summarizer) as workshop,
    ):
        name = None
        for number, wire in enumerate((first, second, second, first)):
            session = workshop.session(endpoint(provider, wire), name)
            agent = workshop.agent(session, endpoint(provider, wire), consent=agree)
            assert agent.run(f"Question {number}: what does the file say?") == "It says line 1."
            name = session.name
            if number == 1:
                assert session.compact(force=True, keep_last_exchanges=1).changed
        assert provider.rejected == []
        info = session.info
        assert info is not None
        assert info.dialect == ("openai-chat" if first == "openai" else "anthropic")
        assert [served.wire for served in provider.served] == [
            {"openai": "chat", "anthropic": "anthropic"}[wire] for wire in (first, second, second, first) for _ in "ab"
        ]
        assert not violations(session.view().transcript)
        assert "Question 0" in session.history().transcript[0].text
        assert session.search("Question 2")


def test_the_same_message_is_rendered_to_the_same_bytes_at_every_request(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("line 1\n")
    with (
        RulesProvider(thinking_and_reading, window=60_000) as provider,
        AgentAssembly(tmp_path, Config(), os.environ, store="memory:") as workshop,
    ):
        session = workshop.session(endpoint(provider, "anthropic"))
        workshop.agent(session, endpoint(provider, "anthropic"), consent=agree).run("One?")
        session = workshop.session(endpoint(provider, "openai"), session.name)
        agent = workshop.agent(session, endpoint(provider, "openai"), consent=agree)
        for question in ("Two?", "Three?"):
            agent.run(question)
    chats = [request.body["messages"] for request in provider.requests if "chat" in request.path]
    for before, after in pairwise(chats):
        assert after[: len(before)] == before
    assert "I must look" not in str(chats)


def test_results_of_one_message_become_messages_before_what_was_said_with_them() -> None:
    value = {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "one", "is_error": True},
            {"type": "tool_result", "tool_use_id": "b", "content": [{"type": "text", "text": "two"}]},
            {"type": "text", "text": "and a word"},
        ],
    }
    assert render_message(Message.over(value, ANTHROPIC.read), "openai-chat") == [
        {"role": "tool", "tool_call_id": "a", "content": "one"},
        {"role": "tool", "tool_call_id": "b", "content": "two"},
        {"role": "user", "content": "and a word"},
    ]


def test_calls_pictures_and_what_no_other_wire_carries() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "shell", "arguments": '{"command": "ls"}'}}
    asked = {"role": "assistant", "content": None, "reasoning_content": "hm", "tool_calls": [call]}
    assert translate_message(asked, "openai-chat", "anthropic") == [
        {
            "role": "assistant",
            "content": [{"type": "tool_use", "id": "c1", "name": "shell", "input": {"command": "ls"}}],
        }
    ]
    assert translate_message(asked, "openai-chat", "openai-chat") == [asked]
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}
    (shown,) = translate_message({"role": "user", "content": [picture]}, "anthropic", "openai-chat")
    assert shown["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}]
    only_thought = {"role": "assistant", "content": [{"type": "thinking", "thinking": "hm", "signature": "s"}]}
    assert translate_message(only_thought, "anthropic", "openai-chat") == [{"role": "assistant", "content": ""}]
    assert render_message(Message.over({"role": "assistant", "content": ""}, CHAT.read), "anthropic")[0]["content"]
