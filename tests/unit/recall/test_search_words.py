"""Search terms of a text."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midfold.recall.words import MAX_COMPARED_WORDS, Term, near_words, parse_query, search_tokens, stem
from support.timing import assert_in_proportion


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        ("src/midfold/core/words.py", {"src", "midfold", "core", "words", "py"}),
        ("parse_url", {"parse", "url", "parseurl"}),
        ("parseUrl", {"parse", "url", "parseurl"}),
        ("HTTPServer2", {"http", "server2", "httpserver2"}),
        ("__init__", {"init"}),
        ("os.path.join()", {"os", "path", "join"}),
        ("a3f9c2e1b4 v18", {"a3f9c2e1b4", "v18"}),
        ("Straße CAFÉ", {"straße", "café"}),
        ("ＡＢＣ ﬁle", {"abc", "file"}),
        ("发布版本", {"发布", "布版", "版本", "本"}),
        ("v2发布", {"v2", "发布", "布"}),
        ("ok→done", {"ok", "done"}),
        ("\ud800 x", {"x"}),
        ("", set()),
    ],
)
def test_tokens(text: str, tokens: set[str]) -> None:
    assert search_tokens(text) == tokens


def test_base64_is_no_word_but_what_stands_around_it_is() -> None:
    blob = "iVBORw0KGgoAAAANSUhEUg" * 40
    assert search_tokens(f"before {blob} after") == {"before", "after"}


def test_queries() -> None:
    query = parse_query('parseUrl "Exact  Phrase" deplo* 版 config.yaml')
    assert query.terms == (
        Term("pars", True, "parse"),
        Term("url", False, "url"),
        Term("exact", True, "exact"),
        Term("phras", True, "phrase"),
        Term("deplo", True, "deplo"),
        Term("版", True, "版"),
        Term("config", True, "config"),
        Term("yaml", True, "yaml"),
    )
    assert query.names == ("parseurl", "config.yaml")
    assert query.phrases == ("exact phrase",)
    assert parse_query('?! ""').terms == ()


WORDS = st.text(alphabet=st.sampled_from("aB9_é版本の.-/ →ＡßÇ"), max_size=30)


@given(WORDS, WORDS)
def test_a_text_is_found_by_every_word_of_it(before: str, word: str) -> None:
    tokens = search_tokens(f"{before} {word}")
    for term in parse_query(word).terms:
        assert any(token.startswith(term.text) if term.prefix else token == term.text for token in tokens), term


@given(st.text(max_size=200))
def test_tokens_can_be_given_to_any_database(text: str) -> None:
    for token in search_tokens(text):
        assert token
        assert len(token.encode("utf-8")) <= 2_046
        assert not token.isspace() and "\x00" not in token and '"' not in token and "'" not in token
        assert not any(character.isspace() for character in token)


@pytest.mark.parametrize("hostile", ["a" * 255 + "-", "aB", "_a", "版", "é_B", "x+/=" * 8 + " "])
def test_time_is_linear_in_hostile_text(hostile: str) -> None:
    small, large = (hostile * (size // len(hostile)) for size in (100_000, 400_000))
    assert_in_proportion(search_tokens, small, (large, 8))


@pytest.mark.parametrize(
    "forms",
    [("reject", "rejected", "rejects", "rejection"), ("iterate", "iterator", "iterating"), ("change", "changes"),
     ("dependency", "dependencies"), ("cache", "caches", "cached"), ("run", "running")],
)  # fmt: skip
def test_forms_of_a_word_have_one_stem(forms: tuple[str, ...]) -> None:
    assert len({stem(form) for form in forms}) == 1


def test_words_that_say_nothing_count_only_alone() -> None:
    assert [term.typed for term in parse_query("which of the parsers").terms] == ["parsers"]
    assert [term.typed for term in parse_query("to be or not").terms] == ["to", "be", "or", "not"]
    assert [term.typed for term in parse_query("iter").terms] == ["iter"] and parse_query("iter").terms[0].prefix


def test_near_words_are_a_slip_of_the_fingers_away() -> None:
    words = ["lighthouse", "lightouse", "lihgthouse", "lighthouses", "light", "nighthouse", "migration"]
    assert near_words("lighthouse", words)[:4] == ["lighthouse", "lighthouses", "lightouse", "lihgthouse"]
    assert near_words("light", ["lights", "lifts", "ligth", "sight", "lite"]) == ["lights", "ligth", "sight"]
    assert near_words("wrote", []) == ["write", "written"] and near_words("runs", ["rung"]) == ["ran", "rung"]


def test_only_so_many_words_are_compared_with_one_that_is_nowhere() -> None:
    many = (f"ab{number:06}" for number in itertools.count())
    assert near_words("abcdefgh", many) == []
    assert int(next(many)[2:]) == MAX_COMPARED_WORDS
