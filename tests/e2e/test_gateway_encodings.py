"""Compressed requests are read and folded like others, with bounded memory."""

from __future__ import annotations

import gzip
import json
import sys
import time
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from midfold.errors import GatewayFull, TranscriptError, UnreadableEncoding
from midfold.gateway.compact_endpoint import PACKED
from midfold.gateway.encodings import BodyTooLarge, decode_request
from midfold.gateway.exchange import HeldBytes
from midfold.testing.answers import openai_json
from midfold.testing.doubles import ScriptedProvider
from support.fixtures import assistant, number_lines, system, user
from support.gateways import running

WINDOW = 16_000
CHAT = "/v1/chat/completions"


def raw_deflate(data: bytes) -> bytes:
    packing = zlib.compressobj(wbits=-15)
    return packing.compress(data) + packing.flush()


def zstd(data: bytes) -> bytes:
    return pytest.importorskip("zstandard").compress(data)


def br(data: bytes) -> bytes:
    return pytest.importorskip("brotli").compress(data)


WAYS: list[tuple[str, Callable[[bytes], bytes]]] = [
    ("gzip", gzip.compress),
    ("x-gzip", gzip.compress),
    ("GZIP", lambda data: gzip.compress(data[:100]) + gzip.compress(data[100:])),
    ("deflate", zlib.compress),
    ("deflate", raw_deflate),
    ("zstd", zstd),
    ("br", br),
    ("identity", bytes),
]


def long() -> dict[str, Any]:
    said = number_lines("sentence {n} of a story that has no end, and no tool in it", 20)
    turns = [turn for n in range(40) for turn in (user(f"{n}? {said}"), assistant(f"{n}: {said}"))]
    return {"model": "gpt-4o", "messages": [system(), *turns, user("And?")]}


