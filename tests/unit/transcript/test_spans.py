from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from midfold.transcript.jsonio import NotJSON, array_spans, elements, entries, gaps, object_spans, value_end
from support.timing import assert_in_proportion


def test_elements_are_the_exact_bytes_between_the_commas() -> None:
    source = b' [ {"a": 1e-7 } ,\n\t"x,]\\"" , null,[ 1 , 2 ]\n] '
    assert [bytes(item) for item in elements(source)] == [b'{"a": 1e-7 }', b'"x,]\\""', b"null", b"[ 1 , 2 ]"]


def test_elements_msgspec_refuses_are_found_by_the_scanner() -> None:
    source = b'[NaN, {"a":"\\ud800"}, -Infinity,[[]]]'
    assert [bytes(item) for item in elements(source)] == [b"NaN", b'{"a":"\\ud800"}', b"-Infinity", b"[[]]"]


def test_an_element_deeper_than_the_stack_has_a_span() -> None:
    deep = b"[" * 50_000 + b"]" * 50_000
    assert [bytes(item) for item in elements(b"[1," + deep + b"]")] == [b"1", deep]


def test_spans_of_an_object_survive_repeated_keys_and_escapes() -> None:
    long = b'"' + b"y" * 100 + b'"'
    source = b'{"a": 1, "\\u0061":' + long + b', "a" : {"a":[]} }'
    assert [source[span.start : span.end] for _, _, span in object_spans(source)] == [b"1", long, b'{"a":[]}']


def test_entries_take_the_last_of_a_repeated_key() -> None:
    assert bytes(entries(b'{"a":NaN,"a":2}')["a"]) == b"2"


@pytest.mark.parametrize(
    "source", [b"{", b'{"a"', b'{"a":', b'{"a":1', b'{"a":1,}', b"{1:2}", b'{"a":"\\', b'{"a":NaN} x']
)
def test_broken_objects_are_refused(source: bytes) -> None:
    with pytest.raises(NotJSON):
        entries(source)


@pytest.mark.parametrize("source", [b"[", b"[1", b"[1 2]", b"[,]", b"[NaN,]", b'["a', b"x", b"[] x", b"[NaN] ]"])
def test_broken_arrays_are_refused(source: bytes) -> None:
    with pytest.raises(NotJSON):
        array_spans(source)


def test_gaps_are_everything_around_the_elements() -> None:
    source = b"\n[ 1,\n  2 ,3\n]\n"
    pieces = gaps(source, elements(source))
    assert pieces == [b"\n[ ", b",\n  ", b" ,", b"\n]\n"]
    assert gaps(b" [ ]", []) == [b" [ ]"]
    lines = b'{"a":1}\r\n\r\n{"b":2}\n'
    assert gaps(lines, elements(b'[{"a":1},{"b":2}]'), b"", b"") == [b"", b"\r\n\r\n", b"\n"]


@pytest.mark.parametrize(
    "make", [lambda n: b'{"a' * n, lambda n: b'["' + b'\\"' * n, lambda n: b"[" + b'"\\"' * n, lambda n: b"[" * n]
)
def test_scanning_is_linear_in_hostile_bytes(make: Callable[[int], bytes]) -> None:
    def work(source: bytes) -> None:
        with contextlib.suppress(NotJSON):
            value_end(source, 0)

    assert_in_proportion(work, make(100_000), (make(400_000), 8))
