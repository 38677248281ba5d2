"""A compactor that crashed blocks the next one for as long as its lease lives, and not longer."""

from __future__ import annotations

from pathlib import Path

import midfold
from midfold.testing import FakeClock
from support.build import PORTING, WINDOW


def test_a_crashed_compactor_blocks_for_its_lease_and_not_longer(tmp_path: Path) -> None:
    clock, url = FakeClock(), f"sqlite:///{tmp_path}/s.db"
    with midfold.open(url, clock=clock, lease_seconds=45) as crashed:
        crashed.session("s").append(PORTING)
        lease = crashed.leases.try_acquire("s")
        assert lease is not None
        with midfold.open(url, clock=clock, lease_seconds=45) as sessions:
            session = sessions.session("s", context_length=WINDOW)
            clock.advance(44.9)
            assert session.compact().receipt.status == "already_in_flight"
            assert len(session.view().messages) == len(PORTING)
            clock.advance(0.2)
            assert session.compact().receipt.status == "compacted"
        assert not crashed.leases.refresh(lease)


def test_a_lease_that_is_refreshed_lives_on(tmp_path: Path) -> None:
    clock = FakeClock()
    with midfold.open(f"sqlite:///{tmp_path}/s.db", clock=clock, lease_seconds=45) as sessions:
        lease = sessions.leases.try_acquire("s")
        assert lease is not None
        clock.advance(44)
        assert sessions.leases.refresh(lease)
        clock.advance(44)
        assert sessions.leases.try_acquire("s") is None
        clock.advance(1.1)
        assert not sessions.leases.refresh(lease)
        assert sessions.leases.try_acquire("s") is not None
