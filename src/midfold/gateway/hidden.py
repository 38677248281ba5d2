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

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from midfold.fold.receipt import RecallCost
from midfold.fold.request import Redactor
from midfold.gateway.exchange import Owner
from midfold.gateway.joined import ShownPart, seen_item
from midfold.gateway.measuring import ClientHistory
from midfold.lru import LRU
from midfold.store import SqlStore
from midfold.store.intake import redact_json
from midfold.store.sync import Checkpoint
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.jsonio import elements, entries
from midfold.transcript.message import Message, Transcript, plain
from midfold.transcript.replies import ModelAnswer, result_messages
from midfold.transcript.splice import replace_values

MOST_KNOWN, MOST_BYTES = 20_000, 24_000_000
"""Of records in memory."""


class BesideCalls(msgspec.Struct, frozen=True):
    """Hidden calls of a turn that is the client's, and their results, as their dialect writes them."""

    calls: tuple[Raw, ...] = ()
    results: tuple[Raw, ...] = ()

    @classmethod
    def of(cls, dialect: str, turn: ModelAnswer, answers: list[tuple[str, str]]) -> BesideCalls:
        """Of the calls of a turn that these are the answers to."""
        ids, results = {call for call, _ in answers}, result_messages(dialect, answers)
        if dialect == "openai-responses":
            calls = [item for item in turn.messages if item.get("call_id") in ids]
        else:
            parts = turn.message["content" if dialect == "anthropic" else "tool_calls"]
            calls = [part for part in parts if part.get("id") in ids]
        results = results[0]["content"] if dialect == "anthropic" else results
        return cls(*(tuple(Raw(jsonio.encode(value)) for value in values) for values in (calls, results)))

    def put_into(self, message: Message, dialect: type[Dialect]) -> tuple[list[Raw], BesideCalls | None]:
        """The messages that stand for one of the client's, and what is still to be put in; nothing is, where the client
        did not go on as the turn did."""
        raw = bytes(message.wire) if isinstance(message.wire, Raw) else b"{}"
        value, own = plain(Raw(raw)), [Raw(raw)]
        if dialect.list_key == "input":
            if value.get("type") == "function_call_output":
                return [*self.calls, *self.results, *own], None
            return own, None if message.role == "user" else self
        if dialect.name == "openai-chat":
            if message.role != "assistant" or not value.get("tool_calls"):
                return own, None
            return [_append_to(raw, "tool_calls", self.calls), *self.results], None
        if not isinstance(value.get("content"), list):
            return own, None
        if self.calls:
            is_turn = message.role == "assistant"
            done = msgspec.structs.replace(self, calls=())
            return ([_append_to(raw, "content", self.calls)], done) if is_turn else (own, None)
        return [_append_to(raw, "content", self.results, first=True)], None


def _append_to(raw: bytes, key: str, more: Sequence[Raw], *, first: bool = False) -> Raw:
    """A message with more in one of its lists."""
    own = elements(entries(raw)[key])
    whole = (*more, *own) if first else (*own, *more)
    return Raw(replace_values(raw, {key: b"[" + b",".join(bytes(one) for one in whole) + b"]"}))


class Record(msgspec.Struct, frozen=True):
    """One hidden run as it is stored."""

    messages: tuple[Raw, ...]
    seen: tuple[ShownPart, ...] = ()
    cost: RecallCost = RecallCost()
    beside: BesideCalls | None = None


class HiddenRun(NamedTuple):
    """Hidden turns after one request: their messages, what the client saw of them, what they cost, and hidden calls of
    the turn after them, which is the client's."""

    messages: Transcript
    seen: tuple[ShownPart, ...]
    cost: RecallCost
    beside: BesideCalls | None = None


class OfferMemory:
    """Which tools a conversation was offered, as bytes, by the messages that were folded first."""

    def __init__(self, store: SqlStore) -> None:
        self._turns = store.hidden_turns
        self._known: LRU[tuple[str, str], bytes] = LRU(MOST_KNOWN, most_bytes=MOST_BYTES, size=len)

    def find(self, owner: Owner, conversation: ClientHistory) -> bytes:
        """What it was offered first; nothing if it never was."""
        place, chains = self._place(owner, conversation), [chain.hex() for chain in conversation.chains]
        known = next((one for chain in chains if (one := self._known.peek((place, chain)))), b"")
        if known:
            return known
        found = {one.chain for one in self._turns.find(place, chains)}
        first = next((chain for chain in chains if chain in found), "")
        for _, data in self._turns.read(place, [first]).items() if first else ():
            self._known.put((place, first), data)
            return data
        return b""

    def keep(self, owner: Owner, conversation: ClientHistory, definitions: bytes, checkpoint: Checkpoint) -> None:
        """Writes down what a conversation is offered from this checkpoint on; it is deleted with its session."""
        place = self._place(owner, conversation)
        chain = conversation.chains[min(checkpoint.count, len(conversation.chains)) - 1].hex()
        self._turns.keep(place, chain, definitions, session=checkpoint.session)
        self._known.put((place, chain), definitions)

    def _place(self, owner: Owner, conversation: ClientHistory) -> str:
        return owner.bind(b"recall tools", conversation.dialect.name.encode())


