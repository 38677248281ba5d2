"""Exported histories, in every dialect and for every target, satisfy the providers' rules."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import midfold
from midfold.cli.main import main
from midfold.client_logs.export import MISSING_RESULT_TEXT, claude_code_file, codex_file, request_of
from midfold.store.protocol import View
from midfold.transcript.logs import read_log
from support.client_sessions import FIRST_ASK, RULE, SECOND_ASK, WINDOW, opening, pieces, recorded
from support.convert import to_anthropic, to_responses
from support.provider_rules import check, signature

HUGE = 1 << 40
NOW = 1_790_000_000.0
CHAT: list[dict[str, Any]] = [
    {"role": "system", "content": "You are careful."},
    {"role": "user", "content": "Rename foo. FACT-1"},
    {
        "role": "assistant",
        "content": "I look at both.",
        "tool_calls": [
            {"id": f"c{n}", "type": "function", "function": {"name": "read", "arguments": f'{{"path": "f{n}"}}'}}
            for n in range(2)
        ],
    },
    *({"role": "tool", "tool_call_id": f"c{n}", "content": f"text of f{n}"} for n in range(2)),
    {"role": "assistant", "content": "Both are renamed."},
    {"role": "user", "content": "And the notes?"},
]
BODIES = {
    "openai-chat": {"messages": CHAT},
    "anthropic": to_anthropic(CHAT),
    "openai-responses": to_responses(CHAT),
}


def view_of(dialect: str, body: dict[str, Any]) -> View:
    with midfold.open("memory:") as sessions:
        system = body.get("system") or body.get("instructions")
        session = sessions.session("s", dialect=dialect, system=system)
        session.append(body["input" if dialect == "openai-responses" else "messages"])
        return session.view()


def problem_of(request: dict[str, Any], target: str) -> Any:
    wire = "anthropic" if target == "anthropic" else "responses" if "input" in request else "chat"
    return check(wire, {"model": "m", "max_tokens": 100, **request}, HUGE)


@pytest.mark.parametrize("target", ["anthropic", "openai"])
@pytest.mark.parametrize("dialect", BODIES)
def test_a_provider_takes_a_history_of_any_dialect(dialect: str, target: Any) -> None:
    request = request_of(view_of(dialect, BODIES[dialect]), target)
    assert problem_of(request, target) is None
    written = json.dumps(request)
    for text in ("You are careful.", "FACT-1", "I look at both.", "text of f0", "text of f1", "And the notes?"):
        assert written.count(text) == 1


@pytest.mark.parametrize("name", ["claude_code_parts", "claude_code_reminders", "codex"])
@pytest.mark.parametrize("target", ["claude-code", "codex"])
def test_a_clients_file_has_the_folded_history_and_none_of_its_instructions(name: str, target: str) -> None:
    dialect = recorded(name)["dialect"]
    with midfold.open("memory:") as sessions:
        session = sessions.session("s", dialect=dialect, context_length=WINDOW)
        for piece in pieces(name)[:3]:
            session.append(piece)
            session.compact(force=True)
        view = session.view()
    assert RULE in view.json().decode()
    if target == "claude-code":
        found = claude_code_file(view, "m", Path("/home/ann/my shop"), NOW)
        assert str(found.place) == f"projects/-home-ann-my-shop/{found.id}.jsonl"
    else:
        found = codex_file(view, Path("/home/ann/my shop"), NOW)
        assert found.place.match(f"sessions/2026/*/*/rollout-*-{found.id}.jsonl")
    log = read_log([json.loads(line) for line in found.lines])
    assert log is not None
    key, wire = ("messages", "anthropic") if target == "claude-code" else ("input", "responses")
    assert check(wire, {"model": "m", "max_tokens": 9, key: [dict(one) for one in log.messages]}, HUGE) is None
    written = json.dumps(log.messages)
    assert "CONTEXT COMPACTION" in written and FIRST_ASK in written and SECOND_ASK in written
    assert RULE not in written


def test_thoughts_stay_with_their_provider_and_nowhere_else() -> None:
    thought = {"type": "thinking", "thinking": "hm", "signature": signature("hm")}
    body = {"messages": [*to_anthropic(CHAT)["messages"][:1], {"role": "assistant", "content": [thought]}]}
    body["messages"][-1]["content"].append({"type": "text", "text": "Yes."})
    view = view_of("anthropic", body)
    assert thought in request_of(view, "anthropic")["messages"][-1]["content"]
    assert "hm" not in json.dumps(request_of(view, "openai"))


@pytest.mark.parametrize("target", ["anthropic", "openai"])
@pytest.mark.parametrize("dialect", BODIES)
def test_calls_that_nobody_has_answered_are_closed(dialect: str, target: Any) -> None:
    cut = {"openai-chat": 3, "anthropic": 2, "openai-responses": 4}[dialect]
    key = "input" if dialect == "openai-responses" else "messages"
    view = view_of(dialect, {key: BODIES[dialect][key][:cut]})
    request = request_of(view, target)
    assert problem_of(request, target) is None
    assert json.dumps(request).count(MISSING_RESULT_TEXT) == 2


def test_the_command_writes_a_new_file_among_the_clients_own_and_says_how_it_is_resumed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = f"sqlite:///{tmp_path}/s.db"
    with midfold.open(store) as sessions:
        sessions.session("s", dialect="anthropic").append(opening("claude_code_parts"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("CLAUDE_CONFIG_DIR", raising=False)
    monkeypatch.chdir(tmp_path)
    done = CliRunner().invoke(main, ["sessions", "export", "s", "--for", "claude-code", "--store", store])
    assert done.exit_code == 0, done.output
    [file] = (tmp_path / ".claude" / "projects").rglob("*.jsonl")
    assert f"`claude --resume {file.stem}`" in done.stderr and done.stdout == ""
    assert FIRST_ASK in file.read_text() and file.stat().st_mode & 0o077 == 0
    shown = CliRunner().invoke(main, ["sessions", "export", "s", "--for", "openai", "--store", store])
    assert problem_of(json.loads(shown.stdout), "openai") is None
