"""Render structured values for models and people, bounded and fenced.

1. Output is at most `max_chars` long for any value, and costs about as much as it shows: of a list of a million
   items only the length and the first few items are read.
2. Text inside a fence cannot end it; text outside a fence is one line.
3. Output is redacted: a window larger than the shown text first, then it is cut, so that no partial credential is
   left.
4. Status and error come first, so that no limit cuts them off.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from midfold.compaction.redact import is_sensitive_key, redact, redact_value

PRIORITY = (
    "error", "errors", "isError", "is_error", "status", "state", "ok", "success", "exit_code", "exitCode", "returncode",
    "code", "message", "reason", "summary", "path", "file_path", "filePath", "file", "url", "name", "id", "command",
    "pid", "count", "total", "total_count", "title", "type",
)  # fmt: skip
MAX_CHARS = 8_000
MAX_DEPTH = 32
MAX_JSON_CHARACTERS = 1_000_000
MAX_KEY_CHARACTERS = 80
WINDOW = 8_192
MAX_LANGUAGE_CHARACTERS = 30

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
    """Return the text as a Markdown code block whose fence is longer than any run of backticks inside."""
    longest = max((len(run) for run in _BACKTICKS.findall(text)), default=0)
    ticks = "`" * max(3, longest + 1)
    end = "" if text.endswith("\n") or not text else "\n"
    return f"{ticks}{_NOT_LANGUAGE.sub('', language)[:MAX_LANGUAGE_CHARACTERS]}\n{text}{end}{ticks}"


def clip(text: str, limit: int) -> str:
    """Redact the text; if it exceeds `limit`, keep its head and tail and the number of omitted characters."""
    if len(text) <= max(limit, 4 * WINDOW):
        shown = redact(text)
        if len(shown) <= limit:
            return shown
        head, tail, length = shown, shown, len(shown)
    else:
        head, tail = redact(text[: limit + WINDOW]), _whole_words(redact(text[-limit - WINDOW :]))
        length = len(text)
    left = limit - len(f" […{length:,} characters left out…] ")
    if left < 8:
        return head[: max(0, limit)]
    front = left - left // 3
    back = min(left // 3, len(tail))
    return f"{head[:front]} […{length - front - back:,} characters left out…] {tail[len(tail) - back :]}"


def _whole_words(tail: str) -> str:
    """Drop the partial word, perhaps part of a credential, at the start of the window."""
    space = re.search(r"\s", tail)
    return tail[space.end() :] if space else ""


def inline(text: str, limit: int) -> str:
    """Return one line of Markdown: line breaks become ⏎, and text that Markdown would parse becomes a code span."""
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
    """Return the text in a fence, at most `limit` characters in total."""
    whole = fence(clip(text, limit - 10 - MAX_LANGUAGE_CHARACTERS), language)
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
    """Render a value as nested bullets, bounded in depth, entries per level, string length and total length."""
    writer = _Bullets(
        min(depth, MAX_DEPTH), items, min(string, max_chars // 3), {key: rank for rank, key in enumerate(priority)}
    )
    return fit_lines(writer.lines(value, 0), max_chars)


def fit_lines(lines: Iterable[str], max_chars: int) -> str:
    """Join the lines that fit whole; the last one says that there is more. At least a part of the first is kept."""
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
    """Limits of one rendering, and the containers it is inside of."""

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
        """Yield priority keys first, then the others in their own order."""
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
    return inline(key if isinstance(key, str) else scalar(key, MAX_KEY_CHARACTERS), MAX_KEY_CHARACTERS)


def scalar(value: Any, limit: int) -> str:
    """Render a value that is not a container in about `limit` characters; an unknown object by its type."""
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


def parse_json(value: Any) -> Any:
    """Parse a text that is JSON of moderate size; return anything else unchanged."""
    if not isinstance(value, str) or len(value) > MAX_JSON_CHARACTERS or value.lstrip()[:1] not in ("{", "["):
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value


def failure(value: Any) -> str | None:
    """Return in one line why a structured result is a failure; None if it is not."""
    value = parse_json(value)
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
    """Return the message of an error in any of its usual forms."""
    for _ in range(4):
        if isinstance(error, Mapping):
            error = next(
                (error[key] for key in ("message", "text", "detail", "error", "type", "code") if error.get(key)),
                "error",
            )
        elif isinstance(error, list | tuple):
            error = error[0] if error else "error"
    return scalar(error, 300) if not isinstance(error, Mapping | list | tuple) else "error"


# Tool results of common kinds as bounded Markdown: searches, file reads, processes and delegated tasks.
#
# 1. A result is an object, a JSON text, a list of content blocks or plain text. Names are looked up at the top level,
#    then one level down (`metadata`, `extras`, `file`, ...).
# 2. No value raises, and no text is longer than `max_chars`.
# 3. Status and error come first and are never cut off.

MAX_FILES = 20
MAX_MATCHES = 20
MAX_TASKS = 10
MAX_PATH_CHARACTERS = 200
MAX_SNIPPET_CHARACTERS = 160
MAX_SUMMARY_CHARACTERS = 2_000

_BELOW = ("metadata", "extras", "result", "data", "structuredContent", "file", "output", "toolUseResult")
_MAIN_TEXT = ("content", "output", "text", "stdout", "result", "aggregated_output")
COUNT_KEYS = ("total_count", "totalCount", "numFiles", "num_files", "match_count", "numMatches", "count", "total")
_PATHS = ("path", "file_path", "filePath", "filename", "file", "name", "uri")
_LINES = ("line", "line_number", "lineNumber", "lineno", "row")
_SNIPPETS = ("content", "text", "snippet", "match", "lines", "preview")
_GREP = re.compile(r"([^:\s][^:]{0,400}?)[:-](\d{1,9})[:-](.*)")
_LANGUAGES = {
    "py": "python", "js": "javascript", "ts": "typescript", "tsx": "tsx", "jsx": "jsx", "go": "go", "rs": "rust",
    "java": "java", "rb": "ruby", "sh": "bash", "md": "markdown", "json": "json", "yaml": "yaml", "yml": "yaml",
    "toml": "toml", "html": "html", "css": "css", "sql": "sql", "c": "c", "h": "c", "cpp": "cpp", "xml": "xml",
}  # fmt: skip


class _Result(NamedTuple):
    """Tool result of any form: its fields, and its main text or list."""

    fields: Mapping[Any, Any]
    text: str
    items: list[Any]

    def get(self, *names: str) -> Any:
        """Return the first of these fields that is present, at the top level or one level down."""
        for fields in (self.fields, *(self.fields.get(key) for key in _BELOW)):
            if isinstance(fields, Mapping):
                for name in names:
                    if fields.get(name) is not None:
                        return fields[name]
        return None

    def get_list(self, *names: str) -> list[Any]:
        found = next((item for name in names if isinstance(item := self.get(name), list | tuple) and item), self.items)
        return list(found)

    def get_text(self, *names: str) -> str:
        return next((item for name in names if isinstance(item := self.get(name), str) and item), "")


def _open_result(value: Any) -> _Result:
    """Unwrap a result from JSON text, content blocks and their wrappers."""
    fields: Mapping[Any, Any] = {}
    for _ in range(4):
        value = parse_json(value)
        if isinstance(value, Mapping):
            fields = {**value, **fields}
            inner = value.get("content")
            if not _is_blocks(inner):
                break
            value = _join_texts(inner)
        elif _is_blocks(value):
            value = _join_texts(value)
        else:
            break
    items = list(value) if isinstance(value, list | tuple) else []
    if isinstance(value, str):
        return _Result(fields, value, items)
    result = _Result(fields, "", items)
    return result._replace(text=result.get_text(*_MAIN_TEXT))


def _is_blocks(value: Any) -> bool:
    return isinstance(value, list | tuple) and bool(value) and all(_is_block(item) for item in islice(value, 3))


def _is_block(item: Any) -> bool:
    return isinstance(item, Mapping) and item.get("type") in ("text", "output_text", "input_text", "image", "resource")


def _join_texts(blocks: Any) -> str:
    texts = (item.get("text") if isinstance(item, Mapping) else item for item in blocks)
    return "\n".join(text for text in texts if isinstance(text, str))


def _outcome(result: _Result, value: Any, *fields: tuple[str, tuple[str, ...]]) -> Iterator[str]:
    """Yield the fields that are present, then the reason of a failure unless a field already states it."""
    stated: set[str] = set()
    for label, names in fields:
        found = result.get(*names)
        if found is not None and not isinstance(found, Mapping | list | tuple):
            yield f"- {label}: {scalar(found, MAX_PATH_CHARACTERS)}"
            stated.update(f"{name} {scalar(found, 40)}" for name in names)
    reason = failure(result.fields) or failure(value)
    if reason is not None and reason not in stated:
        yield f"- error: {reason}"


_STATUS = ("status", ("status", "state"))


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 10**12 else None


def _path_of(item: Any) -> str:
    if isinstance(item, Mapping):
        item = next((item[key] for key in _PATHS if isinstance(item.get(key), str)), "")
    return item if isinstance(item, str) else ""


def render_file_search(value: Any, *, limit: int = MAX_FILES, max_chars: int = MAX_CHARS) -> str:
    """Render the number of files found, the first few, and how to narrow the search."""
    result = _open_result(value)
    found = result.get_list("files", "filenames", "paths", "matches", "results")
    paths = [path for path in map(_path_of, found) if path] or _non_empty_lines(result.text)
    count = max(_number(result.get(*COUNT_KEYS)) or 0, len(paths))
    return fit_lines(_file_search_lines(result, value, paths, count, max(0, limit)), max_chars)


def _file_search_lines(result: _Result, value: Any, paths: list[str], count: int, limit: int) -> Iterator[str]:
    yield from _outcome(result, value, _STATUS)
    yield f"{count:,} {'file' if count == 1 else 'files'} found"
    for path in paths[:limit]:
        yield f"- {inline(path, MAX_PATH_CHARACTERS)}"
    if count > min(limit, len(paths)):
        yield f"- […and {count - min(limit, len(paths)):,} more; narrow the pattern or the folder to see them]"
    elif result.get("truncated") is True:
        yield "- […the list was cut short; narrow the pattern or the folder]"


def _non_empty_lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


class _Match(NamedTuple):
    path: str
    line: str
    snippet: str


def render_content_search(value: Any, *, limit: int = MAX_MATCHES, max_chars: int = MAX_CHARS) -> str:
    """Render the number of matches, and the first few with path, line and a short snippet."""
    result = _open_result(value)
    found = result.get_list("matches", "results", "hits", "files", "filenames")
    rows: list[Any] = found or _non_empty_lines(result.text)
    count = max(_number(result.get(*COUNT_KEYS)) or 0, len(rows))
    return fit_lines(_content_search_lines(result, value, rows, count, max(0, limit)), max_chars)


def _content_search_lines(result: _Result, value: Any, rows: list[Any], count: int, limit: int) -> Iterator[str]:
    yield from _outcome(result, value, _STATUS)
    yield f"{count:,} {'match' if count == 1 else 'matches'} found"
    for match in map(_match_of, rows[:limit]):
        place = inline(match.path, MAX_PATH_CHARACTERS) + (f" line {match.line}" if match.line else "")
        yield f"- {place}" + (f": {inline(match.snippet, MAX_SNIPPET_CHARACTERS)}" if match.snippet else "")
    if count > min(limit, len(rows)):
        yield f"- […and {count - min(limit, len(rows)):,} more; narrow the pattern or the path to see them]"


def _match_of(row: Any) -> _Match:
    if isinstance(row, Mapping):
        line = next((row[key] for key in _LINES if row.get(key) is not None), "")
        snippet = next((row[key] for key in _SNIPPETS if isinstance(row.get(key), str)), "")
        return _Match(_path_of(row), scalar(line, 20) if line != "" else "", snippet)
    if not isinstance(row, str):
        return _Match("", "", scalar(row, MAX_SNIPPET_CHARACTERS))
    grep = _GREP.match(row)
    return _Match(grep[1], grep[2], grep[3]) if grep is not None else _Match(row, "", "")


def render_file_read(value: Any, *, max_chars: int = MAX_CHARS) -> str:
    """Render the path, the line range and total, and the text in a fence."""
    result = _open_result(value)
    path = result.get_text(*_PATHS)
    lines = [*_outcome(result, value, ("path", ("path", "file_path", "filePath", "filename")), _STATUS)]
    lines += _range_lines(result)
    text = result.get_text("content", "text", "output") or result.text
    return _with_blocks(lines, [("", text, _LANGUAGES.get(path.rpartition(".")[2].lower(), ""))], max_chars)


def _range_lines(result: _Result) -> Iterator[str]:
    start = _number(result.get("startLine", "start_line", "offset"))
    size = _number(result.get("numLines", "num_lines", "limit"))
    end = _number(result.get("endLine", "end_line"))
    total = _number(result.get("totalLines", "total_lines"))
    if end is None and start is not None and size:
        end = start + size - 1
    shown = f"{start:,}-{end:,}" if start is not None and end is not None else None
    if shown is not None or total is not None:
        yield f"- lines: {shown or 'all'}" + (f" of {total:,}" if total is not None else "")


def _with_blocks(lines: list[str], blocks: list[tuple[str, str, str]], max_chars: int) -> str:
    """Return the lines followed by each non-empty text in its own fence; the texts share the remaining characters."""
    blocks = [item for item in blocks if item[1].strip()]
    head = fit_lines(lines, max_chars if not blocks else max(max_chars // 2, max_chars - 2_000))
    pieces = [head] if head else []
    left = max_chars - len(head)
    for index, (label, text, language) in enumerate(blocks):
        share = left // (len(blocks) - index) - len(label) - 4
        if share < 80:
            break
        piece = (f"{label}:\n" if label else "") + block(text, share, language)
        pieces.append(piece)
        left -= len(piece) + 1
    return "\n".join(pieces)


def render_process(value: Any, *, max_chars: int = MAX_CHARS) -> str:
    """Render status, process id, exit code and error, then the output."""
    result = _open_result(value)
    lines = [
        *_outcome(
            result,
            value,
            _STATUS,
            ("pid", ("pid", "process_id", "session_id")),
            ("exit code", ("exit_code", "exitCode", "returncode", "return_code", "exit_status")),
            ("command", ("command", "cmd")),
            ("duration", ("duration", "duration_seconds", "duration_ms", "durationMs", "uptime_seconds")),
        )
    ]
    stdout = result.get_text("stdout", "output", "output_preview", "aggregated_output", "content") or result.text
    stderr = result.get_text("stderr")
    return _with_blocks(lines, [("stdout", stdout, ""), ("stderr", stderr, "")], max_chars)


def render_delegated_task(value: Any, *, max_chars: int = MAX_CHARS) -> str:
    """Render each task's status, duration, error, tools and summary."""
    result = _open_result(value)
    tasks = [item for item in result.get_list("results", "tasks") if isinstance(item, Mapping)]
    if not tasks:
        return _task(result, value, max_chars)
    shown = tasks[:MAX_TASKS]
    lines = [*_outcome(result, value, _STATUS, ("duration", ("total_duration_seconds", "duration_seconds")))]
    head = fit_lines([*lines, f"{len(tasks):,} {'task' if len(tasks) == 1 else 'tasks'}"], max_chars // 3)
    share = (max_chars - len(head) - 40) // len(shown) - 16
    pieces = [f"Task {number}\n{_task(_open_result(task), task, share)}" for number, task in enumerate(shown, 1)]
    if len(tasks) > len(shown):
        pieces.append(f"[…and {len(tasks) - len(shown):,} more]")
    return "\n".join([head, *pieces])[: max(0, max_chars)]


def _task(result: _Result, value: Any, max_chars: int) -> str:
    lines = [
        *_outcome(
            result,
            value,
            _STATUS,
            ("duration", ("duration", "duration_seconds", "duration_ms", "totalDurationMs", "total_duration_seconds")),
        )
    ]
    names = _tool_names(result)
    if names:
        lines.append(f"- tools: {inline(', '.join(names), MAX_PATH_CHARACTERS)}")
    summary = result.get_text("summary", "final_response", "answer", "message") or result.text
    if summary.strip():
        return _with_blocks(lines, [("summary", clip(summary, MAX_SUMMARY_CHARACTERS), "")], max_chars)
    if lines:
        return fit_lines(lines, max_chars)
    return render_value(value, depth=3, items=10, string=200, max_chars=max(0, max_chars))


def _tool_names(result: _Result) -> list[str]:
    """Return the names of the tools a task used, without duplicates, in order of first use."""
    trace = result.get("tool_trace", "tools", "tool_calls", "tools_used", "toolNames")
    if not isinstance(trace, list | tuple):
        return []
    names: dict[str, None] = {}
    for item in islice(trace, 200):
        name = item
        if isinstance(item, Mapping):
            function = item.get("function")
            name = (
                item.get("tool")
                or item.get("name")
                or (function.get("name") if isinstance(function, Mapping) else None)
            )
        if isinstance(name, str) and name:
            names[name] = None
    return list(names)
