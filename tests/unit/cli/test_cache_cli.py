"""`midfold cache`: differences, plans and health, as text and as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner, Result

import midfold
from midfold.cli.main import main

LONG = "Always answer in full sentences. " * 400


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["cache", *arguments])


def request(*texts: str, **changed: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[place % 2], "content": text} for place, text in enumerate(texts)]
    return {"model": "claude-sonnet-4-5", "max_tokens": 9, "system": LONG, "messages": messages, **changed}


def saved(path: Path, value: Any) -> str:
    path.write_text(json.dumps(value), encoding="utf-8")
    return str(path)


def test_diff_names_the_block_the_cost_and_who(tmp_path: Path) -> None:
    first = saved(tmp_path / "a.json", request("Go.", "Yes. " * 500, "More."))
    second = saved(tmp_path / "b.json", request("Go!", "Yes. " * 500, "More."))
    shown = run("diff", first, second)
    assert shown.exit_code == 1, shown.output
    assert run("diff", first, first).exit_code == 0
    assert "messages[0].content[0].text, byte" in shown.output
    assert "changed by: client" in shown.output
    facts = json.loads(run("diff", first, second, "--json").output)
    assert facts["block"] == "messages[0]"
    assert facts["extra_money"] > 0
    assert "Go" not in shown.output


def test_diff_of_a_growing_request_is_none(tmp_path: Path) -> None:
    first = saved(tmp_path / "a.json", request("Go."))
    second = saved(tmp_path / "b.json", request("Go.", "Yes.", "More."))
    assert "No difference: the second continues the first by 2 block(s)" in run("diff", first, second).output


def test_diff_of_two_views_of_a_session(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'sessions.db'}"
    with midfold.open(url) as sessions:
        session = sessions.session("work", model="claude-sonnet-4-5", context_length=16_000)
        for n in range(60):
            session.append(
                [{"role": "user", "content": f"Why {n}? " * 30}, {"role": "assistant", "content": "So. " * 90}]
            )
        assert session.compact(force=True).changed
    shown = run("diff", "0", "now", "--session", "work", "--store", url)
    assert "changed by: compaction" in shown.output
    assert run("diff", "0", "soon", "--session", "work", "--store", url).exit_code != 0


def test_plan_shows_the_status_line_and_the_reasons(tmp_path: Path) -> None:
    file = saved(tmp_path / "a.json", request("Go.", "Yes.", "More."))
    shown = run("plan", file)
    assert "Prompt caching: ENABLED (Claude via Anthropic, 5m TTL)" in shown.output
    assert "system: the system prompt survives every compaction" in shown.output
    facts = json.loads(run("plan", file, "--provider", "openrouter", "--json").output)
    assert [hint["placement"] for hint in facts["hints"]] == ["system", "message", "message"]


def test_health_classifies_recorded_turns(tmp_path: Path) -> None:
    def answer(read: int, written: int, stamp: str) -> dict[str, Any]:
        usage = {"input_tokens": 5, "cache_read_input_tokens": read, "cache_creation_input_tokens": written}
        return {"role": "assistant", "content": "Yes.", "_meta": {"usage": usage, "ts": stamp}}

    messages = [
        {"role": "user", "content": "Go."},
        answer(0, 10_000, "2026-01-08T10:00:00Z"),
        {"role": "user", "content": "More."},
        answer(10_000, 100, "2026-01-08T10:01:00Z"),
        {"role": "user", "content": "More."},
        answer(0, 10_200, "2026-01-08T11:00:00Z"),
    ]
    file = saved(tmp_path / "a.json", {"model": "claude-sonnet-4-5", "id": "one", "messages": messages})
    shown = run("health", file)
    assert "1 cold start, 1 expired" in shown.output
    facts = json.loads(run("health", file, "--json").output)
    assert facts[0]["kinds"] == {"cold_start": 1, "hit": 1, "expired": 1}
    bare = saved(tmp_path / "b.json", request("Go."))
    assert "no reported usage found" in str(run("health", bare).exception)


def test_a_plan_without_breakpoints_says_why(tmp_path: Path) -> None:
    body = {"model": "claude-opus-4-6", "system": "Be brief.", "messages": [{"role": "user", "content": "hi"}]}
    file = tmp_path / "body.json"
    file.write_text(json.dumps(body))
    shown = run("plan", str(file)).output
    assert "no breakpoint: " in shown and "cache minimum of claude-opus-4-6" in shown
