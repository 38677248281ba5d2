"""What a process keeps of a session between two calls: a copy of the view, and the totals over it.

The store is the truth. The copy is brought up to date at every call: by what is new, or as a whole after a compaction.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import msgspec

from midfold.cache.health import Health
from midfold.errors import StoreDamaged
from midfold.fold.request import CompactionRequest, CompactionState, Outcome
from midfold.host import EngineHost
from midfold.store import SqlStore
from midfold.store.protocol import Commit, Item, SessionInfo
from midfold.store.writing import FRESH
from midfold.transcript.message import Message, Transcript
from midfold.transcript.tokens import Calibration, Tally


class Memory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a session has learnt, as the store keeps it."""

    state: CompactionState = CompactionState()
    ratio: float = 1.0
    samples: int = 0
    anchor: Tally | None = None
    anchor_tokens: int = 0
    anchor_fixed: int = 0
    cooldown: int = 0
    noted: bool = False
    """Whether the system prompt has its note."""
    health: Health = Health()
    """What the provider's cache did, turn by turn."""

    @property
    def calibration(self) -> Calibration:
        return Calibration(self.ratio, self.samples, self.anchor, self.anchor_tokens, self.anchor_fixed)


def memory_of(info: SessionInfo) -> Memory:
    """What a session has learnt, from its row."""
    try:
        return msgspec.json.decode(info.memory, type=Memory) if info.memory else Memory()
    except (msgspec.MsgspecError, ValueError):
        raise StoreDamaged(f"what session {info.name} remembers cannot be read") from None


class Live(NamedTuple):
    """The view as it was last seen."""

    info: SessionInfo
    items: tuple[Item, ...]
    memory: Memory

    @property
    def messages(self) -> Transcript:
        return tuple(item.message for item in self.items)


class Draft(NamedTuple):
    """A compaction made ahead of time, from the view as it was then; `Session.compact` swaps it in."""

    live: Live
    request: CompactionRequest
    outcome: Outcome

    def fitted(self, live: Live) -> Outcome | None:
        """The draft and everything that was said since; None if the view it was made from is no longer there."""
        made = self.live.items
        known = live.items[: len(made)]
        same = live.info.compaction == self.live.info.compaction and len(known) == len(made)
        if not same or not all(now is then for now, then in zip(known, made, strict=True)):
            return None
        since = tuple(item.message for item in live.items[len(made) :])
        return msgspec.structs.replace(self.outcome, messages=(*self.outcome.messages, *since))


class Kept:
    """The copy of one session's view."""

    def __init__(self, store: SqlStore, name: str, host: EngineHost) -> None:
        self.store, self.name, self.host = store, name, host
        self._seen: Live | None = None
        self._counted = 0

    def forget(self) -> None:
        self._seen = None

    def view(self) -> Live | None:
        """The view now; None before the first message."""
        info = self.store.info(self.name)
        if info is None:
            self._seen = None
            return None
        seen = self._seen
        same = seen is not None and (seen.info.id, seen.info.compaction) == (info.id, info.compaction)
        if seen is None or not same or seen.info.dialect != info.dialect:
            items, self._counted = self.store.view(info), 0
        else:
            items = (
                (*seen.items, *self.store.tail(info, seen.info.count)) if info.count > seen.info.count else seen.items
            )
        self._seen = Live(info, items, memory_of(info))
        return self._seen

    def measured(self) -> Live | None:
        """The same, with the host's running totals brought up to date."""
        live = self.view()
        if live is None:
            return None
        if not self._counted:
            self.host.adopt(live.messages, live.memory.state, live.memory.calibration)
        else:
            self.host.state, self.host.calibration = live.memory.state, live.memory.calibration
            self.host.extend(tuple(item.message for item in live.items[self._counted :]))
        self._counted = len(live.items)
        return live

    def remember(self, live: Live, **changed: Any) -> None:
        """Writes down what the host has learnt since."""
        learnt = self.host.calibration
        memory = msgspec.structs.replace(
            live.memory,
            state=self.host.state,
            ratio=learnt.ratio,
            samples=learnt.samples,
            anchor=learnt.anchor,
            anchor_tokens=learnt.anchor_tokens,
            anchor_fixed=learnt.anchor_fixed,
            **changed,
        )
        self.store.remember(live.info, msgspec.json.encode(memory))


def commit_of(
    live: Live, request: CompactionRequest, outcome: Outcome, calibration: Calibration, child: str | None
) -> Commit:
    """An engine's outcome as rows: every message of the new view by where it is from."""
    known = {id(item.message): item for item in live.items}
    sources = {id(item.message.wire): item for item in live.items}

    def item(message: Message) -> Item:
        found = known.get(id(message))
        if found is not None:
            return found
        source = sources.get(id(message.origin)) if message.wire is None and message.origin is not None else None
        return Item(message, source.position, FRESH) if source and source.position is not None else Item(message)

    receipt = outcome.receipt
    if child is not None:
        receipt = msgspec.structs.replace(receipt, persistence="child_continuation")
    noted = live.memory.noted or outcome.system is not request.system
    memory = Memory(state=outcome.state, ratio=calibration.ratio, samples=calibration.samples, noted=noted)
    memory = msgspec.structs.replace(memory, health=live.memory.health)
    return Commit(
        base=live.info.compaction,
        upto=live.info.count,
        view=tuple(map(item, outcome.messages)),
        handles={handle: tuple(map(item, kept)) for handle, kept in outcome.archive.items()},
        receipt=receipt,
        state=outcome.state,
        noted=noted,
        memory=msgspec.json.encode(memory),
        child=child,
    )
