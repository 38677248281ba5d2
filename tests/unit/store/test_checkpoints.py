"""Lookup of compactions by the messages they replace, on every database."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.session.sessions import Sessions
from midfold.store.bodies import chain_of
from midfold.store.sync import Checkpoint
from midfold.transcript.splice import message_value
from support.fixtures import long_tool_heavy_conversation, user

TALK = long_tool_heavy_conversation().messages
WINDOW = 64_000


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def sessions(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Sessions]:
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db?synchronous=normal"
    with midfold.open(url) as opened:
        yield opened
        assert opened.check(deep=True) == []


def found(sessions: Sessions, talk: list[Any], name: str = "s") -> Checkpoint | None:
    chains = chain_of(message.digest for message in midfold.read(talk).messages)
    return sessions.store.checkpoints.find(name, {chain: count for count, chain in enumerate(chains, 1)})


def applied(checkpoint: Checkpoint, talk: list[Any]) -> list[Any]:
    document = midfold.read(talk)
    return [
        message_value(message, document.dialect) for message in checkpoint.apply(document.messages, document.dialect)
    ]


def test_a_checkpoint_fits_every_history_that_begins_with_what_it_replaces(sessions: Sessions) -> None:
    session = sessions.session("s", context_length=WINDOW)
    session.append(TALK)
    assert found(sessions, TALK) is None
    session.compact()
    checkpoint = found(sessions, TALK)
    assert checkpoint is not None and (checkpoint.session, checkpoint.seq) == ("s", 1)
    assert applied(checkpoint, TALK) == session.view().messages
    edited = [*TALK[: checkpoint.count], user("Stop."), user("Go.")]
    assert found(sessions, edited) == checkpoint
    assert applied(checkpoint, edited)[-2:] == edited[-2:]
    assert found(sessions, [*TALK[: checkpoint.count - 1], user("Stop.")]) is None
    assert found(sessions, TALK, "other") is None
    in_force = sessions.store.checkpoints.is_in_force
    assert (in_force("s", 1), in_force("s", 2), in_force("other", 1)) == (True, False, False)
    session.undo()
    assert found(sessions, TALK) is None and not in_force("s", 1)


def test_the_longest_of_several_wins_in_branches_too(sessions: Sessions) -> None:
    session = sessions.session("s", context_length=WINDOW)
    session.append(TALK)
    session.compact()
    first = found(sessions, TALK)
    more = [{**message} for message in TALK[2:]]
    session.append(more)
    session.compact(force=True)
    second = found(sessions, [*TALK, *more])
    assert first is not None and second is not None and second.count > first.count
    assert found(sessions, [*TALK, user("Elsewhere.")]) == first


def test_a_history_that_was_edited_behind_a_fold_keeps_it_in_its_branch(sessions: Sessions) -> None:
    session = sessions.session("s", context_length=WINDOW)
    session.append(TALK)
    session.compact()
    checkpoint = found(sessions, TALK)
    assert checkpoint is not None and checkpoint.count < len(TALK) - 3
    for kept in (len(TALK) - 1, len(TALK) - 3, checkpoint.count):
        edited = [*TALK[:kept], user(f"Something else {kept}."), user("And more.")]
        done = session.sync(edited)
        assert done.branched and done.common == kept
        assert done.session.view().messages == applied(checkpoint, edited)
        assert done.session.receipts()[0].upto == kept
        assert done.session.history().messages == edited
    inside = [*TALK[: checkpoint.count - 5], user("Inside.")]
    assert session.sync(inside).session.view().messages == inside
