"""The gateway as a relay: any bytes are relayed unchanged, without other effects."""

from __future__ import annotations

import gzip
import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

import pytest

from midfold.config import Config
from midfold.config.schema import GatewaySettings, UpstreamSettings
from midfold.errors import ConfigError
from midfold.gateway import create_app
from midfold.testing.answers import Answer, anthropic_stream, error, openai_json, openai_stream, raw, value
from midfold.testing.doubles import Request, ScriptedProvider, refusing_url, served
from support.gateways import call, running, settings

ODD = (
    b'{ "model" : "gpt-4o",\n "temperature": 1e-7, "n": 1.0, "u": "\\u00e9\\/", '
    b'"messages":[{"role":"user","content":"hi"} ], "x_vendor": {"a": [1,2]} }'
)
ROUTES = ["/v1/chat/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/files/abc%20d"]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("mode", ["hygiene", "passthrough"])
def test_a_request_arrives_byte_for_byte_and_so_does_its_answer(path: str, mode: str) -> None:
    reply = b'{ "ok" : 1e-7,\n "e": "\\u00e9" }'
    with (
        ScriptedProvider([raw(reply).with_headers(x_request_id="req-1")]) as provider,
        running(provider.url, mode=mode) as gateway,
    ):
        status, headers, body = gateway.post(f"{path}?beta=true&x=%20", ODD, authorization="Bearer k", x_odd="1")
        seen = provider.requests[0]
    assert (status, body, headers["x-request-id"]) == (200, reply, "req-1")
    assert (seen.raw, seen.path) == (ODD, f"{path}?beta=true&x=%20")
    assert (seen.headers["authorization"], seen.headers["x-odd"]) == ("Bearer k", "1")
    assert not [name for name in seen.headers if name.startswith("x-midfold")]


def test_headers_nobody_sent_are_not_invented_and_hop_by_hop_ones_end_here() -> None:
    with ScriptedProvider([raw(b"{}")]) as provider, running(provider.url) as gateway:
        gateway.post("/v1/messages", b"{}", connection="close, x-secret-hop", x_secret_hop="1", te="trailers")
        seen = provider.requests[0].headers
    assert set(seen) == {"host", "content-length", "accept-encoding"}
    assert seen["host"] == urlsplit(provider.url).netloc


@pytest.mark.parametrize("answer", [openai_stream("a long text " * 40), anthropic_stream("a long text " * 40)])
def test_streams_pass_as_they_are_and_usage_is_read_beside_them(answer: Answer) -> None:
    path = "/v1/messages" if b"message_start" in answer.body else "/v1/chat/completions"
    with ScriptedProvider([answer]) as provider, running(provider.url) as gateway:
        status, headers, body = gateway.post(path, {"model": "m", "stream": True, "messages": []})
    assert (status, body, headers["content-type"]) == (200, answer.body, "text/event-stream")
    usage = gateway.accounts[0].usage
    assert usage is not None and (usage.prompt_tokens, usage.completion_tokens) == (1_000, 100)


def test_the_first_piece_of_a_stream_arrives_before_the_last_is_sent() -> None:
    slow = openai_stream("word " * 20).slow(0.15)
    with ScriptedProvider([slow]) as provider, running(provider.url) as gateway:
        place = urlsplit(gateway.url)
        with socket.create_connection((place.hostname, place.port)) as client:
            started = time.monotonic()
            client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
            while b"data:" not in client.recv(4096):
                pass
            first = time.monotonic() - started
            while b"[DONE]" not in client.recv(65536):
                pass
            assert first < (time.monotonic() - started) / 2


def test_compressed_answers_stay_compressed_and_are_still_read() -> None:
    packed = gzip.compress(json.dumps({"choices": [], "usage": {"prompt_tokens": 77, "completion_tokens": 3}}).encode())
    with (
        ScriptedProvider([raw(packed).with_headers(content_encoding="gzip")]) as provider,
        running(provider.url) as gateway,
    ):
        _, headers, body = gateway.post("/v1/chat/completions", b"{}", accept_encoding="br, zstd, gzip;q=0.5")
        assert provider.requests[0].headers["accept-encoding"] == "gzip;q=0.5"
    assert (headers["content-encoding"], body) == ("gzip", packed)
    assert gateway.accounts[0].usage is not None and gateway.accounts[0].usage.prompt_tokens == 77


