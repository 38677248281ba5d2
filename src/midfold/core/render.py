"""Bounded, fenced rendering of structured values for models and people.

Rules of this file:
1. Every text that leaves is at most `max_chars` long, whatever the value, and costs about what it shows: a list of a
   million items is asked for its length and its first few.
2. Text inside a fence cannot end it; text outside a fence is one line.
3. What is shown is redacted: first a window around it, then it is cut, so that no half of a credential is left.
4. Status and error come first, so that no limit cuts them off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from midfold.core.redact import is_sensitive_key, redact, redact_value

PRIORITY = (
    "error", "errors", "isError", "is_error", "status", "state", "ok", "success", "exit_code", "exitCode", "returncode",
    "code", "message", "reason", "summary", "path", "file_path", "filePath", "file", "url", "name", "id", "command",
    "pid", "count", "total", "total_count", "title", "type",
)  # fmt: skip
MAX_CHARS = 8_000
DEEPEST = 32
LONGEST_JSON = 1_000_000
LONGEST_KEY = 80
WINDOW = 8_192
LONGEST_LANGUAGE = 30

_BACKTICKS = re.compile(r"`+")
_NOT_LANGUAGE = re.compile(r"[^A-Za-z0-9_+#.-]+")
_BREAKS = re.compile(r"[\r\n\v\f\x1c-\x1e\x85\u2028\u2029]+")
_LINE_END = re.compile(r"\r\n?|\n")
_PLAIN = re.compile(r"[^\W_][^`<>|*_~\[\]#\\]*")
_FAILED = frozenset({"error", "failed", "failure", "fail", "errored", "timeout", "timed_out", "cancelled", "canceled",
                     "aborted", "killed", "crashed", "denied", "interrupted"})  # fmt: skip
_EXIT_KEYS = ("exit_code", "exitCode", "returncode", "return_code", "exit_status")
_NESTED = ("metadata", "extras", "result", "data", "structuredContent")


def fence(text: str, language: str = "") -> str:
    """The text as a Markdown code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    ticks = "`" * max(3, longest + 1)
    end = "" if text.endswith("\n") or not text else "\n"
    return f"{ticks}{_NOT_LANGUAGE.sub('', language)[:LONGEST_LANGUAGE]}\n{text}{end}{ticks}"


