"""The tools stay in their folder, end the processes they start, and report errors to the model as text."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from midfold.agent.tools import Folder, Toolbox
from midfold.agent.tools.base import plan_lines, plan_tool, shorten_middle
from midfold.agent.tools.files import LARGEST_FILE, MOST_HITS, file_tools
from midfold.agent.tools.shell import OutputEnds, Shell
from midfold.errors import ToolRefused
from midfold.transcript import jsonio
from midfold.transcript.message import ToolCall

LIMIT = 20_000


@pytest.fixture
def root(tmp_path: Path) -> Path:
    inside = tmp_path / "work"
    (inside / "src").mkdir(parents=True)
    (inside / "src" / "a.py").write_text("import os\n\n\ndef first() -> int:\n    return 1\n")
    (inside / "src" / "b.py").write_text("def second() -> int:\n    return 1\n")
    (tmp_path / "secret.txt").write_text("outside")
    (inside / "link.txt").symlink_to(tmp_path / "secret.txt")
    (inside / "up").symlink_to(tmp_path)
    return inside


@pytest.fixture
def toolbox(root: Path) -> Toolbox:
    folder = Folder(root)
    shell = Shell(folder, 10.0, LIMIT, os.environ)
    return Toolbox([shell.tool(), *file_tools(folder), plan_tool()], LIMIT)


def call(toolbox: Toolbox, name: str, **arguments: object) -> tuple[str, bool]:
    result = toolbox.run(ToolCall("c1", name, jsonio.text_of(arguments)))
    return result.text, result.is_error


@pytest.mark.parametrize("path", ["../secret.txt", "/etc/passwd", "link.txt", "up/secret.txt", "src/../../secret.txt"])
@pytest.mark.parametrize("name", ["read_file", "write_file", "patch", "search"])
def test_no_file_tool_leaves_the_folder(toolbox: Toolbox, root: Path, path: str, name: str) -> None:
    more: dict[str, dict[str, str]] = {
        "write_file": {"content": "mine"},
        "patch": {"old": "outside", "new": "mine"},
        "search": {"pattern": "."},
    }
    text, is_error = call(toolbox, name, path=path, **more.get(name, {}))
    assert is_error
    assert "outside of the working directory" in text
    assert (root.parent / "secret.txt").read_text() == "outside"


def test_reading_in_pages_and_listing(toolbox: Toolbox) -> None:
    assert call(toolbox, "read_file", path="src") == ("a.py\nb.py", False)
    assert call(toolbox, "read_file", path="src/a.py")[0].startswith("import os\n\n\ndef first")
    assert call(toolbox, "read_file", path="src/a.py", start=4, lines=1) == (
        "def first() -> int:\n[lines 4 to 4 of 5]",
        False,
    )
    assert "5 lines" in call(toolbox, "read_file", path="src/a.py", start=9)[0]
    text, is_error = call(toolbox, "read_file", path="src/c.py")
    assert is_error
    assert "a.py, b.py" in text


def test_files_that_are_no_text_or_too_large_are_refused(toolbox: Toolbox, root: Path) -> None:
    (root / "picture").write_bytes(b"\x89PNG\x00\x00")
    (root / "large").write_bytes(b"a" * (LARGEST_FILE + 1))
    assert "no text file" in call(toolbox, "read_file", path="picture")[0]
    assert "2,000,001 bytes" in call(toolbox, "read_file", path="large")[0]


def test_writing_and_patching(toolbox: Toolbox, root: Path) -> None:
    assert call(toolbox, "write_file", path="new/deep.txt", content="one\ntwo\n")[0] == "created new/deep.txt: 2 lines"
    assert call(toolbox, "patch", path="new/deep.txt", old="two", new="2")[0] == (
        "patched new/deep.txt: 1 place, the first in line 2"
    )
    assert (root / "new" / "deep.txt").read_text() == "one\n2\n"
    call(toolbox, "write_file", path="twice", content="x x")
    assert "2 times" in call(toolbox, "patch", path="twice", old="x", new="y")[0]
    assert not call(toolbox, "patch", path="twice", old="x", new="y", all=True)[1]
    assert (root / "twice").read_text() == "y y"
    assert "white space" in call(toolbox, "patch", path="src/a.py", old="  return 1\nx", new="")[0]
    assert "is not in" in call(toolbox, "patch", path="src/a.py", old="nowhere", new="")[0]
    assert "directory" in call(toolbox, "write_file", path="src", content="")[0]


def test_a_patch_changes_no_other_byte(toolbox: Toolbox, root: Path) -> None:
    (root / "latin").write_bytes(b"caf\xe9 one\r\ntwo\r\n")
    assert not call(toolbox, "patch", path="latin", old="two", new="2")[1]
    assert (root / "latin").read_bytes() == b"caf\xe9 one\r\n2\r\n"


def test_a_pipe_is_refused_before_anybody_waits_for_it(toolbox: Toolbox, root: Path) -> None:
    os.mkfifo(root / "pipe")
    for name, more in (("read_file", {}), ("write_file", {"content": "x"}), ("patch", {"old": "a", "new": "b"})):
        text, is_error = call(toolbox, name, path="pipe", **more)
        assert is_error
        assert "no ordinary file" in text


def test_searching(toolbox: Toolbox, root: Path) -> None:
    assert call(toolbox, "search", pattern=r"def \w+")[0] == (
        "src/a.py:4: def first() -> int:\nsrc/b.py:1: def second() -> int:"
    )
    assert call(toolbox, "search", pattern="return", files="b.*")[0] == "src/b.py:2: return 1"
    assert call(toolbox, "search", pattern="nowhere")[0] == "nothing found"
    assert "no regular expression" in call(toolbox, "search", pattern="(")[0]
    (root / "many.txt").write_text("hit\n" * (MOST_HITS + 5))
    assert call(toolbox, "search", pattern="hit")[0].endswith("in fewer files]")


def test_wrong_calls_are_answered_in_words(toolbox: Toolbox) -> None:
    assert "there is no tool 'nothing'" in call(toolbox, "nothing")[0]
    assert "has no argument 'file'" in call(toolbox, "read_file", file="a")[0]
    assert "needs 'path'" in call(toolbox, "read_file")[0]
    assert "of type integer" in call(toolbox, "read_file", path="a", start="1")[0]
    cut = toolbox.run(ToolCall("c", "read_file", '{"path": "a'))
    assert cut.is_error
    assert "not a JSON object" in cut.text


def test_the_shell_tells_output_and_exit_status_in_order(toolbox: Toolbox, root: Path) -> None:
    text, is_error = call(toolbox, "shell", command="echo one; echo two >&2; pwd; exit 3")
    assert (text, is_error) == (f"one\ntwo\n{root.resolve()}\n[exit 3]", False)
    assert call(toolbox, "shell", command="read line; true")[0] == "[exit 0]"
    assert call(toolbox, "shell", command="kill -9 $$")[0] == "[exit by signal 9]"


def test_a_command_out_of_time_is_killed_with_its_children(toolbox: Toolbox, root: Path) -> None:
    started = time.monotonic()
    text, _ = call(toolbox, "shell", command="(sleep 60; echo late > late.txt) & echo $!; sleep 61", timeout=1)
    assert time.monotonic() - started < 8
    assert text.endswith("[killed after 1 s]")
    assert gone(int(text.splitlines()[0]))


def test_children_in_the_background_do_not_outlive_their_command(toolbox: Toolbox) -> None:
    started = time.monotonic()
    text, _ = call(toolbox, "shell", command="sleep 60 & echo $!")
    assert time.monotonic() - started < 5
    assert text.endswith("[exit 0]")
    assert gone(int(text.splitlines()[0]))


def test_a_command_that_ignores_the_request_to_end_is_killed(toolbox: Toolbox) -> None:
    text, _ = call(toolbox, "shell", command="trap '' TERM; echo $$; while :; do sleep 0.1; done", timeout=1)
    assert gone(int(text.splitlines()[0]))


def gone(pid: int) -> bool:
    for _ in range(100):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        state = Path(f"/proc/{pid}/stat")
        if state.exists() and state.read_text().rpartition(")")[2].split()[0] == "Z":
            return True
        time.sleep(0.05)
    return False


def test_output_is_bounded_while_it_is_read(root: Path) -> None:
    shell = Shell(Folder(root), 20.0, 3_000, os.environ)
    text = shell.run("yes 0123456789 | head -c 20000000; echo the end")
    assert len(text) < 3_200
    assert "bytes left out" in text
    assert text.startswith("0123456789\n")
    assert text.endswith("the end\n[exit 0]")


def test_both_ends_are_exact() -> None:
    for size in (1, 7, 1_000):
        ends = OutputEnds(300)
        data = bytes(97 + place % 26 for place in range(1_000))
        for start in range(0, len(data), size):
            ends.add(data[start : start + size])
        assert ends.text() == f"{data[:200].decode()}\n[... 700 bytes left out ...]\n{data[-100:].decode()}"
    short = OutputEnds(300)
    short.add(b"short")
    assert short.text() == "short"


def test_keys_are_not_passed_on_to_commands(root: Path) -> None:
    name = "SOME_API_" + "KEY"
    shell = Shell(Folder(root), 5.0, LIMIT, {**os.environ, name: "private", "OTHER": "public"}, hidden={name})
    text = shell.run("env")
    assert "private" not in text
    assert "OTHER=public" in text


def test_long_results_lose_their_middle_and_say_so() -> None:
    text = "head\n" + "x" * 1_000 + "\ntail"
    shown = shorten_middle(text, 300)
    assert shown.startswith("head\n")
    assert shown.endswith("\ntail")
    assert "left out" in shown
    assert shorten_middle("short", 300) == "short"


def test_plans_are_checked_and_drawn(toolbox: Toolbox) -> None:
    steps = [
        {"step": "look", "status": "done"},
        {"step": "act", "status": "doing"},
        {"step": "check", "status": "open"},
    ]
    assert plan_lines(steps) == "[x] look\n[>] act\n[ ] check"
    assert call(toolbox, "plan", steps=steps)[0] == "the plan has 3 steps, 1 done"
    assert call(toolbox, "plan", steps=[{"step": "look", "status": "finished"}])[1]


def test_a_folder_must_be_one(tmp_path: Path) -> None:
    with pytest.raises(ToolRefused, match="is not a directory"):
        Folder(tmp_path / "nowhere")
