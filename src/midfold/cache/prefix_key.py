"""A key for what stays the same in every request of a job: instructions and tools, never the session.

Rules of this file:
1. The order of tools, the order of keys, white space, markers and session ids do not change the key.
2. The note that a first compaction leaves in the system prompt does not change it either.
3. The key is a routing hint. Two jobs with the same key are served by the same machine, nothing more.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import Any

from midfold.core import jsonio
from midfold.core.handoff import SYSTEM_NOTE
from midfold.core.message import Message, Tool, plain

PREFIX = "mfpk_"
"""What a session id never begins with."""
LONGEST = 64
_MARKERS = ("cache_control", "prompt_cache_breakpoint")


def stable_prefix_cache_key(system_prompt: Any, tools: Iterable[Any] | None = None, *, session_id: str = "") -> str:
    """At most 64 characters of SHA-256 over the instructions, a NUL and the tools sorted by name and type.

    `system_prompt` is a text, a list of blocks or a message; `tools` are definitions in any dialect. Without either the
    key is made from `session_id`, and is empty if there is none.
    """
    instructions = _instructions(system_prompt)
    schemas = sorted(
        (_schema(tool) for tool in tools or ()), key=lambda schema: (_name(schema), _kind(schema), _json(schema))
    )
    if not instructions and not schemas:
        return _key(b"session\0" + session_id.encode("utf-8", "surrogatepass")) if session_id else ""
    return _key(instructions.encode("utf-8", "surrogatepass") + b"\0" + _json(schemas))


def _key(data: bytes) -> str:
    return (PREFIX + sha256(data).hexdigest())[:LONGEST]


def _instructions(prompt: Any) -> str:
    if isinstance(prompt, Message):
        text = "\n".join(prompt.texts())
    else:
        value = plain(prompt)
        if isinstance(value, Mapping):
            value = value.get("content") or value.get("text")
        blocks = value if isinstance(value, list | tuple) else [value]
        text = "\n".join(_text(block) for block in blocks)
    return text.replace(SYSTEM_NOTE, "").rstrip()


def _text(block: Any) -> str:
    if isinstance(block, Mapping):
        return str(block.get("text") or "")
    return block if isinstance(block, str) else ""


def _schema(tool: Any) -> Any:
    value = jsonio.decode(tool.body) if isinstance(tool, Tool) else plain(tool)
    if isinstance(value, Mapping):
        return {key: item for key, item in value.items() if key not in _MARKERS}
    return value


def _name(schema: Any) -> str:
    function = schema.get("function") if isinstance(schema, Mapping) else None
    held = function if isinstance(function, Mapping) else schema
    return str(held.get("name") or "") if isinstance(held, Mapping) else ""


def _kind(schema: Any) -> str:
    return str(schema.get("type") or "") if isinstance(schema, Mapping) else ""


def _json(value: Any) -> bytes:
    return jsonio.encode(_sorted(value))


def _sorted(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _sorted(value[key]) for key in sorted(value, key=str)}
    if isinstance(value, list | tuple):
        return [_sorted(item) for item in value]
    return value
