"""Digests of each family of tools, with the names, calls and results of real agents."""

from __future__ import annotations

import json
from typing import Any

import pytest

from midfold.compaction.local.digest import describe
from midfold.compaction.local.tool_call import Action
from midfold.transcript.message import Media, Text, ToolCall, ToolResult


def act(name: str, text: str, *, is_error: bool = False, **arguments: Any) -> Action:
    call = ToolCall(id="1", name=name, arguments=json.dumps(arguments))
    return describe(call, ToolResult(call_id="1", parts=(Text(text=text),), is_error=is_error))


TRACEBACK = 'Traceback (most recent call last):\n  File "a.py", line 1, in <module>\n    f()\nValueError: no\n'

NAMES: list[tuple[str, str, dict[str, Any]]] = [
    ("shell", "Bash", {"command": "ls"}),
    ("shell", "bash", {"command": "ls"}),
    ("shell", "shell", {"command": ["bash", "-lc", "ls"]}),
    ("shell", "exec_command", {"cmd": "ls"}),
    ("shell", "functions.exec_command", {"cmd": "ls"}),
    ("shell", "container.exec", {"cmd": ["ls"]}),
    ("shell", "runTerminalCommand", {"command": "ls"}),
    ("shell", "run_terminal_cmd", {"command": "ls"}),
    ("shell", "execute_bash", {"command": "ls"}),
    ("shell", "terminal", {"command": "ls"}),
    ("shell", "mcp__box__run_command", {"command": "ls"}),
    ("shell", "do_it", {"script": "ls"}),
    ("shell", "execute_ipython_cell", {"code": "1 + 1"}),
    ("read", "Read", {"file_path": "a"}),
    ("read", "read_file", {"path": "a"}),
    ("read", "mcp__filesystem__read_text_file", {"path": "a"}),
    ("read", "ReadFile", {"target_file": "a"}),
    ("read", "str_replace_editor", {"command": "view", "path": "a"}),
    ("read", "open_document", {"filename": "a"}),
    ("write", "Write", {"file_path": "a", "content": "x"}),
    ("write", "write_file", {"path": "a", "content": "x"}),
    ("write", "str_replace_editor", {"command": "create", "path": "a", "file_text": "x"}),
    ("write", "mcp__fs__move_file", {"source": "a", "destination": "b"}),
    ("write", "put_it", {"path": "a", "content": "x"}),
    ("patch", "Edit", {"file_path": "a", "old_string": "x", "new_string": "y"}),
    ("patch", "MultiEdit", {"file_path": "a", "edits": [{}, {}]}),
    ("patch", "apply_patch", {"input": "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch"}),
    ("patch", "shell", {"command": ["apply_patch", "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch"]}),
    ("patch", "str_replace_editor", {"command": "str_replace", "path": "a", "old_str": "x", "new_str": "y"}),
    ("patch", "change", {"file": "a", "diff": "--- a\n+++ b\n@@ -1 +1 @@\n-x\n+y"}),
    ("patch", "notebook_edit", {"notebook_path": "a", "new_source": "y"}),
    ("search", "Grep", {"pattern": "x", "path": "src"}),
    ("search", "search_files", {"pattern": "x"}),
    ("search", "mcp__code__search", {"query": "x"}),
    ("search", "codebase_search", {"query": "x"}),
    ("list", "Glob", {"pattern": "**/*.py"}),
    ("list", "LS", {"path": "src"}),
    ("list", "list_dir", {"path": "src"}),
    ("list", "mcp__fs__list_directory", {"path": "src"}),
    ("web", "WebFetch", {"url": "https://x.org", "prompt": "sum up"}),
    ("web", "web_search", {"query": "x"}),
    ("web", "mcp__any__get", {"url": "https://x.org"}),
    ("agent", "Task", {"description": "d", "prompt": "p", "subagent_type": "Explore"}),
    ("agent", "delegate_task", {"goal": "g"}),
    ("agent", "mcp__x__spawn_agent", {"task": "t"}),
    ("process", "write_stdin", {"session_id": 7, "chars": ""}),
    ("process", "process", {"action": "poll", "session_id": "proc_1"}),
    ("process", "BashOutput", {"bash_id": "b1"}),
    ("process", "KillShell", {"shell_id": "b1"}),
    ("browser", "browser_navigate", {"url": "https://x.org"}),
    ("browser", "mcp__playwright__browser_click", {"element": "Save"}),
    ("browser", "computer", {"action": "left_click", "coordinate": [1, 2]}),
    ("plan", "TodoWrite", {"todos": [{"content": "a", "status": "completed"}]}),
    ("plan", "update_plan", {"plan": [{"step": "a", "status": "completed"}]}),
    ("plan", "TaskUpdate", {"taskId": "1", "status": "completed"}),
    ("plan", "TaskCreate", {"subject": "s", "description": "d"}),
    ("other", "get_reservation_details", {"reservation_id": "ABC"}),
    ("other", "search_direct_flight", {"origin": "JFK", "destination": "SEA", "date": "2024-05-20"}),
    ("other", "mcp__linear__list_issues", {"query": "x", "team": "t"}),
    ("other", "calculate", {"expression": "1 + 1"}),
    ("other", "think", {"thought": "hm"}),
    ("other", "", {}),
]


