"""Record requests that pass through a gateway, off the request path.

    recorder = Recorder(sessions)
    gateway.watchers.append(recorder.see)     # every conversation, from its first answered request on
    gateway.accountants.append(recorder)      # or only requests of stored sessions

1. A call only puts an item into a queue; a thread writes many requests per transaction.
2. The queue is bounded in number and bytes. If the store is too slow, requests are dropped and counted; only the
   pages lack them.
3. Only sizes and a conversation's name, model and client are written, never message content.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Sequence
from typing import NamedTuple, Protocol

from midfold.errors import StoreError, StoreUnavailable
from midfold.gateway.usage_events import AnsweredRequest, ConversationNames
from midfold.session.sessions import Sessions
from midfold.store.database import Tx
from midfold.store.usage import LastRequest, LastRequests, ReportedTurn, add_turn, place_conversation, put_last_request
from midfold.store.writing import LockedSession, lock_session
from midfold.transcript.message import Usage

MAX_WAITING = 1_000
MAX_WAITING_BYTES = 64_000_000
"""Maximum bytes of queued requests that are not named yet."""
MAX_BATCH = 200
"""Maximum requests per transaction."""
PAUSE = 0.2
"""Seconds between two transactions, to batch requests."""
TIDY_AFTER = 1_000
"""Requests between two cleanups of abandoned conversations."""
_log = logging.getLogger("midfold.pages")


class FinishedRequest(Protocol):
    """Facts about a finished request; `receipt` is `session#number` if it was compacted."""

    @property
    def model(self) -> str | None: ...
    @property
    def usage(self) -> Usage | None: ...
    @property
    def session(self) -> str | None: ...
    @property
    def receipt(self) -> str | None: ...


class _WaitingTurn(NamedTuple):
    at: int
    session: str | None
    compaction: int | None
    model: str | None
    usage: Usage | None
    answered: AnsweredRequest | None = None


class _Row(NamedTuple):
    """Queued request with its candidate names, the current one first."""

    names: tuple[str, ...]
    messages: int | None
    item: _WaitingTurn


class Recorder:
    """Recorder of finished requests: reported usage is stored as turns, conversations as sessions."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.dropped = 0
        self._sketches = LastRequests(sessions.store.database)
        self._waiting: queue.Queue[_WaitingTurn | None] = queue.Queue(MAX_WAITING)
        self._taken, self._done = 0, 0
        """Bytes queued and bytes processed; written by the callers and by the thread, respectively."""
        self._since_tidy = 0
        self._closing = threading.Event()
        self._thread: threading.Thread | None = None

    def __call__(self, account: FinishedRequest) -> None:
        """Record a request of a stored session, if its usage was reported."""
        if account.usage is not None and account.session is not None:
            self._put(
                _WaitingTurn(self._now(), account.session, _number(account.receipt), account.model, account.usage), 0
            )

    def see(self, answered: AnsweredRequest) -> None:
        """Record a request of any conversation."""
        given = (answered.session, _number(answered.receipt), answered.model, answered.usage)
        self._put(_WaitingTurn(self._now(), *given, answered), answered.held)

    def _now(self) -> int:
        return int(self.sessions.clock() * 1000)

    def _put(self, item: _WaitingTurn, size: int) -> None:
        if self._thread is None:
            self._closing.clear()
            self._thread = threading.Thread(target=self._work, name="midfold-recorder", daemon=True)
            self._thread.start()
        if self._taken - self._done + size > MAX_WAITING_BYTES:
            self.dropped += 1
            return
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self.dropped += 1
        else:
            self._taken += size

    def close(self) -> None:
        """Write the queued requests and stop the thread."""
        if self._thread is not None:
            self._closing.set()
            self._waiting.put(None)
            self._thread.join()
            self._thread = None

    def _work(self) -> None:
        ended = False
        while not ended:
            batch: list[_WaitingTurn | None] = [self._waiting.get()]
            self._closing.wait(PAUSE)
            while len(batch) < MAX_BATCH and not self._waiting.empty():
                batch.append(self._waiting.get())
            ended = None in batch
            self._write_batch([item for item in batch if item is not None])
            batch.clear()  # free the bodies of the last requests while waiting for the next

    def _write_batch(self, batch: Sequence[_WaitingTurn]) -> None:
        rows = [row for item in batch if (row := self._row(item)) is not None]
        # A fixed lock order, so that gateways that write at the same time do not deadlock.
        rows.sort(key=lambda row: (row.names[-1], row.item.at))
        try:
            self._write(rows)
        except StoreUnavailable as error:
            self._drop(len(rows), error)
        except StoreError:
            for row in rows:
                try:
                    self._write([row])
                except StoreError as error:
                    self._drop(1, error)
        self._tidy(len(rows))

    def _drop(self, number: int, error: StoreError) -> None:
        self.dropped += number
        _log.warning("%d requests were not recorded: %s", number, type(error).__name__)

    def _row(self, item: _WaitingTurn) -> _Row | None:
        answered = item.answered
        named = None
        if answered is not None:
            self._done += answered.held
            named = _name(answered)
        if item.session is not None:
            return _Row((item.session,), None if named is None else named.messages, item)
        return None if named is None else _Row(named.names, named.messages, item)

    def _write(self, rows: Sequence[_Row]) -> None:
        if not rows:
            return

        def write(tx: Tx) -> None:
            for row in rows:
                _record(tx, row)

        self.sessions.store.database.write(write)

    def _tidy(self, number: int) -> None:
        self._since_tidy += number
        if self._since_tidy < TIDY_AFTER:
            return
        self._since_tidy = 0
        try:
            self._sketches.forget()
        except StoreError as error:
            _log.warning("dropping old conversations failed: %s", type(error).__name__)


def _record(tx: Tx, row: _Row) -> None:
    """Record one request; do not recreate a deleted session for a compaction that it no longer has."""
    names, messages, item = row
    answered = item.answered
    session: LockedSession | None
    if answered is None or item.session is not None:
        session = lock_session(tx, names[0])
    else:
        session = place_conversation(tx, names, answered.dialect, item.model)
    if session is None:
        return
    count = session.count if messages is None else messages
    bare = 0 if answered is not None and item.session is None else session.compaction
    compaction = bare if item.compaction is None else item.compaction
    if item.usage is not None:
        turn = ReportedTurn(id=0, at=item.at, count=count, compaction=compaction, model=item.model, usage=item.usage)
        add_turn(tx, session.id, turn)
    if answered is not None:
        known = item.usage.prompt_tokens if item.usage is not None else 0
        sketch = LastRequest(
            session=session.id,
            at=item.at,
            count=count,
            compaction=compaction,
            tokens=known or answered.estimated,
            reported=known > 0,
            window=answered.window,
            threshold=answered.threshold,
            client=answered.client,
        )
        put_last_request(tx, sketch, item.model)


def _name(answered: AnsweredRequest) -> ConversationNames | None:
    try:
        return answered.named()
    except Exception as error:  # noqa: BLE001 - one odd request must not end the thread that all others wait for
        _log.warning("naming a request failed: %s", type(error).__name__)
        return None


def _number(receipt: str | None) -> int | None:
    number = (receipt or "").rpartition("#")[2]
    return int(number) if number.isascii() and number.isdigit() else None
