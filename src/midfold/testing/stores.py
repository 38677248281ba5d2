"""The contract every store keeps, as a suite.

from midfold.testing.stores import StoreContract

class TestMine(StoreContract):
    @pytest.fixture
    def connect(self, tmp_path):
        return lambda: MyStore(tmp_path)      # another handle to the same data, each time it is called

Needs pytest. What may be expected of a store is in `midfold.store.protocol`.
"""

from __future__ import annotations

import threading
from typing import Any

import pytest
from msgspec import Raw

from midfold.errors import LeaseLost, NotStored, StoreConflict, StoreError
from midfold.fold.archive import handle_of
from midfold.store.bodies import digest_of
from midfold.store.leases import Lease
from midfold.store.protocol import Store
from midfold.testing.store_base import CHAT, bytes_of, entries, raw
from midfold.testing.store_hidden_turns import HiddenTurnsContract
from midfold.testing.store_prefixes import PrefixContract
from midfold.testing.store_prompts import PromptContract
from midfold.testing.store_removal import RemovalContract
from midfold.transcript.message import Message
from midfold.transcript.openai_chat import OpenAIChat


class StoreContract(HiddenTurnsContract, PrefixContract, PromptContract, RemovalContract):
    """Subclass this in a test module and give it a fixture `connect`."""

    # Messages

    def test_messages_come_back_byte_for_byte_in_their_order(self, store: Store, name: str) -> None:
        odd = [b'{"role":"user","content":"\\ud800"}', b'{"role":"tool" , "content":NaN}', b"not json \xff\x00"]
        datas = [raw("häppchen 你好"), raw("yes"), *odd, raw("x" * 100_000)]
        positions = store.append(name, entries(*datas), dialect=CHAT).positions
        assert positions == range(6)
        assert [bytes(row.message.wire) for row in store.history(name)] == datas
        assert bytes_of(store.view(self.info(store, name))) == datas

    def test_two_equal_messages_stay_two(self, store: Store, name: str) -> None:
        self.begun(store, name, "yes", "yes")
        store.append(name, entries("yes"), dialect=CHAT)
        assert [row.position for row in store.history(name)] == [0, 1, 2]

    def test_a_key_makes_an_append_happen_once(self, store: Store, name: str) -> None:
        first = store.append(name, entries("a", "b"), dialect=CHAT, key="k")
        again = store.append(name, entries("a", "b"), dialect=CHAT, key="k")
        assert (first.positions, first.repeated) == (range(2), False)
        assert (again.positions, again.repeated) == (range(2), True)
        with pytest.raises(StoreConflict):
            store.append(name, entries("a", "c"), dialect=CHAT, key="k")
        assert self.info(store, name).count == 2

    def test_what_was_acknowledged_is_there_for_others(self, store: Store, other: Store, name: str) -> None:
        self.begun(store, name, "a", "b")
        assert [bytes(row.message.wire) for row in other.history(name)] == [raw("a"), raw("b")]

    def test_reading_a_part_of_the_history(self, store: Store, name: str) -> None:
        self.begun(store, name, *(f"m{number}" for number in range(1_203)))
        assert [row.position for row in store.history(name, 1_000, 1_100)] == list(range(1_000, 1_100))
        assert sum(1 for _ in store.history(name, 100)) == 1_103

    def test_names_that_are_none_are_refused(self, store: Store) -> None:
        for bad in ("", "x" * 201, "a\nb"):
            with pytest.raises(StoreError):
                store.append(bad, entries("a"), dialect=CHAT)

    def test_appends_of_many_threads_are_all_there_once(self, store: Store, name: str) -> None:
        def work(number: int) -> None:
            for turn in range(10):
                store.append(name, entries(f"{number}/{turn}", f"{number}/{turn} too"), dialect=CHAT)

        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        texts = [row.message.text for row in store.history(name)]
        assert sorted(texts) == sorted(
            f"{number}/{turn}{end}" for number in range(4) for turn in range(10) for end in ("", " too")
        )
        assert all(after == f"{before} too" for before, after in zip(texts[::2], texts[1::2], strict=True))

    # Whole histories

    def test_a_history_that_is_there_adds_only_what_is_new(self, store: Store, name: str) -> None:
        assert store.sync(name, entries("a", "b"), dialect=CHAT) == (name, 0, 2, False, 0)
        assert store.sync(name, entries("a", "b"), dialect=CHAT) == (name, 2, 0, False, 0)
        assert store.sync(name, entries("a", "b", "c"), dialect=CHAT) == (name, 2, 1, False, 0)
        assert store.sync(name, entries("a"), dialect=CHAT) == (name, 1, 0, False, 2)
        assert store.sync(name, [], dialect=CHAT) == (name, 0, 0, False, 3)

    def test_a_changed_history_becomes_a_branch_once(self, store: Store, name: str) -> None:
        self.begun(store, name, "a", "b", "c")
        before = list(store.history(name))
        branched = store.sync(name, entries("a", "B", "c"), dialect=CHAT)
        assert (branched.common, branched.added, branched.branched) == (1, 2, True)
        again = store.sync(name, entries("a", "B", "c", "d"), dialect=CHAT)
        assert again == (branched.session, 3, 1, True, 0)
        assert [row.message for row in store.history(name)] == [row.message for row in before]
        info = self.info(store, branched.session)
        assert (info.kind, info.parent, info.forked, info.count) == ("branch", name, 1, 4)
        third = store.sync(branched.session, entries("a", "B", "x"), dialect=CHAT)
        assert third.branched and third.session not in (name, branched.session) and third.common == 2

    def test_a_client_that_keeps_the_view_is_understood(self, store: Store, name: str) -> None:
        self.begun(store, name, *"abcdef")
        self.folded(store, name, keep=2)
        seen = bytes_of(store.view(self.info(store, name)))
        done = store.sync(name, entries(*seen, "g"), dialect=CHAT)
        assert (done.session, done.added, done.branched) == (name, 1, False)
        assert self.info(store, name).count == 7
        branch = store.sync(name, entries(*seen, "G"), dialect=CHAT)
        assert branch.branched
        assert bytes_of(store.view(self.info(store, branch.session))) == [*seen, raw("G")]

    # Compactions

    def test_a_compaction_is_one_more_row(self, store: Store, name: str) -> None:
        self.begun(store, name, *"abcdef")
        self.folded(store, name, keep=2)
        info = self.info(store, name)
        view = store.view(info)
        assert [item.message.text for item in view] == ["in short", "e", "f"]
        assert [item.position for item in view] == [None, 4, 5]
        assert [bytes(row.message.wire) for row in store.history(name)] == [raw(letter) for letter in "abcdef"]
        (record,) = store.records(name)
        assert (record.seq, record.base, record.upto, record.state.summary) == (1, 0, 6, "in short")
        assert record.receipt.status == "compacted"

    def test_what_is_appended_meanwhile_stands_behind_it(self, store: Store, name: str) -> None:
        self.begun(store, name, *"abcd")
        commit, lease = self.fold(store, name), self.lease(store, name)
        store.append(name, entries("e"), dialect=CHAT)
        store.commit(name, lease, commit)
        assert [item.message.text for item in store.view(self.info(store, name))] == ["in short", "d", "e"]

    def test_a_compaction_of_a_view_that_is_gone_is_refused(self, store: Store, name: str) -> None:
        self.begun(store, name, *"abcd")
        late = self.fold(store, name)
        self.folded(store, name)
        with pytest.raises(StoreConflict):
            store.commit(name, self.lease(store, name), late)
        assert len(store.records(name)) == 1

    def test_undo_and_the_views_before(self, store: Store, name: str) -> None:
        self.begun(store, name, *"abcd")
        self.folded(store, name, summary="one")
        store.append(name, entries("e", "f"), dialect=CHAT)
        self.folded(store, name, summary="two")

        def texts(at: int | None = None) -> list[str]:
            return [item.message.text for item in store.view(self.info(store, name), at)]

        assert (texts(), texts(1), texts(2), texts(0)) == (["two", "f"], ["one", "d"], ["two", "f"], list("abcdef"))
        undone = store.undo(name)
        assert (undone.seq, texts()) == (2, ["one", "d", "e", "f"])
        assert b'"summary":"one"' in self.info(store, name).memory
        store.undo(name)
        assert texts() == list("abcdef")
        with pytest.raises(NotStored):
            store.undo(name)
        assert [record.undone is not None for record in store.records(name)] == [True, True]
        with pytest.raises(NotStored):
            store.view(self.info(store, name), 9)

    def test_a_continuation_begins_with_the_view(self, store: Store, name: str) -> None:
        self.begun(store, name, *"abcd")
        commit, lease = self.fold(store, name, child=f"{name}+1"), self.lease(store, name)
        store.append(name, entries("e"), dialect=CHAT)
        store.commit(name, lease, commit)
        child = self.info(store, f"{name}+1")
        assert (child.kind, child.parent) == ("continuation", name)
        assert [item.message.text for item in store.view(child)] == ["in short", "d", "e"]
        assert self.info(store, name).ended is not None
        with pytest.raises(StoreConflict):
            store.append(name, entries("late"), dialect=CHAT)
        assert [bytes(message.wire) for message in store.unfold(child.name, commit.receipt.fold)] == [
            raw(letter) for letter in "abc"
        ]

    def test_a_continuation_that_fails_changes_nothing(self, store: Store, name: str) -> None:
        self.begun(store, name, *"abcd")
        self.begun(store, f"{name}+1", "taken")
        with pytest.raises(StoreConflict):
            store.commit(name, self.lease(store, name), self.fold(store, name, child=f"{name}+1"))
        info = self.info(store, name)
        assert (info.ended, info.compaction, store.records(name)) == (None, 0, [])

    # Leases

    def test_one_holder_at_a_time(self, store: Store, other: Store, name: str) -> None:
        lease = self.lease(store, name)
        assert other.leases.try_acquire(name) is None
        assert self.lease(other, f"{name}-2").fence == 1
        store.leases.release(lease)
        assert self.lease(other, name).fence == lease.fence + 1

    def test_a_crashed_holder_blocks_no_longer_than_its_lease_lives(self, store: Store, name: str) -> None:
        self.begun(store, name, *"abcd")
        lost = self.lease(store, name)
        self.pass_time(self.ttl + 0.1)
        taken = self.lease(store, name)
        assert taken.fence == lost.fence + 1
        assert not store.leases.refresh(lost)
        with pytest.raises(LeaseLost):
            store.commit(name, lost, self.fold(store, name))
        store.leases.release(lost)
        store.commit(name, taken, self.fold(store, name))
        assert len(store.records(name)) == 1

    def test_a_late_holder_cannot_commit_even_if_nobody_took_over(self, store: Store, name: str) -> None:
        self.begun(store, name, *"abcd")
        lease = self.lease(store, name)
        self.pass_time(self.ttl + 0.1)
        with pytest.raises(LeaseLost):
            store.commit(name, lease, self.fold(store, name))
        assert store.records(name) == []

    def test_a_lease_that_is_renewed_lives_on(self, store: Store, name: str) -> None:
        lease = self.lease(store, name)
        for _ in range(3):
            self.pass_time(self.ttl / 2)
            assert store.leases.refresh(lease)
        assert store.leases.try_acquire(name) is None

    def test_many_want_one_lease(self, store: Store, name: str) -> None:
        got: list[Lease | None] = []
        threads = [threading.Thread(target=lambda: got.append(store.leases.try_acquire(name))) for _ in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len([lease for lease in got if lease is not None]) == 1

    # Originals

    def test_handles_unfold_to_the_original_bytes_and_belong_to_their_session(
        self, store: Store, other: Store, name: str
    ) -> None:
        self.begun(store, name, *"abcdef")
        self.begun(store, f"{name}-2", "g")
        first = self.folded(store, name, keep=3)
        second = self.folded(store, name, keep=1, summary="shorter")
        assert [bytes(message.wire) for message in other.unfold(name, first)] == [raw(letter) for letter in "abc"]
        assert [message.text for message in other.unfold(name, second)] == ["in short", "d", "e"]
        assert other.unfold(name, first[:9]) == other.unfold(name, first)
        single = handle_of(Message.over(Raw(raw("f")), OpenAIChat.read))
        assert [bytes(message.wire) for message in other.unfold(name, single)] == [raw("f")]
        for stranger, handle in ((f"{name}-2", first), (f"{name}-2", single), (name, "mf-000000000000")):
            with pytest.raises(NotStored):
                other.unfold(stranger, handle)

    def test_words_paths_identifiers_and_scripts_are_found(self, store: Store, name: str) -> None:
        texts = [
            "the parser lives in src/midfold/core/words.py since May",
            "call parse_http_header or parseHttpHeader from httpx._models",
            "我们昨天发布了新版本，性能提升很大",
            "ERROR E1234: connection reset by peer at 10.0.0.17:5432",
            "日本語のテキストも検索できます",
            "an unrelated sentence about gardening",
        ]
        self.begun(store, name, *texts)
        self.folded(store, name)

        def found(query: str) -> list[int]:
            return sorted(hit.position for hit in store.find(query, name=name))

        assert found("src/midfold/core/words.py") == [0]
        assert found("words.py") == [0]
        assert found("parse_http_header") == found("parseHttpHeader") == found("HTTP header") == [1]
        assert found("httpx._models") == [1]
        assert found("版本") == found("版") == found("发布") == [2]
        assert found("テキスト") == [4]
        assert found("E1234") == found("10.0.0.17") == [3]
        assert found("garden*") == [5] and found("garden") == []
        assert found("parser gardening") == []
        some = [hit.position for hit in store.find("parser gardening zebra", name=name, every=False)]
        assert some == [5, 0]
        assert found("") == found("!!!") == []

    def test_filters(self, store: Store, name: str) -> None:
        datas = [raw("apple", "user"), raw("apple pie", "assistant"), raw("apple tart", "user")]
        at = [1_000, 2_000, 3_000]
        given = entries(*datas)
        for entry, time_ in zip(given, at, strict=True):
            entry.at = time_
        store.append(name, given, dialect=CHAT)

        def found(**more: Any) -> list[int]:
            return [hit.position for hit in store.find("apple", name=name, **more)]

        assert found() == [2, 1, 0]
        assert found(role="assistant") == [1]
        assert found(since=2_000) == [2, 1]
        assert found(until=2_000) == [0]
        assert found(most=1) == [2]

    def test_a_large_message_is_found_by_any_of_its_words(self, store: Store, name: str) -> None:
        words = [f"word{number}x{digest_of(str(number).encode()).hex()}" for number in range(30_000)]
        self.begun(store, name, " ".join(words))
        for query in (words[0], words[-1], f"{words[3]} {words[29_990]}"):
            assert [hit.position for hit in store.find(query, name=name)] == [0]
