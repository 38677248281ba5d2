"""Turns a client never saw, by the messages they came after; put back into every later request.

Rules of this file:
1. A turn is found by the chain of the client's own messages before it, not by the answer after it: clients write
   answers down in their own way.
2. What a client was shown of such a turn while it streamed stands in the answer that the client wrote down, too. It is
   taken out there: to the provider the conversation is what it was.
3. They are kept in the store, one record each, so that another gateway, or this one after a restart, puts back the very
   same bytes. Memory is brought up to date by what is new.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from midfold.core import jsonio
from midfold.core.message import Message, Transcript, plain
from midfold.core.spans import elements, entries
from midfold.gateway.conversation import OURS, Conversation
from midfold.gateway.joined import Seen, seen_item
from midfold.store import SqlStore
from midfold.store.bodies import Entry
from midfold.wire.dialect import Dialect
from midfold.wire.splice import replace_values

MOST_KNOWN = 2_000


class Record(msgspec.Struct, frozen=True):
    """One hidden run: messages after those with this chain."""

    after: str
    messages: tuple[Raw, ...]
    seen: tuple[Seen, ...] = ()


class _Known:
    def __init__(self) -> None:
        self.read = 0
        self.runs: dict[bytes, Record] = {}


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
        seen: Sequence[Seen] = ()
        found = False
        for message, chain in zip(conversation.talk, conversation.chains, strict=True):
            left, seen = unsaid(message, seen, conversation.dialect) if seen else (message, seen)
            talk += () if left is None else (left,)
            run = runs.get(chain)
            if run is not None:
                found, seen = True, run.seen
                talk += (Message.over(raw, conversation.dialect.read) for raw in run.messages)
        return conversation.with_talk(tuple(talk)) if found else conversation

    def keep(self, conversation: Conversation, messages: Transcript, seen: Sequence[Seen] = ()) -> None:
        """Writes a run down; `conversation` is the request as the client sent it, `seen` what it saw of the run."""
        raws = [bytes(message.wire) for message in messages]
        after = conversation.chains[-1].hex()
        record = b'{"after":"' + after.encode() + b'","messages":[' + b",".join(raws)
        record += b'],"seen":' + jsonio.encode([list(one) for one in seen]) + b"}"
        entry = Entry(Message.over(Raw(record), conversation.dialect.read), conversation.dialect)
        self._store.append(_name(conversation), [entry], dialect=conversation.dialect.name)
        self._runs(conversation)

    def _runs(self, conversation: Conversation) -> dict[bytes, Record]:
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
                    known.runs[bytes.fromhex(record.after)] = record
                known.read = info.count
            return known.runs


def _name(conversation: Conversation) -> str:
    """One for all conversations that begin alike: the chains in its records tell them apart."""
    return f"{OURS}hidden-{conversation.chains[0].hex()[:24]}"


def raw_messages(values: list[Any], dialect: type[Dialect]) -> Transcript:
    """Messages over the bytes of these values."""
    return tuple(Message.over(Raw(jsonio.encode(value)), dialect.read) for value in values)


def unsaid(message: Message, seen: Sequence[Seen], dialect: type[Dialect]) -> tuple[Message | None, Sequence[Seen]]:
    """A client's record of an answer without what it saw of hidden turns, and what of that is still to be found.

    What does not begin with it is left as it is: clients write answers down in their own way.
    """
    value = plain(message.wire) if isinstance(message.wire, Raw) else None
    if not isinstance(value, Mapping):
        return message, ()
    if dialect.list_key == "input" and seen_item(value) == seen[0]:
        return None, seen[1:]
    if message.role != "assistant":
        return message, ()
    raw = bytes(message.wire)
    content = _unsaid(value.get("content"), entries(raw).get("content"), seen)
    if content is None:
        return message, ()
    return Message.over(Raw(replace_values(raw, {"content": content})), dialect.read), ()


def _unsaid(content: Any, raw: Raw | None, seen: Sequence[Seen]) -> bytes | None:
    """The content that is left, as JSON; None if it does not begin with what was seen, or is nothing else."""
    said = [one for one in seen if one.kind == "text"]
    prefix = "".join(one.text for one in said)
    if isinstance(content, str):
        begins = prefix and content.startswith(prefix) and len(content) > len(prefix)
        return jsonio.encode(content[len(prefix) :]) if begins else None
    if not isinstance(content, list) or raw is None:
        return None
    blocks = elements(raw)
    for expected in (seen, said):
        if expected and len(content) > len(expected) and all(map(_is_same, content, expected)):
            return b"[" + b",".join(bytes(block) for block in blocks[len(expected) :]) + b"]"
    first = content[0].get("text") if content and isinstance(content[0], Mapping) else None
    if not (isinstance(first, str) and prefix and first.startswith(prefix) and len(first) > len(prefix)):
        return None
    changed = replace_values(bytes(blocks[0]), {"text": jsonio.encode(first[len(prefix) :])})
    return b"[" + b",".join([changed, *(bytes(block) for block in blocks[1:])]) + b"]"


def _is_same(block: Any, seen: Seen) -> bool:
    texts = [block.get(key) for key in ("text", "thinking", "data")] if isinstance(block, Mapping) else []
    return seen.text in texts