def clip(text: str, limit: int) -> str:
    """The text, redacted; if it is longer than `limit`, its head and tail and how many characters are left out."""
    if len(text) <= max(limit, 4 * WINDOW):
        shown = redact(text)
        if len(shown) <= limit:
            return shown
        head, tail, length = shown, shown, len(shown)
    else:
        head, tail = redact(text[: limit + WINDOW]), _whole_words(redact(text[-limit - WINDOW :]))
        length = len(text)
    room = limit - len(f" […{length:,} characters left out…] ")
    if room < 8:
        return head[: max(0, limit)]
    front = room - room // 3
    back = min(room // 3, len(tail))
    return f"{head[:front]} […{length - front - back:,} characters left out…] {tail[len(tail) - back :]}"


def _whole_words(tail: str) -> str:
    """Without the piece of a word, and perhaps of a credential, that the window began with."""
    space = re.search(r"\s", tail)
    return tail[space.end() :] if space else ""


def inline(text: str, limit: int) -> str:
    """One line of Markdown: breaks become ⏎, and text that Markdown would read as markup becomes a code span."""
    line = _BREAKS.sub(" ⏎ ", clip(text, limit).strip())
    if _PLAIN.fullmatch(line):
        return line
    longest = max((len(run) for run in _BACKTICKS.findall(line)), default=0)
    if not line or longest > 8:
        return '""' if not line else inline(line.replace("`", "'"), limit)
    ticks = "`" * (longest + 1)
    pad = " " if longest else ""
    return f"{ticks}{pad}{line}{pad}{ticks}"


def block(text: str, limit: int, language: str = "") -> str:
    """A fenced text of at most `limit` characters, fence and all."""
    whole = fence(clip(text, limit - 10 - LONGEST_LANGUAGE), language)
    return whole if len(whole) <= limit else fence(clip(text, max(0, limit // 3 - 20)), language)


def render_value(
    value: Any,
    *,
    depth: int = 4,
    items: int = 20,
    string: int = 400,
    priority: Sequence[str] = PRIORITY,
    max_chars: int = MAX_CHARS,
) -> str:
    """A structured value as nested bullets, bounded in depth, entries per level, string length and total length."""
    writer = _Bullets(
        min(depth, DEEPEST), items, min(string, max_chars // 3), {key: rank for rank, key in enumerate(priority)}
    )
    return bounded(writer.lines(value, 0), max_chars)


def bounded(lines: Iterable[str], max_chars: int) -> str:
    """The lines as far as they fit whole; the last one says that there was more. Of the first, at least a part."""
    more = "- […more left out]"
    kept: list[str] = []
    size = 0
    for line in lines:
        if size + len(line) + 1 + len(more) > max_chars:
            kept.append(more if kept else f"{line[: max(0, max_chars - len(more) - 1)]}\n{more}")
            break
        kept.append(line)
        size += len(line) + 1
    return "\n".join(kept)[: max(0, max_chars)]


class _Bullets:
    """The limits of one rendering, and the containers it is inside of."""

    def __init__(self, depth: int, items: int, string: int, ranks: Mapping[str, int]) -> None:
        self._depth = depth
        self._items = max(0, items)
        self._string = string
        self._ranks = ranks
        self._open: set[int] = set()

    def lines(self, value: Any, level: int) -> Iterator[str]:
        if not isinstance(value, Mapping | list | tuple):
            yield from self._leaf("", value, level)
            return
        if not value:
            yield f"{'  ' * level}- {'{}' if isinstance(value, Mapping) else '[]'}"
            return
        self._open.add(id(value))
        entries = self._fields(value) if isinstance(value, Mapping) else (("", item) for item in value)
        for label, item in islice(entries, self._items):
            yield from self._entry(label, item, level)
        if len(value) > self._items:
            yield f"{'  ' * level}- […and {len(value) - self._items:,} more]"
        self._open.discard(id(value))

    def _fields(self, value: Mapping[Any, Any]) -> Iterator[tuple[str, Any]]:
        """Priority keys first, found by asking for them; then the others in their own order."""
        first = [key for key in self._ranks if key in value]
        known = set(first)
        for key in (*first, *(key for key in islice(value, self._items + len(first)) if not _in(key, known))):
            yield _label(key), redact_value({key: value[key]})[key] if is_sensitive_key(key) else value[key]

    def _entry(self, label: str, value: Any, level: int) -> Iterator[str]:
        if not isinstance(value, Mapping | list | tuple) or not value:
            yield from self._leaf(label, value, level)
            return
        pad = "  " * level
        name = f"{label}: " if label else ""
        if id(value) in self._open:
            yield f"{pad}- {name}(contains itself)"
        elif level + 1 >= self._depth:
            what = "fields" if isinstance(value, Mapping) else "items"
            yield f"{pad}- {name}({len(value):,} {what})"
        else:
            yield f"{pad}- {label or ('fields' if isinstance(value, Mapping) else 'items')}:"
            yield from self.lines(value, level + 1)

    def _leaf(self, label: str, value: Any, level: int) -> Iterator[str]:
        pad = "  " * level
        name = f"{label}: " if label else ""
        if isinstance(value, str) and _LINE_END.search(value.strip()):
            yield f"{pad}- {name}".rstrip()
            yield "\n".join(f"{pad}  {line}" for line in _LINE_END.split(block(value, self._string + 60)))
        else:
            yield f"{pad}- {name}{scalar(value, self._string)}"


def _in(key: Any, known: set[str]) -> bool:
    return isinstance(key, str) and key in known


def _label(key: Any) -> str:
    return inline(key if isinstance(key, str) else scalar(key, LONGEST_KEY), LONGEST_KEY)


def scalar(value: Any, limit: int) -> str:
    """A value that holds no others, in at most about `limit` characters; an object of an unknown kind by its type."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, str):
        return inline(value, limit)
    if isinstance(value, float):
        return repr(float(value))
    if isinstance(value, int):
        return f"{int(value):d}" if value.bit_length() < 1024 else f"(a number of {value.bit_length():,} bits)"
    if isinstance(value, Mapping | list | tuple):
        return "{}" if isinstance(value, Mapping) else "[]"
    return f"({type(value).__name__})"


def parsed(value: Any) -> Any:
    """The JSON value in a text that is JSON of moderate size; anything else as it is."""
    if not isinstance(value, str) or len(value) > LONGEST_JSON or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def failure(value: Any) -> str | None:
    """Why a structured result is a failure, in a line; None if nothing in it says that it is one."""
    value = parsed(value)
    if not isinstance(value, Mapping):
        return None
    reason = _stated_error(value) or _failed_state(value)
    if reason is not None:
        return reason
    for key in _NESTED:
        inner = value.get(key)
        if isinstance(inner, Mapping):
            reason = _stated_error(inner) or _failed_state(inner)
            if reason is not None:
                return reason
    return None


def _stated_error(value: Mapping[Any, Any]) -> str | None:
    for key in ("error", "errors", "error_message", "errorMessage", "exception"):
        error = value.get(key)
        if error and error is not True:
            return _one_line(error)
        if error is True:
            return _one_line(value.get("message") or value.get("content") or value.get("output") or "error")
    if value.get("isError") is True or value.get("is_error") is True:
        return _one_line(value.get("message") or value.get("content") or "error")
    return None


def _failed_state(value: Mapping[Any, Any]) -> str | None:
    for key in _EXIT_KEYS:
        code = value.get(key)
        if isinstance(code, int) and not isinstance(code, bool) and code:
            return f"{key} {scalar(code, 40)}"
    for key in ("ok", "success", "succeeded"):
        if value.get(key) is False:
            return _one_line(value.get("message") or value.get("reason") or f"{key} is false")
    for key in ("status", "state"):
        state = value.get(key)
        if isinstance(state, str) and state.strip().lower() in _FAILED:
            detail = value.get("message") or value.get("reason")
            return f"{key} {state.strip().lower()}" + (f": {_one_line(detail)}" if detail else "")
    for key in ("status", "status_code"):
        code = value.get(key)
        if isinstance(code, int) and not isinstance(code, bool) and 400 <= code < 600:
            return f"{key} {code}"
    return "interrupted" if value.get("interrupted") is True else None


def _one_line(error: Any) -> str:
    """The message of an error in any of its usual shapes."""
    for _ in range(4):
        if isinstance(error, Mapping):
            error = next(
                (error[key] for key in ("message", "text", "detail", "error", "type", "code") if error.get(key)),
                "error",
            )
        elif isinstance(error, list | tuple):
            error = error[0] if error else "error"
    return scalar(error, 300) if not isinstance(error, Mapping | list | tuple) else "error"
