"""Artifact trails for any acts: lines parse back to the same meaning, and partial trails add up to the whole."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

import midfold
from midfold.compaction.summary import StructuredSummary
from midfold.compaction.tracking import GitState, follow, latest_checks, parse, render, without_trail
from midfold.types import CheckRun, FileRead, RunningTask, TrackedFile, Trail, WorldAct

LARGE = 1_000_000
FOLDER = "/home/me/project"
PATHS = st.sampled_from([f"{FOLDER}/{name}" for name in ("a.py", "b.py", "src/a.py", "src/c.go", "docs/d e.md")])
WORDS = st.text(st.sampled_from("abz019 _-./:,;`|()[]<>→=#'\"é漢"), max_size=30).map(
    lambda text: " ".join(text.split())
)
NAMES = st.text(st.sampled_from("abz019_-./é漢"), min_size=1, max_size=20)
FILES = st.builds(
    TrackedFile,
    path=NAMES,
    state=st.sampled_from(["created", "changed", "moved", "deleted", "scratch", "reverted"]),
    source=st.just("") | NAMES,
    names=st.lists(NAMES, max_size=3).map(tuple),
    added=st.integers(0, 999),
    removed=st.integers(0, 999),
    edits=st.integers(0, 9),
    last=WORDS,
    by=st.sampled_from(["", "fix_x.py", "by"]),
)
TRAILS = st.builds(
    Trail,
    files=st.lists(FILES, max_size=6, unique_by=lambda file: file.path).map(tuple),
    acts=st.lists(
        st.builds(
            WorldAct,
            what=st.sampled_from(["commit", "book", "install"]),
            text=WORDS,
            ok=st.none() | st.booleans(),
            outcome=WORDS,
        ),
        max_size=4,
    ).map(tuple),
    running=st.lists(st.builds(RunningTask, id=NAMES, what=WORDS), max_size=2).map(tuple),
    checks=st.lists(
        st.builds(
            CheckRun,
            kind=st.sampled_from(["test", "build", "lint", "typecheck", "script"]),
            command=WORDS,
            ok=st.none() | st.booleans(),
            counts=st.sampled_from(["", "1 failed, 2 passed"]),
            fails=st.lists(NAMES, max_size=2).map(tuple),
            before=st.just("") | NAMES,
        ),
        max_size=3,
    ).map(tuple),
    git=st.builds(
        GitState,
        branch=st.sampled_from(["", "main", "main...origin/main [ahead 1, behind 2]"]),
        commit=st.sampled_from(["", "1a2b3c4", "(its hash is not shown)"]),
        is_dirty=st.booleans(),
    ),
    reads=st.lists(st.builds(FileRead, path=NAMES, looked=st.lists(NAMES, max_size=2).map(tuple)), max_size=3).map(
        tuple
    ),
    root=st.sampled_from(["", FOLDER]),
    ahead=st.integers(0, 9),
)


def plain(text: str) -> str:
    """Return an act as written in a line."""
    return text.replace(" -> ", " → ")


def document(trail: Trail, room: int) -> str:
    sections = {key: "\n".join(lines) for key, lines in render(trail, room).items()}
    return StructuredSummary(**sections).render()


@given(TRAILS, st.integers(0, 400) | st.just(LARGE))
def test_what_lines_say_is_what_is_read_back(trail: Trail, room: int) -> None:
    shown = document(trail, room)
    again = parse(shown)
    assert document(again, LARGE).splitlines() == shown.splitlines() or room < LARGE
    assert again.is_empty or parse(document(again, LARGE)) == again
    assert not any(line.startswith("- ") for line in without_trail(shown).splitlines())
    if room == LARGE:
        assert sum(file.below or 1 for file in again.files) == len(trail.files)
        assert {(file.path, file.state) for file in again.files if not file.below} <= {
            (file.path, file.state) for file in trail.files
        }
        done = {(act.what, act.text) for act in again.acts if act.ok}
        assert len(done) == len({(act.what, plain(act.text)) for act in trail.acts if act.ok})
        for act in again.acts:
            same = [one.ok for one in trail.acts if (one.what, plain(one.text)) == (act.what, act.text)]
            assert act.ok or act.ok is same[-1]
        assert again.git == trail.git
        assert again.running == trail.running
        assert [(check.ok, check.command) for check in reversed(again.checks)] == [
            (check.ok, check.command) for check in latest_checks(trail)[: len(again.checks)]
        ]
        assert {read.path for read in again.reads} == {read.path for read in trail.reads}


Call = tuple[str, dict[str, Any], str]
DONE = "The file has been updated."
READS: st.SearchStrategy[Call] = (
    st.builds(lambda path: ("Read", {"file_path": path}, "text\n" * 30), PATHS)
    | st.builds(lambda path: ("Bash", {"command": f"cat '{path}' | head -n 3"}, "text"), PATHS)
    | st.builds(lambda path: ("Bash", {"command": f"sed -n 1,9p '{path}'"}, "text"), PATHS)
    | st.builds(lambda path: ("Bash", {"command": f"git diff '{path}' && git show HEAD:'{path}'"}, "text"), PATHS)
    | st.builds(lambda path: ("Grep", {"pattern": "x", "path": path}, "1:x"), PATHS)
)
EDITS: st.SearchStrategy[Call] = st.builds(
    lambda path, new: ("Edit", {"file_path": path, "old_string": "a", "new_string": new}, DONE),
    PATHS,
    st.sampled_from(["b", "def f():\n    pass", ""]),
)
CHANGES: st.SearchStrategy[Call] = (
    EDITS
    | st.builds(lambda path: ("Write", {"file_path": path, "content": "x\ny"}, "File created successfully"), PATHS)
    | st.builds(lambda path: ("Bash", {"command": f"rm '{path}'"}, ""), PATHS)
    | st.builds(lambda path: ("Bash", {"command": f"sed -i s/a/b/ '{path}'"}, ""), PATHS)
    | st.builds(lambda one, two: ("Bash", {"command": f"git mv '{one}' '{two}'"}, ""), PATHS, PATHS)
    | st.builds(lambda path: ("Bash", {"command": f"echo x > '{path}'; rm '{path}'"}, ""), PATHS)
    | st.just(("Bash", {"command": "git commit -am 'a b'"}, "[main 1a2b3c4] a b"))
    | st.just(("Bash", {"command": "git push"}, "fatal: no upstream"))
    | st.just(("Bash", {"command": "pytest -q"}, "=== 2 passed in 0.1s ==="))
    | st.just(("Bash", {"command": "npm run dev"}, "Command running in background with ID: bash_7"))
    | st.just(("KillBash", {"shell_id": "bash_7"}, "killed"))
    | st.just(("book_flight", {"id": "F1"}, '{"reservation_id": "R1"}'))
)


def messages_of(calls: Sequence[Call]) -> midfold.types.Transcript:
    made: list[dict[str, Any]] = []
    for number, (name, arguments, result) in enumerate(calls):
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"c{number}", "type": "function", "function": function}
        made.append({"role": "assistant", "content": None, "tool_calls": [call]})
        made.append({"role": "tool", "tool_call_id": f"c{number}", "content": result})
    return midfold.read(made).messages


@given(st.lists(CHANGES | READS, max_size=14), st.sets(st.integers(1, 13), max_size=4))
def test_followed_in_pieces_it_is_what_it_is_in_one(calls: list[Call], cuts: set[int]) -> None:
    messages = messages_of(calls)
    places = [0, *sorted(2 * cut for cut in cuts if cut < len(calls)), len(messages)]
    trail = Trail(root=FOLDER)
    for start, end in pairwise(places):
        trail = follow(trail, messages[start:end], midfold.redact)
    whole = follow(Trail(root=FOLDER), messages, midfold.redact)
    assert without_content(trail) == without_content(whole)
    for piece, one in zip(trail.files, whole.files, strict=True):
        assert piece.added <= one.added and piece.removed <= one.removed, (
            "what a file held is known only in the piece that shows it: nothing is guessed"
        )


def without_content(trail: Trail) -> Trail:
    """Return a trail without details known only while a file's content is known.

    For a file that is written whole, the amount of new content can be given only with its earlier content.
    """
    files = (replace(file, added=0, removed=0, names=(), last="") for file in trail.files)
    return replace(trail, files=tuple(files))


@given(st.lists(EDITS, min_size=1, max_size=5), st.lists(st.lists(READS, max_size=4), min_size=1, max_size=4))
def test_a_changed_file_stays_changed_through_folds_whatever_is_read(
    edits: list[Call], between: list[list[Call]]
) -> None:
    trail = follow(Trail(), messages_of(edits), midfold.redact)
    changed = {(file.path, file.state, file.edits) for file in trail.files}
    assert {state for _, state, _ in changed} == {"changed"}
    for reads in between:
        trail = follow(parse(document(trail, LARGE)), messages_of(reads), midfold.redact)
        root = f"{trail.root}/" if trail.root else ""
        now = {(f"{root}{file.path}".removeprefix(f"{FOLDER}/"), file.state, file.edits) for file in trail.files}
        assert now == {(path.removeprefix(f"{FOLDER}/"), state, edits) for path, state, edits in changed}
        assert {file.path for file in trail.files}.isdisjoint(read.path for read in trail.reads)
