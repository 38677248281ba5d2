"""How the output of a tool says how it ended.

Rules of this file:
1. Only the first and the last kilobytes are searched; the rest is counted with `str.count`.
2. An envelope is not output: "Exit code 1", "<returncode>1</returncode>", Codex's header and JSON fields around an
   inner text are read, taken off, and not counted as lines. The lines of a JSON terminal result are those inside.
3. What states no exit code has none. Nothing here guesses.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec

from midfold.core import jsonio
from midfold.core.message import Text, ToolResult

HEAD = 2_000
TAIL = 4_000

EXIT_KEYS = ("exit_code", "exitCode", "returncode", "return_code", "returnCode", "exit_status", "exitStatus")
INNER_KEYS = ("output", "stdout", "content", "result", "text", "stderr", "aggregated_output", "aggregatedOutput")

_RETURN_CODE = re.compile(
    r"\s{0,9}<(?:returncode|exit_code)>\s{0,9}(-?\d{1,10})\s{0,9}</(?:returncode|exit_code)>\s{0,9}"
)
_CODEX_EXIT = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d{1,10})$", re.MULTILINE)
_CODEX_RUNNING = re.compile(r"^Process running with session ID (\S{1,64})$", re.MULTILINE)
_TOTAL_LINES = re.compile(r"^Total output lines: (\d{1,10})$", re.MULTILINE)
_EXIT_FIRST = re.compile(r"\[?(?:Exit|Return)(?:ed with)? [Cc]ode:? (-?\d{1,10})\]?(?:\n+|$)")
_EXIT_LAST = re.compile(
    r"\n?\[(?:The command completed|Command (?:finished|completed|exited)) with exit code (-?\d{1,10})"
)
_EXIT_GEMINI = re.compile(r"^Exit Code: (-?\d{1,10})$", re.MULTILINE)


class Body(msgspec.Struct, frozen=True, kw_only=True):
    """A result without its envelope."""

    text: str
    """What the tool printed."""
    characters: int
    """Of the whole result, envelope included: what a digest saves."""
    lines: int
    exit_code: int | None = None
    running: str = ""
    """The session that still runs, where the output names it."""
    value: Any = None
    """The JSON value, where the output is JSON."""
    media: int = 0
    partial: bool = False
    """The recording itself left something out of the output."""
    is_error: bool = False

    @property
    def head(self) -> str:
        return self.text[:HEAD]

    @property
    def fields(self) -> dict[str, Any]:
        return self.value if isinstance(self.value, dict) else {}


class _Open(msgspec.Struct):
    """A body while its envelopes are taken off."""

    text: str
    exit_code: int | None = None
    running: str = ""
    value: Any = None
    total_lines: int | None = None
    partial: bool = False


def read_body(result: ToolResult) -> Body:
    text = result.text
    opened = _Open(text)
    _take_off_codex_header(opened) or _take_off_return_code(opened) or _take_off_stated_exit(opened)
    _take_off_json(opened)
    _take_off_reminder(opened)
    lines = count_lines(opened.text) if opened.total_lines is None else opened.total_lines
    return Body(
        text=opened.text,
        characters=len(text),
        lines=lines,
        exit_code=opened.exit_code,
        running=opened.running,
        value=opened.value,
        media=sum(not isinstance(part, Text) for part in result.parts),
        partial=opened.partial,
        is_error=result.is_error,
    )


def count_lines(text: str) -> int:
    return text.count("\n") + (1 if text and text[-1] != "\n" else 0)


def _take_off_codex_header(opened: _Open) -> bool:
    text = opened.text
    if not text.startswith(("Chunk ID: ", "Exit code: ", "Wall time: ")):
        return False
    end = text.find("\nOutput:", 0, 400)
    if end < 0:
        return False
    header = text[:end]
    if found := _CODEX_EXIT.search(header):
        opened.exit_code = int(found[1])
    if found := _CODEX_RUNNING.search(header):
        opened.running = found[1]
    start = end + len("\nOutput:")
    opened.text = text[start + 1 :] if text[start : start + 1] == "\n" else text[start:]
    total = _TOTAL_LINES.search(header)
    if opened.text.startswith("Warning: truncated output"):
        total = _TOTAL_LINES.search(opened.text, 0, 200)
        if total:
            opened.text = opened.text[total.end() :].lstrip("\n")
    if total:
        opened.total_lines, opened.partial = int(total[1]), True
    return True


def _take_off_return_code(opened: _Open) -> bool:
    text = opened.text
    found = _RETURN_CODE.match(text, 0, 80) if "<" in text[:10] else None
    if not found:
        return False
    opened.exit_code = int(found[1])
    first, last = text.find("<output_head>", 0, HEAD), text.rfind("<output_tail>")
    if 0 <= first < last:
        head_end = text.rfind("</output_head>", first, last)
        head = _between(text, first, "<output_head>", head_end if head_end > first else last)
        tail = _between(text, last, "<output_tail>", text.rfind("</output_tail>"))
        opened.text, opened.partial = head + tail, True
        opened.total_lines = count_lines(head) + count_lines(tail)
        return True
    start = text.find("<output>", 0, HEAD)
    opened.text = text[found.end() :] if start < 0 else _between(text, start, "<output>", text.rfind("</output>"))
    return True


def _between(text: str, start: int, tag: str, end: int) -> str:
    start += len(tag)
    start += text[start : start + 1] == "\n"
    return text[start:end] if end >= start else text[start:]


def _take_off_stated_exit(opened: _Open) -> bool:
    text = opened.text
    if found := _EXIT_FIRST.match(text, 0, 60):
        opened.exit_code, opened.text = int(found[1]), text[found.end() :]
        return True
    floor = max(0, len(text) - 1_000)
    if text.find(" with exit code ", floor) >= 0 and (found := _EXIT_LAST.search(text, floor)):
        opened.exit_code, opened.text = int(found[1]), text[: found.start()]
        return True
    if text.startswith("Command: ") and (found := _EXIT_GEMINI.search(text, floor)):
        opened.exit_code = int(found[1])
        return True
    return False


def _take_off_json(opened: _Open) -> None:
    text = opened.text
    first, last = text[:64].lstrip()[:1], text[-64:].rstrip()[-1:]
    if (first, last) not in (("{", "}"), ("[", "]")):
        return
    try:
        opened.value = value = jsonio.decode(text)
    except jsonio.NotJSON:
        return
    if not isinstance(value, dict):
        return
    code = _exit_code(value)
    if code is not None:
        opened.exit_code = code
    inner = [shown for key in INNER_KEYS if (shown := _inner(value.get(key)))]
    if inner or code is not None:
        opened.text = "\n".join(text.rstrip("\n") for text in inner) if len(inner) > 1 else "".join(inner)


def _exit_code(value: dict[str, Any]) -> int | None:
    metadata = value.get("metadata")
    for fields in (value, metadata if isinstance(metadata, dict) else {}):
        for key in EXIT_KEYS:
            code = fields.get(key)
            if type(code) is int:
                return code
    return None


def _inner(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, list):
        blocks = [item.get("text") for item in value if isinstance(item, dict) and item.get("type") == "text"]
        return "\n".join(text for text in blocks if isinstance(text, str))
    return ""


def _take_off_reminder(opened: _Open) -> None:
    """Claude Code appends notes to the model in this tag; they are no part of what was read."""
    text = opened.text
    floor = max(0, len(text) - HEAD)
    if not text[-64:].rstrip().endswith("</system-reminder>"):
        return
    start = text.find("<system-reminder>", floor)
    if start >= 0:
        opened.text = text[:start].rstrip("\n")
