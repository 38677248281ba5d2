"""The documented function: `system_and_3` on plain dicts, by the documented table of content types.

Nothing is copied that is not changed: untouched messages are the caller's own objects.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from midfold.core.hint import MOST_MARKERS, Ttl
from midfold.core.message import plain

ROLLING = 3
FIELD = "cache_control"


def apply_anthropic_cache_control(
    messages: Sequence[Any], ttl: Ttl = "5m", native_anthropic: bool = False
) -> list[Any]:
    """Markers on the system prompt and on the last three other messages that can carry one; the client's own count.

    `native_anthropic` says that the messages will be translated into Anthropic's own shape: then tool messages carry
    the marker on themselves, where the translation finds it. Elsewhere they are skipped. `cache.plan` and
    `wire.markers.mark` are stricter: they mark no empty message either, because no provider honours that.
    """
    out = list(messages)
    free = MOST_MARKERS - sum(_own(message) for message in out)
    marker = {"type": "ephemeral", "ttl": "1h"} if ttl == "1h" else {"type": "ephemeral"}
    chosen: list[int] = []
    first = plain(out[0]) if out else None
    system = first if isinstance(first, Mapping) and first.get("role") == "system" else None
    if free > 0 and system is not None and not _own(system) and _can_carry(system, native_anthropic):
        chosen.append(0)
        free -= 1
    rolling = min(free, ROLLING)
    for index in range(len(out) - 1, -1, -1):
        if rolling <= 0:
            break
        message = plain(out[index])
        if not isinstance(message, Mapping) or message.get("role") == "system":
            continue
        if _can_carry(message, native_anthropic):
            rolling -= 1
            if not _own(message):
                chosen.append(index)
    for index in chosen:
        out[index] = _marked(plain(out[index]), marker)
    return out


def _own(message: Any) -> int:
    """How many markers a message has already."""
    value = plain(message)
    if not isinstance(value, Mapping):
        return 0
    content = value.get("content")
    blocks = content if isinstance(content, list | tuple) else ()
    inside = sum(isinstance(block, Mapping) and block.get(FIELD) is not None for block in blocks)
    return inside + (value.get(FIELD) is not None)


def _can_carry(message: Mapping[str, Any], native: bool) -> bool:
    content = message.get("content")
    if message.get("role") == "tool":
        return native
    if isinstance(content, str):
        return not content or bool(content.strip())
    if isinstance(content, list | tuple) and content:
        return isinstance(content[-1], Mapping) and not _is_refused(content[-1])
    return not content


def _is_refused(block: Mapping[str, Any]) -> bool:
    kind = block.get("type")
    if kind in ("thinking", "redacted_thinking"):
        return True
    return kind == "text" and not str(block.get("text") or "").strip()


def _marked(message: Mapping[str, Any], marker: Mapping[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if message.get("role") == "tool" or not content:
        return {**message, FIELD: dict(marker)}
    if isinstance(content, str):
        return {**message, "content": [{"type": "text", "text": content, FIELD: dict(marker)}]}
    return {**message, "content": [*content[:-1], {**content[-1], FIELD: dict(marker)}]}
