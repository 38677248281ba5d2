"""Attacks on the destination and type of a request: absolute targets, headers that choose a key, upgrades."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from midfold.config import Config
from midfold.config.schema import GatewaySettings, Key, UpstreamSettings
from midfold.gateway import create_app
from midfold.gateway.admission import hash_key, new_key
from midfold.testing import ScriptedProvider
from midfold.testing.answers import raw as raw_answer
from midfold.testing.doubles import served
from support.attacks import PROVIDERS_KEY, Listener, behind_the_door, raw, status_of
from support.gateway_soak import Process, free_port
from support.gateways import call

OWN_KEY = new_key()
NOT_PATHS = (
    "*@{place}/x",
    "*",
    "*.{place}/x",
    "http://{place}/x",
    "https://{place}/x",
    "ftp://{place}/x",
    "http://user:password@{place}/v1/models",
    "http://{place}",
    "@{place}/x",
    ":1@{place}/x",
    ".evil@{place}",
    "?@{place}/x",
    "#@{place}/x",
    "{place}",
    "/x#@{place}/",
    "/\\@{place}/x",
    "\\\\{place}/x",
    "/x y@{place}",
    "/x\ty",
    "/\x01",
    "/\x7f",
    "/\xff\xfe",
    "",
)
METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE", "HEAD", "OPTIONS", "CONNECT", "TRACE", "M-SEARCH", "SOURCE", "LINK")


def by_default(upstream: str, **more: Any) -> Config:
    return Config(gateway=GatewaySettings(upstream=upstream, api_key_env="K", routes="all", retries=0), **more)


def by_pattern(upstream: str, **more: Any) -> Config:
    rows = {"*": UpstreamSettings(base_url=upstream, api_key_env="K")}
    return Config(gateway=GatewaySettings(routes="all", retries=0), upstreams=rows, **more)


def keyless(upstream: str, **more: Any) -> Config:
    return Config(gateway=GatewaySettings(upstream=upstream, routes="all", retries=0), **more)


def request(method: str, target: str, *lines: str) -> bytes:
    head = [f"{method} {target} HTTP/1.1", "Host: 127.0.0.1", "anthropic-version: 1", *lines, "", ""]
    return "\r\n".join(head).encode("latin-1")


@pytest.mark.parametrize("with_keys", [False, True])
@pytest.mark.parametrize("configured", [by_default, by_pattern, keyless])
def test_no_target_leads_to_another_host(configured: Callable[..., Config], with_keys: bool) -> None:
    keys = {"red": Key(hash=hash_key(OWN_KEY))} if with_keys else {}
    with Listener() as upstream, Listener() as thief:
        with behind_the_door(configured(upstream.url, keys=keys)) as url:
            lines = (f"x-midfold-key: {OWN_KEY}",) if with_keys else ()
            for target in NOT_PATHS:
                answer = raw(url, request("GET", target.format(place=thief.place), *lines))
                assert (status_of(answer), target) == (400, target)
            for method in METHODS:
                answer = raw(url, request(method, f"*@{thief.place}/x", *lines))
                assert status_of(answer) in (400, 405), method
            assert (thief.heard, upstream.heard) == ([], [])
            assert status_of(raw(url, request("GET", "/v1/models", *lines))) == 200
        assert len(upstream.heard) == 1
        assert thief.heard == []


def test_the_application_alone_refuses_them_too() -> None:
    """Under a server that does not check targets."""
    with Listener() as upstream, Listener() as thief:
        with served(create_app(by_default(upstream.url), environment={"K": PROVIDERS_KEY})) as url:
            for method in METHODS:
                answer = raw(url, request(method, f"*@{thief.place}/x", "Connection: close"))
                assert status_of(answer) in (400, 405), method
            assert status_of(raw(url, request("TRACE", "/v1/models"))) == 405
            assert status_of(raw(url, request("GET", f"/x\\@{thief.place}"))) == 400
        assert (thief.heard, upstream.heard) == ([], [])


@pytest.mark.parametrize(
    "target",
    ["//{place}/x", "///{place}/x", "/@{place}/x", "/:1@{place}/x", "/..//{place}/x", "/%00", "/a/../b", "/.{place}/x"],
)
@pytest.mark.parametrize("base", ["", "/v1", "/some/path/v1"])
def test_a_path_that_looks_like_a_host_stays_a_path(target: str, base: str) -> None:
    with Listener() as upstream, Listener() as thief:
        with behind_the_door(by_default(upstream.url + base)) as url:
            asked = target.format(place=thief.place)
            assert status_of(raw(url, request("GET", asked))) == 200
        assert upstream.heard[0].startswith(f"GET {base}{asked} HTTP/1.1\r\n".encode())
        assert f"host: {upstream.place}\r\n".encode() in upstream.heard[0].lower()
        assert thief.heard == []


def test_a_redirect_is_the_clients_to_follow() -> None:
    with Listener() as thief:
        moved = f"HTTP/1.1 307 Temporary Redirect\r\nlocation: {thief.url}/x\r\ncontent-length: 0\r\n\r\n".encode()
        with Listener(moved) as upstream, behind_the_door(by_default(upstream.url)) as url:
            answer = raw(url, request("GET", "/v1/models"))
        assert (status_of(answer), f"location: {thief.url}/x".encode() in answer) == (307, True)
        assert thief.heard == []


CHOICES = [
    ("any", "auto", "/v1/models", "bearer"),
    ("any", "auto", "/v1/messages", "x-api-key"),
    ("any", "auto", "/v1/messages/count_tokens", "x-api-key"),
    ("any", "auto", "/v1/messages/batches", "x-api-key"),
    ("any", "auto", "/v1/chat/completions", "bearer"),
    ("openai", "auto", "/v1/models", "bearer"),
    ("anthropic", "auto", "/v1/models", "x-api-key"),
    ("any", "x-api-key", "/v1/models", "x-api-key"),
    ("any", "x-api-key", "/v1/chat/completions", "x-api-key"),
    ("anthropic", "bearer", "/v1/messages", "bearer"),
]


@pytest.mark.parametrize(("wire", "header", "path", "sent"), CHOICES)
def test_the_header_of_the_key_is_not_the_clients_to_choose(wire: Any, header: Any, path: str, sent: str) -> None:
    method = "GET" if path == "/v1/models" else "POST"
    with ScriptedProvider(then=raw_answer(b"{}")) as provider:
        rows = {"*": UpstreamSettings(base_url=provider.url, api_key_env="K", wire=wire, key_header=header)}
        with behind_the_door(Config(upstreams=rows)) as url:
            for more in ({}, {"anthropic_version": "2023-06-01"}, {"x_api_key": "mine"}, {"authorization": "Bearer x"}):
                body = b"" if method == "GET" else b'{"model":"m"}'
                assert call(url, method, path, body, **more)[0] == 200
    wanted = {"x-api-key": PROVIDERS_KEY} if sent == "x-api-key" else {"authorization": f"Bearer {PROVIDERS_KEY}"}
    names = ("authorization", "x-api-key")
    found = [{name: one.headers[name] for name in names if name in one.headers} for one in provider.requests]
    assert found == [wanted] * 4


OFFERS = ("h2c", "websocket", "TLS/1.0", "h2c, websocket")
BODY = b'{"model":"m","messages":[{"role":"user","content":"hello"}]}'
LENGTH = b"content-length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = (
    b"transfer-encoding: chunked\r\n\r\n5\r\n" + BODY[:5] + b"\r\n%x\r\n" % len(BODY[5:]) + BODY[5:] + b"\r\n0\r\n\r\n"
)


def offered(offer: str, rest: bytes) -> bytes:
    head = "POST /v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: Upgrade, HTTP2-Settings\r\n"
    return f"{head}Upgrade: {offer}\r\nHTTP2-Settings: AAMAAABkAAQCAAAAAAIAAAAA\r\n".encode() + rest


@pytest.mark.parametrize("rest", [LENGTH, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("offer", OFFERS)
def test_an_offered_upgrade_is_ignored_and_the_request_served(offer: str, rest: bytes) -> None:
    with ScriptedProvider(then=raw_answer(b'{"ok":1}')) as provider, behind_the_door(keyless(provider.url)) as url:
        second = b"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}"
        whole = offered(offer, rest)
        got = raw(url, whole + second, answers=2)
        assert got.count(b"HTTP/1.1 200") == 2
        middle = whole.index(b"\r\n\r\n") + 4
        for cut in (1, 30, middle - 1, middle, middle + 3, len(whole) - 1):
            got = raw(url, whole[:cut], whole[cut:] + second, answers=2)
            assert got.count(b"HTTP/1.1 200") == 2, cut
    assert [(one.path, one.raw) for one in provider.requests] == [
        ("/v1/chat/completions", BODY),
        ("/v1/embeddings", b"{}"),
    ] * 7
    assert not any({"upgrade", "http2-settings"} & set(one.headers) for one in provider.requests)


@pytest.mark.parametrize("rest", [LENGTH, CHUNKED], ids=["length", "chunked"])
@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_an_offer_on_a_connection_that_ends_is_ignored_too(version: bytes, rest: bytes) -> None:
    whole = offered("h2c", b"connection: close\r\n" + rest).replace(b"HTTP/1.1", b"HTTP/" + version, 1)
    with ScriptedProvider(then=raw_answer(b"{}")) as provider, behind_the_door(keyless(provider.url)) as url:
        for cut in (30, whole.index(b"\r\n\r\n") + 4, len(whole) - 1, len(whole)):
            got = raw(url, whole[:cut], whole[cut:] + b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n", answers=2)
            assert got.count(b"HTTP/1.1 ") == got.count(b"HTTP/1.1 200") == 1, cut
    assert [(one.path, one.raw) for one in provider.requests] == [("/v1/chat/completions", BODY)] * 4


def test_a_body_behind_an_offer_is_never_another_request() -> None:
    hidden = b"DELETE /v1/files/file-1 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
    with ScriptedProvider(then=raw_answer(b"{}")) as provider, behind_the_door(keyless(provider.url)) as url:
        head = offered("h2c", b"content-length: %d\r\n\r\n" % len(hidden))
        assert raw(url, head, hidden).count(b"HTTP/1.1") == 1
        time.sleep(0.1)
    assert [(one.path, one.raw) for one in provider.requests] == [("/v1/chat/completions", hidden)]


def test_many_offers_on_one_connection_cost_what_as_many_requests_do() -> None:
    with ScriptedProvider(then=raw_answer(b"{}")) as provider, behind_the_door(keyless(provider.url)) as url:
        one = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n"
        started = time.monotonic()
        got = raw(url, one * 2_000, answers=2_000, seconds=30)
        assert got.count(b"HTTP/1.1 200") == 2_000
        assert time.monotonic() - started < 15
    assert provider.requests == []


def test_nothing_behind_a_refused_head_is_served() -> None:
    with ScriptedProvider(then=raw_answer(b"{}")) as provider, behind_the_door(keyless(provider.url)) as url:
        after = b"GET /v1/models HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        for refused in (request("OPTIONS", "*"), request("CONNECT", "a:1"), request("GET", "http://a/")):
            got = raw(url, refused + after)
            assert got.count(b"HTTP/1.1") == 1
            assert b"connection: close" in got
    assert provider.requests == []


def test_a_process_refuses_them_and_an_address_with_a_password(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    with Listener() as upstream, Listener() as thief:
        config.write_text(f"gateway:\n  upstream: {upstream.url}\n")
        port = free_port()
        arguments = [sys.executable, "-m", "midfold", "serve", "--config", str(config), "--port", str(port)]
        process = Process([*arguments, "--store", "memory:"], port, "/healthz", tmp_path / "log")
        try:
            for target in ("*@{place}/x", "http://{place}/x", "*"):
                assert status_of(raw(process.url, request("GET", target.format(place=thief.place)))) == 400
            got = raw(process.url, offered("h2c", LENGTH))
            assert (status_of(got), got.partition(b"\r\n\r\n")[2]) == (200, b"{}")
            assert status_of(raw(process.url, request("GET", "/api/tags"))) == 200
            assert json.loads(raw(process.url, request("GET", "/api/overview")).partition(b"\r\n\r\n")[2])
        finally:
            process.stop()
        assert thief.heard == []
        assert [one.split(b" ", 2)[1] for one in upstream.heard] == [b"/v1/chat/completions", b"/api/tags"]
        assert upstream.heard[0].endswith(BODY)
    arguments += ["--upstream", "http://user:hunter2@127.0.0.1:1"]
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, "gateway.upstream" in done.stderr, "hunter2" in done.stderr) == (2, True, False)
    assert "without a user name, password or query" in done.stderr
