"""Ctrl-C and SIGTERM end a command at any time: once is enough, with a one-line message."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import pytest

import midfold
from support.data import need
from support.effort import effort

START = "from midfold.__main__ import run; run()"
BEFORE = """
import os, signal, sys, time
import midfold.cli.{module} as module
before = module.{name}
def instead(*given, **named):
{what}
    return before(*given, **named)
module.{name} = instead
"""
DROPPED = """
    class Last:
        def __del__(self):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
    Last()
"""
SWALLOWED = """
    try:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(1)
    except KeyboardInterrupt:
        pass
"""
TURNED = SWALLOWED + "    raise ValueError('a schema could not be made')\n"
SAID = "midfold: interrupted"


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIDFOLD_", "XDG_"))}
    return {**kept, "HOME": str(home)}


def start(code: str, arguments: list[str], home: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment(home),
    )


def end_of(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return exit status and output; kill a process that continues. Standard input stays open."""
    assert process.stderr is not None
    try:
        process.wait(60)
    finally:
        process.kill()
        told = process.stderr.read()
        process.communicate()
    return process.returncode, told.strip()


@pytest.fixture
def commands(tmp_path: Path) -> Mapping[str, list[str]]:
    store = f"sqlite:///{tmp_path}/s.db"
    with midfold.open(store) as sessions:
        sessions.session("one").append([{"role": "user", "content": "hello"}])
    config = tmp_path / "config.yaml"
    config.write_text(f"keys: {{me: {{hash: 'sha256:{0:064x}'}}}}\ngateway: {{upstream: http://127.0.0.1:9}}\n")
    chosen = ["--store", store, "--config", str(config)]
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    return {
        "pages": ["pages", "--port", "0", *chosen],
        "serve": ["serve", "--port", port, *chosen],
        "mcp": ["mcp", *chosen],
        "mcp --http": ["mcp", "--http", "--port", "0", *chosen],
        "compact": ["compact", "-"],
    }


def test_an_interrupt_is_not_lost_where_python_cannot_raise_it(
    commands: Mapping[str, list[str]], tmp_path: Path
) -> None:
    place = BEFORE.format(module="compact", name="read_conversation", what=DROPPED)
    assert end_of(start(place + START, commands["compact"], tmp_path)) == (130, SAID)


@pytest.mark.parametrize("what", [DROPPED, SWALLOWED], ids=["dropped", "swallowed"])
def test_a_server_does_not_start_after_an_interrupt(
    what: str, commands: Mapping[str, list[str]], tmp_path: Path
) -> None:
    place = BEFORE.format(module="pages", name="listen", what=what)
    code, told = end_of(start(place + START, commands["pages"], tmp_path))
    assert code == 130
    assert told.splitlines()[-1] == SAID and "Traceback" not in told


def test_what_a_library_makes_of_an_interrupt_is_told_as_one(commands: Mapping[str, list[str]], tmp_path: Path) -> None:
    place = BEFORE.format(module="pages", name="listen", what=TURNED)
    assert end_of(start(place + START, commands["pages"], tmp_path)) == (130, SAID)


def test_an_error_of_its_own_is_still_shown(commands: Mapping[str, list[str]], tmp_path: Path) -> None:
    place = BEFORE.format(module="pages", name="listen", what="    raise ValueError('a defect')")
    code, told = end_of(start(place + START, commands["pages"], tmp_path))
    assert code == 1 and told.endswith("ValueError: a defect")


def test_an_interrupt_while_the_command_is_imported_is_one_line(tmp_path: Path) -> None:
    importing = """
import builtins, os, signal
before = builtins.__import__
def instead(name, *more):
    if name == "click":
        os.kill(os.getpid(), signal.SIGINT)
    return before(name, *more)
builtins.__import__ = instead
"""
    assert end_of(start(importing + START, ["--version"], tmp_path)) == (130, SAID)


def test_the_first_process_of_a_container_is_ended_by_sigterm(
    commands: Mapping[str, list[str]], tmp_path: Path
) -> None:
    """The kernel delivers no signal with a default handler to the first process of a container."""
    place = "import signal; signal.raise_signal = lambda number: None\n"
    place += BEFORE.format(
        module="pages", name="listen", what="    os.kill(os.getpid(), signal.SIGTERM); time.sleep(5)"
    )
    assert end_of(start(place + START, commands["pages"], tmp_path)) == (143, "")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=["SIGINT", "SIGTERM"])
@pytest.mark.parametrize("name", ["pages", "serve", "mcp", "mcp --http"])
def test_one_signal_ends_a_server_whenever_it_comes(
    name: str, number: signal.Signals, commands: Mapping[str, list[str]], tmp_path: Path
) -> None:
    need("mcp" not in name or find_spec("mcp"), "the extra mcp is not installed (make test-all does it)")
    began, whole = time.monotonic(), 0.0
    steps = effort(1, 16, 120)
    for step in range(steps + 1):
        process = start(START, commands[name], tmp_path)
        if whole:
            time.sleep(whole * step / steps)
        else:
            wait_until_it_listens(process, name)
            whole = 1.3 * (time.monotonic() - began)
        process.send_signal(number)
        code, told = end_of(process)
        if code == -number and "midfold" not in told:
            continue  # as Python itself exits
        assert "Traceback" not in told, (step, told)
        if number == signal.SIGINT:
            assert code == 130 and told.splitlines()[-1] == SAID, (step, code, told)
        else:
            assert code in (0, -number), (step, code, told)


def wait_until_it_listens(process: subprocess.Popen[str], name: str) -> None:
    assert process.stdin is not None and process.stdout is not None and process.stderr is not None
    if name == "mcp":
        process.stdin.write('{"jsonrpc": "2.0", "id": 1, "method": "ping"}\n')
        process.stdin.flush()
        assert '"id":1' in process.stdout.readline()
    else:
        assert "http://" in process.stderr.readline()
