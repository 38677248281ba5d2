"""Handoffs and handles that a store confirms: those of one owner's sessions, with identical text."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

import midfold
from midfold.compaction.archive import PREFIX, Archive, handle_of
from midfold.compaction.handoff import Generated
from midfold.compaction.request import CompactionState
from midfold.errors import NotStored
from midfold.session.sessions import Sessions
from midfold.store import SqlStore, open_database
from midfold.store.sqlstore import StoredKeeper, StoredOriginals
from tests.support.store_contract import CHAT, StoreBase, entries

FOLD, BODY = "0123456789ab", "a summary"
HANDOFF = Generated("fold", FOLD, BODY)


@pytest.fixture
def store() -> SqlStore:
    opened = SqlStore(open_database("memory:"))
    _fold(opened, "team/sub/s", FOLD, BODY)
    return opened


def _fold(store: SqlStore, name: str, fold: str, body: str) -> None:
    base = StoreBase()
    base.begin(store, name, *(f"{name} {number}" for number in range(6)))
    made = base.fold(store, name)
    handles = {PREFIX + fold: next(iter(made.handles.values()))}
    state = CompactionState(count=1, summary=f"{body}\n", folds=(fold,))
    lease = base.lease(store, name)
    store.commit(name, lease, type(made)(**{**_fields(made), "handles": handles, "state": state}))


def _fields(made: object) -> dict[str, object]:
    return {field: getattr(made, field) for field in made.__struct_fields__}  # type: ignore[attr-defined]


def test_a_handoff_is_believed_in_the_space_that_has_it_and_in_its_own_words(store: SqlStore) -> None:
    assert StoredKeeper(store, "team/sub/other", "team/sub").has_handoff(HANDOFF)
    for space in ("team", "team/su", "sub", "", "team/sub/s"):
        assert not StoredKeeper(store, "x", space).has_handoff(HANDOFF), space
    own = StoredKeeper(store, "team/sub/other", "team/sub")
    assert not own.has_handoff(HANDOFF._replace(body="another summary"))
    assert not own.has_handoff(HANDOFF._replace(fold="ba9876543210"))
    assert StoredKeeper(store, "x").has_handoff(HANDOFF._replace(body="another"))


def test_a_space_without_a_name_is_that_of_names_without_a_slash(store: SqlStore) -> None:
    _fold(store, "plain", "ffff00001111", BODY)
    assert StoredKeeper(store, "x", "").has_handoff(HANDOFF._replace(fold="ffff00001111"))
    assert not StoredKeeper(store, "x", "team").has_handoff(HANDOFF._replace(fold="ffff00001111"))


def test_a_handle_is_one_of_the_session_or_a_fold_of_its_owner(store: SqlStore) -> None:
    message = next(iter(store.history("team/sub/s"))).message
    handle = PREFIX + message.digest.hex()[:12]
    assert StoredKeeper(store, "team/sub/s", "team/sub").has_handle(handle)
    assert StoredKeeper(store, "team/sub/s", "team/sub").has_handle(PREFIX + FOLD)
    assert StoredKeeper(store, "team/sub/new", "team/sub").has_handle(PREFIX + FOLD)
    assert not StoredKeeper(store, "team/sub/new", "team/sub").has_handle(handle)
    assert not StoredKeeper(store, "team/new", "team").has_handle(PREFIX + FOLD)
    assert not StoredKeeper(store, "team/sub/s", "team/sub").has_handle(PREFIX + "abcdefabcdef")


def test_unfolding_reaches_no_later_compaction_and_no_later_message(store: SqlStore) -> None:
    name = "team/sub/s"
    assert store.unfold(name, PREFIX + FOLD, at=1, stop=6)
    with pytest.raises(NotStored):
        store.unfold(name, PREFIX + FOLD, at=0)
    store.append(name, entries("later words"), dialect=CHAT)
    later = PREFIX + list(store.history(name))[-1].message.digest.hex()[:12]
    assert store.unfold(name, later)[0].text == "later words"
    assert store.unfold(name, later, stop=7)[0].text == "later words"
    with pytest.raises(NotStored):
        store.unfold(name, later, stop=6)


def test_the_originals_of_a_session_are_those_of_its_compactions_in_force_and_of_what_it_continues() -> None:
    talk = [{"role": role, "content": f"{number} " * 300} for number in range(40) for role in ("user", "assistant")]
    with midfold.open("memory:") as sessions:
        first = sessions.session("a", context_length=8_000)
        assert dict(StoredOriginals(sessions.store, "a")) == {}
        first.append(talk)
        child = first.compact(force=True, persistence="child").session
        child.append(talk)
        assert child.compact(force=True).changed
        both = Archive(StoredOriginals(sessions.store, child.name))
        before = Archive(StoredOriginals(sessions.store, child.name, at=0))
        assert list(before) == list(StoredOriginals(sessions.store, "a"))
        assert len(both) > len(before) > 0
        assert all(first.unfold(handle) == before.originals(handle) for handle in before)
        child.undo()
        assert list(both) == list(before)
        assert "mf-000000000000" not in both


def test_a_handle_is_found_in_the_newest_session_that_has_it(connect: Callable[[], Sessions]) -> None:
    sessions, base = connect(), StoreBase()
    store = sessions.store
    for name in ("a/one", "a/two", "b/one"):
        base.begin(store, name, "the same", *(f"{name} {number}" for number in range(4)))
    fold = base.compact(store, "a/one")
    time.sleep(0.02)  # sessions are ordered by time, and two writes may have the same timestamp
    base.begin(store, "a/one", "later")
    same, own = (handle_of(next(iter(store.history("a/two", at))).message) for at in (0, 2))
    assert [sessions.find_handle(same, under=under) for under in ("", "a/", "b/")] == ["a/one", "a/one", "b/one"]
    for handle in (own, own[:9], own.removeprefix(PREFIX)):
        assert sessions.find_handle(handle) == "a/two"
    for handle in (fold, fold[:9], fold.removeprefix(PREFIX)):
        assert sessions.find_handle(handle) == "a/one"
    for handle, under in ((fold, "b/"), (own, "a/o"), ("mf-000000000000", ""), (own, "a\x00"), ("\x00", ""), ("x", "")):
        with pytest.raises(NotStored, match="there is no handle"):
            sessions.find_handle(handle, under=under)


def test_a_handle_of_a_session_that_goes_on_elsewhere_is_found_where_it_goes_on(
    connect: Callable[[], Sessions],
) -> None:
    sessions, base = connect(), StoreBase()
    base.begin(sessions.store, "a/one", *"abcdef")
    first = base.compact(sessions.store, "a/one", keep=3)
    base.compact(sessions.store, "a/one", child="a/next")
    base.begin(sessions.store, "a/next", "later")
    assert sessions.find_handle(first) == "a/next"


def test_a_beginning_that_means_two_folds_of_a_session_is_no_handle_of_it(connect: Callable[[], Sessions]) -> None:
    sessions, base = connect(), StoreBase()
    base.begin(sessions.store, "one", *"abcdef")
    base.compact(sessions.store, "one", keep=3)
    assert sessions.find_handle(PREFIX) == "one"
    base.compact(sessions.store, "one")
    with pytest.raises(NotStored, match="there is no handle"):
        sessions.find_handle(PREFIX)


def test_looking_for_a_handle_asks_no_session_that_does_not_have_it() -> None:
    asked: list[str] = []
    with midfold.open("memory:") as sessions:
        sessions.store.database.read(lambda tx: tx.connection.set_trace_callback(asked.append))
        counts = []
        for name in ("one", "two", "three"):
            StoreBase().begin(sessions.store, name, f"what {name} says")
            asked.clear()
            sessions.find_handle(handle_of(next(iter(sessions.store.history("one"))).message))
            counts.append(len(asked))
    assert counts[0] and len(set(counts)) == 1
