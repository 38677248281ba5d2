"""Model of a provider's cache, checked against provider documentation."""

from __future__ import annotations

from typing import Any

import pytest

from support.prefix_cache import PrefixCache, Refused

MARK = {"type": "ephemeral"}
LONG = "x" * 8_000


def body(*blocks: Any, **changed: Any) -> dict[str, Any]:
    return {"model": "m", "messages": [{"role": "user", "content": list(blocks)}], **changed}


def text(value: str, marker: Any = None) -> dict[str, Any]:
    return {"type": "text", "text": value, **({} if marker is None else {"cache_control": marker})}


def test_a_prefix_is_written_once_read_afterwards_and_refreshed_by_use() -> None:
    cache = PrefixCache(minimum=1024)
    first = cache.bill(body(text(LONG, MARK)), at=0)
    assert (first.read, first.uncached) == (0, 0)
    assert first.written_5m > 1_900
    for now in (200, 400, 600):
        assert cache.bill(body(text(LONG, MARK)), at=now).read == first.written_5m
    assert cache.bill(body(text(LONG, MARK)), at=901).read == 0


def test_the_long_lifetime_lasts_an_hour_and_is_billed_apart() -> None:
    cache = PrefixCache(minimum=1024)
    bill = cache.bill(body(text(LONG, {"type": "ephemeral", "ttl": "1h"}), text(LONG, MARK)), at=0)
    assert bill.written_1h and bill.written_5m
    later = cache.bill(body(text(LONG, MARK), text("other")), at=3_000)
    assert later.read == bill.written_1h
    assert bill.usage()["cache_creation"]["ephemeral_1h_input_tokens"] == bill.written_1h


def test_a_small_prefix_is_not_cached() -> None:
    cache = PrefixCache(minimum=1024)
    for _ in range(2):
        bill = cache.bill(body(text("small", MARK)))
        assert (bill.read, bill.written_5m) == (0, 0)
        assert bill.uncached > 0


def test_a_marker_looks_back_19_blocks() -> None:
    def grown(count: int) -> dict[str, Any]:
        return body(text(LONG), *(text(f"{n}") for n in range(count - 1)), text("end", MARK))

    for more, hits in ((19, True), (20, False)):
        cache = PrefixCache(minimum=1024)
        cache.bill(body(text(LONG, MARK)))
        assert bool(cache.bill(grown(more)).read) is hits


def test_model_tools_and_settings_are_part_of_the_prefix() -> None:
    cache = PrefixCache(minimum=1024)
    tools = [{"name": "a", "input_schema": {}, "description": LONG, "cache_control": MARK}]
    request = body(text(LONG, MARK), tools=tools)
    written = cache.bill(request).written_5m
    assert cache.bill(request).read == written
    assert cache.bill({**request, "model": "n"}).read == 0
    assert 0 < cache.bill({**request, "thinking": {"type": "enabled"}}).read < written
    assert cache.bill({**request, "tools": [{**tools[0], "name": "b"}]}).read == 0


@pytest.mark.parametrize(
    "request_body",
    [
        body(*(text(f"{n}", MARK) for n in range(5))),
        body(*(text(f"{n}", MARK) for n in range(4)), cache_control=MARK) | {"system": [text("s", MARK)]},
        body(text("", MARK)),
        body({"type": "thinking", "thinking": "t", "signature": "s", "cache_control": MARK}),
        body(text("a", MARK), text("b", {"type": "ephemeral", "ttl": "1h"})),
        body(text("a", {"type": "ephemeral", "ttl": "2h"})),
        {"messages": [{"role": "tool", "content": "42", "cache_control": MARK}]},
    ],
)
def test_what_the_provider_refuses_is_refused(request_body: dict[str, Any]) -> None:
    with pytest.raises(Refused):
        PrefixCache().bill(request_body)


def test_an_envelope_is_the_same_chain_as_the_native_request() -> None:
    cache = PrefixCache(minimum=1024)
    native = {"model": "m", "system": [text(LONG)], "messages": [{"role": "user", "content": [text("Go.", MARK)]}]}
    written = cache.bill(native).written_5m
    messages = [{"role": "system", "content": LONG}, {"role": "user", "content": [text("Go.", MARK)]}]
    assert cache.bill({"model": "m", "messages": messages}).read == written
