"""Tables beside the schema: made when their first row is written, so that a store without any is only read.

They hold what is nice to know and nobody's history, so they need no migration: who does not know them goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

from midfold.store.database import Database, Tx
from midfold.store.queries import Flavour, adapted

T = TypeVar("T")
PRESENT = {
    "sqlite": "SELECT count(*) FROM sqlite_master WHERE type = 'table' AND name = '{table}'",
    "postgres": "SELECT count(*) FROM pg_class WHERE oid = to_regclass('{table}')",
}
ONE_AT_A_TIME = {"sqlite": "SELECT 1", "postgres": "SELECT pg_advisory_xact_lock(7310593858020254830)"}


class Beside:
    """One such table, and the queries for it."""

    def __init__(
        self, database: Database, table: str, create: Mapping[Flavour, Sequence[str]], queries: Mapping[str, str]
    ) -> None:
        self.database, self.table = database, table
        self._create = create[database.flavour]
        self._queries = {name: adapted(text, database.flavour) for name, text in queries.items()}
        self._present = False

    def make(self) -> None:
        """The table, unless it is there."""
        if not self._is_present():
            self.database.write(self._made)
            self._present = True

    def on(self, tx: Tx) -> Tx:
        """The transaction, with the queries for this table."""
        tx.queries = {**tx.queries, **self._queries}
        return tx

    def read(self, work: Callable[[Tx], T]) -> T | None:
        """None where there is no table yet."""
        return self.database.read(lambda tx: work(self.on(tx))) if self._is_present() else None

    def write(self, work: Callable[[Tx], T]) -> T:
        self.make()
        return self.database.write(lambda tx: work(self.on(tx)))

    def _is_present(self) -> bool:
        if not self._present:
            query = PRESENT[self.database.flavour].format(table=self.table)
            self._present = bool(self.database.read(lambda tx: tx.connection.execute(query).fetchone()[0]))
        return self._present

    def _made(self, tx: Tx) -> None:
        for statement in (ONE_AT_A_TIME[self.database.flavour], *self._create):
            tx.connection.execute(statement)
