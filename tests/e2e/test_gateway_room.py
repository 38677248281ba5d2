"""Folds of requests whose system prompt and tools take most of the window, through a real gateway."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest

import midfold
from midfold.compaction.handoff import MARKER
from midfold.decide import TIGHT
from midfold.testing import FakeClock
from midfold.testing.doubles import Request
from support.fixtures import number_lines
from support.gateways import running
from support.provider_replies import Turn
from support.rules_provider import RulesProvider

WINDOW = 65_000
FOLDS = ("compacted", "pruned", "recovered")


def steps(count: int, lines: int) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{"role": "user", "content": "Port the parser to Rust."}]
    for number in range(count):
        call = {"type": "tool_use", "id": f"t{number}", "name": "tool_0", "input": {"command": f"make {number}"}}
        text = number_lines(f"line {{n}} of step {number}: nothing special", lines)
        result = {"type": "tool_result", "tool_use_id": f"t{number}", "content": text}
        out += [{"role": "assistant", "content": [call]}, {"role": "user", "content": [result]}]
    return out


def drive(
    fixed: int, output: int, *, lines: int = 120, count: int = 61, mode: str = "hygiene"
) -> list[tuple[str, str]]:
    """Return the gateway's action and reason for each request of an agent's session, a minute apart."""
    schema = {"type": "object", "properties": {}}
    tools = [{"name": f"tool_{n}", "description": "word " * (fixed // 30), "input_schema": schema} for n in range(30)]
    clock, made = FakeClock(1_000.0), []

    def fine(request: Request) -> Turn:
        return Turn("fine")

    with (
        RulesProvider(fine, window=10_000_000) as provider,
        midfold.open("memory:", clock=clock) as sessions,
        running(provider.url, window=WINDOW, mode=mode, sessions=sessions) as gateway,
    ):
        for number in range(count):
            clock.advance(60)
            body = {"model": "claude-x", "max_tokens": output, "tools": tools, "messages": steps(number, lines)}
            status, head, _ = gateway.post("/v1/messages", body)
            assert status == 200
            made.append((head["x-midfold-action"], head.get("x-midfold-reason", "")))
    return made


def folds(made: list[tuple[str, str]]) -> list[int]:
    return [place for place, (action, _) in enumerate(made) if action in FOLDS]


@pytest.mark.parametrize("mode", ["hygiene", "manage"])
def test_a_trigger_below_what_is_fixed_does_not_fold_again_and_again(mode: str) -> None:
    made = drive(33_000, 32_000, mode=mode)
    places = folds(made)
    assert places and all(later - before >= 10 for before, later in pairwise(places))


def test_folds_leave_room_for_ten_requests_where_they_can() -> None:
    places = folds(drive(1_000, 8_000, lines=150))
    assert places and all(later - before >= 10 for before, later in pairwise(places))


def test_a_window_in_which_hardly_anything_fits_is_not_folded_but_told_with_numbers() -> None:
    made = drive(60_000, 8_000, lines=30, count=8)
    assert folds(made) == []
    assert made[-1][1].startswith(TIGHT) and "tokens are fixed, and compaction starts at 61,750" in made[-1][1]


def test_folds_that_must_follow_each_other_closely_say_so_with_numbers() -> None:
    made = drive(20_000, 32_000, count=40)
    told = {reason for action, reason in made if action in FOLDS}
    assert told and all(reason.startswith(TIGHT) and "ten requests add about" in reason for reason in told)


def one_ask(wire: str, count: int) -> dict[str, Any]:
    """Return an agent's session with a single user message, in each wire format."""
    made = steps(count, 60)
    if wire == "anthropic":
        return {"model": "claude-x", "max_tokens": 500, "system": "Be brief.", "messages": made}
    chat: list[dict[str, Any]] = [{"role": "system", "content": "Be brief."}, made[0]]
    items: list[dict[str, Any]] = [made[0]]
    for call, result in zip(made[1::2], made[2::2], strict=True):
        (used,), (told,) = call["content"], result["content"]
        function = {"name": used["name"], "arguments": "{}"}
        tool_call = {"id": used["id"], "type": "function", "function": function}
        chat.append({"role": "assistant", "content": None, "tool_calls": [tool_call]})
        chat.append({"role": "tool", "tool_call_id": used["id"], "content": told["content"]})
        items.append({"type": "function_call", "call_id": used["id"], **function})
        items.append({"type": "function_call_output", "call_id": used["id"], "output": told["content"]})
    if wire == "chat":
        return {"model": "gpt-4o", "messages": chat}
    return {"model": "gpt-4o", "instructions": "Be brief.", "input": items}


@pytest.mark.parametrize("wire", ["chat", "responses", "anthropic"])
def test_the_one_ask_of_a_session_stays_before_the_handoff_through_every_fold(wire: str) -> None:
    path = {"chat": "/v1/chat/completions", "responses": "/v1/responses", "anthropic": "/v1/messages"}[wire]

    def fine(request: Request) -> Turn:
        return Turn("fine")

    with RulesProvider(fine, window=16_000) as provider, running(provider.url, window=16_000) as gateway:
        made = [gateway.post(path, one_ask(wire, count))[1]["x-midfold-action"] for count in range(1, 70)]
    assert provider.rejected == [] and made.count("compacted") >= 3
    folded = [request for request, action in zip(provider.requests, made, strict=True) if action != "relayed"]
    openings = set()
    for request in folded:
        sent = request.body["input" if wire == "responses" else "messages"]
        first = [json.dumps(one) for one in sent if one.get("role") != "system"]
        openings.add(first[0])
        assert "Port the parser to Rust." in first[0] and MARKER not in first[0]
    assert len({one.partition('"cache_control"')[0] for one in openings}) == 1, "the ask is the same bytes every time"
