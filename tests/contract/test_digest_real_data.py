"""Digests of every recorded result, checked against the recordings by independent code."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from functools import cache
from typing import Any, NamedTuple

import pytest

from midfold.compaction.local.digest import describe, digest, is_digest
from midfold.compaction.local.tool_call import FAMILIES, Action
from midfold.transcript.message import Text, ToolCall, ToolResult
from support import data
from support.convert import to_anthropic

HANDLE = "mf-1a2b3c4d5e6f"

FAMILY_OF = {
    "Bash": "shell", "bash": "shell", "exec_command": "shell", "shell": "shell",
    "Read": "read", "Write": "write", "Edit": "patch", "apply_patch": "patch",
    "Grep": "search", "Glob": "list", "WebSearch": "web", "WebFetch": "web", "Task": "agent",
    "TodoWrite": "plan", "TaskCreate": "plan", "TaskUpdate": "plan", "TaskList": "plan", "update_plan": "plan",
    "EnterPlanMode": "plan", "ExitPlanMode": "plan", "write_stdin": "process",
}  # fmt: skip


class Row(NamedTuple):
    source: str
    call: ToolCall
    result: ToolResult
    recorded_error: bool
    text: str
    action: Action


@cache
def rows() -> tuple[Row, ...]:
    found: list[Row] = []
    for conversation in data.conversations():
        waiting: list[dict[str, Any]] = []
        for message in conversation["messages"]:
            waiting.extend(message.get("tool_calls") or [])
            if message["role"] != "tool":
                continue
            index = next(n for n, call in enumerate(waiting) if call["id"] == message["tool_call_id"])
            function = waiting.pop(index)["function"]
            call = ToolCall(id="x", name=function["name"], arguments=function["arguments"])
            result = ToolResult(call_id="x", parts=(Text(text=message["content"]),))
            recorded = bool((message.get("_meta") or {}).get("is_error"))
            row = Row(conversation["source"], call, result, recorded, message["content"], describe(call, result))
            found.append(row)
    return tuple(found)


def test_every_recorded_result_has_a_digest_of_the_right_family() -> None:
    wrong = Counter((row.call.name, row.action.family) for row in rows() if FAMILY_OF.get(row.call.name, row.action.family) != row.action.family)  # fmt: skip  # noqa: E501
    assert not wrong
    assert all(row.action.family in FAMILIES for row in rows())
    assert len(rows()) > 5_000
    for row in rows():
        line = digest(row.call, row.result, handle=HANDLE)
        assert is_digest(line), line
        assert line.isprintable()
        assert len(line) <= 240 + len(f" | unfold {HANDLE}")


def stated(row: Row) -> tuple[int, int] | None:
    """Return exit code and line count as stated in the recording's format."""
    text = row.text
    if row.call.name == "Bash" and (found := re.match(r"Exit code (\d+)\n?", text)):
        return int(found[1]), len(text[found.end() :].split("\n")) - (text[found.end() :][-1:] in ("\n", ""))
    if row.call.name == "bash" and (found := re.match(r"<returncode>(-?\d+)</returncode>\n<output>\n", text)):
        inner = text[found.end() : -len("</output>")] if text.endswith("</output>") else text[found.end() :]
        return int(found[1]), len(inner.split("\n")) - (inner[-1:] in ("\n", ""))
    if row.call.name in ("exec_command", "write_stdin"):
        header, mark, inner = text.partition("\nOutput:\n")
        found = re.search(r"Process exited with code (\d+)", header)
        if mark and found:
            total = re.match(r"Warning: truncated output.*\nTotal output lines: (\d+)", inner)
            return int(found[1]), int(total[1]) if total else len(inner.split("\n")) - (inner[-1:] in ("\n", ""))
    return None


