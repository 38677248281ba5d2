"""Attacks from web pages in a local browser against the gateway as `midfold serve` runs it.

Browsers set `Host`, `Origin` and `Sec-Fetch-*` truthfully; the same requests are sent here over a socket.
"""

from __future__ import annotations

import base64
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from midfold.gateway.admission import hash_key, new_key
from midfold.gateway.browsers import AdmissionRefused, Browsers
from support.gateway_soak import MODEL, Process, gateway, upstream

BODY = b'{"model":"' + MODEL.encode() + b'","messages":[{"role":"user","content":"S1. T1 spend"}]}'
KEY = new_key()
BASIC = b"authorization: Basic " + base64.b64encode(b"me:" + KEY.encode())
EVIL = b"origin: https://evil.example"
FORM = (EVIL, b"sec-fetch-site: cross-site", b"sec-fetch-mode: navigate", b"content-type: text/plain")


class Door:
    """Gateway, and a provider that must not receive refused requests."""

    def __init__(self, process: Process, provider: Process) -> None:
        self.process, self.provider = process, provider
        self.port = int(process.url.rpartition(":")[2])

    def say(self, line: bytes, *headers: bytes, host: bytes | None = b"127.0.0.1", body: bytes = b"") -> bytes:
        named = [] if host is None else [b"host: " + host]
        lines = [line + b" HTTP/1.1", *named, b"content-length: %d" % len(body), b"connection: close", *headers]
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(b"\r\n".join(lines) + b"\r\n\r\n" + body)
            answer = b""
            while piece := connection.recv(65_536):
                answer += piece
            return answer

    def post(self, *headers: bytes, host: bytes | None = b"127.0.0.1") -> bytes:
        return self.say(b"POST /v1/chat/completions", *headers, host=host, body=BODY)

    @property
    def asked(self) -> int:
        import httpx2

        tally: dict[str, Any] = httpx2.get(self.provider.url + "/soak", timeout=20).json()["tally"]
        return sum(tally.values())


def door(folder: Path, lines: str) -> Iterator[Door]:
    provider = upstream(folder / "upstream.log", "good")
    config = folder / "config.yaml"
    config.write_text(lines)
    process = gateway(config, provider.url, f"sqlite:///{folder}/s.db", folder / "gateway.log")
    yield Door(process, provider)
    process.stop()
    provider.stop()


@pytest.fixture(scope="module")
def keyed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    origins = 'gateway:\n  origins: [https://chat.example, "vscode-webview://*"]\n'
    lines = f'{origins}keys:\n  me:\n    hash: "{hash_key(KEY)}"\n'
    yield from door(tmp_path_factory.mktemp("keyed"), lines)


@pytest.fixture(scope="module")
def keyless(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Door]:
    yield from door(
        tmp_path_factory.mktemp("keyless"), "gateway:\n  hosts: [gw.example:8443]\n  origins: [http://localhost:5173]\n"
    )


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


@pytest.mark.parametrize(
    "given",
    [
        FORM,
        (b"origin: null",),
        (b"origin: http://localhost:3000",),
        (b"origin: https://evil.example/127.0.0.1",),
        (b"origin: https://chat.example.evil.example",),
        (b"origin: https://chat.example", EVIL),
        (b"origin: " + b"https://chat.example" + b"x" * 5_000,),
        (b"sec-fetch-site: cross-site", b"sec-fetch-mode: no-cors"),
        (b"sec-fetch-site: same-site", b"sec-fetch-mode: no-cors"),
    ],
)
def test_with_keys_a_foreign_page_spends_nothing_though_the_browser_adds_the_key(
    keyed: Door, given: tuple[bytes, ...]
) -> None:
    before = keyed.asked
    answer = keyed.post(BASIC, *given)
    assert status(answer) == 403
    assert b"gateway.origins" in answer
    assert keyed.asked == before


def test_with_keys_the_pages_themselves_listed_pages_and_programs_are_served(keyed: Door) -> None:
    own = b"origin: http://127.0.0.1"
    assert status(keyed.post(BASIC, own, b"sec-fetch-site: same-origin")) == 200
    assert status(keyed.post(BASIC)) == 200
    for listed in (b"https://chat.example", b"vscode-webview://1a2b3c"):
        answer = keyed.post(BASIC, b"origin: " + listed, b"sec-fetch-site: cross-site", b"sec-fetch-mode: cors")
        assert status(answer) == 200
        assert b"access-control-allow-origin: " + listed in answer
    assert b"access-control" not in keyed.post(BASIC)
    refused = keyed.post(b"origin: https://chat.example", b"x-midfold-key: wrong")
    assert status(refused) == 401 and b"access-control-allow-origin: https://chat.example" in refused


