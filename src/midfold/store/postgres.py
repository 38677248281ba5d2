"""PostgreSQL database, for stores shared by several machines.

1. Rows are locked in a fixed order, the session first, then bodies by digest, so that appends cannot deadlock.
2. Times come from the server's clock; the machines' clocks are never compared.
3. Deletes take an exclusive lock that writers share, so no body is dropped while a writer refers to it. Foreign keys
   would detect this too; then the transaction is retried.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, ClassVar

from midfold.errors import MissingExtra, SchemaError, StoreError, StoreUnavailable
from midfold.store.bodies import NewMessage, deflate
from midfold.store.database import CONNECTIONS, Database, Flavour, RetryTransaction, TransactionMode, Tx

LOCK = 7310593858020254829
RETRY_CODES = ("40001", "40P01", "23503")
"""SQLSTATE codes to retry: serialization failure, deadlock, foreign key violation."""
UNAVAILABLE = {
    "08": "the connection was lost",
    "53100": "the server's disk is full",
    "53": "the server is out of resources",
    "57": "the server is shutting down or canceled the query",
    "58": "the server could not read or write a file",
    "XX000": "the server failed",
    "25006": "the database is read-only",
    "55P03": "timed out waiting for a lock",
}
"""SQLSTATE prefixes of errors after which a later call may succeed. XX000 includes a file that could not be extended.
"""


def _driver() -> Any:
    try:
        import psycopg
    except ImportError:
        raise MissingExtra("a PostgreSQL store", "postgres") from None
    return psycopg


class PostgresTx(Tx):
    def all(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        rows: list[tuple[Any, ...]] = self.connection.execute(self.queries[query], values, binary=True).fetchall()
        return rows

    def run(self, query: str, **values: Any) -> int:
        changed: int = self.connection.execute(self.queries[query], values).rowcount
        return changed

    def many(self, query: str, rows: Iterable[dict[str, Any]]) -> None:
        with self.connection.cursor() as cursor:
            cursor.executemany(self.queries[query], list(rows))

    def digests_between(self, session: int, bounds: Sequence[tuple[bytes, bytes]]) -> list[tuple[Any, ...]]:
        """Return the digests in one statement, because each statement is a round trip."""
        low, high = [*zip(*bounds, strict=True)] if bounds else ((), ())
        return self.all("digests_like", session=session, low=list(low), high=list(high))

    def add_bodies(self, entries: Sequence[NewMessage]) -> dict[bytes, int]:
        wanted = {entry.digest: entry for entry in sorted(entries, key=lambda entry: entry.digest)}
        found = self._known_bodies(wanted)
        new = [entry for digest, entry in wanted.items() if digest not in found]
        added = self._add_new(new)
        if len(added) < len(new):
            found |= self._known_bodies({entry.digest: entry for entry in new if entry.digest not in added})
            if len(added) + len(found) < len(wanted):
                raise RetryTransaction("a body was deleted concurrently")
        return added | found

    def _add_new(self, entries: list[NewMessage]) -> dict[bytes, int]:
        """Return the ids of added bodies, without those that another transaction added first."""
        added: dict[bytes, int] = {}
        if not entries:
            return added
        with self.connection.cursor() as cursor:
            cursor.executemany(self.queries["add_body"], [_body(entry) for entry in entries], returning=True)
            for entry in entries:
                row = cursor.fetchone()
                if row is not None:
                    added[entry.digest] = row[0]
                cursor.nextset()
        return added

    def _known_bodies(self, wanted: dict[bytes, NewMessage]) -> dict[bytes, int]:
        rows = self.all("bodies_by_digest", digests=list(wanted))
        return {bytes(digest): body for digest, body in rows}


def _body(entry: NewMessage) -> dict[str, Any]:
    codec, data = deflate(entry.data)
    return {"digest": entry.digest, "codec": codec, "data": data}


class Postgres(Database):
    flavour: ClassVar[Flavour] = "postgres"
    begin: ClassVar[dict[TransactionMode, str]] = {
        "read": "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",
        "write": f"BEGIN; SELECT pg_advisory_xact_lock_shared({LOCK})",
        "alone": f"BEGIN; SELECT pg_advisory_xact_lock({LOCK})",
    }

    def __init__(self, url: str, *, connections: int = CONNECTIONS) -> None:
        super().__init__(connections)
        self._driver = _driver()
        self.errors = (self._driver.Error,)
        self.url = url
        try:
            parts = self._driver.conninfo.conninfo_to_dict(url)
        except self._driver.Error as error:
            raise StoreError("postgresql: invalid URL; expected postgresql://host/database") from error
        self.where = f"postgresql {parts.get('host') or 'local'}/{parts.get('dbname') or ''}"

    def connect(self) -> Any:
        return self._driver.connect(self.url, autocommit=True)

    def transaction(self, connection: Any) -> PostgresTx:
        return PostgresTx(connection, self.flavour)

    def translate(self, error: Exception) -> StoreError | RetryTransaction:
        code = getattr(error, "sqlstate", None) or ""
        error_type = type(error).__name__
        if code in RETRY_CODES:
            return RetryTransaction(f"{error_type} ({code})")
        message = getattr(getattr(error, "diag", None), "message_primary", None) or error_type
        meaning = next((meaning for known, meaning in UNAVAILABLE.items() if code.startswith(known)), None)
        if not code and isinstance(error, self._driver.OperationalError):
            meaning = "cannot connect to the server"
        if meaning is not None:
            return StoreUnavailable(f"{self.where}: {meaning}: {message}{f' ({code})' if code else ''}")
        if code.startswith(("42P01", "3F", "42501")):
            return SchemaError(f"{self.where}: {message} ({code})")
        return StoreError(f"{self.where}: {message} ({code or error_type})")

    def is_alive(self, connection: Any) -> bool:
        idle = self._driver.pq.TransactionStatus.IDLE
        return not connection.closed and connection.info.transaction_status == idle

    def backup(self, target: str) -> None:
        raise StoreError(f"{self.where}: use pg_dump for a backup, or midfold sessions export")
