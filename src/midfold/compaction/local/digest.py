"""One-line digests of old tool results, and shortened tool-call arguments.

A digest is one line of at most LIMIT characters plus its handle. It names the action and its outcome, and marks a
failure as failed. Text from arguments and output passes through the caller's redactor. `is_digest` recognizes
everything that `digest` and `back_reference` write, so nothing is digested twice.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from hashlib import blake2b
from typing import Any

from msgspec import Raw

from midfold.compaction.local.tool_call import (
    MAX_REDACTED_CHARS,
    Action,
    Redactor,
    ToolCallRecord,
    clip,
    flat,
    identity,
    plural,
    read_tool_call,
)
from midfold.compaction.local.tool_kinds import recognise
from midfold.transcript import jsonio
from midfold.transcript.laws import Place
from midfold.transcript.message import Media, Opaque, Part, Text, ToolCall, ToolResult, Transcript

# Describe a result: registered functions first, then the built-in tool families.


DigestFunction = Callable[[ToolCall | None, ToolResult], Action | None]

_registered: tuple[DigestFunction, ...] = ()


def register_digest(function: DigestFunction) -> Callable[[], None]:
    """Register a function that describes tool results before the built-in families; the newest one runs first.

    The function returns None for results it does not recognize. Call the returned function to unregister it.
    """
    global _registered  # noqa: PLW0603
    _registered = (function, *_registered)
    done = False

    def unregister() -> None:
        global _registered  # noqa: PLW0603
        nonlocal done
        if not done:
            done = True
            remaining = list(_registered)
            remaining.remove(function)
            _registered = tuple(remaining)

    return unregister


def describe(call: ToolCall | None, result: ToolResult) -> Action:
    """Return the action of a tool call and its outcome. The texts are not redacted."""
    return describe_with(call, result, identity)


def describe_with(call: ToolCall | None, result: ToolResult, redact: Redactor) -> Action:
    return describe_call(read_tool_call(call, result, redact), call, result)


def describe_call(record: ToolCallRecord, call: ToolCall | None, result: ToolResult) -> Action:
    """Return the action of a tool call record, from registered functions or the built-in families."""
    for function in _registered:
        try:
            action = function(call, result)
        except Exception:  # noqa: BLE001  a user's function must not stop a compaction; the built-in families answer
            continue
        if isinstance(action, Action):
            return action
    return recognise(record)(record)


LIMIT = 240
PLACEHOLDER = "[Old tool output cleared to save context space]"
NOT_KEPT = " | the original was not kept"

_MAX_DIGEST_CHARS = 400
_DUPLICATE = "[Same tool output as in "
_DIGEST = re.compile(r"\[[^\]\n]{1,60}\] [^\n]{1,320} \| (?:unfold \S{1,80}|the original was not kept)")


def digest(call: ToolCall | None, result: ToolResult, *, handle: str, redact: Redactor = identity) -> str:
    """Return the one-line digest of a tool result: `[Bash] ran `pytest -q` -> exit 1, 54 lines, ... | unfold
    mf-1a2b3c4d5e6f`.
    """
    return write_line(describe_with(call, result, redact), handle=handle, redact=redact)


def write_line(action: Action, *, handle: str, redact: Redactor = identity) -> str:
    tool = _safe_text(action.tool, redact, 48).replace("[", "(").replace("]", ")") or "tool"
    detail = _safe_text(action.detail, redact, LIMIT)
    if action.outcome == "failed" and not detail.startswith(("failed", "exit ")):
        detail = f"failed: {detail}" if detail else "failed"
    size = f" ({plural(action.characters, 'character')})"
    start = f"[{tool}] {_safe_text(action.did, redact, 150) or 'was called'}"
    available = LIMIT - len(start) - len(size) - len(" -> ")
    line = f"{start} -> {clip(detail, available)}{size}" if detail else start + size
    return line + _suffix(handle)


def back_reference(handle_of_copy: str, where: str) -> str:
    """Return the replacement for a result that a later result repeats: the location of the copy and its handle."""
    return f"{_DUPLICATE}{clip(flat(where[:MAX_REDACTED_CHARS]), 150)}, kept there]" + _suffix(handle_of_copy)


def is_digest(text: str) -> bool:
    """Return whether a text is a digest, a back-reference or the placeholder."""
    if len(text) > _MAX_DIGEST_CHARS or text[:1] != "[":
        return False
    if text == PLACEHOLDER or _DIGEST.fullmatch(text):
        return True
    return text.startswith(_DUPLICATE) and ", kept there] | " in text and "\n" not in text


def _suffix(handle: str) -> str:
    handle = clip("".join(flat(handle[:160]).split()), 80)
    return f" | unfold {handle}" if handle else NOT_KEPT


def _safe_text(text: str, redact: Redactor, limit: int) -> str:
    return clip(flat(redact(text[:MAX_REDACTED_CHARS])), limit)


# Duplicate results: older ones that a newer copy replaces.


MIN_DUPLICATE_CHARS = 200


def duplicates(messages: Transcript, start: int, end: int) -> dict[Place, Place]:
    """Map each result in `messages[start:end]` that a later result repeats to its newest copy.

    The copy may be anywhere behind it. The caller must keep the copy: a reference to a digested copy is useless.
    """
    newest: dict[bytes, Place] = {}
    found: dict[Place, Place] = {}
    for index in range(len(messages) - 1, -1, -1):
        if index < start:
            break
        parts = messages[index].parts
        for number in range(len(parts) - 1, -1, -1):
            part = parts[number]
            if not isinstance(part, ToolResult) or _short(part) or is_digest(part.text):
                continue
            copy = newest.setdefault(_fingerprint(part), Place(index, number))
            if copy != Place(index, number) and index < end:
                found[Place(index, number)] = copy
    return dict(sorted(found.items()))


def _fingerprint(result: ToolResult) -> bytes:
    """Return a hash of a result's content that is the same in every process."""
    found = blake2b(digest_size=16)
    for part in result.parts:
        content = part.text if isinstance(part, Text) else part.data if isinstance(part, Media) else _body(part)
        found.update(f"{type(part).__name__} {len(content)} {content}\0".encode("utf-8", "surrogatepass"))
    return found.digest()


