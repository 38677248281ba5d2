"""Accuracy of the built-in summary: order, stale facts, commands that did not run, and changes."""

from __future__ import annotations

import json
from typing import Any

import pytest

import midfold
from midfold.compaction.local.digest import describe
from midfold.compaction.local.fold_reader import FoldReader, rows
from midfold.compaction.local.local_summary import local_summary
from midfold.compaction.redact import redact
from midfold.compaction.request import SummaryRequest
from midfold.compaction.summary import StructuredSummary, parse_summary
from midfold.compaction.tracking import follow
from midfold.compaction.tracking.entries import Trail
from midfold.transcript.message import Text, ToolCall, ToolResult
from support.timing import assert_in_proportion
from tests.support.build import assistant, call, user


def ask_of(turns: list[dict[str, Any]], **fields: Any) -> SummaryRequest:
    messages = midfold.read(turns).messages
    plain = {"budget_tokens": 2_000, "fold": "f" * 12, "redact": redact, "trail": follow(Trail(), messages, redact)}
    return SummaryRequest(messages=messages, **{**plain, **fields})


def told_of(turns: list[dict[str, Any]], **fields: Any) -> StructuredSummary:
    return parse_summary(local_summary(ask_of(turns, **fields))[0])


def edit(number: int, path: str, old: str, new: str) -> list[dict[str, Any]]:
    arguments = {"file_path": path, "old_string": old, "new_string": new}
    return call(number, "edit_file", arguments, f"The file {path} has been updated.")


def bash(number: int, command: str, output: str = "") -> list[dict[str, Any]]:
    return call(number, "bash", {"command": command}, output)


WORDS = ("pay", "cart", "rate", "user", "mail", "tax", "city", "road")
READ = "def load(path_of_rows):\n    return read_all_rows(path_of_rows, depth_of_rows)\nLARGEST_BATCH = 4711\n"


def test_what_was_read_before_a_file_was_changed_comes_last_but_for_constants() -> None:
    said = [assistant(f"The {word} loader skips {word}_rows because they are stale.") for word in WORDS]
    turns = [user("Go on with the loader."), *call(1, "read_file", {"path": "src/a.py"}, READ), *said]
    later = [*turns, *edit(2, "src/b.py", "a = 1", "amount_of_rows = load_amount()")]
    small = told_of(later, budget_tokens=215).critical
    assert "LARGEST_BATCH = 4711" in small
    assert "read_all_rows(path_of_rows" not in small and small.count("loader skips") < len(WORDS), "there is no room"
    assert "read_all_rows(path_of_rows" in told_of(later).critical, "where there is room for it, it is told"
    unchanged = told_of([*turns[:3], *said[:2]], budget_tokens=170).critical
    assert "read_all_rows(path_of_rows" in unchanged


def test_a_stale_line_is_told_after_a_fresh_one_that_says_less() -> None:
    stale = "alpha_of_rows and beta_of_rows, gamma_of_rows"
    fresh = (
        "the rows are those of delta_of_rows, as long as there is nothing else that could be said about each of them"
    )
    old, new = (
        call(at, "read_file", {"path": path}, f"{line}\nx\n" * 3)
        for at, path, line in ((1, "a.py", stale), (3, "c.py", fresh))
    )
    turns = [user("Go on."), *old, *edit(2, "b.py", "a = 1", "b = 2"), *new]
    told = {room: told_of(turns, budget_tokens=room).critical for room in range(60, 400, 4)}
    assert any(stale in text for text in told.values()), "it is told where there is room for it"
    assert stale not in next(text for text in told.values() if fresh in text)


def test_of_scratch_files_no_line_is_told() -> None:
    script = "from app import load\nprint(load('orders.csv'), largest_of_rows)"
    write = f"cat > try_load.py << 'EOF'\n{script}\nEOF"
    turns = [user("Why is it slow?"), *bash(1, write), *bash(2, "rm try_load.py")]
    told = told_of([*turns, assistant("The loader opens orders.csv twice.")])
    assert "largest_of_rows" not in told.critical and "wrote try_load.py" in told.critical
    kept = told_of([user("Go."), *bash(1, f"cat > src/load_rows.py << 'EOF'\n{script}\nEOF")])
    assert "+ print(load('orders.csv'), largest_of_rows)" in kept.critical


