from __future__ import annotations

import json
from typing import Any

import pytest

from midfold import Text, ToolCall, ToolResult, render_result
from midfold.compaction.render_results import brief, visible_lines


def result(text: str, *, is_error: bool = False) -> ToolResult:
    return ToolResult(call_id="1", parts=(Text(text),), is_error=is_error)


def call(name: str, **arguments: Any) -> ToolCall:
    return ToolCall(id="1", name=name, arguments=json.dumps(arguments))


BASH = call("Bash", command="make test")
GREP = call("Grep", pattern="fox", path="src")
GLOB = call("Glob", pattern="**/*.py")
READ = call("Read", file_path="/src/a.py")
TASK = call("Task", description="ToolCallRecord", prompt="Look for it", subagent_type="Explore")


@pytest.mark.parametrize(
    ("value", "beginning"),
    [
        ({"files": ["a.py", "b.py"], "total_count": 90}, "90 files found\n- "),
        ({"matches": [{"path": "a.py", "line": 3, "content": "x"}]}, "1 match found\n- "),
        ({"stdout": "out", "exit_code": 3, "error": "boom"}, "- exit code: 3\n- error: boom\n"),
        ({"content": "x = 1", "path": "a.py", "total_lines": 40}, "- path: "),
        ({"results": [{"status": "ok", "summary": "Did it."}], "total_duration_seconds": 4}, "- duration: 4\n1 task\n"),
        ({"files": ["a.py"], "owner": "me"}, "- files:\n"),
        ([{"a": 1}], "- fields:\n"),
    ],
)
def test_json_of_an_unknown_tool_is_rendered_by_its_fields_and_loses_none(value: Any, beginning: str) -> None:
    assert render_result(result(json.dumps(value))).startswith(beginning)


@pytest.mark.parametrize(
    ("made", "value", "beginning"),
    [
        (BASH, {"stdout": "out", "stderr": "", "interrupted": False, "exit_code": 0}, "- exit code: 0\nstdout:\n"),
        (
            GREP,
            {"mode": "content", "results": [{"path": "a.py", "line": 3, "text": "x"}]},
            "1 match found\n- a.py line 3",
        ),
        (GLOB, {"durationMs": 12, "filenames": ["a.py", "b.py"], "numFiles": 2}, "2 files found\n- a.py\n- b.py"),
        (READ, {"type": "text", "file": {"filePath": "/src/a.py", "content": "x = 1"}}, "- path: `/src/a.py`\n"),
        (TASK, {"status": "completed", "summary": "Found.", "totalTokens": 9}, "- status: completed\nsummary:\n"),
        (BASH, {"rows": [1, 2]}, "- rows:\n"),
    ],
)
def test_the_family_of_the_tool_decides_how_json_is_rendered(made: ToolCall, value: Any, beginning: str) -> None:
    assert render_result(result(json.dumps(value)), made).startswith(beginning)


def test_hits_are_counted_and_limited_and_notes_stay() -> None:
    hits = "\n".join(f"src/a{number}.py:{number + 1}: the fox" for number in range(50))
    shown = render_result(result(f"{hits}\n[more than 50 hits; search for something rarer]"), GREP, items=3)
    assert shown.startswith("50 matches found\n- `src/a0.py` line 1: the fox\n") or shown.startswith(
        "50 matches found\n- src/a0.py line 1: the fox\n"
    )
    assert "and 47 more; narrow the pattern" in shown
    assert shown.endswith("[more than 50 hits; search for something rarer]")


@pytest.mark.parametrize("text", ["No matches found", "nothing found", "", "12:def a():\n13:    pass"])
def test_a_search_without_hits_is_not_counted_as_one(text: str) -> None:
    assert render_result(result(text), GREP) == ""


def test_a_list_of_files_is_counted() -> None:
    assert render_result(result("Found 3 files\na.py\nb.py\nc.py"), GREP, items=2).startswith("3 files found\n- a.py\n")
    assert render_result(result("/src/a.py\n/src/b.py"), GLOB).startswith("2 files found\n")
    assert render_result(result("No files found"), GLOB) == ""


@pytest.mark.parametrize(
    "text", ["Exit code 2\nboom", "boom\n[exit 2]", "<returncode>2</returncode>\n<output>\nboom\n</output>"]
)
def test_output_of_a_command_begins_with_its_exit_status(text: str) -> None:
    shown = render_result(result(text), BASH)
    assert visible_lines(shown) == ["- exit code: 2", "boom"]
    assert render_result(result(text), BASH, has_heading=True) == ""


def test_json_that_a_command_printed_does_not_state_its_exit_status() -> None:
    shown = render_result(result('{"stdout": "x", "exit_code": 3}\n[exit 0]'), BASH)
    assert shown.startswith("- exit code: 0\n")
    assert '"exit_code": 3' in shown


@pytest.mark.parametrize("made", [READ, TASK, None, call("get_reservation", id="7")])
def test_other_plain_text_is_shown_as_it_is(made: ToolCall | None) -> None:
    assert render_result(result("plain\ntext"), made) == ""


def test_brief_is_one_line_with_the_path_of_a_file() -> None:
    assert brief(result("import os\n\nx = 1\n"), READ, max_chars=200) == "path: `/src/a.py`; import os  x = 1"
    deep = call("Read", file_path="/home/me/project/src/a.py")
    assert brief(result("import os"), deep, max_chars=200) == "path: `…/src/a.py`; import os"
    assert brief(result("boom\n[exit 2]"), BASH, max_chars=200) == "exit code: 2; boom"
    for text in ("", "plain", "{not JSON", '"a string"', "12"):
        assert brief(result(text), max_chars=3) == text[:3]


def test_a_rendering_is_bounded_redacted_and_keeps_the_error() -> None:
    deep: Any = "x" * 9_000
    for number in range(300):
        deep = {f"key {number}": deep, "list": list(range(500))}
    made = result(json.dumps({"rows": deep, "error": "disk\nfull", "api_key": "9f8b7c6d5e4f"}))
    assert len(render_result(made, max_chars=900)) <= 900
    assert "9f8b7c6d5e4f" not in render_result(made)
    assert "\n" not in brief(made, max_chars=900)
    assert "disk" in brief(made, max_chars=900)[:60]
    hits = result("\n".join(f"src/a.py:{number}: password=hunter2" for number in range(900)))
    assert "hunter2" not in render_result(hits, GREP)
    assert len(render_result(hits, GREP, items=900, max_chars=500)) <= 500
