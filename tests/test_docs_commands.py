"""Every command in the tutorial and the how-tos runs, and every mentioned one exists with its options.

Blocks run in a shell, in a folder with the files that the pages mention, with a temporary home, a local provider
and
stubs for other programs. Commands that need another machine are skipped with the reason below.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import click
import pytest

from midfold.cli.main import main
from midfold.testing import ScriptedProvider
from midfold.testing.answers import anthropic_json, openai_json
from midfold.testing.doubles import Request
from support.data import SHARED, need

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs/tutorial").glob("*.md")),
    *sorted((ROOT / "docs/howto").glob("*.md")),
]
REASONS = {
    "--executor ray": "needs a Ray cluster (tests/e2e/test_trajectory_ray.py)",
    "postgresql://": "needs a PostgreSQL server of that name (tests/contract/test_store_contract.py)",
}
FOLD = "midfold compact before.json --context-length 32000 --local -o after.json --quiet"
PREPARED = {
    "after.json": FOLD,
    "session:last": "midfold import claude-code --all",
    "midfold pages": "midfold import codex --all",
}
"""Setup required before a page's commands."""
STAYS = re.compile(r"midfold (?:serve|pages)\b")
"""Commands that run until interrupted."""
DIFFERS = re.compile(r"midfold cache diff ")
"""Commands whose exit code reports that two requests differ."""
SHELLS = ("", "sh", "console")
STARTS = ("midfold ", ".venv/bin/midfold ", "cat ", "zcat ", "echo ")
INLINE = re.compile(r"`midfold ([a-z][^`]*)`")


def blocks_of(text: str) -> Iterator[list[str]]:
    """Yield the lines of each fenced or indented block that is not a program."""
    language, block = None, list[str]()
    for line in [*text.splitlines(), ""]:
        is_fence = line.lstrip().startswith("```")
        if language is None and (is_fence or not re.match(r" {4,}\S", line)):
            yield block
            block = []
        if is_fence:
            if language in SHELLS:
                yield block
            block = []
            language = line.strip()[3:] if language is None else None
        elif language is not None or re.match(r" {4,}\S", line):
            block.append(line.strip())


def commands_of(page: Path) -> list[str]:
    """Return the command lines in the blocks of a page, without prompts."""
    found = []
    for lines in blocks_of(page.read_text(encoding="utf-8")):
        prompted = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
        found += [line for line in prompted or lines if line.startswith(STARTS) and "midfold " in line]
    return found


WITH_COMMANDS = [page for page in PAGES if commands_of(page)]


def answer(request: Request) -> object:
    say = anthropic_json if request.path.endswith("/messages") else openai_json
    return say("It is a parser. Nothing fails.")


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider(then=answer) as found:  # type: ignore[arg-type]
        yield found


@pytest.fixture
def playground(tmp_path: Path, provider: ScriptedProvider) -> Path:
    """Create a folder with the files that the pages mention."""
    folder = tmp_path / "project"
    for name in ("runs", "sessions", "examples", "bin", "my_package", ".venv/bin"):
        (folder / name).mkdir(parents=True)
    session = ROOT / "examples/coding-session.json"
    for name in ("my-session.json", "request.json", "before.json", "examples/coding-session.json"):
        shutil.copy(session, folder / name)
    log = (ROOT / "tests/data/logs/claude_code.jsonl").read_text()
    (folder / "session.jsonl").write_text(log)
    (tmp_path / ".claude/projects/x").mkdir(parents=True)
    (tmp_path / ".claude/projects/x/b92f5b9a-14f8-4d21-afab-d832fdf717d2.jsonl").write_text(log)
    (tmp_path / ".codex/sessions").mkdir(parents=True)
    shutil.copy(ROOT / "tests/data/logs/codex.jsonl", tmp_path / ".codex/sessions/rollout-1.jsonl")
    record = json.dumps({"messages": json.loads(session.read_bytes())["messages"]})
    for name in ("runs/a.jsonl", "sessions/a.jsonl"):
        (folder / name).write_text(record + "\n")
    usage = {"_meta": {"usage": {"prompt_tokens": 900}}}
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", **usage}]
    (folder / "conversations.jsonl").write_text(json.dumps({"id": "one", "messages": said}) + "\n")
    (folder / "runs.jsonl.gz").write_bytes(gzip.compress(record.encode()))
    (folder / "my_package/summaries.py").write_text("def write(ask):\n    return '## Goal\\nDo it.'\n")
    (folder / "my_compactors.py").write_text("def last_twenty(messages, target_tokens):\n    return messages[-20:]\n")
    settings = f"""
providers:
  endpoint:
    base_url: {provider.url}/v1
    model: gpt-4o
agent:
  provider: endpoint
auxiliary:
  compression:
    provider: endpoint
"""
    for name in ("my-config.yaml", "config.yaml"):
        (folder / name).write_text(settings)
    programs = {"midfold": f'exec {sys.executable} -m midfold "$@"', "jq": "cat", "train": "cat"}
    for name, line in {**programs, **dict.fromkeys(("claude", "codex", "opencode"), "exit 0")}.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / "bin" / name).chmod(0o755)
    shutil.copy(folder / "bin/midfold", folder / ".venv/bin/midfold")
    return folder


