"""Whether an output says that the tool failed, and the one line that tells why.

Rules of this file:
1. A stated failure is believed: the error flag, an error tag, an exit code, a JSON field, a message that opens with
   a known error phrase.
2. A mention is no statement. Content that a tool merely shows (a file, a page, search hits) is judged only while it is
   as short as an error message is.
3. Without an exit code, the end of a shell output decides: a traceback, an error of the shell, a failed test run.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple

from midfold.core.digest.body import HEAD, TAIL, Body

MESSAGE_LENGTH = 1_500
"""Longer than any error message a reading tool returns; what is longer is content."""

NOTHING_RECORDED = ("[no result recorded]", "[No result recorded]", "[Tool result missing", "[no output recorded]")

_TRACEBACK = "Traceback (most recent call last)"
_REJECTED = "The user doesn't want to proceed with this tool use"
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
_TOO_BIG = re.compile(r"File content \([\d,. ]{1,20}\S{0,4} ?\w{1,12}\) exceeds maximum")
_MATCHES = re.compile(r"Found \d{1,9} matches of the string to replace, but")
_HTTP = re.compile(r"(?:HTTP(?:/[\d.]{1,4})? |Request failed with status code |HTTP error:? |status code:? )[45]\d\d\b")

_STRONG = re.compile(
    r"(?:E {1,9})?(?:[A-Za-z_][\w.]{0,80})?(?:Error|Exception|KeyboardInterrupt|Panic)\b(?::| at |\(|$)"
    r"|(?:error|fatal|panic|ERROR|FATAL|FATAL ERROR|Fatal error|npm ERR!|CONFLICT)\b"
    r"|(?:\S{1,200}[:)] |\[\S{1,40}\] )(?:error|fatal|fatal error|ERROR|Error)\b"
    r"|--- FAIL: |FAILED \S"
    r"|(?:bash|sh|zsh|/bin/sh|/bin/bash|make|go|gh|git|rg|grep|cat|ls|sed|find|python\d?|node|npm|bun|cd|cp|mv|rm): "
)
_WEAK = re.compile(
    r"error|exception|fail|fatal|panic|denied|not found|no such|cannot|could not|unable|conflict|abort"
    r"|timed out|killed|✗|×|undefined",
    re.IGNORECASE,
)
_EPILOGUE = re.compile(
    r"error: script .{1,60} exited|.{0,40}ERROR task failed|npm ERR! (?:code|A complete|errno)|make.{0,9}: \*\*\*"
    r"|error Command failed|exit status \d|.{0,20}Process completed with exit code|FAIL(?:\t|$)|Exited with code"
)
"""How task runners repeat that something failed, without saying what."""
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
    """What an output says about itself: failed or not, or nothing at all (None), and why."""

    failed: bool | None
    reason: str = ""
    aside: bool = False
    """Said by the agent's frame, not by the tool: the tool did not run, or its output is not here."""


def stated(body: Body, *, content: bool, opening: bool = True) -> Stated:
    """`content`: the tool shows content, so only a short text is a message. `opening`: its first words may be one."""
    text = body.head.lstrip()
    if text.startswith(_REJECTED):
        return Stated(True, "rejected by the user", aside=True)
    if text.startswith(_INTERRUPTED):
        return Stated(True, "interrupted by the user", aside=True)
    if text.startswith("<tool_use_error>"):
        return Stated(True, first_line(text[16:].partition("</tool_use_error>")[0]), aside=True)
    if body.fields:
        told = _told_by_fields(body.fields, content=content)
        if told.failed or (told.failed is False and not body.exit_code):
            return told
    if body.is_error:
        return Stated(True, error_line(body) if body.exit_code else first_line(text))
    if body.exit_code is not None:
        return Stated(body.exit_code != 0, error_line(body) if body.exit_code else "")
    if opening and opens_with_an_error(text) and not (content and body.characters > MESSAGE_LENGTH):
        return Stated(True, last_line(text) if text.startswith("Traceback") else first_line(text))
    return Stated(None)


def opens_with_an_error(text: str) -> bool:
    return text.startswith(_PHRASES) or any(rule.match(text) for rule in (_TOO_BIG, _MATCHES, _HTTP))


def _told_by_fields(fields: dict[str, Any], *, content: bool) -> Stated:
    """A JSON answer with a verdict of its own. A long record with a field named error is a record."""
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
    """A command that shows content fails in its own name: `cat: a: No such file or directory`."""
    last = last_line(body.text)
    word = command.partition(" ")[0]
    return Stated(True, last) if word and last.startswith(f"{word}: ") and _SHELL_ERROR.match(last) else Stated(None)


def ending(body: Body) -> Stated:
    """What the end of a shell output without an exit code tells."""
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
    """The raised exception, where an output ends in a traceback."""
    starts = [index for index, line in enumerate(tail) if line.startswith(_TRACEBACK)]
    if not starts:
        return ""
    after = [line for line in tail[starts[-1] + 1 :] if line[:1] not in (" ", "\t", "")]
    return after[0] if after and len(after) <= 3 and _RAISED.match(after[0]) else ""


def verdict(body: Body) -> str:
    """The line with which a test run, linter or build closes, if one of the last lines is such a line."""
    for line in reversed(last_lines(body, 800)[-4:]):
        if len(line) < 200 and _VERDICT.match(line.strip("= ")):
            return line.strip("= ")
    return ""


def error_line(body: Body) -> str:
    """The most telling error line: near the end before near the start, what failed before that something failed."""
    windows = (last_lines(body), body.head.splitlines() if len(body.text) > TAIL else [])
    for rule in (_is_strong, _is_weak, _EPILOGUE.match):
        for lines in windows:
            for line in reversed(lines):
                short = line.strip()[:400]
                if short and rule(short):
                    return short
    return ""


def _is_strong(line: str) -> bool:
    return bool(_STRONG.match(line)) and not _EPILOGUE.match(line)


def _is_weak(line: str) -> bool:
    return bool(_WEAK.search(line)) and not _EPILOGUE.match(line) and not _NONE_FAILED.search(line)


def last_lines(body: Body, window: int = TAIL) -> list[str]:
    """The lines at the end, without a first one that the window cut."""
    text = body.text
    lines = [line for line in text[-window:].splitlines() if line and not line.isspace()]
    return lines[1:] if len(text) > window and len(lines) > 1 else lines


def first_line(text: str) -> str:
    return text[:HEAD].lstrip().partition("\n")[0].strip()


def last_line(text: str) -> str:
    return text[-TAIL:].rstrip().rpartition("\n")[2].strip()
