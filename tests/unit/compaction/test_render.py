from __future__ import annotations

import json
from typing import Any

import pytest

from midfold.compaction.render import (
    MAX_CHARS,
    block,
    clip,
    failure,
    fence,
    inline,
    render_content_search,
    render_delegated_task,
    render_file_read,
    render_file_search,
    render_process,
    render_value,
)

KINDS = [render_file_search, render_content_search, render_file_read, render_process, render_delegated_task]


def test_a_fence_is_longer_than_any_run_of_backticks_inside() -> None:
    assert fence("a", "python") == "```python\na\n```"
    assert fence("```\nb\n```\n") == "````\n```\nb\n```\n````"
    assert fence("", "a b`\n") == "```ab\n```"


def test_a_block_of_nothing_but_backticks_is_bounded_all_the_same() -> None:
    assert len(block("`" * 100_000, 500, "python")) <= 500


def test_a_long_text_keeps_head_and_tail_and_says_what_is_left_out() -> None:
    clipped = clip("head " + "x" * 1_000 + " tail", 100)
    assert clipped.startswith("head ")
    assert clipped.endswith(" tail")
    assert "characters left out" in clipped
    assert len(clipped) <= 100
    assert len(clip("word " * 1_000_000, 100)) <= 100


@pytest.mark.parametrize("size", [300, 50_000])
def test_a_credential_at_the_cut_leaves_no_half(size: int) -> None:
    secret = "ghp_" + "aB3" * 12
    for shift in range(0, 120, 7):
        text = "a " * (33 - shift // 4) + secret + " z" * size + " " + secret + " b" * (shift // 2)
        assert "aB3aB3" not in clip(text, 120)


def test_a_value_becomes_nested_bullets_with_what_matters_first() -> None:
    value = {"items": [1, {"a": None}], "note": "fine", "error": "it broke", "status": "failed"}
    assert render_value(value).splitlines() == [
        "- error: it broke",
        "- status: failed",
        "- items:",
        "  - 1",
        "  - fields:",
        "    - a: null",
        "- note: fine",
    ]


def test_depth_items_strings_and_the_whole_are_limited() -> None:
    assert render_value([[[[[1]]]]], depth=2) == "- items:\n  - (1 items)"
    assert render_value(list(range(100)), items=2) == "- 0\n- 1\n- […and 98 more]"
    assert "left out" in render_value("x" * 5_000)
    huge = {f"k{n}": ["word " * 100] * 50 for n in range(1_000)}
    assert len(render_value(huge, items=1_000)) <= MAX_CHARS
    assert render_value(huge, max_chars=200).endswith("[…more left out]")


def test_a_priority_key_is_found_however_many_others_come_before_it() -> None:
    value = {f"k{n}": n for n in range(10_000)} | {"error": "late"}
    assert render_value(value, items=3).startswith("- error: late\n- k0: 0\n")
    assert "9,998 more" in render_value(value, items=3)


def test_sensitive_keys_and_credentials_in_strings_are_redacted() -> None:
    shown = render_value({"password": "hunter", "url": "postgres://u:pw@h/d", "max_tokens": 5})
    assert "hunter" not in shown
    assert "pw@" not in shown
    assert "5" in shown


def test_cycles_and_foreign_objects_are_safe() -> None:
    loop: list[Any] = [object(), {1: 2}, b"x", float("nan"), 10**5_000]
    loop.append(loop)
    shown = render_value(loop)
    assert "(contains itself)" in shown
    assert "(object)" in shown
    assert "bits)" in shown


@pytest.mark.parametrize("text", ["```", "a\r```\nb", "# title\n- x", "<b>", "| a | b |", "`x` ``y``"])
def test_strings_cannot_break_out_of_their_bullet(text: str) -> None:
    shown = render_value({"a": text, "z": "end"})
    assert shown.splitlines()[-1] == "- z: end"
    assert all(line.startswith(("- ", "  ")) for line in shown.splitlines())
    assert "\r" not in shown


def test_a_line_of_markup_becomes_a_code_span() -> None:
    assert inline("plain words", 50) == "plain words"
    assert inline("a`b", 50) == "`` a`b ``"
    assert inline("a\nb", 50) == "a ⏎ b"


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ({"error": "boom"}, "boom"),
        ({"error": {"message": "boom", "code": 3}}, "boom"),
        ({"errors": [{"message": "first"}, "second"]}, "first"),
        ({"ok": False}, "ok is false"),
        ({"success": False, "message": "no disk"}, "no disk"),
        ({"status": "failed"}, "status failed"),
        ({"status": "ERROR", "reason": "quota"}, "status error: quota"),
        ({"exit_code": 2}, "exit_code 2"),
        ({"returncode": -9}, "returncode -9"),
        ({"output": "x", "metadata": {"exit_code": 1}}, "exit_code 1"),
        ({"isError": True, "content": [{"type": "text", "text": "denied"}]}, "denied"),
        ('{"error": "in text"}', "in text"),
        ({"status": 503}, "status 503"),
    ],
)
def test_a_structured_failure_is_found(value: Any, reason: str) -> None:
    found = failure(value)
    assert found is not None
    assert found.strip("`") == reason


