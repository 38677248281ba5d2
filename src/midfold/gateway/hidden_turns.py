"""Store hidden turns (calls of the gateway's own tools) and insert them into later requests.

1. A hidden turn is found by its owner, the system prompt and the hash chain of all preceding client messages: if
   any of these differ, it is another conversation. It is not found by the response after it, because clients record
   responses in their own way.
2. Text of a hidden turn that was streamed to the client is also in the response that the client recorded. It is
   removed there, so that the provider sees the original conversation.
3. Each hidden turn is a record in the store, so that any gateway inserts the same bytes, also after a restart.
   Positions are queried for each request, contents only once, and without locks.
4. If originals are stored redacted, so are hidden turns.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Raw

from midfold.compaction.receipt import RecallCost
from midfold.compaction.request import Redactor
from midfold.errors import MidfoldError
from midfold.gateway.exchange import Owner
from midfold.gateway.request_size import ClientHistory
from midfold.gateway.stream_merge import ShownPart, shown_part
from midfold.lru import LRU
from midfold.store import SqlStore
from midfold.store.intake import redact_json
from midfold.store.sync import Checkpoint
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.jsonio import elements, entries
from midfold.transcript.message import CALL, RESULT, Message, Transcript, plain
from midfold.transcript.replies import ModelAnswer, result_messages
from midfold.transcript.splice import replace_values

MAX_RECORDS = 20_000
"""Maximum records in memory."""
MAX_RECORD_BYTES = 24_000_000
"""Maximum bytes of the records in memory."""
THINKING = ("thinking", "redacted_thinking")


class BesideCalls(msgspec.Struct, frozen=True):
    """Hidden calls in a turn that also has client calls, with their results, in the format of the dialect."""

    calls: tuple[Raw, ...] = ()
    results: tuple[Raw, ...] = ()
    thoughts: tuple[Raw, ...] = ()
    """Blocks of the turn that must precede its calls (Anthropic's extended thinking)."""

    @classmethod
    def of(cls, dialect: str, turn: ModelAnswer, answers: list[tuple[str, str]]) -> BesideCalls:
        """Return the calls of a turn that were answered by the gateway, with their results."""
        ids, results = {call for call, _ in answers}, result_messages(dialect, answers)
        thoughts: list[Any] = []
        if dialect == "openai-responses":
            calls = [item for item in turn.messages if item.get("call_id") in ids]
        elif dialect == "anthropic":
            blocks = turn.message["content"]
            calls = [block for block in blocks if block.get("id") in ids]
            thoughts = [block for block in blocks if block.get("type") in THINKING]
            results = results[0]["content"]
        else:
            calls = [call for call in turn.message["tool_calls"] if call.get("id") in ids]
        return cls(*(tuple(Raw(jsonio.encode(value)) for value in values) for values in (calls, results, thoughts)))

    def put_into(self, later: Sequence[Message], dialect: type[Dialect]) -> list[Message]:
        """Return the client's messages after the turn's request with the calls and their results inserted.

        They are merged into the client's record of the turn. A client that records calls as text (smolagents) has
        no such record; for it they become a separate turn before.
        """
        if not later:
            return []
        placed = {"input": self._insert_into_items, "messages": self._insert_into_turn}[dialect.list_key](
            later, dialect
        )
        if placed is None:
            placed = (self._as_separate_turn(dialect), 0)
        raws, taken = placed
        return [*(Message.over(raw, dialect.read) for raw in raws), *later[taken:]]

    def _insert_into_items(self, later: Sequence[Message], dialect: type[Dialect]) -> tuple[list[Raw], int] | None:
        """Return items up to the first result of the client's calls, and the number of client items they replace."""
        for place, message in enumerate(later):
            if message.role == "user":
                return None
            if message.role == "tool":
                return [*map(_raw, later[:place]), *self.calls, *self.results], place
        return None

    def _insert_into_turn(self, later: Sequence[Message], dialect: type[Dialect]) -> tuple[list[Raw], int] | None:
        """Return the turn with the calls and the results after it; None if the client did not record any calls."""
        turn = later[0]
        if turn.role != "assistant" or not turn.kinds & CALL:
            return None
        if dialect.name == "openai-chat":
            return [_append_to(_raw(turn), "tool_calls", self.calls), *self.results], 1
        if len(later) < 2 or not later[1].kinds & RESULT:
            return None
        called = _append_to(_raw(turn), "content", self.calls)
        return [called, _append_to(_raw(later[1]), "content", self.results, first=True)], 2

    def _as_separate_turn(self, dialect: type[Dialect]) -> list[Raw]:
        """Return the calls as a separate turn, and their results."""
        if dialect.list_key == "input":
            # An item with an id must follow its reasoning item, which the client did not keep.
            return [*(Raw(replace_values(bytes(call), {"id": None})) for call in self.calls), *self.results]
        if dialect.name == "openai-chat":
            calls = b",".join(map(bytes, self.calls))
            return [Raw(b'{"role":"assistant","content":null,"tool_calls":[' + calls + b"]}"), *self.results]
        blocks = (b",".join(map(bytes, part)) for part in ((*self.thoughts, *self.calls), self.results))
        roles = (b"assistant", b"user")
        return [
            Raw(b'{"role":"' + role + b'","content":[' + part + b"]}") for role, part in zip(roles, blocks, strict=True)
        ]


def _raw(message: Message) -> Raw:
    return Raw(bytes(message.wire)) if isinstance(message.wire, Raw) else Raw(jsonio.encode(message.wire))


def _append_to(raw: Raw, key: str, more: Sequence[Raw], *, first: bool = False) -> Raw:
    """Return a message with values added to one of its lists."""
    own = elements(entries(bytes(raw))[key])
    whole = (*more, *own) if first else (*own, *more)
    return Raw(replace_values(bytes(raw), {key: b"[" + b",".join(bytes(one) for one in whole) + b"]"}))


class Record(msgspec.Struct, frozen=True):
    """Stored form of a hidden run."""

    messages: tuple[Raw, ...]
    seen: tuple[ShownPart, ...] = ()
    cost: RecallCost = RecallCost()
    beside: BesideCalls | None = None


class HiddenRun(NamedTuple):
    """Hidden turns after one request.

    `seen` is the part that the client was shown; `beside` are hidden calls in the client's turn that follows.
    """

    messages: Transcript
    seen: tuple[ShownPart, ...]
    cost: RecallCost
    beside: BesideCalls | None = None


class OfferMemory:
    """Tool definitions that conversations were offered, as bytes, by the chain of the messages folded first."""

    def __init__(self, store: SqlStore) -> None:
        self._turns = store.hidden_turns
        self._known: LRU[tuple[str, str], bytes] = LRU(MAX_RECORDS, most_bytes=MAX_RECORD_BYTES, size=len)

    def find(self, owner: Owner, conversation: ClientHistory) -> bytes:
        """Return the definitions that a conversation was offered first; empty if there are none."""
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
        """Store the definitions that a conversation is offered from this checkpoint on; they are deleted with its
        session.
        """
        place = self._place(owner, conversation)
        chain = conversation.chains[min(checkpoint.count, len(conversation.chains)) - 1].hex()
        self._turns.keep(place, chain, definitions, session=checkpoint.session)
        self._known.put((place, chain), definitions)

    def _place(self, owner: Owner, conversation: ClientHistory) -> str:
        return owner.bind(b"recall tools", conversation.dialect.name.encode())


class HiddenTurnMemory:
    """Hidden turns of all conversations."""

    def __init__(self, store: SqlStore, redactor: Redactor | None = None) -> None:
        self._turns = store.hidden_turns
        self._redactor = redactor
        self._known: LRU[bytes, tuple[Record, int]] = LRU(
            MAX_RECORDS, most_bytes=MAX_RECORD_BYTES, size=lambda one: one[1]
        )

    def put_back(self, owner: Owner, conversation: ClientHistory) -> ClientHistory:
        """Return the conversation with its hidden turns inserted; the same object if it has none."""
        runs = self._runs(owner, conversation)
        if not runs:
            return conversation
        talk: list[Message] = []
        seen: Sequence[ShownPart] = ()
        beside, start = BesideCalls(), 0
        dialect = conversation.dialect
        for message, chain in zip(conversation.talk, conversation.chains, strict=True):
            left, seen = without_hidden(message, seen, dialect) if seen else (message, seen)
            talk += () if left is None else (left,)
            run = runs.get(chain.hex())
            if run is not None:
                if beside.calls:
                    talk[start:] = beside.put_into(talk[start:], dialect)
                talk += (Message.over(raw, dialect.read) for raw in run.messages)
                seen, beside, start = run.seen, run.beside or BesideCalls(), len(talk)
        if beside.calls:
            talk[start:] = beside.put_into(talk[start:], dialect)
        whole = conversation.with_talk(tuple(talk))
        whole.recall = total_cost(run.cost for run in runs.values())
        return whole

    def keep(self, owner: Owner, conversation: ClientHistory, run: HiddenRun, session: str = "") -> None:
        """Store a run after `conversation`, the request as the client sent it.

        `session` is the session that the run may quote; the run is deleted with it.
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


class Continuation(msgspec.Struct, frozen=True):
    """Data for requests that continue a response stored by the provider.

    `last` is the id of the provider's newest response, which the client does not know; `owed` are results of calls
    that were removed from the response.
    """

    last: str = ""
    owed: tuple[Raw, ...] = ()


class ContinuationMemory:
    """Continuations by owner and response id, in memory and in the store."""

    def __init__(self, store: SqlStore, redactor: Redactor | None = None) -> None:
        self._turns = store.hidden_turns
        self._redactor = redactor
        self._known: LRU[tuple[str, str], Continuation] = LRU(
            MAX_RECORDS, most_bytes=MAX_RECORD_BYTES, size=lambda one: sum(memoryview(raw).nbytes for raw in one.owed)
        )

    def find_in_memory(self, owner: Owner, response: str) -> Continuation | None:
        """Return the continuation known to this process, if any."""
        return self._known.get((owner.id, response))

    def find_in_store(self, owner: Owner, response: str) -> Continuation | None:
        """Return the stored continuation; None if there is none or the store is unavailable."""
        place, chain = self._names(owner, response)
        try:
            for data in self._turns.read(place, [chain]).values() if self._turns.find(place, [chain]) else ():
                found = msgspec.json.decode(data, type=Continuation)
                self._known.put((owner.id, response), found)
                return found
        except MidfoldError:
            pass
        return None

    def add(self, owner: Owner, response: str, more: Continuation) -> Continuation:
        """Remember a continuation, merged with what is known of the response."""
        known = self._known.get((owner.id, response)) or Continuation()
        merged = Continuation(more.last or known.last, more.owed or known.owed)
        self._known.put((owner.id, response), merged)
        return merged

    def keep(self, owner: Owner, response: str, found: Continuation, session: str) -> None:
        """Store a continuation; it is deleted with its session."""
        data = jsonio.encode(found)
        if self._redactor is not None:
            data = redact_json(data, self._redactor)
        self._turns.keep(*self._names(owner, response), data, session=session)

    def _names(self, owner: Owner, response: str) -> tuple[str, str]:
        name = response.encode("utf-8", "surrogatepass")
        return owner.bind(b"continued responses"), owner.bind(b"continued response", name)


def total_cost(costs: Iterable[RecallCost]) -> RecallCost:
    """Return the total cost of several runs."""
    several = tuple(costs)
    return RecallCost(
        rounds=sum(one.rounds for one in several),
        prompt_tokens=sum(one.prompt_tokens for one in several),
        cached_tokens=sum(one.cached_tokens for one in several),
        output_tokens=sum(one.output_tokens for one in several),
    )


def place_of(owner: Owner, conversation: ClientHistory) -> str:
    """Return the key of a conversation's runs; it depends on the owner and the system prompt."""
    prompt = conversation.prompt_digest
    return owner.bind(b"hidden turns", conversation.dialect.name.encode(), prompt)


def raw_messages(values: list[Any], dialect: type[Dialect]) -> Transcript:
    """Return messages over the encoded values."""
    return tuple(Message.over(Raw(jsonio.encode(value)), dialect.read) for value in values)


def without_hidden(
    message: Message, seen: Sequence[ShownPart], dialect: type[Dialect]
) -> tuple[Message | None, Sequence[ShownPart]]:
    """Return the client's record of a response without the shown parts of hidden turns, and the parts still to be
    found.

    A record that does not begin with them is not changed, because clients record responses in their own way.
    """
    value = plain(message.wire) if isinstance(message.wire, Raw) else None
    if not isinstance(value, Mapping):
        return message, ()
    if dialect.list_key == "input" and shown_part(value) == seen[0]:
        return None, seen[1:]
    if message.role != "assistant":
        return message, ()
    raw = bytes(message.wire)
    content = _content_without(value.get("content"), entries(raw).get("content"), seen)
    if content is None:
        return message, ()
    return Message.over(Raw(replace_values(raw, {"content": content})), dialect.read), ()


def _content_without(content: Any, raw: Raw | None, seen: Sequence[ShownPart]) -> bytes | None:
    """Return the remaining content as JSON; None if it does not begin with the shown parts or has nothing else."""
    texts = [one for one in seen if one.kind == "text"]
    prefix = "".join(one.text for one in texts)
    if isinstance(content, str):
        begins = prefix and content.startswith(prefix) and len(content) > len(prefix)
        return jsonio.encode(content[len(prefix) :]) if begins else None
    if not isinstance(content, list) or raw is None:
        return None
    blocks = elements(raw)
    for expected in (seen, texts):
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
