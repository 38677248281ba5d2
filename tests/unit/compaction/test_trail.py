"""The artifact trail is derived from calls and results alone, and carried forward without rewording."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace

import midfold
from midfold.compaction.summary import StructuredSummary
from midfold.compaction.tracking import follow, parse, render, without_trail
from midfold.compaction.tracking.checks import check_of
from midfold.compaction.tracking.commands import steps_of
from midfold.compaction.tracking.edits import names_in
from midfold.compaction.tracking.entries import CheckRun, RunningTask, WorldAct
from midfold.types import Trail
from support.artifacts import SHARED, Score, halves, score_half
from support.data import need
from support.hash_seeds import outputs_under_hash_seeds
from support.timing import assert_in_proportion


def ran(*calls: tuple[str, dict[str, object], str]) -> midfold.types.Transcript:
    messages: list[dict[str, object]] = [{"role": "user", "content": "go"}]
    for number, (name, arguments, result) in enumerate(calls):
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"c{number}", "type": "function", "function": function}
        messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
        messages.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return midfold.read(messages).messages


def followed(*calls: tuple[str, dict[str, object], str]) -> Trail:
    return follow(Trail(), ran(*calls), midfold.redact)


def states(trail: Trail) -> dict[str, str]:
    return {file.path: file.state for file in trail.files}


def bash(command: str, result: str = "") -> tuple[str, dict[str, object], str]:
    return "Bash", {"command": command}, result


def edit(path: str, result: str = "The file has been updated.") -> tuple[str, dict[str, object], str]:
    return "Edit", {"file_path": path, "old_string": "a = 1", "new_string": "def f():\n    a = 2"}, result


def test_an_edit_that_failed_did_nothing_and_one_that_worked_stays_however_often_it_is_read() -> None:
    failed = "<tool_use_error>String to replace not found in file.</tool_use_error>"
    trail = followed(edit("/p/a.py"), edit("/p/b.py", failed), ("Read", {"file_path": "/p/a.py"}, "a = 2"))
    assert states(trail) == {"/p/a.py": "changed"}
    assert trail.files[0].names == ("f()",) and not trail.reads


def test_a_relative_and_an_absolute_spelling_are_one_file() -> None:
    trail = followed(edit("/p/q/src/a.py"), edit("/p/q/src/b.py"), bash("sed -i 's/x/y/' src/a.py"))
    assert [(file.path, file.edits) for file in trail.files] == [("src/b.py", 1), ("src/a.py", 2)]
    assert trail.root == "/p/q"


def test_a_folder_that_is_guessed_is_the_same_under_every_hash_seed() -> None:
    script = (
        "import json, midfold, sys\n"
        "from midfold.compaction.tracking import follow\n"
        "given = [('Read', {'file_path': f'/{name}/one/src/a.py'}, 'a = 2') for name in ('home', 'work', 'srv')]\n"
        "given.append(('Grep', {'pattern': 'a ='}, 'src/a.py:1: a = 2'))\n"
        "turns = [{'role': 'user', 'content': 'go'}]\n"
        "for n, (name, arguments, result) in enumerate(given):\n"
        "    function = {'name': name, 'arguments': json.dumps(arguments)}\n"
        "    calls = [{'id': f'c{n}', 'type': 'function', 'function': function}]\n"
        "    turns.append({'role': 'assistant', 'content': None, 'tool_calls': calls})\n"
        "    turns.append({'role': 'tool', 'tool_call_id': f'c{n}', 'content': result})\n"
        "sys.stdout.write(follow(midfold.types.Trail(), midfold.read(turns).messages, midfold.redact).root)"
    )
    assert outputs_under_hash_seeds(script, "1", "2", "3", "4") == {"/home/one"}


def test_shell_commands_change_files_and_a_scratch_file_is_told_as_such() -> None:
    trail = followed(
        bash("cat > new.py <<'EOF'\nrm -rf old.py\nEOF\nsed -i 's/a/b/' old.py && git mv x.py y.py"),
        bash("echo 1 > probe.txt && python -c 'print(1)'; rm probe.txt"),
        bash("python - <<'EOF'\ntext = open('z.py').read()\nopen('z.py', 'w').write(text)\nEOF"),
        bash("mv nothing.py other.py", "mv: cannot stat 'nothing.py': No such file or directory"),
    )
    expected = {"new.py": "created", "old.py": "changed", "y.py": "moved", "probe.txt": "scratch", "z.py": "changed"}
    assert states(trail) == expected


def test_what_a_script_of_the_agents_own_changed_is_told_by_its_name() -> None:
    mend = "text = open('src/a.py').read()\nopen('src/a.py', 'w').write(text)\nopen('src/new.py', 'w').write('')\n"
    written = ("Write", {"file_path": "tools/fix_b.py", "content": mend.replace("a.py", "b.py")}, "File created")
    trail = followed(
        bash(f"cat > fix_a.py <<'EOF'\n{mend}EOF\npython fix_a.py"),
        written,
        bash("cd tools && python fix_b.py", "Exit code 1\nTraceback (most recent call last):\nKeyError: 1"),
        bash("python 'fix a.py' && python unknown.py"),
    )
    scripts = {file.path: file.by for file in trail.files if file.state != "scratch"}
    assert scripts == {"src/a.py": "fix_a.py", "src/new.py": "fix_a.py", "tools/fix_b.py": ""}
    shown = "\n".join(line for lines in render(trail, 2_000).values() for line in lines)
    assert "- src/a.py: changed by fix_a.py" in shown and "- src/new.py: created by fix_a.py" in shown
    edited = follow(trail, ran(edit("src/a.py")), midfold.redact)
    assert {file.path: file.by for file in edited.files}["src/a.py"] == ""


def test_of_a_chain_what_stands_before_the_failure_was_done() -> None:
    trail = followed(
        bash("sed -i 's/a/b/' a.py && pytest -q && git commit -m done", "Exit code 1\n1 failed, 2 passed in 1s")
    )
    assert states(trail) == {"a.py": "changed"} and not trail.acts
    assert [(check.kind, check.ok, check.counts) for check in trail.checks] == [("test", False, "1 failed, 2 passed")]


def test_acts_have_their_ids_and_failures_are_failures() -> None:
    trail = followed(
        bash("git add -A && git commit -m 'Fix it'", "[main 1a2b3c4] Fix it\n 1 file changed"),
        bash("git push 2>&1 | tail -2", " ! [rejected] main -> main (fetch first)"),
        ("cancel_reservation", {"reservation_id": "S61CZX"}, '{"reservation_id": "S61CZX", "status": "cancelled"}'),
    )
    assert [(act.what, act.ok) for act in trail.acts] == [("commit", True), ("push", False), ("cancel", True)]
    assert "1a2b3c4" in trail.acts[0].outcome and "S61CZX" in trail.acts[2].text


def test_what_was_started_runs_until_it_is_seen_to_stop() -> None:
    start = (
        "Bash",
        {"command": "npm run dev", "run_in_background": True},
        "Command running in background with ID: b7f2",
    )
    assert [task.id for task in followed(start).running] == ["b7f2"]
    assert not followed(start, ("KillShell", {"shell_id": "b7f2"}, "Successfully killed shell")).running


def test_secrets_do_not_reach_the_trail() -> None:
    key = "sk-ant-api03-" + "A1b2C3d4" * 11
    trail = followed(bash(f"git push https://user:{key}@example.com/x.git", "done"))
    assert trail.acts and key not in midfold.redact(str(trail.acts)) and key not in str(trail)


def test_lines_of_a_handoff_are_read_back_as_they_were_written() -> None:
    trail = followed(
        edit("/p/q/a.py"), edit("/p/q/r/b.py"), bash("git commit -m x", "[main 1a2b3c4] x"), bash("go build ./..."),
        ("Read", {"file_path": "/p/q/c.py", "offset": 3, "limit": 4}, "text"),
    )  # fmt: skip
    sections = render(trail, 2_000)
    body = StructuredSummary(**{key: "\n".join(lines) for key, lines in sections.items()}).render()
    again = parse(body)
    assert render(again, 2_000) == sections
    assert states(again) == states(trail) and [act.ok for act in again.acts] == [True]
    assert not any(line.startswith("- ") for line in without_trail(body).split("\n"))


def test_folding_again_keeps_changed_files_changed_and_counts_nothing_twice() -> None:
    turns = [midfold.write(midfold.read([{"role": "user", "content": "Port it. " * 40}]))[0]]
    for number in range(60):
        name, arguments, result = edit(f"/p/q/m{number}.py")
        call = {"id": f"c{number}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}
        turns += [
            {"role": "assistant", "content": "Next. " * 60, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": f"c{number}", "content": result},
        ]
    messages = turns
    for _ in range(3):
        result_ = midfold.compact(messages, context_length=12_000, force=True)
        assert result_.receipt.trail is None or all(file.edits == 1 for file in result_.receipt.trail.files)
        messages = [*result_.messages, {"role": "user", "content": "go on " * 400}]
    assert result_.receipt.trail is not None
    assert set(states(result_.receipt.trail).values()) == {"changed"}


def test_trails_of_the_real_sessions_are_those_of_the_truth() -> None:
    need(SHARED.is_dir(), "the shared transcripts (../shared) are not here")
    tuning, other = map(score_half, halves())
    for half in (tuning, other):
        for kind, least in (("files", 0.95), ("acts", 0.95), ("aside", 0.9), ("reads", 0.95), ("checks", 0.8)):
            assert min(half[kind].precision, half[kind].recall) >= least, kind
        assert half["checks"].precision >= 0.9
        every = sum(half.values(), Score(0, 0, 0))
        assert min(every.precision, every.recall) >= 0.95


def test_a_script_that_ran_before_anything_was_changed_checked_nothing() -> None:
    made = bash("cat > test_issue.py << 'EOF'\nprint(1)\nEOF")
    seen = ("Read", {"file_path": "/p/q/r/src/app/core.py"}, "a = 1")
    ran_it = bash("python test_issue.py", "1")
    looking = followed(seen, made, ran_it)
    assert looking.checks == ()
    assert [check.command for check in followed(seen, made, ran_it, edit("src/app/core.py"), ran_it).checks] == [
        "python test_issue.py"
    ]
    later = follow(looking, ran(edit("src/app/core.py"), ran_it), midfold.redact)
    assert [check.kind for check in later.checks] == ["script"]


def test_the_newest_run_of_a_check_replaces_those_that_it_answers() -> None:
    def lines(*runs: tuple[str, str]) -> list[str]:
        trail = followed(*(bash(command, result) for command, result in runs))
        return [line.split("`")[1] + line.split("`")[2][:7] for line in render(trail, 2_000)["active_state"]]

    bad, good = "=== 1 failed, 2 passed in 0.1s ===", "=== 3 passed in 0.1s ==="
    part, other, folder = "pytest tests/a.py", "pytest tests/b.py", "pytest tests"
    assert lines((part, bad), ("pytest", good)) == ["pytest passed"]
    assert lines((part, bad), (folder, good)) == ["pytest tests passed"]
    assert lines((part, bad), (f"{part} -x --tb=short", good)) == [f"{part} -x --tb=short passed"]
    assert lines((f"{part} -k one", bad), (part, good)) == [f"{part} passed"]
    assert lines(("pytest", bad), (part, good)) == [f"{part} passed", "pytest FAILED"]
    assert lines(("pytest", good), (part, bad)) == [f"{part} FAILED", "pytest passed"]
    assert lines((part, bad), (other, good)) == [f"{other} passed", f"{part} FAILED"]
    assert lines((part, good), (other, good)) == [f"{other} passed"]
    assert lines((part, bad), (other, bad), ("python -m pytest -q", good)) == ["python -m pytest -q passed"]
    assert lines((part, bad), ("make test", good)) == ["make test passed"]
    assert lines((part, bad), ("vitest web/c.test.ts", good)) == ["vitest web/c.test.ts passed", f"{part} FAILED"]
    assert lines(("mypy src", "Found 2 errors in 1 file"), ("pytest", good)) == ["pytest passed", "mypy src FAILED"]


def test_files_of_the_same_name_stay_two_files_when_the_trail_is_carried_on() -> None:
    first = followed(edit("/p/q/r/src/a.py"), edit("/p/q/r/a.py"), edit("/p/q/r/b.py"))
    again = follow(first, ran(("Read", {"file_path": "/p/q/r/a.py"}, "a = 2")), midfold.redact)
    assert [(file.path, file.edits) for file in again.files] == [("src/a.py", 1), ("a.py", 1), ("b.py", 1)]


def test_a_word_of_many_pieces_takes_time_in_proportion() -> None:
    steps = steps_of("echo a'b c'\"d\" 2>&1 foo2>out.txt # no\necho 3")
    assert [(step.words, step.writes) for step in steps] == [
        (["echo", "ab cd", "foo2"], [("out.txt", False)]),
        (["echo", "3"], []),
    ]
    small, large = ("echo " + "a'b'" * pieces + "x > out.txt" for pieces in (3_000, 12_000))
    assert_in_proportion(steps_of, small, (large, 8))


def outcomes(trail: Trail) -> list[tuple[str, bool | None]]:
    return [(act.what, act.ok) for act in trail.acts]


def test_a_commit_is_done_where_git_shows_it_and_not_where_a_hook_may_have_stopped_it() -> None:
    command = "git add a.tsx && git commit -m 'Hide it' && git status"
    assert outcomes(followed(bash(command, "Exit code 1"))) == [("stage", True), ("commit", False)]
    hook = "Exit code 1\n$ bun test src/\n 12 pass\nerror: Cannot find module '@faker-js/faker' from 'a.test.tsx'\n"
    trail = followed(bash("git add a.tsx && git commit -m 'Hide it' 2>&1", hook))
    assert [(act.ok, act.outcome[:26]) for act in trail.acts[1:]] == [(False, "error: Cannot find module ")]
    assert outcomes(followed(bash("git commit -m x | tail -1", "lint-staged is done"))) == [("commit", None)]
    assert outcomes(followed(bash("git commit -q -m x"))) == [("commit", True)]
    assert outcomes(followed(bash("git commit -m x", "[no result recorded]"))) == [("commit", None)]
    wrapped = followed(bash("rtk git commit -m x", "ok ✓"))
    assert outcomes(wrapped) == [("commit", True)]
    assert render(wrapped, 2_000)["active_state"] == ["- git: last commit (its hash is not shown)"]
    assert outcomes(followed(bash("git commit -m x 2>&1 | tail -1", " 2 files changed, 3 insertions(+)"))) == [
        ("commit", True)
    ]
    code = "<returncode>0</returncode>\n<output>\n</output>"
    assert outcomes(followed(bash("git push", code), bash("git push | cat", "remote: counting"))) == [
        ("push", True),
        ("push", None),
    ]


def test_the_last_outcome_of_an_act_is_told_and_what_failed_is_not_told_as_done() -> None:
    failed, done = "Exit code 1\nerror: hook failed", "[main 1a2b3c4] Fix it"
    retried = render(followed(bash("git commit -m 'Fix it'", failed), bash("git commit -m 'Fix it'", done)), 2_000)
    assert retried["done"] == ["- [done] commit: Fix it -> 1a2b3c4 on main"] and "blocked" not in retried
    again = render(followed(bash("git commit -m one", done), *[bash("git commit -m two", failed)] * 2), 2_000)
    assert again["done"] == ["- [done] commit: one -> 1a2b3c4 on main: Fix it"]
    assert again["blocked"] == ["- [FAILED] commit: two -> error: hook failed"]
    merged = followed(bash("git merge side", "CONFLICT (content): a.py"), bash("git commit --no-edit", done))
    assert "blocked" not in render(merged, 2_000)
    unknown = render(followed(bash("git push | tail -1", "remote: ok")), 2_000)
    assert unknown["active_state"] == ["- [outcome not shown] push: git push"] and "done" not in unknown
    sent = [("send_certificate", {"user_id": "mia", "amount": 50}, "Certificate added")] * 2
    assert len(render(followed(*sent), 2_000)["done"]) == 2


def test_a_folder_that_is_removed_or_moved_takes_along_what_is_in_it() -> None:
    made = bash("mkdir -p /tmp/t && cd /tmp/t && echo a > a.txt && echo b > b.txt")
    gone = followed(made, bash("rm -rf /tmp/t"))
    assert [(file.path, file.gone) for file in gone.files] == [("/tmp/t", True)]
    anew = followed(bash("cd /tmp && rm -rf t"), made, bash("cd /tmp && rm -rf t && mkdir t && cd t && echo a > a.txt"))
    assert [(file.path, file.gone) for file in anew.files] == [("/tmp/t", False)]
    put = followed(bash("rm -rf /tmp/t"), bash("git clone x /tmp/t"), bash("echo a > /tmp/t/a.txt"))
    assert [(file.path, file.gone) for file in put.files] == [("/tmp/t/a.txt", False)]
    files = edit("/p/q/old/a.py"), edit("/p/q/old/b.py"), edit("/p/q/c.py")
    assert states(followed(*files, bash("cd /p/q && git rm -r old"))) == {
        "c.py": "changed",
        "old/a.py": "deleted",
        "old/b.py": "deleted",
    }
    moved = followed(*files, bash("cd /p/q && git mv old new"))
    assert {(file.path, file.source) for file in moved.files if file.state == "moved"} == {
        ("new/a.py", "old/a.py"),
        ("new/b.py", "old/b.py"),
    }


def test_a_check_says_whether_sources_were_changed_after_it_and_why_it_failed() -> None:
    def state(*calls: tuple[str, dict[str, object], str]) -> list[str]:
        return [line for line in render(followed(*calls), 2_000)["active_state"] if line.startswith("- last")]

    good = "=== 3 passed in 0.1s ==="
    notes = "Write", {"file_path": "/p/q/notes.md", "content": "x"}, "File created"
    tested = bash("pytest -q", good)
    assert state(edit("/p/q/a.py"), tested, notes) == ["- last test: `pytest -q` passed (3 passed)"]
    stale = "- last test: `pytest -q` passed (3 passed), before the last change of a.py"
    assert state(tested, edit("/p/q/a.py")) == [stale]
    assert state(tested, edit("/p/q/a.py"), bash("pytest -q -x", good)) == [
        "- last test: `pytest -q -x` passed (3 passed)"
    ]
    missing = "<returncode>1</returncode>\n<output>\n/opt/bin/python: No module named pytest\n</output>"
    run = bash("python -m pytest tests/a.py", missing)
    assert state(run)[0].endswith("did NOT start; failing: /opt/bin/python: No module named pytest")
    assert state(run, bash("ruff check .", "All checks passed!"), bash("pip install pytest")) == [
        "- last lint: `ruff check .` passed (All checks passed!)"
    ]
    failing = "FAILED tests/a.py::test_b\n=== 1 failed, 64 passed in 0.57s ==="
    piped = f"<returncode>0</returncode>\n<output>\n{failing}\n</output>"
    assert state(bash("pytest tests/a.py 2>&1 | tail -50", piped)) == [
        "- last test: `pytest tests/a.py` FAILED (1 failed, 64 passed); failing: tests/a.py::test_b"
    ]
    nothing = "<returncode>0</returncode>\n<output>\ncollected 0 items\n\n=== no tests ran in 0.00s ===\n</output>"
    assert state(bash("pytest tests/c.py | head", nothing)) == [
        "- last test: `pytest tests/c.py` ran, outcome not shown (no tests ran)"
    ]
    one, other = bash("go test ./a", "ok  \tx/a\t0.1s"), bash("go test ./b", "--- FAIL: TestB\nFAIL\tx/b\t0.1s")
    assert [line.split("`")[1] for line in state(one, other)] == ["go test ./b", "go test ./a"]


def test_a_script_of_ones_own_is_no_test_and_is_told_as_scratch() -> None:
    script = bash("cat > test_it.py <<'EOF'\nprint(1)\nEOF\npython test_it.py", "1")
    read = "Read", {"file_path": "src/lib/a.py"}, "a = 2"
    trail = followed(read, edit("src/lib/a.py"), bash("cp src/lib/a.py src/lib/a.py.bak"), script)
    assert states(trail) == {"src/lib/a.py": "changed", "src/lib/a.py.bak": "scratch", "test_it.py": "scratch"}
    assert [(check.kind, check.ok) for check in trail.checks] == [("script", True)]
    assert render(trail, 2_000)["active_state"][0] == "- last script: `python test_it.py` ran to its end"
    assert states(followed(script)) == {"test_it.py": "created"}
    kept = "Write", {"file_path": "tests/test_b.py", "content": "x"}, "File created"
    lines = render(followed(kept, edit("src/lib/a.py"), kept), 2_000)["files"]
    assert [line.split(":")[0] for line in lines] == ["- src/lib/a.py", "- tests/test_b.py"]


def test_where_git_stands_and_what_was_deleted_is_told() -> None:
    names = [f"plugins/trace/lib/m{number}.ts" for number in range(4)]
    patch = "\n".join(["*** Begin Patch", *(f"*** Delete File: /p/q/{name}" for name in names), "*** End Patch"])
    trail = followed(
        bash("cd /p/q && git fetch origin"),
        ("apply_patch", {"input": patch}, "Success."),
        edit("/p/q/plugins/list.json"),
        bash("git status --short --branch", "## main...origin/main [behind 4]\n M plugins/list.json"),
    )  # fmt: skip
    sections = render(trail, 2_000)
    assert sections["done"] == ["- deleted: plugins/trace/lib/ (4 files)", "- [done] fetch: git fetch origin"]
    standing = "- git: on main...origin/main [behind 4]; no commit seen; files changed"
    untested = "- no test or build was seen in these turns"
    assert sections["active_state"] == [standing, untested]
    committed = follow(trail, ran(bash("git commit -am x", "[main 1a2b3c4] x")), midfold.redact)
    assert render(committed, 2_000)["active_state"] == ["- git: on main; last commit 1a2b3c4", untested]
    edited = follow(committed, ran(edit("/p/q/b.ts")), midfold.redact)
    changed = "- git: on main; last commit 1a2b3c4; files changed after it"
    assert render(edited, 2_000)["active_state"] == [changed, untested]
    elsewhere = bash("cd /p/other && git status", "On branch side\nYour branch is up to date with 'origin/side'.")
    assert not followed(edit("/p/q/r/a.py"), edit("/p/q/r/s/b.py"), elsewhere).git.branch


def test_functions_are_told_with_their_parameters_and_once() -> None:
    text = "export function keep(\n\tfiles: string[],\n\tpairs: Map<string, number>,\n): string[] {\n"
    assert names_in(text) == ("keep(files,pairs)",)
    assert names_in("def f(self, x: int = 3, *rest):\nclass B(Base):\ndef g():") == ("f(x,rest)", "B", "g()")
    assert names_in("func (s *Store) Get(ctx context.Context, id string) error {\n") == ("Get(ctx,id)",)
    assert names_in("const run = async (a, b) => {\n") == ("run(a,b)",)
    written = "Write", {"file_path": "/p/a.py", "content": "def f(a, b):\n    return a"}, "File created"
    inside = "Edit", {"file_path": "/p/a.py", "old_string": "@@\ndef f(", "new_string": "@@ x"}, "updated."
    assert followed(written, inside).files[0].names == ("f(a,b)",)
    assert followed(written, edit("/p/a.py")).files[0].names == ("f()",)


@pytest.mark.parametrize("command", ["cd a; pytest -q; echo done", "echo `date` && make test", "x``y` -> z; pytest"])
def test_commands_are_told_as_they_are_and_read_again(command: str) -> None:
    act = WorldAct(what="push", text=command.replace(" -> ", " "), ok=True, outcome="done; see `x`")
    check = CheckRun(kind="test", command=command, ok=False, counts="1 failed; 2 passed", fails=("a", "b"))
    trail = Trail(acts=(act,), checks=(check,), running=(RunningTask(id="1", what=command),))
    lines = render(trail, 400)
    assert all(command in line for line in lines["active_state"])
    again = parse(StructuredSummary(**{key: "\n".join(found) for key, found in lines.items()}).render())
    assert again.running == trail.running
    assert [(one.text, one.outcome) for one in again.acts] == [(act.text, act.outcome)]
    assert [(one.command, one.ok, one.fails) for one in again.checks] == [(command, False, ("a", "b"))]


def test_code_is_quoted_as_it_is_and_read_again() -> None:
    for code in ('fix: "use `@AGENTS.md`"', "for (i = 0; i < n; i++) -> x", "a = ``b``"):
        changed = "Edit", {"file_path": "/p/a.ts", "old_string": "x", "new_string": f"call(\n{code}"}, "updated."
        trail = followed(changed)
        lines = render(trail, 400)["files"]
        assert any(code in line and "call(" not in line for line in lines)
        assert parse("## Relevant Files\n" + "\n".join(lines)).files[0].last == code


def test_where_no_file_fits_nothing_is_told_about_their_folder() -> None:
    done = followed(edit("/work/app/src/a_long_folder_of_sources/another_one/the_file.py"), bash("pytest", "3 passed"))
    trail = replace(done, ahead=2)
    shown = [render(trail, room) for room in range(8, 120)]
    assert all(len(sections["files"]) > 1 for sections in shown if "files" in sections)
    assert "files" in shown[-1] and any("files" not in sections and "active_state" in sections for sections in shown)


def checks(trail: Trail) -> list[tuple[str, str, bool | None, str]]:
    return [(one.kind, one.command, one.ok, one.counts) for one in trail.checks]


MINI = "<returncode>{}</returncode>\n<output>\n{}\n</output>"
"""Output wrapper of mini-swe-agent."""


def test_what_runs_after_the_work_and_changes_nothing_of_it_is_a_check() -> None:
    fix = """cat > fix_properly.py << 'EOF'
