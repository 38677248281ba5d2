"""Render user messages, tool results, tools and request bodies for each wire format.

Messages are sent as the exact bytes of the session's view, and nothing in a request depends on the clock or on later
messages, so that the provider's prompt cache stays valid.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from midfold.cache import plan_document, provider_of
from midfold.cache.markers import mark
from midfold.config.schema import PromptCaching
from midfold.model.endpoint import DIALECTS as WIRE_DIALECTS
from midfold.model.endpoint import Endpoint, Wire
from midfold.store.protocol import View
from midfold.transcript import jsonio
from midfold.transcript.document import DIALECTS, read
from midfold.transcript.message import Media, Message, Opaque, Part, Role, Text, Thinking, ToolCall, ToolResult, plain
from midfold.transcript.splice import message_bytes, message_value
from midfold.transcript.tools import ToolSpec

# A session is stored in the dialect it was started in and rendered for the model it talks to.
#
# 1. Storage keeps the session's dialect, so handles, search and unfolding are unaffected.
# 2. A message always renders to the same bytes, whatever its neighbours are (prompt cache).
# 3. Thinking is dropped: its signature is valid only for the provider that wrote it.


ANTHROPIC = "anthropic"
NOTHING = "(nothing)"


def render_message(message: Message, dialect: str) -> list[dict[str, Any]]:
    """Render a message in another dialect; a message with several tool results may become several messages."""
    make = _for_anthropic if dialect == ANTHROPIC else _for_chat
    return [message_value(one, DIALECTS[dialect]) for one in make(message)]


def translate_message(value: dict[str, Any], source: str, dialect: str) -> list[dict[str, Any]]:
    """Translate a message between dialects; return it unchanged if they are the same."""
    return [value] if source == dialect else render_message(Message.over(value, DIALECTS[source].read), dialect)


def _for_anthropic(message: Message) -> Iterator[Message]:
    parts = tuple(part for part in _bare(message.parts) if not isinstance(part, Text) or part.text.strip())
    role: Role = "assistant" if message.role == "assistant" else "user"
    yield Message(role, parts or (Text(NOTHING),))


def _for_chat(message: Message) -> Iterator[Message]:
    """Split a message for the chat dialect: tool results become messages of their own and precede the rest."""
    parts = list(_bare(message.parts))
    for part in parts:
        if isinstance(part, ToolResult):
            yield Message("tool", (msgspec.structs.replace(part, parts=(Text(part.text),)),))
    said = "\n".join(part.text for part in parts if isinstance(part, Text))
    others = [part for part in parts if isinstance(part, Media | ToolCall)]
    if said or others or not parts:
        yield Message(message.role, (*([Text(said)] if said or not others else []), *others))


def _bare(parts: tuple[Part, ...]) -> Iterator[Part]:
    """Yield the parts without their original blocks; drop or name parts that only the source dialect supports."""
    for part in parts:
        if isinstance(part, Thinking | Opaque):
            continue
        if isinstance(part, Media) and part.kind not in ("image", "document"):
            yield Text(f"[{part.kind}]")
        elif isinstance(part, ToolResult):
            yield msgspec.structs.replace(part, parts=tuple(_bare(part.parts)), wire=None)
        else:
            yield msgspec.structs.replace(part, wire=None)


WIRES: dict[str, Wire] = {dialect: wire for wire, dialect in WIRE_DIALECTS.items() if wire != "responses"}
LONGEST_ANSWER = 32_000


class Result(msgspec.Struct, frozen=True):
    """Result of a tool call."""

    call: ToolCall
    text: str
    is_error: bool = False


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def assistant(text: str) -> dict[str, Any]:
    return {"role": "assistant", "content": text}


def results(wire: Wire, done: Sequence[Result]) -> list[dict[str, Any]]:
    """Render the results of one batch of calls."""
    if wire == "openai":
        return [{"role": "tool", "tool_call_id": item.call.id, "content": item.text} for item in done]
    blocks = [
        {"type": "tool_result", "tool_use_id": item.call.id, "content": item.text}
        | ({"is_error": True} if item.is_error else {})
        for item in done
    ]
    return [{"role": "user", "content": blocks}]


def wire_of(view: View) -> Wire:
    """Return the wire that the session is stored in; its model may use another."""
    return WIRES[view.dialect.name]


def for_session(message: dict[str, Any], wire: Wire, view: View) -> list[dict[str, Any]]:
    """Translate a message of the model into the session's dialect."""
    return translate_message(message, WIRE_DIALECTS[wire], view.dialect.name)


