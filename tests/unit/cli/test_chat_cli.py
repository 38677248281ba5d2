"""`midfold chat` in a real pseudo-terminal, and `midfold agent run` for scripts, against a provider on loopback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec
import pytest
from rich.console import Console

from midfold.agent.events import Called
from midfold.cli.chat_shared import Screen
from midfold.testing import Request, ScriptedProvider
from midfold.testing.answers import Answer, error, turn
from support.terminal import CTRL_C, CTRL_D, Terminal

MIDFOLD = (sys.executable, "-m", "midfold")
STORY = "This is a story that never ends. " * 400


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    place = tmp_path / "work"
    place.mkdir()
    (place / "notes.txt").write_text("".join(f"line {number}: the fox is {number * 7}\n" for number in range(90)))
    return place


def environment(folder: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("MIDFOLD_")}
    return {**kept, "HOME": str(folder.parent), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}


def chat(provider: ScriptedProvider, folder: Path, *more: str, window: int = 16_000) -> Terminal:
    options = ("--base-url", f"{provider.url}/v1", "--model", "scripted", "--context-length", str(window), "--local")
    return Terminal((*MIDFOLD, "chat", *options, *more), folder=folder, environment=environment(folder))


def reading(calls: int, last: str = "I have read it.") -> Callable[[Request], Answer]:
    left = iter(range(calls))

    def answer(request: Request) -> Answer:
        tokens = len(request.raw) // 3
        if next(left, None) is None:
            return turn("openai", last, prompt_tokens=tokens, cached=tokens * 9 // 10)
        return turn("openai", "", [("read_file", {"path": "notes.txt"})], prompt_tokens=tokens)

    return answer


def test_a_conversation_with_tools_consent_and_status(folder: Path) -> None:
    script = [
        error(401, "bad key"),
        turn("openai", "Let me look.", [("shell", {"command": "echo one > made.txt; wc -l notes.txt"})]),
        turn("openai", "Shall I go on?", [("shell", {"command": "rm notes.txt"})]),
        turn("openai", "As you like.", prompt_tokens=4_000, cached=3_000),
    ]
    with ScriptedProvider(script) as provider, chat(provider, folder) as terminal:
        greeting = terminal.wait_for("> ")
        assert "scripted at 127.0.0.1" in greeting
        assert "window of 16,000 tokens, compacts at 8,000" in greeting
        assert "💾 Prompt caching: " in greeting
        terminal.type("Hello?")
        assert "the key is missing, wrong, or not allowed" in terminal.wait_for("> ")
        terminal.type("Look at my notes.")
        terminal.wait_for("[a]lways: ")
        assert not (folder / "made.txt").exists()
        terminal.answer("y")
        terminal.wait_for("90 notes.txt")
        terminal.wait_for("[a]lways: ")
        terminal.answer("n")
        status = terminal.wait_for("0 compactions")
        assert "declined" in status
        assert "As you like." in status
        assert "of 16,000" in status
        assert "cache: 75% of the last prompt" in status
        terminal.wait_for("> ")
        terminal.press(CTRL_D)
        assert terminal.ended() == 0
        assert "midfold chat --resume" in terminal.shown
    assert (folder / "made.txt").exists()
    assert (folder / "notes.txt").exists()


def test_a_json_result_is_shown_by_what_it_says_first_other_text_by_its_first_lines() -> None:
    def shown(text: str) -> str:
        out = Console(file=StringIO(), width=200)
        Screen(out)(Called(id="1", name="list", text=text, is_error=False, seconds=0.0))
        return out.file.getvalue()  # type: ignore[attr-defined, no-any-return]

    value = {"rows": [{"path": f"src/{number}.py"} for number in range(500)], "token": "9f8b7c6d5e4f", "exit_code": 2}
    lines = shown(json.dumps({**value, "error": "disk full"})).splitlines()
    assert lines[0].endswith("- error: disk full")
    assert lines[1].strip() == "- `exit_code`: 2"
    assert lines[-1].strip().startswith("and ")
    assert not any("9f8b7c6d5e4f" in line or len(line) > 130 for line in lines)
    assert shown("[1] not JSON\nb\nc\nd\ne").splitlines()[-1].strip() == "and 1 more line"


def test_context_shows_the_window_by_what_the_provider_counted(folder: Path) -> None:
    script = [turn("openai", "Good.", prompt_tokens=9_600)]
    with ScriptedProvider(script) as provider, chat(provider, folder, window=64_000) as terminal:
        terminal.wait_for("> ")
        terminal.type("Hello?")
        terminal.wait_for("0 compactions")
        terminal.wait_for("> ")
        terminal.type("/context")
        shown = terminal.wait_for("scaled to it.")
    assert "of the window" in shown
    assert re.search(r"tool definitions +\d,\d{3} ", shown)
    assert re.search(r"conversation +[\d,]+ ", shown)
    assert re.search(r"free space +54,\d{3} +8[45]\.\d%", shown)


def test_every_number_of_context_follows_what_the_provider_counted(folder: Path) -> None:
    script = [turn("openai", "Good.", prompt_tokens=41_600)]
    with ScriptedProvider(script) as provider, chat(provider, folder, window=64_000) as terminal:
        terminal.wait_for("> ")
        terminal.type("Hello?")
        terminal.wait_for("0 compactions")
        terminal.wait_for("> ")
        terminal.type("/context")
        terminal.wait_for("/context")
        shown = terminal.wait_for("scaled to it.")
    strip, size = shown.strip().splitlines()[:2]
    assert strip.strip().count("█") == 39
    assert len(strip.strip()) == 60
    total = int(size.split()[0].replace(",", ""))
    assert 41_600 <= total < 41_700
    by_kind, by_part = shown.split("Context window")

    def tokens(table: str) -> dict[str, int]:
        rows = re.findall(r"^([a-zA-Z -]+?) +([\d,]+) +[\d.]+%", table, re.MULTILINE)
        return {name: int(number.replace(",", "")) for name, number in rows}

    assert sum(tokens(by_kind).values()) == total
    parts = tokens(by_part)
    assert sum(parts.values()) == 64_000
    assert parts["free space"] == 64_000 - total


def test_pressure_is_shown_to_the_person_and_never_to_the_model(folder: Path) -> None:
    script = [turn("openai", "Good.", prompt_tokens=27_190), turn("openai", "Better.", prompt_tokens=27_200)]
    with ScriptedProvider(script) as provider, chat(provider, folder, window=64_000) as terminal:
        terminal.wait_for("> ")
        terminal.type("Hello?")
        status = terminal.wait_for("0 compactions")
        assert re.search(r"8[45] % of the compaction threshold \(27,\d{3}/32,000\)", status)
        terminal.wait_for("> ")
        terminal.type("And now?")
        terminal.wait_for("0 compactions")
        sent = b"".join(request.raw for request in provider.requests).lower()
    assert b"and now?" in sent
    assert b"threshold" not in sent
    assert b"32,000" not in sent


def test_usage_shows_tokens_cost_and_what_each_compaction_saved(folder: Path) -> None:
    used: list[tuple[int, int]] = []

    def answer(request: Request) -> Answer:
        tokens = len(request.raw) // 3
        used.append((tokens, tokens // 2))
        calls = [("read_file", {"path": "notes.txt"})] if len(used) < 12 else []
        return turn("openai", "" if calls else "I have read it.", calls, prompt_tokens=tokens, cached=tokens // 2)

    options = ("--model", "gpt-5.1", "--context-length", "16000", "--local", "--yes")
    with ScriptedProvider(then=answer) as provider:
        command = (*MIDFOLD, "chat", "--base-url", f"{provider.url}/v1", *options)
        with Terminal(command, folder=folder, environment=environment(folder)) as terminal:
            terminal.wait_for("> ")
            terminal.type("/usage")
            terminal.wait_for("nothing has been sent yet")
            terminal.wait_for("> ")
            terminal.type("Read my notes.")
            terminal.wait_for("I have read it.")
            terminal.wait_for("> ")
            terminal.type("/usage")
            terminal.wait_for("/usage")
            shown = terminal.wait_for("tokens not sent")
    read, cached = sum(tokens for tokens, _ in used), sum(part for _, part in used)
    assert re.search(rf"in, in 12 requests +{read:,}\n", shown)
    assert re.search(rf"read from the cache +{cached:,}\n", shown)
    written = int(re.search(r"^out +([\d,]+)", shown, re.MULTILINE)[1].replace(",", ""))  # type: ignore[index]
    cost = ((read - cached) * 1.25 + cached * 0.125 + written * 10) / 1_000_000
    assert f"cost: ${cost:.2f}" in shown
    assert re.search(r"\d+ % of the compaction threshold \([\d,]+/8,000\)", shown)
    rows = re.findall(r"^ *(\d+) +([\d,]+) +([\d,]+) +([\d,]+) +(\d+) +(?:local|none)", shown, re.MULTILINE)
    assert rows
    for _, before, after, saved, _ in rows:
        old, new, less = (int(text.replace(",", "")) for text in (before, after, saved))
        assert old - new == less > 0


def test_usage_counts_requests_that_a_gateway_compacted(folder: Path) -> None:
    folded = msgspec.structs.replace(
        turn("openai", "Good.", prompt_tokens=1_234, cached=200), headers={"x-midfold-action": "compacted"}
    )
    with ScriptedProvider([folded]) as provider, chat(provider, folder) as terminal:
        terminal.wait_for("> ")
        terminal.type("Hello?")
        terminal.wait_for("0 compactions")
        terminal.wait_for("> ")
        terminal.type("/usage")
        terminal.wait_for("/usage")
        shown = terminal.wait_for("> ")
    assert re.search(r"in, in 1 request +1,234\n", shown)
    assert re.search(r"read from the cache +200\n", shown)
    assert "cost: unknown: no price for scripted" in shown


def test_every_slash_command(folder: Path) -> None:
    with ScriptedProvider(then=reading(12)) as provider, chat(provider, folder, "--yes") as terminal:
        terminal.wait_for("> ")
        terminal.type("Read my notes twelve times.")
        turns = terminal.wait_for("I have read it.")
        assert "compacted" in turns
        assert "revert with /undo" in turns
        terminal.wait_for("> ")

        def said(line: str) -> str:
            terminal.type(line)
            terminal.wait_for(line)
            return terminal.wait_for("> ")

        context = said("/context")
        assert re.search(r"\d+ % of the compaction threshold \([\d,]+/8,000\)", context)
        assert "tool results" in context
        assert "system prompt" in context
        preview = said("/compress --preview")
        assert "would be pruned" in preview
        assert "would be compacted" in said("/compress --preview the fox")
        folded = said("/compress the fox")
        assert "compacted: folded, as requested" in folded
        handle = folded[folded.index("mf-") :].split()[0]
        assert "the fox is 413" in said(f"/unfold {handle}")
        assert " undone; " in said("/undo")
        assert "there is nothing" in said("/compress here")
        found = said("/search fox 413")
        assert "mf-" in found
        assert "current session: " in said("/sessions")
        assert "scripted at 127.0.0.1" in said("/model")
        assert "other at 127.0.0.1" in said("/model other")
        assert "/compress here [N]" in said("/help")
        assert "unknown command /nonsense" in said("/nonsense")
        assert "there is no handle mf-000000000000" in said("/unfold mf-000000000000")
        terminal.type("And now?")
        terminal.wait_for("I have read it.")
        assert provider.requests[-1].body["model"] == "other"
        terminal.wait_for("> ")
        terminal.type("/quit")
        assert terminal.ended() == 0


def test_another_model_on_another_wire_goes_on_with_the_same_conversation(folder: Path) -> None:
    def answer(request: Request) -> Answer:
        wire = "openai" if "chat" in request.path else "anthropic"
        if "tool" not in str(request.body["messages"][-1]):
            return turn(wire, "", [("read_file", {"path": "notes.txt", "lines": 2})])
        return turn(wire, f"Answered over {wire}.")

    with ScriptedProvider(then=answer) as provider:
        keys = {
            "OPENAI_API_KEY": "one",
            "OPENAI_BASE_URL": f"{provider.url}/v1",
            "ANTHROPIC_API_KEY": "two",
            "ANTHROPIC_BASE_URL": provider.url,
        }
        command = (*MIDFOLD, "chat", "--model", "gpt-5.1", "--local")
        with Terminal(command, folder=folder, environment={**environment(folder), **keys}) as terminal:
            terminal.wait_for("> ")
            terminal.type("First question.")
            terminal.wait_for("Answered over openai.")
            terminal.wait_for("> ")
            terminal.type("/model claude-sonnet-4-5")
            assert "claude-sonnet-4-5 at 127.0.0.1" in terminal.wait_for("-token window")
            terminal.wait_for("> ")
            terminal.type("Second question.")
            terminal.wait_for("Answered over anthropic.")
            terminal.wait_for("> ")
            terminal.type("/model gpt-5.1 openai")
            terminal.wait_for("gpt-5.1 at 127.0.0.1")
            terminal.wait_for("> ")
            terminal.type("Third question.")
            terminal.wait_for("Answered over openai.")
            terminal.wait_for("> ")
            terminal.press(CTRL_D)
            assert terminal.ended() == 0
    messages = provider.requests[3].body["messages"]
    assert "messages" in provider.requests[3].path
    assert [message["role"] for message in messages][:4] == ["user", "assistant", "user", "assistant"]
    assert messages[1]["content"][0]["type"] == "tool_use"
    assert messages[2]["content"][0]["type"] == "tool_result"
    last = provider.requests[-1].body["messages"]
    assert [message["role"] for message in last if message["role"] == "user"] == ["user"] * 3
    assert "Answered over anthropic." in str(last)


def test_here_folds_everything_before_the_last_exchanges(folder: Path) -> None:
    words = "A long answer about foxes and their numbers. " * 110
    with ScriptedProvider(then=turn("openai", words)) as provider, chat(provider, folder) as terminal:
        terminal.wait_for("> ")
        for number in range(4):
            terminal.type(f"question {number}")
            terminal.wait_for("compaction")
            terminal.wait_for("> ")
        terminal.type("/compress here 2 --preview")
        assert "would be compacted" in terminal.wait_for("> ")
        terminal.type("/compress here 2")
        assert "compacted" in terminal.wait_for("> ")
        terminal.type("question 4")
        terminal.wait_for("1 compaction")
    asked = [m["content"] for m in provider.requests[-1].body["messages"] if m["role"] == "user"]
    assert asked[-3:] == ["question 2", "question 3", "question 4"]
    assert asked[0] == "question 0"  # the head stays on the first compaction
    assert "question 1" not in asked


def test_ctrl_c_interrupts_the_model_and_not_the_program(folder: Path) -> None:
    script = [
        turn("openai", STORY).slow(0.05),
        turn("openai", "", [("shell", {"command": "echo $$ > pid; sleep 300"})]),
        turn("openai", "Still here."),
    ]
    with ScriptedProvider(script) as provider, chat(provider, folder, "--yes") as terminal:
        terminal.wait_for("> ")
        terminal.type("Tell me a story.")
        terminal.wait_for("never ends")
        terminal.press(CTRL_C)
        terminal.wait_for("interrupted")
        terminal.wait_for("> ")
        terminal.press(CTRL_C)
        terminal.wait_for("or Ctrl-D)")
        terminal.wait_for("> ")
        terminal.type("Sleep.")
        terminal.wait_for("sleep 300")
        while not (folder / "pid").exists() or not (folder / "pid").read_text().strip():
            time.sleep(0.02)
        terminal.press(CTRL_C)
        terminal.wait_for("interrupted")
        terminal.wait_for("> ")
        with pytest.raises(ProcessLookupError):
            os.kill(int((folder / "pid").read_text()), 0)
        terminal.type("Are you there?")
        terminal.wait_for("Still here.")
    sent = str(provider.requests[-1].body["messages"])
    assert "This is a sto" in sent
    assert sent.count("[interrupted by the user]") == 3


def test_a_session_killed_in_the_middle_is_resumed(folder: Path) -> None:
    script = [turn("openai", "I am Bob.")]
    slow = turn("openai", "", [("shell", {"command": "sleep 300"})])
    with ScriptedProvider([*script, slow, turn("openai", "You are Ada.")]) as provider:
        with chat(provider, folder, "--yes") as terminal:
            terminal.wait_for("> ")
            terminal.type("I am Ada.")
            terminal.wait_for("I am Bob.")
            terminal.wait_for("> ")
            terminal.type("Sleep.")
            terminal.wait_for("sleep 300")
            terminal.process.send_signal(signal.SIGKILL)
        with chat(provider, folder, "--resume", "last") as again:
            assert "resumed with" in again.wait_for("> ")
            again.type("Who am I?")
            again.wait_for("You are Ada.")
    assert "I am Ada." in str(provider.requests[-1].body["messages"])
    assert "the program ended before this call did" in str(provider.requests[-1].body["messages"])


def test_without_a_model_the_error_says_what_to_do(folder: Path) -> None:
    done = subprocess.run(
        [*MIDFOLD, "chat"], cwd=folder, env=environment(folder), capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert "--base-url" in done.stderr


def agent(provider: ScriptedProvider, folder: Path, *more: str, **options: Any) -> subprocess.CompletedProcess[str]:
    command = (
        *MIDFOLD,
        "agent",
        "run",
        *more,
        "--base-url",
        provider.url,
        "--wire",
        "anthropic",
        "--model",
        "claude-x",
    )
    return subprocess.run(
        command,
        cwd=folder,
        env=environment(folder),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
        **options,
    )


def test_agent_run_writes_json_events(folder: Path) -> None:
    script = [
        turn("anthropic", "Look.", [("shell", {"command": "cat notes.txt | head -1"})], prompt_tokens=900),
        turn("anthropic", "It is about a fox.", prompt_tokens=1_000, cached=900),
    ]
    with ScriptedProvider(script) as provider:
        done = agent(provider, folder, "What is in the notes?", "--json", "--yes")
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    kinds = [event["event"] for event in events]
    assert kinds[0] == "started"
    assert [kind for kind in kinds if kind != "text"] == ["started", "answer", "call", "result", "answer", "finished"]
    assert "line 0: the fox is 0" in next(event["text"] for event in events if event["event"] == "result")
    assert events[-1] == {
        "event": "finished", "how": "done", "text": "It is about a fox.", "steps": 2, "why": "",
    }  # fmt: skip
    assert [event["cached_tokens"] for event in events if event["event"] == "answer"] == [0, 900]
    first, second = (request.body for request in provider.requests)
    assert second["system"] == first["system"]
    assert provider.requests[0].text.count("cache_control") <= 4


def test_agent_run_prints_the_answer_alone_and_declines_changes_without_yes(folder: Path) -> None:
    script = [turn("anthropic", "", [("shell", {"command": "rm notes.txt"})]), turn("anthropic", "I may not.")]
    with ScriptedProvider(script) as provider:
        done = agent(provider, folder, "-", input="Remove the notes.")
    assert (done.returncode, done.stdout) == (1, "I may not.\n")
    assert "rm notes.txt" in done.stderr
    assert "1 call declined (shell): no terminal to ask on; use --yes to allow commands and changes" in done.stderr
    assert "I may not." not in done.stderr
    assert (folder / "notes.txt").exists()
    assert "nobody can be asked" in provider.requests[1].text


def test_agent_run_fails_with_a_status(folder: Path) -> None:
    with ScriptedProvider([error(404, "model not found")]) as provider:
        done = agent(provider, folder, "Hello?", "--json")
    assert done.returncode == 1
    assert json.loads(done.stdout.splitlines()[-1])["how"] == "failed"
    assert "no such model" in json.loads(done.stdout.splitlines()[-1])["why"]
