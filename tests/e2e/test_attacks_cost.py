"""One small request blocks no other client: `/healthz` answers meanwhile, and its memory is freed afterwards.

Runs a real `midfold serve` process, polled every 20 ms.
"""

from __future__ import annotations

import gzip
import http.client
import json
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from support.effort import effort
from support.gateway_soak import Process, gateway
from support.gateways import call, running
from support.pulse import ANSWER, Pulse, provider

SOON = 0.25
"""Maximum seconds for a response to other clients."""
SLACK = 2
"""Multiplier of that on a machine that runs other tests."""
TRIES = 3
AFTERWARDS = 0.15
"""Seconds to wait for work that starts after a request's response was sent."""
MEGABYTE = 1_000_000
PATH = "/v1/chat/completions"
PATIENT = 90.0
FREED = 100_000
"""Kilobytes that may stay in use after a load: bounded caches, and pages of the store."""
linux = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="memory is read from /proc")


@pytest.fixture(params=["hygiene", "busy"], scope="module")
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Run a gateway with default settings, and one with everything on."""
    folder = tmp_path_factory.mktemp("cost")
    config = folder / "config.yaml"
    extra = "gateway: {mode: manage, recall: on}\n" if request.param == "busy" else ""
    config.write_text("models: {'*': {context_window: 32_768}}\n" + extra)
    with provider() as upstream:
        process = gateway(config, upstream, f"sqlite:///{folder}/s.db", folder / "log")
        post(process, {"model": "m", "messages": [{"role": "user", "content": "hi"}]})
        try:
            yield process
        finally:
            process.kill()


def post(process: Process, body: Any, path: str = PATH, **headers: str) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=PATIENT)
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    try:
        connection.request("POST", path, data, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def burdened(process: Process, work: Callable[[], Any]) -> Any:
    """Run work while other clients are answered in time, including work that starts directly afterwards.

    Other tests may use the processor, so a slow result must be reproducible.
    """
    results, waits = [], []
    for _ in range(TRIES):
        with Pulse(process.port) as pulse:
            pulse.wait()
            results.append(work())
            time.sleep(AFTERWARDS)
        waits.append(pulse.longest)
        if pulse.longest < SOON * SLACK:
            return results[0]
    raise AssertionError(f"somebody waited {waits} seconds")


def assert_let_go(process: Process, before: int) -> None:
    """Require that the memory of requests is freed, also by folds that continue after their client has left."""
    ends = time.monotonic() + 60
    while process.memory() - before > FREED and time.monotonic() < ends:
        time.sleep(0.2)
    assert process.memory() - before < FREED


def talk(*messages: bytes, model: bytes = b"m") -> bytes:
    return b'{"model":"' + model + b'","messages":[' + b",".join(messages) + b"]}"


def said(text: bytes, role: bytes = b"user") -> bytes:
    return b'{"role":"' + role + b'","content":"' + text + b'"}'


FILL = [said(b"word " * 4_000)] * 5


def test_spaces_around_a_cache_marker(served: Process) -> None:
    part = b'{"type":"text","text":"x","cache_control":{"type":"ephemeral"}' + b" " * 320_000 + b"}"
    marked = b'{"role":"user","content":[' + part + b"]}"
    begun = time.perf_counter()
    status, headers, _ = burdened(served, lambda: post(served, talk(marked, *FILL)))
    assert status == 200
    assert "not looked at" not in headers.get("x-midfold-reason", "")
    assert time.perf_counter() - begun < 10


@pytest.mark.parametrize("path", [PATH, "/v1/responses", "/v1/messages"])
def test_a_name_of_four_megabytes_for_a_model_is_refused(served: Process, path: str) -> None:
    name = b"a" * (4 * MEGABYTE)
    status, _, body = burdened(served, lambda: post(served, talk(said(b"hi"), model=name), path))
    told = json.loads(body)
    assert status == 400
    assert told["error"]["message"] == "model: expected a name of at most 200 characters"
    assert told["error"]["type"] == "invalid_request_error"
    assert ("type" in told) == (path == "/v1/messages"), "the shape is the provider's"


@linux
def test_many_long_names_leave_nothing_behind(served: Process) -> None:
    before = served.memory()
    for number in range(20):
        name = b"%d" % number + b"a" * MEGABYTE
        assert post(served, talk(said(b"hi"), model=name))[0] == 400
        assert post(served, talk(said(b"hi")), x_midfold_session=f"{number}" + "s" * 30_000)[0] == 200
    assert_let_go(served, before)


def test_a_name_within_the_limit_passes(served: Process) -> None:
    assert post(served, talk(said(b"hi"), model=b"a" * 200))[0] == 200


@linux
def test_a_million_tiny_messages_are_passed_on_as_they_are(served: Process) -> None:
    before = served.memory()
    body = talk(*[said(b"a"), said(b"b", b"assistant")] * 500_000)
    begun = time.perf_counter()
    status, headers, answer = burdened(served, lambda: post(served, body))
    assert (status, answer) == (200, ANSWER)
    assert headers["x-midfold-action"] == "passed"
    assert headers["x-midfold-reason"] == "more than 50,000 messages, or more in them than is looked at"
    assert time.perf_counter() - begun < 20
    assert_let_go(served, before)


@pytest.mark.parametrize("part", [b"[]", b"{}", b"[" * 400 + b"]" * 400], ids=["lists", "objects", "deep lists"])
def test_one_message_of_more_than_a_million_parts_is_passed_on_as_it_is(served: Process, part: bytes) -> None:
    parts = b",".join([part] * (2_800_000 // len(part)))
    begun = time.perf_counter()
    sent = talk(b'{"role":"user","content":[' + parts + b"]}")
    status, headers, answer = burdened(served, lambda: post(served, sent))
    assert (status, answer, headers["x-midfold-action"]) == (200, ANSWER, "passed")
    assert time.perf_counter() - begun < 10


@pytest.mark.parametrize("path", ["/v1/responses/compact", "/v1/messages/count_tokens"])
def test_what_the_gateway_answers_itself_has_the_same_limit(tmp_path: Path, path: str) -> None:
    def uncounted(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")

    body = talk(*[said(b"a")] * 50_001).replace(b'"messages"', b'"input"' if "responses" in path else b'"messages"')
    with provider(uncounted) as upstream, running(upstream) as here:
        status, _, answer = call(here.url, "POST", path, body)
    assert status == 413
    assert "more than 50,000 messages" in json.loads(answer)["error"]["message"]


@pytest.mark.parametrize(
    "list_of",
    [b'"messages":[%s]', b'"messages":[{"role":"user","content":[%s]}]', b'"tools":[%s]', b'"model":[%s]'],
    ids=["messages", "parts", "tools", "model"],
)
def test_lists_of_ten_million_ones(served: Process, list_of: bytes) -> None:
    body = b"{" + list_of % (b"1," * (10 * MEGABYTE) + b"1") + b"}"
    assert burdened(served, lambda: post(served, body))[0] in (200, 400)


def test_tens_of_thousands_of_messages_are_folded(served: Process) -> None:
    body = talk(*[said(b"a"), said(b"b", b"assistant")] * effort(20_000, 24_900), said(b"and now?"))
    status, headers, _ = burdened(served, lambda: post(served, body))
    assert status == 200
    assert headers["x-midfold-action"] in ("compacted", "checkpoint")


def tool_calls(count: int, per_message: int = 1) -> bytes:
    """Return a conversation of a number of tool calls with results."""
    messages = [said(b"go on")]
    for first in range(0, count, per_message):
        numbers = range(first, first + per_message)
        made = b",".join(
            b'{"id":"c%d","type":"function","function":{"name":"read","arguments":"{\\"path\\":\\"%d.py\\"}"}}' % (n, n)
            for n in numbers
        )
        messages.append(b'{"role":"assistant","content":null,"tool_calls":[' + made + b"]}")
        messages += [b'{"role":"tool","tool_call_id":"c%d","content":"line %d"}' % (n, n) for n in numbers]
    return talk(*messages, said(b"and now?"))


def different(count: int) -> bytes:
    return talk(*(said(b"message %d" % number, (b"user", b"assistant")[number % 2]) for number in range(count)))


CROWDS = {
    "190,000 messages": lambda: different(190_000),
    "90,000 tool calls": lambda: tool_calls(90_000),
    "90,000 tool calls in batches": lambda: tool_calls(90_000, 30),
}


@pytest.mark.parametrize("crowd", CROWDS)
def test_a_crowd_of_messages_or_tool_calls_is_passed_on_as_it_is(served: Process, crowd: str) -> None:
    body = CROWDS[crowd]()
    status, headers, _ = burdened(served, lambda: post(served, body))
    assert (status, headers["x-midfold-action"]) == (200, "passed")
    assert headers["x-midfold-reason"] == "more than 50,000 messages, or more in them than is looked at"


def test_one_message_of_forty_megabytes_of_line_breaks(served: Process) -> None:
    few = [said(b"a"), said(b"b", b"assistant")] * 3
    body = talk(*few, said(b"\\n" * (20 * MEGABYTE)))
    assert burdened(served, lambda: post(served, body))[0] == 200


def test_many_different_messages_are_folded_without_a_pause(served: Process) -> None:
    """Full garbage collections would block the process in proportion to the objects of the request."""
    body = different(49_000)
    status, headers, _ = burdened(served, lambda: post(served, body))
    assert status == 200
    assert headers["x-midfold-action"] in ("compacted", "checkpoint")


def large(megabytes: int, seed: int) -> bytes:
    """Return a body of unique words."""
    choice = random.Random(seed)
    text = (" ".join(f"w{choice.randrange(10**6)}" for _ in range(5_000)) + " ").encode()
    return talk(*[said(text * (MEGABYTE // len(text)))] * megabytes)


def abandon(process: Process, body: bytes, share: float, wait: float) -> None:
    """Send part or all of a request and disconnect."""
    with socket.create_connection(("127.0.0.1", process.port)) as connection:
        head = f"POST {PATH} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body[: int(len(body) * share)])
        time.sleep(wait)


@linux
@pytest.mark.parametrize(("share", "wait"), [(0.5, 0.0), (1.0, 0.0), (1.0, 0.5)], ids=["half", "whole", "later"])
def test_bodies_that_clients_abandon_are_let_go(served: Process, share: float, wait: float) -> None:
    bodies = [large(12, seed) for seed in range(10)]
    before = served.memory()

    def all_of_them() -> None:
        threads = [threading.Thread(target=abandon, args=(served, body, share, wait)) for body in bodies]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    burdened(served, all_of_them)
    assert_let_go(served, before)


@pytest.mark.parametrize("megabytes", [10, 60])
def test_large_bodies_stop_nobody(served: Process, megabytes: int) -> None:
    body = large(megabytes, 77)
    assert burdened(served, lambda: post(served, body))[0] == 200


def test_tags_without_a_line_end(served: Process) -> None:
    call_ = b'{"role":"assistant","content":null,"tool_calls":[{"id":"c","type":"function",'
    call_ += b'"function":{"name":"f","arguments":"{}"}}]}'
    result = b'{"role":"tool","tool_call_id":"c","content":"' + b"<a-b> " * 100_000 + b'"}'
    assert burdened(served, lambda: post(served, talk(said(b"go"), call_, result, *FILL)))[0] == 200


def endless(head: bytes, piece: bytes, counted: list[int], most: int) -> Callable[[socket.socket], None]:
    """Return a provider whose response never ends, or ends long after it should have been stopped."""

    def answering(connection: socket.socket) -> None:
        connection.sendall(head)
        chunk = b"%x\r\n%s\r\n" % (len(piece), piece)
        with suppress(OSError):
            while sum(counted) < most:
                connection.sendall(chunk)
                counted.append(len(piece))
        connection.close()

    return answering


HEAD = b"HTTP/1.1 %s\r\ncontent-type: %s\r\ntransfer-encoding: chunked\r\n\r\n"


def test_an_error_without_end_is_relayed_as_it_comes() -> None:
    """Only the first part is inspected; the rest is relayed without buffering until the client disconnects."""
    counted: list[int] = []
    answering = endless(HEAD % (b"400 Bad Request", b"text/plain"), b"no " * 20_000, counted, 400 * MEGABYTE)
    body = talk(said(b"hi"))
    with provider(answering) as upstream, running(upstream) as here:
        host, _, port = here.url.removeprefix("http://").partition(":")
        connection = http.client.HTTPConnection(host, int(port), timeout=PATIENT)
        connection.request("POST", PATH, body)
        answer = connection.getresponse()
        assert answer.status == 400
        assert answer.read(3 * MEGABYTE) == b"no " * MEGABYTE
        connection.close()
        assert here.account().status == 400
    assert sum(counted) < 100 * MEGABYTE


def test_an_error_longer_than_is_looked_at_reaches_the_client_whole() -> None:
    text = b'{"error":{"message":"' + b"no. " * MEGABYTE + b'"}}'

    def answering(connection: socket.socket) -> None:
        connection.sendall(b"HTTP/1.1 400 Bad Request\r\ncontent-length: %d\r\n\r\n" % len(text) + text)

    with provider(answering) as upstream, running(upstream) as here:
        status, headers, answer = call(here.url, "POST", PATH, talk(said(b"hi")))
    assert (status, answer == text, headers["content-length"]) == (400, True, str(len(text)))


@pytest.mark.parametrize(
    ("kind", "piece"),
    [(b"application/json", b" " * 60_000), (b"text/event-stream", (b'data: {"x":"' + b"y" * 6_000 + b'"}\n\n') * 10)],
    ids=["whole", "stream"],
)
def test_a_turn_without_end_that_must_be_known_as_a_whole_is_an_error_of_ours(kind: bytes, piece: bytes) -> None:
    counted: list[int] = []
    answering = endless(HEAD % (b"200 OK", kind), piece, counted, 400 * MEGABYTE)
    body = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": kind != b"application/json"}
    with provider(answering) as upstream, running(upstream, recall="on") as here:
        with suppress(http.client.HTTPException, ConnectionError):
            status, _, answer = call(here.url, "POST", PATH, body)
            assert status == 502
            assert "more than 64,000,000 bytes" in json.loads(answer)["error"]["message"]
        assert here.account().action in ("refused", "broken")
    assert sum(counted) < 200 * MEGABYTE


@pytest.fixture(scope="module")
def with_our_key(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    """Run a gateway with a provider key, which checks requests for ids of other owners."""
    folder = tmp_path_factory.mktemp("ours")
    config = folder / "config.yaml"
    config.write_text("gateway: {mode: passthrough, api_key_env: HOME}\n")
    with provider() as upstream:
        process = gateway(config, upstream, f"sqlite:///{folder}/s.db", folder / "log")
        try:
            yield process
        finally:
            process.kill()


def test_looking_for_ids_of_others_stops_nobody(with_our_key: Process) -> None:
    small = b'{"role":"user","content":"hi","a":{},"b":{},"c":{},"d":{}}'
    body = talk(*[small] * 33_000, said(b"the end"))[:-1] + b',"metadata":{"file_id":"mine"}}'
    assert burdened(with_our_key, lambda: post(with_our_key, body))[0] == 200
    theirs = talk(*[small] * 33_000)[:-1] + b',"file_id":"theirs"}'
    assert burdened(with_our_key, lambda: post(with_our_key, theirs))[0] == 404


def test_what_is_too_crowded_to_be_looked_through_is_refused(with_our_key: Process) -> None:
    status, _, body = burdened(
        with_our_key,
        lambda: post(with_our_key, b'{"input":"x","a":[' + b"0," * 1_600_000 + b'0],"file_id":"x"}', "/v1/embeddings"),
    )
    assert status == 413
    assert b"too many values to be checked" in body


def ones() -> bytes:
    return b'{"id":"x","choices":[' + b"1," * (7 * MEGABYTE) + b"1]}"


GZIP = b"content-type: application/json\r\ncontent-encoding: gzip"
STREAM = b"content-type: text/event-stream"


class Relay(NamedTuple):
    """Gateway, and the next response of its provider: headers and body."""

    process: Process
    answer: list[tuple[bytes, bytes]]


@pytest.fixture(params=["on", "off"], scope="module")
def relay(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Relay]:
    """Run a gateway with recall, which parses responses, or without."""
    folder, answer = tmp_path_factory.mktemp("answers"), list[tuple[bytes, bytes]]()

    def answering(connection: socket.socket) -> None:
        kind, body = answer[-1]
        connection.sendall(b"HTTP/1.1 200 OK\r\n%s\r\ncontent-length: %d\r\n\r\n" % (kind, len(body)) + body)

    config = folder / "config.yaml"
    models = "models: {'*': {context_window: 32_768}}"
    config.write_text(f"{models}\ngateway: {{mode: manage, recall: {request.param}}}\n")
    with provider(answering) as upstream:
        process = gateway(config, upstream, f"sqlite:///{folder}/s.db", folder / "log")
        try:
            yield Relay(process, answer)
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("kind", "made"),
    [
        (GZIP, lambda: gzip.compress(ones() * 5, 1)),
        (GZIP, lambda: gzip.compress(b'{"id":"' + b"a" * (200 * MEGABYTE) + b'"}', 1)),
        (STREAM, lambda: b"data: " + ones() + b"\n\n"),
        (STREAM, lambda: b"data:\n" * (2 * MEGABYTE) + b"\n"),
        (STREAM, lambda: b"\n" * (10 * MEGABYTE)),
    ],
    ids=["a bomb of ones", "a bomb of letters", "an event of ones", "an event of lines", "no event"],
)
def test_answers_that_are_hard_to_read_stop_nobody(relay: Relay, kind: bytes, made: Callable[[], bytes]) -> None:
    asked = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "stream": kind == STREAM}
    answer = made()
    relay.answer[:] = [(kind, answer)]
    with ThreadPoolExecutor(4) as clients:
        answers = burdened(relay.process, lambda: list(clients.map(lambda _: post(relay.process, asked), range(4))))
    assert [(status, body == answer) for status, _, body in answers] == [(200, True)] * 4


def test_a_message_of_a_hundred_thousand_calls_takes_seconds(served: Process) -> None:
    """Regression: it took hours and continued after its client had left; eight of them blocked all others."""
    one = b'{"id":"c%d","type":"function","function":{"name":"f","arguments":"{}"}}'
    calls = b",".join(one % number for number in range(100_000))
    body = talk(said(b"go"), b'{"role":"assistant","content":null,"tool_calls":[' + calls + b"]}", *FILL)
    begun = time.perf_counter()
    assert burdened(served, lambda: post(served, body))[0] == 200
    assert time.perf_counter() - begun < 40
