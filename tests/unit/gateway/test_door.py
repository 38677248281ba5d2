"""Access checks of the gateway over real sockets: keys, sizes, slow clients, and request smuggling."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from typing import Any

import pytest
import uvicorn

from midfold.errors import ConfigError
from midfold.gateway.admission import Admission, AdmissionLimits, GatewayKeys, hash_key, new_key
from midfold.gateway.server import PatientProtocol
from support.asgi import whole_body


class Hurried(PatientProtocol):
    head_seconds = 0.4
    head_bytes = 4_096


async def echo(scope: Any, receive: Any, send: Any) -> None:
    """Answer with the owner, the length of the body and the names of the headers."""
    if scope["type"] != "http":
        return
    body = await whole_body(receive)
    names = b",".join(sorted(name for name, _ in scope["headers"]))
    told = f"{scope['state']['owner'].name}|{len(body)}|".encode() + names
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(len(told)).encode())]}
    )
    await send({"type": "http.response.body", "body": told})


@contextlib.contextmanager
def serving(app: Any) -> Iterator[int]:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        server = uvicorn.Server(uvicorn.Config(app, http=Hurried, lifespan="off", log_level="critical"))
        thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[listening])), daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        yield listening.getsockname()[1]
        server.should_exit = True
        thread.join(10)


def spoken(port: int, *pieces: bytes, pause: float = 0.0) -> bytes:
    """Return the server's answer to these bytes: one whole response, or with a pause all data of one second."""
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        for piece in pieces:
            with contextlib.suppress(OSError):
                connection.sendall(piece)
            time.sleep(pause)
        connection.settimeout(1 if pause else 5)
        answer = b""
        with contextlib.suppress(OSError):
            while (pause or not complete(answer)) and (piece := connection.recv(65_536)):
                answer += piece
        return answer


def complete(answer: bytes) -> bool:
    head, found, body = answer.partition(b"\r\n\r\n")
    length = re.search(rb"content-length: (\d+)", head)
    return bool(found) and length is not None and len(body) >= int(length[1])


