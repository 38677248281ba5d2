"""A tool call and its result, parsed; names and argument keys are compared without case and separators."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import Any, Literal, NamedTuple

import msgspec

from midfold.compaction.local.outcome import NOTHING_RECORDED, Body, read_body, stated_outcome
from midfold.transcript import jsonio
from midfold.transcript.message import ToolCall, ToolResult

# The action and outcome of a tool call, from which every digest is written.


Outcome = Literal["ok", "failed", "unknown"]

FAMILIES = (
    "shell",
    "read",
    "write",
    "patch",
    "search",
    "list",
    "web",
    "agent",
    "process",
    "browser",
    "plan",
    "other",
)


class Action(msgspec.Struct, frozen=True, kw_only=True):
    """Short description of a tool call and its result. Texts are single lines of limited size from untrusted output."""

    family: str
    tool: str
    did: str
    outcome: Outcome = "unknown"
    detail: str = ""
    paths: tuple[str, ...] = ()
    wrote: bool = False
    error: str = ""
    lines: int = 0
    characters: int = 0


# Text from arguments and output, made safe to show: one line, of limited size, redacted.
#
# Redact before truncating: half of a secret would not be recognized.


Redactor = Callable[[str], str]

MAX_REDACTED_CHARS = 4_000
MAX_PATH_CHARS = 90

_ANSI = re.compile(r"\x1b\[[0-9;?]{0,16}[A-Za-z]")


def identity(text: str) -> str:
    return text


def flat(text: str) -> str:
    """Return a single printable line: collapse whitespace, remove control characters and terminal colors."""
    if text.isprintable() and "  " not in text and "| unfold" not in text:
        return text.strip()
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = " ".join(text.split())
    if not text.isprintable():
        text = "".join(character for character in text if character.isprintable())
    return text.replace("| unfold", "/ unfold")


def clip(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def clip_start(text: str, limit: int) -> str:
    """Return the end of a long text, the informative part of a path."""
    return text if len(text) <= limit else "…" + text[1 - limit :]


def plural(number: int, noun: str) -> str:
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun}{'es' if noun.endswith('ch') else 's'}"


PATH_KEYS = (
    "filepath",
    "path",
    "filename",
    "targetfile",
    "absolutepath",
    "relativepath",
    "relativeworkspacepath",
    "notebookpath",
    "file",
    "files",
    "paths",
    "filepaths",
    "directory",
    "dirpath",
    "dir",
    "targetdirectory",
    "destination",
    "imagepath",
)

COMMAND_KEYS = ("command", "cmd", "commands", "script", "code", "commandline", "shellcommand")
_COMMANDS = (*COMMAND_KEYS, "action")
SHELLS = ("bash", "sh", "zsh", "dash", "fish", "powershell", "pwsh", "cmd", "cmd.exe")

_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_SEPARATORS = re.compile(r"__|[./:]")


@lru_cache(maxsize=1024)
def squash(name: str) -> str:
    return name.lower().replace("_", "").replace("-", "").replace(" ", "")


class ToolCallRecord(msgspec.Struct, frozen=True, kw_only=True, gc=False):
    tool: str
    """Name as given."""
    local: str
    """Name without server and namespace, squashed: `mcp__fs__read_file` is `readfile`."""
    words: frozenset[str]
    """Words of the whole name, server included, in lower case."""
    foreign: bool
    """Whether the name has a server or namespace prefix."""
    arguments: dict[str, Any]
    """Arguments by squashed key."""
    given: dict[str, Any]
    """Arguments by key as given."""
    raw: str
    command: str
    """Shell command in whatever shape it was given, or ""."""
    body: Body
    redact: Redactor

    def get(self, *keys: str) -> Any:
        """Return the first non-empty argument under one of these squashed keys."""
        return _first_of(self.arguments, keys)

    def text(self, *keys: str) -> str:
        value = self.get(*keys)
        if isinstance(value, str):
            return value
        return "" if value is None or isinstance(value, dict | list) else scalar(value)

    def has(self, *keys: str) -> bool:
        return not self.arguments.keys().isdisjoint(keys)

    def has_word(self, *words: str) -> bool:
        return not self.words.isdisjoint(words)

    def say(self, value: str, limit: int = 80) -> str:
        """Return a text from arguments or output, safe to show."""
        return clip(flat(self.redact(value[:MAX_REDACTED_CHARS])), limit)

    def quote(self, value: str, limit: int = 80) -> str:
        return f"'{self.say(value, limit)}'"

    def code(self, value: str, limit: int = 120) -> str:
        return f"`{self.say(value, limit).replace('`', chr(39))}`"

    def path(self, value: str) -> str:
        return clip_start(flat(self.redact(value[:MAX_REDACTED_CHARS])), MAX_PATH_CHARS)

    def paths(self) -> tuple[str, ...]:
        """Return the files and directories named in the arguments."""
        if self.arguments.keys().isdisjoint(PATH_KEYS):
            return ()
        found = (tuple(_path_texts(self.arguments[key])) for key in PATH_KEYS if key in self.arguments)
        return next(filter(None, found), ())

    def size(self) -> str:
        return f"{plural(self.body.lines, 'line')}{' (shortened)' if self.body.partial else ''}"

    def nothing_recorded(self) -> bool:
        return self.body.characters < 80 and self.body.text.startswith(NOTHING_RECORDED)


def act(
    record: ToolCallRecord,
    family: str,
    did: str,
    detail: str,
    *,
    outcome: Outcome = "ok",
    error: str = "",
    paths: Iterable[str] = (),
    wrote: bool = False,
) -> Action:
    if record.nothing_recorded():
        outcome, detail, error, wrote = "unknown", "no result was recorded", "", False
    return Action(
        family=family,
        tool=record.tool,
        did=did,
        outcome=outcome,
        detail=detail,
        paths=tuple(paths),
        wrote=wrote,
        error=error,
        lines=record.body.lines,
        characters=record.body.characters,
    )


def judge_action(
    record: ToolCallRecord,
    family: str,
    did: str,
    detail: str,
    *,
    content: bool = True,
    paths: Iterable[str] = (),
    wrote: bool = False,
    otherwise: Outcome = "ok",
) -> Action:
    """Return an action; if its output states a failure, the detail is that failure."""
    stated = stated_outcome(record.body, content=content)
    if stated.failed:
        error = record.say(stated.reason, 160)
        code = record.body.exit_code
        shown = error or (f"exit {code}" if code else "no reason given")
        return act(record, family, did, shown, outcome="failed", error=error, paths=paths)
    outcome: Outcome = otherwise if stated.failed is None else "ok"
    return act(record, family, did, detail, outcome=outcome, paths=paths, wrote=wrote)


def read_tool_call(call: ToolCall | None, result: ToolResult, redact: Redactor) -> ToolCallRecord:
    name = (call.name if call is not None else "") or result.name or ""
    return _record(name, call.arguments if call is not None else "", read_body(result), redact)


UNREAD = Body(text="", characters=0, lines=0)


def read_call_alone(call: ToolCall, redact: Redactor) -> ToolCallRecord:
    """Return the record of a call without its result."""
    return _record(call.name, call.arguments, UNREAD, redact)


def _record(name: str, raw: str, body: Body, redact: Redactor) -> ToolCallRecord:
    given = _arguments(raw)
    known = _name(name[:160])
    arguments = {squash(key): item for key, item in given.items()}
    return ToolCallRecord(
        tool=known.tool,
        local=known.local,
        words=known.words,
        foreign=known.foreign,
        arguments=arguments,
        given=given,
        raw=raw,
        command=_command(arguments, raw),
        body=body,
        redact=redact,
    )


def _first_of(arguments: dict[str, Any], keys: tuple[str, ...]) -> Any:
    if not arguments.keys().isdisjoint(keys):
        for key in keys:
            value = arguments.get(key)
            if value is not None and value not in ("", [], {}):
                return value
    return None


def _command(arguments: dict[str, Any], raw: str) -> str:
    value = _first_of(arguments, _COMMANDS)
    if isinstance(value, dict):
        value = value.get("command") or value.get("commands")
    if isinstance(value, list):
        words = [item for item in value if isinstance(item, str)]
        if len(words) > 2 and words[0].rpartition("/")[2] in SHELLS and words[1][:1] in "-/":
            return words[2]
        return " ".join(words)
    if isinstance(value, str):
        return value
    return raw if not arguments and raw[:1] not in ("{", "[", "") and raw != "null" else ""


class _Name(NamedTuple):
    tool: str
    local: str
    words: frozenset[str]
    foreign: bool


@lru_cache(maxsize=256)
def _name(name: str) -> _Name:
    pieces = [piece for piece in _SEPARATORS.split(name) if piece]
    return _Name(
        tool=clip(flat(name), 48) or "tool",
        local=squash(pieces[-1]) if pieces else "",
        words=frozenset(word.lower() for word in _WORDS.findall(name)),
        foreign=len(pieces) > 1 and pieces[0] != "functions",
    )


def _arguments(raw: str) -> dict[str, Any]:
    try:
        value = jsonio.decode(raw) if raw else None
    except jsonio.NotJSON:
        return {}
    if isinstance(value, str) and value[:1] == "{":
        return _arguments(value)
    return value if isinstance(value, dict) else {}


def _path_texts(value: Any) -> Iterable[str]:
    for item in value if isinstance(value, list) else (value,):
        path = item.get("path") or item.get("file_path") if isinstance(item, dict) else item
        if isinstance(path, str) and path and len(path) < 4_096:
            yield path


def scalar(value: Any) -> str:
    """Return a number, boolean or literal as JSON."""
    return jsonio.text_of(value)
