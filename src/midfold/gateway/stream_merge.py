"""Merge several turns of a model into one stream, without the hidden tool calls.

1. Output is relayed as it arrives, up to the first hidden tool call of the turn. From there on events are held until
   the end of the turn.
2. If the turn calls nothing else, it is hidden: held events are dropped, and the next turn continues the same message
   with consecutive indexes, numbers and ids.
3. If it also calls a client tool, it is the client's turn: held events follow without the hidden calls.
4. If no output was relayed yet, the next turn is relayed like a first one.
5. The usage at the end is that of the last turn.
6. If no further turn is allowed, the turn is the client's: hidden calls are removed, and if no other call is left, its
   finish reason is that of a turn without calls.
7. Events that do not match the dialect are relayed unread at their position.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

from midfold.transcript.replies import AnswerReader, ModelAnswer
from midfold.transcript.sse import StreamEvent, event_bytes

SEPARATOR = "\n\n"
"""Separator between the texts of two turns that share one message."""
CLIENT_CALLS = frozenset(
    ("function_call", "custom_tool_call", "computer_call", "local_shell_call", "shell_call", "apply_patch_call")
)
"""Item types of the Responses API that the client must run; the provider runs all others."""
BEGINNINGS = ("response.created", "response.in_progress", "response.queued")


class ShownPart(NamedTuple):
    """Part of a hidden turn that the client received: text, reasoning, or the id of an item."""

    kind: str
    text: str


Object = dict[str, Any] | None


class _ChatCall(msgspec.Struct):
    function: Object = None


class _ChatDelta(msgspec.Struct):
    tool_calls: list[_ChatCall] | None = None


class _ChatChoice(msgspec.Struct):
    delta: _ChatDelta | None = None
    message: _ChatDelta | None = None


class ChatShape(msgspec.Struct):
    """Fields of a chat completion or chunk that are read here."""

    choices: list[_ChatChoice] | None = None


class AnthropicShape(msgspec.Struct):
    """Fields of an Anthropic message or stream event that are read here."""

    content_block: Object = None
    delta: Object = None
    content: list[Any] | None = None


class _ResponsesItem(msgspec.Struct):
    type: str = ""


class _Response(msgspec.Struct):
    output: list[_ResponsesItem] = []


class ResponsesShape(msgspec.Struct):
    """Fields of a Responses event that are read here."""

    item: _ResponsesItem | None = None
    response: _Response | None = None


class MergedStream(ABC):
    """Merged stream of several turns.

    `feed` the events of a turn; then send its `rest`, or `hide` it and feed the next turn.
    """

    dialect: ClassVar[str]
    shape: ClassVar[type[msgspec.Struct]]
    """Schema that an event must match to be read."""
    response_id = ""
    """Response id that the client received, if the provider stores the response."""

    def __init__(self, hidden_tools: frozenset[str]) -> None:
        self._tools = hidden_tools
        self.seen: list[ShownPart] = []
        self.has_shown = False
        """Whether the client received a part of a hidden turn."""
        self.renamed: dict[str, str] = {}
        """Response id that the client received, mapped to the provider's id."""
        self._begin()

    def _begin(self) -> None:
        self.turn = AnswerReader(self.dialect)
        """Turn as sent by the model, including hidden calls."""
        self.usage: dict[str, Any] = {}
        self.is_for_client = False
        """Whether the first call of the turn, in a stream, is for the client."""
        self.has_ended = self._calls_nothing = False
        self._waiting: list[StreamEvent] = []
        self._flows = self._is_held = False
        self._left_out: set[int] = set()

    def feed(self, event: StreamEvent) -> bytes:
        """Feed an event and return the bytes to send now."""
        event = event if self._has_shape(event.value) else StreamEvent(event.raw)
        self.turn.take(event)
        self.usage = self.turn.usage
        value = event.value or {}
        is_unnamed = False
        for name in self._calls(value):
            is_unnamed = not name
            self.is_for_client = self.is_for_client or bool(name and name not in self._tools and not self._is_held)
            self._is_held = self._is_held or name in self._tools
        shows = self.is_for_client or self._flows or self._has_output(value)
        if self._is_held or is_unnamed or not shows:
            self._waiting.append(event)
            return b""
        self._flows = True
        if not self._waiting:
            return self._rewrite(event)
        before, self._waiting = self._waiting, []
        return b"".join([self._rewrite(one) for one in (*before, event)])

    def _has_shape(self, value: Any) -> bool:
        try:
            msgspec.convert(value or {}, self.shape)
        except msgspec.ValidationError:
            return False
        return True

    def rest(self) -> bytes:
        """Return the held events; the turn is the client's."""
        before, self._waiting = self._waiting, []
        return b"".join(self._rewrite(one) for one in before)

    def calls_client(self, turn: ModelAnswer) -> bool:
        """Return whether a turn has calls that the client must run."""
        return any(call.name not in self._tools for call in turn.calls)

    def end(self, turn: ModelAnswer) -> None:
        """End with this turn: it is the client's, without hidden calls."""
        self.is_for_client = self.has_ended = True
        self._calls_nothing = all(call.name in self._tools for call in turn.calls)

    def strip(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return a complete answer without hidden calls, and with a matching finish reason."""
        if not self._has_shape(answer):
            return answer
        kept = self._strip(answer)
        return self._end(kept) if self._calls_nothing else kept

    def hide(self) -> None:
        """Hide the turn; another one follows."""
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
        kept = self._end(kept) if self._calls_nothing else kept
        changed = self._change(kept)
        if changed is None:
            return event.raw if kept is value else event_bytes(event.name, kept)
        return event_bytes(event.name, changed) if changed else b""

    def _renumber(self, value: dict[str, Any], key: str) -> dict[str, Any]:
        """Return a part's event with its index after removal of hidden calls; empty if the part is hidden."""
        index = value.get(key)
        if not isinstance(index, int) or not self._left_out:
            return value
        return {} if index in self._left_out else {**value, key: index - sum(one < index for one in self._left_out)}

    @abstractmethod
    def _calls(self, value: Mapping[str, Any]) -> Iterable[str]:
        """Yield names of calls that start here and need a result from gateway or client; "" if not known yet."""

    @abstractmethod
    def _has_output(self, value: Mapping[str, Any]) -> bool:
        """Return whether the event carries output for the client."""

    @abstractmethod
    def _without_hidden(self, value: dict[str, Any]) -> dict[str, Any]:
        """Return the event without hidden calls; empty if nothing is left, the same object if it has none."""

    @abstractmethod
    def _strip(self, answer: dict[str, Any]) -> dict[str, Any]:
        """Return a complete answer without hidden calls."""

    def _end(self, value: dict[str, Any]) -> dict[str, Any]:
        """Replace a finish reason of tool calls in an event or complete answer."""
        return value

    @abstractmethod
    def _change(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """Return the event to send: empty to drop it, None to send it unchanged. Records the output shown."""

    @abstractmethod
    def _shown_parts(self) -> list[ShownPart]:
        """Return the parts of the turn that the client received."""

    @abstractmethod
    def error(self, error: Mapping[str, Any]) -> bytes:
        """Return an error event that ends the stream."""


class MergedAnthropicStream(MergedStream):
    dialect, shape = "anthropic", AnthropicShape

    def _begin(self) -> None:
        super()._begin()
        self._blocks: dict[int, tuple[str, list[str]]] = {}
        self._offset = len(self.seen)

    def _calls(self, value: Mapping[str, Any]) -> Iterable[str]:
        return self._calls_in(value.get("content_block"))

    @staticmethod
    def _calls_in(block: Any) -> Iterable[str]:
        return [str(block.get("name"))] if isinstance(block, Mapping) and block.get("type") == "tool_use" else ()

    def _without_hidden(self, value: dict[str, Any]) -> dict[str, Any]:
        if self._tools.intersection(self._calls(value)) and isinstance(value.get("index"), int):
            self._left_out.add(value["index"])
        return self._renumber(value, "index")

    def _strip(self, answer: dict[str, Any]) -> dict[str, Any]:
        blocks = answer.get("content") or ()
        return {**answer, "content": [one for one in blocks if not self._tools.intersection(self._calls_in(one))]}

    def _end(self, value: dict[str, Any]) -> dict[str, Any]:
        holder = value.get("delta")
        if isinstance(holder, dict) and holder.get("stop_reason") == "tool_use":
            return {**value, "delta": {**holder, "stop_reason": "end_turn"}}
        return {**value, "stop_reason": "end_turn"} if value.get("stop_reason") == "tool_use" else value

    def _has_output(self, value: Mapping[str, Any]) -> bool:
        return value.get("type") in ("content_block_delta", "message_delta", "error")

    def _change(self, value: dict[str, Any]) -> dict[str, Any] | None:
        kind, index = value.get("type"), value.get("index")
        if isinstance(index, int):
            self._note(index, value)
            return {**value, "index": index + self._offset} if self.has_shown else None
        if kind == "message_start" and self.has_shown:
            return {}
        # The prompt size is in an event of an earlier turn that the client already has.
        return {**value, "usage": self.usage} if kind == "message_delta" and self.has_shown else None

    def _note(self, index: int, value: Mapping[str, Any]) -> None:
        part = value.get("content_block") or value.get("delta") or {}
        _, texts = self._blocks.setdefault(index, (str(part.get("type")), []))
        texts += [next((part[key] for key in ("text", "thinking", "data") if isinstance(part.get(key), str)), "")]

    def _shown_parts(self) -> list[ShownPart]:
        return [ShownPart(kind, "".join(texts)) for _, (kind, texts) in sorted(self._blocks.items())]

    def error(self, error: Mapping[str, Any]) -> bytes:
        return event_bytes("error", {"type": "error", "error": error})


class MergedChatStream(MergedStream):
    dialect, shape = "openai-chat", ChatShape

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
        """Yield call names; some servers send a name in pieces, final once arguments follow or no hidden tool fits."""
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

    def _strip(self, answer: dict[str, Any]) -> dict[str, Any]:
        choices = answer.get("choices") or ()
        return {
            **answer,
            "choices": [{**one, "message": self._message(one.get("message") or {})} for one in choices],
        }

    def _message(self, message: dict[str, Any]) -> dict[str, Any]:
        calls = message.get("tool_calls") or ()
        kept = [call for call in calls if (call.get("function") or {}).get("name") not in self._tools]
        others = {key: value for key, value in message.items() if key != "tool_calls"}
        return others | ({"tool_calls": kept} if kept else {})

    def _end(self, value: dict[str, Any]) -> dict[str, Any]:
        choices = [
            {**one, "finish_reason": "stop"} if one.get("finish_reason") == "tool_calls" else one
            for one in value.get("choices") or ()
        ]
        return {**value, "choices": choices}

    def _has_output(self, value: Mapping[str, Any]) -> bool:
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
        """Drop the role, which was already sent, and separate the text from the previous turn's."""
        delta = choice.get("delta") if isinstance(choice, Mapping) else None
        if not isinstance(delta, Mapping):
            return choice
        kept = {key: text for key, text in delta.items() if key != "role"}
        if isinstance(kept.get("content"), str) and kept["content"] and not self._is_separated:
            kept["content"] = SEPARATOR + kept["content"]
        return {**choice, "delta": kept}

    def _shown_parts(self) -> list[ShownPart]:
        text = "".join(self._texts)
        return [ShownPart("text", text + SEPARATOR)] if text else []

    def error(self, error: Mapping[str, Any]) -> bytes:
        return event_bytes("", {"error": error})


class MergedResponsesStream(MergedStream):
    """Merged stream of the Responses API.

    A reasoning item must be followed by the item it belongs to, so it is held until that item's type is known.
    """

    dialect, shape = "openai-responses", ResponsesShape

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

    def calls_client(self, turn: ModelAnswer) -> bool:
        return any(name not in self._tools for item in turn.messages for name in self._calls({"item": item}))

    def _without_hidden(self, value: dict[str, Any]) -> dict[str, Any]:
        if self._tools.intersection(self._calls(value)) and isinstance(value.get("output_index"), int):
            self._left_out.add(value["output_index"])
        response = value.get("response")
        if isinstance(response, dict) and isinstance(response.get("output"), list):
            output = [item for item in response["output"] if not self._tools.intersection(self._calls({"item": item}))]
            return {**value, "response": {**response, "output": output}}
        return self._renumber(value, "output_index")

    def _strip(self, answer: dict[str, Any]) -> dict[str, Any]:
        self.response_id = str(answer.get("id"))
        if not self._has_shape({"response": answer}):
            return answer
        stripped: dict[str, Any] = self._without_hidden({"response": answer})["response"]
        return stripped

    def _has_output(self, value: Mapping[str, Any]) -> bool:
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
            self._number = max(self._number, _int_or_minus_one(value.get("sequence_number")) + 1)
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
        return [shown_part(item) for item in self._items[self._offset :]]

    def error(self, error: Mapping[str, Any]) -> bytes:
        details = {"code": error.get("code") or error.get("type"), "message": error.get("message"), "param": None}
        return event_bytes("error", {"type": "error", "error": error, **details, "sequence_number": self._number})


def shown_part(item: Mapping[str, Any]) -> ShownPart:
    """Return the shown part for a Responses item: the text of a message, the id of anything else."""
    content = item.get("content")
    if item.get("type", "message") == "message" and isinstance(content, list):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return ShownPart("text", "".join(text for text in texts if isinstance(text, str)))
    return ShownPart("item", str(item.get("id")))


def _int_or_minus_one(value: Any) -> int:
    return value if type(value) is int else -1


MERGED_STREAMS: dict[str, type[MergedStream]] = {
    one.dialect: one for one in (MergedAnthropicStream, MergedChatStream, MergedResponsesStream)
}