with open('pydicom/dataset.py', 'r') as f:
    content = f.read()
with open('pydicom/dataset.py', 'w') as f:
    f.write(content)
EOF
python fix_properly.py"""
    calls = [
        bash("cd /testbed && sed -n '2480,2510p' pydicom/dataset.py", MINI.format(0, "def to_json(")),
        bash("cat > repro_3.py << 'EOF'\nimport pydicom\nEOF\npython repro_3.py", MINI.format(0, "Error: no")),
        bash("cp pydicom/dataset.py pydicom/dataset.py.backup", MINI.format(0, "")),
        bash("python repro_3.py", MINI.format(0, "the same as before")),
        bash(fix, MINI.format(0, "Fixed indentation properly")),
        bash("cd /testbed && python repro_3.py", MINI.format(0, "Success! JSON dict: {}")),
        bash("cat > trace_code.py << 'EOF'\nprint(1)\nEOF\npython trace_code.py", MINI.format(0, "1")),
        bash('python -c "import inspect; print(dir(inspect))"', MINI.format(0, "['ArgInfo']")),
        bash("python -c \"from pydicom.dataset import Dataset; print('ok')\"", MINI.format(0, "ok")),
        bash("python - <<'EOF'\nfrom pydicom import dataset\nassert dataset.x\nEOF", MINI.format(1, "AssertionError")),
    ]
    trail = followed(*calls)
    assert checks(trail) == [
        ("script", "python repro_3.py", True, ""),
        ("script", "python -c from pydicom.dataset import Dataset; print('ok')", True, ""),
        ("script", "python - <<EOF", False, ""),
    ]
    assert followed(*calls[:4]).checks == (), "what ran before the work was no check, and a copy is no work"
    carried = follow(followed(*calls[:5]), ran(*calls[5:])[1:], midfold.redact)
    assert checks(carried) == checks(trail)


def test_of_two_checks_in_one_command_each_has_its_own_outcome_and_counts() -> None:
    output = (
        "ok  \tentire.io/cli/cmd/entire/cli\t2.1s\nok  \tentire.io/cli/cmd/entire/cli/strategy\t1.9s\n"
        "has 5 occurrences, make it a constant (goconst)\n2 issues:\n* goconst: 2\n[lint] ERROR task failed"
    )
    assert checks(followed(edit("/p/a.go"), bash("mise run test && mise run lint 2>&1 | tail -40", output))) == [
        ("test", "mise run test", True, "2 packages ok"),
        ("lint", "mise run lint", False, "2 issues"),
    ]
    biome = "$ biome check\nChecked 290 files in 108ms. No fixes applied.\n{}\nRan 1324 tests across 60 files."
    both = "bun run lint && bun run test"
    assert checks(followed(bash(both, biome.format(" 1324 pass\n 0 fail")))) == [
        ("lint", "bun run lint", True, "Checked 290 files in 108ms. No fixes applied."),
        ("test", "bun run test", True, "1324 pass 0 fail"),
    ]
    failed = followed(bash(both, "Exit code 1\n" + biome.format(" 1312 pass\n 12 fail")))
    assert [(one.kind, one.ok) for one in failed.checks] == [("lint", True), ("test", False)]
    refused = 'Exit code 1\n$ biome check\n  × Some errors were emitted.\nFound 4 errors.\nerror: script "lint" exited'
    assert checks(followed(bash(both, refused))) == [("lint", "bun run lint", False, "Found 4 errors.")]
    blamed = "Exit code 2\ngo vet ./...\nmake: *** [Makefile:3: test] Error 1"
    assert checks(followed(bash("make lint && make test", blamed)))[-1] == ("test", "make test", False, "")


def test_a_check_behind_a_formatter_is_told_whichever_of_them_failed() -> None:
    def outcome(command: str, output: str) -> list[tuple[str, bool | None, str]]:
        return [(one.command, one.ok, one.counts) for one in followed(bash(command, output)).checks]

    lint = "Exit code 1\n[fmt] $ gofmt -w .\n[lint] $ golangci-lint run ./...\nmain.go:27:5: G104 (gosec)\n3 issues:\n"
    assert outcome("mise run fmt && mise run lint", lint) == [("mise run lint", False, "3 issues")]
    parse_error = "Exit code 2\n[fmt] $ gofmt -w .\ntrailers.go:46:28: missing import path\n[fmt] ERROR task failed"
    assert outcome("mise run fmt && mise run test", parse_error) == []
    again = [bash("rtk bun run test", "Exit code 2\nerror: unrecognized subcommand 'bun'\n\nUsage: rtk [OPTIONS]")]
    assert [(one.command, one.ok) for one in followed(*again).checks] == [("rtk bun run test", False)]
    again.append(bash("bun run test", " 1318 pass\n 0 fail\nRan 1318 tests across 60 files."))
    assert [(one.command, one.ok) for one in followed(*again).checks] == [("bun run test", True)]


def test_what_an_output_says_of_a_check_is_read_as_it_is_meant() -> None:
    def verdict(command: str, output: str) -> tuple[bool | None, str]:
        (one,) = followed(bash(command, output)).checks
        return one.ok, one.counts

    broken = "# entire.io/cli/cmd/entire/cli\ncmd/entire/cli/session.go:267:2: declared and not used: strat"
    assert verdict("go build ./... 2>&1 | head -50", broken) == (False, "")
    assert verdict("mise run lint 2>&1 | tail -20", "[lint:go] 1 issues:\n[lint:go] * goconst: 1") == (
        False,
        "1 issues",
    )
    none = 'go: warning: "./x/..." matched no packages\nno packages to test'
    assert verdict("go test ./x/... | head", none) == (None, "no tests ran")
    empty = "testing: warning: no tests to run\nPASS\nok  \tgithub.com/entireio/cli\t0.4s [no tests to run]"
    assert verdict("go test ./cli -run TestX", empty) == (None, "no tests ran")
    assert verdict("mise run test:ci", "[no result recorded]") == (None, "")
    end = " 0 fail\n 2760 expect() calls\nRan 1274 tests across 56 files. [744.00ms]"
    assert verdict("bun run test 2>&1 | tail -3", end) == (True, "Ran 1274 tests across 56 files")
    refused = "Exit code 1\n(eval):1: parse error near `time'"
    assert followed(bash("go build -o ./entire && A=1 time ./entire help", refused)).checks == ()


def test_checks_are_known_behind_options_and_runners() -> None:
    def kinds(command: str) -> list[str | None]:
        return [check_of(step) for step in steps_of(command)]

    tests = [
        "pnpm --filter core test", "yarn workspace web test", "bun --cwd packages/core test", "make -C core test",
        "mise exec -- go test ./...", "pnpm vitest run", "bundle exec rspec", "./gradlew :app:test", "deno task test",
        "bin/test sympy/core", "./scripts/test.sh", "bash run_tests.sh", "python -W error -m pytest x", "pdm run test",
        "cargo +nightly test", "python -m pydicom.tests.test_json", "npm exec -- jest", "./manage.py test",
    ]  # fmt: skip
    assert {command: kinds(command) for command in tests} == {command: ["test"] for command in tests}
    others = {
        "npm --prefix web run build": "build",
        "yarn tsc": "typecheck",
        "bun biome check .": "lint",
        "make": "build",
    }
    assert {command: kinds(command)[0] for command in others} == others
    assert kinds("bash -n a.sh && pre-commit run -a") == ["lint", "lint"]
    for command in ("test -f x", "yarn add jest", "npm run", "pnpm add -D vitest", "sh deploy.sh", "make install"):
        assert kinds(command) == [None], command


def test_a_command_that_the_shell_does_not_understand_does_nothing() -> None:
    broken = (
        "cd /testbed && sed -i '750i\\    def pre_save(self):\\\n        Return field\\'s value just before saving.\\\n"
        "        result = super().pre_save(model_instance, add)\\\n        return result' django/related.py"
    )
    refused = "bash: -c: line 30: unexpected EOF while looking for matching `\"'\nbash: -c: line 32: syntax error"
    assert followed(bash(broken, MINI.format(2, refused))).files == ()


def test_what_was_looked_at_is_told_through_pipes_and_every_way_of_counting_lines() -> None:
    def looked(command: str) -> dict[str, tuple[str, ...]]:
        return {read.path: read.looked for read in followed(bash(command, "text")).reads}

    assert looked("head -50 a/b.py") == {"a/b.py": ("1-50",)}
    assert looked("tail -n +359 a.txt") == {"a.txt": ("359-",)}
    assert looked("tail -20 x.log; head -c 9 y.log") == {"x.log": ("last 20",), "y.log": ()}
    assert looked("cat pydicom/dataset.py | sed -n '2490,2505p'") == {"pydicom/dataset.py": ("2490-2505",)}
    assert looked("git show main:cli/auto_commit.go | head -220") == {"cli/auto_commit.go": ("main",)}
    assert looked("grep -A 30 -n 'class Users(Test):' t/test_v.py") == {"t/test_v.py": ("search class Users Test :",)}
    assert looked("cat a.py | grep -A 25 'def f'") == {"a.py": ("search def f",)}
    assert looked("cat a.py | grep foo; cat b.py | wc -l; grep -n x c.py") == {}
    trail = followed(bash("grep -B30 -A10 'os.path.exists(os.path.dirname(' ./astroid/nodes.py", "text"))
    handoff = "## Relevant Files\n" + "\n".join(render(trail, 2_000)["files"])
    assert parse(handoff).reads == tuple(replace(read, at=-1) for read in trail.reads) != ()


def test_a_file_that_a_search_found_something_in_was_there_before() -> None:
    trail = followed(
        bash("cd /p/q && grep -n logger pydicom/config.py", "1:logger"),
        bash("cd /p/q && cat > pydicom/config.py << 'EOF'\nx = 1\nEOF"),
        bash("cd /p/q && cat pydicom/missing.py | grep x", "cat: pydicom/missing.py: No such file or directory"),
        bash("cd /p/q && cat > pydicom/missing.py << 'EOF'\nx = 1\nEOF"),
    )
    assert states(trail) == {"pydicom/config.py": "changed", "pydicom/missing.py": "created"}


def test_files_given_to_a_program_to_try_something_are_scratch_and_what_a_script_leaves_behind_is_told() -> None:
    trail = followed(
        bash("cd /testbed && cat src/sqlfluff/rules/L060.py", "class Rule_L060:"),
        bash("cd /testbed && echo 'SELECT nvl(a, 0);' > test_nvl.sql && python -m sqlfluff lint test_nvl.sql", "ok"),
        bash("cd /testbed && cat > fix_l060.patch << 'EOF'\nEOF\ngit apply fix_l060.patch", "error: corrupt patch"),
        bash("cd /testbed && git diff > patch.txt && cat patch.txt", "diff"),
        bash("cd /testbed && cat > notes_test.sql << 'EOF'\nx\nEOF\ncat notes_test.sql", "x"),
    )
    assert states(trail) == {
        "test_nvl.sql": "scratch",
        "fix_l060.patch": "scratch",
        "patch.txt": "created",
        "notes_test.sql": "created",
    }
    script = "import tempfile\nd = tempfile.mkdtemp()\nprint(d)\nimport app\nshutil.rmtree(d)"
    crashed = "/tmp/tmperc2ldze\nTraceback (most recent call last):\nModuleNotFoundError: No module named 'app'"
    left = followed(bash(f"python - <<'EOF'\n{script}\nEOF", MINI.format(1, crashed)))
    assert [(file.path, file.state, file.gone) for file in left.files] == [("/tmp/tmperc2ldze", "scratch", False)]
    assert followed(bash(f"python - <<'EOF'\n{script}\nEOF", MINI.format(0, "/tmp/tmperc2ldze"))).files == ()


def test_a_temporary_folder_is_never_taken_for_the_root() -> None:
    trail = followed(
        bash("mkdir -p /tmp/repro && cd /tmp/repro && touch src/__init__.py && echo x > src/file.py"),
        bash("grep -r 'Unable to load' src/file.py", "x"),
        bash("cd /testbed && grep -A30 'def ast' astroid/manager.py", "def ast"),
        bash("cd /testbed && cat > test_repro.py << 'EOF'\nx\nEOF\npython3 test_repro.py", "x"),
        bash("cd /testbed && git checkout v2.9.0 -- astroid/modutils.py"),
    )
    assert trail.root == "/testbed"
    assert (states(trail)["test_repro.py"], states(trail)["astroid/modutils.py"]) == ("scratch", "changed")
    assert "/tmp/repro" in states(trail) and "/tmp/repro/src/file.py" not in states(trail)
    back = follow(trail, ran(bash("cd /testbed && git checkout HEAD -- astroid/modutils.py"))[1:], midfold.redact)
    assert states(back)["astroid/modutils.py"] == "reverted"


@pytest.mark.parametrize(
    ("expression", "line"),
    [
        ("22s/if tags:/if tags is not None:/", "if tags is not None:"),
        ("s|a/b|c/d|g", "c/d"),
        ("750i\\    def pre_save(self):\\\n        return 1", "def pre_save(self):"),
        ("s/x/ first(\\n second)/", "first("),
        ("s/\\(a\\)/\\1b/", ""),
        ("5d", ""),
    ],
)
def test_what_an_edit_by_sed_put_there_is_told_and_not_its_expression(expression: str, line: str) -> None:
    file = followed(edit("/p/src/a.py"), bash(f"sed -i '{expression}' /p/src/a.py")).files[0]
    assert (file.edits, file.last) == (2, line)


def test_of_a_record_that_was_made_its_own_page_is_told() -> None:
    record = {
        "url": "https://api.example.org/comments/27",
        "user": {"avatar_url": "https://avatars.example.org/u/3", "html_url": "https://example.org/kim"},
        "html_url": "https://example.org/a/pull/112#discussion_r27",
    }
    trail = followed(bash("gh api repos/a/b/pulls/112/comments/9/replies -f body=Fixed", json.dumps(record)))
    assert [act.outcome for act in trail.acts] == ["https://example.org/a/pull/112#discussion_r27"]
    plain = followed(bash("gh pr create --fill", "https://example.org/a/pull/7"))
    assert [act.outcome for act in plain.acts] == ["https://example.org/a/pull/7"]


def test_the_title_of_a_commit_is_told_once() -> None:
    made = bash("git commit -m 'Fix the parser'", "[main 0ac166e] Fix the parser\n 1 file changed")
    told = render(followed(made), 400)["done"]
    assert told == ["- [done] commit: Fix the parser -> 0ac166e on main"]


def test_what_was_staged_is_not_told_beside_the_commit_it_went_into() -> None:
    staged, made = bash("git add -A"), bash("git commit -m 'Fix it'", "[main 0ac166e] Fix it")
    assert render(followed(staged, made), 400)["done"] == ["- [done] commit: Fix it -> 0ac166e on main"]
    assert "- [done] stage: git add -A" in render(followed(made, staged), 400)["done"]


def test_that_nothing_was_changed_is_told_and_carried_by_no_other_line() -> None:
    trail = followed(("Read", {"file_path": "/p/a.py"}, "a = 2"))
    told = render(trail, 400)
    assert told["active_state"] == ["- no change of a file was seen in these turns"]
    assert without_trail("\n".join(told["active_state"])) == ""
    changed = render(followed(("Read", {"file_path": "/p/b.py"}, "a"), edit("/p/a.py")), 400)
    assert "- no change of a file was seen in these turns" not in changed["active_state"]