@pytest.mark.parametrize("status", [400, 401, 404, 413, 429, 500, 503, 529])
def test_errors_of_the_upstream_reach_the_client_unchanged(status: int) -> None:
    answer = error(status, "no", "some_error", headers={"retry-after": "7"})
    with ScriptedProvider([answer]) as provider, running(provider.url) as gateway:
        found, headers, body = gateway.post("/v1/messages", {"model": "m", "messages": []})
    assert (found, body, headers["retry-after"]) == (status, answer.body, "7")


def test_an_upstream_that_nobody_runs_is_an_error_in_the_shape_of_the_wire() -> None:
    with running(refusing_url(), retries=1) as gateway:
        status, _, body = gateway.post("/v1/messages", {"model": "m"})
        assert (status, json.loads(body)["error"]["type"]) == (502, "api_error")
        status, _, body = gateway.post("/v1/chat/completions", {"model": "m"})
        assert (status, json.loads(body)["error"]["code"]) == (502, "upstream_unreachable")


def test_a_silent_upstream_times_out_once() -> None:
    with ScriptedProvider([openai_json("late").slow(3)]) as provider, running(provider.url, timeout=0.3) as gateway:
        assert gateway.post("/v1/chat/completions", b"{}")[0] == 504
        assert len(provider.requests) == 1