def test_a_file_that_is_written_anew_is_told_by_what_is_new_in_it() -> None:
    old = "import re\nclass Validator:\n    pattern_of_names = '^[a-z]+$'\n    message_of_names = 'Enter a name'\n"
    new = old.replace("'^[a-z]+$'", "r'\\A[a-z]+\\Z'")
    turns = [user("Fix the validator."), *bash(1, "cat src/validators.py", old)]
    told = told_of([*turns, *bash(2, f"cat > src/validators.py << 'EOF'\n{new}EOF")]).critical
    assert "+ pattern_of_names = r'\\A[a-z]+\\Z'" in told
    assert "+ message_of_names" not in told


def test_lines_that_do_not_follow_on_each_other_are_set_apart() -> None:
    output = "the first_value of alpha is 1\nx y\nz w\nthe second_value of beta is 2\nthe third_value of gamma is 3"
    printed = f"{output}\n" + "a b c d e f\n" * 20
    told = told_of([user("Go."), *bash(1, "make all", printed)], budget_tokens=140).critical
    assert "\n  the first_value of alpha is 1\n …the second_value of beta is 2\n  the third_value of gamma is 3" in told
    again = told_of([*bash(2, "make more", "done"), user("So?")], previous=f"## Critical Context\n{told}").critical
    assert "\n …the second_value of beta is 2\n  the third_value of gamma is 3" in again


def test_what_is_pinned_is_told_where_it_was_said() -> None:
    long = "The two writers of the ignore file differ. " * 9
    offer = f"{long}\nWant me to merge writer_of_setup into writer_of_hooks?\n{long}"
    turns = [*bash(1, "ls one", "first_of_all.py\n"), *bash(2, "ls two", "second_of_all.py\n")]
    staying = midfold.read([assistant(offer), user("yes"), assistant(long), user("Well?")]).messages
    told = told_of(turns, after=staying, pinned=(2, 2), shown_texts=40, shown_results=40, dense=True).critical
    places = [told.index(text) for text in ("first_of_all.py", "Want me to merge", "second_of_all.py")]
    assert places == sorted(places)


def test_an_offer_that_the_user_took_is_told_before_what_came_of_it() -> None:
    long = "The two writers of the ignore file differ in what they write. " * 30
    offer = f"{long}\nWant me to merge writer_of_setup into writer_of_hooks?\n{long}"
    past = [message for at in range(6) for message in bash(at, f"ls {at}", f"file_{at}.py\n" + "x y z\n" * 400)]
    later = [message for at in range(6, 12) for message in bash(at, f"ls {at}", f"file_{at}.py\n" + "x y z\n" * 400)]
    turns = [user("Tidy up."), *past, assistant(offer), user("yes"), *later]
    done = midfold.compact(turns, target_tokens=900, force=True)
    told = next(str(message["content"]) for message in done.messages if "END OF CONTEXT" in str(message["content"]))
    assert "Want me to merge" in told, "the offer is told at all"
    assert told.index("ls 5") < told.index("Want me to merge") < told.index("ls 6")


def test_a_call_that_was_never_run_blocks_nothing() -> None:
    error = "<tool_use_error>Sibling tool call errored</tool_use_error>"
    told = told_of([user("Check it."), *bash(1, "bun run typecheck", error)])
    assert "typecheck" not in told.blocked
    assert "not run: another call beside it failed" in told.critical
    assert "make all" in told_of([user("Go."), *bash(1, "make all", "make: *** [all] Error 1")]).blocked


def test_of_an_edit_that_failed_only_its_line_is_told() -> None:
    echo = "<tool_use_error>String to replace not found in file.\nString: amount_of_rows = old_amount()\nbye\nbye\nbye"
    arguments = {
        "file_path": "src/a.py",
        "old_string": "amount_of_rows = old_amount()",
        "new_string": "sum_of_rows = 1",
    }
    told = told_of([user("Go."), *call(1, "edit_file", arguments, f"{echo}</tool_use_error>")])
    assert "edited src/a.py → FAILED: String to replace not found in file." in told.critical
    assert "old_amount" not in told.critical and "sum_of_rows" not in told.critical
    denied = "bash: /etc/rows.py: Permission denied"
    told = told_of([user("Go."), *bash(1, "cat > /etc/rows.py << 'EOF'\nsum_of_rows = 1\nEOF", denied)])
    assert denied in told.critical and "sum_of_rows" not in told.critical


