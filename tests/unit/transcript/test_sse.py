"""Event streams are parsed from chunks of bytes, by the rules of the WHATWG specification."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midfold.transcript import sse
from midfold.transcript.sse import EventReader, StreamEvent
from support.timing import assert_in_proportion


def read(*chunks: bytes) -> list[StreamEvent]:
    reader = EventReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


def events(*chunks: bytes) -> list[tuple[str, str]]:
    """Return names and data of the events with data."""
    return [(event.name, event.data) for event in read(*chunks) if event.data]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_three_ways(end: bytes) -> None:
    lines = [b"event: first", b"data: one", b"data: two", b"", b"data: three", b"", b"x: y"]
    assert events(end.join(lines)) == [("first", "one\ntwo"), ("", "three")]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),
        (b"data\n\n", []),
        (b"data:\n\n", []),
        (b"data: a\ndata: b\n\n", ["a\nb"]),
        (b"data: a:b: c\n\n", ["a:b: c"]),
        (b": a comment\n\ndata: a\n\n", ["a"]),
        (b"id: 1\nretry: 5\nfoo: bar\ndata: a\n\n", ["a"]),
        (b"DATA: a\n\n", []),
        (b" data: a\n\n", []),
        (b"event: x\n\n", []),
        (b"data: lost", []),
        (b"data: lost\n", []),
        (b"\xef\xbb\xbfdata: a\n\n", ["a"]),
        (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", ["a"]),
        ("data: ünï 编辑\n\n".encode(), ["ünï 编辑"]),
        (b"data: \xff\xfe\n\n", ["\ufffd\ufffd"]),
        (b"", []),
    ],
)
def test_fields_comments_and_spaces(stream: bytes, expected: list[str]) -> None:
    assert [data for _, data in events(stream)] == expected


def test_a_name_is_for_one_event_only() -> None:
    assert events(b"event: a\ndata: 1\n\ndata: 2\n\n") == [("a", "1"), ("", "2")]


odd = st.sampled_from(["data: 编".encode(), b"\xef\xbb\xbf", b"\xff", b" "])
pieces = odd | st.sampled_from(
    [b"data: a", b"data:", b"data: ", b"event: e", b": c", b"id", b"x", b"\n", b"\r", b"\r\n", b"\n\n", b"\r\r", b":"]
)


@given(st.lists(pieces, max_size=40).map(b"".join), st.data())
def test_any_chunking_gives_the_same_events(stream: bytes, data: st.DataObject) -> None:
    whole = events(stream + b"\n\n")
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    chunks = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    assert events(*chunks, b"\n\n") == whole
    assert events(*(bytes([byte]) for byte in stream), b"\n\n") == whole
    reader = EventReader()
    kept = [event for chunk in chunks for event in reader.feed(chunk)]
    assert b"".join(event.raw for event in (*kept, *reader.end())) == stream


@given(
    st.lists(
        st.tuples(st.sampled_from(["", "ping", "ünï"]), st.lists(st.text(max_size=12), min_size=1, max_size=3)),
        max_size=5,
    )
)
def test_what_is_written_by_the_rules_is_read_back(given_events: list[tuple[str, list[str]]]) -> None:
    wanted, stream = [], b""
    for name, lines in given_events:
        clean = [line.replace("\r", "").replace("\n", "") for line in lines]
        stream += f"event: {name}\n".encode() if name else b""
        stream += b"".join(f"data: {line}\n".encode("utf-8", "surrogatepass") for line in clean) + b"\n"
        shown = [line.encode("utf-8", "surrogatepass").decode("utf-8", "replace") for line in clean]
        wanted.append((name, "\n".join(shown)))
    assert events(stream) == [pair for pair in wanted if pair[1]]


def test_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT_BYTES", 1_000)
    with pytest.raises(ValueError, match="a stream event"):
        events(*[b"x" * 100] * 20)
    with pytest.raises(ValueError, match="a stream event"):
        events(*[b"data: " + b"x" * 100 + b"\n"] * 20)
    assert len(events(*[b"data: " + b"x" * 900 + b"\n\n"] * 20)) == 20


@pytest.mark.parametrize("data", [b"[DONE]", b"", b"1", b"[]", b"{", b"null"])
def test_data_that_is_no_object_has_no_value(data: bytes) -> None:
    (event,) = read(b"data: " + data + b"\n\n")
    assert event.value is None
    assert event.is_end is (data == b"[DONE]")


def test_an_event_is_decoded_when_somebody_looks_and_once_however_many_do() -> None:
    decoded: list[str] = []

    def decode(data: str) -> Any:
        decoded.append(data)
        return json.loads(data)

    reader = EventReader(decode)
    found = list(reader.feed(b'data: {"a": 1}\n\ndata: {"a": 2}\n\n: comment\n\ndata: [DONE]\n\n'))
    assert decoded == []
    assert [event.value for event in found * 3] == [{"a": 1}, {"a": 2}, None, None] * 3
    assert decoded == ['{"a": 1}', '{"a": 2}']


@pytest.mark.parametrize("crowd", [b"\n".join([b"data: 1"] * 20_000), b"data: [" + b"1," * 300_000 + b"1]"])
def test_an_event_with_too_much_in_it_passes_unread(crowd: bytes) -> None:
    (event,) = read(crowd + b"\n\n")
    assert (event.exceeds_limits, event.value, event.data, event.raw) == (True, None, "", crowd + b"\n\n")


@pytest.mark.parametrize("chunk", [b"data: abc\n\n", b"x" * 50, b"\r", b"data: a\r", b":\n"])
def test_time_is_linear_in_the_stream(chunk: bytes) -> None:
    assert_in_proportion(lambda count: events(*[chunk] * count), 2_000, (8_000, 8))
