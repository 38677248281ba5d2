"""Tool-call arguments made smaller without breaking them.

Rules of this file:
1. Only the text inside string leaves is cut. Keys, numbers, booleans, nulls and the shape of arrays stay.
2. Paths and ids stay whole: a later turn needs them to the letter.
3. The result is valid JSON again: a provider refuses every request whose history holds broken arguments.
4. A number is written as it was: literals that Python would round or rename are carried as text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Raw

from midfold.core import jsonio

SHORTEST_LIMIT = 40
"""Room for the marker itself; a smaller limit is taken as this one."""
LONGEST_PATH = 4_096
LONGEST_BARE_PATH = 1_024
LONGEST_BARE_ID = 256

_KEPT_KEYS = re.compile(
    r"(?:.{0,60}[_-])?(?:id|ids|path|paths|file|files|filename|filenames|dir|dirs|directory|folder|cwd|workdir|url|urls|uri|uris"
    r"|uuid|guid|sha|hash|ref|handle|key|name|glob)"
    r"|.{0,60}[a-z](?:Id|Ids|ID|IDs|Path|Paths|File|Files|Dir|Url|URL|Uri|URI)|filepath|filepaths",
)
_PATH = re.compile(r"(?:[./~]|[A-Za-z]:[\\/]|[A-Za-z][A-Za-z0-9+.-]{1,20}://|\w{1,100}[\\/])[^\s\"'<>|*?{}()\[\];,=]*")
_ID = re.compile(r"[A-Za-z0-9_.:@#/-]+")


def shrink_arguments(arguments: str, max_string_chars: int = 500, *, clamp_raw: bool = False) -> str:
    """Arguments with long string leaves cut; the very same string where that changes or saves nothing."""
    if len(arguments) <= max(max_string_chars, SHORTEST_LIMIT):
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
    shrunk = jsonio.text_of(shrink_json_string_leaves(exact, max_string_chars))
    return shrunk if len(shrunk) < len(arguments) else arguments


def shrink_json_string_leaves(value: Any, max_string_chars: int) -> Any:
    """A copy with long string leaves cut in the middle; the same object where none is long."""
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
    if len(text) <= max(limit, SHORTEST_LIMIT) or _is_kept(text, key):
        return text
    return _cut(text, limit)


def _is_kept(text: str, key: str) -> bool:
    if len(text) > LONGEST_PATH:
        return False
    if key and len(key) <= 80 and _KEPT_KEYS.fullmatch(key):
        return "\n" not in text
    if len(text) <= LONGEST_BARE_ID and _ID.fullmatch(text):
        return True
    return len(text) <= LONGEST_BARE_PATH and bool(_PATH.fullmatch(text))


def _cut(text: str, limit: int) -> str:
    limit = max(limit, SHORTEST_LIMIT)
    if len(text) <= limit:
        return text
    room = limit - len(f"…[{len(text):,} characters left out]…")
    head = room * 2 // 3
    tail = room - head
    left_out = len(text) - room
    return f"{text[:head]}…[{left_out:,} characters left out]…{text[len(text) - tail :]}"


def _raw(literal: str) -> Raw:
    return Raw(literal.encode())
