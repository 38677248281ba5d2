"""Connections, transactions and queries shared by both databases.

1. Each use is one transaction on its own connection; connections are pooled.
2. Driver errors become midfold errors that name the database and the failure, never stored content.
3. A transaction that the database aborts (deadlock, row deleted concurrently) is retried a limited number of times, so
   the function that does the work may run more than once.
4. An idle connection may be dead. This shows at BEGIN, before any work; the next connection is tried, at last a new
   one.
5. Connections are not shared across a fork.
6. Any number of threads may use a database; each waits for one of a limited number of connections.
7. SQL is in .sql files, in named sections with the same parameters for both databases.
"""

from __future__ import annotations

import os
import random
import re
import threading
import time
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from importlib.resources import files
from typing import Any, ClassVar, Literal, TypeVar

from midfold.errors import StoreDamaged, StoreError, StoreUnavailable
from midfold.store.bodies import NewMessage

Flavour = Literal["sqlite", "postgres"]

T = TypeVar("T")
TransactionMode = Literal["read", "write", "alone"]
MAX_ATTEMPTS = 12
MAX_RETRY_PAUSE_SECONDS = 0.05
CONNECTIONS = 16
"""Default maximum number of connections per process."""
CONNECTION_WAIT_SECONDS = 30.0
"""Seconds a thread waits for a connection."""
FOREVER = 1 << 62
"""Upper bound for positions, sequence numbers and times."""

_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)
_PARAMETER = re.compile(r"(?<![:\w]):([a-z_]+)")
_PLACES: dict[Flavour, dict[str, str]] = {
    "sqlite": {"{now}": ":now", "{lock}": "", "{bytewise}": ""},
    "postgres": {
        "{now}": "(extract(epoch FROM clock_timestamp()) * 1000)::bigint",
        "{lock}": "FOR UPDATE",
        "{bytewise}": 'COLLATE "C"',
    },
}


@cache
def queries(flavour: Flavour) -> dict[str, str]:
    """Return the text of each query by name, in the parameter style of the driver."""
    folder = files("midfold.store") / "sql"
    found: dict[str, str] = {}
    for source in (folder / "queries.sql", folder / flavour / "queries.sql"):
        pieces = _NAME.split(source.read_text(encoding="utf-8"))
        for name, text in zip(pieces[1::2], pieces[2::2], strict=True):
            found[name] = _adapt(text.strip(), flavour)
    return found


def _adapt(text: str, flavour: Flavour) -> str:
    for place, value in _PLACES[flavour].items():
        text = text.replace(place, value)
    return text if flavour == "sqlite" else _PARAMETER.sub(r"%(\1)s", text)


class FairSemaphore:
    """Semaphore that serves threads in the order of their requests.

    The semaphores of the standard library let later threads overtake; under load some threads would wait for seconds.
    """

    def __init__(self, places: int) -> None:
        self._free = places
        self._waiting: deque[threading.Lock] = deque()
        self._lock = threading.Lock()

    def acquire(self, timeout: float) -> bool:
        with self._lock:
            if self._free:
                self._free -= 1
                return True
            gate = threading.Lock()
            gate.acquire()
            self._waiting.append(gate)
        if gate.acquire(timeout=timeout):
            return True
        with self._lock:
            if gate in self._waiting:
                self._waiting.remove(gate)
                return False
        return True  # the slot was handed over just as the wait timed out

    def release(self) -> None:
        with self._lock:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._free += 1


class RetryTransaction(Exception):
    """Raised when the database aborted the transaction and a retry may succeed."""


