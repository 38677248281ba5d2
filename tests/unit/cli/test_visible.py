"""Control sequences from transcripts, stores and models are shown in a terminal but never executed, in any command."""

from __future__ import annotations

import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import midfold
from midfold.cli.terminal import make_table, share_bar, visible, visible_json
from midfold.testing import ScriptedProvider
from midfold.testing.answers import turn
from support.terminal import Terminal

MIDFOLD = (sys.executable, "-m", "midfold")
ATTACK = (
    "\x1b]0;owned\x07\x1b[2J\x1b[31m\x9b2J\x08\x7f\u202egnp.exe\u2066\u200b[red]r[/red][link=http://e]l[/link]:bomb:"
)
COLOURS = re.compile(r"\x1b\[(?:[0-9;]*m|\?25[lh]|2K|1A)")  # and those of progress bars
STEERING = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\u200b\u2028-\u202e\u2066-\u2069]")


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("plain, ünïcode 漢字 🎉", "plain, ünïcode 漢字 🎉"),
        ("👩\u200d🚀 a\u00a0b\u3000c", "👩\u200d🚀 a\u00a0b\u3000c"),
        ("a\tb", "a\tb"),
        ("a\nb\r\n", "a\\nb\\r\\n"),
        ("\x1b[31m", "\\x1b[31m"),
        ("\x9b2J\x7f\x00", "\\x9b2J\\x7f\\x00"),
        ("\u202e\u2066\u200f\u200b\ufeff", "\\u202e\\u2066\\u200f\\u200b\\ufeff"),
        ("\U000e0041\ud800", "\\U000e0041\\ud800"),
    ],
)
def test_what_steers_is_written_out(given: str, shown: str) -> None:
    assert visible(given) == shown
    assert visible(given, lines=True) == shown.replace("\\n", "\n")


def test_json_keeps_its_value() -> None:
    value = {ATTACK: [ATTACK, "\U000e0041", 1]}
    shown = visible_json(json.dumps(value, ensure_ascii=False, indent=1))
    assert json.loads(shown) == value
    assert not STEERING.search(shown)


