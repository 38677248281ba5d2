"""`midfold serve` in operation: keys with separate sessions, pages, metrics, a log, a clean shutdown."""

from __future__ import annotations

import base64
import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from midfold.gateway.admission import hash_key, new_key
from support.gateway_soak import MODEL, WINDOW, Process, gateway, upstream

SECRET = "the blue whale sings at 52 hertz"


class Running(NamedTuple):
    gateway: Process
    keys: dict[str, str]
    log: Path

    def ask(self, owner: str | None, messages: list[dict[str, str]], **more: Any) -> httpx2.Response:
        headers = {"x-midfold-key": self.keys[owner]} if owner else {}
        body = {"model": MODEL, "messages": messages, **more}
        return httpx2.post(self.gateway.url + "/v1/chat/completions", json=body, headers=headers, timeout=30)

    def look(self, owner: str, path: str) -> httpx2.Response:
        user = base64.b64encode(f"me:{self.keys[owner]}".encode()).decode()
        return httpx2.get(self.gateway.url + path, headers={"authorization": f"Basic {user}"}, timeout=30)


def talk(word: str, turns: int = 75) -> list[dict[str, str]]:
    """Return a conversation longer than the window; the provider requires one session's mark in it."""
    said = [{"role": "user", "content": f"S1. T1 {SECRET if word == 'blue' else word}"}]
    for turn in range(2, turns):
        said.append({"role": "assistant", "content": f"S1. answer to T{turn - 1} " + f"{word} " * 40})
        said.append({"role": "user", "content": f"S1. T{turn} go on with {word}"})
    return said


def answered(running: Running, owner: str, messages: list[dict[str, str]]) -> httpx2.Response:
    answer = running.ask(owner, messages)
    assert answer.status_code == 200, answer.text
    return answer


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("operating")
    provider = upstream(folder / "upstream.log", "good")
    keys = {"red": new_key(), "blue": new_key()}
    lines = "".join(f'  {name}:\n    hash: "{hash_key(key)}"\n' for name, key in keys.items())
    config = folder / "config.yaml"
    config.write_text(f"models:\n  {MODEL}:\n    context_window: {WINDOW}\ngateway:\n  log: requests\nkeys:\n{lines}")
    log = folder / "gateway.log"
    process = gateway(config, provider.url, f"sqlite:///{folder}/s.db", log)
    yield Running(process, keys, log)
    process.stop()
    provider.stop()


def test_two_keys_with_the_same_words_have_sessions_of_their_own(running: Running) -> None:
    blue = answered(running, "blue", talk("blue"))
    red = answered(running, "red", talk("red"))
    assert blue.headers["x-midfold-action"] in ("compacted", "checkpoint")
    assert blue.headers["x-midfold-session"].startswith("blue/")
    assert red.headers["x-midfold-session"].startswith("red/")
    same = answered(running, "red", talk("blue"))
    assert same.headers["x-midfold-session"].startswith("red/")
    assert same.headers["x-midfold-receipt"] != blue.headers["x-midfold-receipt"]


def test_nobody_sees_searches_or_unfolds_anothers(running: Running) -> None:
    session = answered(running, "blue", talk("blue")).headers["x-midfold-session"]
    mine = running.look("blue", f"/api/sessions/{session}").json()
    assert mine
    listed = running.look("red", "/api/sessions").text
    assert "blue/" not in listed
    nobodys = running.look("red", "/api/sessions/red/none")
    theirs = running.look("red", f"/api/sessions/{session}")
    assert (theirs.status_code, nobodys.status_code) == (404, 404)
    assert theirs.text.replace(session, "X") == nobodys.text.replace("red/none", "X")
    found = running.look("blue", "/api/search?q=hertz").text
    assert "52 hertz" in found.replace("<mark>", "").replace("</mark>", "") or session in found
    assert session not in running.look("red", "/api/search?q=hertz").text


