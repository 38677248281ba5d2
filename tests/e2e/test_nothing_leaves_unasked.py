"""A key in the environment sends no transcript anywhere: every face, with every key set, and a trap on loopback.

The trap is the address that every provider's key would be used at. Beside it, an audit hook in each process writes
down every name that is looked up and every connection that is tried: what would go past the trap is seen as well.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midfold.model.endpoint import KNOWN
from midfold.testing import ScriptedProvider
from midfold.testing.answers import summary, turn
from support.provider_replies import Turn
from support.rules_provider import RulesProvider
from support.terminal import CTRL_D, Terminal

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples" / "coding-session.json")
MIDFOLD = (sys.executable, "-m", "midfold")
KEY = "sk-" + "never-to-be-sent"
HOOK = """
import os, sys

def heard(event, arguments):
    if event == "socket.connect" and isinstance(arguments[1], tuple):
        tried = f"{arguments[1][0]}:{arguments[1][1]}"
    elif event == "socket.getaddrinfo" and arguments[0]:
        tried = f"{arguments[0]}:{arguments[1]}"
    else:
        return
    with open(os.environ["TRIED"], "a") as file:
        file.write(tried + "\\n")

sys.addaudithook(heard)
"""


class Trap:
    """A port that takes connections, answers nothing of use, and counts."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.hits = folder, 0
        self._door = socket.create_server(("127.0.0.1", 0))
        self.port = self._door.getsockname()[1]
        self.tried_file = folder / "tried"
        (folder / "hook").mkdir()
        (folder / "hook" / "sitecustomize.py").write_text(HOOK)
        self._thread = threading.Thread(target=self._take, daemon=True)
        self._thread.start()

    def _take(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
            except OSError:
                return
            self.hits += 1
            with connection:
                connection.sendall(b"HTTP/1.1 401 Unauthorized\r\ncontent-length: 0\r\nconnection: close\r\n\r\n")

    def close(self) -> None:
        """Wakes the thread that waits at the door: it would go on answering there."""
        self._door.shutdown(socket.SHUT_RDWR)
        self._thread.join(10)
        self._door.close()

    @property
    def environment(self) -> dict[str, str]:
        url = f"http://127.0.0.1:{self.port}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDFOLD_")}
        keys = {known.key_variable: KEY for known in KNOWN.values()}
        places = {known.base_url_variable: url for known in KNOWN.values() if known.base_url_variable}
        proxies = {"HTTP_PROXY": url, "HTTPS_PROXY": url, "NO_PROXY": "127.0.0.1"}
        own = {"HOME": str(self.folder), "XDG_CONFIG_HOME": str(self.folder), "XDG_DATA_HOME": str(self.folder)}
        hooked = {"PYTHONPATH": str(self.folder / "hook"), "TRIED": str(self.tried_file)}
        return {**kept, **keys, **places, **proxies, **own, **hooked}

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert KEY not in done.stdout + done.stderr
        return done

    def tried(self, *allowed: str) -> list[str]:
        """What was looked up or connected to, but for what was meant to be."""
        lines = self.tried_file.read_text().splitlines() if self.tried_file.exists() else []
        return [line for line in lines if line not in allowed]


@pytest.fixture
def trap(tmp_path: Path) -> Iterator[Trap]:
    made = Trap(tmp_path)
    yield made
    made.close()


def test_the_trap_would_catch_what_is_sent(trap: Trap) -> None:
    """The other tests say something only if this one holds."""
    done = trap.run(*MIDFOLD, "compact", EXAMPLE, "--context-length", "32000", "--summarizer", "anthropic")
    assert "summary: claude-haiku-4-5 at 127.0.0.1" in done.stderr
    assert trap.hits > 0
    assert trap.tried() != []


def test_compact_is_local_and_says_that_a_key_was_not_used(trap: Trap) -> None:
    for more in ((), ("--json",), ("--force", "--focus", "the task"), ("--model", "claude-opus-4-6"), ("--preview",)):
        done = trap.run(*MIDFOLD, "compact", EXAMPLE, "--context-length", "32000", *more)
        assert done.returncode == 0, done.stderr
        assert ("ANTHROPIC_API_KEY" in done.stderr) is (more != ("--preview",))
    assert "alone sends nothing; auxiliary.compression.provider (main, or a provider's name) does" in trap.run(
        *MIDFOLD, "compact", EXAMPLE, "--context-length", "32000"
    ).stderr.replace("\n", " ")
    assert (trap.hits, trap.tried()) == (0, [])


