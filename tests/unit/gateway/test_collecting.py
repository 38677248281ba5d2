"""Full garbage collections are deferred while a large request is in memory."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator

import pytest

from midfold.gateway import garbage as collecting
from midfold.gateway.garbage import QUIET_BYTES, quiet_collections


class FullCollections:
    """Counter of full collections."""

    def __init__(self) -> None:
        self.count = 0

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        self.count += phase == "stop" and info["generation"] == 2


@pytest.fixture
def full() -> Iterator[FullCollections]:
    counted = FullCollections()
    gc.callbacks.append(counted)
    yield counted
    gc.callbacks.remove(counted)


@pytest.fixture(autouse=True)
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "CHECK_SECONDS", 0.01)


def allocate() -> list[list[int]]:
    """Return enough containers for many collections of the middle generation."""
    return [[number] for number in range(400_000)]


def wait_for(condition: Callable[[], bool]) -> bool:
    ends = time.monotonic() + 10
    while not condition() and time.monotonic() < ends:
        time.sleep(0.01)
    return condition()


def test_no_full_collection_while_a_large_request_is_in_memory(full: FullCollections) -> None:
    with quiet_collections(lambda: QUIET_BYTES + 1):
        kept = allocate()
        time.sleep(0.2)
        assert full.count == 0
    assert len(kept) == 400_000


def test_full_collection_once_requests_are_gone(full: FullCollections) -> None:
    held = QUIET_BYTES + 1
    with quiet_collections(lambda: held):
        kept = allocate()
        held = 0
        assert wait_for(lambda: full.count > 0)
    assert len(kept) == 400_000


def test_full_collection_is_not_put_off_for_ever(full: FullCollections, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collecting, "LONGEST_SECONDS", 0.1)
    with quiet_collections(lambda: QUIET_BYTES + 1):
        kept = allocate()
        assert wait_for(lambda: full.count > 0)
    assert len(kept) == 400_000


def test_rule_of_python_is_restored() -> None:
    before = gc.get_threshold()
    with pytest.raises(RuntimeError), quiet_collections(lambda: 0):
        raise RuntimeError
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0
