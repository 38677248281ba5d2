"""Turns that a gateway ran for a model and kept from its client: nobody's session, and in no list of them.

1. They are found by their place and their chain together, and by nothing else. Whoever keeps them says what a place is.
2. A look for all turns of a conversation is two questions, however long it is, and one where a place has none.
3. They go with the session they were kept for, and when nobody has used them for as long as sessions are pruned after.
   What is used is noted once a day.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from typing import NamedTuple

from midfold.errors import StoreDamaged
from midfold.store.bodies import blob, deflate, digest_of, inflate
from midfold.store.database import Database, Tx

NOTED_EVERY = 24 * 3600 * 1000
"""Milliseconds after which a use is noted again."""
PAGE = 100


class HiddenTurnKey(NamedTuple):
    """Which turns stand behind a chain: the digest of their record."""

    chain: str
    digest: bytes


class HiddenTurns:
    """Records by place and chain."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def keep(self, place: str, chain: str, data: bytes, *, session: str) -> None:
        """Writes a record down; a later one for the same chain takes its place."""
        codec, small = deflate(data)
        where = {"place": place, "chain": chain, "session": session}
        what = {"digest": digest_of(data), "codec": codec, "data": small}
        self._database.write(lambda tx: tx.run("add_hidden_turns", **where, **what))

    def find(self, place: str, chains: Collection[str]) -> list[HiddenTurnKey]:
        """The records behind any of these chains."""
        if not self._database.rows("has_hidden_turns", place=place):
            return []
        rows = self._database.rows("hidden_turns", place=place, chains=json.dumps(list(chains)), rest=NOTED_EVERY)
        old = [chain for chain, _, is_old in rows if is_old]
        if old:
            self._database.write(lambda tx: tx.run("use_hidden_turns", place=place, chains=json.dumps(old)))
        return [HiddenTurnKey(chain, blob(digest)) for chain, digest, _ in rows]

    def read(self, place: str, chains: Collection[str]) -> dict[HiddenTurnKey, bytes]:
        """The records themselves. What is not what was stored is an error, and never given out."""
        found: dict[HiddenTurnKey, bytes] = {}
        for chain, digest, codec, data in self._database.rows(
            "hidden_turns_data", place=place, chains=json.dumps(list(chains))
        ):
            found[HiddenTurnKey(chain, blob(digest))] = inflate(digest, codec, data)
        return found

    def delete_unused(self, age: int) -> int:
        """Deletes what was not used for so many milliseconds; says how many records that were."""
        return self._database.write(lambda tx: tx.run("delete_unused_hidden_turns", age=age))

    def delete_ended(self, places: str, age: int) -> int:
        """The same for places whose names begin so."""
        begins = {"places": places, "length": len(places)}
        return self._database.write(lambda tx: tx.run("delete_ended_turns", **begins, age=age))


def problems(tx: Tx) -> Iterator[str]:
    """Records that are not what was stored."""
    place = chain = ""
    while rows := tx.all("page_of_hidden_turns", place=place, chain=chain, most=PAGE):
        for place, chain, digest, codec, data in rows:  # noqa: B007 - the last ones are where the next page begins
            try:
                inflate(digest, codec, data)
            except StoreDamaged:
                yield f"the hidden turns after {chain[:12]} are not what was stored"
