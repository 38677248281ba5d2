"""SQLite: one file, write-ahead log, one writer at a time.

Rules of this file:
1. Transactions that write take the lock when they begin: a transaction that reads first and locks later fails where it
   could have waited.
2. The file is readable by its owner only: originals may hold secrets.
3. `synchronous=full`, the default, means an acknowledged append survives a power failure; `normal` survives the end of
   the process, and is faster.
4. The search index holds tokens and no text. Removing a row means giving it the same tokens again.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar

from midfold.core.words import Query
from midfold.errors import SchemaError, StoreError, StoreUnavailable
from midfold.store.bodies import Entry, deflated
from midfold.store.database import Database, Tx
from midfold.store.queries import Flavour

MEANINGS = {
    "SQLITE_FULL": "the disk, or the size the database may have, is full",
    "SQLITE_IOERR": "reading or writing the file failed",
    "SQLITE_READONLY": "the database cannot be written",
    "SQLITE_BUSY": "another process has held the database locked for too long",
    "SQLITE_LOCKED": "another connection has held the database locked for too long",
    "SQLITE_CANTOPEN": "the file cannot be opened",
    "SQLITE_PERM": "the file may not be opened",
    "SQLITE_NOTADB": "the file is not a SQLite database",
    "SQLITE_CORRUPT": "the file is damaged",
}
MINE = ("SQLITE_NOTADB", "SQLITE_CORRUPT")
Clock = Callable[[], float]


class SQLiteTx(Tx):
    def __init__(self, connection: sqlite3.Connection, flavour: Flavour, clock: Clock) -> None:
        super().__init__(connection, flavour)
        self.clock = clock

    def _values(self, values: dict[str, Any]) -> dict[str, Any]:
        values.setdefault("now", int(self.clock() * 1000))
        return values

    def all(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.connection.execute(self.queries[query], self._values(values)).fetchall()
        return rows

    def run(self, query: str, **values: Any) -> int:
        changed: int = self.connection.execute(self.queries[query], self._values(values)).rowcount
        return changed

    def many(self, query: str, rows: Iterable[dict[str, Any]]) -> None:
        self.connection.executemany(self.queries[query], rows)

    def add_bodies(self, entries: Sequence[Entry], *, index: bool) -> dict[bytes, int]:
        ids: dict[bytes, int] = {}
        for entry in entries:
            if entry.digest in ids:
                continue
            found = self.one("body_by_digest", digest=entry.digest)
            if found is None:
                codec, data = deflated(entry.data)
                values = {"digest": entry.digest, "indexed": index, "codec": codec, "data": data}
                found = (self.connection.execute(self.queries["add_body"], values).lastrowid, 0)
            elif index and not found[1]:
                self.run("mark_indexed", id=found[0])
            ids[entry.digest] = found[0]
            if index and not found[1]:
                self.run("index_words", id=found[0], tokens=" ".join(entry.tokens))
        return ids

    def unindex(self, body: int, tokens: set[str]) -> None:
        self.run("unindex_words", id=body, tokens=" ".join(tokens))

    def find(self, query: Query, **filters: Any) -> list[tuple[Any, ...]]:
        match = " AND ".join(f'"{term.text}"{"*" if term.prefix else ""}' for term in query.terms)
        return self.all("find", match=match, **filters)


class SQLite(Database):
    flavour: ClassVar[Flavour] = "sqlite"
    errors = (sqlite3.Error,)
    begin: ClassVar[dict[bool, str]] = {True: "BEGIN IMMEDIATE", False: "BEGIN"}

    def __init__(
        self, path: str, *, synchronous: str = "full", timeout: float = 30.0, clock: Clock = time.time
    ) -> None:
        super().__init__()
        if synchronous not in ("full", "normal"):
            raise StoreError(f"sqlite: synchronous is {synchronous!r}, expected full or normal")
        self.path, self.synchronous, self.timeout, self.clock = path, synchronous, timeout, clock
        self.where = f"sqlite {path}"

    def connect(self) -> sqlite3.Connection:
        path = Path(self.path)
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self.path, timeout=self.timeout, isolation_level=None, check_same_thread=False)
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                self._to_wal(connection)
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
        except sqlite3.Error:
            connection.close()
            raise
        return connection

    @staticmethod
    def _to_wal(connection: sqlite3.Connection) -> None:
        """A read-only file keeps the journal it has; it can still be read."""
        try:
            connection.execute("PRAGMA journal_mode = wal")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_READONLY"):
                raise

    def transaction(self, connection: sqlite3.Connection) -> SQLiteTx:
        return SQLiteTx(connection, self.flavour, self.clock)

    def translated(self, error: Exception) -> StoreError:
        name = getattr(error, "sqlite_errorname", "") or type(error).__name__
        for known, meaning in MEANINGS.items():
            if name.startswith(known):
                kind = SchemaError if known in MINE else StoreUnavailable
                return kind(f"{self.where}: {meaning} ({name})")
        return StoreError(f"{self.where}: {name}: {error}")

    def is_alive(self, connection: sqlite3.Connection) -> bool:
        """Out of any transaction: a connection that could not roll back is not used again."""
        return not connection.in_transaction

    def backup(self, target: str) -> None:
        """A consistent copy while others write."""
        if Path(target).exists():
            raise StoreError(f"{target} exists already; choose another name, so that nothing is lost")
        os.close(os.open(target, os.O_CREAT | os.O_RDWR, 0o600))
        source = self.connect()
        copy = sqlite3.connect(target)
        try:
            source.backup(copy)
        except sqlite3.Error as error:
            raise self.translated(error) from error
        finally:
            copy.close()
            source.close()