class Tx(ABC):
    """One transaction, with queries and parameters by name."""

    def __init__(self, connection: Any, flavour: Flavour) -> None:
        self.connection = connection
        self.queries = queries(flavour)

    @abstractmethod
    def all(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        """Return all rows."""

    @abstractmethod
    def run(self, query: str, **values: Any) -> int:
        """Run the query and return the number of changed rows."""

    @abstractmethod
    def many(self, query: str, rows: Iterable[dict[str, Any]]) -> None:
        """Run the query once for each row of parameters."""

    @abstractmethod
    def digests_between(self, session: int, bounds: Sequence[tuple[bytes, bytes]]) -> list[tuple[Any, ...]]:
        """Return the digests of bodies in any of the ranges, each with its first position in the session, or None."""

    @abstractmethod
    def add_bodies(self, entries: Sequence[NewMessage]) -> dict[bytes, int]:
        """Add missing bodies and return the ids of all, by digest."""

    def one(self, query: str, **values: Any) -> tuple[Any, ...] | None:
        rows = self.all(query, **values)
        return rows[0] if rows else None

    def number(self, query: str, **values: Any) -> int:
        row = self.one(query, **values)
        try:
            return int(row[0]) if row else 0
        except (TypeError, ValueError):
            raise StoreDamaged("a row has a value of the wrong type") from None


def _surrogate_error(error: UnicodeEncodeError) -> StoreError:
    """Return the error for a lone surrogate, which cannot be stored. The text is private, so it is not included."""
    place = f"character {error.start + 1} of {len(error.object)}"
    return StoreError(f"text contains a lone surrogate ({place}), which UTF-8 cannot encode")


class Database(ABC):
    """Connection pool of one database."""

    flavour: ClassVar[Flavour]
    where: str
    """Name of the database in errors, without a password."""
    errors: tuple[type[Exception], ...]

    def __init__(self, connections: int = CONNECTIONS) -> None:
        self.connections = connections
        self._reset_pool()

    def _reset_pool(self) -> None:
        """Reset the connection pool, as in a new process."""
        self._idle: list[Any] = []
        weakref.finalize(self, close_connections, self._idle, os.getpid())
        self._lock = threading.Lock()
        self._free = FairSemaphore(self.connections)
        self._owner = os.getpid()

    @abstractmethod
    def connect(self) -> Any:
        """Open a connection in autocommit mode."""

    @abstractmethod
    def transaction(self, connection: Any) -> Tx: ...

    @abstractmethod
    def translate(self, error: Exception) -> StoreError | RetryTransaction:
        """Return the midfold error for a driver error."""

    @abstractmethod
    def is_alive(self, connection: Any) -> bool: ...

    @abstractmethod
    def backup(self, target: str) -> None: ...

    def damage(self) -> list[str]:
        """Return the faults that the database itself reports about its files."""
        return []

    begin: ClassVar[dict[TransactionMode, str]]
    """Statements that begin a transaction: "read", "write", or "alone" for deleting while no other transaction writes.
    """

    def write(self, work: Callable[[Tx], T], *, how: TransactionMode = "write") -> T:
        """Run `work` in a transaction, commit, and return its result."""
        for left in reversed(range(MAX_ATTEMPTS)):
            try:
                with self._in_transaction(how) as tx:
                    return work(tx)
            except RetryTransaction as again:
                if not left:
                    raise StoreError(f"{self.where}: gave up after {MAX_ATTEMPTS} attempts: {again}") from again
                time.sleep(random.random() * MAX_RETRY_PAUSE_SECONDS)
        raise AssertionError("unreachable")

    def read(self, work: Callable[[Tx], T]) -> T:
        """Run `work` on one consistent state of the database."""
        with self._in_transaction("read") as tx:
            return work(tx)

    def rows(self, query: str, **values: Any) -> list[tuple[Any, ...]]:
        return self.ask(lambda tx: tx.all(query, **values))

    def ask(self, work: Callable[[Tx], T]) -> T:
        """Run a single query without a transaction; retry on another connection if an idle one is dead."""
        while True:
            connection, fresh = self._connection()
            try:
                found = work(self.transaction(connection))
            except self.errors as error:
                self._put_back(connection)
                if fresh or self.is_alive(connection):
                    raise self._final(error) from error
                continue
            except UnicodeEncodeError as error:
                self._put_back(connection)
                raise _surrogate_error(error) from None
            self._put_back(connection)
            return found

    def row(self, query: str, **values: Any) -> tuple[Any, ...] | None:
        found = self.rows(query, **values)
        return found[0] if found else None

    def _final(self, error: Exception) -> StoreError:
        meaning = self.translate(error)
        return StoreError(f"{self.where}: {meaning}") if isinstance(meaning, RetryTransaction) else meaning

    @contextmanager
    def _in_transaction(self, how: TransactionMode) -> Iterator[Tx]:
        connection = self._begin(how)
        try:
            yield self.transaction(connection)
            connection.execute("COMMIT")
        except BaseException as error:  # do not leave the transaction open, whatever the error
            with suppress(*self.errors):
                connection.execute("ROLLBACK")
            self._put_back(connection)
            if isinstance(error, self.errors):
                raise self.translate(error) from error
            if isinstance(error, UnicodeEncodeError):
                raise _surrogate_error(error) from None
            raise
        self._put_back(connection)

    def _begin(self, how: TransactionMode) -> Any:
        while True:
            connection, fresh = self._connection()
            try:
                connection.execute(self.begin[how])
            except self.errors as error:
                self._put_back(connection)
                if fresh or self.is_alive(connection):
                    raise self.translate(error) from error
                continue
            return connection

    def _connection(self) -> tuple[Any, bool]:
        if self._owner != os.getpid():
            self._reset_pool()
        if not self._free.acquire(timeout=CONNECTION_WAIT_SECONDS):
            raise StoreUnavailable(
                f"{self.where}: all {self.connections} connections of this process were in use for "
                f"{CONNECTION_WAIT_SECONDS:.0f} s; raise store.connections"
            )
        with self._lock:
            if self._idle:
                return self._idle.pop(), False
        try:
            return self.connect(), True
        except BaseException as error:  # there is no connection to put back, so free its slot here
            self._free.release()
            if isinstance(error, self.errors):
                raise self._final(error) from error
            raise

    def _put_back(self, connection: Any) -> None:
        if self.is_alive(connection):
            with self._lock:
                self._idle.append(connection)
        else:
            with suppress(*self.errors):
                connection.close()
        self._free.release()

    def close(self) -> None:
        with self._lock:
            idle = list(self._idle)
            self._idle.clear()
        close_connections(idle, self._owner)


def close_connections(connections: Sequence[Any], owner: int) -> None:
    """Close the connections if this is the process that opened them."""
    for connection in connections if owner == os.getpid() else ():
        with suppress(Exception):
            connection.close()
