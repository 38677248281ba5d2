"""A client that keeps sending to a session that continues in a child: the child gets its new messages."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from midfold.errors import StoreConflict
from midfold.session.sessions import Sessions
from support.build import work
from support.fixtures import assistant, long_tool_heavy_conversation, user

WINDOW = 64_000
TALK = long_tool_heavy_conversation().messages
MORE = [assistant("done"), user("and now?")]
Open = Callable[..., Sessions]


def test_a_whole_history_goes_on_in_the_child(connect: Open) -> None:
    session = connect().session("s", context_length=WINDOW)
    session.append(TALK)
    child = session.compact(force=True, persistence="child").session
    begun = child.history().messages
    for number in (1, 2):
        done = session.sync([*TALK, *MORE[:number]])
        assert (done.session.name, done.added, done.branched) == ("s+1", 1, False)
    assert session.history().messages == TALK
    assert child.history().messages == [*begun, *MORE]
    again = connect().session("s", context_length=WINDOW).sync([*TALK, *MORE])
    assert (again.session.name, again.added) == ("s+1", 0)
    assert (session.sync(TALK).added, session.sync(TALK).session.name) == (0, "s")


def test_a_view_goes_on_in_the_child(connect: Open) -> None:
    session = connect().session("s", context_length=WINDOW)
    session.append(TALK)
    child = session.compact(force=True, persistence="child").session
    done = session.sync([*child.view().messages, *MORE])
    assert (done.session.name, done.added) == ("s+1", 2)
    assert child.history().messages[-2:] == MORE


def test_through_two_children_and_a_changed_history(connect: Open) -> None:
    session = connect().session("s", context_length=WINDOW)
    session.append(TALK)
    child = session.compact(force=True, persistence="child").session
    later = [*TALK, *work(500, 60)]
    assert session.sync(later).session.name == "s+1"
    grandchild = child.compact(force=True, persistence="child", child="g").session
    done = session.sync([*later, *MORE])
    assert (done.session.name, done.added) == ("g", 2)
    assert grandchild.history().messages[-2:] == MORE
    changed = session.sync([*later, user("something else")])
    assert (changed.branched, changed.added) == (True, 1)
    assert changed.session.history().messages[-1] == user("something else")
    assert grandchild.history().messages[-2:] == MORE
    again = session.sync([*later, user("something else"), assistant("ok")])
    assert (again.session.name, again.added) == (changed.session.name, 1)
    assert not list(connect().store.check())


def test_a_child_that_was_deleted_is_an_error_that_says_so(connect: Open) -> None:
    sessions = connect()
    session = sessions.session("s", context_length=WINDOW)
    session.append(TALK)
    session.compact(force=True, persistence="child").session.delete()
    with pytest.raises(StoreConflict, match="has ended"):
        session.sync([*TALK, *MORE])
    assert session.history().messages == TALK
