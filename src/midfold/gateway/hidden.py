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

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import Raw

from midfold.fold.receipt import RecallCost
from midfold.fold.request import Redactor
from midfold.gateway.exchange import Owner
from midfold.gateway.measuring import ClientHistory
from midfold.lru import LRU
from midfold.store import SqlStore
from midfold.store.intake import redact_json
from midfold.store.sync import Checkpoint
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.jsonio import elements, entries
from midfold.transcript.message import Message, Transcript, plain
from midfold.transcript.replies import AnswerReader, ModelAnswer, result_messages
from midfold.transcript.splice import replace_values
from midfold.transcript.sse import StreamEvent, event_bytes

# Several turns of a model as one stream to a client that sees only some of what is in them.
#
# Rules:
# 1. What a model says is relayed as it comes, up to the first call of a hidden tool in its turn. From there on events
#    wait for the end of the turn.
# 2. If that was the turn's first call, the turn is hidden: what has waited is dropped, and what the next turn says goes
#    on in the same message: its places, numbers and ids follow on, and its end is the end.
# 3. If a tool of the client's was called before it, the turn is the client's: what has waited follows without the
#    hidden calls. No client waits for the rest of a turn to see that its own tool is called.
# 4. As long as nothing was said, nothing was sent: the next turn is then relayed as if it were the first.
# 5. The usage at the end is the last turn's.


SEPARATOR = "\n\n"
"""Between what two turns said, where they share one text."""
CLIENT_CALLS = frozenset(
    ("function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call")
)
"""Items of the Responses shape that ask the client to run something; other calls the provider runs itself."""
BEGINNINGS = ("response.created", "response.in_progress", "response.queued")


class ShownPart(NamedTuple):
    """Something a client was shown of a hidden turn: a text, a thought, or the id of an item."""

    kind: str
    text: str