@pytest.mark.parametrize(("family", "name", "arguments"), NAMES, ids=lambda value: str(value)[:40])
def test_tools_are_recognised_by_name_or_shape(family: str, name: str, arguments: dict[str, Any]) -> None:
    assert act(name, "some output", **arguments).family == family


@pytest.mark.parametrize(
    ("text", "code", "lines"),
    [
        ("Exit code 1\na\nb", 1, 2),
        ("Exit code 127\n", 127, 0),
        ("<returncode>0</returncode>\n<output>\na\nb\n</output>", 0, 2),
        ("<returncode>-1</returncode>\n<output>\n</output>", -1, 0),
        ("<returncode>0</returncode>\n<output>\nsee </output>\n</output>", 0, 1),
        ("Exit code: 0\nWall time: 0.1 seconds\nOutput:\na\nb\nc\n", 0, 3),
        ("Chunk ID: 1\nWall time: 0.1 s\nProcess exited with code 2\nOriginal token count: 3\nOutput:\na\n", 2, 1),
        ("Chunk ID: 1\nWall time: 0.1 seconds\nProcess exited with code 0\nOriginal token count: 3\nOutput:\n"
         "Warning: truncated output (original token count: 99)\nTotal output lines: 166\n\na\nb\n", 0, 166),
        (json.dumps({"output": "a\nb\nc", "exit_code": 1}), 1, 3),
        (json.dumps({"output": "a\nb\n", "exit_code": 0, "error": None}), 0, 2),
        (json.dumps({"output": "a\nb\nc", "metadata": {"exit_code": 1, "duration_seconds": 0.1}}), 1, 3),
        (json.dumps({"stdout": "a\nb\n", "stderr": "c\n", "returncode": 3}), 3, 3),
        (json.dumps({"stdout": "", "stderr": "", "exitCode": 0}), 0, 0),
        ("a\nb\n[exit 1]", 1, 2),
        ("[exit 0]", 0, 0),
        ("a\nb\n[The command completed with exit code 1.]\n[Current working directory: /w]", 1, 2),
    ],
)  # fmt: skip
def test_a_shell_states_its_exit_code_and_counts_the_lines_inside_every_envelope(
    text: str, code: int, lines: int
) -> None:
    action = act("Bash", text, command="x")
    assert action.detail.startswith(f"exit {code}, {lines} line{'' if lines == 1 else 's'}")
    assert action.lines == lines
    assert action.outcome == ("ok" if code == 0 else "failed")


