"""Files read: which, which lines, how much, and whether it worked."""

from __future__ import annotations

from typing import Any

from midfold.core.digest.action import Action
from midfold.core.digest.look import Look, judged
from midfold.core.digest.wording import plural


def read(look: Look) -> Action:
    paths = look.paths()
    what = look.path(paths[0]) if paths else "a file"
    if len(paths) > 1:
        what += f" and {len(paths) - 1} more"
    did = f"read {what}{_range(look)}"
    detail = look.size()
    if look.body.media:
        detail = plural(look.body.media, "media part")
    return judged(look, "read", did, detail, paths=paths)


def _range(look: Look) -> str:
    """Lines as the arguments ask for them: offset and limit, start and end, or a view range."""
    both = look.get("viewrange", "linerange", "range", "lines")
    if isinstance(both, list) and len(both) == 2:
        return _span(_number(both[0]), _number(both[1]))
    first = _number(look.get("startline", "startlineoneindexed", "offset", "linestart", "start", "linenumber", "from"))
    last = _number(look.get("endline", "endlineoneindexedinclusive", "lineend", "end", "to"))
    limit = _number(look.get("limit", "maxlines", "numlines", "lines"))
    if last is None and limit is not None:
        last = (first or 1) + limit - 1
    return _span(first, last)


def _span(first: int | None, last: int | None) -> str:
    if first is None and last is None:
        return ""
    if last is None or last < 0:
        return f" from line {first}"
    return f" lines {first or 1}-{last}"


def _number(value: Any) -> int | None:
    if isinstance(value, str) and value.isdecimal() and len(value) < 10:
        return int(value)
    return value if type(value) is int and abs(value) < 10**12 else None
