"""Limits of the gateway's hygiene: 85 % of the context length, and 5,000 messages."""

from __future__ import annotations

import json
from typing import Any

import pytest

import midfold
from midfold.gateway.prepare import RequestPreparer
from midfold.gateway.request_size import ClientHistory, MeasuredRequest
from midfold.transcript.document import read
from midfold.transcript.tokens import Count
from support.build import assistant, user
from support.gateways import settings

LONG = "all is well with this module. " * 100


def talk(count: int, words: str = LONG) -> list[Any]:
    return [(assistant if n % 2 else user)(f"{n}: {words}") for n in range(count)]


def measured(preparer: RequestPreparer, messages: list[Any], reported: int) -> MeasuredRequest:
    body = json.dumps({"model": "m", "messages": messages}).encode()
    conversation = ClientHistory(read(body, dialect="openai-chat"))
    found = preparer.measurer.look_up(conversation, conversation.name, preparer.policy.limits("m", 0))
    return found._replace(size=Count(reported, "reported"))


@pytest.mark.parametrize("window", [20_000, 200_000, 1_000_001])
def test_the_safety_net_fires_at_85_percent_of_the_context_length(window: int) -> None:
    with midfold.open("memory:") as sessions:
        preparer = RequestPreparer(settings("http://127.0.0.1:1", window=window), sessions)
        trigger = window * 85 // 100
        for tokens, fires in ((trigger - 1, False), (trigger, True), (window, True)):
            assert preparer.must_fold(measured(preparer, talk(9), tokens)) is fires


def test_5000_messages_are_folded_whatever_their_size() -> None:
    with midfold.open("memory:") as sessions:
        preparer = RequestPreparer(settings("http://127.0.0.1:1", window=1_000_000), sessions)
        for count, fires in ((4_999, False), (5_000, True)):
            assert preparer.must_fold(measured(preparer, talk(count, "ok"), 100)) is fires