@contextmanager
def breaking(times: int, answer: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Run a server that closes the first connections without a response."""
    listener = socket.create_server(("127.0.0.1", 0))
    seen: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                seen.append(connection.recv(65536))
                if len(seen) > times:
                    connection.sendall(answer)

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        listener.close()


def test_a_connection_that_breaks_before_the_first_byte_is_tried_again_and_after_it_never() -> None:
    good = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
    with breaking(2, good) as (url, seen), running(url, retries=2) as gateway:
        assert gateway.post("/v1/chat/completions", b"{}")[2] == b"ok"
        assert len(seen) == 3
    half = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf"
    with breaking(0, half) as (url, seen), running(url, retries=2) as gateway:
        with pytest.raises(Exception, match=r"IncompleteRead|reset"):
            gateway.post("/v1/chat/completions", b"{}")
        assert len(seen) == 1


def test_a_client_that_goes_away_cancels_the_upstream() -> None:
    gone = threading.Event()

    def endless() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            try:
                for _ in range(500):
                    connection.sendall(b"6\r\ndata: \r\n")
                    time.sleep(0.01)
            except OSError:
                gone.set()

    listener = socket.create_server(("127.0.0.1", 0))
    threading.Thread(target=endless, daemon=True).start()
    with listener, running(f"http://127.0.0.1:{listener.getsockname()[1]}") as gateway:
        place = urlsplit(gateway.url)
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
            assert client.recv(100)
        assert gone.wait(3)
    assert gateway.accounts[0].action == "cancelled"


def test_a_client_that_goes_away_before_the_first_byte_cancels_too() -> None:
    with ScriptedProvider([openai_json("late").slow(5)]) as provider, running(provider.url) as gateway:
        place = urlsplit(gateway.url)
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(b"POST /v1/messages HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
            while not provider.requests:
                time.sleep(0.01)
        ends = time.monotonic() + 3
        while not gateway.accounts and time.monotonic() < ends:
            time.sleep(0.01)
        assert gateway.accounts[0].action == "cancelled"


def test_a_body_that_is_too_large_is_refused_in_the_shape_of_the_wire() -> None:
    with ScriptedProvider() as provider, running(provider.url, largest_body=1_000) as gateway:
        status, _, body = gateway.post("/v1/messages", b"x" * 1_001)
        assert (status, json.loads(body)["error"]["type"]) == (413, "request_too_large")
        assert provider.requests == []


def test_files_pass_through_without_being_kept_whatever_their_size() -> None:
    with ScriptedProvider(then=raw(b"stored")) as provider, running(provider.url, largest_body=10_000) as gateway:
        big = b"x" * 3_000_000
        status, _, answer = gateway.post("/v1/files?a=b", big, content_type="multipart/form-data")
    assert (status, answer) == (200, b"stored")
    seen = provider.requests[0]
    assert (seen.raw == big, seen.path, seen.headers["content-length"]) == (True, "/v1/files?a=b", "3000000")
    assert gateway.accounts[0].received == len(big)


def test_upstreams_by_model_with_keys_of_their_own() -> None:
    def told(request: Request) -> Answer:
        return value({"key": request.headers.get("x-api-key") or request.headers.get("authorization")})

    with ScriptedProvider(then=told) as first, ScriptedProvider(then=told) as second:
        config = Config(
            gateway=GatewaySettings(upstream=first.url),
            upstreams={
                "claude-*": UpstreamSettings(base_url=second.url, api_key_env="A_KEY", wire="anthropic"),
                "lab-*": UpstreamSettings(base_url=f"{second.url}/v1", wire="openai"),
            },
        )
        app_config = {"A_KEY": "secret-a"}
        with served(create_app(config, environment=app_config)) as url:
            sent = call(url, "POST", "/v1/messages", {"model": "claude-x"}, authorization="Bearer mine")
            assert json.loads(sent[2]) == {"key": "secret-a"}
            assert "authorization" not in second.requests[0].headers
            sent = call(url, "POST", "/v1/chat/completions", {"model": "lab-1"}, authorization="Bearer mine")
            assert json.loads(sent[2]) == {"key": "Bearer mine"}
            assert second.requests[1].path == "/v1/chat/completions"
            call(url, "POST", "/v1/chat/completions", {"model": "gpt-4o"})
            assert len(first.requests) == 1


def test_a_configured_key_is_sent_as_the_configuration_says_whatever_the_client_sends() -> None:
    with ScriptedProvider(then=raw(b"{}")) as provider:
        config = Config(gateway=GatewaySettings(upstream=provider.url, api_key_env="K"))
        with served(create_app(config, environment={"K": "own"})) as url:
            call(url, "GET", "/v1/models", anthropic_version="2023-06-01", x_api_key="theirs")
            call(url, "GET", "/v1/models", authorization="Bearer theirs")
    for sent in (request.headers for request in provider.requests):
        assert (sent["authorization"], "x-api-key" in sent) == ("Bearer own", False)


def test_models_of_several_upstreams_are_joined_and_one_is_passed_through() -> None:
    def listing(*names: str) -> Answer:
        return value({"object": "list", "data": [{"id": name} for name in names]})

    with ScriptedProvider(then=listing("a", "b")) as first, ScriptedProvider(then=listing("b", "c")) as second:
        with running(first.url) as gateway:
            assert call(gateway.url, "GET", "/v1/models")[2] == listing("a", "b").body
        config = Config(
            gateway=GatewaySettings(upstream=first.url),
            upstreams={"c*": UpstreamSettings(base_url=second.url, api_key_env="K")},
        )
        with served(create_app(config, environment={"K": "k"})) as url:
            joined = json.loads(call(url, "GET", "/v1/models")[2])
    assert [item["id"] for item in joined["data"]] == ["a", "b", "c"]


def test_health_is_the_gateways_own_and_everything_else_is_passed_through() -> None:
    with ScriptedProvider([raw(b"there")]) as provider, running(provider.url) as gateway:
        assert json.loads(call(gateway.url, "GET", "/healthz")[2]) == {"status": "ok", "mode": "hygiene"}
        assert call(gateway.url, "GET", "/v1/files/1")[2] == b"there"
        assert [request.path for request in provider.requests] == ["/v1/files/1"]


def test_without_an_upstream_it_does_not_start_and_says_what_to_do() -> None:
    with pytest.raises(ConfigError, match="--upstream"):
        create_app(settings(None))
    with pytest.raises(ConfigError, match="environment variable NO_SUCH is not set"):
        create_app(settings("http://h", api_key_env="NO_SUCH"), environment={})
