"""Inspection of a request has limits, and costs time in proportion to its bytes, once."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midfold.compaction import injection as hostile
from midfold.compaction.injection import defuse
from midfold.gateway import peek as peeking
from midfold.gateway.client_compactions import may_request_summary
from midfold.gateway.peek import (
    MAX_MESSAGES,
    MAX_VALUES_PER_MESSAGE,
    MOST_VALUES,
    exceeds_limits,
    peek,
    peek_slowly,
    structural_values,
)
from midfold.gateway.request_size import without_markers
from midfold.transcript.message import Message, Text

NAMED = rb'"(?:cache_control|prompt_cache_breakpoint)"\s*:\s*(?:\{[^{}]*\}|null)'
BY_PATTERN = re.compile(rb"\s*,\s*" + NAMED + rb"|" + NAMED + rb"\s*,\s*|" + NAMED)
"""Marker as a pattern: correct, but quadratic."""
PIECES = [b",", b" ", b"\n\t", b'"cache_control"', b":", b"{", b"}", b"null", b'"a":1']
PIECES += [b'"cache_control":{"type":"ephemeral"}', b'"cache_control" : null', b'"prompt_cache_breakpoint":{}']


@given(st.lists(st.sampled_from(PIECES), max_size=14).map(b"".join))
def test_markers_are_taken_out_with_one_comma_each(data: bytes) -> None:
    assert without_markers(data) == BY_PATTERN.sub(b"", data)


def seconds(work: Callable[[], object]) -> float:
    """Return the best of three times, because load makes none faster."""
    best = 60.0
    for _ in range(3):
        begun = time.process_time()
        work()
        best = min(best, time.process_time() - begun)
    return best


MARKED: list[Callable[[int], bytes]] = [
    lambda n: b'"cache_control":{"a":1}' + b" " * n + b"}",
    lambda n: b" " * n + b'"cache_control":{}',
    lambda n: b'"cache_control"' + b" " * n,
    lambda n: b'"cache_control":' + b" " * n + b"{",
    lambda n: b'"cache_control":{' * (n // 17),
    lambda n: b'"cache_control":{},' * (n // 19),
    lambda n: b" , " * (n // 3) + b'"cache_control":null',
]


@pytest.mark.parametrize("made", MARKED)
def test_markers_cost_what_the_bytes_cost(made: Callable[[int], bytes]) -> None:
    small, large = made(100_000), made(800_000)
    assert seconds(lambda: without_markers(large)) < 24 * seconds(lambda: without_markers(small)) + 0.05


@pytest.mark.parametrize(
    "made",
    [
        lambda n: "<a-b> " * (n // 6),
        lambda n: "x <a-b> y" * (n // 9),
        lambda n: " " * n + "<a-b>" * 100,
        lambda n: "</a-b" * (n // 5),
        lambda n: "<a" + "-b" * (n // 2),
        lambda n: "<system " * (n // 8),
    ],
)
def test_tags_cost_what_the_text_costs(made: Callable[[int], str]) -> None:
    small, large = made(100_000), made(800_000)
    assert seconds(lambda: defuse(large)) < 24 * seconds(lambda: defuse(small)) + 0.05


def test_a_tag_alone_on_its_line_loses_its_shape_and_one_in_a_line_keeps_it() -> None:
    assert defuse("x\n  <branch-name>\ny") == "x\n  ‹branch-name>\ny"
    assert defuse("x\n" + " " * 30 + "<branch-name>\ny") == "x\n" + " " * 30 + "‹branch-name>\ny"
    assert defuse("git checkout <branch-name>\n") == "git checkout <branch-name>\n"
    assert defuse("git checkout      <branch-name>\n") == "git checkout      <branch-name>\n"


@given(st.lists(st.text(" \n\u3000AΣbß", max_size=12), max_size=4), st.integers(1, 6))
def test_words_are_told_apart_by_single_spaces_wherever_a_piece_ends(texts: list[str], piece: int) -> None:
    before, hostile.PIECE = hostile.PIECE, piece
    try:
        plain = [text.replace("Σ", "s") for text in texts]
        assert hostile._normal(plain) == " ".join(" ".join(plain).lower().split()).strip("-• ")
    finally:
        hostile.PIECE = before


def body_of(**fields: object) -> bytes:
    return json.dumps({**fields, "messages": [{"role": "user", "content": "x" * 70_000}]}).encode()


@pytest.mark.parametrize("large", [False, True])
def test_fields_that_are_too_long_are_known_to_be_there(large: bool) -> None:
    room = {"messages": "x" * 70_000} if large else {}
    of = lambda **fields: peek(json.dumps({**fields, **room}).encode())  # noqa: E731
    fine, long = of(model="m" * 200), of(model="m" * 201)
    assert fine is not None and fine.name == "m" * 200 and not fine.is_overlong
    assert long is not None and long.is_overlong
    continued = of(previous_response_id="r" * 5_000, max_tokens=5)
    assert continued is not None and continued.is_continued and continued.output == 5
    assert peek(body_of(model=["m"] * 500)).is_overlong  # type: ignore[union-attr]
    odd = of(model=True)
    assert odd is not None and odd.name is None and not odd.is_overlong


VALUES = st.recursive(
    st.one_of(st.none(), st.integers(), st.text('",\\x{[', max_size=8)),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text('",\\', max_size=3), inner, max_size=4),
    max_leaves=30,
)


@given(VALUES, st.integers(1, 12))
def test_marks_in_strings_are_none_wherever_a_piece_ends(value: object, piece: int) -> None:
    before, peeking.PIECE_BYTES = peeking.PIECE_BYTES, piece
    try:
        assert structural_values(json.dumps(value).encode(), 1_000) == _marks(value)
        assert structural_values(json.dumps(value).encode(), 2) == min(_marks(value), 2)
    finally:
        peeking.PIECE_BYTES = before


def _marks(value: object) -> int:
    """Count commas between values, and openings of lists and objects."""
    if isinstance(value, dict):
        return max(len(value), 1) + sum(map(_marks, value.values()))
    return max(len(value), 1) + sum(map(_marks, value)) if isinstance(value, list) else 0


def tiny(count: int, one: bytes = b'{"role":"user","content":"a"}') -> bytes:
    return b'{"model":"m","messages":[' + b",".join([one] * count) + b"]}"


@pytest.mark.parametrize(
    ("body", "crowded"),
    [
        (tiny(25_000), False),
        (tiny(MAX_MESSAGES), False),
        (tiny(MAX_MESSAGES + 1), True),
        (tiny(MAX_MESSAGES + 1).replace(b'"messages"', b'"input"'), True),
        (tiny(5_000, b'{"role":"user","content":"' + b"a, b, " * 100 + b'"}'), False),
        (b'{"messages":[{"role":"user","content":[' + b"1," * MOST_VALUES + b"1]}]}", True),
        (b'{"tools":[' + b"1," * MOST_VALUES + b"1]}", True),
        (b'{"messages":[' + b"1," * 100_000, False),
        (tiny(4, b'{"role":"user","content":[' + b"[]," * (MAX_VALUES_PER_MESSAGE - 10) + b"1]}"), False),
        (tiny(1, b'{"role":"user","content":[' + b"[]," * MAX_VALUES_PER_MESSAGE + b"1]}"), True),
        (tiny(1, b'{"role":"user","content":"' + b"[]," * 200_000 + b'"}'), False),
        (b'{"tools":[' + b"{}," * MAX_VALUES_PER_MESSAGE + b"1]}", True),
        (
            tiny(
                1, b'{"role":"user","content":' + b"[" * MAX_VALUES_PER_MESSAGE + b"]" * MAX_VALUES_PER_MESSAGE + b"}"
            ),
            True,
        ),
        (tiny(4_000, b"[" * 400 + b"]" * 400), True),
        (b"{" + b",".join(b'"k%d":1' % number for number in range(MAX_VALUES_PER_MESSAGE + 1)) + b"}", True),
    ],
    ids=[
        *("25,000", "most", "more", "input", "prose", "parts", "tools", "no JSON"),
        *("full messages", "one overfull", "in a text", "overfull tools", "deep", "many deep ones", "keys"),
    ],
)
def test_a_request_of_too_many_pieces_is_known_before_it_is_read(body: bytes, crowded: bool) -> None:
    assert exceeds_limits(body) is crowded


def test_half_a_character_is_read_slowly_and_within_the_same_limits() -> None:
    found = peek_slowly(b'{"x":"\\ud83d","model":"' + b"m" * 5_000 + b'","stream":true}')
    assert found is not None and found.is_overlong and found.is_streaming


def test_request_for_a_summary_is_found_at_either_end_of_a_long_message() -> None:
    filling = "\n" * 1_000_000
    for text in (f"Summarize this:{filling}", f"{filling}Now summarize this."):
        assert may_request_summary((Message("user", (Text(text),)),))
    began = time.perf_counter()
    assert not may_request_summary((Message("user", (Text(filling * 20),)),))
    assert time.perf_counter() - began < 0.1, "the whole text is not searched"
