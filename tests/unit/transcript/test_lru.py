"""The LRU cache shared by threads: bounded, correctly ordered, and thread-safe."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest
from msgspec import Raw

from midfold.lru import LRU
from midfold.transcript.message import Message
from midfold.transcript.openai_chat import OpenAIChat
from midfold.transcript.tokens import Meter

THREADS = 8


@pytest.fixture
def restless() -> Iterator[None]:
    """Make threads switch as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work: object) -> list[BaseException]:
    """Run the same work in several threads and return the exceptions."""
    wrong: list[BaseException] = []

    def one(number: int) -> None:
        try:
            work(number)  # type: ignore[operator]
        except BaseException as error:  # noqa: BLE001 - told to the test
            wrong.append(error)

    threads = [threading.Thread(target=one, args=(number,)) for number in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return wrong


def test_what_was_used_longest_ago_goes_first() -> None:
    memory: LRU[str, int] = LRU(3)
    for place, key in enumerate("abc"):
        memory.put(key, place)
    assert memory.get("a") == 0
    memory.put("b", 10)
    memory.put("d", 3)
    assert [memory.peek(key) for key in "abcd"] == [0, 10, None, 3]
    assert len(memory) == 3


def test_a_peek_is_no_use() -> None:
    memory: LRU[str, int] = LRU(2)
    memory.put("a", 1)
    memory.put("b", 2)
    assert memory.peek("a") == 1
    memory.put("c", 3)
    assert memory.get("a") is None
    assert memory.get("b") == 2


def test_bytes_are_bounded_whatever_replaces_what() -> None:
    memory: LRU[str, bytes] = LRU(100, most_bytes=10, size=len)
    memory.put("a", b"aaaa")
    memory.put("b", b"bbbb")
    assert memory.bytes == 8
    memory.put("a", b"a")
    assert memory.bytes == 5
    memory.put("c", b"cccccccc")
    assert memory.get("b") is None, "it was used longest ago"
    assert (memory.get("a"), memory.get("c"), memory.bytes) == (b"a", b"cccccccc", 9)
    memory.put("d", b"d" * 11)
    assert (len(memory), memory.bytes) == (0, 0), "larger than the whole memory"


def test_an_entry_is_forgotten_by_key_by_value_and_by_what_its_key_is_like() -> None:
    one, other = [1], [1]
    memory: LRU[tuple[str, int], list[int]] = LRU(9, most_bytes=90, size=len)
    memory.put(("a", 1), one)
    memory.forget(("a", 1), other)
    assert memory.get(("a", 1)) is one, "it has been replaced meanwhile"
    memory.forget(("a", 1), one)
    assert memory.get(("a", 1)) is None
    for number in range(4):
        memory.put(("ab"[number % 2], number), [number])
    memory.forget_where(lambda key: key[0] == "a")
    assert [memory.get(("ab"[number % 2], number)) for number in range(4)] == [None, [1], None, [3]]
    memory.forget(("nobody", 0))
    assert memory.bytes == 2


def test_a_value_is_made_once_even_if_it_is_none() -> None:
    made: list[str] = []
    memory: LRU[str, int | None] = LRU(2)
    assert [memory.get_or_make("a", lambda: made.append("a")) for _ in range(3)] == [None] * 3
    assert made == ["a"]


def test_threads_that_evict_at_once_lose_nothing(restless: None) -> None:
    memory: LRU[int, bytes] = LRU(20, most_bytes=300, size=len)

    def work(number: int) -> None:
        for place in range(2_000):
            key = place * THREADS + number
            assert memory.get_or_make(key, lambda key=key: b"%d" % key) == b"%d" % key  # type: ignore[misc]
            memory.get(key - 3)
            memory.forget(key - 5)

    assert in_threads(work) == []
    kept = [memory.peek(key) for key in range(2_000 * THREADS)]
    assert memory.bytes == sum(len(value) for value in kept if value is not None) <= 300
    assert sum(value is not None for value in kept) == len(memory) <= 20


def test_a_meter_counts_in_many_threads_while_it_forgets(restless: None) -> None:
    """Regression: two threads that evicted the same entry raised KeyError, and a request was sent unmanaged."""
    meter = Meter(remember=10)

    def work(number: int) -> None:
        for place in range(1_500):
            text = b"word " * (place % 7)
            message = Message.over(Raw(b'{"role":"user","content":"%d %s"}' % (place * number, text)), OpenAIChat.read)
            assert meter.units(message) > 0

    assert in_threads(work) == []
    assert len(meter._memo) == 10
