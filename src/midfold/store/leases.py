"""Leases: one compaction at a time per session, across threads, processes and machines.

1. A lease has a time to live and a fence, a number that increases with every holder. A commit checks the fence in its
   own transaction, so a holder whose lease has expired cannot commit.
2. The key is the session's name before the compaction.
3. A long-running holder renews its lease. Renewal may fail a few times in a row (a network error), but not beyond the
   time to live.
4. A lease is released after everything is written. One that is not released expires.
5. Without a lease there is no compaction, also if the store cannot be reached.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple, Protocol

from midfold.errors import StoreError
from midfold.store.database import Database

TTL = 60.0
"""Seconds a lease lives without renewal, which is also the longest time a crashed holder can block others."""
RENEWALS_PER_TTL = 4
MAX_RENEWAL_FAILURES = 3


class Lease(NamedTuple):
    """Temporary right to compact one session."""

    session: str
    holder: str
    fence: int


class CompactionLease(Protocol):
    """Lease protocol, which hosts may implement on their own store."""

    def try_acquire(self, session_id: str) -> Lease | None:
        """Return the lease, or None if another holder has it."""
        ...

    def refresh(self, lease: Lease) -> bool:
        """Extend the lease; return False if it is lost."""
        ...

    def release(self, lease: Lease) -> None:
        """Release the lease; do nothing if it is already lost."""
        ...


class StoredLeases:
    """Leases in a database. PostgreSQL uses the server's clock."""

    def __init__(self, database: Database, ttl: float = TTL) -> None:
        self.database = database
        self.ttl = ttl

    def try_acquire(self, session_id: str) -> Lease | None:
        holder = secrets.token_hex(8)
        values = {"session": session_id, "holder": holder, "ttl": int(self.ttl * 1000)}
        row = self.database.write(lambda tx: tx.one("lease_acquire", **values))
        return None if row is None else Lease(session_id, holder, row[0])

    def refresh(self, lease: Lease) -> bool:
        ttl = int(self.ttl * 1000)
        return self.database.write(lambda tx: tx.run("lease_refresh", **lease._asdict(), ttl=ttl)) == 1

    def release(self, lease: Lease) -> None:
        self.database.write(lambda tx: tx.run("lease_release", **lease._asdict()))

    def forget(self, session_id: str) -> None:
        """Delete the row of a released lease under which nothing was committed: its fence is no longer needed."""
        self.database.write(lambda tx: tx.run("lease_forget", session=session_id))


class Renewal:
    """Background thread that renews a lease until it is stopped or lost."""

    def __init__(self, leases: CompactionLease, lease: Lease, every: float) -> None:
        self.leases, self.lease, self.every = leases, lease, every
        self.lost = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"midfold-lease-{lease.session}", daemon=True)

    def _run(self) -> None:
        failures = 0
        while not self._stop.wait(self.every):
            try:
                if not self.leases.refresh(self.lease):
                    self.lost = True
                    return
                failures = 0
            except StoreError:
                failures += 1
                if failures >= MAX_RENEWAL_FAILURES:
                    self.lost = True
                    return

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def hold_lease(leases: CompactionLease, session_id: str, *, ttl: float = TTL) -> Iterator[tuple[Lease, Renewal] | None]:
    """Acquire the lease, renew it while the block runs, then release it; yield None if another holder has it."""
    lease = leases.try_acquire(session_id)
    if lease is None:
        yield None
        return
    renewal = Renewal(leases, lease, ttl / RENEWALS_PER_TTL)
    renewal.start()
    try:
        yield lease, renewal
    finally:
        renewal.stop()
        _release(leases, lease)


held = hold_lease
"""Public name of `hold_lease`; also `midfold.held`."""


def _release(leases: CompactionLease, lease: Lease) -> None:
    """Release the lease; if the store cannot be reached, leave it to expire."""
    try:
        leases.release(lease)
    except StoreError:
        return
