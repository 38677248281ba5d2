"""ShareGPT turns, `{"from": "gpt", "value": "..."}`, as a dialect: tool calls and results are marked in the text.

    gpt:   <think>...</think> text <tool_call>{"name": ..., "arguments": {...}}</tool_call>
    tool:  <tool_response>{"tool_call_id": ..., "name": ..., "content": ...}</tool_response>

1. Reading never raises: an unreadable mark stays text, or its content is the result.
2. Calls have no ids here, so results are paired with calls by position, whatever id their envelope has.
3. `read_turns` reads only speakers and texts, which is all that counting and cutting need.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import msgspec
from msgspec import Raw

from midfold.lab.trajectory_settings import TurnKind
from midfold.transcript import jsonio
from midfold.transcript.dialect import Notes, string
from midfold.transcript.message import Message, Part, Reading, Role, Text, Thinking, ToolCall, ToolResult, plain

_SPEAKERS: dict[TurnKind, str] = {
    "system": "system",
    "human": "human user",
    "gpt": "gpt assistant chatgpt model function_call tool_call",
    "tool": "tool function observation ipython function_response tool_response",
}
KINDS: dict[str, TurnKind] = {name: kind for kind, names in _SPEAKERS.items() for name in names.split()}
ROLES: dict[TurnKind, Role] = {
    "system": "system",
    "human": "user",
    "gpt": "assistant",
    "tool": "tool",
    "other": "other",
}
CALL, RESPONSE = "tool_call", "tool_response"
THOUGHTS = ("think", "thinking", "scratchpad", "REASONING_SCRATCHPAD")
_SPOKEN = re.compile(f"<({'|'.join((CALL, *THOUGHTS))})>")
_ANSWERED = re.compile(f"<({RESPONSE})>")
CALLS_ALONE = frozenset({"function_call", "tool_call"})


class ShareGPTTurn(msgspec.Struct, gc=False):
    """A turn in the usual form."""

    speaker: str = msgspec.field(name="from")
    value: str


class _Call(msgspec.Struct, gc=False):
    name: str
    arguments: Raw = Raw(b"{}")
    id: str = ""


_turns = msgspec.json.Decoder(list[ShareGPTTurn])
_call = msgspec.json.Decoder(_Call)


class ShareGPT:
    name: ClassVar[str] = "sharegpt"
    list_key: ClassVar[str] = "conversations"
    system_key: ClassVar[str | None] = "system"
    output_keys: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def read(value: Any) -> Reading:
        notes = Notes()
        turn = notes.mapping("", value)
        speaker, said = turn.get("from"), turn.get("value")
        kind = kind_of(speaker)
        if kind == "other":
            notes.add(".from", f"expected one of {', '.join(KINDS)}")
        if not isinstance(said, str):
            notes.expect(".value", "text", said)
        text = string(said)
        if kind == "tool":
            return notes.reading("tool", list(_read_results(text)))
        if kind == "gpt":
            return notes.reading("assistant", list(_read_spoken(text, alone=speaker in CALLS_ALONE)))
        return notes.reading(ROLES[kind], [Text(text)] if text else [])

    @staticmethod
    def read_system(value: Any) -> Reading:
        return ShareGPT.read({"from": "system", "value": value})

    @staticmethod
    def fields(message: Message, origin: Mapping[str, Any]) -> Mapping[str, Any]:
        kinds = {role: kind for kind, role in ROLES.items()}
        return {"from": kinds[message.role], "value": message.text}

    @staticmethod
    def system_value(message: Message, origin: Any) -> Any:
        return message.text


def kind_of(speaker: Any) -> TurnKind:
    return KINDS.get(speaker, "other") if isinstance(speaker, str) else "other"


def read_turns(array: Raw, wires: Sequence[Raw]) -> tuple[list[TurnKind], list[str]]:
    """Return the kind and the text of each turn."""
    try:
        turns = _turns.decode(array)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        read = [_read_leniently(wire) for wire in wires]
        return [kind for kind, _ in read], [text for _, text in read]
    return [KINDS.get(turn.speaker, "other") for turn in turns], [turn.value for turn in turns]


def _read_leniently(wire: Raw) -> tuple[TurnKind, str]:
    try:
        value = plain(wire)
    except jsonio.NotJSON:
        value = None
    if not isinstance(value, Mapping):
        return "other", ""
    return kind_of(value.get("from")), string(value.get("value"))


def is_turn(value: Any) -> bool:
    return isinstance(value, Mapping) and "from" in value and "value" in value


def _read_spoken(text: str, *, alone: bool) -> Iterator[Part]:
    """Yield thinking, text and calls in order."""
    if alone and (call := _read_call(text)) is not None:
        yield call
        return
    for tag, piece in _split_marks(text, _SPOKEN):
        call = _read_call(piece) if tag == CALL else None
        if call is not None:
            yield call
        elif tag in THOUGHTS:
            if piece.strip():
                yield Thinking(piece.strip())
        elif piece.strip():
            yield Text(piece.strip() if tag is None else f"<{tag}>{piece}</{tag}>")


def _read_call(text: str) -> ToolCall | None:
    try:
        call = _call.decode(text.encode("utf-8", "surrogatepass"))
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None
    arguments = bytes(call.arguments)
    if arguments[:1] == b'"':
        return ToolCall(call.id, call.name, string(jsonio.decode(arguments)))
    return ToolCall(call.id, call.name, arguments.decode("utf-8", "replace"))


def _read_results(text: str) -> Iterator[Part]:
    pieces = [piece for tag, piece in _split_marks(text, _ANSWERED) if tag == RESPONSE or piece.strip()]
    for piece in pieces or [text]:
        yield _read_result(piece.strip())


def _read_result(text: str) -> ToolResult:
    """Return a result: the content if the text is an envelope, else the text."""
    try:
        value = jsonio.decode(text) if text[:1] == "{" else None
    except jsonio.NotJSON:
        value = None
    if not isinstance(value, dict) or "content" not in value:
        return ToolResult("", (Text(text),) if text else ())
    content, name = value["content"], value.get("name")
    inside = content if isinstance(content, str) else jsonio.text_of(content)
    return ToolResult("", (Text(inside),) if inside else (), False, name if isinstance(name, str) else None)


def _split_marks(text: str, tags: re.Pattern[str]) -> Iterator[tuple[str | None, str]]:
    """Yield the text inside each mark with its tag, and the text outside, in order and in linear time."""
    position = start = 0
    unclosed: set[str] = set()
    while (match := tags.search(text, start)) is not None:
        tag = match.group(1)
        start = match.end()
        end = -1 if tag in unclosed else text.find(f"</{tag}>", start)
        if end < 0:
            unclosed.add(tag)
            continue
        yield None, text[position : match.start()]
        yield tag, text[start:end]
        position = start = end + len(tag) + 3
    yield None, text[position:]