@pytest.mark.parametrize(
    "command",
    [
        ("inspect", EXAMPLE),
        ("demo",),
        ("doctor", "--model", "claude-opus-4-6"),
        ("eval", EXAMPLE, "--budgets", "10", "--methods", "midfold", "--workers", "1"),
        ("replay", EXAMPLE, "--windows", "32k", "--policy", "documented", "--exams", "0", "--workers", "1"),
        ("trajectories", "compress", EXAMPLE, "out.json", "--target-tokens", "4000", "--workers", "1"),
    ],
    ids=lambda command: command[0],
)
def test_commands_that_look_at_transcripts_ask_nobody(trap: Trap, command: tuple[str, ...]) -> None:
    done = trap.run(*MIDFOLD, *command)
    assert done.returncode == 0, done.stderr
    assert (trap.hits, trap.tried()) == (0, [])
    if command[0] == "doctor":
        assert "a key alone sends nothing" in done.stdout.replace("keys alone", "a key alone")


def test_a_trajectory_model_must_be_named(trap: Trap) -> None:
    done = trap.run(*MIDFOLD, "trajectories", "compress", EXAMPLE, "out.json", "--summarizer", "model")
    assert done.returncode != 0
    assert "alone sends nothing" in done.stdout + done.stderr
    assert (trap.hits, trap.tried()) == (0, [])


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_make_demo_needs_no_network(trap: Trap) -> None:
    """Where the kernel allows it, in a namespace of its own, in which there is no network at all."""
    made = ("make", "-C", str(ROOT), "-o", f"{sys.prefix}/.run", f"VENV={sys.prefix}", "demo")
    alone = ("unshare", "-rn")
    walled = shutil.which("unshare") is not None and trap.run(*alone, "true").returncode == 0
    done = trap.run(*(alone if walled else ()), *made)
    assert done.returncode == 0, done.stderr
    assert "compacted" in done.stdout
    assert "alone sends nothing" in done.stderr
    assert (trap.hits, trap.tried()) == (0, [])


LIBRARY = """
import json, sys, midfold
from midfold.config import Config, load
messages = json.loads(open(sys.argv[1]).read())
messages = messages.get("messages", messages) if isinstance(messages, dict) else messages
for config in (None, Config(), load().config):
    for model in (None, "claude-opus-4-6", "gpt-4o"):
        done = midfold.compact(messages, context_length=32_000, model=model, config=config)
        assert done.changed and done.receipt.summary.source != "model", done.receipt
        host = midfold.EngineHost(context_length=32_000, model=model, config=config)
        host.append(messages)
        host.compress(messages)
        with midfold.open("memory:", config=config) as sessions:
            session = sessions.session("s", model=model, context_length=32_000)
            session.append(messages)
            assert session.compact().changed
"""


def test_the_library_hosts_and_sessions_ask_nobody(trap: Trap) -> None:
    done = trap.run(sys.executable, "-c", LIBRARY, EXAMPLE)
    assert done.returncode == 0, done.stderr
    assert (trap.hits, trap.tried()) == (0, [])