def test_a_conversation_that_was_only_watched_is_on_the_pages_of_its_key_alone(running: Running) -> None:
    answered(running, "red", talk("nothing is folded here", turns=4))
    ends = time.monotonic() + 20
    while not (mine := [one for one in _listed(running, "red") if not one["stored"]]):
        assert time.monotonic() < ends, "it was not written down"
        time.sleep(0.05)
    assert [one["messages"] for one in mine] == [5]
    assert mine[0]["name"].startswith("red/gw-")
    assert all(one["name"].startswith("blue/") for one in _listed(running, "blue"))
    for path in (f"/sessions/{mine[0]['key']}", f"/api/sessions/{mine[0]['key']}/turns"):
        assert running.look("red", path).status_code == 200
        assert running.look("blue", path).status_code == 404


def _listed(running: Running, owner: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = running.look(owner, "/api/overview").json()["sessions"]
    return found


def test_pages_need_a_key_and_a_browser_can_give_it(running: Running) -> None:
    assert httpx2.get(running.gateway.url + "/").status_code == 401
    page = running.look("blue", "/")
    assert page.status_code == 200
    assert "<title>" in page.text
    assert (
        "script-src" in page.headers["content-security-policy"]
        or "default-src 'none'" in page.headers["content-security-policy"]
    )


def test_figures_are_prometheus_text_and_hold_no_words(running: Running) -> None:
    answered(running, "blue", talk("blue", 5))
    text = running.look("red", "/metrics").text
    assert 'midfold_requests_total{route="openai-chat generate",status="200",action="relayed"}' in text
    assert "midfold_tokens_not_sent_total" in text
    assert "midfold_request_seconds_bucket" in text
    for line in text.splitlines():
        assert line.startswith("#") or float(line.rsplit(" ", 1)[1]) >= 0


def test_it_is_ready_and_says_so_without_a_key(running: Running) -> None:
    assert httpx2.get(running.gateway.url + "/readyz").json() == {"status": "ready", "store": "ok"}
    assert httpx2.get(running.gateway.url + "/healthz").status_code == 200


def test_the_log_has_what_was_done_and_nothing_that_was_said(running: Running) -> None:
    answered(running, "blue", talk("blue", 4))
    written = running.log.read_text()
    entries = [json.loads(line) for line in written.splitlines() if line.startswith("{")]
    assert {"at", "owner", "route", "status", "milliseconds"} <= entries[-1].keys()
    assert entries[-1]["owner"] == "blue"
    logged = "\n".join(line for line in written.splitlines() if line.startswith("{"))
    for said in (SECRET, "go on with", *running.keys.values()):
        assert said not in logged
    assert not any(key in written for key in running.keys.values())


def test_a_stream_that_is_open_ends_before_the_gateway_does(tmp_path: Path) -> None:
    provider = upstream(tmp_path / "upstream.log", "slow")
    config = tmp_path / "config.yaml"
    config.write_text("gateway:\n  mode: hygiene\n")
    process = gateway(config, provider.url, f"sqlite:///{tmp_path}/s.db", tmp_path / "gateway.log")
    body = {"model": MODEL, "messages": [{"role": "user", "content": "S1. T1 hello"}], "stream": True}
    got = []
    with httpx2.stream("POST", process.url + "/v1/chat/completions", json=body, timeout=30) as answer:
        for line in answer.iter_lines():
            if not got:
                process.running.send_signal(signal.SIGTERM)
            got.append(line)
    assert "data: [DONE]" in got
    assert process.running.wait(30) == 0
    provider.stop()


def test_listening_beyond_this_machine_needs_keys(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("gateway:\n  host: 0.0.0.0\n  upstream: http://127.0.0.1:9\n")
    arguments = [sys.executable, "-m", "midfold", "serve", "--config", str(config), "--store", "memory:"]
    started = time.monotonic()
    done = subprocess.run(arguments, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2, time.monotonic() - started
    assert "no gateway keys are configured" in done.stderr
