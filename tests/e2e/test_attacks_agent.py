"""Attacks on users of `midfold chat` and `midfold agent`: pasted confirmations, endless patterns, keys in commands.

Uses a real pseudo-terminal, a real process, and a provider on loopback as the model.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from midfold.testing import Request, ScriptedProvider
from midfold.testing.answers import Answer, turn
from support.terminal import CTRL_C, CTRL_D, Terminal

MIDFOLD = (sys.executable, "-m", "midfold")
QUESTION = "[a]lways: "
SECRET = "of-no-shape-at-all"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    return place


def environment(folder: Path, **more: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDFOLD_")}
    return {**kept, "HOME": str(folder.parent), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1", **more}


def wanting(command: str = "echo done > made.txt", wait: float = 0.0) -> Callable[[Request], Answer]:
    """Return a model that requests a command for every user message, and accepts a refusal."""

    def answer(request: Request) -> Answer:
        if request.body["messages"][-1]["role"] == "tool":
            return turn("openai", "As you like.")
        time.sleep(wait)
        return turn("openai", "", [("shell", {"command": command})])

    return answer


def chat(provider: ScriptedProvider, folder: Path, **more: str) -> Terminal:
    options = ("--base-url", f"{provider.url}/v1", "--model", "scripted", "--local")
    return Terminal((*MIDFOLD, "chat", *options), folder=folder, environment=environment(folder, **more))


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider(then=wanting()) as made:
        yield made


def said(provider: ScriptedProvider) -> list[str]:
    return [item["content"] for item in provider.requests[-1].body["messages"] if item["role"] == "user"]


@pytest.mark.parametrize("terminal_type", ["xterm-256color", "dumb"])
@pytest.mark.parametrize("pasted", ["Make it.\ny\n", "Make it.\ny\ny\ny\nyes\na\nalways\n"])
def test_a_pasted_yes_does_not_run_the_command(
    provider: ScriptedProvider, folder: Path, pasted: str, terminal_type: str
) -> None:
    """In a terminal without bracketed paste the lines arrive as if typed."""
    with chat(provider, folder, TERM=terminal_type) as terminal:
        terminal.wait_for("> ")
        terminal.paste(pasted, bracketed=False)
        terminal.wait_for(QUESTION)
        time.sleep(0.5)
        assert not (folder / "made.txt").exists()
        terminal.answer("n")
        assert "declined" in terminal.wait_for("As you like.")
    assert not (folder / "made.txt").exists()


def test_what_was_typed_while_the_model_was_thinking_is_no_answer(folder: Path) -> None:
    with ScriptedProvider(then=wanting(wait=1.5)) as provider, chat(provider, folder) as terminal:
        terminal.wait_for("> ")
        terminal.type("Make it.")
        for _ in range(3):
            time.sleep(0.3)
            terminal.type("y")
        terminal.wait_for(QUESTION)
        time.sleep(1.0)
        assert not (folder / "made.txt").exists()
        terminal.answer("y")
        terminal.wait_for("As you like.")
    assert (folder / "made.txt").exists()


@pytest.mark.parametrize(
    ("pasted", "bracketed"),
    [("y\n", True), ("\ny\n", True), *((text, False) for text in ("y\n", "yes\n", "a\n", "\ny\n", "y\ny\ny\n"))],
)
def test_a_line_pasted_at_the_question_is_no_answer(
    provider: ScriptedProvider, folder: Path, pasted: str, bracketed: bool
) -> None:
    with chat(provider, folder) as terminal:
        terminal.wait_for("> ")
        terminal.type("Make it.")
        terminal.wait_for(QUESTION)
        time.sleep(0.3)
        terminal.paste(pasted, bracketed=bracketed)
        terminal.wait_for(QUESTION)
        time.sleep(0.5)
        assert not (folder / "made.txt").exists()
        terminal.answer("y")
        terminal.wait_for("As you like.")
    assert (folder / "made.txt").exists()


def test_a_slow_paste_is_thrown_away_before_the_question_stands_there(provider: ScriptedProvider, folder: Path) -> None:
    with chat(provider, folder) as terminal:
        terminal.wait_for("> ")
        terminal.type("Make it.")
        for _ in range(20):
            terminal.paste("y", bracketed=False)
            time.sleep(0.05)
            terminal.paste("\n", bracketed=False)
            time.sleep(0.05)
        terminal.wait_for(QUESTION)
        time.sleep(0.5)
        assert not (folder / "made.txt").exists()


def test_a_bracketed_paste_is_one_message(provider: ScriptedProvider, folder: Path) -> None:
    with chat(provider, folder) as terminal:
        terminal.wait_for("> ")
        assert b"\x1b[?2004h" in terminal.raw
        terminal.paste("First line.\n/quit\ny\nlast line.")
        time.sleep(0.5)
        assert provider.requests == []
        terminal.press(b"\r")
        terminal.wait_for(QUESTION)
        assert said(provider) == ["First line.\n/quit\ny\nlast line."]
        assert not (folder / "made.txt").exists()
        terminal.answer("n")
        terminal.wait_for("As you like.")
        terminal.wait_for("> ")
        terminal.paste("/usr/bin/thing fails:\nno such file")
        terminal.press(b"\r")
        terminal.wait_for(QUESTION)
        assert said(provider)[-1] == "/usr/bin/thing fails:\nno such file"


@pytest.mark.parametrize(("key", "over"), [(CTRL_C, "interrupted"), (CTRL_D, "declined")])
def test_leaving_the_question_is_no(provider: ScriptedProvider, folder: Path, key: bytes, over: str) -> None:
    with chat(provider, folder) as terminal:
        terminal.wait_for("> ")
        terminal.type("Make it.")
        terminal.wait_for(QUESTION)
        terminal.press(key)
        terminal.wait_for(over)
        terminal.wait_for("> ")
        terminal.type("/quit")
        assert terminal.ended() == 0
    assert not (folder / "made.txt").exists()


def test_piped_input_never_agrees(provider: ScriptedProvider, folder: Path) -> None:
    options = ("--base-url", f"{provider.url}/v1", "--model", "scripted", "--local")
    done = subprocess.run(
        (*MIDFOLD, "chat", *options),
        cwd=folder,
        env=environment(folder),
        input="Make it.\ny\ny\na\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "declined" in done.stdout
    assert not (folder / "made.txt").exists()


def test_a_session_is_not_deleted_by_what_was_typed_before(folder: Path) -> None:
    store = f"sqlite:///{folder}/s.db"
    script = f"import midfold; midfold.open('{store}').session('mine').append([{{'role': 'user', 'content': 'Hi.'}}])"
    subprocess.run((sys.executable, "-c", script), check=True)
    command = (*MIDFOLD, "sessions", "delete", "mine", "--store", store)
    with Terminal(command, folder=folder, environment=environment(folder)) as terminal:
        terminal.paste("y\ny\n", bracketed=False)
        terminal.wait_for("[n]o: ")
        time.sleep(0.5)
        terminal.answer("n")
        assert terminal.ended() == 1
    with Terminal(command, folder=folder, environment=environment(folder)) as terminal:
        terminal.wait_for("[n]o: ")
        terminal.answer("y")
        assert terminal.ended() == 0
        assert "mine deleted" in terminal.shown


def test_nobody_is_asked_to_agree_to_what_they_were_not_shown(folder: Path) -> None:
    command = f"echo {'harmless ' * 40}; echo hidden-at-the-end > made.txt\necho second-line"
    with ScriptedProvider(then=wanting(command)) as provider, chat(provider, folder) as terminal:
        terminal.wait_for("> ")
        terminal.type("Make it.")
        shown = terminal.wait_for(QUESTION)
        assert "hidden-at-the-end" in shown.replace("\n", "")
        assert "second-line" in shown


def agent(provider: ScriptedProvider, folder: Path, **more: str) -> subprocess.CompletedProcess[str]:
    options = ("--base-url", f"{provider.url}/v1", "--model", "scripted", "--local", "--yes")
    return subprocess.run(
        (*MIDFOLD, "agent", "run", "Do it.", *options),
        cwd=folder,
        env=environment(folder, **more),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def results(provider: ScriptedProvider) -> list[str]:
    return [item["content"] for item in provider.requests[-1].body["messages"] if item["role"] == "tool"]


def test_a_pattern_without_end_is_given_up_and_the_agent_goes_on(folder: Path) -> None:
    (folder / "bait.txt").write_text("a" * 100 + "!\n")
    script: list[Any] = [
        turn("openai", "", [("search", {"pattern": "(a+)+$"})]),
        turn("openai", "", [("search", {"pattern": "(" * 900})]),
        turn("openai", "Done."),
    ]
    with ScriptedProvider(script) as provider:
        started = time.monotonic()
        done = agent(provider, folder)
        assert time.monotonic() - started < 25
        assert done.stdout.strip() == "Done."
        slow, wrong = results(provider)
    assert "given up after 10 s" in slow
    assert "no regular expression" in wrong


def test_commands_do_not_get_keys_passwords_or_settings(folder: Path) -> None:
    secrets = dict.fromkeys(("ANTHROPIC_API_KEY", "GITHUB_TOKEN", "PGPASSWORD", "PGHOST", "DATABASE_URL"), SECRET)
    own = {"MIDFOLD_AGENT__MAX_STEPS": "7", "MIDFOLD_AGENT__SHELL_ENVIRONMENT": "NPM_TOKEN", "NPM_TOKEN": "let-through"}
    calls = [("shell", {"command": "env"}), ("shell", {"command": "cat /proc/$PPID/environ"})]
    with ScriptedProvider([turn("openai", "", calls), turn("openai", "Done.")]) as provider:
        done = agent(provider, folder, **secrets, **own, INNOCENT="postgresql://me:hunter22@127.0.0.1/x")
        assert done.stdout.strip() == "Done.", done.stderr
        given, of_parent = results(provider)
    assert "PATH=" in given
    assert "NPM_TOKEN=let-through" in given
    assert not [name for name in (*secrets, "MIDFOLD_", "INNOCENT", SECRET, "hunter22") if name in given]
    if os.getuid():  # root may read every process
        assert SECRET not in of_parent