def test_a_result_with_the_error_flag_and_an_exit_code_says_both() -> None:
    action = act("Bash", "Exit code 2\nfine so far\nfatal: not a git repository", is_error=True, command="git log")
    assert action.detail == "exit 2, 2 lines, last error: fatal: not a git repository"
    assert action.error == "fatal: not a git repository"


def test_without_an_exit_code_the_outcome_is_unknown_unless_the_end_tells() -> None:
    assert act("Bash", "a\nb", command="make").outcome == "unknown"
    assert act("Bash", f"start\n{TRACEBACK}", command="python a.py").error == "ValueError: no"
    assert act("Bash", f"start\n{TRACEBACK}", command="python a.py").outcome == "failed"
    assert act("Bash", "cat: x: No such file or directory", command="cat x").outcome == "failed"
    assert act("Bash", "bash: foo: command not found", command="foo").outcome == "failed"
    assert act("Bash", "ok\n===== 2 failed, 3 passed in 1.2s =====", command="pytest").outcome == "failed"
    assert act("Bash", "===== 5 passed in 1.2s =====", command="pytest").outcome == "unknown"


@pytest.mark.parametrize(
    ("command", "text"),
    [
        ("grep -rn error src", "Exit code: 0\nWall time: 1 s\nOutput:\nsrc/a.py:1:raise ValueError('error')\n"),
        ("cat a.py", "<returncode>0</returncode>\n<output>\nError: in a log\n</output>"),
        ("cat log", "fine\nError: in a log"),
        ("rg fatal", "a.py:3:fatal: no"),
        ("cat trace.txt", TRACEBACK),
    ],
)
def test_an_output_that_mentions_errors_is_no_failure(command: str, text: str) -> None:
    action = act("Bash", text, command=command)
    assert action.outcome != "failed"
    assert "last error" not in action.detail


def test_a_traceback_behind_a_pipe_that_hides_the_exit_code_is_shown() -> None:
    action = act("Bash", f"<returncode>0</returncode>\n<output>\n{TRACEBACK}</output>", command="python a.py | tail -5")
    assert action.outcome == "failed"
    assert action.detail == "exit 0, 4 lines, last error: ValueError: no"
    assert action.error == "ValueError: no"


def test_the_verdict_of_a_test_run_is_shown() -> None:
    action = act(
        "Bash", "Exit code: 0\nWall time: 1 s\nOutput:\nx\n==== 22 passed, 2 warnings in 0.05s ====\n", cmd="x"
    )
    assert action.detail == "exit 0, 2 lines, ends with: 22 passed, 2 warnings in 0.05s"


def test_the_line_that_says_what_failed_is_preferred_to_the_one_that_repeats_it() -> None:
    text = "Exit code 1\n--- FAIL: TestRewind (0.98s)\nFAIL\nFAIL\texample.org/x\t0.6s\nFAIL\n[test] ERROR task failed"
    assert act("Bash", text, command="mise run test").error == "--- FAIL: TestRewind (0.98s)"


def test_rejected_and_interrupted_calls_did_not_happen() -> None:
    text = "The user doesn't want to proceed with this tool use. The tool use was rejected (eg. …)"
    for name, arguments in (("Bash", {"command": "rm x"}), ("Edit", {"file_path": "a", "old_string": "b"})):
        action = act(name, text, **arguments)
        assert (action.outcome, action.detail, action.wrote) == ("failed", "rejected by the user", False)


def test_a_running_command_names_its_session() -> None:
    text = "Chunk ID: 1\nWall time: 1 s\nProcess running with session ID 90862\nOriginal token count: 3\nOutput:\na\n"
    action = act("exec_command", text, cmd="make watch")
    assert (action.outcome, action.detail) == ("unknown", "still running as session 90862, 1 line")
    assert act("write_stdin", text, session_id=90862, chars="").did == "looked at the output of session 90862"
    assert act("write_stdin", text, session_id=90862, chars="y\n").did == "sent `y` to session 90862"


