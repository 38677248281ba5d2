"""SQLite database, in a file with a write-ahead log and one writer at a time, or in memory.

1. Write transactions take the lock at BEGIN. A transaction that reads first and locks later fails instead of waiting.
2. Only the owner can read the file, because originals may contain secrets.
3. With `synchronous=full`, the default, an acknowledged append survives a power failure; with the faster `normal` it
   survives the end of the process.
4. Writing threads of one process queue in order. SQLite would let them poll, and some would wait for seconds.
5. If the file is deleted or replaced while open, every call fails until the database is closed and opened again: data
   written to the old file would be lost when the process ends.
"""

from __future__ import annotations

import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from midfold.errors import SchemaError, StoreDamaged, StoreError, StoreUnavailable
from midfold.store.bodies import NewMessage, deflate
from midfold.store.database import CONNECTIONS, Database, FairSemaphore, Flavour, TransactionMode, Tx

MEANINGS = {
    "SQLITE_FULL": "the disk is full, or the database has reached its maximum size",
    "SQLITE_IOERR": "reading or writing the file failed",
    "SQLITE_READONLY": "the database is read-only",
    "SQLITE_BUSY": "another process kept the database locked for too long",
    "SQLITE_LOCKED": "another connection kept the database locked for too long",
    "SQLITE_CANTOPEN": "the file cannot be opened",
    "SQLITE_PERM": "no permission to open the file",
    "SQLITE_NOTADB": "the file is not a SQLite database",
    "SQLITE_CORRUPT": "the file is corrupt",
}
REPLACED = "the file was deleted or replaced while open; restart to open the current one"
BULK_INSERT_BODIES = 64
"""Number of bodies from which they are added in one statement and their ids are computed."""
PAGES_PER_CHECKPOINT = 600
"""Write-ahead log pages per checkpoint, about ninety appends. Reusing a log costs one sync per append, growing it costs
two.
"""
KINDS: dict[str, type[StoreError]] = {"SQLITE_NOTADB": SchemaError, "SQLITE_CORRUPT": StoreDamaged}
MAX_REPORTED_FAULTS = 20
"""Maximum number of file faults a check reports."""
Clock = Callable[[], float]
T = TypeVar("T")


