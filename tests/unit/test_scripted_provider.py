"""The scripted provider follows its script, and detects requests beyond its end."""

from __future__ import annotations

import socket
import urllib.error
import urllib.request
from http.client import IncompleteRead
from typing import Any

import pytest

from midfold import testing
from midfold.testing import Request, ScriptedProvider, ScriptEnded, refusing_url
from midfold.testing.answers import empty, openai_json, openai_stream, page, raw, value
from midfold.testing.doubles import http_date


def post(url: str, body: bytes = b'{"a": 1}', **headers: str) -> Any:
    return urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=5)


def test_answers_come_in_order_and_requests_are_recorded() -> None:
    with ScriptedProvider([value({"first": 1}), page(503)]) as provider:
        assert provider.left == 2
        with post(f"{provider.url}/v1/x?y=1", Authorization="Bearer none") as answer:
            assert answer.read() == b'{"first":1}'
            assert answer.headers["content-type"] == "application/json"
        with pytest.raises(urllib.error.HTTPError) as failed:
            post(provider.url, b"no json")
        failed.value.close()
        assert failed.value.code == 503
    first, second = provider.requests
    assert (first.method, first.path, first.body, first.headers["authorization"]) == (
        "POST", "/v1/x?y=1", {"a": 1}, "Bearer none",
    )  # fmt: skip
    assert (second.body, second.text) == (None, "no json")
    assert provider.left == 0


def test_a_function_answers_what_it_is_asked() -> None:
    def echo(request: Request) -> Any:
        return raw(request.raw[::-1])

    with ScriptedProvider(then=echo) as provider:
        for word in (b"abc", b"xyz"):
            with post(provider.url, word) as answer:
                assert answer.read() == word[::-1]


def test_one_request_too_many_is_a_mistake_of_the_test() -> None:
    with pytest.raises(ScriptEnded, match="got 2 requests; the script has 1"), ScriptedProvider([empty()]) as provider:
        post(provider.url).close()
        with pytest.raises(urllib.error.HTTPError) as failed:
            post(provider.url)
        failed.value.close()


def test_pieces_cuts_and_resets() -> None:
    whole = openai_stream("some text")
    assert whole.in_pieces(3).body == whole.body
    assert whole.cut(0.5).body == whole.body[: len(whole.body) // 2]
    with ScriptedProvider([openai_json("x").reset(0.5), openai_json("x").half_closed(0.5)]) as provider:
        for _ in range(2):
            with pytest.raises((OSError, IncompleteRead)), post(provider.url) as answer:
                answer.read()


def test_an_address_where_nobody_listens() -> None:
    host, _, port = refusing_url().rpartition("//")[2].partition(":")
    with socket.socket() as client, pytest.raises(ConnectionRefusedError):
        client.connect((host, int(port)))


def test_dates_are_written_as_headers_have_them() -> None:
    assert http_date(0) == "Thu, 01 Jan 1970 00:00:00 GMT"


def test_the_testing_room_exports_exactly_these_names() -> None:
    names = "FakeClock Request ScriptEnded ScriptedProvider ScriptedSummarizer refusing_url served"
    assert sorted(testing.__all__) == names.split()
