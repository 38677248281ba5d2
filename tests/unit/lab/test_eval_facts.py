from __future__ import annotations

import pytest

from midfold.lab.retention_facts import facts_in, is_common, places, shared_facts


@pytest.mark.parametrize(
    ("text", "fact", "kind"),
    [
        ("see https://example.org/a/b?c=1.", "https://example.org/a/b?c=1", "url"),
        ("open src/app/main_view.tsx:12:3", "src/app/main_view.tsx", "path"),
        ("in `/etc/hosts/extra`,", "/etc/hosts/extra", "path"),
        ("edited views.py twice", "views.py", "path"),
        ("commit 9f3c2ab and", "9f3c2ab", "hash"),
        ("id 123e4567-e89b-12d3-a456-426614174000;", "123e4567-e89b-12d3-a456-426614174000", "id"),
        ("ticket OPS-1432 is", "OPS-1432", "id"),
        ("reservation 4WQ150.", "4WQ150", "id"),
        ("port 48213)", "48213", "number"),
        ("since v2.14.0-rc1", "v2.14.0-rc1", "version"),
        ("until 2026-03-14,", "2026-03-14", "date"),
        ("set MAX_RETRY_COUNT=3", "MAX_RETRY_COUNT", "constant"),
        ("call parse_header()", "parse_header", "name"),
        ("the parseHeader method", "parseHeader", "name"),
        ("use billing.ledger.Entry", "billing.ledger.Entry", "name"),
        ("the session-store module", "session-store", "name"),
        ("with --keep-going now", "--keep-going", "flag"),
        (r'print("\nTotalAmount")', "TotalAmount", "name"),
    ],
)
def test_each_kind_of_identifier_is_found_without_the_punctuation_around_it(text: str, fact: str, kind: str) -> None:
    assert list(facts_in(text)) == [(fact, kind)]


@pytest.mark.parametrize(
    "text", ["Words of prose, and/or 3/4 of them.", "At 12:30 we had 7 or 100.", "e.g. this", "- - --- ..", "ERROR"]
)
def test_words_small_numbers_and_punctuation_are_no_facts(text: str) -> None:
    assert list(facts_in(text)) == []


def test_a_fact_stands_where_it_is_no_piece_of_a_longer_word() -> None:
    text = "parse_header, parse_headers, re_parse_header, x.parse_header \\nparse_header"
    assert [text[at - 1] for at in list(places(text, "parse_header"))[1:]] == [".", "n"]
    assert len(list(places(text, "parse_header"))) == 3
    assert list(places("aa-aa-aab aa-aa", "aa-aa")) == [0, 10]


def test_what_three_projects_share_is_generic_and_what_two_share_is_not() -> None:
    projects = {"a": ["x_one", "x_two", "x_two"], "b": ["x_one", "x_two"], "c": ["x_one"], "d": ["y_one"]}
    assert shared_facts(projects) == {"x_one"}


@pytest.mark.parametrize("fact", ["os.path.join", "--verbose", "fmt.Errorf", "line.strip", "read-only", "package.json"])
def test_library_names_common_flags_and_hyphenated_english_are_generic(fact: str) -> None:
    assert is_common(fact)


@pytest.mark.parametrize("fact", ["time.py", "--keep-going", "ledger.post", "session-store", "/srv/os/path"])
def test_names_of_the_project_are_not(fact: str) -> None:
    assert not is_common(fact)
