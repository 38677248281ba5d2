"""The part of the contract of stores that is about turns which a gateway keeps from its clients."""

from __future__ import annotations

from midfold.store.bodies import digest_of
from midfold.store.hidden_turns import NOTED_EVERY, HiddenTurnKey
from midfold.store.protocol import Store
from midfold.testing.store_base import StoreBase

RECORD = b'{"messages": [1e-7, "\xc3\xa9"]}' * 100


class HiddenTurnsContract(StoreBase):
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
        self.begun(store, name, "a")
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
            self.pass_time(NOTED_EVERY / 1000 + 1)
            store.hidden_turns.find(name, ["used"])
            self.pass_time(2)
            age = NOTED_EVERY
        store.prune(age, dry_run=True)
        assert len(store.hidden_turns.find(f"{name}-2", ["old", "used"])) == 0
        store.prune(age)
        assert list(store.hidden_turns.read(name, ["old", "used"]).keys()) == [
            HiddenTurnKey("used", digest_of(b"again" if self.clock is None else b"used"))
        ]
