"""One conversation, two wires: a session keeps the shape it was begun in, and is rendered for the model it talks to.

Rules of this file:
1. Nothing is stored in another shape than the session's: handles, search and unfolding stay what they were.
2. The same message gives the same bytes, whatever stands beside it: what was sent before is sent again.
3. Thinking stays behind. A signature holds for the provider that wrote it, and for nobody else.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from midfold.transcript.document import DIALECTS
from midfold.transcript.message import Media, Message, Opaque, Part, Role, Text, Thinking, ToolCall, ToolResult
from midfold.transcript.splice import message_value

ANTHROPIC = "anthropic"
NOTHING = "(nothing)"


def rendered(message: Message, dialect: str) -> list[dict[str, Any]]:
    """A message as another dialect writes it: several where it knows no message with several results."""
    make = _for_anthropic if dialect == ANTHROPIC else _for_chat
    return [message_value(one, DIALECTS[dialect]) for one in make(message)]


def translated(value: dict[str, Any], source: str, dialect: str) -> list[dict[str, Any]]:
    """A message of one dialect in the shape of another; as it is, if that is the same."""
    return [value] if source == dialect else rendered(Message.over(value, DIALECTS[source].read), dialect)


def _for_anthropic(message: Message) -> Iterator[Message]:
    parts = tuple(part for part in _bare(message.parts) if not isinstance(part, Text) or part.text.strip())
    role: Role = "assistant" if message.role == "assistant" else "user"
    yield Message(role, parts or (Text(NOTHING),))


def _for_chat(message: Message) -> Iterator[Message]:
    """Results are messages of their own, and come first: they answer the calls before them."""
    parts = list(_bare(message.parts))
    for part in parts:
        if isinstance(part, ToolResult):
            yield Message("tool", (msgspec.structs.replace(part, parts=(Text(part.text),)),))
    said = "\n".join(part.text for part in parts if isinstance(part, Text))
    others = [part for part in parts if isinstance(part, Media | ToolCall)]
    if said or others or not parts:
        yield Message(message.role, (*([Text(said)] if said or not others else []), *others))


def _bare(parts: tuple[Part, ...]) -> Iterator[Part]:
    """What was said, without the blocks it came in; what only its own wire can carry is left out or named."""
    for part in parts:
        if isinstance(part, Thinking | Opaque):
            continue
        if isinstance(part, Media) and part.kind not in ("image", "document"):
            yield Text(f"[{part.kind}]")
        elif isinstance(part, ToolResult):
            yield msgspec.structs.replace(part, parts=tuple(_bare(part.parts)), wire=None)
        else:
            yield msgspec.structs.replace(part, wire=None)
