"""Resent histories, changed or not and from any client: the store's result compared with a simple model."""

from __future__ import annotations

import json
from itertools import takewhile

from hypothesis import given
from hypothesis import strategies as st

from midfold.store import SqlStore, open_database
from midfold.store.intake import redact_json
from tests.support.store_contract import CHAT, entries

histories = st.lists(st.text("abc", min_size=1, max_size=1), min_size=1, max_size=12)


def common(one: list[str], other: list[str]) -> int:
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))


def texts(store: SqlStore, name: str) -> list[str]:
    return [row.message.text for row in store.history(name)]


@given(st.lists(histories, min_size=1, max_size=5), histories, st.integers(1, 4))
def test_the_longest_known_beginning_is_found(known: list[list[str]], asked: list[str], least: int) -> None:
    store = SqlStore(open_database("memory:"))
    for number, history in enumerate(known):
        store.append(f"s{number}", entries(*history), dialect=CHAT)
    longest = max(common(history, asked) for history in known)
    found = store.find_prefix(entries(*asked), least=least)
    if longest < least:
        assert found is None
        return
    assert found is not None and found.shared == longest
    history = texts(store, found.session)
    assert history[:longest] == asked[:longest] and found.length == len(history)
    assert found.whole == (len(history) == longest)
    if any(other == asked[:longest] for other in known):
        assert found.whole


@given(st.lists(histories, min_size=1, max_size=6))
def test_every_history_that_was_synced_is_there_and_nothing_was_rewritten(sent: list[list[str]]) -> None:
    store = SqlStore(open_database("memory:"))
    before: dict[str, list[str]] = {}
    for history in sent:
        done = store.sync("s", entries(*history), dialect=CHAT)
        assert texts(store, done.session)[: len(history)] == history
        now = {info.name: texts(store, info.name) for info in store.sessions()}
        for name, old in before.items():
            assert now[name][: len(old)] == old
        before = now
        again = store.sync("s", entries(*history), dialect=CHAT)
        assert (again.session, again.added) == (done.session, 0)
    assert list(store.check(deep=True)) == []


SECRETS = [
    "sk-" + "ant-api03-" + "Zx9Qw8Er7Ty6Ui5Op4As3Df2Gh1Jk0Lz" * 2,
    "AKIA" + "IOSFODNN7EXAMPLE",
    "password: hunter2hunter2",
]
words = st.one_of(st.text(max_size=20), st.sampled_from(SECRETS))
values = st.recursive(
    st.one_of(words, st.integers(), st.none(), st.booleans()),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(words, inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_is_redacted_is_json_and_stays_as_it_is_when_redacted_again(value: object) -> None:
    data = json.dumps({"role": "user", "content": value}).encode("utf-8", "surrogatepass")
    once = redact_json(data)
    assert redact_json(once) == once
    after = json.loads(once)
    assert after["role"] == "user"
    if isinstance(value, dict):
        assert len(after["content"]) == len(value)
    assert not any(secret.removeprefix("password: ") in once.decode() for secret in SECRETS)
