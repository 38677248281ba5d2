"""docs/reference/specification.md names tests that exist, and leaves out no acceptance line of the specification."""

from __future__ import annotations

import re
from pathlib import Path

from support import fixtures
from support.data import ROOT, SHARED, need

MAP = ROOT / "docs" / "reference" / "specification.md"
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def acceptance_lines(text: str) -> list[str]:
    """The bullets under `Acceptance:` and of the test matrix, each on one line."""
    found: list[str] = []
    inside = False
    for line in text.splitlines():
        if line.startswith(("Acceptance:", "Minimum tests before")):
            inside = True
        elif line.startswith("#"):
            inside = False
        elif inside and line.startswith("- "):
            found.append(line[2:])
        elif inside and line:
            found[-1] += f" {line}"
    return found


def test_every_test_the_map_names_exists() -> None:
    named = NAMED.findall(MAP.read_text(encoding="utf-8"))
    assert len(named) > 100
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not (ROOT / path).is_file() or f"def {name}(" not in (ROOT / path).read_text(encoding="utf-8")
    ]
    assert missing == []


def test_every_row_of_the_map_has_a_proof_or_a_later_issue() -> None:
    rows = [line for line in MAP.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    unproven = [row for row in rows if not NAMED.search(row) and "later: issue" not in row and "| proof |" not in row]
    assert unproven == []


def test_no_acceptance_line_is_missing_from_the_map() -> None:
    document = Path(SHARED).parent / "spec" / "conversation-compression-spec.md"
    need(document.is_file(), "the specification documents (../shared/spec) are not here")
    lines = acceptance_lines(document.read_text(encoding="utf-8"))
    assert len(lines) > 70
    shown = MAP.read_text(encoding="utf-8")
    assert [line for line in lines if f"| {line} |" not in shown] == []


def test_every_benchmark_fixture_is_in_the_map() -> None:
    shown = MAP.read_text(encoding="utf-8")
    assert [name for name in fixtures.FIXTURES if f"| {name} |" not in shown] == []
