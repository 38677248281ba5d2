"""Checkpoints this process knows: the same prefix gets the same bytes.

Rules of this file:
1. What is in memory is not read from the store again. Only whether it still holds is asked, by its key: somebody may
   have undone a compaction, or deleted a session, from anywhere.
2. A store that does not answer takes nothing away.
"""

from __future__ import annotations

from midfold.errors import StoreError
from midfold.gateway.conversation import Conversation
from midfold.lru import LRU
from midfold.service import Sessions
from midfold.store.sync import Checkpoint

MOST_BYTES = 24_000_000
MOST = 20_000


class Checkpoints:
    """By the chain of what they replace; the ones used last are kept. Threads may share it."""

    def __init__(self, sessions: Sessions | None) -> None:
        self._sessions = sessions
        self._known: LRU[tuple[str, bytes], Checkpoint] = LRU(MOST, most_bytes=MOST_BYTES, size=_size)

    def known(self, conversation: Conversation, name: str) -> Checkpoint | None:
        """The longest one in memory that fits."""
        if not self._known:
            return None
        space, chains = space_of(name), conversation.chains
        for count in range(len(chains), 0, -1):
            key = (space, chains[count - 1])
            found = self._known.peek(key)
            if found is not None and found.count == count:
                self._known.get(key)
                return found
        return None

    def stored(self, conversation: Conversation, name: str) -> Checkpoint | None:
        """The longest one in the store that fits; it is remembered."""
        if self._sessions is None:
            return None
        found = self._sessions.store.checkpoints.find(name, conversation.lengths)
        if found is not None:
            self.remember(found)
        return found

    def find(self, conversation: Conversation, name: str) -> Checkpoint | None:
        """The longest one that fits and is in force."""
        while (found := self.known(conversation, name)) is not None:
            if self._holds(found):
                return found
            self._known.forget(key_of(found), found)
        return self.stored(conversation, name)

    def _holds(self, checkpoint: Checkpoint) -> bool:
        try:
            return self._sessions is None or self._sessions.store.checkpoints.is_in_force(
                checkpoint.session, checkpoint.seq
            )
        except StoreError:
            return True

    def remember(self, checkpoint: Checkpoint) -> None:
        self._known.put(key_of(checkpoint), checkpoint)


def key_of(checkpoint: Checkpoint) -> tuple[str, bytes]:
    return (space_of(checkpoint.session), checkpoint.chain)


def named(namespace: str, name: str) -> str:
    """A session's name inside a namespace."""
    return f"{namespace}/{name}" if namespace else name


def space_of(name: str) -> str:
    """The namespace of a session's name."""
    return name.rpartition("/")[0]


def _size(checkpoint: Checkpoint) -> int:
    return 200 + sum(len(stand.data or b"") + 80 for stand in checkpoint.parts)
