"""Write docs/reference/specification.md from tests/contract/spec_statements.toml and tests/mutants.toml.

python tools/gen_spec_map.py          write the file
python tools/gen_spec_map.py --check  exit 1 when it is out of date
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.mutants import Mutant, load_mutants

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "tests" / "contract" / "spec_statements.toml"
PAGE = ROOT / "docs" / "reference" / "specification.md"
INTRODUCTION = """# The specification, statement by statement

<!-- Made by tools/gen_spec_map.py from tests/contract/spec_statements.toml and tests/mutants.toml. Do not edit. -->

Every statement of the two specification documents with the line it stands on, the tests (in `tests/`) that prove it,
and the mutations that these tests kill: changes of the code under which they must fail. `make mutants` applies each one
of `tests/mutants.toml` and prints the survivors. A remark says where midfold goes beyond the documents or chooses
between them; what says nothing about midfold has a reason instead of a proof. `tests/contract/test_spec_map.py` checks
that no statement is left out, that every row has tests that exist and a mutation, and that this page is current. Random
sessions for all of it at once:
`tests/property/test_compaction_laws.py::test_random_sessions_stay_legal_complete_and_identical_through_six_compactions`.
"""


class Row(NamedTuple):
    """Statements of one heading proved by the same tests, or not applicable to midfold for the same reason."""

    document: str
    heading: str
    statements: tuple[tuple[int, str], ...]
    tests: tuple[str, ...]
    remark: str
    reason: str


def load_rows(path: Path = SOURCE) -> list[Row]:
    """Return the rows of the map in document order."""
    return [
        Row(
            one["document"],
            one["heading"],
            tuple((line, text) for line, text in one["statements"]),
            tuple(one.get("tests", ())),
            one.get("remark", ""),
            one.get("reason", ""),
        )
        for one in tomllib.loads(path.read_text(encoding="utf-8"))["row"]
    ]


def mutations_of(row: Row, mutants: list[Mutant]) -> list[str]:
    """Return the ids of the mutations that a test of this row kills."""
    return [mutant.id for mutant in mutants if not set(mutant.tests).isdisjoint(row.tests)]


def _lines(rows: list[Row], mutants: list[Mutant]) -> Iterator[str]:
    for document, of_document in groupby(rows, key=lambda row: row.document):
        yield from ("", f"## {document}")
        for heading, of_heading in groupby(of_document, key=lambda row: row.heading):
            yield from (
                "",
                f"### {heading}",
                "",
                "| line | statement | proof | mutations | remark |",
                "|---|---|---|---|---|",
            )
            yield from (_cells(row, mutants) for row in of_heading)


def _cells(row: Row, mutants: list[Mutant]) -> str:
    first, last = row.statements[0][0], row.statements[-1][0]
    cells = (
        f"{first}" if first == last else f"{first}-{last}",
        "<br>".join(_quoted(text) for _, text in row.statements),
        "<br>".join(f"`{test.removeprefix('tests/')}`" for test in row.tests) or f"not applicable: {row.reason}",
        "<br>".join(f"`{name}`" for name in mutations_of(row, mutants)),
        row.remark,
    )
    return f"| {' | '.join(cells)} |"


def _quoted(text: str) -> str:
    return text.strip("| ").replace("|", "\\|").replace("<", "&lt;").replace("](", "]\\(")


def page() -> str:
    return INTRODUCTION + "\n".join(_lines(load_rows(), load_mutants())) + "\n"


def main(arguments: list[str]) -> int:
    fresh = page()
    if "--check" in arguments:
        current = PAGE.exists() and PAGE.read_text(encoding="utf-8") == fresh
        print("up to date" if current else "out of date: run python tools/gen_spec_map.py")
        return int(not current)
    PAGE.write_text(fresh, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
