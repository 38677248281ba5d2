from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from midfold.cli.main import main

ROOT = Path(__file__).resolve().parents[3]
CODING = str(ROOT / "examples" / "coding-session.json")


def run(*arguments: str, stdin: bytes | None = None) -> Result:
    return CliRunner().invoke(main, list(arguments), input=stdin, catch_exceptions=False)


def test_it_shows_a_map_of_head_fold_and_tail_and_the_handoff() -> None:
    shown = run("compact", CODING, "--context-length", "32000").output
    assert "compacted: " in shown
    assert "before h" in shown
    assert "after  hS" in shown
    assert "## Relevant Files" in shown
    assert "handle(s) unfold to the originals" in shown


def test_below_the_threshold_it_says_so_and_what_to_do() -> None:
    shown = run("compact", CODING).output
    assert "unchanged: " in shown
    assert "Use --force to compact anyway" in shown


def test_a_preview_shows_the_map_only_and_writes_nothing(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    shown = run("compact", CODING, "--context-length", "32000", "--preview", "-o", str(out)).output
    assert "before h" in shown
    assert "## Goal" not in shown
    assert not out.exists()


def test_the_result_and_its_archive_are_written_and_unfold_gives_the_exact_bytes_back(tmp_path: Path) -> None:
    out = tmp_path / "out.json"
    run("compact", CODING, "--context-length", "32000", "-o", str(out))
    archive = tmp_path / "out.json.archive"
    assert stat.S_IMODE(archive.stat().st_mode) == 0o600
    body = json.loads(out.read_bytes())
    assert len(body["messages"]) < 106
    handles = json.loads(run("unfold", str(archive), "--json").output)
    (fold,) = [handle for handle, count in handles.items() if count > 1]
    assert fold in run("unfold", str(archive)).output
    originals = run("unfold", str(archive), fold[:8]).stdout_bytes
    source = Path(CODING).read_bytes()
    lines = originals.splitlines()
    assert len(lines) == handles[fold]
    assert all(line in source for line in lines)


def test_json_has_receipt_state_and_messages() -> None:
    shown = json.loads(run("compact", CODING, "--target", "8000", "--json").output)
    assert shown["receipt"]["status"] in ("compacted", "pruned")
    assert shown["receipt"]["new_tokens"] <= 9_000
    assert shown["messages"]
    assert "count" in shown["state"]


def test_keeping_exchanges_and_here() -> None:
    kept = json.loads(run("compact", CODING, "--keep", "2", "--json").output)
    here = json.loads(run("compact", CODING, "--here", "--json").output)
    assert here["receipt"]["new_messages"] < kept["receipt"]["new_messages"]
    done = CliRunner().invoke(main, ["compact", CODING, "--keep", "2", "--here"])
    assert done.exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["compact", "/no/such"], "cannot read"),
        (["unfold", "/no/such"], "cannot read"),
        (["unfold", CODING], "expected a line of an archive"),
    ],
)
def test_errors_are_one_line_and_exit_code_2(arguments: list[str], message: str) -> None:
    done = subprocess.run([sys.executable, "-m", "midfold", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1


def test_an_unknown_handle_and_the_transcript_itself_as_output_are_refused(tmp_path: Path) -> None:
    copy = tmp_path / "in.json"
    copy.write_bytes(Path(CODING).read_bytes())
    before = copy.read_bytes()
    command = [sys.executable, "-m", "midfold", "compact", str(copy), "--force", "-o", str(copy)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "is the input file" in done.stderr
    assert copy.read_bytes() == before
    run("compact", str(copy), "--force", "-o", str(tmp_path / "out.json"))
    command = [sys.executable, "-m", "midfold", "unfold", str(tmp_path / "out.json.archive"), "mf-000000000000"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "has no handle" in done.stderr