def _body(part: Part) -> str:
    return part.body if isinstance(part, Opaque) else ""


def _short(result: ToolResult) -> bool:
    size = 0
    for part in result.parts:
        if isinstance(part, Text):
            size += len(part.text)
        elif isinstance(part, Media):
            size += len(part.data)
        elif isinstance(part, Opaque):
            size += len(part.body)
        if size >= MIN_DUPLICATE_CHARS:
            return False
    return True


# Tool-call arguments, shortened but still valid.
#
# 1. Only the text of string leaves is truncated. Keys, numbers, booleans, nulls and array shapes stay.
# 2. Paths and ids stay whole: later turns need them verbatim.
# 3. The result is valid JSON: providers refuse every request whose history contains broken arguments.
# 4. Number literals that Python would round or rename are copied as text.


MIN_STRING_CHARS = 40
"""Minimum characters of a truncated string, enough for the marker; smaller limits are raised to this."""
MAX_HEAD_ONLY_CHARS = 100
"""Limit in characters up to which a truncated string keeps only its beginning."""
_PAIRS = (("old_string", "new_string"), ("old_str", "new_str"))
"""Argument names of the text that an edit removes and the text that it inserts."""
MAX_KEPT_CHARS = 4_096
MAX_PATH_CHARS = 1_024
MAX_ID_CHARS = 256

_KEPT_KEYS = re.compile(
    r"(?:.{0,60}[_-])?(?:id|ids|path|paths|file|files|filename|filenames|dir|dirs|directory|folder|cwd|workdir|url|urls|uri|uris"
    r"|uuid|guid|sha|hash|ref|handle|key|name|glob)"
    r"|.{0,60}[a-z](?:Id|Ids|ID|IDs|Path|Paths|File|Files|Dir|Url|URL|Uri|URI)|filepath|filepaths",
)
_PATH = re.compile(r"(?:[./~]|[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]{1,20}://|\w{1,100}[\\/])[^\s\"'<>|*?{}()\[\];,=]*")
_ID = re.compile(r"[A-Za-z0-9_.:@#/-]+")


