"""One compaction at a time per session, across threads, processes and machines.

1. A lease has a time to live and a fence: a number that grows with every holder. Whoever commits shows the fence, and
   the commit checks it in its own transaction; a holder that slept past its time cannot commit, whatever it believes.
2. The key is the session's name before the compaction.
3. A holder that works long renews. Renewing may fail a few times in a row (a network blip), never longer than the
   lease lives.
4. A lease is released after everything is written down. One that is not released runs out by itself.
5. Who cannot get a lease does not compact: a store that does not answer is no permission.
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
"""Seconds a lease lives without being renewed: the longest a crashed holder can block others."""
RENEWALS_PER_TTL = 4
MOST_FAILURES = 3


class Lease(NamedTuple):
    """The right to compact one session, for a while."""

    session: str
    holder: str
    fence: int


class CompactionLease(Protocol):
    """The contract, for hosts with a store of their own, too."""

    def try_acquire(self, session_id: str) -> Lease | None:
        """The lease, or None while somebody else holds it."""
        ...

    def refresh(self, lease: Lease) -> bool:
        """Makes it live longer; False once it is lost."""
        ...

    def release(self, lease: Lease) -> None:
        """Gives it back; one that is lost already is left alone."""
        ...


class StoredLeases:
    """Leases in a database; on PostgreSQL the clock is the server's."""

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
        """Takes away what a released lease leaves: of one under which nothing is committed, nobody needs the fence."""
        self.database.write(lambda tx: tx.run("lease_forget", session=session_id))


class Renewal:
    """Renews a lease in the background until it is stopped or lost."""

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
                if failures >= MOST_FAILURES:
                    self.lost = True
                    return

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@contextmanager
def hold_lease(leases: CompactionLease, session_id: str, *, ttl: float = TTL) -> Iterator[tuple[Lease, Renewal] | None]:
    """The lease, renewed while the block runs and released after it; None if somebody else holds it."""
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
"""The name that hosts import; also `midfold.held`."""


def _release(leases: CompactionLease, lease: Lease) -> None:
    """A store that cannot be reached now keeps the lease until it runs out; what was done stays done."""
    try:
        leases.release(lease)
    except StoreError:
        return
