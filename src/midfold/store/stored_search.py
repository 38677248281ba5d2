"""Search source over stored sessions, one session or all visible ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence

from midfold.compaction.archive import DIGITS, MIN_HANDLE_DIGITS, PREFIX
from midfold.errors import NotStored
from midfold.recall import Candidate, Positions
from midfold.recall.words import Term
from midfold.store import word_index
from midfold.store.database import FOREVER
from midfold.store.protocol import SessionInfo
from midfold.store.rows import read_candidate
from midfold.store.sqlstore import SqlStore, digest_range
from midfold.transcript.message import Transcript


class StoredSource:
    """`SearchSource` for one request; sessions are read once and do not change during it.

    `at`: only folds up to this compaction; `stop`: only messages before this position.
    """

    def __init__(
        self,
        store: SqlStore,
        name: str | None,
        *,
        role: str | None = None,
        since: int | None = None,
        until: int | None = None,
        at: int | None = None,
        stop: int | None = None,
        sees: Callable[[str], bool] = lambda name: True,
    ) -> None:
        self._store, self._name, self._sees = store, name, sees
        self._role, self._since, self._until = role, since, until
        self._at, self._stop = at, stop
        self._infos: dict[str, SessionInfo] = {}

    def _info(self, name: str) -> SessionInfo:
        if name not in self._infos:
            self._infos[name] = self._store.must(name)
        return self._infos[name]

    def size(self) -> int:
        if self._name is None:
            return self._store.database.read(lambda tx: tx.number("count_messages"))
        return self.newest()[1]

    def newest(self) -> tuple[str, int]:
        if self._name is None:
            return "", 0
        count = self._info(self._name).count
        return self._name, count if self._stop is None else min(count, self._stop)

    def places(self, terms: Sequence[Term]) -> list[Mapping[str, Sequence[int]]]:
        of = None if self._name is None else self._info(self._name)
        found = self._store.find(terms, of=of, role=self._role, since=self._since, until=self._until, stop=self._stop)
        return [{name: where for name, where in one.items() if self._sees(name)} for one in found]

    def words(self, beginning: str) -> set[str]:
        if self._name is None:
            return set()
        return word_index.words(self._store.database, self._info(self._name).id, beginning)

    def messages(self, wanted: Positions) -> list[Candidate]:
        stop = FOREVER if self._stop is None else self._stop
        return [
            found
            for name in sorted(wanted)
            if wanted[name] and self._sees(name)
            for found in self._read(name, [place for place in wanted[name] if place < stop])
        ]

    def _read(self, name: str, positions: Sequence[int]) -> list[Candidate]:
        session = self._info(name)
        rows = self._store.database.rows("messages_at", session=session.id, positions=json.dumps(sorted(positions)))
        return [read_candidate(row, session) for row in rows]

    def unfold(self, handle: str) -> Transcript:
        return self._store.unfold(self._name or "", handle, at=self._at, stop=self._stop)

    def place_of(self, handle: str) -> tuple[str, int]:
        self.unfold(handle)
        name = self._name or ""
        session, rows = self._info(name), self._store.database.rows
        folds = rows("handle", session=session.id, low=handle, high=handle + "\x7f", seq=FOREVER)
        if folds and (folds[0][0] == handle or len(folds) == 1):
            places = rows("handles", session=session.id, seq=folds[0][1])
            firsts = [first for one, _, _, first, *_ in places if one == folds[0][0] and first is not None]
            if firsts:
                return name, int(min(firsts))
        digests = digest_range(handle.removeprefix(PREFIX))
        found = digests and rows("message_by_digest", session=session.id, low=digests[0], high=digests[1], stop=FOREVER)
        if not found:
            raise NotStored(f"session {name}: {handle} stands for no message of its history")
        return name, int(found[0][0])

    def shorten(self, found: Sequence[Candidate]) -> list[str]:
        """Return the shortest handles that are not a prefix of an earlier message's handle."""
        if self._name is None:
            return [PREFIX + one.digest.hex()[:DIGITS] for one in found]
        session = self._info(self._name).id
        beginnings = {one.digest[: MIN_HANDLE_DIGITS // 2] for one in found}
        bounds = [(low, low + b"\xff" * DIGITS) for low in sorted(beginnings)]
        alike: dict[bytes, dict[bytes, int]] = {low: {} for low in beginnings}
        for digest, place in self._store.database.ask(lambda tx: tx.digests_between(session, bounds)):
            if place is not None:
                alike[bytes(digest)[: MIN_HANDLE_DIGITS // 2]][bytes(digest)] = place
        return [_shortest(one.digest, alike[one.digest[: MIN_HANDLE_DIGITS // 2]]) for one in found]


def _shortest(digest: bytes, alike: Mapping[bytes, int]) -> str:
    own = alike.get(digest, FOREVER)
    earlier = [other.hex() for other, place in alike.items() if place < own]
    digits = digest.hex()
    size = MIN_HANDLE_DIGITS
    while size < DIGITS and any(other.startswith(digits[:size]) for other in earlier):
        size += 1
    return PREFIX + digits[:size]