@pytest.mark.parametrize(("encoding", "compress"), WAYS)
def test_a_compressed_request_is_read_folded_and_sent_on_plain(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    body = compress(json.dumps(long()).encode())
    small = json.dumps({"model": "gpt-4o", "messages": [user("Hello.")]}).encode()
    with ScriptedProvider(then=openai_json("fine")) as provider, running(provider.url, window=WINDOW) as gateway:
        status, head, _ = gateway.post(CHAT, body, content_encoding=encoding)
        assert (status, head["x-midfold-action"]) == (200, "compacted")
        gateway.post(CHAT, compress(small), content_encoding=encoding)
        gateway.account(1)
        assert gateway.app.gateway.held.total == 0
    assert provider.requests[0].body["messages"][-1] == user("And?")
    assert provider.requests[1].raw == small
    assert not any("content-encoding" in request.headers for request in provider.requests)


def test_a_request_that_asks_to_be_left_alone_stays_compressed() -> None:
    body = gzip.compress(json.dumps(long()).encode())
    with ScriptedProvider(then=openai_json("fine")) as provider, running(provider.url, window=WINDOW) as gateway:
        gateway.post(CHAT, body, content_encoding="gzip", x_midfold_bypass="true")
    assert provider.requests[0].raw == body and provider.requests[0].headers["content-encoding"] == "gzip"


@pytest.mark.parametrize(("encoding", "compress"), WAYS[:-1])
def test_a_body_that_breaks_off_or_goes_on_behind_its_end_is_refused(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    whole = compress(json.dumps(long()).encode())
    for broken in (whole[:-3], whole[: len(whole) // 2], whole[:5]):
        with pytest.raises(TranscriptError):
            decode_request(broken, encoding.lower(), 2_000_000)
    if encoding not in ("deflate", "br"):
        with pytest.raises(TranscriptError):
            decode_request(whole + b"more", encoding.lower(), 2_000_000)


@pytest.mark.parametrize(
    ("encoding", "body", "status"),
    [
        ("gzip", b"not gzip", 400),
        ("gzip", gzip.compress(b"{}" * 9)[:-9], 400),
        ("deflate", b"\xff\xff", 400),
        ("gzip, gzip", gzip.compress(gzip.compress(b"{}")), 415),
        ("compress", b"{}", 415),
        ("gzip", gzip.compress(b" " * 3_000_000), 413),
    ],
    ids=["no gzip", "half", "no deflate", "twice", "unknown", "large"],
)
def test_what_cannot_be_read_or_is_too_large_is_refused(encoding: str, body: bytes, status: int) -> None:
    options: dict[str, Any] = {"largest_body": 2_000_000}
    with ScriptedProvider(then=openai_json("fine")) as provider, running(provider.url, **options) as gateway:
        assert gateway.post(CHAT, body, content_encoding=encoding)[0] == status
        gateway.account()
        assert gateway.app.gateway.held.total == 0
    assert provider.requests == []


@pytest.mark.parametrize(("encoding", "package"), [("zstd", "zstandard"), ("br", "brotli")])
def test_a_missing_package_is_named(encoding: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(UnreadableEncoding, match=r"midfold\[compressed\]") as caught:
        decode_request(b"x", encoding, 100)
    assert caught.value.status == 415


@pytest.mark.parametrize(("encoding", "compress"), WAYS[:-1])
def test_a_bomb_is_not_unpacked_beyond_what_a_request_may_have(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    bomb = compress(b" " * 5_000_000)
    with pytest.raises(BodyTooLarge):
        decode_request(bomb, encoding.lower(), 1_000_000)
    assert len(decode_request(bomb, encoding.lower(), 5_000_000)) == 5_000_000
    if encoding == "zstd":
        return  # its decoders do not report where a frame is truncated
    with pytest.raises((TranscriptError, BodyTooLarge)):
        decode_request(bomb[: len(bomb) // 2], encoding.lower(), 5_000_000)


@pytest.mark.parametrize(("encoding", "compress"), [WAYS[0], WAYS[3], *WAYS[5:7]])
def test_decoded_bytes_count_against_the_limit_of_all_requests(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    """Two bodies of 1.5 MB fit into 4 MB, thirty do not; the excess is refused with a retry status."""
    bomb = compress(json.dumps({"model": "gpt-4o", "messages": [user(" " * 1_500_000)]}).encode())
    options: dict[str, Any] = {"largest_body": 2_000_000, "largest_total": 4_000_000}
    seen: list[int] = []
    with ScriptedProvider(then=openai_json("fine")) as provider, running(provider.url, **options) as gateway:
        held = gateway.app.gateway.held
        take = held.take

        def watched(size: int) -> None:
            take(size)
            seen.append(held.total)

        held.take = watched
        with ThreadPoolExecutor(30) as clients:
            answers = list(clients.map(lambda _: gateway.post(CHAT, bomb, content_encoding=encoding), range(30)))
        gateway.account(29)
        assert held.total == 0
    assert max(seen) <= 4_000_000
    assert {status for status, _, _ in answers} <= {200, 503}
    assert all(head["retry-after"] == "1" for status, head, _ in answers if status == 503)


@pytest.mark.parametrize(("encoding", "compress"), WAYS[:-1])
def test_decoding_stops_as_soon_as_there_is_no_memory_for_the_next_piece(
    encoding: str, compress: Callable[[bytes], bytes]
) -> None:
    held = HeldBytes(10_000_000)
    with pytest.raises(GatewayFull):
        decode_request(compress(b" " * 60_000_000), encoding.lower(), 64_000_000, held.take)
    assert held.total <= 10_000_000


def test_packed_compaction_items_count_against_the_limit_of_all_requests() -> None:
    packed = PACKED + urlsafe_b64encode(zlib.compress(json.dumps([user(" " * 1_500_000)]).encode())).decode()
    body = {"model": "gpt-4o", "input": [{"type": "compaction", "encrypted_content": packed}, user("And?")]}
    options: dict[str, Any] = {"largest_body": 2_000_000, "largest_total": 1_000_000}
    with ScriptedProvider(then=openai_json("fine")) as provider, running(provider.url, **options) as gateway:
        assert gateway.post("/v1/responses", body)[0] == 503
        gateway.account()
        assert gateway.app.gateway.held.total == 0
    assert provider.requests == []


def test_a_body_of_countless_empty_gzip_members_is_refused_at_once() -> None:
    begun = time.perf_counter()
    with pytest.raises(TranscriptError):
        decode_request(gzip.compress(b"") * 500_000, "gzip", 2_000_000)
    assert time.perf_counter() - begun < 5
