"""Writes down what providers reported, beside the requests and never in their way.

    recorder = Recorder(sessions)
    gateway.accountants.append(recorder)

Rules of this file:
1. Calling it costs a look and a place in a queue. A thread of its own writes.
2. If the store is slower than the requests for long, turns are dropped and counted: pages lack them, nothing else does.
"""

from __future__ import annotations

import logging
import queue
import threading
from typing import NamedTuple, Protocol

from midfold.core.usage import Usage
from midfold.errors import StoreError
from midfold.service import Sessions
from midfold.turns import Turns

MOST_WAITING = 1_000
_log = logging.getLogger("midfold.pages")


class Account(Protocol):
    """What must be known about a request that is over. `receipt` is `session#number` if something was folded for it."""

    @property
    def model(self) -> str | None: ...
    @property
    def usage(self) -> Usage | None: ...
    @property
    def session(self) -> str | None: ...
    @property
    def receipt(self) -> str | None: ...


class _Waiting(NamedTuple):
    session: str
    usage: Usage
    model: str | None
    compaction: int | None
    at: int


class Recorder:
    """Takes accounts of requests; those of a stored session with reported usage become turns."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.dropped = 0
        self._turns = Turns(sessions.store)
        self._waiting: queue.Queue[_Waiting | None] = queue.Queue(MOST_WAITING)
        self._thread: threading.Thread | None = None

    def __call__(self, account: Account) -> None:
        if account.usage is None or account.session is None:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="midfold-recorder", daemon=True)
            self._thread.start()
        at = int(self.sessions.clock() * 1000)
        try:
            self._waiting.put_nowait(
                _Waiting(account.session, account.usage, account.model, _number(account.receipt), at)
            )
        except queue.Full:
            self.dropped += 1

    def close(self) -> None:
        """Writes what is waiting and ends."""
        if self._thread is not None:
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                info = self.sessions.store.info(item.session)
                if info is not None:
                    self._turns.record(info, item.usage, at=item.at, model=item.model, compaction=item.compaction)
            except StoreError as error:
                self.dropped += 1
                _log.warning("a turn was not recorded: %s", type(error).__name__)


def _number(receipt: str | None) -> int | None:
    number = (receipt or "").rpartition("#")[2]
    return int(number) if number.isascii() and number.isdigit() else None