class JoinedStream(ABC):
    """One stream. `feed` events of a turn; then either `rest` of it is sent too, or it is hidden and another comes."""

    dialect: ClassVar[str]
    response_id = ""
    """What the client knows the answer by, where a provider keeps it."""

    def __init__(self, hidden_tools: frozenset[str]) -> None:
        self._tools = hidden_tools
        self.seen: list[ShownPart] = []
        self.has_shown = False
        """Whether the client has something of a hidden turn."""
        self.renamed: dict[str, str] = {}
        """The id a client was told, and the one by which the provider knows the answer."""
        self._begin()

    def _begin(self) -> None:
        self.turn = AnswerReader(self.dialect)
        """The turn as the model means it."""
        self.usage: dict[str, Any] = {}
        self.is_for_client = False
        """Whether the first call of the turn is the client's, in a stream."""
        self._waiting: list[StreamEvent] = []
        self._flows = self._is_held = False
        self._left_out: set[int] = set()

    def feed(self, event: StreamEvent) -> bytes:
        """What is to be sent now."""
        self.turn.take(event)
        self.usage = self.turn.usage
        value = event.value or {}
        is_unnamed = False
        for name in self._calls(value):
            is_unnamed = not name
            self.is_for_client = self.is_for_client or bool(name and name not in self._tools and not self._is_held)
            self._is_held = self._is_held or name in self._tools
        shows = self.is_for_client or self._flows or self._is_said(value)
        if self._is_held or is_unnamed or not shows:
            self._waiting.append(event)
            return b""
        self._flows = True
        if not self._waiting:
            return self._rewrite(event)
        before, self._waiting = self._waiting, []
        return b"".join([self._rewrite(one) for one in (*before, event)])

    def rest(self) -> bytes:
        """What has waited: the turn is one for the client."""
        before, self._waiting = self._waiting, []
        return b"".join(self._rewrite(one) for one in before)

    def hide(self) -> None:
        """The turn was not for the client; another one follows."""
        if self._flows:
            self.has_shown = True
            self.seen += self._shown_parts()
        self._begin()

    def _rewrite(self, event: StreamEvent) -> bytes:
        value = event.value
        if not value:
            return event.raw
        kept = self._without_hidden(value) if self.is_for_client and self._is_held else value
        if not kept:
            return b""
        changed = self._change(kept)
        if changed is None:
            return event.raw if kept is value else event_bytes(event.name, kept)
        return event_bytes(event.name, changed) if changed else b""

    def _renumber(self, value: dict[str, Any], key: str) -> dict[str, Any]:
        """The event of a part, in the place it has without hidden calls; empty if it is of one."""
        index = value.get(key)
        if not isinstance(index, int) or not self._left_out:
            return value
        return {} if index in self._left_out else {**value, key: index - sum(one < index for one in self._left_out)}

    @abstractmethod
    def _calls(self, value: Mapping[str, Any]) -> Iterable[str]:
        """Names of the calls that begin here and that somebody has to answer; empty ones are not known yet."""

    @abstractmethod
    def _is_said(self, value: Mapping[str, Any]) -> bool:
        """Whether a client is shown something by this."""

    @abstractmethod
    def _without_hidden(self, value: dict[str, Any]) -> dict[str, Any]:
        """The event without hidden calls; empty if nothing is left, the very same if it has none."""

    @abstractmethod
    def _change(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """The event as it must be sent; empty if it must not be, None if it is sent as it came. Notes what is shown."""

    @abstractmethod
    def _shown_parts(self) -> list[ShownPart]:
        """What the client has of the turn that is hidden now."""

    @abstractmethod
    def error(self, error: Mapping[str, Any]) -> bytes:
        """The end of a stream that cannot go on."""


class JoinedAnthropic(JoinedStream):
    dialect = "anthropic"

    def _begin(self) -> None:
        super()._begin()
        self._blocks: dict[int, tuple[str, list[str]]] = {}
        self._offset = len(self.seen)

    def _calls(self, value: Mapping[str, Any]) -> Iterable[str]:
        block = value.get("content_block")
        return [str(block.get("name"))] if isinstance(block, Mapping) and block.get("type") == "tool_use" else ()

    def _without_hidden(self, value: dict[str, Any]) -> dict[str, Any]:
        if self._tools.intersection(self._calls(value)) and isinstance(value.get("index"), int):
            self._left_out.add(value["index"])
        return self._renumber(value, "index")

    def _is_said(self, value: Mapping[str, Any]) -> bool:
        return value.get("type") in ("content_block_delta", "message_delta", "error")

    def _change(self, value: dict[str, Any]) -> dict[str, Any] | None:
        kind, index = value.get("type"), value.get("index")
        if isinstance(index, int):
            self._note(index, value)
            return {**value, "index": index + self._offset} if self.has_shown else None
        if kind == "message_start" and self.has_shown:
            return {}
        # The size of the prompt stands in an event that the client has of an earlier turn.
        return {**value, "usage": self.usage} if kind == "message_delta" and self.has_shown else None

    def _note(self, index: int, value: Mapping[str, Any]) -> None:
        part = value.get("content_block") or value.get("delta") or {}
        _, texts = self._blocks.setdefault(index, (str(part.get("type")), []))
        texts += [next((part[key] for key in ("text", "thinking", "data") if isinstance(part.get(key), str)), "")]

    def _shown_parts(self) -> list[ShownPart]:
        return [ShownPart(kind, "".join(texts)) for _, (kind, texts) in sorted(self._blocks.items())]

    def error(self, error: Mapping[str, Any]) -> bytes:
        return event_bytes("error", {"type": "error", "error": error})


class JoinedChat(JoinedStream):
    dialect = "openai-chat"

    def __init__(self, hidden_tools: frozenset[str]) -> None:
        self._head: dict[str, Any] = {}
        super().__init__(hidden_tools)

    def _begin(self) -> None:
        super()._begin()
        self._texts: list[str] = []
        self._names: dict[int, str] = {}
        self._is_separated = not self.seen

    def _deltas(self, value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        choices = value.get("choices")
        found = [one.get("delta") for one in choices if isinstance(one, Mapping)] if isinstance(choices, list) else []
        return [delta for delta in found if isinstance(delta, Mapping)]

    def _calls(self, value: Mapping[str, Any]) -> Iterable[str]:
        """Some servers send a name in pieces: it is known when arguments follow, or when it can be no hidden one."""
        for delta in self._deltas(value):
            for place, call in enumerate(delta.get("tool_calls") or ()):
                function = call.get("function") if isinstance(call, Mapping) else None
                if not isinstance(function, Mapping):
                    continue
                index = call["index"] if isinstance(call.get("index"), int) else place
                name = self._names[index] = self._names.get(index, "") + str(function.get("name") or "")
                may_grow = not function.get("arguments") and any(one.startswith(name) for one in self._tools - {name})
                yield "" if may_grow else name

    def _without_hidden(self, value: dict[str, Any]) -> dict[str, Any]:
        if not any(delta.get("tool_calls") for delta in self._deltas(value)):
            return value
        choices = [self._choice_without_hidden(choice) for choice in value["choices"]]
        return {**value, "choices": choices} if any(choices) else {}

    def _choice_without_hidden(self, choice: Any) -> Any:
        delta = choice.get("delta") if isinstance(choice, Mapping) else None
        if not isinstance(delta, Mapping) or not delta.get("tool_calls"):
            return choice
        self._left_out = {index for index, name in self._names.items() if name in self._tools}
        indexed = [{**call, "index": call.get("index", place)} for place, call in enumerate(delta["tool_calls"])]
        calls = [kept for call in indexed if (kept := self._renumber(call, "index"))]
        others = {key: text for key, text in delta.items() if key != "tool_calls"}
        if not calls and not others and not choice.get("finish_reason"):
            return {}
        return {**choice, "delta": others | ({"tool_calls": calls} if calls else {})}

    def _is_said(self, value: Mapping[str, Any]) -> bool:
        ended = any(one.get("finish_reason") for one in value.get("choices") or () if isinstance(one, Mapping))
        shown = any(text for delta in self._deltas(value) for key, text in delta.items() if key != "role")
        return ended or shown or "error" in value

    def _change(self, value: dict[str, Any]) -> dict[str, Any] | None:
        said = "".join(text for delta in self._deltas(value) if isinstance(text := delta.get("content"), str))
        self._texts.append(said)
        if not self.has_shown:
            self._head = self._head or {key: value[key] for key in ("id", "created", "model") if key in value}
            return None
        changed = {**value, **self._head}
        changed["choices"] = [self._choice(choice) for choice in value.get("choices") or ()]
        self._is_separated = self._is_separated or bool(said)
        return changed

    def _choice(self, choice: Any) -> Any:
        """The role was told already, and the text goes on after a gap."""
        delta = choice.get("delta") if isinstance(choice, Mapping) else None
        if not isinstance(delta, Mapping):
            return choice
        kept = {key: text for key, text in delta.items() if key != "role"}
        if kept.get("content") and not self._is_separated:
            kept["content"] = SEPARATOR + kept["content"]
        return {**choice, "delta": kept}

    def _shown_parts(self) -> list[ShownPart]:
        text = "".join(self._texts)
        return [ShownPart("text", text + SEPARATOR)] if text else []

    def error(self, error: Mapping[str, Any]) -> bytes:
        return event_bytes("", {"error": error})


class JoinedResponses(JoinedStream):
    """A reasoning item must be followed by the item it belongs to, so it waits until it is known what that is."""

    dialect = "openai-responses"

    def __init__(self, hidden_tools: frozenset[str]) -> None:
        self._items: list[dict[str, Any]] = []
        self._number = 0
        super().__init__(hidden_tools)

    def _begin(self) -> None:
        super()._begin()
        self._offset = len(self._items)

    def _calls(self, value: Mapping[str, Any]) -> Iterable[str]:
        item = value.get("item")
        if isinstance(item, Mapping) and item.get("type") in CLIENT_CALLS:
            yield str(item.get("name") or item["type"])

    def _without_hidden(self, value: dict[str, Any]) -> dict[str, Any]:
        if self._tools.intersection(self._calls(value)) and isinstance(value.get("output_index"), int):
            self._left_out.add(value["output_index"])
        response = value.get("response")
        if isinstance(response, dict) and isinstance(response.get("output"), list):
            output = [item for item in response["output"] if not self._tools.intersection(self._calls({"item": item}))]
            return {**value, "response": {**response, "output": output}}
        return self._renumber(value, "output_index")

    def _is_said(self, value: Mapping[str, Any]) -> bool:
        kind = str(value.get("type"))
        item = value.get("item")
        opens = kind in BEGINNINGS or kind in ("response.output_item.added", "response.content_part.added")
        thinks = "reasoning" in kind or (isinstance(item, Mapping) and item.get("type") == "reasoning")
        return bool(value) and not (opens or thinks)

    def _change(self, value: dict[str, Any]) -> dict[str, Any] | None:
        if value.get("type") == "response.output_item.done" and isinstance(value.get("item"), dict):
            self._items.append(value["item"])
        response = value.get("response")
        if not self.has_shown:
            self.response_id = str(response.get("id")) if isinstance(response, dict) else self.response_id
            self._number = max(self._number, _whole(value.get("sequence_number")) + 1)
            return None
        if value.get("type") in BEGINNINGS:
            return {}
        changed = dict(value)
        if isinstance(response, dict):
            output = [*self._items[: self._offset], *response.get("output", ())]
            self.renamed = {self.response_id: str(response.get("id"))}
            changed["response"] = {**response, "id": self.response_id, "output": output}
        if isinstance(value.get("output_index"), int):
            changed["output_index"] = value["output_index"] + self._offset
        if "sequence_number" in value:
            changed["sequence_number"] = self._number
            self._number += 1
        return changed

    def _shown_parts(self) -> list[ShownPart]:
        return [seen_item(item) for item in self._items[self._offset :]]

    def error(self, error: Mapping[str, Any]) -> bytes:
        told = {"code": error.get("code") or error.get("type"), "message": error.get("message"), "param": None}
        return event_bytes("error", {"type": "error", "error": error, **told, "sequence_number": self._number})


def seen_item(item: Mapping[str, Any]) -> ShownPart:
    """An item of the Responses shape: a message is its text, anything else its id."""
    content = item.get("content")
    if item.get("type", "message") == "message" and isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return ShownPart("text", "".join(text for text in texts if isinstance(text, str)))
    return ShownPart("item", str(item.get("id")))


def _whole(value: Any) -> int:
    return value if type(value) is int else -1


JOINED: dict[str, type[JoinedStream]] = {one.dialect: one for one in (JoinedAnthropic, JoinedChat, JoinedResponses)}

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
