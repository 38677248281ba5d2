"""Provider ids: their owners, their positions in requests, and their extraction from responses."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

import midfold
from midfold.errors import TooManyValues, TranscriptError
from midfold.gateway import resource_ids as belongings
from midfold.gateway import resource_ids as issued
from midfold.gateway.exchange import Owner
from midfold.gateway.resource_ids import (
    IdPlace,
    IssuedIds,
    Made,
    OwnedIds,
    grant_for,
    may_have_references,
    references,
    references_in,
)
from midfold.session.sessions import Sessions
from midfold.testing import FakeClock
from support.timing import assert_in_proportion

RED, BLUE = IdPlace(Owner("red"), "http://h"), IdPlace(Owner("blue"), "http://h")


def has(found: OwnedIds, place: IdPlace, given: str) -> bool:
    return asyncio.run(found.has(place, given))


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Sessions:
    if request.param == "postgres":
        return midfold.open(request.getfixturevalue("postgres_url"))
    return midfold.open("memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db")


def test_ids_belong_to_whoever_was_given_them(sessions: Sessions) -> None:
    with sessions:
        first = OwnedIds(sessions.store)
        assert not has(first, RED, "a")
        asyncio.run(first.add(RED, ["a", "b"]))
        asyncio.run(first.add(RED, ["a"]))
        for found in (first, OwnedIds(sessions.store)):
            assert [has(found, RED, one) for one in ("a", "b", "c", "")] == [True, True, False, False]
            assert not has(found, BLUE, "a")
            assert not has(found, RED._replace(base="http://other"), "a")


def test_no_two_things_of_owners_have_one_name() -> None:
    bound = [Owner("a").bind(*parts) for parts in ((b"x", b"yz"), (b"xy", b"z"), (b"xyz",), (b"xyz", b""))]
    bound += [Owner("b").bind(b"xyz"), Owner().bind(b"xyz"), Owner(credential=b"a").bind(b"xyz")]
    assert len(set(bound)) == len(bound)
    assert Owner("a", b"whatever").bind(b"xyz") == Owner("a").bind(b"xyz")


def test_what_a_provider_forgets_is_forgotten_too(sessions: Sessions, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belongings, "ROWS_PER_CLEANUP", 2)
    clock = FakeClock()
    with sessions:
        found = OwnedIds(sessions.store, clock)
        asyncio.run(found.add(RED, ["short"], 35))
        asyncio.run(found.add(RED, ["long"]))
        clock.advance(36 * 86_400)
        asyncio.run(found.add(RED, ["new"], 35))
        asyncio.run(found.add(RED, ["newer"], 35))
        again = OwnedIds(sessions.store, clock)
        assert [has(again, RED, one) for one in ("short", "long", "new")] == [False, True, True]


def test_without_a_store_the_newest_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(belongings, "MAX_CACHED_IDS", 3)
    found = OwnedIds(None)
    for given in "abca":
        asyncio.run(found.add(RED, [given]))
    asyncio.run(found.add(RED, ["d"]))
    assert [has(found, RED, one) for one in "abcd"] == [True, False, True, True]


def test_a_store_that_fails_loses_no_answer(tmp_path: Path) -> None:
    sessions = midfold.open(f"sqlite:///{tmp_path}/s.db")
    found = OwnedIds(sessions.store)
    sessions.close()
    (tmp_path / "s.db").unlink()
    (tmp_path / "s.db").mkdir()
    asyncio.run(found.add(RED, ["a"]))
    assert has(found, RED, "a")


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"previous_response_id": "a"}, ["a"]),
        ({"conversation": {"id": "a"}, "input_file_id": "b"}, ["a", "b"]),
        ({"input": [{"content": [{"file_id": "a"}, {"image": {"file_id": "b"}}]}]}, ["a", "b"]),
        ({"tools": [{"container": {"file_ids": ["a", "b"]}}, {"vector_store_ids": ["c"]}]}, ["a", "b", "c"]),
        ({"messages": [{"type": "tool_use", "input": {"file_id": "a"}}]}, []),
        ({"messages": [{"type": "server_tool_use", "input": [{"file_id": "a"}]}]}, []),
        ({"messages": [{"type": "document", "input": {"file_id": "a"}}]}, ["a"]),
        ({"messages": [{"input": {"file_id": "a"}}]}, ["a"]),
        ({"metadata": {"file_id": "a"}, "text": {"format": {"schema": {"file_id": "b"}}}}, []),
        ({"messages": [{"previous_response_id": "a", "conversation": "b"}]}, []),
        ({"file_id": 1, "file_ids": [2, None], "conversation": None}, []),
        ([{"file_id": "a"}], []),
        ({"type": "tool_use", "input": [{"content": [{"file_id": "a"}]}]}, ["a"]),
        ({"prompt": {"variables": {"schema": {"file_id": "a"}, "metadata": {"file_id": "b"}}}}, ["a", "b"]),
        ({"Previous_Response_ID": "a", "FILE_ID": "b", "converſation": {"ID": "c"}}, ["a", "b", "c"]),
    ],
)
def test_references(body: object, found: list[str]) -> None:
    assert sorted(one.id for one in references(json.dumps(body).encode())) == found


def test_both_of_two_equal_keys_count() -> None:
    assert [one.id for one in references(b'{"conversation":"a","conversation":{"id":"b","id":"c"}}')] == ["a", "b", "c"]
    both = b'{"messages":[{"type":"tool_use","type":"document","input":{"file_id":"a"}}]}'
    assert [one.id for one in references(both)] == ["a"]


@pytest.mark.parametrize(
    "body", [b"{", b"[" * 200_000, b'{"a":"\xff"}', b'{"file_id":"a"},', '{"a":1}'.encode("utf-16")]
)
def test_what_cannot_be_read_is_refused(body: bytes) -> None:
    with pytest.raises(TranscriptError, match="not JSON"):
        references(body)


@pytest.mark.parametrize(
    ("body", "path", "worth"),
    [
        (b'{"a":"plain"}', "/v1/responses", False),
        (b'{"conversation":1}', "/v1/responses", True),
        (b'{"conversation":1}', "/v1/messages", False),
        (b'{"file\\u005fid":1}', "/v1/messages", True),
        (b'{"a":"\\u00e9 \\u003c \\u000a"}', "/v1/messages", False),
        (b'{"Input_File_ID":1}', "/v1/batches", True),
        ('{"previouſ_response_id":1}'.encode(), "/v1/responses", True),
        (b'{"previou\\u017F_response_id":1}', "/v1/responses", True),
        (b'{"a":"\\u4e2d"}', "/v1/responses", False),
        (b'{"a":"' + b"x" * ((1 << 20) - 10) + b'","file_id":1}', "/v1/messages", True),
    ],
)
def test_which_bodies_are_read(body: bytes, path: str, worth: bool) -> None:
    assert may_have_references(body, path) is worth


@pytest.mark.parametrize(
    "body",
    [
        b"model=m&previous%5Fresponse%5Fid=a",
        b"--b\r\ncontent-disposition: form-data; name*=utf-8''file%5Fid\r\n\r\na\r\n--b--\r\n",
        '{"a":1}'.encode("cp037"),
        '{"a":1}'.encode("utf-16"),
        '{"a":1}'.encode("utf-32-be"),
        b"[]",
        b"null",
    ],
)
def test_what_is_no_object_is_refused_though_it_has_no_word(body: bytes) -> None:
    with pytest.raises(TranscriptError, match="not a JSON object"):
        references_in(body, "/v1/responses")


def test_objects_are_read_with_spaces_and_marks_before_them() -> None:
    for before in (b"", b" \r\n\t", b"\xef\xbb\xbf"):
        assert [one.id for one in references_in(before + b'{"file_id":"a"}', "/v1/messages")] == ["a"]
        assert references_in(before + b'{"a":"b"}', "/v1/messages") == []


@pytest.mark.parametrize("value", [b"{},", b"[],", b"1,", b"[" * 400 + b"]" * 400 + b","])
def test_what_has_too_many_values_is_not_read(value: bytes) -> None:
    many = b'{"file_id":"a","b":[' + value * (400_001 // value.count(value[:1])) + b"1]}"
    with pytest.raises(TooManyValues):
        references_in(many, "/v1/messages")
    assert references_in(many.replace(b"file_id", b"another"), "/v1/messages") == []


@pytest.mark.parametrize("piece", [b" ", b'"file_id":"a",', b"\\u00", b'{"file_id":', b'[{"file_ids":[]},', b"_id"])
def test_looking_for_references_is_linear(piece: bytes) -> None:
    def work(size: int) -> None:
        body = b'{"a":[' + piece * (size // len(piece))
        if may_have_references(body, "/v1/responses"):
            with pytest.raises((TranscriptError, TooManyValues)):
                references(body)

    assert_in_proportion(work, 1_000_000, (4_000_000, 8), quick=0.01)


def test_the_table_knows_no_deeper_and_no_other_paths() -> None:
    for path in (
        "/v1",
        "/",
        "/v1/files/a/b",
        "/v1/batches/a/results",
        "/v1/conversations/a/items/b/c",
        "/v1/models/../a",
    ):
        assert grant_for("GET", path) is None
    assert grant_for("GET", "/v1/files/..") is None
    assert grant_for("GET", "/v1/files/a") == ("a", "", False)
    assert grant_for("GET", "/v1/messages/batches/a") == ("a", "", False)
    assert grant_for("GET", "/conversations/a/items/b") == ("a", "", False)


STREAM = (
    b': ping\n\nevent: response.created\ndata: {"response":{"id":"r","metadata":{"id":"x"}},"type":"t"}\n\n'
    b'data: {"id":"no"}\n\n'
)


@pytest.mark.parametrize(
    ("data", "made", "is_stream", "ids"),
    [
        (b'{"metadata":{"id":"x"},"id":"a","file":{"id":"f"}}', "thing", False, ["a"]),
        (b'{"id":"a","file":{"id":"f"}}', "upload", False, ["a", "f"]),
        (b'{"id":"a","output_file_id":"o","error_file_id":"e"}', "batch", False, ["a", "o", "e"]),
        (b'{"id":"a","output_file_id":"o"}', "response", False, ["a"]),
        (b'{"id":7}', "thing", False, []),
        (b"not json", "thing", False, []),
        (b"", "thing", False, []),
        (STREAM, "response", True, ["r"]),
        (STREAM.replace(b"\n", b"\r\n"), "response", True, ["r"]),
        (b'data: {"a":1}\n\n' * 20, "response", True, []),
        (b'data: {"id":"cut', "response", True, []),
    ],
)
@pytest.mark.parametrize("encoding", ["", "gzip"])
def test_ids_are_read_and_every_byte_passes(
    data: bytes, made: Made, is_stream: bool, ids: list[str], encoding: str
) -> None:
    sent = gzip.compress(data) if encoding else data
    for size in (1, 7, 100, 10_000):
        passed, kept = asyncio.run(_through(sent, size, made, is_stream, encoding))
        assert (passed, kept) == (sent, ids)


def test_a_stream_is_never_held_back_and_an_answer_in_one_piece_is_until_its_ids_are_kept() -> None:
    async def order(is_stream: bool) -> list[str]:
        seen: list[str] = []

        async def keep(ids: list[str]) -> None:
            seen.append("kept")

        async def chunks() -> AsyncIterator[bytes]:
            for piece in (
                (b": ping\n\n", b'data: {"id":"a"}\n\n', b"data: 2\n\n") if is_stream else (b'{"id":', b'"a"', b"}")
            ):
                seen.append("sent")
                yield piece

        reader = IssuedIds("thing", is_stream=is_stream, encoding="", keep=keep)
        async for _ in reader.through(chunks()):
            seen.append("passed")
            await asyncio.sleep(0)
        return seen

    assert asyncio.run(order(True)) == ["sent", "passed", "sent", "passed", "kept", "sent", "passed"]
    assert asyncio.run(order(False)) == ["sent"] * 3 + ["kept"] + ["passed"] * 3


def test_what_is_too_large_passes_unread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(issued, "MAX_HELD_BYTES", 1_000)
    data = b'{"a":"' + b"x" * 5_000 + b'","id":"a"}'
    for is_stream in (False, True):
        assert asyncio.run(_through(data, 300, "thing", is_stream, "")) == (data, [])
    pictures = b'{ "id": "resp_1", "id2": "' + b"x" * 5_000 + b'"}'
    assert asyncio.run(_through(pictures, 300, "response", False, "")) == (pictures, ["resp_1"])
    assert asyncio.run(_through(pictures, 300, "response", True, "")) == (pictures, [])
    assert asyncio.run(_through(b"\x01\x02", 1, "thing", False, "br")) == (b"\x01\x02", [])
    assert asyncio.run(_through(b"no gzip", 3, "thing", False, "gzip")) == (b"no gzip", [])


async def _through(data: bytes, size: int, made: Made, is_stream: bool, encoding: str) -> tuple[bytes, list[str]]:
    kept: list[str] = []

    async def keep(ids: list[str]) -> None:
        await asyncio.sleep(0)
        kept.extend(ids)

    async def chunks() -> AsyncIterator[bytes]:
        for start in range(0, len(data), size):
            yield data[start : start + size]

    reader = IssuedIds(made, is_stream=is_stream, encoding=encoding, keep=keep)
    return b"".join([chunk async for chunk in reader.through(chunks())]), kept
