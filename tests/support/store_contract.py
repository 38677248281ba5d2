"""Test suite for the contract of a store.

from tests.support.store_contract import StoreContract

class TestMine(StoreContract):
    @pytest.fixture
    def connect(self, tmp_path):
        return lambda: MyStore(tmp_path)      # another handle to the same data, each time it is called

Requires pytest. The contract is documented in `midfold.store.protocol`.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec import Raw

from midfold.compaction.archive import PREFIX, fold_id, handle_of
from midfold.compaction.receipt import Receipt
from midfold.compaction.request import CompactionState
from midfold.errors import LeaseLost, NotStored, StoreConflict, StoreError
from midfold.recall.words import parse_query
from midfold.store.bodies import NewMessage, digest_of
from midfold.store.gateway_turns import USE_RECORDED_EVERY_MS, HiddenTurnKey
from midfold.store.leases import Lease
from midfold.store.protocol import Commit, Item, Prompt, SessionInfo, Store
from midfold.testing.doubles import FakeClock, at_once
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
    """Return a message with bytes no JSON writer would produce: extra spaces, and a number Python would change."""
    content = msgspec.json.encode(text).decode()
    return f'{{ "role" : "{role}",  "content":{content}, "x": 1e-7}}'.encode()


def entries(*texts: str | bytes) -> list[NewMessage]:
    datas = [text if isinstance(text, bytes) else raw(text) for text in texts]
    return [NewMessage(Message.over(Raw(data), OpenAIChat.read), OpenAIChat) for data in datas]


def bytes_of(items: Sequence[Item]) -> list[bytes]:
    return [bytes(item.message.wire) for item in items]


def positions(store: Store, query: str, name: str, **more: Any) -> list[int]:
    found = [set(one.get(name, ())) for one in store.find(parse_query(query).terms, of=name, **more)]
    return sorted(set.intersection(*found)) if found else []


class StoreBase:
    """Fixtures and shortcuts: folds without an engine, two handles on one store."""

    clock: ClassVar[FakeClock | None] = None
    """Clock of the store, if tests can move it; otherwise they wait."""
    ttl: ClassVar[float] = 0.5
    """Lifetime of leases in the store under test."""

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
        """Return a second handle, as another process would have."""
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

    def begin(self, store: Store, name: str, *texts: str | bytes) -> SessionInfo:
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
        """Return a compaction of all but the last `keep` messages of the view."""
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

    def compact(self, store: Store, name: str, **how: Any) -> str:
        """Compact and return the handle of the fold."""
        commit = self.fold(store, name, **how)
        lease = self.lease(store, name)
        store.commit(name, lease, commit)
        store.leases.release(lease)
        return commit.receipt.fold


RECORD = b'{"messages": [1e-7, "\xc3\xa9"]}' * 100


FIRST = Prompt(b'"Be brief."', b'[{"name": "sh",  "x": 1e-7}]')
SECOND = Prompt(b'[{"type":"text","text":"Be kind."}]', FIRST.tools)


class StoreContract(StoreBase):
    """Contract suite; subclass it in a test module and define the fixture `connect`."""

    # Messages

    def test_messages_come_back_byte_for_byte_in_their_order(self, store: Store, name: str) -> None:
        odd = [b'{"role":"user","content":"\\ud800"}', b'{"role":"tool" , "content":NaN}', b"not json \xff\x00"]
        datas = [raw("häppchen 你好"), raw("yes"), *odd, raw("x" * 100_000)]
        positions = store.append(name, entries(*datas), dialect=CHAT).positions
        assert positions == range(6)
        assert [bytes(row.message.wire) for row in store.history(name)] == datas
        assert bytes_of(store.view(self.info(store, name))) == datas

    def test_two_equal_messages_stay_two(self, store: Store, name: str) -> None:
        self.begin(store, name, "yes", "yes")
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
        self.begin(store, name, "a", "b")
        assert [bytes(row.message.wire) for row in other.history(name)] == [raw("a"), raw("b")]

    def test_reading_a_part_of_the_history(self, store: Store, name: str) -> None:
        self.begin(store, name, *(f"m{number}" for number in range(1_203)))
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

        at_once(work, 4)
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
        self.begin(store, name, "a", "b", "c")
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
        self.begin(store, name, *"abcdef")
        self.compact(store, name, keep=2)
        seen = bytes_of(store.view(self.info(store, name)))
        done = store.sync(name, entries(*seen, "g"), dialect=CHAT)
        assert (done.session, done.added, done.branched) == (name, 1, False)
        assert self.info(store, name).count == 7
        branch = store.sync(name, entries(*seen, "G"), dialect=CHAT)
        assert branch.branched
        assert bytes_of(store.view(self.info(store, branch.session))) == [*seen, raw("G")]

    # Compactions

    def test_a_compaction_is_one_more_row(self, store: Store, name: str) -> None:
        self.begin(store, name, *"abcdef")
        self.compact(store, name, keep=2)
        info = self.info(store, name)
        view = store.view(info)
        assert [item.message.text for item in view] == ["in short", "e", "f"]
        assert [item.position for item in view] == [None, 4, 5]
        assert [bytes(row.message.wire) for row in store.history(name)] == [raw(letter) for letter in "abcdef"]
        (record,) = store.records(name)
        assert (record.seq, record.base, record.upto, record.state.summary) == (1, 0, 6, "in short")
        assert record.receipt.status == "compacted"

    def test_what_is_appended_meanwhile_stands_behind_it(self, store: Store, name: str) -> None:
        self.begin(store, name, *"abcd")
        commit, lease = self.fold(store, name), self.lease(store, name)
        store.append(name, entries("e"), dialect=CHAT)
        store.commit(name, lease, commit)
        assert [item.message.text for item in store.view(self.info(store, name))] == ["in short", "d", "e"]

    def test_a_compaction_of_a_view_that_is_gone_is_refused(self, store: Store, name: str) -> None:
        self.begin(store, name, *"abcd")
        late = self.fold(store, name)
        self.compact(store, name)
        with pytest.raises(StoreConflict):
            store.commit(name, self.lease(store, name), late)
        assert len(store.records(name)) == 1

    def test_undo_and_the_views_before(self, store: Store, name: str) -> None:
        self.begin(store, name, *"abcd")
        self.compact(store, name, summary="one")
        store.append(name, entries("e", "f"), dialect=CHAT)
        self.compact(store, name, summary="two")

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
        self.begin(store, name, *"abcd")
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
        self.begin(store, name, *"abcd")
        self.begin(store, f"{name}+1", "taken")
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
        self.begin(store, name, *"abcd")
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
        self.begin(store, name, *"abcd")
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
        at_once(lambda _: got.append(store.leases.try_acquire(name)), 6)
        assert len([lease for lease in got if lease is not None]) == 1

    # Originals

    def test_handles_unfold_to_the_original_bytes_and_belong_to_their_session(
        self, store: Store, other: Store, name: str
    ) -> None:
        self.begin(store, name, *"abcdef")
        self.begin(store, f"{name}-2", "g")
        first = self.compact(store, name, keep=3)
        second = self.compact(store, name, keep=1, summary="shorter")
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
        self.begin(store, name, *texts)
        self.compact(store, name)

        def places(query: str) -> list[int]:
            return positions(store, query, name)

        assert places("src/midfold/core/words.py") == places("words.py") == [0]
        assert places("parse_http_header") == places("parseHttpHeader") == places("HTTP header") == [1]
        assert places("httpx._models") == [1]
        assert places("版本") == places("版") == places("发布") == [2]
        assert places("テキスト") == [4]
        assert places("E1234") == places("10.0.0.17") == [3]
        assert places("garden*") == places("garden") == [5]
        assert places("parser gardening") == []
        assert store.find(parse_query("parser zebra").terms, of=name) == [{name: [0, 1]}, {}]
        assert places("") == places("!!!") == []

    def test_filters(self, store: Store, name: str) -> None:
        datas = [raw("apple", "user"), raw("apple pie", "assistant"), raw("apple tart", "user")]
        at = [1_000, 2_000, 3_000]
        given = entries(*datas)
        for entry, time_ in zip(given, at, strict=True):
            entry.at = time_
        store.append(name, given, dialect=CHAT)

        def places(**more: Any) -> list[int]:
            return positions(store, "apple", name, **more)

        assert places() == [0, 1, 2] and places(role="assistant") == [1]
        assert places(since=2_000) == [1, 2]
        assert places(until=2_000) == places(stop=1) == [0]

    def test_a_large_message_is_found_by_any_of_its_words(self, store: Store, name: str) -> None:
        words = [f"word{number}x{digest_of(str(number).encode()).hex()}" for number in range(30_000)]
        self.begin(store, name, " ".join(words))
        for query in (words[0], words[-1], f"{words[3]} {words[29_990]}"):
            assert positions(store, query, name) == [0]

    # Turns that a gateway hides from its clients

    def test_hidden_turns_are_found_by_their_place_and_chain_together(
        self, store: Store, other: Store, name: str
    ) -> None:
        store.hidden_turns.keep(name, "aa", RECORD, session="s")
        store.hidden_turns.keep(name, "bb", b"2", session="s")
        store.hidden_turns.keep(f"{name}-2", "aa", b"3", session="s")
        found = other.hidden_turns.find(name, ["cc", "aa"])
        assert found == [HiddenTurnKey("aa", digest_of(RECORD))]
        assert other.hidden_turns.read(name, ["cc", "aa"]) == {found[0]: RECORD}
        assert sorted(one.chain for one in other.hidden_turns.find(name, ["bb", "aa"])) == ["aa", "bb"]
        assert other.hidden_turns.find(name, ["a", "aaa", ""]) == []
        assert other.hidden_turns.find(f"{name}-3", ["aa"]) == []
        assert other.hidden_turns.find(name, []) == []

    def test_a_later_record_takes_the_place_of_an_earlier_one(self, store: Store, name: str) -> None:
        for data in (b"1", b"2"):
            store.hidden_turns.keep(name, "aa", data, session="s")
        assert list(store.hidden_turns.read(name, ["aa"]).values()) == [b"2"]

    def test_hidden_turns_go_with_their_session_and_are_no_session(self, store: Store, name: str) -> None:
        self.begin(store, name, "a")
        store.hidden_turns.keep(name, "aa", b"1", session=name)
        store.hidden_turns.keep(name, "bb", b"2", session=f"{name}-2")
        assert [info.name for info in store.sessions(1 << 31) if info.name.startswith(name)] == [name]
        store.delete(name)
        assert [one.chain for one in store.hidden_turns.find(name, ["aa", "bb"])] == ["bb"]

    def test_hidden_turns_that_nobody_used_for_long_are_pruned(self, store: Store, name: str) -> None:
        for chain in ("old", "used"):
            store.hidden_turns.keep(name, chain, chain.encode(), session="s")
        if self.clock is None:
            self.pass_time(1.2)
            store.hidden_turns.keep(name, "used", b"again", session="s")
            age = 1_000
        else:
            self.pass_time(USE_RECORDED_EVERY_MS / 1000 + 1)
            store.hidden_turns.find(name, ["used"])
            self.pass_time(2)
            age = USE_RECORDED_EVERY_MS
        store.prune(age, dry_run=True)
        assert len(store.hidden_turns.find(f"{name}-2", ["old", "used"])) == 0
        store.prune(age)
        assert list(store.hidden_turns.read(name, ["old", "used"]).keys()) == [
            HiddenTurnKey("used", digest_of(b"again" if self.clock is None else b"used"))
        ]

    # Finding the session of a history

    def test_a_history_finds_its_session_wherever_it_ends(self, store: Store, name: str) -> None:
        said = [f"{number} of {name}" for number in range(60)]
        self.begin(store, name, *said)
        self.begin(store, f"{name}-2", *said[:7], f"otherwise {name}")
        for shared in (1, 2, 7, 31, 59, 60):
            for new in (0, 1, 2, 5, 40):
                asked = entries(*said[:shared], *(f"new {place} after {shared}" for place in range(new)))
                found = store.find_prefix(asked, under=name)
                assert found is not None
                assert (found.shared, found.session == name) == (shared, shared > 7 or found.length == 60)
        whole = store.find_prefix(entries(*said, "next"))
        assert whole == (name, 60, 60) and whole.whole
        assert store.find_prefix(entries(*said[:59], "changed")) == (name, 59, 60)

    def test_the_same_words_elsewhere_are_another_history(self, store: Store, name: str) -> None:
        self.begin(store, name, f"a {name}", f"b {name}", f"c {name}")
        assert store.find_prefix(entries(f"b {name}")) is None
        assert store.find_prefix(entries(f"x {name}", f"b {name}", f"c {name}")) is None
        assert store.find_prefix([]) is None
        shared = entries(f"a {name}", f"b {name}", "other")
        assert store.find_prefix(shared, least=3) is None
        found = store.find_prefix(shared, least=2)
        assert found == (name, 2, 3) and not found.whole

    def test_among_equals_the_one_that_ends_there_and_is_alive(self, store: Store, name: str) -> None:
        self.begin(store, name, f"a {name}", "b", "c")
        branch = store.sync(name, entries(f"a {name}", "b", "C"), dialect=CHAT).session
        self.begin(store, f"{name}-short", f"a {name}", "b")
        assert store.find_prefix(entries(f"a {name}", "b", "new")) == (f"{name}-short", 2, 2)
        assert store.find_prefix(entries(f"a {name}", "b", "C", "new")) == (branch, 3, 3)
        self.begin(store, f"{name}-again", f"a {name}", "b", "c")
        store.commit(f"{name}-again", self.lease(store, f"{name}-again"), self.fold(store, f"{name}-again", child="k"))
        found = store.find_prefix(entries(f"a {name}", "b", "c"))
        assert found is not None and found.session == name

    def test_names_may_limit_the_search(self, store: Store, name: str) -> None:
        for owner in ("alice", "bob"):
            self.begin(store, f"{owner}/{name}", f"a {name}", *(["b"] if owner == "bob" else []))
        asked = entries(f"a {name}", "b")
        assert store.find_prefix(asked, under="alice/") == (f"alice/{name}", 1, 1)
        assert store.find_prefix(asked, under="bob/") == (f"bob/{name}", 2, 2)
        assert store.find_prefix(asked, under="%/") is None
        assert store.find_prefix(asked) == (f"bob/{name}", 2, 2)

    # System prompt and tools

    def test_what_stands_beside_the_messages_is_kept_byte_for_byte(self, store: Store, other: Store, name: str) -> None:
        store.append(name, entries("a"), dialect=CHAT, prompt=FIRST)
        store.append(name, entries("b"), dialect=CHAT)
        assert other.prompt(self.info(other, name)) == FIRST
        store.sync(name, entries("a", "b"), dialect=CHAT, prompt=FIRST)
        store.sync(name, entries("a", "b"), dialect=CHAT, prompt=SECOND)
        assert other.prompt(self.info(other, name)) == SECOND
        store.append(name, entries("c"), dialect=CHAT, prompt=Prompt())
        assert other.prompt(self.info(other, name)) == Prompt()
        store.append(name, entries("d"), dialect=CHAT, prompt=FIRST)
        assert other.prompt(self.info(other, name)) == FIRST

    def test_branches_and_continuations_begin_with_it(self, store: Store, name: str) -> None:
        store.append(name, entries(*"ab"), dialect=CHAT, prompt=FIRST)
        store.append(name, entries(*"cd"), dialect=CHAT, prompt=SECOND)
        branch = store.sync(name, entries(*"ab", "C"), dialect=CHAT).session
        assert store.prompt(self.info(store, branch)) == FIRST
        store.commit(name, self.lease(store, name), self.fold(store, name, child=f"{name}+1"))
        assert store.prompt(self.info(store, f"{name}+1")) == SECOND
        store.delete(name)
        assert store.prompt(self.info(store, branch)) == FIRST
        assert store.prompt(self.info(store, f"{name}+1")) == SECOND
        for left in (branch, f"{name}+1"):
            store.delete(left)

    def test_prompts_of_failed_appends_and_repeated_ones_change_nothing(self, store: Store, name: str) -> None:
        store.append(name, entries("a"), dialect=CHAT, prompt=FIRST, key="k")
        store.append(name, entries("a"), dialect=CHAT, prompt=SECOND, key="k")
        assert store.prompt(self.info(store, name)) == FIRST

    # Explicit deletion

    def test_deleting_and_appending_the_same_bodies_at_once(self, store: Store, name: str) -> None:
        rounds, texts = 12, [f"shared {number} of {name}" for number in range(20)]

        def work(writer: int) -> None:
            for turn in range(rounds):
                own = f"{name}-{writer}-{turn}"
                store.append(own, entries(*texts), dialect=CHAT)
                store.delete(own)

        at_once(work, 3)
        assert all(name not in found for one in store.find(parse_query(name).terms) for found in one)

    def places(self, store: Store, word: str) -> dict[str, list[int]]:
        return {name: sorted(where) for name, where in store.find(parse_query(word).terms)[0].items()}

    def test_deleting_a_session_drops_what_only_it_refers_to(self, store: Store, name: str) -> None:
        mark = uuid.uuid4().hex
        self.begin(store, name, f"shared {mark}", f"alone {mark}", "x", "y")
        self.compact(store, name, summary=f"sum {mark}")
        self.begin(store, f"{name}-2", f"shared {mark}")
        assert self.places(store, mark) == {name: [0, 1], f"{name}-2": [0]}
        store.delete(name)
        assert store.info(name) is None
        assert self.places(store, mark) == {f"{name}-2": [0]}
        with pytest.raises(NotStored):
            store.delete(name)
        self.begin(store, name, f"alone {mark}")
        assert self.places(store, mark) == {name: [0], f"{name}-2": [0]}
        store.delete(name)
        store.delete(f"{name}-2")
        assert self.places(store, mark) == {}

    def test_pruning_deletes_what_was_not_used_for_long_by_the_clock_of_the_database(
        self, store: Store, name: str
    ) -> None:
        for age in ("older", "old"):
            self.begin(store, f"{name}-{age}", age)
        self.pass_time(2.2)
        self.begin(store, f"{name}-new", "new")
        mine = [f"{name}-older", f"{name}-old"]
        assert [found for found in store.prune(2_000, dry_run=True) if found.startswith(name)] == mine
        assert all(store.info(left) is not None for left in mine)
        store.append(f"{name}-old", entries("used again"), dialect=CHAT)
        assert [found for found in store.prune(2_000) if found.startswith(name)] == mine[:1]
        assert store.info(mine[0]) is None
        assert store.info(mine[1]) is not None and store.info(f"{name}-new") is not None
