"""Fixture that opens one store repeatedly, for every kind of store."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import midfold
from midfold.session.sessions import Sessions

Open = Callable[..., Sessions]


@pytest.fixture(params=["memory", "sqlite", "postgres"])
def connect(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Open]:
    """Return a function that opens the same store each time; `memory:` is the same because it is kept."""
    opened: list[Sessions] = []
    if request.param == "postgres":
        url = request.getfixturevalue("postgres_url")
    else:
        url = "memory:" if request.param == "memory" else f"sqlite:///{tmp_path}/s.db?synchronous=normal"

    def connect(**options: Any) -> Sessions:
        sessions = midfold.open(url, **options)
        if opened and url == "memory:":
            sessions.store = opened[0].store
        opened.append(sessions)
        return sessions

    yield connect
    assert opened[0].check(deep=True) == []
    for sessions in opened:
        sessions.close()
