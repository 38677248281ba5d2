"""Session names come from what clients send; lists show the beginning of the first user message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold.cli.options import full_name
from midfold.pages.lookup import Lookup
from midfold.testing.answers import anthropic_json, openai_json, raw
from midfold.testing.doubles import Request, ScriptedProvider
from support.fixtures import assistant, number_lines, user
from support.gateways import running

WINDOW = 16_000
ID = "0b7e9c1d-52aa-4c0e-9a51-7d3f6e2b1c44"
REMINDER = "<system-reminder>\nBe careful.\n</system-reminder>\n"


def story(ask: str) -> list[dict[str, Any]]:
    said = number_lines("sentence {n} of a story that has no end, and no tool in it", 20)
    turns = [turn for n in range(40) for turn in (assistant(f"{n}: {said}"), user(f"{n}? {said}"))]
    return [user(REMINDER + ask), *turns]


def ok(request: Request) -> Any:
    return anthropic_json("fine") if "messages" in request.path else openai_json("fine")


@pytest.mark.parametrize(
    ("headers", "metadata", "label"),
    [
        ({"x_claude_code_session_id": ID}, None, f"claude-code-{ID}"),
        ({}, {"user_id": f"user_0123_account__session_{ID}"}, f"claude-code-{ID}"),
        ({}, {"user_id": json.dumps({"device_id": "d", "session_id": ID})}, f"claude-code-{ID}"),
        ({"session-id": ID, "thread-id": "other"}, None, f"codex-{ID}"),
        ({"session_id": ID}, None, f"codex-{ID}"),
        ({"x-opencode-session": "ses_41b2"}, None, "opencode-ses_41b2"),
        ({"x_claude_code_session_id": "../../etc"}, None, ""),
        ({"x_claude_code_session_id": "x" * 65}, {"user_id": 7}, ""),
    ],
)
def test_sessions_are_named_by_what_clients_send(headers: dict[str, str], metadata: Any, label: str) -> None:
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        body = {"model": "claude-x", "max_tokens": 9, "messages": story("Port the parser to Rust.")}
        body |= {"metadata": metadata} if metadata is not None else {}
        _, head, _ = gateway.post("/v1/messages", body, **headers)
        name = head["x-midfold-session"]
        assert name.startswith(f"gw-{label}-" if label else "gw-") and (label or len(name) == 27)
        other = {**body, "messages": story("Write a lexer.")}
        assert gateway.post("/v1/messages", other, **headers)[1]["x-midfold-session"] != name, "a sub-agent's own"
        assert gateway.post("/v1/messages", body, **headers)[1]["x-midfold-action"] == "checkpoint"
        info = gateway.sessions.store.must(name)
        assert gateway.sessions.title(info) == "Port the parser to Rust."
        if ID in label:
            with pytest.raises(Exception, match="matches 2 sessions"):
                full_name(gateway.sessions, ID[:13])


def test_pages_list_sessions_by_their_first_words() -> None:
    with ScriptedProvider(then=ok) as provider, running(provider.url, window=WINDOW) as gateway:
        gateway.post(
            "/v1/messages",
            {"model": "claude-x", "max_tokens": 9, "messages": story("Port the parser to Rust.")},
            x_claude_code_session_id=ID,
        )
        (facts,) = Lookup(gateway.sessions).overview(lambda info: True).sessions
        assert facts.title == "Port the parser to Rust." and ID in facts.name


def test_what_is_under_api_and_not_ours_is_the_providers() -> None:
    from midfold.cli.serve import OWN_PATHS
    from midfold.gateway.app import create_app
    from midfold.gateway.server import LateRoutes
    from midfold.testing.doubles import served
    from support.gateways import call, settings

    with ScriptedProvider(then=raw(b'{"models":[]}')) as provider:
        app = create_app(settings(provider.url), environment={}, later=LateRoutes(OWN_PATHS, lambda: []))
        with served(app) as url:
            assert call(url, "GET", "/api/tags")[2] == b'{"models":[]}'
            assert call(url, "GET", "/api/sessions")[0] == 404, "ours"
    assert [request.path for request in provider.requests] == ["/api/tags"]
