"""Detect failures in tool output, and find the line that explains them.

1. An explicit failure counts: the error flag, an error tag, an exit code, a JSON field, a message that opens with a
   known error phrase.
2. A mention does not count. Content that a tool shows (a file, a page, search hits) is checked only if it is as short
   as an error message.
3. Without an exit code, the end of shell output decides: a traceback, a shell error, a failed test run.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import msgspec

from midfold.transcript import jsonio
from midfold.transcript.message import Text, ToolResult
from midfold.transcript.wrappers import REFUSED

# Parse the envelope of tool output.
#
# 1. Only the first and last kilobytes are searched; the rest is counted with `str.count`.
# 2. Envelopes are parsed and removed, and not counted as lines: "Exit code 1", "<returncode>1</returncode>", Codex's
#    header, JSON fields around an inner text. For JSON terminal results the inner lines count.
# 3. Output without an exit code has none; it is never guessed.


HEAD = 2_000
TAIL = 4_000

EXIT_KEYS = ("exit_code", "exitCode", "returncode", "return_code", "returnCode", "exit_status", "exitStatus")
INNER_KEYS = ("output", "stdout", "content", "result", "text", "stderr", "aggregated_output", "aggregatedOutput")

_RETURN_CODE = re.compile(
    r"\s{0,9}<(?:returncode|exit_code)>\s{0,9}(-?\d{1,10})\s{0,9}</(?:returncode|exit_code)>\s{0,9}"
)
_EXCEPTION = re.compile(r"<exception>(.{0,1800}?)</exception>\n?(?=<returncode>)", re.DOTALL)
_CODEX_EXIT = re.compile(r"^(?:Process exited with code|Exit code:) (-?\d{1,10})$", re.MULTILINE)
_CODEX_RUNNING = re.compile(r"^Process running with session ID (\S{1,64})$", re.MULTILINE)
_TOTAL_LINES = re.compile(r"^Total output lines: (\d{1,10})$", re.MULTILINE)
_EXIT_FIRST = re.compile(r"\[?(?:Exit|Return)(?:ed with)? [Cc]ode:? (-?\d{1,10})\]?(?:\n+|$)")
_EXIT_LAST = re.compile(
    r"\n?\[(?:The command completed|Command (?:finished|completed|exited)) with exit code (-?\d{1,10})"
)
_EXIT_OWN = re.compile(r"(?:\A|\n)\[exit (-?\d{1,10})\]\Z")
"""Exit line of the shell in midfold's own agent."""
_EXIT_GEMINI = re.compile(r"^Exit Code: (-?\d{1,10})$", re.MULTILINE)


