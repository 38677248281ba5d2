"""`midfold serve` and `midfold demo --gateway` as users run them."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from click.testing import CliRunner

from midfold.cli.main import main
from midfold.testing.answers import openai_json
from midfold.testing.doubles import ScriptedProvider
from support.gateways import call


def test_the_demo_shows_both_sessions_and_only_one_ends_early() -> None:
    done = CliRunner().invoke(main, ["demo", "--gateway", "--turns", "45", "--window", "14000", "--json"])
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert (found["with"]["done"], found["with"]["refused"]) == (45, 0)
    assert found["without"]["done"] < 45 and "context limit" in found["without"]["error"]
    marking, alone = found["marking"], found["without"]
    assert marking["done"] < 45 and "context limit" in marking["error"]
    assert marking["cache_read_share"] > 0.5 > alone["cache_read_share"]
    assert marking["billed_tokens"] / marking["done"] < alone["billed_tokens"] / alone["done"]
    assert found["with"]["folds"] >= 1 and found["with"]["cache_read_share"] > 0.5


def test_the_demo_for_people_and_the_one_without_a_gateway() -> None:
    shown = CliRunner().invoke(main, ["demo", "--gateway", "--turns", "3", "--window", "14000"]).output
    assert "3 of 3" in shown and "through midfold" in shown
    folded = CliRunner().invoke(main, ["demo"]).output
    assert "338 messages" in folded


def test_serve_listens_relays_and_ends_when_it_is_told_to(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with ScriptedProvider([openai_json("hello")]) as provider:
        command = [sys.executable, "-m", "midfold", "serve", "--upstream", provider.url, "--port", str(port)]
        process = subprocess.Popen(
            command,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "XDG_DATA_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path), "MIDFOLD_CONFIG": ""},
        )
        try:
            url = f"http://127.0.0.1:{port}"
            ends = time.monotonic() + 60
            while time.monotonic() < ends:
                try:
                    assert call(url, "GET", "/healthz")[0] == 200
                    break
                except ConnectionError:
                    time.sleep(0.05)
            status, headers, body = call(url, "POST", "/v1/chat/completions", {"model": "m", "messages": []})
            assert (status, headers["x-midfold-action"], body) == (200, "relayed", openai_json("hello").body)
            assert "server" in headers and "uvicorn" not in headers["server"]
        finally:
            process.send_signal(signal.SIGTERM)
            told = process.communicate(timeout=60)[1]
    assert "listening on" in told and "ANTHROPIC_BASE_URL=" in told
    store = tmp_path / "midfold" / "sessions.db"
    assert store.exists() and (store.stat().st_mode & 0o077) == 0


def test_serve_without_an_upstream_says_what_is_missing(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "midfold", "serve", "--store", "memory:"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "XDG_CONFIG_HOME": str(tmp_path)},
    )
    assert (done.returncode, "--upstream URL" in done.stderr) == (2, True)