@pytest.mark.parametrize(
    ("command", "wrote", "paths"),
    [
        ("cat > src/a.py <<'EOF'\nif x > y: pass\nEOF", True, ("src/a.py",)),
        ("cd /w && sed -i 's/a/b/' src/b.py", True, ("src/b.py",)),
        ("pytest -q 2>&1 | tee log.txt", True, ("log.txt",)),
        ("grep -n x a.py 2>/dev/null", False, ()),
        ("awk '$1 > 5' a", False, ()),
        ("ls -la 2>&1 | head", False, ()),
        ("git add . && git commit -m x", True, ()),
        ("git status", False, ()),
        ("rm -rf build", True, ()),
    ],
)
def test_commands_that_change_files_are_told_from_those_that_look(
    command: str, wrote: bool, paths: tuple[str, ...]
) -> None:
    action = act("Bash", "done", command=command)
    assert (action.wrote, action.paths) == (wrote, paths)


def test_the_change_of_folder_before_a_command_is_not_what_it_did() -> None:
    assert act("Bash", "x", command="cd /a/b/c && make test").did == "ran `make test`"


@pytest.mark.parametrize(
    ("arguments", "did"),
    [
        ({"file_path": "src/a.py"}, "read src/a.py"),
        ({"file_path": "src/a.py", "offset": 10, "limit": 71}, "read src/a.py lines 10-80"),
        ({"path": "a", "limit": 5}, "read a lines 1-5"),
        ({"path": "a", "view_range": [3, 9]}, "read a lines 3-9"),
        ({"path": "a", "view_range": [3, -1]}, "read a from line 3"),
        ({"path": "a", "start_line": 3, "end_line": 4}, "read a lines 3-4"),
        ({"path": "a", "offset": 7}, "read a from line 7"),
        ({"path": "a", "offset": "7", "limit": "x"}, "read a from line 7"),
        ({"paths": ["a", "b", "c"]}, "read a and 2 more"),
    ],
)
def test_a_read_names_file_and_range(arguments: dict[str, Any], did: str) -> None:
    action = act("read_file", "1\n2\n", **arguments)
    assert (action.did, action.outcome, action.detail) == (did, "ok", "2 lines")


def test_notes_to_the_model_are_no_lines_of_the_file() -> None:
    text = "     1→a\n     2→b\n\n<system-reminder>\nWhenever you read a file\n</system-reminder>\n"
    assert act("Read", text, file_path="a").lines == 2


@pytest.mark.parametrize(
    "text",
    [
        "<tool_use_error>File does not exist. Did you mean b?</tool_use_error>",
        "Error: ENOENT: no such file or directory, open 'a'",
        "File does not exist.",
        "No such file or directory: a",
        json.dumps({"error": "File not found: a"}),
        json.dumps({"success": False, "error": "File not found: a"}),
        json.dumps({"ok": False}),
        json.dumps({"content": [{"type": "text", "text": "not there"}], "isError": True}),
        "File content (25391 tokens) exceeds maximum allowed tokens (25000).",
        "Permission denied: a",
    ],
)
def test_a_failed_read_says_so(text: str) -> None:
    action = act("Read", text, file_path="a")
    assert action.outcome == "failed"
    assert action.error
    assert action.detail == action.error


def test_the_error_flag_alone_is_enough() -> None:
    action = act("Read", "it is a folder\nreally", is_error=True, file_path="a")
    assert (action.outcome, action.error) == ("failed", "it is a folder")


def test_a_file_that_talks_about_errors_was_read_all_right() -> None:
    source = "Error: this file starts so\n" + "more text\n" * 300
    assert act("Read", source, file_path="errors.md").outcome == "ok"
    assert (
        act("Read", '{"error": "x", ' + ", ".join(f'"k{n}": 1' for n in range(9)) + "}", file_path="a.json").outcome
        == "ok"
    )


