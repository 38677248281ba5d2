"""Added and removed lines are counted as git does; with a small budget only file names are listed."""

from __future__ import annotations

import difflib

from hypothesis import given
from hypothesis import strategies as st

import midfold
from midfold.compaction.summary import StructuredSummary
from midfold.compaction.tracking import follow, missing_checks, parse, render
from midfold.compaction.tracking.edits import replacement, rewrite
from midfold.compaction.tracking.entries import CheckRun, FileRead, TrackedFile
from midfold.types import Trail
from support.timing import assert_in_proportion
from tests.unit.compaction.test_trail import bash, followed, ran, states

FILE = "import re\n\nclass Validator:\n    regex = r'^[a-z]+$'\n    message = 'Enter a name.'\n    flags = 0\n"
LINES = st.lists(st.sampled_from(["a", "b", "c = 1", "", "}"]), max_size=12).map("\n".join)


def diff(old: str, new: str) -> tuple[int, int]:
    before, after = (text.split("\n") if text else [] for text in (old, new))
    lines = list(difflib.ndiff(before, after))
    return sum(line.startswith("+ ") for line in lines), sum(line.startswith("- ") for line in lines)


def counts(trail: Trail) -> dict[str, tuple[int, int]]:
    return {file.path: (file.added, file.removed) for file in trail.files}


def test_lines_that_stand_in_both_texts_are_not_counted() -> None:
    old, new = "a = 1\nb = 2\nc = 3\nd = 4", "a = 2\nb = 2\nc = 3\nd = 5"
    change = replacement("x.py", old, new)
    assert (change.added, change.removed) == diff(old, new) == (2, 2)


@given(LINES, LINES)
def test_no_more_is_counted_than_a_diff_shows_and_what_is_left_adds_up(old: str, new: str) -> None:
    change, (added, removed) = replacement("x.py", old, new), diff(old, new)
    assert 0 <= change.added <= added and 0 <= change.removed <= removed
    whole = rewrite("x.py", old, new)
    assert whole.added >= 0 and whole.removed >= 0


def test_a_file_that_is_written_whole_is_held_against_what_was_seen_of_it() -> None:
    new = FILE.replace("^[a-z]+$", r"\A[a-z]+\Z")
    numbered = "".join(f"{number:6}\u2192{line}\n" for number, line in enumerate(FILE.split("\n"), 1))
    shown = [
        bash("cat src/validators.py", FILE),
        ("Read", {"file_path": "src/validators.py"}, numbered),
        ("Write", {"file_path": "src/validators.py", "content": FILE}, "File created successfully"),
    ]
    for seen in shown:
        written = bash(f"cat > src/validators.py <<'EOF'\n{new}EOF")
        trail = followed(seen, bash("cp src/validators.py src/validators.py.bak"), written)
        first = len(FILE.splitlines()) if seen[0] == "Write" else 0
        assert counts(trail)["src/validators.py"] == (first + 1, 1), seen[0]
        assert "src/validators.py.bak" in states(trail)


def test_no_lines_are_counted_where_what_was_there_is_not_known() -> None:
    written = bash(f"cat > src/validators.py <<'EOF'\n{FILE}EOF")
    for seen in (bash("head -3 src/validators.py", FILE[:30]), bash("grep -n regex src/validators.py", "4: regex")):
        assert counts(followed(seen, written)) == {"src/validators.py": (0, 0)}
    part = bash("cat src/validators.py", "".join(f"line_{number} = {number}\n" for number in range(99)))
    assert counts(followed(part, written)) == {"src/validators.py": (0, 0)}, "nothing of it stays"
    for note in ("... [6 lines truncated] ...", "[… 9 characters left out …]", "<elided_chars>\n900 characters elided"):
        shown = bash("cat src/validators.py", FILE.replace("import re\n", f"import re\n{note}\n"))
        assert counts(followed(shown, written)) == {"src/validators.py": (0, 0)}, note
    long = "".join(f"value_of_line_{number} = {number}\n" for number in range(3_000))
    again = bash(f"cat > src/long.py <<'EOF'\n{long}x = 1\nEOF")
    assert counts(followed(bash("cat src/long.py", long), again)) == {"src/long.py": (0, 0)}, "too long to compare"
    assert counts(followed(written)) == {"src/validators.py": (6, 0)}, "a new file has all of its lines"
    edited = ("Edit", {"file_path": "src/validators.py", "old_string": "flags = 0", "new_string": "flags = 1"}, "ok")
    assert counts(followed(written, edited, written))["src/validators.py"] == (7, 1), "it was changed in between"


