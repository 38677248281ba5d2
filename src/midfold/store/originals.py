"""Which handles and handoffs a store really has: what looks like one of ours may have been made up by anybody."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import msgspec

from midfold.errors import NotStored
from midfold.fold.archive import PREFIX
from midfold.fold.handoff import Generated
from midfold.fold.request import CompactionState
from midfold.store.protocol import Record
from midfold.store.sqlstore import SqlStore
from midfold.transcript.message import Message


class Originals:
    """The `Keeper` of one session.

    `space` is what the names of an owner's sessions begin with, up to the last slash: a handoff is believed if one of
    those sessions has it. Without one, its check is enough.
    """

    def __init__(self, store: SqlStore, session: str, space: str | None = None) -> None:
        self._store, self._session, self._space = store, session, space

    def has_handle(self, handle: str) -> bool:
        return self._store.has_handle(self._session, handle) or bool(self._folds(handle))

    def has_handoff(self, handoff: Generated) -> bool:
        if self._space is None:
            return True
        return any(
            state.folds[-1:] == (handoff.fold,) and state.summary.strip() == handoff.body
            for state in self._folds(PREFIX + handoff.fold)
        )

    def _folds(self, handle: str) -> list[CompactionState]:
        """The states after the folds, in any session of the owner, that have this handle."""
        under = f"{self._space}/" if self._space else ""
        rows = self._store.database.rows("folds_by_handle", handle=handle, under=under)
        return [
            msgspec.json.decode(bytes(state), type=CompactionState)
            for name, state in rows
            if self._space is None or name.rpartition("/")[0] == self._space
        ]


class StoredOriginals(Mapping[str, tuple[Message, ...]]):
    """Handle -> originals of one session, and of those it continues, read when they are asked for.

    `at`: only those of compactions up to this one; `stop`: only messages before this position.
    """

    def __init__(self, store: SqlStore, session: str, *, at: int | None = None, stop: int | None = None) -> None:
        self._store, self._session = store, session
        self._at, self._stop = at, stop

    def __getitem__(self, handle: str) -> tuple[Message, ...]:
        try:
            return self._store.unfold(self._session, handle, at=self._at, stop=self._stop)
        except NotStored:
            raise KeyError(handle) from None

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys(handle for record in self._records() for handle in record.receipt.handles)

    def _records(self) -> Iterator[Record]:
        """The compactions in force, of this session and of those it continues."""
        at, session = self._at, self._store.info(self._session)
        while session is not None:
            for record in self._store.records(session.name):
                if record.undone is None and (at is None or record.seq <= at):
                    yield record
            at, parent = None, session.parent if session.kind == "continuation" else None
            session = self._store.info(parent) if parent else None

    def __len__(self) -> int:
        return sum(1 for _ in self)