class SQLiteTx(Tx):
    def __init__(self, connection: sqlite3.Connection, flavour: Flavour, clock: Clock) -> None:
        super().__init__(connection, flavour)
        self.now = int(clock() * 1000)

    def _values(self, values: dict[str, Any]) -> dict[str, Any]:
        values.setdefault("now", self.now)
        return values

    def all(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.connection.execute(self.queries[query], self._values(values)).fetchall()
        return rows

    def run(self, query: str, **values: Any) -> int:
        changed: int = self.connection.execute(self.queries[query], self._values(values)).rowcount
        return changed

    def many(self, query: str, rows: Iterable[dict[str, Any]]) -> None:
        self.connection.executemany(self.queries[query], rows)

    def digests_between(self, session: int, bounds: Sequence[tuple[bytes, bytes]]) -> list[tuple[Any, ...]]:
        rows = (self.all("digests_like", session=session, low=low, high=high) for low, high in bounds)
        return [row for each in rows for row in each]

    def add_bodies(self, entries: Sequence[NewMessage]) -> dict[bytes, int]:
        """Add missing bodies, one step for all at a time, which is faster than one body at a time."""
        find = self.queries["body_by_digest"]
        known = {entry.digest: self.connection.execute(find, (entry.digest,)).fetchone() for entry in entries}
        new = {entry.digest: entry for entry in entries if known[entry.digest] is None}
        ids = {digest: row[0] for digest, row in known.items() if row is not None}
        return ids | self._add_new([(digest, *deflate(entry.data)) for digest, entry in new.items()])

    def _add_new(self, rows: list[tuple[Any, ...]]) -> dict[bytes, int]:
        add = self.queries["add_body"]
        if len(rows) < BULK_INSERT_BODIES:
            return {row[0]: self.connection.execute(add, row).lastrowid or 0 for row in rows}
        self.connection.executemany(add, rows)
        last = self.number("last_body")
        return {row[0]: last - len(rows) + place for place, row in enumerate(rows, 1)}


class SQLite(Database):
    flavour: ClassVar[Flavour] = "sqlite"
    errors = (sqlite3.Error, UnicodeDecodeError)
    """Driver errors. UnicodeDecodeError is raised for an error message that contains a damaged name."""
    begin: ClassVar[dict[TransactionMode, str]] = {
        "read": "BEGIN",
        "write": "BEGIN IMMEDIATE",
        "alone": "BEGIN IMMEDIATE",
    }

    def __init__(
        self,
        path: str,
        *,
        synchronous: str = "full",
        timeout: float = 30.0,
        connections: int = CONNECTIONS,
        clock: Clock = time.time,
    ) -> None:
        super().__init__(connections)
        if synchronous not in ("full", "normal"):
            raise StoreError(f"sqlite: synchronous is {synchronous!r}, expected full or normal")
        self.path, self.synchronous, self.timeout, self.clock = path, synchronous, timeout, clock
        self.where = f"sqlite {path}"

    def _reset_pool(self) -> None:
        super()._reset_pool()
        self._writing = FairSemaphore(1)
        self._file: tuple[int, int] | None = None
        """Device and inode of the file that the connections have open."""

    def _connection(self) -> tuple[Any, bool]:
        self._check_file()
        return super()._connection()

    def _check_file(self) -> None:
        """Raise StoreUnavailable if the open file was deleted or replaced."""
        if self._file is not None and self._file != _identity(self.path):
            raise StoreUnavailable(f"{self.where}: {REPLACED}")

    def close(self) -> None:
        super().close()
        self._file = None

    def write(self, work: Callable[[Tx], T], *, how: TransactionMode = "write") -> T:
        if self._owner != os.getpid():
            self._reset_pool()
        if not self._writing.acquire(timeout=self.timeout):
            raise StoreUnavailable(f"{self.where}: {MEANINGS['SQLITE_LOCKED']}")
        try:
            return super().write(work, how=how)
        finally:
            self._writing.release()

    def connect(self) -> sqlite3.Connection:
        path = Path(self.path)
        if not path.exists():
            self._make(path)
        connection = sqlite3.connect(self.path, timeout=self.timeout, isolation_level=None, check_same_thread=False)
        try:
            if connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
                self._to_wal(connection)
            connection.execute(f"PRAGMA synchronous = {self.synchronous}")
            connection.execute(f"PRAGMA wal_autocheckpoint = {PAGES_PER_CHECKPOINT}")
        except self.errors:
            connection.close()
            raise
        self._file = self._file or _identity(self.path)
        return connection

    def _make(self, path: Path) -> None:
        """Create an empty file, and its missing directories, accessible only by the owner."""
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
        except OSError as error:
            raise StoreUnavailable(f"{self.where}: cannot create the file: {error.strerror}") from error

    @staticmethod
    def _to_wal(connection: sqlite3.Connection) -> None:
        """Switch to a write-ahead log; leave a read-only file unchanged, since it can still be read."""
        try:
            connection.execute("PRAGMA journal_mode = wal")
        except sqlite3.OperationalError as error:
            if not error.sqlite_errorname.startswith("SQLITE_READONLY"):
                raise

    def transaction(self, connection: sqlite3.Connection) -> SQLiteTx:
        return SQLiteTx(connection, self.flavour, self.clock)

    def translate(self, error: Exception) -> StoreError:
        if isinstance(error, UnicodeDecodeError):
            return StoreDamaged(f"{self.where}: {MEANINGS['SQLITE_CORRUPT']}")
        name = getattr(error, "sqlite_errorname", "") or type(error).__name__
        for known, meaning in MEANINGS.items():
            if name.startswith(known):
                return KINDS.get(known, StoreUnavailable)(f"{self.where}: {meaning} ({name})")
        return StoreError(f"{self.where}: {name}: {error}")

    def is_alive(self, connection: sqlite3.Connection) -> bool:
        """Return whether the connection is outside a transaction; one that failed to roll back is not reused."""
        return not connection.in_transaction

    def damage(self) -> list[str]:
        try:
            rows = self.read(lambda tx: tx.connection.execute(f"PRAGMA quick_check({MAX_REPORTED_FAULTS})").fetchall())
        except StoreError as error:
            return [str(error)]
        return [f"the file: {fault}" for (fault,) in rows if fault != "ok"]

    def backup(self, target: str) -> None:
        """Write a consistent copy while others may be writing."""
        if Path(target).exists():
            raise StoreError(f"{target} already exists; choose another name")
        os.close(os.open(target, os.O_CREAT | os.O_RDWR, 0o600))
        source = self.connect()
        copy = sqlite3.connect(target)
        try:
            source.backup(copy)
        except sqlite3.Error as error:
            raise self.translate(error) from error
        finally:
            copy.close()
            source.close()


def _identity(path: str) -> tuple[int, int] | None:
    """Return device and inode of a file, or None if it does not exist."""
    try:
        found = os.stat(path)  # noqa: PTH116 - runs before every use of a connection; Path would double its cost
    except OSError:
        return None
    return found.st_dev, found.st_ino


class MemoryDatabase(SQLite):
    """In-memory database (`memory:`), lost with its process. Its one connection is used by one thread at a time."""

    def __init__(self, *, clock: Clock = time.time) -> None:
        super().__init__(":memory:", clock=clock)
        self.where = "memory"
        self._only = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._turn = threading.RLock()

    def connect(self) -> sqlite3.Connection:
        return self._only

    def is_alive(self, connection: sqlite3.Connection) -> bool:
        return True

    def write(self, work: Callable[[Tx], T], *, how: TransactionMode = "write") -> T:
        with self._turn:
            return super().write(work, how=how)

    def read(self, work: Callable[[Tx], T]) -> T:
        with self._turn:
            return super().read(work)

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        with self._turn:
            return super().rows(query, **values)

    def close(self) -> None:
        """Do nothing: the connection ends with its last reference, so other users are not cut off."""