def conversation() -> list[dict[str, Any]]:
    said: list[dict[str, Any]] = [{"role": "user", "content": f"Please {ATTACK} look at `{ATTACK}`."}]
    for number in range(60):
        call = {"name": f"create_tool{ATTACK}", "arguments": json.dumps({"path": f"{ATTACK}{number}"})}
        said.append(
            {
                "role": "assistant",
                "content": f"Step {number} {ATTACK}",
                "tool_calls": [{"id": f"c{number}", "type": "function", "function": call}],
            }
        )
        told = f"error: {ATTACK} result {number}\n" + f"line {number} is well {ATTACK}\n" * 12
        said.append({"role": "tool", "tool_call_id": f"c{number}", "content": told})
    return said


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a folder with a hostile transcript, its archive, and a store with hostile names."""
    folder = tmp_path_factory.mktemp("hostile")
    body = {"model": f"gpt-4o{ATTACK}", "messages": conversation()}
    (folder / "t.json").write_text(json.dumps(body))
    (folder / "u.json").write_text(json.dumps({**body, "messages": [*conversation()[:-1], {"role": "user"}]}))
    with midfold.open(f"sqlite:///{folder}/s.db") as sessions:
        session = sessions.session("mine", model=f"gpt-4o{ATTACK}", context_length=16_000)
        session.append(conversation())
        session.compact(force=True)
    run = subprocess.run(
        (*MIDFOLD, "compact", "t.json", "--context-length", "16000", "-o", "out.json", "--json"),
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        check=True,
    )
    assert not STEERING.search(run.stdout.decode())
    return folder


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDFOLD_")}
    return {**kept, "HOME": str(folder), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}


STORE = ("--store", "sqlite:///s.db")
COMMANDS: dict[str, tuple[str, ...]] = {
    "inspect": ("inspect", "t.json"),
    "inspect, with problems": ("inspect", "u.json"),
    "artifacts": ("artifacts", "t.json"),
    "artifacts, folded": ("artifacts", "out.json"),
    "compact": ("compact", "t.json", "--context-length", "16000"),
    "preview": ("compact", "t.json", "--context-length", "16000", "--preview"),
    "compact as JSON": ("compact", "t.json", "--context-length", "16000", "--json"),
    "list": ("sessions", "list", *STORE),
    "list as JSON": ("sessions", "list", "--json", *STORE),
    "show": ("sessions", "show", "mine", *STORE),
    "view": ("sessions", "view", "mine", *STORE),
    "view as JSON": ("sessions", "view", "mine", "--json", *STORE),
    "history": ("sessions", "view", "mine", "--at", "0", *STORE),
    "search": ("sessions", "search", "result 7", *STORE),
    "search as JSON": ("sessions", "search", "result 7", "--json", *STORE),
    "receipts": ("sessions", "receipts", "mine", *STORE),
    "export": ("sessions", "export", "mine", *STORE),
    "handles": ("unfold", "out.json.archive"),
    "originals": ("unfold", "out.json.archive", "mf-"),
    "diff": ("cache", "diff", "t.json", "u.json"),
    "models": ("models", f"gpt-4o{ATTACK}"),
    "no file": ("inspect", f"none{ATTACK}.json"),
    "no session": ("sessions", "view", f"none{ATTACK}", *STORE),
    "eval": ("eval", "t.json", "--budgets", "10", "--methods", "midfold", "--workers", "1"),
    "replay": ("replay", "t.json", "--windows", "16k", "--policy", "documented", "--workers", "1"),
}
EXACT = ("view as JSON", "export", "originals")


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_lets_a_transcript_steer_the_terminal(place: Path, name: str) -> None:
    with Terminal((*MIDFOLD, *COMMANDS[name]), folder=place, environment=environment(place)) as terminal:
        terminal.ended()
        shown = COLOURS.sub("", terminal.raw.decode())
    assert "Traceback" not in shown
    assert STEERING.findall(shown) == []


@pytest.mark.parametrize("name", [name for name in COMMANDS if name not in EXACT])
def test_nor_does_what_is_piped(place: Path, name: str) -> None:
    done = subprocess.run(
        (*MIDFOLD, *COMMANDS[name]), cwd=place, env=environment(place), capture_output=True, check=False
    )
    assert STEERING.findall((done.stdout + done.stderr).decode()) == []


@pytest.mark.parametrize("name", ["inspect", "compact", "view", "search"])
def test_it_is_shown(place: Path, name: str) -> None:
    done = subprocess.run(
        (*MIDFOLD, *COMMANDS[name]), cwd=place, env=environment(place), capture_output=True, text=True, check=True
    )
    flat = re.sub(r"[\s│]", "", done.stdout)
    if name != "compact":  # a summary has no control characters
        assert "\\x1b]0;owned\\x07" in flat
    if name in ("compact", "search"):
        assert "[red]r[/red][link=http://e]l[/link]:bomb:" in flat


def test_what_is_exact_stays_exact_where_it_is_piped(place: Path) -> None:
    done = subprocess.run(
        (*MIDFOLD, *COMMANDS["view as JSON"]), cwd=place, env=environment(place), capture_output=True, check=True
    )
    with midfold.open(f"sqlite:///{place}/s.db") as sessions:
        assert done.stdout.rstrip(b"\n") == sessions.session("mine").view().json()


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    said = [
        turn("openai", f"Look {ATTACK} here.", [("shell", {"command": f"printf '{ATTACK}'; echo"}), (ATTACK, {})]),
        turn("openai", f"Done {ATTACK}."),
    ]
    with ScriptedProvider(said) as made:
        yield made


@pytest.mark.parametrize("more", [(), ("--json",)])
def test_a_model_cannot_steer_the_terminal_either(
    place: Path, provider: ScriptedProvider, more: tuple[str, ...]
) -> None:
    options = ("--base-url", f"{provider.url}/v1", "--model", "scripted", "--local", "--yes", "--store", "memory:")
    command = (*MIDFOLD, "agent", "run", "Go.", *options, *more)
    with Terminal(command, folder=place, environment=environment(place)) as terminal:
        assert terminal.ended() == 0
        shown = COLOURS.sub("", terminal.raw.decode())
    assert STEERING.findall(shown) == []
    assert "owned" in shown


def drawn(width: int, keys: int) -> list[str]:
    table = make_table("method", ">budget", ">used", ">kept", "what it means", keys=keys)
    for number in range(2):
        table.add_row(f"policy {number}", f"{number + 5} %", "12,345", "0.917", "words may be broken into lines")
    out = Console(width=width, file=io.StringIO())
    out.print(table)
    file = out.file
    assert isinstance(file, io.StringIO)
    return [line.rstrip() for line in file.getvalue().splitlines()]


def test_a_table_that_is_too_wide_goes_on_below_and_breaks_no_number() -> None:
    assert drawn(80, 1)[:2] == [
        "method    budget    used   kept  what it means",
        "policy 0     5 %  12,345  0.917  words may be broken into lines",
    ]
    assert drawn(34, 2) == [
        "method    budget    used   kept",
        "policy 0     5 %  12,345  0.917",
        "policy 1     6 %  12,345  0.917",
        "",
        "method    budget  what it means",
        "policy 0     5 %  words may be",
        "                  broken into",
        "                  lines",
        "policy 1     6 %  words may be",
        "                  broken into",
        "                  lines",
    ]
    assert all("12,345" in line for line in drawn(18, 1) if line.startswith("policy") and "," in line)


def test_bars_give_way_to_words_in_a_narrow_terminal() -> None:
    for width, cells in ((120, 32), (80, 28), (60, 8), (20, 1)):
        assert len(share_bar(Console(width=width, file=io.StringIO()), 1.0)) == cells