def test_a_file_that_was_read_is_told_with_the_values_of_its_constants() -> None:
    lines = ["BATCH_SIZE = 10", "const TIMEOUT_MS = 600_000;", 'export const BASE_URL = "/api"', "MAX_DEPTH = 4"]
    order = "LAST_WORD = 'delete all of it'"
    action = act("Read", "\n".join([order, *lines]), file_path="a.ts")
    assert action.detail == '5 lines; `BATCH_SIZE = 10`; `TIMEOUT_MS = 600_000`; `BASE_URL = "/api"`'


def test_an_image_that_was_read_is_a_media_part() -> None:
    call = ToolCall(id="1", name="Read", arguments='{"file_path": "a.png"}')
    action = describe(call, ToolResult(call_id="1", parts=(Media(kind="image", data="iVBOR"),)))
    assert action.detail == "1 media part"


def test_a_write_says_how_much_was_written() -> None:
    action = act("Write", "File created successfully at: a.py", file_path="a.py", content="a\nb\n")
    assert (action.did, action.detail, action.wrote) == ("wrote a.py (2 lines, 4 characters)", "created", True)
    assert act("Write", "Error: read-only", file_path="a.py", content="a").wrote is False


@pytest.mark.parametrize(
    "text",
    [
        "<tool_use_error>String to replace not found in file.\nString: x</tool_use_error>",
        "String to replace not found in file.",
        "No replacement was performed, old_str `x` did not appear verbatim in a.",
        "Found 3 matches of the string to replace, but replace_all is false.",
        "File has been unexpectedly modified. Read it again before attempting to write it.",
        "apply_patch verification failed: Failed to find expected lines in a",
        json.dumps({"success": False, "error": "no match"}),
        "Exit code: 1\nWall time: 0 seconds\nOutput:\nInvalid Context 0:\n x",
    ],
)
def test_a_failed_edit_says_so_and_wrote_nothing(text: str) -> None:
    action = act("Edit", text, file_path="a", old_string="x", new_string="y")
    assert (action.outcome, action.wrote) == ("failed", False)


def test_edits_are_counted() -> None:
    assert (
        act("Edit", "The file a has been updated.", file_path="a", old_string="x", new_string="y").detail
        == "1 edit applied"
    )
    multi = act("MultiEdit", "Applied 3 edits", file_path="a", edits=[{}, {}, {}])
    assert (multi.did, multi.detail, multi.wrote) == ("edited a in 3 places", "3 edits applied", True)


def test_a_patch_counts_hunks_and_names_files() -> None:
    text = "*** Begin Patch\n*** Update File: src/a.py\n@@\n-x\n+y\n@@\n-z\n+w\n*** Add File: b.py\n+n\n*** End Patch"
    for call in (
        ToolCall(id="1", name="apply_patch", arguments=json.dumps({"input": text})),
        ToolCall(id="1", name="apply_patch", arguments=text),
    ):
        action = describe(call, ToolResult(call_id="1", parts=(Text(text="Success."),)))
        assert action.paths == ("src/a.py", "b.py")
        assert (action.did, action.detail) == ("patched src/a.py and 1 more", "2 hunks in 2 files applied")


@pytest.mark.parametrize(
    ("text", "arguments", "detail"),
    [
        ("a.py:1:x\na.py:9:x\nb.py:3:x", {}, "3 matches in 2 files"),
        ("49-\ta\n51:\tx\n52-\ty\n--\n60:\tx", {"-C": 2}, "2 matches"),
        ("a.py-1-z\na.py:2:x\na.py-3-y", {"-A": 1}, "1 match in 1 file"),
        ("Found 12 files\na\nb", {}, "12 files"),
        ("Found 1 file\na", {}, "1 file"),
        ("a:3\nb:2\n\nFound 5 total occurrences across 2 files.", {}, "5 occurrences in 2 files"),
        ("No matches found", {}, "no matches"),
        ("", {}, "no matches"),
        ('{"total_count": 7, "matches": []}', {}, "7 matches"),
        ('[{"path": "a"}]', {}, "1 result"),
    ],
)
def test_a_search_counts_its_matches(text: str, arguments: dict[str, Any], detail: str) -> None:
    action = act("Grep", text, pattern="x", path="src", **arguments)
    assert action.did == "searched for 'x' in src"
    assert action.detail == detail


