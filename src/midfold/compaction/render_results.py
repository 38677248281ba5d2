"""Choose how people see a tool result. Used by chat, pages and `sessions view`; models never see it.

1. JSON is rendered by the family of the tool; without a known family by its fields, if none would be lost.
2. Of plain text, search hits and file lists get a count and a limit, and command output starts with its exit
   status. File contents and sub-agent reports are shown unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from midfold.compaction.local.outcome import Body, read_body
from midfold.compaction.local.tool_actions import listing, read, search, shell
from midfold.compaction.local.tool_call import read_call_alone
from midfold.compaction.local.tool_kinds import agent, process, recognise
from midfold.compaction.redact import redact
from midfold.compaction.render import (
    COUNT_KEYS,
    MAX_CHARS,
    parse_json,
    render_content_search,
    render_delegated_task,
    render_file_read,
    render_file_search,
    render_process,
    render_value,
)
from midfold.transcript.message import ToolCall, ToolResult

_HIT = re.compile(r"[^:\s][^:]{0,400}?:\d{1,9}:")
_FILE_COUNT = re.compile(r"Found (\d{1,9}) files?\b[^\n]*\n")
_FILE_LINE = re.compile(r"[^\s:;<>|\"]{1,400}")
MAX_NOTES = 3
MIN_HIT_SHARE = 0.8
"""Minimum share of hits among the lines of a search; with fewer, it printed something else."""
_ENDS = frozenset({"status", "state", "ok", "success", "error", "message"})
_FOUND = frozenset({*COUNT_KEYS, "truncated", "query", "pattern"})


class _Shape(NamedTuple):
    """Fields of a JSON result that one renderer reads."""

    render: Callable[..., str]
    required: frozenset[str]
    """Fields of which at least one must be present."""
    optional: frozenset[str]
    """Fields that may be present; any other field would be lost."""


_PROCESS = _Shape(
    render_process,
    frozenset({"stdout", "stderr", "exit_code", "exitCode", "returncode", "return_code"}),
    frozenset(
        {"output", "pid", "process_id", "command", "cmd", "duration", "duration_seconds", "duration_ms", "durationMs"}
    ),
)
_MATCHES = _Shape(render_content_search, frozenset({"matches"}), _FOUND)
_FILES = _Shape(render_file_search, frozenset({"files", "filenames"}), _FOUND)
_READ = _Shape(
    render_file_read,
    frozenset({"totalLines", "total_lines"}),
    frozenset(
        {"content", "path", "file_path", "filePath", "startLine", "start_line", "numLines", "num_lines", "endLine"}
    ),
)
_TASKS = _Shape(render_delegated_task, frozenset({"total_duration_seconds"}), frozenset({"results", "tasks"}))
_SHAPES = (_PROCESS, _MATCHES, _FILES, _READ, _TASKS)


class _Family(NamedTuple):
    """Renderer for a family of tools, used if the JSON has one of these fields."""

    shape: _Shape
    fields: frozenset[str]


_FAMILIES: dict[Callable[..., Any], _Family] = {
    shell: _Family(_PROCESS, _PROCESS.required),
    process: _Family(_PROCESS, _PROCESS.required | {"status", "pid"}),
    search: _Family(_MATCHES, frozenset({"matches", "results", "hits"})),
    listing: _Family(_FILES, frozenset({"files", "filenames", "paths", "matches"})),
    read: _Family(_READ, frozenset({"content", "totalLines", "total_lines", "file"})),
    agent: _Family(_TASKS, frozenset({"results", "tasks", "summary", "final_response", "status"})),
}


def render_result(
    result: ToolResult,
    call: ToolCall | None = None,
    *,
    has_heading: bool = False,
    items: int = 20,
    string: int = 400,
    max_chars: int = MAX_CHARS,
) -> str:
    """Render a tool result as bounded Markdown, status and error first; return "" if its text needs no rendering.

    `has_heading` says that the reader already sees what the call did and how it ended.
    """
    family = _family_of(call)
    value = parse_json(result.text)
    if isinstance(value, str):
        return _render_text(read_body(result), family, has_heading, items, max_chars)
    if isinstance(value, Mapping):
        known = _FAMILIES.get(family) if family is not None else None
        if known is not None and value.keys() & known.fields:
            return known.shape.render(value, max_chars=max_chars)
        for shape in _SHAPES:
            if value.keys() & shape.required and value.keys() <= shape.required | shape.optional | _ENDS:
                return shape.render(value, max_chars=max_chars)
    return render_value(value, items=items, string=string, max_chars=max_chars)


def brief(result: ToolResult, call: ToolCall | None = None, *, max_chars: int) -> str:
    """Return the beginning of a tool result in one line; for a file, its path before its text."""
    rendered = render_result(result, call, max_chars=max_chars)
    look = read_call_alone(call, redact) if call is not None else None
    if not rendered and look is not None and recognise(look) is read and look.paths():
        fields = {"path": _short_path(look.paths()[0]), "content": result.text[:max_chars]}
        rendered = render_file_read(fields, max_chars=max_chars)
    facts, _, fenced = rendered.partition("```")
    lines = [line.strip().removeprefix("- ") for line in visible_lines(facts)]
    printed = " ".join(line.strip() for line in visible_lines(f"```{fenced}"))
    return "; ".join(filter(None, [*lines, printed])) or result.text[:max_chars]


def _short_path(path: str) -> str:
    """Return a long path without its first folders."""
    folders = path.rsplit("/", 2)
    return path if len(folders) < 3 or not folders[0] else "/".join(("…", *folders[1:]))


def visible_lines(markdown: str) -> list[str]:
    """Return the lines of a rendering without fences and without the label of a single output stream."""
    lines = markdown.splitlines()
    longest = max((len(line) - len(line.lstrip("`")) for line in lines), default=0)
    fence = "`" * max(longest, 3)
    kept = [line for line in lines if not line.startswith(fence)]
    return kept if "stderr:" in kept else [line for line in kept if line != "stdout:"]


def _family_of(call: ToolCall | None) -> Callable[..., Any] | None:
    return None if call is None else recognise(read_call_alone(call, redact))


def _render_text(body: Body, family: Any, has_heading: bool, items: int, max_chars: int) -> str:
    if family in (shell, process) and not has_heading and (body.exit_code is not None or body.running):
        fields = {"status": "running" if body.running else None, "exit_code": body.exit_code, "output": body.text}
        return render_process(fields, max_chars=max_chars)
    if family not in (search, listing):
        return ""
    lines = [line.strip() for line in body.text.splitlines() if line.strip() not in ("", "--")]
    found = _FILE_COUNT.match(body.text)
    if found is not None:
        return render_file_search({"files": lines[1:], "total_count": int(found[1])}, limit=items, max_chars=max_chars)
    if family is search:
        hits = [line for line in lines if _HIT.match(line)]
        notes = [line for line in lines if line.startswith("[")]
        if hits and len(hits) >= MIN_HIT_SHARE * (len(lines) - len(notes)):
            rendered = render_content_search({"matches": hits}, limit=items, max_chars=max_chars)
            return "\n".join([rendered, *(redact(note) for note in notes[:MAX_NOTES])])[:max_chars]
    if family is listing and lines and all(_FILE_LINE.fullmatch(line) and {"/", "."} & set(line) for line in lines):
        return render_file_search({"files": lines}, limit=items, max_chars=max_chars)
    return ""
