"""Checkpoints this process knows: the same prefix gets the same bytes.

Rules of this file:
1. What is in memory is not read from the store again. Only whether it still holds is asked, by its key: somebody may
   have undone a compaction, or deleted a session, from anywhere.
2. A store that does not answer takes nothing away.
"""

from __future__ import annotations

import threading
from collections import OrderedDict

from midfold.errors import StoreError
from midfold.gateway.conversation import Conversation
from midfold.service import Sessions
from midfold.store.checkpoints import Checkpoint

MOST_BYTES = 24_000_000
MOST = 20_000


class Checkpoints:
    """By the chain of what they replace; the ones used last are kept. Threads may share it."""

    def __init__(self, sessions: Sessions | None) -> None:
        self._sessions = sessions
        self._known: OrderedDict[tuple[str, bytes], Checkpoint] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def known(self, conversation: Conversation, name: str) -> Checkpoint | None:
        """The longest one in memory that fits."""
        if not self._known:
            return None
        space, chains = space_of(name), conversation.chains
        with self._lock:
            for count in range(len(chains), 0, -1):
                key = (space, chains[count - 1])
                found = self._known.get(key)
                if found is not None and found.count == count:
                    self._known.move_to_end(key)
                    return found
        return None

    def stored(self, conversation: Conversation, name: str) -> Checkpoint | None:
        """The longest one in the store that fits; it is remembered."""
        if self._sessions is None:
            return None
        found = self._sessions.store.checkpoint(name, conversation.lengths)
        if found is not None:
            self.remember(found)
        return found

    def find(self, conversation: Conversation, name: str) -> Checkpoint | None:
        """The longest one that fits and is in force."""
        while (found := self.known(conversation, name)) is not None:
            if self._holds(found):
                return found
            self._forget(found)
        return self.stored(conversation, name)

    def _holds(self, checkpoint: Checkpoint) -> bool:
        try:
            return self._sessions is None or self._sessions.store.is_in_force(checkpoint.session, checkpoint.seq)
        except StoreError:
            return True

    def _forget(self, checkpoint: Checkpoint) -> None:
        with self._lock:
            if self._known.get(key_of(checkpoint)) is checkpoint:
                del self._known[key_of(checkpoint)]
                self._bytes -= _size(checkpoint)

    def remember(self, checkpoint: Checkpoint) -> None:
        key = key_of(checkpoint)
        with self._lock:
            before = self._known.pop(key, None)
            self._bytes += _size(checkpoint) - (0 if before is None else _size(before))
            self._known[key] = checkpoint
            while self._known and (self._bytes > MOST_BYTES or len(self._known) > MOST):
                _, oldest = self._known.popitem(last=False)
                self._bytes -= _size(oldest)


def key_of(checkpoint: Checkpoint) -> tuple[str, bytes]:
    return (space_of(checkpoint.session), checkpoint.chain)


def named(namespace: str, name: str) -> str:
    """A session's name inside a namespace."""
    return f"{namespace}/{name}" if namespace else name


def space_of(name: str) -> str:
    """The namespace of a session's name."""
    return name.rpartition("/")[0]


def _size(checkpoint: Checkpoint) -> int:
    return 200 + sum(len(stand.data or b"") + 80 for stand in checkpoint.stands)
