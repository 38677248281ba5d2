"""What the contract of stores is tested with: messages with odd bytes, folds without an engine, two handles."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import Raw

from midfold.fold.archive import PREFIX, fold_id
from midfold.fold.receipt import Receipt
from midfold.fold.request import CompactionState
from midfold.store.bodies import NewMessage
from midfold.store.leases import Lease
from midfold.store.protocol import Commit, Item, SessionInfo, Store
from midfold.testing.doubles import FakeClock
from midfold.transcript.message import Message, Text
from midfold.transcript.openai_chat import OpenAIChat

CHAT = "openai-chat"
RECEIPT = Receipt(
    status="compacted",
    reason="a test",
    old_messages=6,
    new_messages=3,
    old_tokens=60,
    new_tokens=30,
    token_basis="estimated",
    estimated_prompt_tokens=60,
    threshold_tokens=50,
    effective_input_window=100,
    context_length=100,
    window_source="given",
    landing_tokens=25,
    fixed_tokens=0,
    compaction_count=1,
)


def raw(text: str, role: str = "user") -> bytes:
    """A message whose bytes no JSON writer would make: spaces, and a number Python would change."""
    content = msgspec.json.encode(text).decode()
    return f'{{ "role" : "{role}",  "content":{content}, "x": 1e-7}}'.encode()


def entries(*texts: str | bytes) -> list[NewMessage]:
    datas = [text if isinstance(text, bytes) else raw(text) for text in texts]
    return [NewMessage(Message.over(Raw(data), OpenAIChat.read), OpenAIChat) for data in datas]


def bytes_of(items: Sequence[Item]) -> list[bytes]:
    return [bytes(item.message.wire) for item in items]


class StoreBase:
    """Fixtures and shortcuts; the tests are in `midfold.testing.stores`."""

    clock: ClassVar[FakeClock | None] = None
    """The store's clock, if tests can move it; else they wait."""
    ttl: ClassVar[float] = 0.5
    """How long leases of the store under test live."""

    @pytest.fixture
    def connect(self) -> Callable[[], Store]:
        raise AssertionError("give the test class a fixture `connect`")

    @pytest.fixture
    def store(self, connect: Callable[[], Store]) -> Any:
        opened = connect()
        yield opened
        assert list(opened.check(deep=True)) == []
        opened.close()

    @pytest.fixture
    def other(self, connect: Callable[[], Store]) -> Any:
        """Another process's handle, so to speak."""
        opened = connect()
        yield opened
        opened.close()

    @pytest.fixture
    def name(self) -> str:
        return f"s-{uuid.uuid4().hex[:12]}"

    def pass_time(self, seconds: float) -> None:
        if self.clock is not None:
            self.clock.advance(seconds)
        else:
            time.sleep(seconds)

    def begun(self, store: Store, name: str, *texts: str | bytes) -> SessionInfo:
        store.append(name, entries(*texts), dialect=CHAT)
        return self.info(store, name)

    def info(self, store: Store, name: str) -> SessionInfo:
        found = store.info(name)
        assert found is not None
        return found

    def lease(self, store: Store, name: str) -> Lease:
        lease = store.leases.try_acquire(name)
        assert lease is not None
        return lease

    def fold(self, store: Store, name: str, keep: int = 1, summary: str = "in short", **more: Any) -> Commit:
        """A compaction of everything but the last `keep` messages of the view."""
        info = self.info(store, name)
        view = store.view(info)
        folded, kept = view[: len(view) - keep], view[len(view) - keep :]
        handoff = Item(Message("user", (Text(summary),)))
        handle = PREFIX + fold_id(tuple(item.message for item in folded))
        return Commit(
            base=info.compaction,
            upto=info.count,
            view=(handoff, *kept),
            handles={handle: folded},
            receipt=msgspec.structs.replace(RECEIPT, fold=handle),
            state=CompactionState(count=info.compactions + 1, summary=summary),
            memory=b"{}",
            **more,
        )

    def folded(self, store: Store, name: str, **how: Any) -> str:
        """Compacts, and gives the handle of the fold."""
        commit = self.fold(store, name, **how)
        lease = self.lease(store, name)
        store.commit(name, lease, commit)
        store.leases.release(lease)
        return commit.receipt.fold