def test_a_listing_counts_its_entries() -> None:
    assert act("Glob", "a\nb\nc", pattern="*").detail == "3 entries"
    assert act("Glob", "a\n(Results are truncated. Consider …)", pattern="*").detail == "1 entry (more left out)"
    assert act("Glob", "No files found", pattern="*").detail == "nothing found"
    assert act("LS", "a\nb", path="/w").did == "listed /w"


def test_the_web_names_address_or_query() -> None:
    assert act("WebFetch", "x\ny", url="https://x.org/a", prompt="p").did == "fetched https://x.org/a"
    assert act("web_extract", "x", urls=["https://a.org", "https://b.org"]).did == "fetched https://a.org and 1 more"
    assert act("WebSearch", "x", query="how").did == "searched the web for 'how'"
    assert act("WebFetch", "Request failed with status code 404", url="https://x.org").outcome == "failed"


def test_a_sub_agent_has_goal_and_status() -> None:
    action = act("Task", "long\nreport", description="find it", prompt="…", subagent_type="Explore")
    assert (action.did, action.detail) == ("gave a sub-agent (Explore) the task 'find it'", "answered, 2 lines")
    failed = act("delegate_task", json.dumps({"results": [{"status": "failed", "error": "no key"}]}), goal="g")
    assert (failed.outcome, failed.detail) == ("failed", "failed: no key")
    done = act(
        "delegate_task", json.dumps({"results": [{"status": "completed"}] * 2}), tasks=[{"goal": "g"}, {"goal": "h"}]
    )
    assert done.outcome == "ok"
    assert "2 completed" in done.detail
    assert "'g' and 1 more" in done.did


def test_a_plan_counts_what_is_done() -> None:
    todos = [{"content": "a", "status": "completed"}, {"content": "b", "status": "in_progress"}]
    assert act("TodoWrite", "ok", todos=todos).did == "set the plan: 2 items, 1 done, now 'b'"
    assert act("TaskUpdate", "Updated", taskId="3", status="completed").did == "set task 3 to completed"
    assert act("TaskCreate", "Task #1", subject="do", description="d").did == "added the task 'do'"


def test_a_browser_names_deed_and_page() -> None:
    assert act("browser_navigate", "ok", url="https://x.org").did == "used the browser: navigate https://x.org"
    assert act("mcp__playwright__browser_click", "ok", element="Save").did == "used the browser: click 'Save'"


def test_unknown_tools_show_their_most_telling_arguments() -> None:
    action = act("book", "{}", notes="n" * 300, cabin="economy", user_id="mia", flights=[1, 2], extra={})
    assert action.did == f"called it with user_id=mia, cabin=economy, flights=2 items, notes={'n' * 39}…"
    assert act("send_certificate", "Error: no such user", user_id="x").detail == "Error: no such user"
    assert act("get_x", '{"a": 1, "b": 2}', id=7).detail == "2 fields"
    assert act("calculate", "1023.0", expression="1").detail == "answered '1023.0'"


@pytest.mark.parametrize(
    "arguments", ["", "null", "[]", "3", "{", '"x"', '{"command": null}', '{"command": {"a": 1}}', '{"path": 5}']
)
@pytest.mark.parametrize(
    "name", ["Bash", "Read", "Edit", "apply_patch", "Grep", "Glob", "Task", "TodoWrite", "process", "x"]
)
def test_malformed_arguments_never_raise(name: str, arguments: str) -> None:
    action = describe(ToolCall(id="", name=name, arguments=arguments), ToolResult(call_id="", parts=()))
    assert action.did
