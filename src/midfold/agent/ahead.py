"""A fold made in a thread while the agent goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable

from midfold.live import Draft
from midfold.session import Session


class _Work(threading.Thread):
    """Ends with the program: a draft that nobody waits for is no loss."""

    def __init__(self, make: Callable[[], Draft | None]) -> None:
        super().__init__(name="midfold-ahead", daemon=True)
        self._make = make
        self.draft: Draft | None = None

    def run(self) -> None:
        self.draft = self._make()


class Ahead:
    """At most one draft at a time."""

    def __init__(self) -> None:
        self._work: _Work | None = None

    @property
    def begun(self) -> bool:
        return self._work is not None

    def start(self, session: Session) -> bool:
        """Begins a draft of the session's view; says whether it did."""
        make = None if self.begun else session.draft()
        if make is None:
            return False
        self._work = _Work(make)
        self._work.start()
        return True

    def take(self) -> Draft | None:
        """The draft, waited for; None if there is none, or if making it came to nothing."""
        work, self._work = self._work, None
        if work is None:
            return None
        work.join()
        return work.draft

    def drop(self) -> None:
        """Forgets the draft: what it was made from is gone."""
        self._work = None