def test_the_gateway_asks_nobody_but_its_upstream(trap: Trap) -> None:
    said = [{"role": "user", "content": "Go."}]
    for number in range(120):
        said.append({"role": "assistant", "content": f"Step {number}: " + "all is well with this module. " * 20})
        said.append({"role": "user", "content": f"And {number}? " + "please look at the next one as well. " * 20})
    port = _free_port()
    (trap.folder / "config.yaml").write_text("models: {'*': {context_window: 32768}}\n")
    with RulesProvider(lambda request: Turn(text="Yes."), window=32_768) as provider:
        options = ("--upstream", provider.url, "--port", str(port), "--store", "memory:", "--config", "config.yaml")
        with subprocess.Popen(
            (*MIDFOLD, "serve", *options), cwd=trap.folder, env=trap.environment, stderr=subprocess.PIPE, text=True
        ) as process:
            try:
                _wait_for(port)
                body = {"model": "claude-opus-4-6", "max_tokens": 100, "messages": said}
                asked = urllib.request.Request(
                    f"http://127.0.0.1:{port}/v1/messages",
                    json.dumps(body).encode(),
                    {"content-type": "application/json", "x-api-key": "theirs", "anthropic-version": "2023-06-01"},
                )
                with urllib.request.urlopen(asked, timeout=60) as answer:
                    assert answer.headers["x-midfold-action"] == "compacted"
            finally:
                process.terminate()
            told = process.communicate(timeout=30)[1]
        assert len(provider.requests) == 1
        assert "summaries: local, without a model (auto:" in told
        own = (f"127.0.0.1:{provider.url.rpartition(':')[2].rstrip('/')}", f"127.0.0.1:{port}")
    assert trap.hits == 0
    assert {line.partition(":")[2] for line in trap.tried(*own)} <= {own[0].partition(":")[2], str(port), "None"}


def long_work(turns: int) -> Callable[[Any], Any]:
    """A provider that reads files for so many turns, and writes summaries where it is asked for one."""
    left = iter(range(turns))

    def answer(request: Any) -> Any:
        tokens = len(request.raw) // 3
        if not request.body.get("tools"):
            return summary("openai", "The user wants everything read; step 7 was done.")
        number = next(left, None)
        if number is None:
            return turn("openai", "I have read it.", prompt_tokens=tokens)
        said = f"Step {number}: " + " ".join(f"part{number}x{place} is well" for place in range(200))
        return turn("openai", said, [("read_file", {"path": f"none{number}.txt"})], prompt_tokens=tokens)

    return answer


def talk_options(provider: ScriptedProvider) -> tuple[str, ...]:
    return ("--base-url", f"{provider.url}/v1", "--model", "claude-scripted", "--context-length", "16000")


def test_an_agent_asks_whom_it_talks_to_and_nobody_else(trap: Trap) -> None:
    """Keys of others are set; the fold's summary is asked for where the conversation is held."""
    with ScriptedProvider(then=long_work(30)) as provider:
        place = ("--folder", str(trap.folder), "--store", "memory:")
        done = trap.run(*MIDFOLD, "agent", "run", "Read.", *talk_options(provider), *place)
        assert done.returncode == 0, done.stderr
        assert "compacted" in done.stderr
        assert any(not request.body.get("tools") for request in provider.requests)
        own = provider.url.rpartition(":")[2].rstrip("/")
    assert trap.hits == 0
    assert {line.rpartition(":")[2] for line in trap.tried()} == {own}


@pytest.mark.parametrize("more", [(), ("--local",)], ids=["auto", "local"])
def test_a_chat_asks_whom_it_talks_to_and_nobody_else(trap: Trap, more: tuple[str, ...]) -> None:
    """`auto` is the provider of the conversation, in the folds at the threshold and in those that the user wants."""
    with ScriptedProvider(then=long_work(30)) as provider:
        command = (*MIDFOLD, "chat", *talk_options(provider), *more)
        own = {**trap.environment, "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}
        with Terminal(command, folder=trap.folder, environment=own) as terminal:
            terminal.wait_for("> ")
            terminal.type("Read.")
            assert "compacted" in terminal.wait_for("I have read it.", 120)
            terminal.wait_for("> ")
            terminal.type("/compress")
            terminal.wait_for("messages")
            terminal.wait_for("> ")
            terminal.press(CTRL_D)
            assert terminal.ended() == 0
            assert KEY not in terminal.shown
        assert any(not request.body.get("tools") for request in provider.requests) is not bool(more)
        port = provider.url.rpartition(":")[2].rstrip("/")
    assert trap.hits == 0
    assert {line.rpartition(":")[2] for line in trap.tried()} == {port}


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as door:
        return int(door.getsockname()[1])


def _wait_for(port: int) -> None:
    ends = time.monotonic() + 30
    while time.monotonic() < ends:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise AssertionError("the gateway did not come up")
