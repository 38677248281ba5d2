"""Event streams from bytes as they arrive, by the rules of the WHATWG description."""

from __future__ import annotations

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from midfold.transcript import sse
from midfold.transcript.sse import Event, EventReader


def events(*chunks: bytes) -> list[Event]:
    reader = EventReader()
    return [event for chunk in chunks for event in reader.feed(chunk)]


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
def test_lines_may_end_in_three_ways(end: bytes) -> None:
    lines = [b"event: first", b"data: one", b"data: two", b"", b"data: three", b"", b"x: y"]
    assert events(end.join(lines)) == [Event("first", "one\ntwo"), Event("message", "three")]


@pytest.mark.parametrize(
    ("stream", "expected"),
    [
        (b"data: a\n\n", ["a"]),
        (b"data:a\n\n", ["a"]),
        (b"data:  a\n\n", [" a"]),
        (b"data\n\n", [""]),
        (b"data:\n\n", [""]),
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
    assert [event.data for event in events(stream)] == expected


def test_a_name_is_for_one_event_only() -> None:
    assert events(b"event: a\ndata: 1\n\ndata: 2\n\n") == [Event("a", "1"), Event("message", "2")]


def test_whether_the_stream_could_end_here() -> None:
    reader = EventReader()
    assert reader.is_between_events
    for chunk, between in ((b"data: a", False), (b"\n", False), (b"\n", True), (b"event: x\n", False), (b"\n", True)):
        list(reader.feed(chunk))
        assert reader.is_between_events is between


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
        wanted.append(Event(name or "message", "\n".join(shown)))
    assert events(stream) == wanted


def test_lines_and_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "LONGEST_EVENT", 1_000)
    with pytest.raises(ValueError, match="a line"):
        events(*[b"x" * 100] * 20)
    with pytest.raises(ValueError, match="an event"):
        events(*[b"data: " + b"x" * 100 + b"\n"] * 20)
    assert len(events(*[b"data: " + b"x" * 900 + b"\n\n"] * 20)) == 20


@pytest.mark.parametrize("chunk", [b"data: abc\n\n", b"x" * 50, b"\r", b"data: a\r", b":\n"])
def test_time_is_linear_in_the_stream(chunk: bytes) -> None:
    def cost(count: int) -> float:
        best = 9.0
        for _ in range(3):
            start = time.process_time()
            events(*[chunk] * count)
            best = min(best, time.process_time() - start)
        return best

    small = max(cost(2_000), 0.001)
    assert cost(8_000) < 8 * small + 0.02
