"""The part of the contract of stores that is about what is deleted, and only when asked."""

from __future__ import annotations

import threading
import uuid

import pytest

from midfold.errors import NotStored
from midfold.store.protocol import Store
from midfold.testing.store_base import CHAT, StoreBase, entries


class RemovalContract(StoreBase):
    def test_deleting_and_appending_the_same_bodies_at_once(self, store: Store, name: str) -> None:
        rounds, texts = 12, [f"shared {number} of {name}" for number in range(20)]
        failed: list[BaseException] = []

        def work(writer: int) -> None:
            try:
                for turn in range(rounds):
                    own = f"{name}-{writer}-{turn}"
                    store.append(own, entries(*texts), dialect=CHAT)
                    store.delete(own)
            except BaseException as error:  # noqa: BLE001 - shown in the test's own thread
                failed.append(error)

        threads = [threading.Thread(target=work, args=(writer,)) for writer in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(map(repr, failed)) == []
        assert store.find(texts[0]) == []

    def test_deleting_a_session_drops_what_only_it_refers_to(self, store: Store, name: str) -> None:
        mark = uuid.uuid4().hex
        self.begun(store, name, f"shared {mark}", f"alone {mark}", "x", "y")
        self.folded(store, name, summary=f"sum {mark}")
        self.begun(store, f"{name}-2", f"shared {mark}")
        assert len(store.find(mark)) == 3
        store.delete(name)
        assert store.info(name) is None
        assert [(hit.session, hit.message.text) for hit in store.find(mark)] == [(f"{name}-2", f"shared {mark}")]
        with pytest.raises(NotStored):
            store.delete(name)
        self.begun(store, name, f"alone {mark}")
        assert len(store.find(f"alone {mark}")) == 1
        store.delete(name)
        store.delete(f"{name}-2")
        assert store.find(mark) == []

    def test_pruning_deletes_what_was_not_used_for_long_by_the_clock_of_the_database(
        self, store: Store, name: str
    ) -> None:
        for age in ("older", "old"):
            self.begun(store, f"{name}-{age}", age)
        self.pass_time(2.2)
        self.begun(store, f"{name}-new", "new")
        mine = [f"{name}-older", f"{name}-old"]
        assert [found for found in store.prune(2_000, dry_run=True) if found.startswith(name)] == mine
        assert all(store.info(left) is not None for left in mine)
        store.append(f"{name}-old", entries("used again"), dialect=CHAT)
        assert [found for found in store.prune(2_000) if found.startswith(name)] == mine[:1]
        assert store.info(mine[0]) is None
        assert store.info(mine[1]) is not None and store.info(f"{name}-new") is not None
