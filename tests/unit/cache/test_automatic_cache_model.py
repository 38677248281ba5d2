"""Models of OpenAI's caches, checked against OpenAI's documentation."""

from __future__ import annotations

from typing import Any

import pytest

from support.automatic_cache import AutomaticCache, BreakpointCache
from support.prefix_cache import Refused

POINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    return {"model": "gpt-4o", "messages": [{"role": "user", "content": text} for text in texts], **more}


def words(count: int, word: str = "word") -> str:
    """Return text of about so many tokens."""
    return (f"{word} " * count * 4)[: count * 4]


def test_prefixes_are_read_in_steps_from_the_minimum_on() -> None:
    cache = AutomaticCache()
    assert cache.bill(chat(words(1_500))).read == 0
    grown = cache.bill(chat(words(1_500), "more"))
    assert 1_024 <= grown.read <= 1_500
    assert (grown.read - 1_024) % 128 == 0
    assert cache.bill(chat(words(900))).read == cache.bill(chat(words(900))).read == 0
    assert grown.usage()["prompt_tokens_details"]["cached_tokens"] == grown.read
    assert grown.cost(read=0.5) == grown.prompt - grown.read / 2


def test_the_first_difference_ends_what_is_read() -> None:
    cache = AutomaticCache()
    cache.bill(chat(words(2_000), words(2_000)))
    assert cache.bill(chat(words(2_000), words(2_000, "other"))).read < 2_050
    assert cache.bill(chat(words(2_000, "other"), words(2_000))).read == 0
    assert cache.bill(chat(words(2_000), words(2_000)) | {"model": "gpt-5"}).read == 0


def test_unused_entries_are_gone_after_five_minutes_or_a_day() -> None:
    cache = AutomaticCache()
    cache.bill(chat(words(2_000)), at=0)
    assert cache.bill(chat(words(2_000)), at=290).read
    assert cache.bill(chat(words(2_000)), at=580).read, "use keeps it"
    assert not cache.bill(chat(words(2_000)), at=900).read
    long = chat(words(2_000), prompt_cache_retention="24h")
    cache.bill(long, at=1_000)
    assert cache.bill(long, at=80_000).read


def test_another_key_is_another_machine() -> None:
    cache = AutomaticCache()
    first = cache.bill(chat(words(2_000), prompt_cache_key="a"))
    same, other = (cache.bill(chat(words(2_000), prompt_cache_key=key)) for key in ("a", "b"))
    assert (same.machine, bool(same.read)) == (first.machine, True)
    assert other.machine != first.machine and not other.read


def test_more_than_fifteen_a_minute_spill_over() -> None:
    cache = AutomaticCache()
    reads = [bool(cache.bill(chat(words(2_000)), at=second).read) for second in range(17)]
    assert reads == [False, *[True] * 14, False, True]


def test_breakpoints_are_read_exactly_where_they_stand() -> None:
    cache = BreakpointCache()
    first = {"role": "user", "content": words(2_000)}
    answer = {"role": "assistant", "content": "Yes."}
    cache.bill({"model": "gpt-5.6", "messages": [first]})
    grown = [first, answer, {"role": "user", "content": "And?"}]
    assert cache.bill({"model": "gpt-5.6", "messages": grown}).read == 0, "only the end has a breakpoint"
    marked = {"role": "user", "content": [{"type": "text", "text": words(2_000), **POINT}]}
    hit = cache.bill({"model": "gpt-5.6", "messages": [marked, *grown[1:]]})
    assert hit.read >= 2_000 and hit.written == 0
    assert cache.bill({"model": "gpt-5.6", "messages": [marked, *grown[1:]]}, at=1_900).read == 0


def test_at_most_four_are_written() -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": words(1_100, f"w{n}"), **POINT}]} for n in range(6)]
    known = []
    for count in range(1, 7):
        cache = BreakpointCache()
        cache.bill({"model": "m", "messages": [*parts, {"role": "user", "content": "And?"}]})
        known.append(bool(cache.bill({"model": "m", "messages": parts[:count]}).read))
    assert known == [False, False, False, True, True, True], "three of the client's, and OpenAI's own at the end"


@pytest.mark.parametrize(
    "content",
    [
        [{"type": "text", "text": " ", **POINT}],
        [{"type": "image_url", "image_url": {"url": "u"}, **POINT}],
        [{"type": "text", "text": "x", "prompt_cache_breakpoint": {"type": "ephemeral"}}],
    ],
)
def test_breakpoints_where_none_may_stand_are_refused(content: Any) -> None:
    with pytest.raises(Refused):
        BreakpointCache().bill({"model": "m", "messages": [{"role": "user", "content": content}]})
    said = [{"type": "text", "text": "x", **POINT}]
    with pytest.raises(Refused):
        BreakpointCache().bill({"model": "m", "messages": [{"role": "assistant", "content": said}]})
    with pytest.raises(Refused):
        AutomaticCache().bill({"model": "m", "messages": [{"role": "user", "content": said}]})