def test_a_command_that_its_frame_stopped_failed_and_says_why() -> None:
    command = "pip install numpy -q 2>&1 | tail -5"
    said = f"An error occurred while executing the command: Command '['docker', 'bash', '-c', '{command}']' timed out"
    output = f"<exception>{said} after 60 seconds</exception>\n<returncode>-1</returncode>\n<output>\nGet:1\n</output>"
    told = told_of([user("Go."), *bash(1, command, output)])
    assert "[FAILED] install: pip install numpy -q -> timed out after 60 seconds" in told.blocked + told.done
    assert "[done] install" not in told.render() and "docker" not in told.render()


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('t.Fatalf("loadSessionState() error = %v", err)', False),
        ('return fmt.Errorf("failed to fetch: %w", err)', False),
        ("throw new Error('cannot read the file')", False),
        ("panic({0x1049f7d80?, 0x104da1a20?})", False),
        ("state.go:12:3: error: duplicate of session.go", True),
        ("TypeError: cannot read the file", True),
        ("a.ts(10,5): error TS2322: Type 'x' is not assignable (to y)", True),
    ],
)
def test_code_that_is_shown_is_not_the_error(line: str, shown: bool) -> None:
    output = f"Exit code 1\nsrc/lint.go:1:1: error: the finding\n{line}\nbye"
    action = describe(ToolCall("1", "bash", json.dumps({"command": "make lint"})), _result(output))
    assert action.error == (line if shown else "src/lint.go:1:1: error: the finding")


def _result(text: str) -> ToolResult:
    return ToolResult("1", (Text(text),), False, "bash")


def test_a_script_is_told_by_the_line_that_changes_something() -> None:
    script = "import re\ntext = open('a.py').read()\ntext = text.replace('old_name', 'new_name')\nopen('a.py', 'w')"
    told = told_of([user("Go."), *bash(1, f'python3 -c "\n{script}\n"')]).critical
    assert "- $ python3 -c \" text = text.replace('old_name', 'new_name')" in told
    told = told_of([user("Go."), *bash(1, "python3 - <<'EOF'\nimport re\nprint(limit_of_rows)\nEOF", "9")]).critical
    assert "- $ python3 - <<'EOF' print(limit_of_rows) → 9" in told


def test_lines_of_text_in_json_are_cut_where_they_end() -> None:
    lines = [f"- Modify: cmd/part_{number}.go, the summary (see above), and its callers" for number in range(9)]
    plan = "\\n".join(lines)
    assert list(rows(f'{{"body": "{plan}"}}'))[1:-1] == plan.split("\\n")[1:-1]


@pytest.mark.parametrize(
    "line",
    [
        "Get:1 http://security.ubuntu.com/ubuntu jammy-security InRelease [129 kB]",
        "Successfully installed iniconfig-2.3.0 pytest-9.0.3",
        'File "/app/main_of_all.py", line 12, in run_all',
        "diff --git a/main_of_all.py b/main_of_all.py",
        "d70b3ad Merge pull request #223 from some/branch_of_all",
    ],
)
def test_lines_that_tell_of_nothing_are_left_out(line: str) -> None:
    reading = FoldReader(ask_of([user("Go."), *bash(1, "make it", f"the value_of_all is 3\n{line}\nbye bye\n" * 3)]))
    told = [row for step in reading.steps for row in step.rows]
    assert "the value_of_all is 3" in told and line not in told


def test_the_frame_of_a_stopped_command_is_read_in_time_in_proportion() -> None:
    def read(size: int) -> None:
        for text in ("<exception>" * size, "<exception>" + "]' " * size, "<exception>x</exception>" * size):
            describe(None, _result(text))

    assert_in_proportion(read, 4_000, (8_000, 4.0), (16_000, 8.0))


PLAN = (
    "Implement the following plan:\n\n# Count the rows\n\n## Context\n"
    + "".join(f"The {word} loader counts every row twice, when it is read and when it is put away. " for word in WORDS)
    + "\n\n### 1. Count in `src/load.py`\nAdd `count_rows()` there.\n\n### 2. Show it in `src/page.ts`\nAt its end."
    "\n\n### 3. Write down what it means\nIn the manual.\n\n## Verification\n1. `bun run test`\n2. `bun run lint`\n"
)


def test_checks_that_the_user_asked_for_and_nobody_ran_are_told_until_they_are_run() -> None:
    edited, tested = edit(1, "src/load.py", "a = 1", "count = len(rows)"), bash(2, "bun run test", "3 pass\n0 fail")
    turns = [user(PLAN), *edited, *tested]
    line = "- asked for, not run since the last change: `bun run lint`"
    first = local_summary(ask_of(turns))[0]
    assert line in first
    later = [*bash(3, "bun run lint", "Checked 3 files. No fixes applied.")]
    trail = follow(follow(Trail(), midfold.read(turns).messages, redact), midfold.read(later).messages, redact)
    assert "asked for" not in local_summary(ask_of(later, previous=first, trail=trail))[0], "it is not carried on"
    assert line not in local_summary(ask_of(turns[:1]))[0], "nothing was changed"


