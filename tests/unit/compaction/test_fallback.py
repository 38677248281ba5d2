"""The built-in summary: its content, what it carries forward, and what it never shows."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold import SummaryRequest, read
from midfold.compaction.local.local_summary import NOTICE, local_summary
from midfold.compaction.redact import redact
from midfold.compaction.summary import parse_summary
from midfold.transcript.tokens import estimate_text
from midfold.types import Transcript

SECRET = "ghp_" + "aB3dE6gH9" * 4


def call(number: int, name: str, arguments: dict[str, Any], output: str) -> list[dict[str, Any]]:
    function = {"name": name, "arguments": json.dumps(arguments)}
    return [
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": f"c{number}", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": f"c{number}", "content": output},
    ]


def fold() -> Transcript:
    return read(
        [
            {"role": "user", "content": "Set up the billing service. You must never touch the legacy schema."},
            *call(
                1,
                "terminal",
                {"command": "pytest -q", "workdir": "/srv/billing"},
                '{"output": "E  boom\\n1 failed", "exit_code": 1}',
            ),
            *call(2, "read_file", {"path": "src/billing/app.py"}, "import fastapi\n" * 40),
            *call(3, "write_file", {"file_path": "src/billing/db.py", "content": "x"}, "ok, 12 lines written"),
            *call(4, "read_file", {"path": "missing.py"}, "Error: No such file or directory: missing.py"),
            {"role": "assistant", "content": "I decided to use PostgreSQL because the old one locks up."},
            {"role": "user", "content": f"Which port does it use? The token is {SECRET}"},
            {"role": "assistant", "content": "It uses port 8443."},
        ]
    ).messages


def summary(budget: int = 3_000, **changes: Any) -> str:
    fields = {"messages": fold(), "budget_tokens": budget, "fold": "0" * 12, "redact": redact}
    return local_summary(SummaryRequest(**{**fields, **changes}))[0]


def test_it_says_that_it_is_local_and_may_be_incomplete() -> None:
    assert summary().startswith(NOTICE)
    assert "may be incomplete" in NOTICE
    assert "lower confidence" in NOTICE


def test_asks_actions_files_errors_decisions_and_answers_are_told() -> None:
    told = parse_summary(summary())
    assert "User said: Set up the billing service. You must never touch the legacy schema." in told.critical
    assert "User said: Which port does it use?" in told.critical
    assert "$ pytest -q → FAILED" in told.critical
    assert "src/billing/db.py" in told.critical
    assert "missing.py → FAILED" in told.critical
    assert "pytest -q" in told.blocked
    assert "I decided to use PostgreSQL because the old one locks up." in told.critical
    assert "It uses port 8443." in told.critical


def test_failures_are_told_as_failures_and_a_later_success_clears_them() -> None:
    assert "pytest -q" in parse_summary(summary()).blocked
    mended = (
        *fold(),
        *read(call(9, "terminal", {"command": "pytest -q"}, '{"output": "9 passed", "exit_code": 0}')).messages,
    )
    told = parse_summary(
        local_summary(SummaryRequest(messages=mended, budget_tokens=3_000, fold="0" * 12, redact=redact))[0]
    )
    assert "pytest -q" not in told.blocked


def test_secrets_are_redacted() -> None:
    assert SECRET not in summary()


@pytest.mark.parametrize("before", range(0, 700, 25))
def test_no_half_of_a_secret_is_left_where_a_text_is_cut(before: int) -> None:
    filling = ("word " * 200)[:before]
    command = {"command": f"echo {filling} {SECRET} {'tail ' * 100}"}
    messages = read(
        [
            {"role": "user", "content": f"{filling} {SECRET} " + "more " * 400},
            *call(1, "terminal", command, f"{filling} {SECRET} error: failed {'x ' * 300}"),
        ]
    ).messages
    told = local_summary(SummaryRequest(messages=messages, budget_tokens=3_000, fold="0" * 12, redact=redact))[0]
    assert SECRET[:12] not in told
    assert SECRET[-12:] not in told


@pytest.mark.parametrize("budget", [150, 400, 1_000, 3_000])
def test_it_keeps_its_budget(budget: int) -> None:
    assert estimate_text(summary(budget)) <= budget * 1.5 + 150


def test_the_previous_summary_is_carried_forward_not_nested() -> None:
    first = summary()
    again = summary(previous=first)
    assert again.count(NOTICE) == 1
    assert again.count("## Critical Context") == 1
    old = "## Goal\nold goal\n\n## Key Decisions\n- keep Redis\n\n## Relevant Files\n- a/b.py: edited"
    told = parse_summary(summary(previous=old))
    assert told.goal == "old goal"
    assert "keep Redis" in told.decisions
    assert "a/b.py" in told.files


def test_a_topic_gets_its_lines_first() -> None:
    turns = [f"Module {number} reads its limits from table_{number} because of old clients." for number in range(40)]
    rounding = "Let me see how billing rounds the invoices."
    messages = read([{"role": "assistant", "content": turn} for turn in (rounding, *turns)]).messages
    assert rounding not in summary(200, messages=messages)
    assert rounding in summary(200, messages=messages, focus="invoices")


def test_an_empty_fold_and_one_of_nonsense_do_not_raise() -> None:
    odd = read([None, {"role": "user"}, {"role": "assistant", "tool_calls": [None]}, {"role": "tool"}]).messages
    for messages in ((), odd):
        assert local_summary(SummaryRequest(messages=messages, budget_tokens=500, fold="0" * 12, redact=redact))[0]


def test_files_of_an_agent_that_has_only_a_shell_are_told() -> None:
    commands = ["sed -n '1,90p' /srv/app/models.py", "grep -rn 'def load' src/loader/yaml_reader.py | head", "ls -la"]
    messages = read([message for n, run in enumerate(commands) for message in call(n, "bash", {"command": run}, "ok")])
    told = summary(messages=messages.messages)
    assert "/srv/app/models.py" in told
    assert "src/loader/yaml_reader.py" in told


def test_a_value_is_told_before_plumbing_and_a_finding_before_announcements() -> None:
    lines = (f"{at}→const part{at} = makePart{at}(input{at});" for at in range(30, 70))
    output = "\n".join([*lines, "99→const WIDGET_TIMEOUT_MS = 600_000;"])
    messages = read(
        [
            {"role": "user", "content": "Why does the widget give up?"},
            {"role": "assistant", "content": "Now update the widget part as follows:"},
            *call(1, "Read", {"file_path": "/w/widget.ts"}, output),
            {"role": "assistant", "content": "The widget gives up because its timeout is read twice."},
            *call(2, "Read", {"file_path": "/w/other.ts"}, "nothing here"),
        ]
    ).messages
    text = local_summary(SummaryRequest(messages=messages, budget_tokens=150, fold="0" * 12, redact=redact))[0]
    assert "WIDGET_TIMEOUT_MS = 600_000" in text
    assert "because its timeout is read twice" in text
    assert "Now update" not in text