def environment(folder: Path, provider: ScriptedProvider) -> dict[str, str]:
    return {
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "HOME": str(folder.parent),
        "LANG": "C.UTF-8",
        "PYTHONPATH": f"{folder}:{ROOT / 'src'}",
        "PYTHONDONTWRITEBYTECODE": "1",
        "MIDFOLD_CONFIG": str(folder / "config.yaml"),
        "ANTHROPIC_API_KEY": "sk-ant-none",
        "ANTHROPIC_BASE_URL": provider.url,
        "OPENAI_API_KEY": "none",
        "OPENAI_BASE_URL": f"{provider.url}/v1",
    }


@pytest.mark.parametrize("page", WITH_COMMANDS, ids=lambda page: page.stem)
def test_commands_of_the_pages_run(page: Path, playground: Path, provider: ScriptedProvider) -> None:
    given = environment(playground, provider)
    shown_together = " ".join(commands_of(page))
    for mark, prepare in PREPARED.items():
        if mark in shown_together:
            subprocess.run(["bash", "-c", prepare], cwd=playground, env=given, check=True, capture_output=True)
    for shown in commands_of(page):
        if any(mark in shown for mark in REASONS):
            continue
        line = shown.replace("http://127.0.0.1:8080/v1", f"{provider.url}/v1")
        line = line.replace("https://api.anthropic.com", provider.url)
        for written in ("out", "compressed", "short.jsonl"):
            for place in playground.glob(f"{written}*"):
                shutil.rmtree(place) if place.is_dir() else place.unlink()
        if STAYS.search(line):
            assert_listens(line, playground, given)
            continue
        done = subprocess.run(
            ["bash", "-c", f"set -o pipefail; {with_yes(line)}"],
            cwd=playground,
            env=given,
            input="/quit\n" if "midfold chat" in line else "",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == (1 if DIFFERS.search(line) else 0), f"{line}\n{done.stdout}\n{done.stderr}"


def with_yes(line: str) -> str:
    """Add --yes to commands that ask for confirmation."""
    return f"{line} --yes" if line.startswith("midfold install") else line


def assert_listens(line: str, folder: Path, given: dict[str, str]) -> None:
    command = shlex.split(line.partition(" #")[0])
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    with subprocess.Popen(
        [*command, "--port", port], cwd=folder, env=given, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        lines = []
        ends = time.monotonic() + 60
        while time.monotonic() < ends and not any("http://127.0.0.1:" in one for one in lines):
            said = process.stderr.readline()
            if not said:
                break
            lines.append(said)
        process.send_signal(signal.SIGINT)
        try:
            assert process.wait(60) == 130
        finally:
            process.kill()
    assert any("http://127.0.0.1:" in one for one in lines), lines


def test_every_reason_is_needed() -> None:
    shown = [line for page in WITH_COMMANDS for line in commands_of(page)]
    assert len(shown) > 40
    assert [mark for mark in REASONS if not any(mark in line for line in shown)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_commands_that_are_mentioned_exist_with_their_options(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for told in [*INLINE.findall(text), *(line.partition("midfold ")[2] for line in commands_of(page))]:
        words = told.partition(" #")[0].partition(" |")[0].replace("...", " ").split()
        command: click.Command = main
        context = click.Context(main, info_name="midfold")
        while words and isinstance(command, click.Group) and not words[0].startswith("-"):
            found = command.get_command(context, words[0])
            assert found is not None, f"{page.name}: midfold {told}"
            command, words = found, words[1:]
        known = {name for parameter in command.params for name in (*parameter.opts, *parameter.secondary_opts)}
        if command.name == "run":
            continue
        options = [word.strip("[](),").partition("=")[0] for word in words if word.strip("[(").startswith("--")]
        assert set(options) <= {*known, "--help", "--version"}, f"{page.name}: midfold {told}"


def test_the_page_on_misses_shows_what_the_command_prints(playground: Path, provider: ScriptedProvider) -> None:
    given = environment(playground, provider)
    done = subprocess.run(
        ["bash", "-c", f"{FOLD}; midfold cache diff before.json after.json"],
        cwd=playground,
        env=given,
        capture_output=True,
        text=True,
        check=False,
    )
    page = (ROOT / "docs/howto/debug-a-cache-miss.md").read_text(encoding="utf-8")
    shown = re.search(r"\$ midfold cache diff before.json after.json\n(.*?)\n\n", page, re.S)
    assert shown is not None
    assert [line.strip() for line in shown[1].splitlines()] == [line.strip() for line in done.stdout.splitlines()]


def test_the_readme_has_a_short_table_of_figures() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.search(r"## Measured\n.*?\n((?:\|[^\n]*\n)+)", text, re.S)
    assert table is not None and len(table[1].splitlines()) <= 2 + 10


SHARED_MARK = "../shared/data"
ALL_PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ON_SHARED_DATA = (
    "midfold replay ../shared/data --windows 32k",
    "midfold eval ../shared/data",
    "midfold inspect ../shared/data/miniswe_deepseek/conversations.jsonl",
    "midfold artifacts ../shared/data/codex_agentv/conversations.jsonl",
    "midfold compact ../shared/data/claude_code_entire/conversations.jsonl --conversation 1",
    "midfold compact ../shared/data/claude_code_entire/conversations.jsonl --conversation 1 --preview",
    "midfold trajectories compress ../shared/data/tau_airline_gpt4o/conversations.jsonl short.jsonl",
)
"""Commands that the pages show for the reader's own transcripts, at default settings."""


def commands_on_shared_data() -> list[str]:
    """Return the commands of all pages that name the shared transcripts, in blocks and within sentences."""
    found = []
    for page in ALL_PAGES:
        text = page.read_text(encoding="utf-8").replace("\\\n", " ")
        inline = [f"midfold {rest}" for rest in INLINE.findall(text)]
        blocks = [line for lines in blocks_of(text) for line in lines if line.startswith("midfold ")]
        found += [" ".join(line.split()) for line in (*inline, *blocks) if SHARED_MARK in line]
    return list(dict.fromkeys([*found, *ON_SHARED_DATA]))


def test_pages_name_commands_on_the_shared_data() -> None:
    assert set(commands_on_shared_data()) > set(ON_SHARED_DATA)


@pytest.mark.skipif(not os.environ.get("MIDFOLD_REQUIRE_ALL"), reason="minutes of work: make test-all runs it")
@pytest.mark.parametrize("line", commands_on_shared_data())
def test_commands_run_on_the_shared_data(line: str, playground: Path, provider: ScriptedProvider) -> None:
    need(SHARED.is_dir(), "the shared transcripts (../shared/data) are not here")
    done = subprocess.run(
        ["bash", "-c", line.replace(SHARED_MARK, str(SHARED))],
        cwd=playground,
        env=environment(playground, provider),
        capture_output=True,
        text=True,
        timeout=1_800,
        check=False,
    )
    assert done.returncode == 0, f"{line}\n{done.stdout[-2_000:]}\n{done.stderr[-2_000:]}"
    assert "Traceback" not in done.stderr
