"""Exceptions of a caller's summarizer are classified like built-in failures, including those of the real SDKs."""

from __future__ import annotations

import asyncio
import urllib.error
from email.message import Message
from email.utils import formatdate
from typing import Any

import anthropic
import httpx
import openai
import pytest

import midfold
from midfold.compaction.receipt import FAILURES, KEEPS_HISTORY
from midfold.errors import ModelFailed
from midfold.testing import FakeClock
from midfold.testing.engines import long_conversation

MESSAGES = long_conversation("openai-chat", 14)
WINDOW, START = 20_000, 1_700_000_000.0
ASKED = httpx.Request("POST", "http://127.0.0.1/v1/messages")
TOO_LONG = {"error": {"message": "prompt is too long: 210000 tokens > 200000 maximum"}}
NO_QUOTA = {"error": {"code": "insufficient_quota", "message": "You exceeded your current quota"}}


def refused(kind: Any, status: int, body: Any = None, **headers: str) -> Exception:
    answer = httpx.Response(status, headers=headers, request=ASKED, json=body or {"error": {"message": "no"}})
    error: Exception = kind("no", response=answer, body=body)
    return error


def of_sdk(sdk: Any) -> list[tuple[Exception, str, float]]:
    date = formatdate(START + 900, usegmt=True)
    return [
        (refused(sdk.AuthenticationError, 401), "auth", 300),
        (refused(sdk.PermissionDeniedError, 403), "auth", 300),
        (refused(sdk.NotFoundError, 404), "model_not_found", 600),
        (refused(sdk.RateLimitError, 429), "rate_limit", 60),
        (refused(sdk.RateLimitError, 429, **{"retry-after": "120"}), "rate_limit", 120),
        (refused(sdk.RateLimitError, 429, **{"retry-after": date}), "rate_limit", 900),
        (refused(sdk.RateLimitError, 429, NO_QUOTA), "auth", 300),
        (refused(sdk.InternalServerError, 529), "unavailable", 60),
        (refused(sdk.BadRequestError, 400, TOO_LONG), "overflow", 60),
        (sdk.APIConnectionError(request=ASKED), "network", 30),
        (sdk.APITimeoutError(request=ASKED), "timeout", 60),
    ]


def caused(cause: Exception) -> Exception:
    error = RuntimeError("the summary went wrong")
    error.__cause__ = cause
    return error


OTHERS: list[tuple[Exception, str, float]] = [
    (ConnectionError("down"), "network", 30),
    (ConnectionRefusedError(), "network", 30),
    (OSError("no route to host"), "network", 30),
    (TimeoutError(), "timeout", 60),
    (PermissionError("not yours"), "auth", 300),
    (httpx.ConnectError("refused"), "network", 30),
    (httpx.ReadTimeout("slow"), "timeout", 60),
    (httpx.HTTPStatusError("no", request=ASKED, response=httpx.Response(401, request=ASKED)), "auth", 300),
    (urllib.error.HTTPError("http://127.0.0.1", 403, "Forbidden", Message(), None), "auth", 300),
    (ModelFailed("rate_limit", retry_after=77), "rate_limit", 77),
    (caused(refused(openai.AuthenticationError, 401)), "auth", 300),
    (ValueError("401 is only a word here"), "other", 30),
]
CASES = [*of_sdk(openai), *of_sdk(anthropic), *OTHERS]


class Raising:
    """Summarizer with a sync and an async interface."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __call__(self, ask: midfold.SummaryRequest) -> str:
        raise self.error

    async def later(self, ask: midfold.SummaryRequest) -> str:
        raise self.error


@pytest.mark.parametrize(("error", "kind", "pause"), CASES, ids=lambda case: type(case).__name__)
def test_a_failure_of_the_callers_summarizer_has_the_kind_and_the_pause_of_the_table(
    error: Exception, kind: Any, pause: float
) -> None:
    clock = FakeClock(START)
    result = midfold.compact(MESSAGES, context_length=WINDOW, summarizer=Raising(error), clock=clock)
    host = midfold.EngineHost(context_length=WINDOW, summarizer=Raising(error), clock=clock)
    awaited = asyncio.run(host.compress_async(MESSAGES))
    assert host.last is not None
    for receipt, state in ((result.receipt, result.state), (host.last, host.state)):
        facts = receipt.summary
        assert (facts.failure, facts.cooldown, state.cooldown_until) == (kind, pause, START + pause)
        assert facts.retry_class == FAILURES[kind].retry_class
        assert (receipt.status == "aborted") is (kind in KEEPS_HISTORY)
    assert (result.messages is MESSAGES) is (awaited is MESSAGES) is (kind in KEEPS_HISTORY)


def test_what_a_client_raises_is_in_no_receipt() -> None:
    error = refused(openai.AuthenticationError, 401, {"error": {"message": "wrong key: swordfish"}})
    receipt = midfold.compact(MESSAGES, context_length=WINDOW, summarizer=Raising(error)).receipt
    assert "swordfish" not in str(receipt.to_dict())
