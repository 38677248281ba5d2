"""Which handles and handoffs a store really has: what looks like one of ours may have been made up by anybody."""

from __future__ import annotations

import msgspec

from midfold.fold.archive import PREFIX
from midfold.fold.handoff import Generated
from midfold.fold.request import CompactionState
from midfold.store.sqlstore import SqlStore


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