def small_trail() -> Trail:
    names = ("src/shop/cart.py", "src/shop/tax.py", "src/shop/rates.py", "src/mail/send.py")
    files = [
        TrackedFile(path=name, state="changed", added=4, removed=2, edits=2, at=at) for at, name in enumerate(names)
    ]
    files.append(TrackedFile(path="src/shop/new.py", state="created", added=9, at=5))
    reads = [FileRead(path="src/shop/seen.py", at=1), FileRead(path="src/shop/also_seen.py", looked=("1-50",), at=2)]
    return Trail(files=tuple(files), reads=tuple(reads), root="/srv", checks=(CheckRun(kind="test", command="pytest"),))


def test_every_changed_file_is_named_however_little_room_there_is() -> None:
    sections = render(small_trail(), 110)
    text = "\n".join(sections["files"])
    assert "- also changed: " in text and "read, not changed" not in text
    summary = StructuredSummary(files=text, active_state="\n".join(sections["active_state"]))
    again = parse(summary.render(terse=True))
    assert {file.path: file.state for file in again.files} == {file.path: file.state for file in small_trail().files}


def test_a_folder_is_said_once_and_read_back() -> None:
    sections = render(small_trail(), 2_000)
    line = next(line for line in sections["files"] if "read, not changed" in line)
    assert line == "- read, not changed: src/shop/also_seen.py (1-50); …/seen.py"
    again = parse(StructuredSummary(files="\n".join(sections["files"])).render())
    assert set(again.reads) == {FileRead(path=read.path, looked=read.looked) for read in small_trail().reads}


def test_what_was_only_read_is_told_where_nothing_was_changed() -> None:
    reads = Trail(reads=small_trail().reads, root="/srv")
    assert any("read, not changed" in line for line in render(reads, 110)["files"])


def test_a_script_beside_attempts_that_were_run_is_one_before_it_is_run() -> None:
    work = ("Edit", {"file_path": "/srv/app/core.py", "old_string": "a = 1", "new_string": "a = 2"}, "ok")
    new = [
        bash(f"cd /srv && cat > {name} <<'EOF'\nprint(1)\nEOF") for name in ("test_one.py", "test_two.py", "setup.py")
    ]
    trail = followed(work, new[0], bash("cd /srv && python test_one.py", "1"), *new[1:])
    assert states(trail) == {
        "app/core.py": "changed", "test_one.py": "scratch", "test_two.py": "scratch", "setup.py": "created",
    }  # fmt: skip
    assert states(followed(work, *new))["test_one.py"] == "created", "nobody ran any of them"


def test_a_check_that_did_not_start_is_told_behind_those_that_did() -> None:
    lacking = bash("python -m pytest tests", "/usr/bin/python: No module named pytest")
    unset = "django.core.exceptions.ImproperlyConfigured: The SECRET_KEY setting must not be empty."
    for late in (lacking, bash("python -m django test auth", f"Traceback (most recent call last):\n{unset}")):
        state = render(followed(bash("bun run lint", "Checked 3 files. No fixes applied."), late), 900)["active_state"]
        assert ["lint" in state[0], "did NOT start" in state[1]] == [True, True]


ASKED = "Fix it.\n\n## Verification\n1. `bun run test` passes\n2. Run `bun run lint`\n3. `bun run dev`, look at `a.ts`"


def test_checks_that_were_asked_for_and_not_run_since_the_last_change_are_known() -> None:
    edited = ("Edit", {"file_path": "/p/a.ts", "old_string": "a", "new_string": "b"}, "ok")
    test, lint = bash("bun run test 2>&1", "3 pass\n0 fail"), bash("bun run lint", "No fixes applied.")
    assert missing_checks(followed(edited), ASKED) == ["bun run test", "bun run lint"]
    assert missing_checks(followed(edited, test), ASKED) == ["bun run lint"]
    assert missing_checks(followed(edited, test, lint), ASKED) == []
    assert missing_checks(followed(test, lint, edited), ASKED) == ["bun run test", "bun run lint"]
    told_of = "I ran `bun run test` yesterday, and `bun run lint` failed with this:\n```\nbun run lint\n```"
    assert missing_checks(followed(edited), told_of) == [], "nobody asks for them"
    fenced = "Then run:\n```bash\nbun run test\n```\nand say `thanks`."
    assert missing_checks(followed(edited), fenced) == ["bun run test"]


def test_commands_are_looked_for_in_time_in_proportion() -> None:
    for piece in ("`", "`a", "```\n", "```bash\nx\n", "` `"):

        def work(size: int, piece: str = piece) -> None:
            missing_checks(Trail(), (piece * size)[:size])

        assert_in_proportion(work, 5_000, (10_000, 4), (20_000, 8))


def test_what_was_seen_of_files_does_not_outlive_a_walk() -> None:
    trail = followed(bash("cat src/validators.py", FILE))
    later = follow(trail, ran(bash(f"cat > src/validators.py <<'EOF'\n{FILE}EOF")), midfold.redact)
    assert counts(later) == {"src/validators.py": (0, 0)}
