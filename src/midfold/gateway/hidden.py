"""Turns a client never saw, by the messages they came after; put back into every later request.

Rules of this file:
1. A turn is found by whose it is, by the system prompt, and by the chain of all of the client's messages before it:
   another owner, another prompt or another word before it is another conversation. It is not found by the answer after
   it: clients write answers down in their own way.
2. What a client was shown of such a turn while it streamed stands in the answer that the client wrote down, too. It is
   taken out there: to the provider the conversation is what it was.
3. They are kept in the store, one record each, so that another gateway, or this one after a restart, puts back the very
   same bytes. What stands where is asked of the store each time, what it is only once. Nobody waits for another's
   question.
4. Where originals are stored redacted, so are these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw

from midfold.fold.request import Redactor
from midfold.gateway.conversation import Conversation
from midfold.gateway.joined import Seen, seen_item
from midfold.gateway.owner import Owner
from midfold.lru import LRU
from midfold.store import SqlStore
from midfold.store.intake import redact_json
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.jsonio import elements, entries
from midfold.transcript.message import Message, Transcript, plain
from midfold.transcript.splice import replace_values

MOST_KNOWN, MOST_BYTES = 20_000, 24_000_000
"""Of records in memory."""


class Record(msgspec.Struct, frozen=True):
    """One hidden run."""

    messages: tuple[Raw, ...]
    seen: tuple[Seen, ...] = ()


class Hidden:
    """All hidden turns of all conversations."""

    def __init__(self, store: SqlStore, redactor: Redactor | None = None) -> None:
        self._turns = store.hidden_turns
        self._redactor = redactor
        self._known: LRU[bytes, tuple[Record, int]] = LRU(MOST_KNOWN, most_bytes=MOST_BYTES, size=lambda one: one[1])

    def put_back(self, owner: Owner, conversation: Conversation) -> Conversation:
        """The conversation with its hidden turns; the very same if it has none."""
        runs = self._runs(owner, conversation)
        if not runs:
            return conversation
        talk: list[Message] = []
        seen: Sequence[Seen] = ()
        for message, chain in zip(conversation.talk, conversation.chains, strict=True):
            left, seen = unsaid(message, seen, conversation.dialect) if seen else (message, seen)
            talk += () if left is None else (left,)
            run = runs.get(chain.hex())
            if run is not None:
                seen = run.seen
                talk += (Message.over(raw, conversation.dialect.read) for raw in run.messages)
        return conversation.with_talk(tuple(talk))

    def keep(
        self,
        owner: Owner,
        conversation: Conversation,
        messages: Transcript,
        seen: Sequence[Seen] = (),
        session: str = "",
    ) -> None:
        """Writes a run down; `conversation` is the request as the client sent it, `seen` what it saw of the run.

        `session` is whose originals the run may quote: the run is deleted with it.
        """
        raws = [bytes(message.wire) for message in messages]
        shown = jsonio.encode([list(one) for one in seen])
        if self._redactor is not None:
            raws = [redact_json(raw, self._redactor) for raw in raws]
            shown = redact_json(shown, self._redactor)
        record = b'{"messages":[' + b",".join(raws) + b'],"seen":' + shown + b"}"
        place = place_of(owner, conversation)
        self._turns.keep(place, conversation.chains[-1].hex(), record, session=session)

    def _runs(self, owner: Owner, conversation: Conversation) -> dict[str, Record]:
        place = place_of(owner, conversation)
        found = self._turns.find(place, [chain.hex() for chain in conversation.chains])
        runs = {one.chain: known[0] for one in found if (known := self._known.get(one.digest)) is not None}
        missing = [one.chain for one in found if one.chain not in runs]
        for one, data in self._turns.read(place, missing).items() if missing else ():
            runs[one.chain] = record = msgspec.json.decode(data, type=Record)
            self._known.put(one.digest, (record, len(data)))
        return runs


def place_of(owner: Owner, conversation: Conversation) -> str:
    """Where the runs of a conversation are kept: nobody else, and no other system prompt, leads there."""
    prompt = conversation.prompt_digest
    return owner.bind(b"hidden turns", conversation.dialect.name.encode(), prompt)


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
