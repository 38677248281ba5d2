"""First steps of a new user: output files, names, figures, exit behaviour."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner, Result

import midfold
from midfold.cli.fold_picture import segments
from midfold.cli.inspect import describe
from midfold.cli.main import COMMANDS, main
from midfold.cli.options import short_id
from midfold.errors import MidfoldError, NotStored
from midfold.session.conversation import ChatPartner
from midfold.session.session import memory_of
from midfold.testing import ScriptedProvider
from midfold.testing.answers import openai_json, turn
from midfold.transcript.document import read
from support.fixtures import long_tool_heavy_conversation
from support.gateways import call
from support.terminal import Terminal

ROOT = Path(__file__).resolve().parents[3]
CODING = str(ROOT / "examples" / "coding-session.json")
MIDFOLD = (sys.executable, "-m", "midfold")
TALK = long_tool_heavy_conversation().messages


def run(*arguments: str, **options: Any) -> Result:
    result = CliRunner().invoke(main, list(arguments), **options)
    if isinstance(result.exception, MidfoldError):
        raise result.exception
    return result


def environment(home: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("MIDFOLD_", "XDG_", "COLUMNS"))}
    return {**kept, "HOME": str(home), "TERM": "xterm-256color", "LANG": "C.UTF-8", "PYTHONUTF8": "1"}


# Files


def test_an_output_is_checked_before_the_work(tmp_path: Path) -> None:
    missing = str(tmp_path / "none" / "out.json")
    with pytest.raises(MidfoldError, match=f"cannot write {missing}: there is no folder {tmp_path}/none"):
        run("compact", "there-is-no-such-file.json", "-o", missing)
    with pytest.raises(MidfoldError, match="there is no folder"):
        run("compact", "there-is-no-such-file.json", "--picture", str(tmp_path / "none" / "out.svg"))
    with pytest.raises(MidfoldError, match="there is no folder"):
        run("replay", "there-is-no-such-file.json", "--plot", str(tmp_path / "none" / "out.svg"))
    with pytest.raises(MidfoldError, match="it is a folder"):
        run("compact", "there-is-no-such-file.json", "-o", str(tmp_path))


def test_a_file_that_exists_is_replaced_only_when_asked(tmp_path: Path) -> None:
    out, archive = tmp_path / "out.json", tmp_path / "out.json.archive"
    out.write_text("precious")
    with pytest.raises(MidfoldError, match="already exists; use --overwrite to replace it"):
        run("compact", CODING, "--context-length", "32000", "-o", str(out))
    assert out.read_text() == "precious"
    assert run("compact", CODING, "--context-length", "32000", "-o", str(out), "--overwrite", "--quiet").output == ""
    assert json.loads(out.read_bytes())
    assert archive.exists()
    run("compact", CODING, "-o", str(out), "--overwrite")
    assert not archive.exists(), "its handles are in no transcript any more"
    assert [path.name for path in tmp_path.iterdir()] == ["out.json"]


def test_a_dash_writes_the_result_alone_to_standard_output(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run("compact", CODING, "--context-length", "32000", "-o", str(out))
    printed = run("compact", CODING, "--context-length", "32000", "-o", "-")
    assert printed.stdout_bytes.rstrip(b"\n") == out.read_bytes().rstrip(b"\n")
    assert run("compact", CODING, "-o", "-", "--json").exit_code == 2
    assert "would" in run("compact", CODING, "-o", "-", "--preview").stdout


def test_a_dry_run_and_a_backup_that_cannot_be_make_nothing(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/new/s.db"
    assert "would apply 0001_sessions.sql" in run("store", "migrate", "--dry-run", "--store", url).output
    assert list(tmp_path.iterdir()) == []
    there = f"sqlite:///{tmp_path}/s.db"
    midfold.open(there).close()
    with pytest.raises(MidfoldError, match="there is no folder"):
        run("store", "backup", str(tmp_path / "none" / "b.db"), "--store", there)
    assert not (tmp_path / "none").exists()


# Selecting one of several conversations, and input without any


@pytest.fixture
def many(tmp_path: Path) -> str:
    lines = [json.dumps({"messages": [{"role": "user", "content": text}]}) for text in ("first", "second")]
    file = tmp_path / "many.jsonl"
    file.write_text("\n".join(lines) + "\n")
    return str(file)


def test_compact_takes_one_conversation_of_many(many: str) -> None:
    with pytest.raises(MidfoldError, match="has 2 conversations; choose one with --conversation N"):
        run("compact", many)
    printed = json.loads(run("compact", many, "--conversation", "2", "-o", "-").output)
    assert printed == {"messages": [{"role": "user", "content": "second"}]}
    assert run("cache", "diff", many, many, "--conversation", "1").exit_code == 0


@pytest.mark.parametrize(
    "command", [("compact",), ("inspect",), ("artifacts",), ("cache", "plan"), ("cache", "health"), ("cost",)]
)
def test_what_is_no_conversation_is_refused_by_all(command: tuple[str, ...], tmp_path: Path) -> None:
    file = tmp_path / "numbers.json"
    file.write_text("[1, 2]")
    with pytest.raises(MidfoldError, match="it contains no message with a role"):
        run(*command, str(file))
    with pytest.raises(MidfoldError, match="it contains no message with a role"):
        run("cache", "diff", str(file), str(file))


@pytest.mark.parametrize("address", ["nonsense", "ftp://x", "http://", "http://me:hunter22@127.0.0.1/v1"])
def test_what_is_no_address_is_refused_before_anybody_is_called(address: str) -> None:
    for command in (("chat",), ("agent", "run", "Hi."), ("probes", "x")):
        refused = run(*command, "--base-url", address, "--model", "m")
        assert refused.exit_code == 2
        assert "expected an http:// or https:// address" in refused.output
        assert "hunter22" not in refused.output


def test_the_empty_name_is_told_as_such(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    midfold.open(store).close()
    with pytest.raises(MidfoldError, match="the session name is empty"):
        run("sessions", "show", "", "--store", store)


def test_one_request_has_one_size_everywhere() -> None:
    data = Path(CODING).read_bytes()
    for model in ("claude-opus-4-6", "claude-sonnet-4-5", "gpt-5.5"):
        inspected = describe(read(data), model)
        folded = midfold.compact(data, model=model, context_length=32_000)
        before, after = segments(folded)
        found = json.loads(run("cache", "diff", CODING, CODING, "--model", model, "--json").output)
        sizes = {inspected["tokens"]["total"], inspected["context"]["prompt_tokens"], found["shared_tokens"]}
        fixed = folded.receipt.fixed_tokens
        sizes |= {folded.receipt.old_tokens, fixed + sum(tokens for _, _, tokens in before)}
        assert len(sizes) == 1, sizes
        left = {folded.receipt.new_tokens, fixed + sum(tokens for _, _, tokens in after)}
        assert left == {describe(read(bytes(folded.messages)), model)["tokens"]["total"]}


# Output


def test_what_is_piped_has_no_boxes_and_breaks_no_line() -> None:
    shown = run("compact", CODING, "--context-length", "32000").output
    assert "handoff (" in shown
    assert not set("╭╮│─") & set(shown)


def test_a_preview_speaks_of_what_would_be() -> None:
    assert run("compact", CODING, "--context-length", "32000", "--preview").output.startswith("would be compacted: ")
    assert run("compact", CODING, "--preview").output.startswith("would be unchanged: ")


@pytest.mark.parametrize("width", [60, 80])
def test_a_narrow_list_of_sessions_says_what_they_are_about(width: int, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    with midfold.open(store) as sessions:
        session = sessions.session("project:shop-e7c7ea0ba4/codex-01a1e768-3464eb94afe7", model="claude-opus-4-8")
        session.append([{"role": "user", "content": "Port the parser to Rust."}])
    shown = {}
    for command in (("list",), ("search", "parser")):
        asked = (*MIDFOLD, "sessions", *command, "--store", store)
        with Terminal(asked, folder=tmp_path, environment=environment(tmp_path), size=(40, width)) as terminal:
            assert terminal.ended() == 0
            shown[command[0]] = terminal.shown
        assert max(map(len, terminal.shown.splitlines())) <= width
    assert "Port the parser to Rust." in shown["list"] and ("claude-opus-4-8" in shown["list"]) == (width == 80)
    assert shown["search"].startswith("3464eb94 [0]  user  ")


@pytest.mark.parametrize("width", [60, 80])
def test_long_names_leave_room_for_titles(width: int, tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    with midfold.open(store) as sessions:
        for number in range(2):
            session = sessions.session(f"bench/an-agent-with-a-long-name-on-a-task-{number}", model="claude-opus-4-8")
            session.append([{"role": "user", "content": "Port the whole parser to Rust."}])
    command = (*MIDFOLD, "sessions", "list", "--store", store)
    with Terminal(command, folder=tmp_path, environment=environment(tmp_path), size=(40, width)) as terminal:
        assert terminal.ended() == 0
    head, *lines = terminal.shown.splitlines()
    assert head.split() == ["session", "used", *["messages"] * (width == 80), "title"]
    assert all(line.startswith("bench/an-agent-with") and "  Port the whole parser t" in line for line in lines)


@pytest.mark.parametrize("width", [60, 80])
def test_the_map_fits_a_narrow_terminal(width: int, tmp_path: Path) -> None:
    command = (*MIDFOLD, "compact", CODING, "--context-length", "32000", "--preview")
    with Terminal(command, folder=tmp_path, environment=environment(tmp_path), size=(40, width)) as terminal:
        assert terminal.ended() == 0
        lines = terminal.shown.splitlines()
    assert max(map(len, lines)) <= width
    assert len([line for line in lines if line.startswith(("before h", "after  h"))]) == 2
    assert sum(line.strip(".htkS") == "" and line != "" for line in lines) == 0, "the strip is not wrapped"


def test_unknown_commands_suggest_the_nearest() -> None:
    assert "unknown command compct; did you mean compact?" in run("compct").output
    assert "did you mean list?" in run("sessions", "lst").output
    assert "--help`" in run("zzzzz").output
    assert all(run(name, "--help").exit_code == 0 for name in COMMANDS)


def test_plugins_list_and_a_filter_for_models() -> None:
    assert run("plugins", "list").output == run("plugins").output
    shown = run("models", "--filter", "HAIKU").output
    assert "claude-haiku-4.5*" in shown
    assert "gpt-5" not in shown
    assert {row["pattern"] for row in json.loads(run("models", "--filter", "haiku", "--json").output)["models"]} < {
        row["pattern"] for row in json.loads(run("models", "--json").output)["models"]
    }
    assert run("models", "gpt-5", "--filter", "x").exit_code == 2


def test_a_plan_refuses_a_provider_that_nobody_knows() -> None:
    refused = run("cache", "plan", CODING, "--provider", "somewhere")
    assert (refused.exit_code, "'somewhere' is not one of 'anthropic'" in refused.output) == (2, True)


def test_a_request_in_another_shape_is_not_said_to_be_cached_by_itself(many: str) -> None:
    shown = run("cache", "plan", many, "--conversation", "1", "--model", "claude-opus-4-6").output
    assert "NOT MARKED (Anthropic accepts markers only in Anthropic-style requests; this one is openai-chat)" in shown


# Sessions


NAMES = ("20261116-2310-79d03d", "gw-abcdef0123456789abcdef01", "gw-abcdef99999999999999ef01~1", "notes")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[str]:
    url = f"sqlite:///{tmp_path}/s.db"
    with midfold.open(url) as sessions:
        for name in NAMES:
            reminder = "<system-reminder>Be brief.</system-reminder>"
            talk = [
                {"role": "user", "content": f"{reminder}Fix the login\tof {name}.\nIt is slow. " + "Really. " * 30},
                {
                    "role": "assistant",
                    "content": None,
                    "tool_calls": [
                        {"id": "1", "type": "function", "function": {"name": "shell", "arguments": '{"command":"ls"}'}}
                    ],
                },
                {"role": "tool", "tool_call_id": "1", "content": "a\tb"},
            ]
            sessions.session(name).append(talk)
    yield url


def test_sessions_are_listed_with_titles(store: str) -> None:
    rows = {row["name"]: row for row in json.loads(run("sessions", "list", "--store", store, "--json").output)}
    assert rows[NAMES[0]]["title"].startswith("Fix the login of 20261116-2310-79d03d. It is slow. Really.")
    assert rows[NAMES[0]]["title"].endswith("…")
    assert [rows[name]["id"] for name in NAMES] == ["79d03d", "abcdef01", "abcdef99~1", "notes"]
    piped = run("sessions", "list", "--store", store).output
    assert all(name in piped for name in NAMES), "a script gets whole names"
    found = run("sessions", "search", "login", "--store", store).output
    assert "Fix the login of notes." in found


def test_a_session_may_be_named_by_a_beginning(store: str) -> None:
    def name_of(asked: str) -> Any:
        return json.loads(run("sessions", "show", asked, "--store", store, "--json").output)["name"]

    for asked, name in {
        "79d": 0,
        "79d03d": 0,
        "20261116": 0,
        "abcdef01": 1,
        "abcdef99~1": 2,
        "not": 3,
        "last": 3,
    }.items():
        assert name_of(asked) == NAMES[name]
    with pytest.raises(NotStored, match="abcdef matches 2 sessions: "):
        name_of("abcdef")
    with pytest.raises(NotStored, match=r"no session nots; did you mean notes\?"):
        name_of("nots")
    with pytest.raises(NotStored, match="no session not"):
        run("sessions", "delete", "not", "--yes", "--store", store)
    assert short_id("alice/20261116-2310-79d03d") == "79d03d"


def test_rows_of_a_view_show_calls_and_no_tabs(store: str) -> None:
    shown = run("sessions", "view", "notes", "--store", store).output
    assert 'shell {"command":"ls"}' in shown
    assert "a b" in shown
    assert "\t" not in shown


def test_an_undone_fold_stays_undone_until_asked_or_full() -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s", model="gpt-5.5", context_length=160_000)
        session.append(TALK)
        assert session.size.tokens > session.setup.budget.threshold_tokens
        assert session.compact().changed
        session.undo()
        session.append([{"role": "user", "content": "go on"}])
        again = session.compact()
        assert not again.changed
        assert "the last compaction was undone" in again.receipt.reason
        assert session.prepare() is None
        later = sessions.session("s", model="gpt-5.5", context_length=160_000)
        assert not later.should_compact()
        assert later.should_compact(152_000), "95 % of the window"
        assert not later.should_compact(151_999)
        assert later.compact(force=True).changed
        info = later.info
        assert info is not None
        assert not memory_of(info).undone


def test_a_file_does_not_choose_whom_a_session_goes_on_with(tmp_path: Path) -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s")
        session.append(TALK[:3])
        info = sessions.store.must("s")
        memory = msgspec.structs.replace(memory_of(info), partner=ChatPartner(model="m", provider="endpoint"))
        sessions.store.remember(info, msgspec.json.encode(memory))
        lines = list(sessions.export("s"))
        assert b'"partner"' in lines[0]
        sessions.load(lines, name="t")
        assert memory_of(sessions.store.must("t")).partner is None


# Long-running programs


def answers() -> list[Any]:
    return [
        turn("openai", "Let me look.", [("shell", {"command": "echo one > made.txt"})]),
        turn("openai", "It was not possible."),
    ]


def agent(provider: ScriptedProvider, *more: str) -> tuple[str, ...]:
    where = ("--base-url", f"{provider.url}/v1", "--model", "scripted", "--context-length", "16000", "--local")
    return (*MIDFOLD, "agent", "run", *more, *where)


def test_an_answer_is_printed_once_on_a_terminal_and_declined_calls_are_no_success(tmp_path: Path) -> None:
    with (
        ScriptedProvider(answers()) as provider,
        Terminal(agent(provider, "Go."), folder=tmp_path, environment=environment(tmp_path)) as terminal,
    ):
        code, shown = terminal.ended(), terminal.shown
    assert (code, shown.count("It was not possible.")) == (1, 1)
    assert "1 call declined (shell): no terminal to ask on; use --yes" in shown
    assert not (tmp_path / "made.txt").exists()


def test_a_session_goes_on_with_whom_it_was_held(tmp_path: Path) -> None:
    def events(*command: str) -> list[dict[str, Any]]:
        done = subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), capture_output=True, check=False)
        return [json.loads(line) for line in done.stdout.splitlines()]

    with ScriptedProvider([*answers(), turn("openai", "More.")]) as provider:
        first = events(*agent(provider, "Go.", "--json", "--yes"))
        second = events(*MIDFOLD, "agent", "run", "On.", "--resume", first[0]["session"][-6:], "--json", "--local")
        assert [event["finish"] for event in first if event["event"] == "answer"] == ["calls", "stop"]
        assert second[0] == first[0]
        assert (second[0]["model"], second[0]["window"]) == ("scripted", 16_000)
        assert second[-1]["text"] == "More."
        with Terminal(
            (*MIDFOLD, "chat", "--resume", "last"), folder=tmp_path, environment=environment(tmp_path)
        ) as terminal:
            terminal.wait_for("the last exchange:")
            terminal.wait_for("> On.")
            terminal.wait_for("More.")


def test_serve_says_in_one_line_that_a_port_is_taken(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        for more in (("serve", "--upstream", "http://127.0.0.1:9"), ("pages",)):
            store = f"sqlite:///{tmp_path}/s.db"
            midfold.open(store).close()
            with pytest.raises(
                MidfoldError, match=f"cannot listen on 127.0.0.1:{port}: address already in use; use --port"
            ):
                run(*more, "--port", str(port), "--store", store)


def test_serve_tells_each_fold_in_a_line(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "config.yaml"
    config.write_text("models: {small: {context_window: 16000}}\n")
    talk: list[dict[str, str]] = [{"role": "user", "content": "Please fix the login page."}]
    for number in range(120):
        talk += [
            {"role": "assistant", "content": f"Step {number}. " + "I look at it. " * 40},
            {"role": "user", "content": f"Go on, {number}."},
        ]
    with ScriptedProvider(then=openai_json("hello")) as provider:
        command = (*MIDFOLD, "serve", "--upstream", provider.url, "--port", str(port), "--config", str(config))
        with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment(tmp_path)) as process:
            assert process.stderr is not None
            while "BASE_URL" not in process.stderr.readline():
                time.sleep(0.01)
            ends = time.monotonic() + 60
            while time.monotonic() < ends:
                try:
                    call(f"http://127.0.0.1:{port}", "GET", "/healthz")
                    break
                except ConnectionError:
                    time.sleep(0.05)
            url = f"http://127.0.0.1:{port}"
            _, headers, _ = call(url, "POST", "/v1/chat/completions", {"model": "small", "messages": talk})
            assert headers["x-midfold-action"] == "compacted"
            line = process.stderr.readline()
            process.send_signal(signal.SIGINT)
            left = process.communicate(timeout=60)[1]
    assert line.startswith("midfold: compacted ")
    assert "(Please fix the login page.): " in line
    assert "tokens reached the threshold of" in line
    assert (process.returncode, left.strip()) == (130, "midfold: interrupted")


def test_an_interrupt_is_one_line_and_130(tmp_path: Path) -> None:
    with subprocess.Popen(
        (*MIDFOLD, "compact", "-"), stdin=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(tmp_path), text=True
    ) as process:
        time.sleep(0.7)
        process.send_signal(signal.SIGINT)
        told = process.communicate(timeout=60)[1]
    assert (process.returncode, told.strip()) == (130, "midfold: interrupted")


def test_what_takes_long_says_so_on_a_terminal(tmp_path: Path) -> None:
    code = "import time; from midfold.cli.terminal import show_work\nwith show_work('{}'): time.sleep({})"
    shown = []
    for what, seconds in (("counting", 2), ("blinking", 0.1)):
        command = (sys.executable, "-c", code.format(what, seconds))
        with Terminal(command, folder=tmp_path, environment=environment(tmp_path)) as terminal:
            assert terminal.ended() == 0
            shown.append(terminal.shown)
    assert "counting 0:00:0" in shown[0]
    assert shown[1].strip() == ""


@pytest.mark.parametrize(("width", "last"), [(60, "$ out"), (80, "read x"), (110, "1h x")])
def test_the_table_of_models_is_not_cut(width: int, last: str, tmp_path: Path) -> None:
    command = (*MIDFOLD, "models", "--filter", "claude-haiku-4.5")
    with Terminal(command, folder=tmp_path, environment=environment(tmp_path), size=(40, width)) as terminal:
        assert terminal.ended() == 0
        header = next(line for line in terminal.shown.splitlines() if line.startswith("pattern"))
    assert header.rstrip().endswith(last)
    assert "…" not in terminal.shown


@pytest.mark.parametrize(("width", "lines"), [(60, 3), (110, 2), (150, 1)])
def test_the_status_of_a_chat_fits(width: int, lines: int, tmp_path: Path) -> None:
    with (
        ScriptedProvider([turn("openai", "Yes.")]) as provider,
        Terminal(
            (*MIDFOLD, "chat", "--base-url", f"{provider.url}/v1", "--model", "scripted", "--local"),
            folder=tmp_path,
            environment=environment(tmp_path),
            size=(40, width),
        ) as terminal,
    ):
        assert "NOT MARKED (127.0.0.1" in terminal.wait_for("> ")
        terminal.type("Hello?")
        terminal.wait_for("Yes.")
        status = terminal.wait_for("0 compactions").strip().splitlines()
    assert len(status) == lines
    assert max(map(len, status)) <= width


@pytest.mark.parametrize(
    "command",
    ["store migrate --dry-run", "store backup b.db", "store check", "doctor", "sessions list", "import codex"],
)
def test_commands_that_only_look_make_no_folder(command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    monkeypatch.chdir(tmp_path)
    CliRunner().invoke(main, command.split())
    assert list(tmp_path.rglob("*")) == []