@pytest.mark.parametrize(
    "value",
    [
        {"error": None, "errors": []},
        {"error": ""},
        {"exit_code": 0},
        {"ok": True},
        {"status": "done"},
        "error",
        [],
        None,
        3,
    ],
)
def test_what_does_not_say_that_it_failed_did_not(value: Any) -> None:
    assert failure(value) is None


@pytest.mark.parametrize(
    "value",
    [
        {"total_count": 312, "files": [f"src/f{n}.py" for n in range(50)]},
        {"numFiles": 312, "filenames": [f"src/f{n}.py" for n in range(50)], "truncated": True},
        json.dumps({"count": 312, "matches": [{"path": f"src/f{n}.py"} for n in range(50)]}),
    ],
)
def test_a_file_search_shows_the_count_the_first_files_and_a_hint(value: Any) -> None:
    shown = render_file_search(value, limit=3).splitlines()
    assert shown[0] == "312 files found"
    assert shown[1:4] == ["- src/f0.py", "- src/f1.py", "- src/f2.py"]
    assert shown[4] == "- […and 309 more; narrow the pattern or the folder to see them]"


def test_plain_lines_are_a_file_search_too() -> None:
    assert render_file_search("a.py\nb.py\n") == "2 files found\n- a.py\n- b.py"
    assert render_file_search({"error": "no such folder"}).startswith("- error: no such folder\n0 files found")


@pytest.mark.parametrize(
    "value",
    [
        {"matches": [{"path": "a.py", "line": 3, "content": "x = 1"}], "total_count": 9},
        {"results": [{"file_path": "a.py", "line_number": 3, "text": "x = 1"}], "count": 9},
        {"mode": "content", "content": "a.py:3:x = 1", "count": 9},
    ],
)
def test_a_content_search_shows_path_line_and_snippet(value: Any) -> None:
    assert render_content_search(value).splitlines() == [
        "9 matches found",
        "- a.py line 3: x = 1",
        "- […and 8 more; narrow the pattern or the path to see them]",
    ]


@pytest.mark.parametrize(
    "value",
    [
        {
            "type": "text",
            "file": {"filePath": "a.py", "content": "x = ```1", "startLine": 5, "numLines": 2, "totalLines": 9},
        },
        {"path": "a.py", "content": "x = ```1", "start_line": 5, "end_line": 6, "total_lines": 9},
    ],
)
def test_a_file_read_shows_path_range_and_fenced_text(value: Any) -> None:
    assert render_file_read(value) == "- path: a.py\n- lines: 5-6 of 9\n````python\nx = ```1\n````"


@pytest.mark.parametrize(
    "value",
    [
        {"status": "exited", "pid": 42, "exit_code": 1, "stdout": "out", "stderr": "err"},
        {"status": "exited", "pid": 42, "output": "out", "stderr": "err", "metadata": {"exit_code": 1}},
        {
            "observation": "run",
            "content": "out",
            "extras": {"status": "exited", "pid": 42, "exit_code": 1},
            "stderr": "err",
        },
    ],
)
def test_a_process_shows_status_pid_exit_code_and_what_it_wrote(value: Any) -> None:
    shown = render_process(value)
    assert shown.startswith("- status: exited\n- pid: 42\n- exit code: 1\n")
    assert shown.endswith("stdout:\n```\nout\n```\nstderr:\n```\nerr\n```")


def test_both_outputs_of_a_process_share_the_room() -> None:
    shown = render_process({"exit_code": 3, "stdout": "o " * 50_000, "stderr": "e " * 50_000}, max_chars=1_000)
    assert len(shown) <= 1_000
    assert "- exit code: 3" in shown
    assert shown.count("characters left out") == 2


def test_delegated_tasks_show_status_duration_error_tools_and_summary() -> None:
    task = {
        "status": "failed",
        "summary": "Looked at it.",
        "error": "out of budget",
        "duration_seconds": 4.5,
        "tool_trace": [{"tool": "read"}, {"tool": "bash"}, {"tool": "read"}],
    }
    shown = render_delegated_task({"results": [task, task], "total_duration_seconds": 9})
    assert "- duration: 9\n2 tasks\nTask 1\n- status: failed\n- duration: 4.5\n- error: out of budget\n" in shown
    assert "- tools: read, bash" in shown
    assert shown.count("Looked at it.") == 2


def test_a_delegated_task_of_content_blocks_shows_its_text() -> None:
    value = {"status": "completed", "content": [{"type": "text", "text": "Done."}], "totalDurationMs": 12}
    assert render_delegated_task(value) == "- status: completed\n- duration: 12\nsummary:\n```\nDone.\n```"


@pytest.mark.parametrize("render", KINDS)
@pytest.mark.parametrize(
    "value", ["plain", {"content": [{"type": "text", "text": "plain"}]}, [{"type": "text", "text": "plain"}]]
)
def test_every_kind_reads_plain_text_and_content_blocks(render: Any, value: Any) -> None:
    assert "plain" in render(value)


@pytest.mark.parametrize("render", KINDS)
def test_every_kind_keeps_the_error_and_redacts(render: Any) -> None:
    value = {"isError": True, "content": [{"type": "text", "text": "password=hunter2 was refused"}] * 500}
    shown = render(value, max_chars=400)
    assert len(shown) <= 400
    assert "- error: " in shown
    assert "refused" in shown
    assert "hunter2" not in shown