def longest_answer(endpoint: Endpoint, window: int, requested: int | None) -> int:
    """Return the maximum response tokens: as requested or an eighth of the window, within the model's limit."""
    most = endpoint.max_output or LONGEST_ANSWER
    return max(1, min(requested or min(window // 8, LONGEST_ANSWER), most))


def body(endpoint: Endpoint, view: View, tools: Sequence[ToolSpec], answer_tokens: int) -> bytes:
    """Return the body of the next request."""
    wire = endpoint.wire
    fields: dict[str, Any] = {"model": endpoint.model, "stream": True}
    if tools:
        fields["tools"] = [tool.definition(WIRE_DIALECTS[wire]) for tool in tools]
    pieces = _pieces(view, WIRE_DIALECTS[wire])
    messages = b"[" + b",".join(_alternating(pieces) if wire == "anthropic" else (data for _, data in pieces)) + b"]"
    system = _system(view, WIRE_DIALECTS[wire])
    if wire == "anthropic":
        fields["max_tokens"] = answer_tokens
        if system:
            fields["system"] = system
    else:
        limit = "max_completion_tokens" if endpoint.is_openai else "max_tokens"
        fields |= {limit: answer_tokens, "stream_options": {"include_usage": True}}
        if system:
            first = jsonio.encode({"role": "system", "content": system})
            messages = b"[" + first + (b"," if len(messages) > 2 else b"") + messages[1:]
    fields |= endpoint.extra_body
    return jsonio.encode(fields)[:-1] + b',"messages":' + messages + b"}"


def _pieces(view: View, dialect: str) -> list[tuple[str, bytes]]:
    """Return the role and bytes of every message of the view, translated if the dialects differ."""
    if view.dialect.name == dialect:
        return [(item.message.role, message_bytes(item.message, view.dialect)) for item in view.items]
    values = [value for message in view.transcript for value in render_message(message, dialect)]
    return [(value["role"], jsonio.encode(value)) for value in values]


def _system(view: View, dialect: str) -> Any:
    if view.dialect.name == dialect or view.prompt is None:
        return plain(view.system)
    return view.prompt.text


def _alternating(messages: list[tuple[str, bytes]]) -> list[bytes]:
    """Merge neighbouring messages of the same role."""
    pieces: list[bytes] = []
    before = ""
    for role, data in messages:
        if pieces and role == before:
            both = [block for value in (pieces[-1], data) for block in _blocks(jsonio.decode(value)["content"])]
            pieces[-1] = jsonio.encode({"role": role, "content": both})
        else:
            pieces.append(data)
        before = role
    return pieces


def _blocks(content: Any) -> list[Any]:
    return [{"type": "text", "text": content}] if isinstance(content, str) else list(content)


def with_breakpoints(request: bytes, endpoint: Endpoint, settings: PromptCaching) -> bytes:
    """Add cache breakpoints if the provider supports them; change no other byte."""
    document = read(request, dialect=endpoint.dialect)
    hints = plan_document(
        document,
        provider=caching_provider(endpoint),
        ttl=settings.cache_ttl,
        strategy=settings.strategy,
        setting=settings.enabled,
    )
    marked: bytes = mark(document, hints)
    return marked


def caching_provider(endpoint: Endpoint) -> str:
    """Return the provider for the cache breakpoint planner, by the endpoint's address or else its name."""
    return provider_of(endpoint.base_url) or endpoint.name
