"""Addresses of pages. A session's name may hold anything printable, a segment of a path may not."""

from __future__ import annotations

import re
from urllib.parse import urlencode

_PLAIN = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.+~@:,")
_ESCAPED = re.compile(rb"!([0-9A-F]{2})")
_KEY = re.compile(r"[A-Za-z0-9_.+~@:,!-]+")


def key_of(name: str) -> str:
    """A name as one segment of a path: every other byte of its UTF-8 as `!` and two digits.

    Slashes, percent signs and segments of dots are changed by browsers, proxies and servers; these never are.
    """
    data = name.encode("utf-8", "surrogatepass")
    dots = not name.strip(".")
    return "".join(chr(byte) if byte in _PLAIN and not dots else f"!{byte:02X}" for byte in data)


def name_of(key: str) -> str | None:
    """The name behind a segment; None if no name has this one."""
    if not _KEY.fullmatch(key):
        return None
    try:
        name = _ESCAPED.sub(lambda match: bytes([int(match[1], 16)]), key.encode()).decode("utf-8", "surrogatepass")
    except UnicodeDecodeError:
        return None
    return name if key_of(name) == key else None


def session_path(name: str, *rest: object) -> str:
    """The path of a session's page, or of one below it."""
    return "/".join(("/sessions", key_of(name), *map(str, rest)))


def with_query(path: str, **values: object) -> str:
    """The path with those values that say something."""
    given = {key: value for key, value in values.items() if value not in (None, "", 0)}
    return f"{path}?{urlencode(given)}" if given else path
