"""`midfold mcp` and Claude Code's hooks: the official client over stdio and HTTP, recorded events."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import midfold
from midfold.adapters.claude_code import EVENTS, answer, keep
from midfold.adapters.mcp_tools import SPECS, SessionTools
from midfold.cli.main import main
from midfold.errors import ConfigError
from midfold.gateway.admission import hash_key, new_key
from midfold.types import AnswerBounds, project_prefix
from support.data import need

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "data" / "clients" / "claude_code_hooks.json"
CODING = ROOT / "examples" / "coding-session.json"
SESSION = "0442a060-edc3-4307-bddb-11a2951fd1a1"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Create a temporary home, with a store that does not exist yet."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.delenv("MIDFOLD_CONFIG", raising=False)
    return tmp_path


@pytest.fixture
def project(home: Path) -> Path:
    folder = home / "my project"
    folder.mkdir()
    return folder


def log_of(folder: Path, *, ask: str = "Rename parse_port, and never touch legacy.py") -> Path:
    """Write a log as Claude Code does: a user message, an edit, its result, an answer."""
    use = {"type": "tool_use", "id": "t1", "name": "Write", "input": {"file_path": "/p/ports.py", "content": "x = 1\n"}}
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "File created successfully at: /p/ports.py"}
    said: list[tuple[str, Any]] = [
        ("user", ask),
        ("assistant", [use]),
        ("user", [result]),
        ("assistant", [{"type": "text", "text": "Done: zebrafish9 is the new name."}]),
    ]
    lines = []
    for at, (role, content) in enumerate(said):
        message = {"role": role, "content": content} | ({"id": f"m{at}"} if role == "assistant" else {})
        parent = f"u{at - 1}" if at else None
        lines.append({"type": role, "uuid": f"u{at}", "parentUuid": parent, "sessionId": SESSION, "message": message})
    path = folder / f"{SESSION}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return path


def event(name: str, log: Path, **more: str) -> dict[str, Any]:
    return {"session_id": SESSION, "transcript_path": str(log), "cwd": "/p", "hook_event_name": name, **more}


def run_hook(project: Path, told: bytes) -> tuple[subprocess.CompletedProcess[bytes], float]:
    began = time.monotonic()
    command = [sys.executable, "-m", "midfold.adapters.claude_code", str(project)]
    return subprocess.run(command, input=told, capture_output=True, check=False, timeout=60), time.monotonic() - began


def kept(home: Path, project: Path) -> SessionTools:
    sessions = midfold.open(f"sqlite:///{home}/data/midfold/sessions.db")
    return SessionTools(sessions, project_prefix(project), project)


# Hooks


def test_after_a_compaction_the_words_of_the_user_and_the_trail_are_given_back(home: Path, project: Path) -> None:
    said = json.loads(answer(event("SessionStart", log_of(home), source="compact"), project))["hookSpecificOutput"]
    assert said["hookEventName"] == "SessionStart"
    assert "never touch legacy.py" in said["additionalContext"]
    assert "ports.py" in said["additionalContext"]
    assert answer(event("SessionStart", log_of(home), source="startup"), project) == b""


def test_what_the_real_claude_code_tells_its_hooks_is_understood(home: Path, project: Path) -> None:
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    log = home / "log.jsonl"
    log.write_text("".join(json.dumps(line) + "\n" for line in recorded["log"]), encoding="utf-8")
    events = [{**told, "transcript_path": str(log)} for told in recorded["events"]]
    assert set(EVENTS) <= {told["hook_event_name"] for told in events}
    said = [answer(told, project) for told in events if told["hook_event_name"] == "SessionStart"]
    [context] = [json.loads(one)["hookSpecificOutput"]["additionalContext"] for one in said if one]
    assert "- Make ports for zebrafish, and never touch legacy.py\n- And a test for it, please.\n" in context
    assert "/home/ann/shop/ports.py" in context
    [compacts] = [told for told in events if told["hook_event_name"] == "PreCompact"]
    (home / "data" / "midfold").mkdir(parents=True)
    keep(project, log, log.stat().st_size, compacts["session_id"])
    assert "zebrafish" in kept(home, project).run("search", {"query": "zebrafish"}).text


def test_what_is_given_back_is_bounded_and_has_no_secrets(home: Path, project: Path) -> None:
    secret = "sk-ant-api03-" + "Zq8" * 31 + "AA"
    log = log_of(home, ask=f"Use {secret}. " + "You must keep this sentence. " * 2_000)
    text = answer(event("SessionStart", log, source="compact"), project).decode()
    assert len(text) < 10_000 and secret not in text


def test_a_log_is_kept_and_kept_again_as_one_session(home: Path, project: Path) -> None:
    log = log_of(home)
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    (home / "data" / "midfold").mkdir(parents=True)
    keep(project, log, len(lines[0] + lines[1] + lines[2]), SESSION)
    assert "3 messages" in kept(home, project).run("describe", {}).text
    keep(project, log, len(whole), SESSION)
    tools = kept(home, project)
    described = tools.run("describe", {}).text
    assert described.startswith(f"claude-code-{SESSION}: 4 messages") and "\n" not in described
    assert "zebrafish9" in tools.run("search", {"query": "zebrafish9"}).text


def test_the_hook_before_a_compaction_keeps_the_log(home: Path, project: Path) -> None:
    done, _ = run_hook(project, json.dumps(event("PreCompact", log_of(home), trigger="auto")).encode())
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")
    end = time.monotonic() + 60
    while "zebrafish9" not in kept(home, project).run("search", {"query": "zebrafish9"}).text:
        assert time.monotonic() < end
        time.sleep(0.2)


@pytest.mark.parametrize("told", [b"", b"{", b"[]", b'{"hook_event_name": "PreCompact"}', b"\xff"])
def test_a_hook_that_is_told_nonsense_says_nothing(project: Path, told: bytes) -> None:
    done, _ = run_hook(project, told)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_hook_that_is_told_nothing_ends_in_time(project: Path) -> None:
    """Standard input stays open, so waiting for its end would block forever."""
    command = [sys.executable, "-m", "midfold.adapters.claude_code", str(project)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as running:
        assert running.wait(timeout=30) == 0


# Installing


def install(project: Path, *arguments: str) -> str:
    command = ["install", "claude-code", "--project", str(project), *arguments]
    return CliRunner().invoke(main, command, catch_exceptions=False).output


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_what_is_installed_is_shown_and_taken_back_byte_for_byte(project: Path) -> None:
    (project / ".claude").mkdir()
    own = b'{"hooks":{"PreCompact":[{"hooks":[{"type":"command","command":"mine"}]}]}, "x": 1}'
    (project / ".claude" / "settings.local.json").write_bytes(own)
    before = files(project)
    shown = install(project, "--yes")
    assert '+      "command": ' in shown and "installed" in shown
    hooks = json.loads(files(project)[".claude/settings.local.json"])["hooks"]
    assert hooks["PreCompact"][0]["hooks"][0]["command"] == "mine"
    assert hooks["SessionStart"][0]["matcher"] == "compact"
    assert {hook["timeout"] for groups in hooks.values() for hook in groups[-1]["hooks"]} == {2}
    assert "already installed" in install(project, "--yes")
    install(project, "--remove", "--yes")
    assert files(project) == before


def test_what_others_changed_since_stays_and_new_files_go(project: Path) -> None:
    install(project, "--yes")
    path = project / ".mcp.json"
    servers = json.loads(path.read_bytes())
    servers["mcpServers"]["other"] = {"command": "x"}
    path.write_text(json.dumps(servers))
    install(project, "--remove", "--yes")
    assert {name: json.loads(data) for name, data in files(project).items()} == {
        ".mcp.json": {"mcpServers": {"other": {"command": "x"}}}
    }
    assert not (project / ".claude").exists()


def test_nothing_is_written_without_a_yes_or_over_what_cannot_be_read(project: Path) -> None:
    with pytest.raises(ConfigError, match="--yes"):
        install(project)
    assert files(project) == {}
    (project / ".mcp.json").write_bytes(b"{ // a comment\n}")
    with pytest.raises(ConfigError, match="not JSON"):
        install(project, "--yes")
    assert list(files(project)) == [".mcp.json"]


# The tools


def test_a_project_sees_its_own_sessions_only(home: Path, project: Path) -> None:
    with midfold.open(f"sqlite:///{home}/s.db") as sessions:
        other = sessions.session("project:other-1/one")
        other.append([{"role": "user", "content": "the word is quokka77"}])
        [hit] = sessions.search("quokka77")
        tools = SessionTools(sessions, project_prefix(project), project)
        mine = sessions.session(f"{tools.under}mine")
        mine.append([{"role": "user", "content": "the word is numbat55"}])
        assert "numbat55" in tools.run("search", {"query": "word numbat55"}).text
        attempts = [
            ("search", {"query": "quokka77"}),
            ("search", {"query": "quokka77", "session": "project:other-1/one"}),
            ("search", {"pattern": "quokka77"}),
            ("unfold", {"handle": hit.handle}),
            ("unfold", {"handle": hit.handle, "session": other.name}),
            ("describe", {}),
            ("describe", {"handle": hit.handle}),
            ("artifacts", {"session": other.name}),
        ]
        for name, given in attempts:
            assert "is quokka77" not in tools.run(name, given).text, (name, given)
        assert json.loads(tools.run("stats", {}).text)["sessions"] == 1


@pytest.mark.parametrize(("window", "most"), [(16_000, 1_600), (200_000, 6_800)])
def test_an_answer_takes_what_the_window_bears_that_the_session_was_folded_for(
    project: Path, window: int, most: int
) -> None:
    planks = [f"Part {number} of the harbour:\n" + f"plank {number} is sound\n" * 300 for number in range(60)]
    with midfold.open("memory:") as sessions:
        tools = SessionTools(sessions, project_prefix(project), project)
        session = sessions.session(f"{tools.under}mine", model="claude-opus-4-6", context_length=window)
        session.append([{"role": "user", "content": text} for text in planks])
        assert session.compact(force=True).changed
        receipt = session.receipts()[-1].receipt
        bounds = AnswerBounds.of(receipt.threshold_tokens)
        for given in ({"query": "harbour plank"}, {"query": "harbour plank", "session": "mine"}):
            assert most / 4 < len(tools.run("search", given).text) <= min(most, bounds.hits + 800)
        shown = tools.run("unfold", {"handle": receipt.fold, "start": 0}).text
        assert bounds.page <= len(shown) <= bounds.page + 200


def test_files_are_read_in_the_folder_only(home: Path, project: Path) -> None:
    outside = home / "outside.json"
    outside.write_bytes(CODING.read_bytes())
    (project / "link.json").symlink_to(outside)
    (project / "inside.json").write_bytes(CODING.read_bytes())
    with midfold.open("memory:") as sessions:
        tools = SessionTools(sessions, project_prefix(project), project)
        assert "git_operations.go" in tools.run("artifacts", {"file": "inside.json"}).text
        for file in (str(outside), "../outside.json", "link.json", "nothing.json"):
            assert tools.run("artifacts", {"file": file}).is_error
        assert SessionTools(sessions, "team/").run("artifacts", {"file": "inside.json"}).is_error


def test_what_was_compacted_can_be_unfolded(project: Path) -> None:
    with midfold.open("memory:") as sessions:
        tools = SessionTools(sessions, project_prefix(project), project)
        done = tools.run("compact", {"transcript": json.loads(CODING.read_bytes()), "context_length": 32_000})
        found = json.loads(done.text)
        assert found["receipt"]["status"] == "compacted"
        assert 0 < len(found["messages"]) < 106
        assert "Contents of" in tools.run("unfold", {"handle": found["receipt"]["fold"]}).text
        assert tools.run("compact", {"transcript": [], "target_tokens": -1}).is_error
        assert tools.run("nothing", {}).is_error


ODD: list[Any] = [None, 0, -1, True, 1.5, "", "x", "a\0b", "\ud800", "../..", "x" * 9_999, [], {}, [1], 10**400]


@pytest.mark.parametrize("spec", SPECS, ids=lambda spec: spec.name)
def test_whatever_a_tool_is_given_its_answer_is_a_text(project: Path, spec: midfold.ToolSpec) -> None:
    (project / "empty.json").write_text("[]")
    messages = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": "hello"}]
    with midfold.open("memory:") as sessions:
        tools = SessionTools(sessions, project_prefix(project), project)
        for stored in range(2):
            for given in ({}, {"transcript": messages}):
                for name in spec.properties:
                    answers = [tools.run(spec.name, {**given, name: odd}) for odd in [*ODD, "empty.json"]]
                    assert all(isinstance(answer.text, str) for answer in answers), (stored, name)
            sessions.session(f"{tools.under}one").append(messages)


# The official client


def client() -> Any:
    need(find_spec("mcp"), "the extra mcp is not installed (make test-all does it)")
    return import_module("mcp")


async def talk(transport: Any) -> None:
    async with client().Client(transport) as connected:
        listed = await connected.list_tools()
        assert [tool.name for tool in listed.tools] == [spec.name for spec in SPECS]
        found = await connected.call_tool("search", {"query": "numbat55"})
        assert "the word is numbat55" in found.content[0].text and not found.is_error
        assert (await connected.call_tool("unfold", {"handle": "mf-00000000"})).is_error


def test_the_official_client_over_stdio(home: Path, project: Path) -> None:
    mcp, url = client(), f"sqlite:///{home}/s.db"
    with midfold.open(url) as sessions:
        sessions.session(f"{project_prefix(project)}a").append([{"role": "user", "content": "the word is numbat55"}])
    command = ["-m", "midfold", "mcp", "--store", url, "--project", str(project)]
    asyncio.run(talk(mcp.StdioServerParameters(command=sys.executable, args=command, env=dict(os.environ))))


@pytest.fixture
def served(home: Path) -> Iterator[tuple[str, str]]:
    """Return the address of `midfold mcp --http`, and a key."""
    client()
    key, url, config = new_key(), f"sqlite:///{home}/s.db", home / "config.yaml"
    config.write_text(f'keys:\n  team:\n    hash: "{hash_key(key)}"\n')
    with midfold.open(url) as sessions:
        sessions.session("team/a").append([{"role": "user", "content": "the word is numbat55"}])
        sessions.session("other/a").append([{"role": "user", "content": "the word is quokka77"}])
    command = [sys.executable, "-m", "midfold", "mcp", "--http", "--port", "0", "--store", url, "--config", str(config)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        line = next(line for line in running.stderr if "http://" in line)
        try:
            yield next(word for word in line.split() if word.startswith("http://")), key
        finally:
            running.terminate()


def test_the_official_client_over_http(served: tuple[str, str]) -> None:
    from mcp.client.streamable_http import streamable_http_client

    httpx2 = pytest.importorskip("httpx2")
    address, key = served

    async def run() -> None:
        async with httpx2.AsyncClient(headers={"x-midfold-key": key}, timeout=30) as http:
            await talk(streamable_http_client(address, http_client=http))
        async with (
            httpx2.AsyncClient(headers={"x-midfold-key": key}, timeout=30) as http,
            client().Client(streamable_http_client(address, http_client=http)) as connected,
        ):
            assert "quokka77" not in (await connected.call_tool("search", {"query": "word is"})).content[0].text

    asyncio.run(run())


def test_http_asks_for_a_key_and_checks_host_and_origin(served: tuple[str, str]) -> None:
    httpx2 = pytest.importorskip("httpx2")
    address, key = served
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/list", "params": {}}
    plain = {"accept": "application/json, text/event-stream"}
    post: Callable[..., Any] = httpx2.post

    def status(**headers: str) -> int:
        return int(post(address, json=body, headers=plain | headers, timeout=30).status_code)

    assert status() == 401
    assert status(**{"x-midfold-key": new_key()}) == 401
    assert status(**{"x-midfold-key": key, "host": "evil.example"}) == 421
    assert status(**{"x-midfold-key": key, "origin": "https://evil.example"}) == 403
    assert status(**{"x-midfold-key": key}) not in (401, 403, 421)


def test_http_without_keys_is_refused(home: Path) -> None:
    client()
    with pytest.raises(ConfigError, match="keys new"):
        CliRunner().invoke(main, ["mcp", "--http", "--store", f"sqlite:///{home}/s.db"], catch_exceptions=False)


def test_the_example_runs() -> None:
    client()
    path = ROOT / "examples" / "mcp_client.py"
    done = subprocess.run([sys.executable, path, CODING.name], capture_output=True, text=True, timeout=60, check=True)
    assert "Contents of mf-" in done.stdout
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 30
