"""The search tool with patterns, lines and files designed to make it run forever."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from midfold.agent.tools import Folder, Toolbox
from midfold.agent.tools.files import LARGEST_FILE, LONGEST_LINE, LONGEST_PATTERN, SECONDS, Search
from midfold.transcript import jsonio
from midfold.transcript.message import ToolCall


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "bait.txt").write_text("a" * 60 + "!\n")
    return tmp_path


def search(root: Path, pattern: str, seconds: int = SECONDS, **more: object) -> tuple[str, bool]:
    toolbox = Toolbox([Search(Folder(root), seconds).tool()])
    result = toolbox.run(ToolCall("c1", "search", jsonio.text_of({"pattern": pattern, **more})))
    return result.text, result.is_error


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|a)*$", r"(a|aa)+$", r"(.*a){30}$", r"([a-z]+)*\d"])
def test_a_pattern_without_end_ends_in_time_with_advice(root: Path, pattern: str) -> None:
    started = time.monotonic()
    text, is_error = search(root, pattern, 1)
    assert time.monotonic() - started < 4
    assert is_error
    assert "without a repetition inside of a repetition such as (a+)+" in text


def test_the_default_time_is_what_the_model_is_told(root: Path) -> None:
    """That this limit is enforced is tested in tests/e2e/test_attacks_agent.py."""
    own = Search(Folder(root))
    assert own.seconds == SECONDS
    assert f"after {SECONDS} seconds" in own.tool().spec.description


def test_what_was_found_before_the_time_was_over_is_told(root: Path) -> None:
    (root / "a_first.txt").write_text("aa\n")
    text, is_error = search(root, "(a+)+$", 1)
    assert is_error
    assert "a_first.txt:1: aa" in text


def test_no_process_is_left_behind(root: Path) -> None:
    def children() -> set[str]:
        return set(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())

    before = children()
    search(root, "(a+)+$", 1)
    assert children() <= before


@pytest.mark.parametrize(
    "pattern", ["(", "[", "a{2,1}", "(?P<a", "\\", "*", "(?<=a+)b", "(" * 900, "a{99999999999999999999}"]
)
def test_what_is_no_pattern_is_told_in_words(root: Path, pattern: str) -> None:
    text, is_error = search(root, pattern)
    assert is_error
    assert "no regular expression" in text


def test_what_is_too_long_to_be_a_pattern_is_refused(root: Path) -> None:
    for name, more in (("pattern", {}), ("files", {"files": "*" * (LONGEST_PATTERN + 1)})):
        text, is_error = search(root, "a" if more else "x" * (LONGEST_PATTERN + 1), **more)
        assert is_error
        assert f"`{name}` has 1,001 characters" in text


def test_long_lines_large_files_pipes_devices_and_links(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "theirs.txt").write_text("needle\n")
    (root / "line.txt").write_text("needle" + "x" * 1_900_000 + "haystack\n")
    (root / "large.txt").write_text("needle\n" * (LARGEST_FILE // 7 + 1))
    (root / "binary").write_bytes(b"needle\x00")
    os.mkfifo(root / "pipe")
    (root / "link.txt").symlink_to(outside / "theirs.txt")
    (root / "folder").symlink_to(outside)
    (root / "loop").symlink_to(root / "loop")
    (root / "zero").symlink_to("/dev/zero")
    text, is_error = search(root, "needle")
    assert not is_error
    assert text.splitlines()[0].startswith("line.txt:1: needlexxx")
    assert text.splitlines()[1] == "[not searched, because they are large or no text: binary, large.txt]"
    assert len(text) < 500
    assert search(root, "haystack")[0].startswith("nothing found")
    assert f"{LONGEST_LINE:,} characters" in Search(Folder(root)).tool().spec.description
    for path in ("pipe", "loop"):
        assert "needle" not in search(root, "needle", path=path)[0]
    for path in ("link.txt", "zero", "folder/theirs.txt"):
        assert "outside of the working directory" in search(root, "needle", path=path)[0]


def test_folders_deeper_than_the_interpreter_can_call(root: Path) -> None:
    deep = root / "/".join("d" * (sys.getrecursionlimit() + 50))
    subprocess.run(["mkdir", "-p", str(deep)], check=True)
    (deep / "deep.txt").write_text("needle\n")
    try:
        text, is_error = search(root, "needle")
    finally:
        subprocess.run(["rm", "-rf", str(root / "d")], check=True)
    assert not is_error
    assert text.endswith("deep.txt:1: needle")


def test_names_that_are_no_text_are_found_all_the_same(root: Path) -> None:
    (root / os.fsdecode(b"caf\xe9.txt")).write_text("needle\n")
    text, is_error = search(root, "needle")
    assert not is_error
    assert "caf\\udce9.txt:1: needle" in text
    text.encode()
