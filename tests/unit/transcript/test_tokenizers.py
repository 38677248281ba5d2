from __future__ import annotations

import sys
import time

import pytest

from midfold import Meter, MissingExtra, read
from midfold.transcript import tokenizers
from midfold.transcript.tokenizers import VOCABULARIES, Tokenizer


@pytest.mark.parametrize("family", sorted(VOCABULARIES))
def test_every_family_counts(family: str) -> None:
    tokenizer = Tokenizer(family)
    assert tokenizer.exact
    assert 2 <= tokenizer.count("hello world") <= 4
    assert tokenizer.count("") == 0
    assert tokenizer.count("lone \ud800 surrogate") > 0


def test_a_family_without_a_public_vocabulary_counts_with_o200k_and_is_not_exact() -> None:
    tokenizer = Tokenizer("claude")
    assert not tokenizer.exact
    assert tokenizer.name == "o200k_base"


def test_special_tokens_in_text_are_plain_text() -> None:
    assert Tokenizer("o200k").count("<|endoftext|>") > 1


@pytest.mark.parametrize("family", sorted(VOCABULARIES))
def test_counting_the_quick_way_gives_the_number_of_ordinary_tokens(family: str) -> None:
    vocabulary = tokenizers._vocabulary(VOCABULARIES[family])
    special = list(vocabulary.special_tokens())
    for text in [
        "",
        "plain words",
        "a < b and [c] | d",
        "日本語のテキスト",
        "<|",
        *(f"see {name} here" for name in special),
    ]:
        assert Tokenizer(family).count(text) == len(vocabulary.encode_ordinary(text))


def test_a_megabyte_of_one_letter_is_counted_in_reasonable_time() -> None:
    start = time.perf_counter()
    assert Tokenizer("o200k").count("a" * 1_000_000) > 50_000
    assert time.perf_counter() - start < 20


def test_it_counts_messages_through_the_meter() -> None:
    messages = read([{"role": "user", "content": "hello world"}]).messages
    assert Meter(Tokenizer("o200k")).count(messages).tokens == 4 + 2


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizers._vocabulary.cache_clear()
    monkeypatch.setitem(sys.modules, "splintr", None)
    with pytest.raises(MissingExtra, match=r"pip install 'midfold\[tokens\]'"):
        Tokenizer("o200k")
    tokenizers._vocabulary.cache_clear()
