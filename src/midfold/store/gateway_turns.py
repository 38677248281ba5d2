"""Turns that a gateway ran for a model and hid from its client. They belong to no session and are not listed.

1. A record is found by its place and chain together. The caller defines what a place is.
2. Finding the turns of a conversation takes two queries, whatever its length, and one if the place has none.
3. Records are deleted with the session they were kept for, or when they have not been used for the pruning age of
   sessions. Uses are recorded once a day.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import NamedTuple

from midfold.errors import StoreDamaged
from midfold.store.bodies import blob, deflate, digest_of, inflate
from midfold.store.database import Database, Tx

USE_RECORDED_EVERY_MS = 24 * 3600 * 1000
"""Milliseconds after which another use is recorded."""
PAGE = 100


class HiddenTurnKey(NamedTuple):
    """Key of a record: its chain and the digest of its data."""

    chain: str
    digest: bytes


class HiddenTurns:
    """Records by place and chain."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, place: str, chain: str, data: bytes, *, session: str) -> None:
        """Store a record, replacing any earlier one for the same chain."""
        codec, small = deflate(data)
        where = {"place": place, "chain": chain, "session": session}
        what = {"digest": digest_of(data), "codec": codec, "data": small}
        self._database.write(lambda tx: tx.run("add_hidden_turns", **where, **what))

    def find(self, place: str, chains: Collection[str]) -> list[HiddenTurnKey]:
        """Return the keys of the records with any of these chains."""
        if not self._database.rows("has_hidden_turns", place=place):
            return []
        rows = self._database.rows(
            "hidden_turns", place=place, chains=json.dumps(list(chains)), rest=USE_RECORDED_EVERY_MS
        )
        old = [chain for chain, _, is_old in rows if is_old]
        if old:
            self._database.write(lambda tx: tx.run("use_hidden_turns", place=place, chains=json.dumps(old)))
        return [HiddenTurnKey(chain, blob(digest)) for chain, digest, _ in rows]

    def read(self, place: str, chains: Collection[str]) -> dict[HiddenTurnKey, bytes]:
        """Return the records' data; raise StoreDamaged if any does not match its digest."""
        found: dict[HiddenTurnKey, bytes] = {}
        for chain, digest, codec, data in self._database.rows(
            "hidden_turns_data", place=place, chains=json.dumps(list(chains))
        ):
            found[HiddenTurnKey(chain, blob(digest))] = inflate(digest, codec, data)
        return found

    def delete_unused(self, age: int) -> int:
        """Delete records not used for `age` milliseconds; return their number."""
        return self._database.write(lambda tx: tx.run("delete_unused_hidden_turns", age=age))

    def delete_ended(self, places: str, age: int) -> int:
        """Delete old records of places whose names start with `places`; return their number."""
        begins = {"places": places, "length": len(places)}
        return self._database.write(lambda tx: tx.run("delete_ended_turns", **begins, age=age))


def problems(tx: Tx) -> Iterator[str]:
    """Yield a problem for each record that does not match its digest."""
    place = chain = ""
    while rows := tx.all("page_of_hidden_turns", place=place, chain=chain, most=PAGE):
        for place, chain, digest, codec, data in rows:  # noqa: B007 - the last values start the next page
            try:
                inflate(digest, codec, data)
            except StoreDamaged:
                yield f"the hidden turns after chain {chain[:12]} do not match their hash"