def test_exit_codes_and_line_counts_are_those_of_the_recording() -> None:
    checked: Counter[str] = Counter()
    for row in rows():
        expected = stated(row)
        if expected is None:
            continue
        code, lines = expected
        checked[row.call.name] += 1
        assert row.action.lines == lines, (row.text[:300], row.action)
        if row.action.detail == "no matches":
            assert (code, lines) == (1, 0)
            continue
        if code == 0 and row.action.outcome == "failed":
            assert row.action.error, "an output says that it failed, whatever the exit code"
            continue
        assert (row.action.outcome == "failed") == (code != 0), (row.text[:300], row.action)
        if row.action.family == "shell" or code == 0:
            assert row.action.detail.startswith(f"exit {code}, {lines:,} line"), row.action
    assert checked["Bash"] >= 70
    assert checked["bash"] >= 1_600
    assert checked["exec_command"] >= 300


def test_recorded_errors_are_stated_and_false_alarms_are_rare() -> None:
    """Errors hidden from the exit code by a pipe (`make test | tail`) but visible in the output are counted
    separately.
    """
    counts: Counter[str] = Counter()
    for row in rows():
        if not row.source.startswith("claude_code"):
            continue
        failed = row.action.outcome == "failed"
        piped = row.action.family == "shell" and "|" in row.call.arguments
        if row.recorded_error:
            counts["stated" if failed else "missed"] += 1
        elif failed:
            counts["behind a pipe" if piped else "false alarm"] += 1
        else:
            counts["quiet"] += 1
    errors = counts["stated"] + counts["missed"]
    assert errors > 100
    assert counts["stated"] >= 0.95 * errors, counts
    assert counts["false alarm"] <= 0.01 * counts["quiet"], counts
    assert counts["behind a pipe"] <= 0.02 * counts["quiet"], counts


def test_what_fails_behind_a_pipe_shows_an_error_the_output_really_has() -> None:
    for row in rows():
        if row.action.outcome == "failed" and not row.recorded_error and row.source.startswith("claude_code"):
            assert re.search(r"error|FAIL|not found|No such", row.text), row.text[-300:]


def test_failed_bookings_are_stated() -> None:
    bookings = [row for row in rows() if row.source.startswith("tau")]
    assert len(bookings) > 500
    for row in bookings:
        assert (row.action.outcome == "failed") == row.text.startswith("Error"), row


def test_the_error_flag_of_other_dialects_changes_nothing_but_certainty() -> None:
    for row in rows():
        if row.recorded_error:
            flagged = describe(row.call, ToolResult(call_id="x", parts=row.result.parts, is_error=True))
            assert flagged.outcome == "failed"
            assert flagged.detail == row.action.detail


def test_digests_save_nearly_everything() -> None:
    big = [row for row in rows() if len(row.text) > 200]
    before = sum(len(row.text) for row in big)
    after = sum(len(digest(row.call, row.result, handle=HANDLE)) for row in big)
    assert after < 0.08 * before, (before, after)


def test_the_time_is_in_proportion_to_parsing_the_same_results() -> None:
    """Baseline: the standard library reading and writing the same results and arguments as JSON."""
    pairs = [(row.call, row.result) for row in rows()]
    texts = [json.dumps([row.call.arguments, row.text]) for row in rows()]

    def ours() -> None:
        for call, result in pairs:
            digest(call, result, handle=HANDLE)

    def baseline() -> None:
        for text in texts:
            json.dumps(json.loads(text))

    def best(work: Any) -> float:
        times = []
        for _ in range(3):
            start = time.process_time()
            work()
            times.append(time.process_time() - start)
        return min(times)

    ratio = best(ours) / best(baseline)
    assert ratio < 8, f"{ratio:.1f} times the baseline"


@pytest.mark.parametrize("source", ["claude_code_packmind"])
def test_another_dialect_of_the_same_conversation_gives_the_same_digests(source: str) -> None:
    from midfold import read
    from midfold.transcript.laws import pair

    seen = 0
    for conversation in data.conversations(source):
        both = [
            read(conversation["messages"]).messages,
            read(json.dumps(to_anthropic(conversation["messages"]))).messages,
        ]
        lines = []
        for messages in both:
            answers = pair(messages).answers
            lines.append(
                [
                    digest(
                        messages[call.message].parts[call.part],
                        messages[result.message].parts[result.part],
                        handle=HANDLE,
                    )  # type: ignore[arg-type]
                    for call, result in sorted(answers.items())
                ]
            )
        assert lines[0] == lines[1]
        seen += len(lines[0])
    assert seen > 500