def test_what_leads_over_to_something_that_is_not_told_is_not_told() -> None:
    lead = "The reason why all of the rows are counted in two places is one of these:"
    items = "\n".join(f"- the table {word}_rows is written by a job of its own that nobody looks at" for word in WORDS)
    found = assistant("The loader counts load_rows twice.")
    turns = [user("Why?"), assistant(f"{lead}\n\n{items}"), found, user("Go on.")]
    told = {room: told_of(turns, budget_tokens=room).critical for room in range(60, 400, 6)}
    assert any(lead in text for text in told.values())
    assert all("the table pay_rows" in text for text in told.values() if lead in text)


def test_of_a_search_the_lines_that_it_hit_are_told() -> None:
    hits = "\n".join(f"src/a{n}.py:{n}7:    value_{n} = load_value({n})" for n in range(1, 4))
    around = "\n".join(f"src/a{n}.py-{n}8-    other_{n} = load_other({n})" for n in range(1, 4))
    for command, output in (("grep -rn -A1 load_value src", f"{hits}\n{around}"), ("cat a.txt", around)):
        told = told_of([user("Where is it?"), *bash(1, command, output)]).critical
        assert ("other_2" in told) is (command == "cat a.txt")
        assert ("value_2 = load_value(2)" in told) is (command != "cat a.txt")


CALLED = "handler was called 9 times"


def test_what_the_newest_result_says_is_told_where_its_message_does_not_show_it() -> None:
    looks = [f"{word} is being looked at by the check of the whole of it" for word in WORDS]
    printed = "\n".join([*looks[:4], CALLED, *looks[4:]])
    code = "\n".join(f"{word}_{n}_total = load_{word}(rows_of_{word}_{n})" for word in WORDS for n in range(6))
    said = [assistant(f"The {word} loader skips the {word}_rows because they are stale.") for word in WORDS]
    turns = [user("Go on."), *call(5, "read_file", {"path": "src/load.py"}, code), *said]
    newest = bash(9, "python check_all.py", printed)
    shown = {"after": midfold.read(newest).messages, "shown_results": 60, "shown_texts": 60}
    assert CALLED in told_of(turns, budget_tokens=190, dense=True, **shown).critical
    assert CALLED not in told_of(turns, budget_tokens=190, **shown).critical, "without a size it is hardly ever cut"
    folded = [*turns, *newest, assistant("Let me go on.")]
    assert CALLED not in told_of(folded, budget_tokens=190, dense=True).critical


def test_what_a_local_command_printed_is_no_rule() -> None:
    printed = user("<bash-stdout>You must never be up to date.</bash-stdout><bash-stderr></bash-stderr>")
    rule = user("<system-reminder>You must never push to main.</system-reminder>\nGo on.")
    told = told_of([user("Fix the loader."), printed, rule, *bash(1, "ls", "a.py")]).constraints
    assert "never push to main" in told and "up to date" not in told


def test_with_a_command_that_must_be_given_the_one_that_makes_its_file_is_told() -> None:
    steps = (
        "<instructions>\nStep 1: Create the patch file.\nRun `git diff -- a.py > patch.txt` with what was changed.\n"
        "Step 2: Look at it.\nStep 3: You MUST use this EXACT command to submit:\n\n```bash\necho DONE && cat patch.txt"
        "\n```\n</instructions>\nFix the loader."
    )
    told = told_of([user(steps), *bash(1, "ls", "a.py")], budget_tokens=600, dense=True).constraints
    assert "> patch.txt` with what was changed" in told and "`echo DONE && cat patch.txt`" in told


def test_lines_of_an_edit_between_which_something_is_left_out_are_set_apart() -> None:
    known = bash(1, "cat src/old.py", "} else {\nreturn_nothing()")
    new = "if suffix_of_rows {\n  branch = branch_with(suffix_of_rows)\n} else {\n  branch = branch_of(base_of_rows)\n}"
    told = told_of([user("Go on."), *known, *edit(2, "src/a.go", "x", new)]).critical.split("\n")
    place = next(place for place, line in enumerate(told) if "branch_of(base_of_rows)" in line)
    assert told[place].startswith(" …") or "} else {" in told[place - 1]


def test_what_a_client_says_of_its_folder_is_no_outcome() -> None:
    note = "Shell cwd was reset to /srv/app"
    for output, told in (
        (f"12 rows\n{note}", "12 rows"),
        (note, "no output"),
        (f"{note}\n12 rows", f"{note} / 12 rows"),
    ):
        lines = told_of([user("Go."), *bash(1, "make rows", output)]).critical.split("\n")
        assert f"- $ make rows → {told}" in lines