def test_a_listed_page_may_ask_first_without_the_key_and_no_other_may(keyed: Door) -> None:
    asks = (b"access-control-request-method: POST", b"access-control-request-headers: x-midfold-key")
    before = keyed.asked
    answer = keyed.say(b"OPTIONS /v1/messages", b"origin: https://chat.example", *asks)
    assert status(answer) == 204
    assert b"access-control-allow-headers: x-midfold-key" in answer
    assert status(keyed.say(b"OPTIONS /v1/messages", EVIL, *asks)) == 403
    assert keyed.asked == before


def test_following_a_link_to_a_page_is_allowed_and_reading_it_from_another_page_is_not(keyed: Door) -> None:
    link = (b"sec-fetch-site: cross-site", b"sec-fetch-mode: navigate", b"sec-fetch-dest: document")
    assert status(keyed.say(b"GET /", BASIC, *link)) == 200
    assert status(keyed.say(b"GET /api/sessions", BASIC, b"sec-fetch-site: cross-site", b"sec-fetch-mode: cors")) == 403
    assert status(keyed.say(b"GET /api/sessions", BASIC, EVIL)) == 403


@pytest.mark.parametrize("path", [b"POST /v1/chat/completions", b"GET /metrics", b"GET /", b"GET /v1/models"])
@pytest.mark.parametrize("host", [b"evil.example", b"evil.example:8787", b"127.0.0.1.evil.example", b"", None])
def test_without_keys_a_foreign_name_that_leads_here_gets_nothing(
    keyless: Door, path: bytes, host: bytes | None
) -> None:
    before = keyless.asked
    answer = keyless.say(path, host=host, body=BODY if path.startswith(b"POST") else b"")
    assert status(answer) == 421
    assert b"gateway.hosts" in answer
    assert keyless.asked == before


def test_two_names_are_none(keyless: Door) -> None:
    assert status(keyless.post(b"host: 127.0.0.1")) in (400, 421)


@pytest.mark.parametrize("host", [b"127.0.0.1:1", b"LOCALHOST", b"[::1]:8787", b"gw.example", b"GW.example:443"])
def test_without_keys_this_machines_names_and_those_of_the_settings_are_served(keyless: Door, host: bytes) -> None:
    assert status(keyless.post(host=host)) == 200
    assert status(keyless.say(b"GET /metrics", host=host)) == 200
    assert status(keyless.say(b"GET /", host=host)) == 200


def test_whether_it_lives_may_be_asked_by_any_name(keyless: Door) -> None:
    assert status(keyless.say(b"GET /healthz", host=b"balancer.internal")) == 200


@pytest.mark.parametrize(
    "given",
    [
        FORM,
        (b"origin: null",),
        (b"sec-fetch-site: cross-site", b"sec-fetch-mode: no-cors"),
        (b"origin: http://localhost:3000", b"sec-fetch-site: same-site", b"sec-fetch-mode: cors"),
        (b"origin: http://127.0.0.1:3000", b"sec-fetch-site: same-site"),
        (b"origin: http://[::1]:8787",),
    ],
)
def test_without_keys_a_page_of_another_origin_is_refused_also_from_another_local_port(
    keyless: Door, given: tuple[bytes, ...]
) -> None:
    before, host = keyless.asked, b"127.0.0.1:%d" % keyless.port
    for answer in (keyless.post(*given, host=host), keyless.say(b"GET /api/sessions", *given, host=host)):
        assert status(answer) == 403 and b"gateway.origins" in answer and b"access-control" not in answer
    assert keyless.asked == before
    asks = (*given, b"access-control-request-method: GET")
    assert b"access-control-allow" not in keyless.say(b"OPTIONS /api/sessions", *asks, host=host)


def test_without_keys_the_gateways_own_pages_and_listed_local_ports_are_served(keyless: Door) -> None:
    host = b"127.0.0.1:%d" % keyless.port
    assert status(keyless.post(b"origin: http://" + host, b"sec-fetch-site: same-origin", host=host)) == 200
    listed = keyless.post(b"origin: http://localhost:5173", b"sec-fetch-site: same-site", host=host)
    assert status(listed) == 200 and b"access-control-allow-origin: http://localhost:5173" in listed


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
def test_only_reading_follows_a_link(method: str) -> None:
    followed = [(b"host", b"localhost"), (b"sec-fetch-site", b"cross-site"), (b"sec-fetch-mode", b"navigate")]
    for door in (Browsers(keyed=True), Browsers()):
        assert door.check("GET", followed) is None
        with pytest.raises(AdmissionRefused):
            door.check(method, followed)


def test_with_keys_a_page_of_one_of_two_names_is_foreign() -> None:
    named = [(b"host", b"here"), (b"host", b"evil.example"), (b"origin", b"https://evil.example")]
    with pytest.raises(AdmissionRefused):
        Browsers(keyed=True).check("POST", named)
