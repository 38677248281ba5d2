"""docs/reference/specification.md has every statement of the two documents, and the tests it names exist."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from support import fixtures
from support.data import ROOT, need
from support.spec_documents import DOCUMENTS, FOLDER, Statement, statements
from tools import gen_spec_map
from tools.mutants import load_mutants

ROWS = gen_spec_map.load_rows()
PAGE = re.compile(r"\bdocs/[\w/-]+\.md")


def quoted(document: str) -> list[Statement]:
    """Return the statements of one document in the map, in order."""
    rows = [row for row in ROWS if row.document == document]
    found = [Statement(row.heading, line, text) for row in rows for line, text in row.statements]
    return sorted(found, key=lambda statement: statement.line)


def exists(test: str) -> bool:
    path, _, name = test.partition("::")
    file = ROOT / path
    return file.is_file() and re.search(rf"^(async )?def {name}\(", file.read_text(encoding="utf-8"), re.M) is not None


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_statement_of_the_documents_is_in_the_map_once_and_word_for_word(document: str) -> None:
    original = FOLDER / document
    need(original.is_file(), "the specification documents (../shared/spec) are not here")
    said = statements(original.read_text(encoding="utf-8"))
    assert Counter(said) == Counter(quoted(document))


def test_without_the_documents_the_map_is_still_whole() -> None:
    counts = {document: len(quoted(document)) for document in DOCUMENTS}
    assert counts == {DOCUMENTS[0]: 191, DOCUMENTS[1]: 504}


def test_every_row_has_a_proof_or_a_reason_and_not_both() -> None:
    assert [row for row in ROWS if bool(row.tests) == bool(row.reason)] == []
    assert [row for row in ROWS if row.reason and row.remark] == []


def test_every_test_the_map_names_exists() -> None:
    named = {test for row in ROWS for test in row.tests}
    assert len(named) > 200
    assert sorted(test for test in named if not exists(test)) == []


def test_every_page_the_map_names_exists() -> None:
    named = {page for row in ROWS for page in PAGE.findall(row.remark + row.reason)}
    assert sorted(page for page in named if not (ROOT / page).is_file()) == []


def test_every_row_has_a_mutation_that_one_of_its_tests_kills() -> None:
    mutants = load_mutants()
    bare = [row.statements[0] for row in ROWS if row.tests and not gen_spec_map.mutations_of(row, mutants)]
    assert bare == []


def test_every_benchmark_fixture_is_in_the_map() -> None:
    rows = {text for row in ROWS if row.heading.startswith("P3") for _, text in row.statements}
    assert rows >= set(fixtures.FIXTURES)


def test_the_page_is_what_the_tool_makes() -> None:
    assert gen_spec_map.PAGE.read_text(encoding="utf-8") == gen_spec_map.page()


def test_the_splitter_finds_sentences_items_rows_lines_of_code_and_telling_headings() -> None:
    document = """# Title
## Part (with a number, 5)
One sentence. Another
one, e.g., this: `x.y`. "A third."
Acceptance:
- an item
that goes on
- Two. Sentences.
A paragraph behind the list.
| head | of a table |
|---|---|
| a | row |
```text
code here
}
```
2. **numbered**:
   indented. Yes.
"""
    assert [(line, text) for _, line, text in statements(document)] == [
        (2, "Part (with a number, 5)"),
        (3, "One sentence."),
        (3, "Another one, e.g., this: `x.y`."),
        (3, '"A third."'),
        (6, "an item that goes on"),
        (8, "Two."),
        (8, "Sentences."),
        (9, "A paragraph behind the list."),
        (12, "| a | row |"),
        (14, "code here"),
        (17, "**numbered**: indented."),
        (17, "Yes."),
    ]  # fmt: skip
