"""Turns a client never saw, by the messages they came after; put back into every later request.

Rules of this file:
1. A turn is found by the chain of the client's own messages before it, not by the answer after it: clients write
   answers down in their own way.
2. They are kept in the store, one record each, so that another gateway, or this one after a restart, puts back the very
   same bytes. Memory is brought up to date by what is new.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import Any

import msgspec
from msgspec import Raw

from midfold.core import jsonio
from midfold.core.message import Message, Transcript
from midfold.gateway.conversation import OURS, Conversation
from midfold.store import SqlStore
from midfold.store.bodies import Entry
from midfold.wire.dialect import Dialect

MOST_KNOWN = 2_000


class Record(msgspec.Struct, frozen=True):
    """One hidden run: messages after those with this chain."""

    after: str
    messages: tuple[Raw, ...]


class _Known:
    def __init__(self) -> None:
        self.read = 0
        self.runs: dict[bytes, tuple[Raw, ...]] = {}


class Hidden:
    """All hidden turns of all conversations."""

    def __init__(self, store: SqlStore) -> None:
        self._store = store
        self._known: OrderedDict[str, _Known] = OrderedDict()
        self._lock = threading.Lock()

    def put_back(self, conversation: Conversation) -> Conversation:
        """The conversation with its hidden turns; the very same if it has none."""
        runs = self._runs(conversation)
        if not runs:
            return conversation
        talk: list[Message] = []
        for message, chain in zip(conversation.talk, conversation.chains, strict=True):
            talk.append(message)
            talk += (Message.over(raw, conversation.dialect.read) for raw in runs.get(chain, ()))
        return conversation if len(talk) == len(conversation.talk) else conversation.with_talk(tuple(talk))

    def keep(self, conversation: Conversation, messages: Transcript) -> None:
        """Writes a run down; `conversation` is the request as the client sent it."""
        raws = [bytes(message.wire) for message in messages]
        after = conversation.chains[-1].hex()
        record = b'{"after":"' + after.encode() + b'","messages":[' + b",".join(raws) + b"]}"
        entry = Entry(Message.over(Raw(record), conversation.dialect.read), conversation.dialect)
        self._store.append(_name(conversation), [entry], dialect=conversation.dialect.name)
        self._runs(conversation)

    def _runs(self, conversation: Conversation) -> dict[bytes, tuple[Raw, ...]]:
        name = _name(conversation)
        with self._lock:
            known = self._known.setdefault(name, _Known())
            self._known.move_to_end(name)
            if len(self._known) > MOST_KNOWN:
                self._known.popitem(last=False)
            info = self._store.info(name)
            if info is not None and info.count > known.read:
                for row in self._store.history_of(info, known.read):
                    record = msgspec.json.decode(bytes(row.message.wire), type=Record)
                    known.runs[bytes.fromhex(record.after)] = record.messages
                known.read = info.count
            return known.runs


def _name(conversation: Conversation) -> str:
    """One for all conversations that begin alike: the chains in its records tell them apart."""
    return f"{OURS}hidden-{conversation.chains[0].hex()[:24]}"


def raw_messages(values: list[Any], dialect: type[Dialect]) -> Transcript:
    """Messages over the bytes of these values."""
    return tuple(Message.over(Raw(jsonio.encode(value)), dialect.read) for value in values)
