"""Appends, syncs, compactions, undos in any order: the history is what was said, and every invariant holds."""

from __future__ import annotations

import random
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import midfold
from midfold.testing.fixtures import assistant, call, user

WINDOW = 4_000
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["append", "append", "append", "sync", "view", "compact", "force", "keep", "undo", "child"]),
        st.integers(0, 1_000),
    ),
    max_size=14,
)


def turns(seed: int) -> list[dict[str, Any]]:
    choice = random.Random(seed)
    kind = seed % 4
    if kind == 0:
        return [user("yes"), assistant("yes")]
    if kind == 1:
        return call(seed, "terminal", {"command": f"make {seed}"}, f"line {seed}\n" * choice.randrange(1, 200))
    if kind == 2:
        return [user(f"question {seed} about src/module_{seed}.py")]
    return [assistant(f"answer {seed} " + "word " * choice.randrange(300)), user("go on")]


@given(STEPS)
def test_the_history_is_what_was_said(steps: list[tuple[str, int]]) -> None:
    with midfold.open("memory:") as sessions:
        session = sessions.session("s", context_length=WINDOW)
        said: list[dict[str, Any]] = []
        for kind, seed in steps:
            if kind == "append":
                session.append(turns(seed))
                said += turns(seed)
            elif kind == "sync":
                assert session.sync([*said, *turns(seed)]).session is session
                said += turns(seed)
            elif kind == "view" and said:
                assert session.sync([*session.view().messages, *turns(seed)]).session is session
                said += turns(seed)
            elif kind == "undo" and session.info is not None and session.info.compaction:
                session.undo()
            elif kind == "child":
                done = session.compact(force=True, persistence="child")
                if done.changed:
                    assert session.history().messages == said
                    session, said = done.session, done.session.history().messages
            elif kind in ("compact", "force", "keep"):
                session.compact(force=kind == "force", keep_last_exchanges=2 if kind == "keep" else None)
        assert sessions.check(deep=True) == []
        if session.info is None:
            return
        assert session.history().messages == said
        assert sessions.session("s", context_length=WINDOW).view().json()
        for record in session.receipts():
            for handle in record.receipt.handles:
                assert session.unfold(handle)
        if session.info.compaction == 0:
            assert session.view().messages == said
