"""Malformed requests to the gateway's routes: no internal error, no hang, no traceback, and valid ones are relayed.

Runs a real `midfold serve` process. `HYPOTHESIS_PROFILE=soak` tries many more.
"""

from __future__ import annotations

import hashlib
import http.client
import importlib.util
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx2
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from midfold.testing.doubles import served
from support.data import need
from support.fuzzing import DEEP, INJECTIONS, MODEL, PATHS, Echo, bodies, heads, speak, words
from support.gateway_openapi import description
from support.gateway_soak import Process, gateway

pytestmark = pytest.mark.filterwarnings("ignore:Generating overly large repr")
CASES, PER_ROUTE = (3_000, 20) if os.environ.get("HYPOTHESIS_PROFILE") == "soak" else (60, 2)
PHASES = (Phase.explicit, Phase.reuse, Phase.generate)
"""Phases without shrinking: cases are small, and shrinking takes a thousand requests."""
UNTOUCHED = ("relayed", "passed", "bypassed")
PAGES = ("/", "/sessions", "/cache", "/search", "/api/overview", "/api/sessions", "/api/search", "/api/openapi.json")
ROLES = ("user", "assistant")
CONFIG = "models:\n  '*':\n    context_window: 4_000\ngateway:\n  body_seconds: 2\n"


class Pair(NamedTuple):
    """Two gateways: one that changes as little as possible, and one with everything on."""

    plain: Process
    busy: Process
    folder: Path

    def alive(self) -> None:
        """Check that both still answer and neither printed a traceback."""
        for process in (self.plain, self.busy):
            assert process.answers()
            assert process.running.poll() is None
            log = process.log.read_text(errors="replace")
            assert "Traceback" not in log
            assert "request failed" not in log
            assert "could not be shown" not in log


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("fuzz")
    plain, busy = folder / "plain.yaml", folder / "busy.yaml"
    plain.write_text(CONFIG + "prompt_caching:\n  enabled: off\n")
    busy.write_text(CONFIG + "  mode: manage\n  recall: on\n  log: requests\n")
    with served(Echo()) as url:
        both = [
            gateway(config, url, f"sqlite:///{folder}/{config.stem}.db", folder / f"{config.stem}.log")
            for config in (plain, busy)
        ]
        yield Pair(*both, folder)
        for process in both:
            assert process.stop() == 0


def posted(process: Process, path: str, body: bytes) -> tuple[int, dict[str, str], bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", process.port, timeout=20)
    try:
        connection.request("POST", path, body, {"content-type": "application/json"})
        answer = connection.getresponse()
        return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
    finally:
        connection.close()


def check_body(pair: Pair, path: str, body: bytes) -> None:
    for process in (pair.plain, pair.busy):
        status, told, data = posted(process, path, body)
        assert status < 500, (status, data[:300])
        assert b"Traceback" not in data
        if process is pair.plain and told.get("x-midfold-action") in UNTOUCHED and "x-sha256" in told:
            assert told["x-sha256"] == hashlib.sha256(body).hexdigest()


def test_bodies_nobody_would_send(pair: Pair) -> None:
    @settings(max_examples=CASES, phases=PHASES)
    @given(st.sampled_from(PATHS), bodies())
    def fuzz(path: str, body: bytes) -> None:
        check_body(pair, path, body)

    fuzz()
    pair.alive()


@pytest.mark.parametrize("path", PATHS)
def test_bodies_deeper_than_anything(pair: Pair, path: str) -> None:
    for body in DEEP:
        check_body(pair, path, body)
    pair.alive()


def test_heads_nobody_would_send(pair: Pair) -> None:
    @settings(max_examples=CASES, phases=PHASES)
    @given(heads())
    def fuzz(data: bytes) -> None:
        for process in (pair.plain, pair.busy):
            said = speak(process.port, data)
            assert said.status != 500, (data[:300], said.data[:300])
            assert said.status or not said.data, (data[:300], said.data[:300])
            assert b"Traceback" not in said.data

    fuzz()
    pair.alive()


def test_questions_nobody_would_ask_the_pages(pair: Pair) -> None:
    with httpx2.Client(base_url=pair.busy.url, timeout=20) as client:

        @settings(max_examples=CASES, phases=PHASES)
        @given(st.sampled_from(PAGES), words, words, words)
        def fuzz(path: str, one: str, two: str, three: str) -> None:
            safe = [quote(text.encode("utf-8", "surrogatepass")) for text in (one, two, three)]
            asked = (f"{path}?q={safe[0]}&page={safe[1]}&role={safe[2]}", f"{path.rstrip('/')}/{safe[0]}/{safe[1]}")
            for target in asked:
                answer = client.get(target)
                assert answer.status_code < 500, (target, answer.text[:300])
                assert "<script>alert" not in answer.text or "json" in answer.headers["content-type"]

        fuzz()
    pair.alive()


def test_everything_that_was_stored_can_be_looked_at(pair: Pair) -> None:
    """After all of the above, and a conversation with lone surrogates and markup."""
    odd = [*INJECTIONS, "\\ud83d alone"]
    talk = [
        {"role": role, "content": f"{n} {odd[n % len(odd)]} " + "lorem " * 150} for n in range(30) for role in ROLES
    ]
    body = json.dumps({"model": MODEL, "messages": talk}).replace("\\\\ud83d", "\\ud83d").encode()
    status, told, data = posted(pair.busy, "/v1/chat/completions", body)
    assert (status, told["x-midfold-action"]) == (200, "compacted"), data
    with httpx2.Client(base_url=pair.busy.url, timeout=20) as client:
        listed = client.get("/api/sessions").json()["sessions"]
        assert any(item["compactions"] for item in listed)
        for item in listed:
            one = f"/sessions/{item['key']}"
            newest = f"/messages/{min(9, item['messages'] - 1)}"
            inside = ["/compactions/1", "/compactions/1/receipt", newest] if item["compactions"] else []
            for path in ("", *inside):
                for prefix in ("", "/api"):
                    answer = client.get(prefix + one + path)
                    assert answer.status_code == 200, (prefix + one + path, answer.text[:300])
                    assert "<script>alert" not in answer.text or "json" in answer.headers["content-type"]
    pair.alive()


def test_a_fuzzer_that_knows_the_routes(pair: Pair) -> None:
    """schemathesis with requests that match the description and some that do not; /api with its own description."""
    need(importlib.util.find_spec("schemathesis"), "schemathesis is not installed")
    import schemathesis

    own = httpx2.get(pair.busy.url + "/api/openapi.json").json()
    seen = 0
    for described in (description(MODEL), own):
        for found in schemathesis.openapi.from_dict(described).get_all_operations():
            operation = found.ok()
            for mode in schemathesis.GenerationMode:
                seen += fuzzed(pair, operation, mode)
    sys.stdout.write(f"\n{seen:,} requests made by schemathesis\n")
    assert seen > 20 * PER_ROUTE
    pair.alive()


def fuzzed(pair: Pair, operation: Any, mode: Any) -> int:
    """Run the fuzzer and return the number of requests."""
    seen = 0

    @settings(max_examples=PER_ROUTE, phases=PHASES, suppress_health_check=list(HealthCheck))
    @given(operation.as_strategy(generation_mode=mode))
    def fuzz(case: Any) -> None:
        nonlocal seen
        seen += 1
        answer = case.call(base_url=pair.busy.url, timeout=20)
        assert answer.status_code != 500, (case.as_curl_command(), answer.text[:300])
        assert "Traceback" not in answer.text

    try:
        fuzz()
    except Unsatisfiable:
        return seen  # a route without parameters has no invalid requests
    return seen
