"""Pictures cost tokens; old ones are replaced by a line. Resizing stays in adapters."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from midfold.core.laws import is_human
from midfold.core.message import IMAGE, Media, Message, Part, Text, ToolResult, Transcript, kinds_of
from midfold.core.tokens import media_units


class MediaReducer(Protocol):
    """What an adapter that can look into pictures implements."""

    def estimate_media_tokens(self, part: Media, /) -> int: ...

    def replace_historical_media(self, messages: Transcript, /) -> Transcript: ...


class FlatMedia:
    """The default: a flat price, and placeholders for every image before the newest image-bearing user turn."""

    def estimate_media_tokens(self, part: Media, /) -> int:
        return media_units(part)

    def replace_historical_media(self, messages: Transcript, /) -> Transcript:
        return replace_historical_media(messages, lambda message: "")[0]


def newest_picture(messages: Transcript) -> int | None:
    """The newest human turn with an image; without one, the newest message with an image."""
    newest = None
    for index in range(len(messages) - 1, -1, -1):
        if messages[index].kinds & IMAGE:
            if is_human(messages[index]):
                return index
            newest = index if newest is None else newest
    return newest


def has_images(parts: tuple[Part, ...]) -> bool:
    return bool(kinds_of(parts) & IMAGE)


def replace_historical_media(
    messages: Transcript, handle: Callable[[Message], str]
) -> tuple[Transcript, dict[int, str]]:
    """The transcript with older images as placeholders, and the handle of each message that changed."""
    newest = newest_picture(messages)
    if newest is None:
        return messages, {}
    changed: dict[int, str] = {}
    out = list(messages)
    for index in range(newest):
        if messages[index].kinds & IMAGE:
            changed[index] = handle(messages[index])
            out[index] = messages[index].with_parts(_without(messages[index].parts, changed[index]))
    return tuple(out), changed


def placeholder(media: Media, handle: str) -> str:
    unfold = f" | unfold {handle}" if handle else ""
    return f"[{media.mime or 'image'} removed to save context space{unfold}]"


def _without(parts: tuple[Part, ...], handle: str) -> tuple[Part, ...]:
    return tuple(_replaced(part, handle) for part in parts)


def _replaced(part: Part, handle: str) -> Part:
    if isinstance(part, Media) and part.kind == "image":
        return Text(placeholder(part, handle))
    if isinstance(part, ToolResult) and has_images(part.parts):
        inner = _without(part.parts, handle)
        return ToolResult(part.call_id, inner, part.is_error, part.name, wire=part.wire)
    return part
