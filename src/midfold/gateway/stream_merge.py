"""Several turns of a model as one stream to a client that sees only some of what is in them.

Rules of this file:
1. What a model says is relayed as it comes, up to the first call of a hidden tool in its turn. From there on events
   wait for the end of the turn.
2. If the turn calls nothing else, it is hidden: what has waited is dropped, and what the next turn says goes on in the
   same message: its places, numbers and ids follow on, and its end is the end.
3. If it also calls a tool of the client's, it is the client's turn: what has waited follows without the hidden calls.
4. As long as nothing was said, nothing was sent: the next turn is then relayed as if it were the first.
5. The usage at the end is the last turn's.
6. Where no other turn may follow, this one is the client's whatever it calls: hidden calls are taken out, and if no
   other is left, it ends as one that calls nothing.
7. An event of another shape than its dialect has is not read: it passes, in its place, as it came.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, NamedTuple

import msgspec

from midfold.transcript.replies import AnswerReader, ModelAnswer
from midfold.transcript.sse import StreamEvent, event_bytes

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


Object = dict[str, Any] | None


class _ChatCall(msgspec.Struct):
    function: Object = None


class _ChatDelta(msgspec.Struct):
    tool_calls: list[_ChatCall] | None = None


class _ChatChoice(msgspec.Struct):
    delta: _ChatDelta | None = None
    message: _ChatDelta | None = None


class ChatShape(msgspec.Struct):
    """The parts of a chat completion, or of one of its events, that are read here."""

    choices: list[_ChatChoice] | None = None


class AnthropicShape(msgspec.Struct):
    """The parts of an Anthropic message, or of one of its events, that are read here."""

    content_block: Object = None
    delta: Object = None
    content: list[Any] | None = None


class _ResponsesItem(msgspec.Struct):
    type: str = ""


class _Response(msgspec.Struct):
    output: list[_ResponsesItem] = []


class ResponsesShape(msgspec.Struct):
    """The parts of an event of a response that are read here."""

    item: _ResponsesItem | None = None
    response: _Response | None = None


class MergedStream(ABC):
    """One stream. `feed` events of a turn; then either `rest` of it is sent too, or it is hidden and another comes."""

    dialect: ClassVar[str]
    shape: ClassVar[type[msgspec.Struct]]
    """What an event must be like to be read."""
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
        self.has_ended = self._calls_nothing = False
        self._waiting: list[StreamEvent] = []
        self._flows = self._is_held = False
        self._left_out: set[int] = set()

    def feed(self, event: StreamEvent) -> bytes:
        """What is to be sent now."""
        event = event if self._has_shape(event.value) else StreamEvent(event.raw)
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

    def _has_shape(self, value: Any) -> bool:
        try:
            msgspec.convert(value or {}, self.shape)
        except msgspec.ValidationError:
            return False
        return True

    def rest(self) -> bytes:
        """What has waited: the turn is one for the client."""
        before, self._waiting = self._waiting, []
        return b"".join(self._rewrite(one) for one in before)

    def calls_client(self, turn: ModelAnswer) -> bool:
        """Return whether a turn has calls for the client to run."""
        return any(call.name not in self._tools for call in turn.calls)

    def end(self, turn: ModelAnswer) -> None:
        """No other turn follows: this one is the client's, without hidden calls."""
        self.is_for_client = self.has_ended = True
        self._calls_nothing = all(call.name in self._tools for call in turn.calls)

    def strip(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer in one piece that ends so."""
        if not self._has_shape(answer):
            return answer
        kept = self._strip(answer)
        return self._end(kept) if self._calls_nothing else kept

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
        kept = self._end(kept) if self._calls_nothing else kept
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
    def _strip(self, answer: dict[str, Any]) -> dict[str, Any]:
        """An answer in one piece without hidden calls."""

    def _end(self, value: dict[str, Any]) -> dict[str, Any]:
        """An event, or an answer in one piece, that does not say that a call was why the model ended."""
        return value

    @abstractmethod
    def _change(self, value: dict[str, Any]) -> dict[str, Any] | None:
        """The event as it must be sent; empty if it must not be, None if it is sent as it came. Notes what is shown."""

    @abstractmethod
    def _shown_parts(self) -> list[ShownPart]:
        """What the client has of the turn that is hidden now."""

    @abstractmethod
    def error(self, error: Mapping[str, Any]) -> bytes:
        """The end of a stream that cannot go on."""


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
        if isinstance(kept.get("content"), str) and kept["content"] and not self._is_separated:
            kept["content"] = SEPARATOR + kept["content"]
        return {**choice, "delta": kept}

    def _shown_parts(self) -> list[ShownPart]:
        text = "".join(self._texts)
        return [ShownPart("text", text + SEPARATOR)] if text else []

    def error(self, error: Mapping[str, Any]) -> bytes:
        return event_bytes("", {"error": error})


class MergedResponsesStream(MergedStream):
    """A reasoning item must be followed by the item it belongs to, so it waits until it is known what that is."""

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


JOINED: dict[str, type[MergedStream]] = {
    one.dialect: one for one in (MergedAnthropicStream, MergedChatStream, MergedResponsesStream)
}
