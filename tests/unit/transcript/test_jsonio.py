from __future__ import annotations

import contextlib
import json
import sys
import tracemalloc
from typing import Any

import pytest
from msgspec import Raw

from midfold.transcript import jsonio
from support.timing import assert_in_proportion


def test_lone_surrogates_nan_and_huge_numbers_are_read_and_written_back_as_they_were() -> None:
    source = rb'{"a":"\ud800x","b":NaN,"c":1e400,"d":-Infinity,"e":[1.5,123456789012345678901234567890]}'
    value = jsonio.decode(source)
    assert value["a"] == "\ud800x"
    assert isinstance(value["b"], Raw)
    assert jsonio.encode(value) == source


def test_bytes_that_are_not_utf8_are_read() -> None:
    value = jsonio.decode(b'{"a":"caf\xe9"}')
    assert value == {"a": "caf\udce9"}
    assert json.loads(jsonio.encode(value)) == value


def test_control_characters_inside_strings_are_read() -> None:
    assert jsonio.decode(b'["a\nb\x01"]') == ["a\nb\x01"]


def test_a_byte_order_mark_is_skipped() -> None:
    assert jsonio.decode(b"\xef\xbb\xbf[1]") == [1]


COMMA = 2 if sys.version_info >= (3, 13) else 3
"""Error position: Python 3.13 reports the extra comma, older versions the character after it."""


@pytest.mark.parametrize(("source", "offset"), [(b"[1,]", COMMA), (b'{"a" 1}', 5), (b"", 0), ("é x".encode(), 0)])
def test_what_is_not_json_is_refused_with_its_place(source: bytes, offset: int) -> None:
    with pytest.raises(jsonio.NotJSON) as caught:
        jsonio.decode(source)
    assert caught.value.offset == offset


def test_nesting_beyond_the_stack_is_refused_in_words() -> None:
    with pytest.raises(jsonio.NotJSON, match="nested too deeply"):
        jsonio.decode(b"[" * 100_000 + b"]" * 100_000)


def test_a_value_deeper_than_the_stack_is_still_written() -> None:
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    assert jsonio.encode(deep) == b"[" * 5_001 + b"]" * 5_001


def test_a_cycle_is_cut_and_a_repeated_value_is_not() -> None:
    cycle: dict[str, Any] = {"a": 1}
    cycle["self"] = cycle
    assert json.loads(jsonio.encode(cycle)) == {"a": 1, "self": "(cycle)"}
    shared = {"x": "\ud800"}
    assert json.loads(jsonio.encode([shared, shared])) == [shared, shared]


def test_objects_json_does_not_know_become_their_text() -> None:
    class Odd:
        def __str__(self) -> str:
            return "odd"

    assert jsonio.encode({"a": Odd(), "b": (1, 2)}) == b'{"a":"odd","b":[1,2]}'
    assert jsonio.encode({"a": Odd(), "b": "\udc00"}) == b'{"a":"odd","b":"\\udc00"}'


def test_text_is_not_escaped_needlessly() -> None:
    assert jsonio.encode({"ключ": "日本"}) == '{"ключ":"日本"}'.encode()


def test_an_integer_of_ten_thousand_digits_keeps_its_digits() -> None:
    source = b'{"a":NaN,"n":' + b"7" * 10_000 + b"}"
    assert jsonio.encode(jsonio.decode(source)) == source


@pytest.mark.parametrize(
    "make", [lambda n: b"[" + b'"\\ud800",' * n + b"1]", lambda n: b"[" * n, lambda n: b'["' + b'\\"' * n]
)
def test_reading_is_linear_in_hostile_bytes(make: Any) -> None:
    def work(source: bytes) -> None:
        with contextlib.suppress(jsonio.NotJSON):
            jsonio.decode(source)

    assert_in_proportion(work, make(100_000), (make(400_000), 8))


def test_where_a_number_is_that_json_lacks_costs_no_memory_for_each_value_beside_it() -> None:
    """Regression: a key of 100 KB over 20,000 zeros made 2 GB of paths."""
    source = b'{"' + b"k" * 100_000 + b'":[' + b"0," * 20_000 + b'0],"deep":{"x":[1,NaN]}}'
    tracemalloc.start()
    try:
        assert jsonio.find_invalid_number(Raw(source)) == (".deep.x[1]", "NaN")
        assert tracemalloc.get_traced_memory()[1] < 50_000_000
    finally:
        tracemalloc.stop()


def test_a_path_that_an_error_names_is_short() -> None:
    found = jsonio.find_invalid_number({"k" * 5_000: float("nan")})
    assert found is not None
    assert len(found[0]) < 120


@pytest.mark.parametrize("number", [float("nan"), float("inf"), float("-inf")])
def test_a_number_that_json_lacks_is_found_wherever_it_stands(number: float) -> None:
    deep: Any = number
    for _ in range(12):
        deep = {"inside": [deep]}
    for value in (number, [number], {"a": 1.5, "b": [None, True, "x", number]}, {"a": (number,)}, deep):
        assert jsonio.find_invalid_number(value) is not None
    around: list[Any] = []
    around.append(around)
    for value in (1.5, None, {"a": [1, 2.5, None, {"b": "NaN"}]}, {"a": (1.5,)}, around):
        assert jsonio.find_invalid_number(value) is None
