"""The part of the contract of stores that is about finding the session a history belongs to."""

from __future__ import annotations

from midfold.store.protocol import Store
from midfold.testing.store_base import CHAT, StoreBase, entries


class PrefixContract(StoreBase):
    def test_a_history_finds_its_session_wherever_it_ends(self, store: Store, name: str) -> None:
        said = [f"{number} of {name}" for number in range(60)]
        self.begun(store, name, *said)
        self.begun(store, f"{name}-2", *said[:7], f"otherwise {name}")
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
        self.begun(store, name, f"a {name}", f"b {name}", f"c {name}")
        assert store.find_prefix(entries(f"b {name}")) is None
        assert store.find_prefix(entries(f"x {name}", f"b {name}", f"c {name}")) is None
        assert store.find_prefix([]) is None
        shared = entries(f"a {name}", f"b {name}", "other")
        assert store.find_prefix(shared, least=3) is None
        found = store.find_prefix(shared, least=2)
        assert found == (name, 2, 3) and not found.whole

    def test_among_equals_the_one_that_ends_there_and_is_alive(self, store: Store, name: str) -> None:
        self.begun(store, name, f"a {name}", "b", "c")
        branch = store.sync(name, entries(f"a {name}", "b", "C"), dialect=CHAT).session
        self.begun(store, f"{name}-short", f"a {name}", "b")
        assert store.find_prefix(entries(f"a {name}", "b", "new")) == (f"{name}-short", 2, 2)
        assert store.find_prefix(entries(f"a {name}", "b", "C", "new")) == (branch, 3, 3)
        self.begun(store, f"{name}-again", f"a {name}", "b", "c")
        store.commit(f"{name}-again", self.lease(store, f"{name}-again"), self.fold(store, f"{name}-again", child="k"))
        found = store.find_prefix(entries(f"a {name}", "b", "c"))
        assert found is not None and found.session == name

    def test_names_may_limit_the_search(self, store: Store, name: str) -> None:
        for owner in ("alice", "bob"):
            self.begun(store, f"{owner}/{name}", f"a {name}", *(["b"] if owner == "bob" else []))
        asked = entries(f"a {name}", "b")
        assert store.find_prefix(asked, under="alice/") == (f"alice/{name}", 1, 1)
        assert store.find_prefix(asked, under="bob/") == (f"bob/{name}", 2, 2)
        assert store.find_prefix(asked, under="%/") is None
        assert store.find_prefix(asked) == (f"bob/{name}", 2, 2)
