"""The estimate is close to o200k_base on every content type, and keeps its rules for any string."""

from __future__ import annotations

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.corpora import generated
from midfold.transcript import tokens as estimate
from midfold.transcript.tokens import estimate_text
from support.hash_seeds import outputs_under_hash_seeds

ROOT = Path(__file__).resolve().parents[3]
ANY_TEXT = st.text(st.characters(), max_size=400)


HELD: dict[str, list[str]] = generated("held", longest=24_000)


@pytest.fixture(scope="module")
def tokenizer() -> object:
    return pytest.importorskip("splintr").Tokenizer.from_pretrained("o200k_base")


@pytest.mark.parametrize("kind", HELD)
def test_total_of_each_content_type_is_within_a_quarter(kind: str, tokenizer: object) -> None:
    true = sum(len(tokenizer.encode_ordinary(text)) for text in HELD[kind])  # type: ignore[attr-defined]
    assert sum(map(estimate_text, HELD[kind])) == pytest.approx(true, rel=0.25)


def test_error_is_at_most_a_third_of_that_of_characters_over_four(tokenizer: object) -> None:
    ours = theirs = 0.0
    for text in (text for texts in HELD.values() for text in texts):
        true = len(tokenizer.encode_ordinary(text))  # type: ignore[attr-defined]
        ours += abs(estimate_text(text) - true) / true
        theirs += abs(len(text) / 4 - true) / true
    assert ours < theirs / 3


@given(ANY_TEXT)
def test_any_text_has_an_estimate_and_only_the_empty_one_has_zero(text: str) -> None:
    tokens = estimate_text(text)
    assert tokens >= 1 if text else tokens == 0


@pytest.mark.parametrize(
    "text",
    ["\0", "\ud800", "\udfff\ud800", " ", "\n", "é", "中", "😀", "\U0010ffff", "\x7f", " " * 10_000, "\r\n" * 9_000],
)
def test_odd_texts_have_an_estimate(text: str) -> None:
    assert 1 <= estimate_text(text) <= 4 * len(text)


@given(ANY_TEXT)
def test_fast_sum_equals_the_sum_over_characters(text: str) -> None:
    before = [0, *(estimate._CLASS[byte] for byte in text.encode("latin-1", "replace"))]
    slow = sum(estimate.PAIRS[a][b] for a, b in pairwise(before))
    for unit in text.encode("utf-16-le", "surrogatepass")[1::2]:
        slow += sum(price for _, first, last, price in estimate.BLOCKS if first <= unit <= last)
    assert estimate_text(text) == max((slow + estimate.UNIT // 2) // estimate.UNIT, min(len(text), 1))


def test_every_price_fits_an_exact_adler_sum() -> None:
    prices = [price for row in estimate.PAIRS for price in row] + [block[3] for block in estimate.BLOCKS]
    assert len(prices) == 256 + len(estimate.BLOCKS)
    assert min(prices) > 0
    assert max(prices) <= estimate.TOP_PRICE
    assert estimate.CHUNK * estimate.TOP_PRICE < 65_521


def test_every_unicode_block_beyond_latin_1_has_one_price() -> None:
    covered = [hi for _, first, last, _ in estimate.BLOCKS for hi in range(first, last + 1)]
    assert covered == list(range(1, 256))


@given(ANY_TEXT, ANY_TEXT)
@settings(max_examples=50)
def test_a_longer_text_never_has_a_lower_estimate(text: str, more: str) -> None:
    assert estimate_text(text + more) >= estimate_text(text)


@pytest.mark.parametrize("kind", HELD)
def test_doubling_a_text_doubles_the_estimate(kind: str) -> None:
    for text in HELD[kind][9:]:
        assert estimate_text(text + text) == pytest.approx(2 * estimate_text(text), rel=0.15)


@pytest.mark.parametrize("where", [0.0, 0.31, 0.5, 0.97])
def test_a_blob_is_seen_wherever_it_lies_in_a_long_text(where: float, tokenizer: object) -> None:
    prose, blob = HELD["English prose"][-1] * 8, HELD["base64"][-1] * 2
    at = int(where * len(prose))
    text = prose[:at] + blob + prose[at:]
    true = len(tokenizer.encode_ordinary(text))  # type: ignore[attr-defined]
    assert estimate_text(text) == pytest.approx(true, rel=0.1)


@pytest.mark.parametrize("size", [5, 17, 80, 128, 1_000])
def test_sampling_does_not_keep_step_with_records(size: int) -> None:
    record = "word " * (size // 10) + "0x9F," * (size // 10 + 1) + "\n"
    text = record * (1_000_000 // len(record))
    sampled = estimate_text(text) / len(text)
    part = text[: estimate.SAMPLE_CHARACTERS]
    assert sampled == pytest.approx(estimate_text(part) / len(part), rel=0.1)


@pytest.mark.parametrize("piece", [" ", "a", "-", "😀", "\ud800", "中a", "é", "\n\t"])
def test_time_grows_no_faster_than_the_text(piece: str) -> None:
    def best(length: int) -> float:
        text = piece * (length // len(piece))
        times = []
        for _ in range(7):
            begin = time.process_time()
            for _ in range(20):
                estimate_text(text)
            times.append(time.process_time() - begin)
        return min(times)

    once, twice, four = (best(2_000 * factor) for factor in (1, 2, 4))
    assert twice < 4 * once
    assert four < 8 * once
    assert best(4_000_000) < 20 * four


def test_the_same_number_in_every_process() -> None:
    code = (
        "from midfold.transcript.tokens import estimate_text as e;"
        "print([e(t) for t in ('', 'naïve café', 'x = 1\\n' * 9000, '\\ud800中😀' * 5000)])"
    )
    assert len(outputs_under_hash_seeds(code, "0", "1", "4242")) == 1
