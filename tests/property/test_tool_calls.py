"""Histories with tool calls of real agents, well formed or not: a compaction never raises and omits nothing."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

import midfold
from midfold.testing import strategies

PATCHES = (
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch",
    "*** Begin Patch\n*** Update File: a.py\n@@\n-x\n+y\n*** End Patch",
    "*** Begin Patch\n*** Update File: a.py\n*** Move to: b.py\n@@ def f\n+y\n*** End Patch",
    "*** Begin Patch\n*** Add File: \n*** Delete File: a.py\n*** End Patch",
    "@@ -1,2 +1,2 @@\n-x\n+y",
    "--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-x\n+y\n",
    "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+y\n",
    "--- a/x.py\n+++ /dev/null\n",
    "--- a/x.py\n",
    "diff --git a/x b/x\nBinary files differ\n",
    "some text that is no patch",
    "",
)
COMMANDS = (
    *(f"apply_patch <<'EOF'\n{patch}\nEOF" for patch in PATCHES),
    *(f"git apply <<EOF\n{patch}\nEOF" for patch in PATCHES),
    *(f"patch -p1 <<'EOF'\n{patch}\nEOF" for patch in PATCHES),
    "git apply", "patch -p1 < missing.diff", "git am", "git commit -m", "git commit -m 'x", "git push origin", "git",
    "cat > a.py <<'EOF'\nx = 1\nEOF", "cat <<", "cat <<'EOF'", "echo $((1+", "sed -i 's/a/b/' a.py", "sed -i", "mv a",
    "cp", "rm -rf", "cd", "cd && ls", "kill", "kill %1", "npm run &", "sleep 1 &",
    "python - <<'EOF'\nopen('a','w')\nEOF",
    "python -c \"import os; os.remove('a')\"", "pytest -q tests/test_a.py::test_b", "make test | tail -5", "tar x",
    "for f in *; do rm $f; done", "if true; then", "a && b || c; d | e > f 2>&1", "> out", "| tee", "\\", "'", "$(",
    "`",
    "docker run -d x", "curl -X POST", "ssh host 'rm x'", "mkdir", "touch", "git checkout -b", "git stash pop", "xargs",
)  # fmt: skip
OUTPUTS = st.sampled_from(
    ["", "ok", "Exit code 1\nfailed", "Exit code: 0\nWall time: 1 s\nOutput:\n", "<returncode>1</returncode>\n<output>",
     "Chunk ID: 1\nProcess exited with code x\nOutput:\n", "Process running with session ID 12",
     '{"output": "x", "exit',
     '{"output": null, "metadata": {"exit_code": "x"}}', '{"exit_code": {}, "output": []}', "[1] 1234\n", "PID: 12345",
     "[main 1a2b3c4] x\n 1 file changed", "== 1 failed, 2 passed in 0.1s ==", "Tests: x failed", "FAILED a::b - ",
     "Traceback (most recent call last):\n", "<task-id>a</task-id><status>", "Success. Updated the following files:\nM",
     "The file a.py has been updated.", "\x1b[31mred\x1b[0m\r\n\x00",
     "[Bash] ran `x` -> exit 1 (3 characters) | unfold",
     "agentId: a1 launched in the background", "On branch main\nnothing to commit", "HEAD is now at", "1→x\n2→"]
) | st.text(max_size=60)  # fmt: skip
TOOLS: dict[str, tuple[str, ...]] = {
    "apply_patch": ("input", "patch", "diff"),
    "Edit": ("file_path", "old_string", "new_string", "replace_all"),
    "MultiEdit": ("file_path", "edits"),
    "Write": ("file_path", "content"),
    "str_replace_editor": ("command", "path", "old_str", "new_str", "insert_line", "view_range", "file_text"),
    "Bash": ("command", "run_in_background", "timeout"),
    "shell": ("command", "workdir"),
    "exec_command": ("cmd", "workdir", "session_id"),
    "write_stdin": ("session_id", "chars"),
    "execute_code": ("code", "language"),
    "Read": ("file_path", "offset", "limit"),
    "read_many_files": ("paths", "files"),
    "Grep": ("pattern", "path", "output_mode"),
    "LS": ("path",),
    "TodoWrite": ("todos",),
    "update_plan": ("plan", "explanation"),
    "Task": ("description", "prompt", "subagent_type", "run_in_background"),
    "KillShell": ("shell_id",),
    "BashOutput": ("bash_id",),
    "delete_file": ("target_file",),
    "move_file": ("source", "destination"),
    "notebook_edit": ("notebook_path", "new_source", "cell_id"),
    "web_fetch": ("url", "prompt"),
    "browser_click": ("element", "ref"),
    "mcp__github__create_pull_request": ("title", "body", "base", "head"),
    "book_reservation": ("user_id", "flights", "payment"),
}
PLANS = st.lists(
    st.dictionaries(
        st.sampled_from(["content", "step", "status", "id", "activeForm"]),
        st.sampled_from(["do it", "completed", "in_progress", "", None, 1, []]),
        max_size=3,
    )
    | st.text(max_size=5),
    max_size=4,
)
EDITS = st.lists(
    st.dictionaries(st.sampled_from(["old_string", "new_string"]), st.sampled_from(["a\nb", "", None]), max_size=2)
    | st.none(),
    max_size=3,
)
PATHS = st.sampled_from(["a.py", "/home/me/p/src/b.ts", "", ".", "..", "~", "a b.md", "x" * 400, "C:\\x\\y.cs", "\n"])
VALUES = st.one_of(
    st.sampled_from(COMMANDS),
    st.sampled_from(PATCHES),
    PATHS,
    PLANS,
    EDITS,
    st.lists(st.sampled_from(["bash", "-lc", *COMMANDS[:30]]), max_size=4),
    strategies.json_values(odd=True),
)


@st.composite
def calls(draw: st.DrawFn) -> tuple[str, str]:
    """Draw name and arguments of a call: right or wrong types, some as truncated JSON."""
    name = draw(st.sampled_from([*TOOLS]) | st.text(max_size=12))
    arguments = json.dumps(draw(st.dictionaries(st.sampled_from(TOOLS.get(name, ("x",))), VALUES, max_size=4)))
    whole = draw(st.sampled_from([True, True, True, False]))
    return name, arguments if whole else draw(
        st.sampled_from([arguments[: len(arguments) // 2], "null", "[1]", '"', ""])
    )


STEPS = st.lists(st.tuples(calls(), OUTPUTS | st.none(), st.booleans()), min_size=1, max_size=8)


def history(steps: list[tuple[tuple[str, str], str | None, bool]]) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = [{"role": "user", "content": "Fix the bug in a.py, then run the tests."}]
    for number, ((name, arguments), output, long) in enumerate(steps):
        call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": arguments}}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        if output is not None:
            text = output + "\n0123 src/a.py: a line of output" * 60 * long
            messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": text})
    for number in range(30):
        messages.append({"role": "assistant", "content": f"Looked at part {number} of the code. " * 12})
        messages.append({"role": "user", "content": f"Go on with part {number + 1}."})
    return messages


@given(STEPS, st.sampled_from([None, 1_500]))
@example([(("apply_patch", json.dumps({"input": PATCHES[0]})), "ok", False)], None)
@example([(("Bash", json.dumps({"command": "git apply <<EOF\n@@ -1 +1 @@\n-x\n+y\nEOF"})), "ok", False)], None)
@example([(("Bash", json.dumps({"command": "patch -p1 <<'EOF'\nsome text\nEOF"})), "ok", False)], None)
def test_any_tool_call_is_compacted_and_nothing_is_omitted(
    steps: list[tuple[tuple[str, str], str | None, bool]], target: int | None
) -> None:
    messages = history(steps)
    for window in (8_000, 16_000):
        result = midfold.compact(messages, context_length=window, target_tokens=target, force=True)
        assert result.changed, result.receipt.reason
        assert result.receipt.omitted == ()