class Body(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    """Tool result without its envelope."""

    text: str
    """Output of the tool."""
    characters: int
    """Characters of the whole result, envelope included: the size that a digest saves."""
    lines: int
    exit_code: int | None = None
    running: str = ""
    """Id of the session that is still running."""
    value: Any = None
    """Decoded value of JSON output."""
    media: int = 0
    partial: bool = False
    """Whether the recorded output was already truncated."""
    is_error: bool = False

    @property
    def head(self) -> str:
        return self.text[:HEAD]

    @property
    def fields(self) -> dict[str, Any]:
        return self.value if isinstance(self.value, dict) else {}


class _OpenBody(msgspec.Struct, gc=False):
    """Body under construction, while its envelopes are removed."""

    text: str
    exit_code: int | None = None
    running: str = ""
    value: Any = None
    total_lines: int | None = None
    partial: bool = False


def read_body(result: ToolResult) -> Body:
    text = result.text
    opened = _OpenBody(text)
    _strip_codex_header(opened) or _strip_return_code(opened) or _strip_stated_exit(opened)
    _strip_json(opened)
    _strip_reminder(opened)
    _strip_cwd_note(opened)
    lines = count_lines(opened.text) if opened.total_lines is None else opened.total_lines
    return Body(
        text=opened.text,
        characters=len(text),
        lines=lines,
        exit_code=opened.exit_code,
        running=opened.running,
        value=opened.value,
        media=sum([type(part) is not Text for part in result.parts]),
        partial=opened.partial,
        is_error=result.is_error,
    )


def count_lines(text: str) -> int:
    return text.count("\n") + (1 if text and text[-1] != "\n" else 0)


def _strip_codex_header(opened: _OpenBody) -> bool:
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


def _strip_return_code(opened: _OpenBody) -> bool:
    text = opened.text
    if stopped := _EXCEPTION.match(text, 0, HEAD):
        return _strip_exception(opened, stopped)
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


def _strip_exception(opened: _OpenBody, stopped: re.Match[str]) -> bool:
    """Append the reason to the output of a command that the agent's harness stopped."""
    opened.text = opened.text[stopped.end() :]
    is_framed = _strip_return_code(opened)
    reason = stopped[1].rpartition("]' ")[2]
    opened.text = "\n".join(filter(None, [opened.text.rstrip("\n"), reason]))
    return is_framed


def _between(text: str, start: int, tag: str, end: int) -> str:
    start += len(tag)
    start += text[start : start + 1] == "\n"
    return text[start:end] if end >= start else text[start:]


def _strip_stated_exit(opened: _OpenBody) -> bool:
    text = opened.text
    if found := _EXIT_FIRST.match(text, 0, 60):
        opened.exit_code, opened.text = int(found[1]), text[found.end() :]
        return True
    floor = max(0, len(text) - 1_000)
    if text.find(" with exit code ", floor) >= 0 and (found := _EXIT_LAST.search(text, floor)):
        opened.exit_code, opened.text = int(found[1]), text[: found.start()]
        return True
    if text.endswith("]") and (found := _EXIT_OWN.search(text, max(0, len(text) - 20))):
        opened.exit_code, opened.text = int(found[1]), text[: found.start()]
        return True
    if text.startswith("Command: ") and (found := _EXIT_GEMINI.search(text, floor)):
        opened.exit_code = int(found[1])
        return True
    return False


def _strip_json(opened: _OpenBody) -> None:
    text = opened.text
    first, last = text[:64].lstrip()[:1], text[-64:].rstrip()[-1:]
    if (first, last) not in (("{", "}"), ("[", "]")):
        return
    try:
        opened.value = value = jsonio.decode(text)
    except jsonio.NotJSON:
        return
    if not isinstance(value, dict) or opened.exit_code is not None:
        return  # JSON inside another envelope is the command's output
    opened.exit_code = code = _exit_code(value)
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


def _strip_reminder(opened: _OpenBody) -> None:
    """Remove the note that Claude Code appends for the model; it is not part of the content."""
    text = opened.text
    floor = max(0, len(text) - HEAD)
    if not text[-64:].rstrip().endswith("</system-reminder>"):
        return
    start = text.find("<system-reminder>", floor)
    if start >= 0:
        opened.text = text[:start].rstrip("\n")


def _strip_cwd_note(opened: _OpenBody) -> None:
    """Remove Claude Code's line about the reset working directory."""
    start = opened.text.rfind(_CWD_RESET, max(len(opened.text) - 400, 0))
    if start >= 0 and "\n" not in opened.text[start:].rstrip("\n") and opened.text[start - 1 : start] in ("", "\n"):
        opened.text = opened.text[:start].rstrip("\n")


MAX_MESSAGE_CHARS = 1_500
"""Maximum characters of an error message from a reading tool; longer text is content."""

NOTHING_RECORDED = ("[no result recorded]", "[No result recorded]", "[Tool result missing", "[no output recorded]")

_CWD_RESET = "Shell cwd was reset to "
_TRACEBACK = "Traceback (most recent call last)"
NOT_RUN = "not run: another call beside it failed"
_INTERRUPTED = "[Request interrupted by user"
_PHRASES = (
    "Error:", "error:", "ERROR:", "Error ", "ERROR ", "Errors:", "Exception:", "Traceback (most recent call last)",
    "InputValidationError", "Failed to ", "failed to ", "Failed:", "FAILED", "Unable to ", "Could not ", "Cannot ",
    "Can't ", "File does not exist", "File not found", "No such file", "Path does not exist", "Directory not found",
    "Permission denied", "Access denied", "String to replace not found", "No replacement was performed",
    "File has not been read", "File has been unexpectedly modified", "File has been modified since",
    "No match found for", "Found 0 matches of the string",
    "apply_patch verification failed", "Invalid ", "Unknown tool", "No such tool", "ENOENT", "EACCES", "fatal: ",
    "❌", "✗ ",
    "Request failed", "Operation timed out", "Timed out", "Timeout", "Tool execution failed", "Tool error", "MCP error",
)  # fmt: skip
_OPENINGS = re.compile(
    r"File content \([\d,. ]{1,20}\S{0,4} ?\w{1,12}\) exceeds maximum"
    r"|Found \d{1,9} matches of the string to replace, but"
    r"|(?:HTTP(?:/[\d.]{1,4})? |Request failed with status code |HTTP error:? |status code:? )[45]\d\d\b"
)
_BLOCKED = re.compile(
    r"\b(?:timed out|connection (?:refused|reset|closed|aborted)|permission denied|access denied"
    r"|host (?:is )?unreachable|no space left|out of memory|rate limit exceeded)\b",
    re.IGNORECASE,
)
MAX_ONE_LINE_CHARS = 240
"""Maximum characters of a single-line result that counts as an error message if it contains such a phrase."""

_STRONG = re.compile(
    r"(?:E {1,9})?(?:[A-Za-z_][\w.]{0,80})?(?:Error|Exception|KeyboardInterrupt|Panic)\b(?::| at |\(|$)"
    r"|(?:error|fatal|panic|ERROR|FATAL|FATAL ERROR|Fatal error|npm ERR!|CONFLICT)\b"
    r"|(?:\S{1,200}[:)] |\[\S{1,40}\] )(?:error|fatal|fatal error|ERROR|Error)\b"
    r"|--- FAIL: |FAILED \S"
    r"|(?:bash|sh|zsh|/bin/sh|/bin/bash|make|go|gh|git|rg|grep|cat|ls|sed|find|python\d?|node|npm|bun|cd|cp|mv|rm): "
)
_GO_ASSERTION = re.compile(r"[\w.-]{1,80}_test\.go:\d{1,6}: \S")
_WEAK = re.compile(
    r"error|exception|fail|fatal|panic|denied|not found|no such|cannot|could not|unable|conflict|abort"
    r"|timed out|killed|✗|×|undefined",
    re.IGNORECASE,
)
_EPILOGUE = re.compile(
    r"error: script .{1,60} exited|.{0,40}ERROR task failed|npm ERR! (?:code|A complete|errno)|make.{0,9}: \*\*\*"
    r"|error Command failed|exit status \d|.{0,20}Process completed with exit code|FAIL(?:\t|$)|Exited with code"
)
"""Lines in which task runners repeat that something failed, without the reason."""
_SOURCE = re.compile(
    r"(?:return |throw (?:new )?|raise |await )?[\w.]{1,80}\((?:[^()\"'`]{0,60}, ?)?[fb]?[\"'`]|panic\(\{"
)
"""Source code in a linter message or traceback: not an actual error."""
_NONE_FAILED = re.compile(r"\b0 (?:fail|err)|no error|without error|--- PASS")
_FAILED_RUN = re.compile(
    r"(?:=+ )?(?:[\d,]{1,9} \w{1,12}, )?[1-9]\d{0,8} (?:failed|failing|failures?|errors?)\b"
    r"|FAIL(?:ED)?$|FAIL\t|FAILED \(|--- FAIL"
)
_SHELL_ERROR = re.compile(
    r"(?:/\S{1,40}/)?(?:bash|sh|zsh|dash|fish): .{0,400}"
    r"(?:not found|No such file or directory|Permission denied|syntax error|Is a directory)"
    r"|[\w./-]{1,60}: .{0,400}: (?:No such file or directory|Permission denied|Is a directory|Not a directory)$"
    r"|(?:error|Error|ERROR|fatal|panic|npm ERR!)[:!] |make(?:\[\d\])?: \*\*\*|.{1,60}: command not found$"
)
_RAISED = re.compile(r"[A-Za-z_][\w.]{0,120}(?:: |$)")
_VERDICT = re.compile(
    r"[\w=,:; (\[✓✔✗×.-]{0,60}?\b\d{1,9} "
    r"(?:passed|failed|pass|fail|passing|failing|failures?|tests?|errors?|problems?|warnings?|issues)\b"
    r"|ok  ?\t|FAIL\b|PASS$|OK(?: \(|$)|FAILED \(|test result: |BUILD \w{4,10}$|Ran \d{1,9} tests?"
)


class Stated(NamedTuple):
    """Outcome that an output states: failed, succeeded, or None if it states neither, with the reason."""

    failed: bool | None
    reason: str = ""
    from_harness: bool = False
    """Whether the agent's harness wrote it: the tool did not run, or its output is missing."""


def stated_outcome(body: Body, *, content: bool, opening: bool = True) -> Stated:
    """Return the outcome that an output states.

    `content`: the tool shows content, so only a short text is an error message. `opening`: its first words may be one.
    """
    text = body.head.lstrip()
    if text.startswith(REFUSED):
        return Stated(True, "rejected by the user", from_harness=True)
    if text.startswith(_INTERRUPTED):
        return Stated(True, "interrupted by the user", from_harness=True)
    if text.startswith("<tool_use_error>"):
        reason = first_line(text[16:].partition("</tool_use_error>")[0])
        return Stated(True, NOT_RUN if reason.startswith("Sibling tool call errored") else reason, from_harness=True)
    if body.fields:
        stated = _stated_by_fields(body.fields, content=content)
        if stated.failed or (stated.failed is False and not body.exit_code):
            return stated
    if body.is_error:
        return Stated(True, error_line(body) if body.exit_code else first_line(text))
    if body.exit_code is not None:
        return Stated(body.exit_code != 0, error_line(body) if body.exit_code else "")
    if opening and opens_with_an_error(text) and not (content and body.characters > MAX_MESSAGE_CHARS):
        return Stated(True, last_line(text) if text.startswith("Traceback") else first_line(text))
    if body.characters <= MAX_ONE_LINE_CHARS and "\n" not in text.strip() and _BLOCKED.search(text):
        return Stated(True, first_line(text))
    return Stated(None)


def opens_with_an_error(text: str) -> bool:
    return text.startswith(_PHRASES) or _OPENINGS.match(text) is not None


def _stated_by_fields(fields: dict[str, Any], *, content: bool) -> Stated:
    """Return the outcome in the fields of a JSON response. A large record with an error field is content."""
    if content and len(fields) > 8:
        return Stated(None)
    error = fields.get("error") or fields.get("errors")
    message = error.get("message") or error.get("type") if isinstance(error, dict) else error
    reason = _text(message) or _text(fields.get("message"))
    flags = [fields.get(name) for name in ("ok", "success", "succeeded")]
    if False in flags or fields.get("isError") is True or fields.get("is_error") is True:
        return Stated(True, reason or "the tool reported a failure")
    if error and error is not True:
        return Stated(True, reason or "the tool reported an error")
    if fields.get("status") in ("error", "ERROR"):
        return Stated(True, reason or "status: error")
    return Stated(False) if True in flags else Stated(None)


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""


def own_error(body: Body, command: str) -> Stated:
    """Return the failure of a command that shows content, prefixed by its name: `cat: a: No such file or directory`."""
    last = last_line(body.text)
    word = command.partition(" ")[0]
    return Stated(True, last) if word and last.startswith(f"{word}: ") and _SHELL_ERROR.match(last) else Stated(None)


def ending(body: Body) -> Stated:
    """Return the outcome at the end of shell output without an exit code."""
    tail = last_lines(body)
    if not tail:
        return Stated(None)
    last = tail[-1]
    if _SHELL_ERROR.match(last):
        return Stated(True, last)
    if raised := _traceback_end(tail):
        return Stated(True, raised)
    for line in tail[-3:]:
        if _FAILED_RUN.match(line):
            return Stated(True, error_line(body))
    return Stated(None)


def traceback_end(body: Body) -> str:
    return _traceback_end(last_lines(body)) if body.text.find(_TRACEBACK, max(0, len(body.text) - TAIL)) >= 0 else ""


def _traceback_end(tail: list[str]) -> str:
    """Return the exception if the output ends in a traceback."""
    starts = [index for index, line in enumerate(tail) if line.startswith(_TRACEBACK)]
    if not starts:
        return ""
    after = [line for line in tail[starts[-1] + 1 :] if line[:1] not in (" ", "\t", "")]
    return after[0] if after and len(after) <= 3 and _RAISED.match(after[0]) else ""


def verdict(body: Body) -> str:
    """Return the closing line of a test run, linter or build if it is among the last lines."""
    for line in reversed(last_lines(body, 800)[-4:]):
        if len(line) < 200 and _VERDICT.match(line.strip("= ")):
            return line.strip("= ")
    return ""


def error_line(body: Body) -> str:
    """Return the most informative error line: the end before the start, the reason before generic failure lines."""
    windows = (last_lines(body), body.head.splitlines() if len(body.text) > TAIL else [])
    for rule in (_is_strong, _is_weak, _EPILOGUE.match):
        for lines in windows:
            for place in range(len(lines) - 1, -1, -1):
                short = lines[place].strip()[:400]
                if short and rule(short):
                    return _with_reason(short, lines, place)
    return ""


def _with_reason(line: str, lines: list[str], place: int) -> str:
    """Add the adjacent assertion message to a failed Go test."""
    if not line.startswith("--- FAIL: "):
        return line
    near = (lines[at].strip() for at in (place + 1, place - 1) if 0 <= at < len(lines))
    reason = next((text for text in near if _GO_ASSERTION.match(text)), "")
    return f"{line}: {reason}"[:400] if reason else line


def _is_strong(line: str) -> bool:
    return bool(_STRONG.match(line)) and not _EPILOGUE.match(line) and not _SOURCE.match(line)


def _is_weak(line: str) -> bool:
    is_telling = _WEAK.search(line) and not _EPILOGUE.match(line) and not _SOURCE.match(line)
    return bool(is_telling) and not _NONE_FAILED.search(line)


def last_lines(body: Body, window: int = TAIL) -> list[str]:
    """Return the lines at the end, without a partial first line."""
    text = body.text
    lines = [line for line in text[-window:].splitlines() if line and not line.isspace()]
    return lines[1:] if len(text) > window and len(lines) > 1 else lines


def first_line(text: str) -> str:
    return text[:HEAD].lstrip().partition("\n")[0].strip()


def last_line(text: str) -> str:
    return text[-TAIL:].rstrip().rpartition("\n")[2].strip()