def shrink_arguments(arguments: str, max_string_chars: int = 500, *, clamp_raw: bool = False) -> str:
    """Truncate long string leaves of JSON arguments; return the same string if nothing changes or gets shorter."""
    if len(arguments) <= max(max_string_chars, MIN_STRING_CHARS):
        return arguments
    try:
        value = jsonio.decode(arguments)
    except jsonio.NotJSON:
        return _cut(arguments, max_string_chars) if clamp_raw else arguments
    if shrink_json_string_leaves(value, max_string_chars) is value:
        return arguments
    try:
        exact = json.loads(
            arguments.removeprefix("\ufeff"), strict=False, parse_float=_raw, parse_int=_raw, parse_constant=_raw
        )
    except (ValueError, RecursionError):
        exact = value
    shrunk = jsonio.text_of(shrink_json_string_leaves(_without_common_text(exact, max_string_chars), max_string_chars))
    return shrunk if len(shrunk) < len(arguments) else arguments


def _without_common_text(value: Any, limit: int) -> Any:
    """Remove the common beginning and end from the two texts of an edit if one of them exceeds the limit."""
    given = value if isinstance(value, dict) else {}
    for keys in _PAIRS:
        old, new = map(given.get, keys)
        if isinstance(old, str) and isinstance(new, str) and max(len(old), len(new)) > limit:
            start = old.rfind("\n", 0, _common_prefix_length(old, new)) + 1
            old, new = old[start:], new[start:]
            end = _common_prefix_length(old[::-1], new[::-1])
            kept = (f"…{text[: len(text) - end]}…" for text in (old, new))
            return {**given, **dict(zip(keys, kept, strict=True))}
    return value


def _common_prefix_length(first: str, second: str) -> int:
    """Return the length of the common prefix of two texts."""
    pairs = enumerate(zip(first, second, strict=False))
    return next((place for place, (one, other) in pairs if one != other), min(len(first), len(second)))


def shrink_json_string_leaves(value: Any, max_string_chars: int) -> Any:
    """Return a copy with long string leaves truncated in the middle, or the same object if none is long."""
    if isinstance(value, str):
        return _leaf(value, "", max_string_chars)
    if not isinstance(value, Mapping | list | tuple):
        return value
    root = _empty(value)
    copies: dict[int, Any] = {id(value): root}
    todo: list[tuple[Any, Any, str]] = [(value, root, "")]
    changed = False
    while todo:
        source, target, under = todo.pop()
        keyed = isinstance(source, Mapping)
        for key, item in source.items() if keyed else enumerate(source):
            name = str(key) if keyed else under
            if isinstance(item, str):
                new: Any = _leaf(item, name, max_string_chars)
                changed = changed or new is not item
            elif isinstance(item, Mapping | list | tuple):
                new = copies.get(id(item))
                if new is None:
                    new = copies[id(item)] = _empty(item)
                    todo.append((item, new, name))
            else:
                new = item
            if keyed:
                target[key] = new
            else:
                target.append(new)
    return root if changed else value


def _empty(value: Any) -> Any:
    return {} if isinstance(value, Mapping) else []


def _leaf(text: str, key: str, limit: int) -> str:
    if len(text) <= max(limit, MIN_STRING_CHARS) or _is_kept(text, key):
        return text
    return _cut(text, limit)


def _is_kept(text: str, key: str) -> bool:
    if len(text) > MAX_KEPT_CHARS:
        return False
    if key and len(key) <= 80 and _KEPT_KEYS.fullmatch(key):
        return "\n" not in text
    if len(text) <= MAX_ID_CHARS and _ID.fullmatch(text):
        return True
    return len(text) <= MAX_PATH_CHARS and bool(_PATH.fullmatch(text))


def _cut(text: str, limit: int) -> str:
    limit = max(limit, MIN_STRING_CHARS)
    if len(text) <= limit:
        return text
    available = limit - len(f"…[{len(text):,} characters left out]…")
    head = available * 2 // 3 if limit > MAX_HEAD_ONLY_CHARS else available
    tail = available - head
    left_out = len(text) - available
    return f"{text[:head]}…[{left_out:,} characters left out]…{text[len(text) - tail :]}"


def _raw(literal: str) -> Raw:
    return Raw(literal.encode())
