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
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, NamedTuple

import msgspec
from msgspec import Raw

from midfold.fold.request import Redactor
from midfold.gateway.exchange import Owner
from midfold.gateway.measuring import ClientHistory
from midfold.lru import LRU
from midfold.store import SqlStore
from midfold.store.intake import redact_json
from midfold.transcript import jsonio
from midfold.transcript.dialect import Dialect
from midfold.transcript.jsonio import elements, entries
from midfold.transcript.message import Message, Transcript, plain
from midfold.transcript.replies import AnswerReader
from midfold.transcript.splice import replace_values
from midfold.transcript.sse import StreamEvent, event_bytes

# Several turns of a model as one stream to a client that sees only some of what is in them.
#
# Rules:
# 1. What a model says is relayed as it comes, up to the first call of a tool in its turn. From there on events wait
#    for the end of the turn: only then is it known whether the turn calls a hidden tool, alone or beside others.
# 2. If it does not, what has waited follows, byte for byte. If it does, what has waited is dropped, and what the next
#    turn says goes on in the same message: its places, numbers and ids follow on, and its end is the end.
# 3. As long as nothing was said, nothing was sent: the next turn is then relayed as if it were the first.
# 4. The usage at the end is that of all turns.


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


def add_usage(one: Any, other: Any) -> Any:
    """The usage of two turns: numbers are added up, wherever they stand."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return {key: add_usage(one.get(key), other.get(key)) for key in {**one, **other}}
    both = [value for value in (one, other) if value is not None]
    if len(both) == 2 and all(type(value) in (int, float) for value in both):
        return one + other
    return both[-1] if both else None


class JoinedStream(ABC):
    """One stream. `feed` events of a turn; then either `rest` of it is sent too, or it is hidden and another comes."""

    dialect: ClassVar[str]

    def __init__(self) -> None:
        self.seen: list[ShownPart] = []
        self.hidden_usage: dict[str, Any] = {}
        self.has_shown = False
        """Whether the client has something of a hidden turn."""
        self.renamed: dict[str, str] = {}
        """The id a client was told, and the one by which the provider knows the answer."""
        self._begin()

    def _begin(self) -> None:
        self.turn = AnswerReader(self.dialect)
        """The turn as the model means it."""
        self.usage: dict[str, Any] = {}
        self._waiting: list[StreamEvent] = []
        self._flows = self._calls = False

    def feed(self, event: StreamEvent) -> bytes:
        """What is to be sent now."""
        self.turn.take(event)
        self.usage = self.turn.usage
        value = event.value or {}
        self._calls = self._calls or self._is_call(value)
        if self._calls or not (self._flows or self._is_said(value)):
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
        self.hidden_usage = add_usage(self.hidden_usage, self.usage)
        if self._flows:
            self.has_shown = True
            self.seen += self._shown_parts()
        self._begin()

    @property
    def all_usage(self) -> dict[str, Any]:
        total: dict[str, Any] = add_usage(self.hidden_usage, self.usage)
        return total

    def _rewrite(self, event: StreamEvent) -> bytes:
        changed = self._change(event.value) if event.value else None
        return event.raw if changed is None else event_bytes(event.name, changed) if changed else b""

    @abstractmethod
    def _is_call(self, value: Mapping[str, Any]) -> bool:
        """Whether this begins a call that the client would have to answer."""

    @abstractmethod
    def _is_said(self, value: Mapping[str, Any]) -> bool:
        """Whether a client is shown something by this."""

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

    def _is_call(self, value: Mapping[str, Any]) -> bool:
        block = value.get("content_block")
        return isinstance(block, Mapping) and block.get("type") == "tool_use"

    def _is_said(self, value: Mapping[str, Any]) -> bool:
        return value.get("type") in ("content_block_delta", "message_delta", "error")

    def _change(self, value: dict[str, Any]) -> dict[str, Any] | None:
        kind, index = value.get("type"), value.get("index")
        if isinstance(index, int):
            self._note(index, value)
            return {**value, "index": index + self._offset} if self.has_shown else None
        if kind == "message_start" and self.has_shown:
            return {}
        return {**value, "usage": self.all_usage} if kind == "message_delta" and self.hidden_usage else None

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

    def __init__(self) -> None:
        self._head: dict[str, Any] = {}
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._texts: list[str] = []
        self._is_separated = not self.seen

    def _deltas(self, value: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        choices = value.get("choices")
        found = [one.get("delta") for one in choices if isinstance(one, Mapping)] if isinstance(choices, list) else []
        return [delta for delta in found if isinstance(delta, Mapping)]

    def _is_call(self, value: Mapping[str, Any]) -> bool:
        return any(delta.get("tool_calls") for delta in self._deltas(value))

    def _is_said(self, value: Mapping[str, Any]) -> bool:
        ended = any(one.get("finish_reason") for one in value.get("choices") or () if isinstance(one, Mapping))
        shown = any(text for delta in self._deltas(value) for key, text in delta.items() if key != "role")
        return ended or shown or "error" in value

    def _change(self, value: dict[str, Any]) -> dict[str, Any] | None:
        said = "".join(text for delta in self._deltas(value) if isinstance(text := delta.get("content"), str))
        self._texts.append(said)
        counted = isinstance(value.get("usage"), dict) and self.hidden_usage
        if not self.has_shown:
            self._head = self._head or {key: value[key] for key in ("id", "created", "model") if key in value}
            return {**value, "usage": self.all_usage} if counted else None
        changed = {**value, **self._head} | ({"usage": self.all_usage} if counted else {})
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

    def __init__(self) -> None:
        self._items: list[dict[str, Any]] = []
        self._number = 0
        self._id: Any = None
        super().__init__()

    def _begin(self) -> None:
        super()._begin()
        self._offset = len(self._items)

    def _is_call(self, value: Mapping[str, Any]) -> bool:
        item = value.get("item")
        return isinstance(item, Mapping) and item.get("type") in CLIENT_CALLS

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
        ended = isinstance(response, dict) and isinstance(response.get("usage"), dict)
        if not self.has_shown:
            self._id = response.get("id") if isinstance(response, dict) else self._id
            self._number = max(self._number, _whole(value.get("sequence_number")) + 1)
            if not (ended and self.hidden_usage) or not isinstance(response, dict):
                return None
            return {**value, "response": {**response, "usage": self.all_usage}}
        if value.get("type") in BEGINNINGS:
            return {}
        changed = dict(value)
        if isinstance(response, dict):
            output = [*self._items[: self._offset], *response.get("output", ())]
            self.renamed = {str(self._id): str(response.get("id"))}
            counted = {"usage": self.all_usage} if ended else {}
            changed["response"] = {**response, "id": self._id, "output": output, **counted}
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


class Record(msgspec.Struct, frozen=True):
    """One hidden run."""

    messages: tuple[Raw, ...]
    seen: tuple[ShownPart, ...] = ()


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
        for message, chain in zip(conversation.talk, conversation.chains, strict=True):
            left, seen = without_hidden(message, seen, conversation.dialect) if seen else (message, seen)
            talk += () if left is None else (left,)
            run = runs.get(chain.hex())
            if run is not None:
                seen = run.seen
                talk += (Message.over(raw, conversation.dialect.read) for raw in run.messages)
        return conversation.with_talk(tuple(talk))

    def keep(
        self,
        owner: Owner,
        conversation: ClientHistory,
        messages: Transcript,
        seen: Sequence[ShownPart] = (),
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

    def _runs(self, owner: Owner, conversation: ClientHistory) -> dict[str, Record]:
        place = place_of(owner, conversation)
        found = self._turns.find(place, [chain.hex() for chain in conversation.chains])
        runs = {one.chain: known[0] for one in found if (known := self._known.get(one.digest)) is not None}
        missing = [one.chain for one in found if one.chain not in runs]
        for one, data in self._turns.read(place, missing).items() if missing else ():
            runs[one.chain] = record = msgspec.json.decode(data, type=Record)
            self._known.put(one.digest, (record, len(data)))
        return runs


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