class HiddenTurnMemory:
    """All hidden turns of all conversations."""

    def __init__(self, store: SqlStore, redactor: Redactor | None = None) -> None:
        self._turns = store.hidden_turns
        self._redactor = redactor
        self._known: LRU[bytes, tuple[Record, int]] = LRU(MOST_KNOWN, most_bytes=MOST_BYTES, size=lambda one: one[1])

    def put_back(self, owner: Owner, conversation: ClientHistory) -> ClientHistory:
        """The conversation with its hidden turns; the very same if it has none."""
        runs = self._runs(owner, conversation)
        if not runs:
            return conversation
        talk: list[Message] = []
        seen: Sequence[ShownPart] = ()
        beside: BesideCalls | None = None
        dialect = conversation.dialect
        for message, chain in zip(conversation.talk, conversation.chains, strict=True):
            left, seen = without_hidden(message, seen, dialect) if seen else (message, seen)
            if left is not None and beside is not None:
                put, beside = beside.put_into(left, dialect)
                talk += (Message.over(raw, dialect.read) for raw in put)
            elif left is not None:
                talk.append(left)
            run = runs.get(chain.hex())
            if run is not None:
                seen, beside = run.seen, run.beside
                talk += (Message.over(raw, dialect.read) for raw in run.messages)
        whole = conversation.with_talk(tuple(talk))
        whole.recall = total_cost(run.cost for run in runs.values())
        return whole

    def keep(self, owner: Owner, conversation: ClientHistory, run: HiddenRun, session: str = "") -> None:
        """Writes a run down; `conversation` is the request as the client sent it.

        `session` is whose originals the run may quote: the run is deleted with it.
        """
        record = Record(tuple(Raw(bytes(one.wire)) for one in run.messages), run.seen, run.cost, run.beside)
        data = jsonio.encode(record)
        if self._redactor is not None:
            data = redact_json(data, self._redactor)
        place = place_of(owner, conversation)
        self._turns.keep(place, conversation.chains[-1].hex(), data, session=session)

    def _runs(self, owner: Owner, conversation: ClientHistory) -> dict[str, Record]:
        place = place_of(owner, conversation)
        found = self._turns.find(place, [chain.hex() for chain in conversation.chains])
        runs = {one.chain: known[0] for one in found if (known := self._known.get(one.digest)) is not None}
        missing = [one.chain for one in found if one.chain not in runs]
        for one, data in self._turns.read(place, missing).items() if missing else ():
            runs[one.chain] = record = msgspec.json.decode(data, type=Record)
            self._known.put(one.digest, (record, len(data)))
        return runs


def total_cost(costs: Iterable[RecallCost]) -> RecallCost:
    """What several runs have cost together."""
    several = tuple(costs)
    return RecallCost(
        rounds=sum(one.rounds for one in several),
        prompt_tokens=sum(one.prompt_tokens for one in several),
        cached_tokens=sum(one.cached_tokens for one in several),
        output_tokens=sum(one.output_tokens for one in several),
    )


def place_of(owner: Owner, conversation: ClientHistory) -> str:
    """Where the runs of a conversation are kept: nobody else, and no other system prompt, leads there."""
    prompt = conversation.prompt_digest
    return owner.bind(b"hidden turns", conversation.dialect.name.encode(), prompt)


def raw_messages(values: list[Any], dialect: type[Dialect]) -> Transcript:
    """Messages over the bytes of these values."""
    return tuple(Message.over(Raw(jsonio.encode(value)), dialect.read) for value in values)


def without_hidden(
    message: Message, seen: Sequence[ShownPart], dialect: type[Dialect]
) -> tuple[Message | None, Sequence[ShownPart]]:
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
    content = _content_without(value.get("content"), entries(raw).get("content"), seen)
    if content is None:
        return message, ()
    return Message.over(Raw(replace_values(raw, {"content": content})), dialect.read), ()


def _content_without(content: Any, raw: Raw | None, seen: Sequence[ShownPart]) -> bytes | None:
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


def _is_same(block: Any, seen: ShownPart) -> bool:
    texts = [block.get(key) for key in ("text", "thinking", "data")] if isinstance(block, Mapping) else []
    return seen.text in texts
