"""Messages for people: redacted, the beginning of them in lists, their parts on a page of their own."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from midfold.dashboard.facts import Block, Fate, Line, Original
from midfold.dashboard.places import Found
from midfold.fold.archive import handle_of
from midfold.fold.handoff import recognise
from midfold.transcript import jsonio
from midfold.transcript.message import Media, Message, Opaque, Part, Text, Thinking, ToolCall, ToolResult
from midfold.transcript.tokens import Meter

LONGEST_LINE = 240
REDACTED = 4_000
"""Characters redacted before a line is cut: a secret that begins inside it is still one."""
LONGEST_BLOCK = 60_000
LONGEST_ARGUMENTS = 200_000
_SPACE = re.compile(r"\s+")
Redact = Callable[[str], str]


class Show:
    """How messages of one session are shown."""

    def __init__(self, meter: Meter, redact: Redact) -> None:
        self.meter, self.redact = meter, redact

    def line(self, index: int, found: Found, fate: Fate) -> Line:
        message = found.message
        ours = recognise(message)
        return Line(
            index=index,
            position=found.place.position,
            role=message.role,
            at=found.at,
            tokens=self.tokens(message),
            handle=handle_of(message) if found.place.body is None else "",
            fate=fate,
            ours=ours.kind if ours else "",
            tools=tuple(dict.fromkeys(part.name for part in message.parts if isinstance(part, ToolCall))),
            text=self.beginning(message),
        )

    def tokens(self, message: Message) -> int:
        return self.meter.tokens(self.meter.units(message), 1)

    def beginning(self, message: Message) -> str:
        """One line of what it says; a handoff says its summary, not its frame."""
        ours = recognise(message)
        text = ours.body if ours else next((said for part in message.parts if (said := _said(part).strip())), "")
        clean = _SPACE.sub(" ", self.redact(text[:REDACTED])).strip()
        return clean if len(clean) <= LONGEST_LINE else clean[: LONGEST_LINE - 1].rstrip() + "…"

    def original(self, found: Found, names: Mapping[str, str] | None = None) -> Original:
        message = found.message
        return Original(
            position=found.place.position,
            role=message.role,
            at=found.at,
            tokens=self.tokens(message),
            handle=handle_of(message),
            blocks=tuple(self.block(part, names or {}) for part in message.parts),
        )

    def block(self, part: Part, names: Mapping[str, str]) -> Block:
        if isinstance(part, Text):
            return self._cut(Block(kind="text", title="", text=part.text))
        if isinstance(part, Thinking):
            said = part.text or "(encrypted by the provider)"
            return self._cut(Block(kind="thinking", title="thinking", text=said))
        if isinstance(part, ToolCall):
            return self._cut(Block(kind="tool call", title=part.name, text=_arguments(part.arguments)))
        if isinstance(part, ToolResult):
            pictures = [_described(item) for item in part.parts if isinstance(item, Media)]
            text = "\n".join(filter(None, (part.text, *pictures)))
            name = part.name or names.get(part.call_id, "")
            return self._cut(Block(kind="tool result", title=name, text=text, is_error=part.is_error))
        if isinstance(part, Media):
            return Block(kind="media", title=part.kind, text=_described(part))
        body = part.body if isinstance(part, Opaque) else ""
        return self._cut(Block(kind="other", title=part.kind if isinstance(part, Opaque) else "", text=body))

    def _cut(self, block: Block) -> Block:
        """Redacted, and no longer than a page can bear: a little more is redacted than is shown."""
        whole = len(block.text)
        text = self.redact(block.text[: LONGEST_BLOCK + REDACTED])
        left_out = max(whole - LONGEST_BLOCK, 0)
        return Block(
            kind=block.kind,
            title=self.redact(block.title[:REDACTED]),
            text=text[:LONGEST_BLOCK] if left_out else text,
            is_error=block.is_error,
            left_out=left_out,
        )


def _said(part: Part) -> str:
    if isinstance(part, Text | Thinking):
        return part.text
    if isinstance(part, ToolResult):
        return part.text or next((_described(item) for item in part.parts if isinstance(item, Media)), "")
    if isinstance(part, ToolCall):
        return _arguments(part.arguments).replace("\n", ", ")
    return _described(part) if isinstance(part, Media) else part.body if isinstance(part, Opaque) else ""


def _described(media: Media) -> str:
    size = f", {len(media.data):,} characters" if not media.data.startswith(("http:", "https:")) else ""
    return f"[{media.kind} {media.mime or ''}{size}]".replace(" ]", "]")


def _arguments(text: str) -> str:
    """A call's arguments as lines `name: value`, or as they are if they are no object, or very long."""
    if len(text) > LONGEST_ARGUMENTS:
        return text
    try:
        value = jsonio.decode(text)
    except jsonio.NotJSON:
        return text
    if not isinstance(value, dict):
        return text
    return "\n".join(f"{key}: {item if isinstance(item, str) else _json(item)}" for key, item in value.items())


def _json(value: object) -> str:
    return jsonio.encode(value).decode("utf-8", "replace")
