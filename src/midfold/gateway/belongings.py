"""Which ids of a provider are whose: a row for each, under a name that only its owner arrives at.

Rules of this file:
1. The store holds neither ids nor owners, only the names that `Owner.bind` makes of both.
2. An id is somebody's when the provider gave it to them in an answer, and nobody's otherwise.
3. Without a store the newest are remembered until the gateway ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from midfold.errors import MidfoldError
from midfold.gateway.owner import Owner
from midfold.lru import LRU
from midfold.store import SqlStore
from midfold.store.database import Tx

_log = logging.getLogger("midfold.gateway")

MOST_REMEMBERED = 50_000
TIDY_EVERY = 1_000
"""Rows that are added before those that have ended are removed."""


class Place(NamedTuple):
    """Whose things, at which provider."""

    owner: Owner
    base: str

    def name(self, given: str) -> str:
        return self.owner.bind(b"belonging", self.base.encode(), given.encode("utf-8", "surrogatepass"))


class Belongings:
    """All of them; used on one event loop."""

    def __init__(self, store: SqlStore | None, clock: Callable[[], float] = time.time) -> None:
        self._database = None if store is None else store.database
        self._known: LRU[str, bool] = LRU(MOST_REMEMBERED)
        self._clock = clock
        self._added = 0

    async def has(self, place: Place, given: str) -> bool:
        """Whether an id was given to an owner. Raises StoreError where that cannot be known now."""
        name = place.name(given)
        if self._known.get(name):
            return True
        if self._database is None or not await asyncio.to_thread(self._stored, name):
            return False
        self._known.put(name, True)
        return True

    async def add(self, place: Place, ids: list[str], days: int | None = None) -> None:
        """These are an owner's from now on; for some days, if their provider forgets them after that."""
        names = [place.name(given) for given in ids]
        for name in names:
            self._known.put(name, True)
        if self._database is None or not names:
            return
        ends = None if days is None else int(self._clock() * 1_000) + days * 86_400_000
        try:
            await asyncio.to_thread(self._store, names, ends)
        except MidfoldError as error:
            _log.warning("ids of a provider were not stored: %s", type(error).__name__)

    def _stored(self, name: str) -> bool:
        assert self._database is not None
        return bool(self._database.row("has_belonging", name=name))

    def _store(self, names: list[str], ends: int | None) -> None:
        assert self._database is not None
        tidying = self._added % TIDY_EVERY == 0
        self._added += len(names)

        def write(tx: Tx) -> None:
            for name in names:
                tx.run("add_belonging", name=name, ends=ends)
            if tidying:
                tx.run("end_belongings", now=int(self._clock() * 1_000))

        self._database.write(write)