def post(body: bytes = b"{}", *headers: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    lines = [b"POST " + path + b" HTTP/1.1", b"host: localhost", b"content-length: %d" % len(body), *headers]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@pytest.fixture(scope="module")
def keyed() -> Iterator[tuple[int, dict[str, str]]]:
    made = {"red": new_key(), "blue": new_key()}
    keys = GatewayKeys({name: hash_key(key) for name, key in made.items()})
    with serving(Admission(echo, keys, AdmissionLimits(body_bytes=10_000, body_seconds=0.5))) as port:
        yield port, made


def test_a_key_names_its_owner_and_is_taken_off(keyed: tuple[int, dict[str, str]]) -> None:
    port, keys = keyed
    for header in (b"authorization: Bearer ", b"x-api-key: ", b"x-midfold-key: "):
        answer = spoken(port, post(b"{}", header + keys["blue"].encode()))
        assert b"200 OK" in answer
        assert answer.endswith(b"blue|2|content-length,host")


def test_with_the_gateways_own_header_the_providers_key_stays(keyed: tuple[int, dict[str, str]]) -> None:
    port, keys = keyed
    answer = spoken(port, post(b"{}", b"x-midfold-key: " + keys["red"].encode(), b"authorization: Bearer theirs"))
    assert answer.endswith(b"red|2|authorization,content-length,host")


@pytest.mark.parametrize(
    "given", [b"", b"x-api-key: wrong", b"authorization: Bearer ", b"x-midfold-key: " + b"a" * 3_000]
)
def test_every_wrong_key_gets_the_same_answer(keyed: tuple[int, dict[str, str]], given: bytes) -> None:
    port, _ = keyed
    answer = spoken(port, post(b"{}", *([given] if given else [])))
    assert b" 401 " in answer.splitlines()[0]
    told = b"this gateway requires a key: send it as x-midfold-key or as the API key"
    assert answer.endswith(
        b'{"error":{"message":"' + told + b'","type":"authentication_error","param":null,"code":null}}'
    )


def test_a_refusal_has_the_shape_of_the_wire(keyed: tuple[int, dict[str, str]]) -> None:
    port, _ = keyed
    assert b'{"type":"error","error":{' in spoken(port, post(path=b"/v1/messages"))


def test_a_browser_is_asked_for_the_key_and_sends_it_as_a_password(keyed: tuple[int, dict[str, str]]) -> None:
    port, keys = keyed
    asked = spoken(port, b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert b" 401 " in asked.splitlines()[0]
    assert b"www-authenticate: Basic realm=" in asked
    given = b64encode(b"anybody:" + keys["red"].encode())
    assert b"red|0|" in spoken(
        port, b"GET / HTTP/1.1\r\nhost: localhost\r\nauthorization: Basic " + given + b"\r\n\r\n"
    )
    for broken in (b"authorization: Basic ???", b"authorization: Basic " + b64encode(b"\xff\xfe")):
        assert b" 401 " in spoken(port, post(b"{}", broken)).splitlines()[0]


@pytest.mark.parametrize(
    ("origin", "status"),
    [(b"https://evil.example", b" 403 "), (b"null", b" 403 "), (b"http://127.0.0.1:8787", b" 403 ")],
)
def test_without_keys_pages_of_other_origins_are_not_served(origin: bytes, status: bytes) -> None:
    with serving(Admission(echo, GatewayKeys({}))) as port:
        assert status in spoken(port, post(b"{}", b"origin: " + origin)).splitlines()[0]


def test_life_is_no_secret_and_paths_like_it_are(keyed: tuple[int, dict[str, str]]) -> None:
    port, _ = keyed
    assert b"200 OK" in spoken(port, post(path=b"/healthz"))
    for path in (b"/healthz/../v1/models", b"/healthz/", b"//healthz", b"/%68ealthz/x", b"/HEALTHZ"):
        assert b" 401 " in spoken(port, post(path=path)).splitlines()[0], path


@pytest.mark.parametrize("declared", [b"10001", b"99999999999999999999"])
def test_a_body_that_says_it_is_too_large_is_refused_unread(keyed: tuple[int, dict[str, str]], declared: bytes) -> None:
    port, keys = keyed
    head = (
        b"POST / HTTP/1.1\r\nhost: localhost\r\nx-api-key: " + keys["red"].encode() + b"\r\ncontent-length: " + declared
    )
    first = spoken(port, head + b"\r\n\r\n").splitlines()[0]
    assert b" 413 " in first or b" 400 " in first


def test_a_body_that_grows_too_large_in_chunks_is_refused(keyed: tuple[int, dict[str, str]]) -> None:
    port, keys = keyed
    head = (
        b"POST / HTTP/1.1\r\nhost: localhost\r\nx-api-key: "
        + keys["red"].encode()
        + b"\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    chunk = b"1000\r\n" + b"x" * 4_096 + b"\r\n"
    assert b" 413 " in spoken(port, head, chunk, chunk, chunk, chunk).splitlines()[0]


def test_a_body_that_never_comes_is_not_waited_for(keyed: tuple[int, dict[str, str]]) -> None:
    port, keys = keyed
    head = (
        b"POST / HTTP/1.1\r\nhost: localhost\r\nx-api-key: "
        + keys["red"].encode()
        + b"\r\ncontent-length: 10\r\n\r\nabc"
    )
    assert b" 408 " in spoken(port, head).splitlines()[0]


def test_a_head_that_trickles_is_let_go(keyed: tuple[int, dict[str, str]]) -> None:
    port, _ = keyed
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        for piece in (b"GET / HTTP/1.1\r\n", b"x-a: 1\r\n", b"x-b: 2\r\n"):
            connection.sendall(piece)
            time.sleep(0.1)
        assert connection.recv(100).startswith(b"HTTP/1.1 408 ")


def test_a_connection_that_says_nothing_is_closed(keyed: tuple[int, dict[str, str]]) -> None:
    port, _ = keyed
    with socket.create_connection(("127.0.0.1", port), timeout=5) as connection:
        assert connection.recv(1) == b""


@pytest.mark.parametrize("pieces", [1, 40])
def test_a_head_too_large_is_refused(keyed: tuple[int, dict[str, str]], pieces: int) -> None:
    port, _ = keyed
    head = b"GET / HTTP/1.1\r\nhost: localhost\r\n" + b"x-long: " + b"a" * 9_000 + b"\r\n\r\n"
    step = len(head) // pieces + 1
    answer = spoken(port, *[head[at : at + step] for at in range(0, len(head), step)])
    assert answer == b"" or b" 431 " in answer.splitlines()[0]


SMUGGLING = [
    b"content-length: 2\r\ncontent-length: 40",
    b"content-length: 2\r\ntransfer-encoding: chunked",
    b"transfer-encoding: chunked, identity\r\ncontent-length: 2",
    b"transfer-encoding: xchunked\r\ncontent-length: 2",
    b"content-length: +2",
    b"content-length: 0x2",
    b"content-length : 2",
    b" content-length: 2",
    b"content-length: 2\n\rx: y",
]


@pytest.mark.parametrize("framing", SMUGGLING)
def test_a_body_with_two_lengths_is_never_answered_twice(keyed: tuple[int, dict[str, str]], framing: bytes) -> None:
    port, keys = keyed
    head = b"POST / HTTP/1.1\r\nhost: localhost\r\nx-api-key: " + keys["red"].encode() + b"\r\n" + framing + b"\r\n\r\n"
    hidden = b"0\r\n\r\nGET /smuggled HTTP/1.1\r\nhost: localhost\r\nx-api-key: " + keys["red"].encode() + b"\r\n\r\n"
    answer = spoken(port, head + hidden, pause=0.2)
    assert answer.count(b"HTTP/1.1 200") <= (1 if b"identity" in framing else 0), answer


def test_what_all_requests_hold_together_is_bounded() -> None:
    limits = AdmissionLimits(body_bytes=10_000, total_bytes=12_000, body_seconds=5)
    door = Admission(echo, GatewayKeys({}), limits)
    with serving(door) as port:
        half = b"POST / HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9000\r\n\r\n" + b"x" * 8_000
        with socket.create_connection(("127.0.0.1", port), timeout=5) as first:
            first.sendall(half)
            deadline = time.monotonic() + 5
            while door.held.total < 8_000 and time.monotonic() < deadline:
                time.sleep(0.01)
            refused = spoken(port, post(b"y" * 9_000))
            assert b" 503 " in refused.splitlines()[0]
            assert b"retry-after: 1" in refused
            first.sendall(b"x" * 1_000)
            assert b"200 OK" in first.recv(65_536)
        deadline = time.monotonic() + 5
        while door.held.total and time.monotonic() < deadline:
            time.sleep(0.01)
        assert door.held.total == 0
        assert b"200 OK" in spoken(port, post(b"y" * 9_000))


def test_a_hash_that_is_none_names_its_place() -> None:
    with pytest.raises(ConfigError, match=r"keys\.red\.hash: expected sha256: .*`midfold keys new red`"):
        GatewayKeys({"red": "plain"})


def test_keys_do_not_repeat_and_no_keys_are_false() -> None:
    assert len({new_key() for _ in range(50)}) == 50
    assert not GatewayKeys({})
    assert GatewayKeys({}).find_name("anything") is None
