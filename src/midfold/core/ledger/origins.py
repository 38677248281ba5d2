"""Where a line of the ledger comes from, in a word or two: the file it is about, else the program, tool or speaker."""

from __future__ import annotations

import re

from midfold.core import jsonio
from midfold.core.compaction import SummaryAsk
from midfold.core.ledger.census import LONGEST_TEXT
from midfold.core.message import Text, ToolCall, ToolResult

PATH_KEYS = ("file_path", "path", "filename", "notebook_path")
COMMAND_KEYS = ("command", "cmd")
OTHER_KEYS = ("url", "pattern", "query")
LONGEST_ORIGIN = 28
LONGEST_COMMAND = 2_000
FARTHEST_CALL = 40
"""Messages between a call and its result, at most."""
_FILE = re.compile(r"(?<![\w~.@+-])[\w~.@+-]*(?<![\w@+-])[\w@+-]++\.[A-Za-z]\w{0,4}(?![\w/])", re.ASCII)
"""The last part of a path: it begins where none of its characters stands before, so every part is tried once."""


class Origins:
    """The origin of each text of a fold, found when it is asked for."""

    def __init__(self, ask: SummaryAsk, start: int) -> None:
        self._ask = ask
        self._start = start
        self._known: dict[tuple[int, int], str] = {}

    def of(self, message: int, part: int) -> str:
        """For a message of the census and the number of its readable part; empty for what is not of the fold."""
        found = self._known.get((message, part))
        if found is None:
            found = self._known[message, part] = self._of(message - self._start, part)
        return found

    def _of(self, index: int, readable: int) -> str:
        if not 0 <= index < len(self._ask.messages):
            return ""
        message = self._ask.messages[index]
        numbers = [at for at, part in enumerate(message.parts) if isinstance(part, Text | ToolCall | ToolResult)]
        part = message.parts[numbers[readable]]
        if isinstance(part, ToolCall):
            return self._short(part)
        if isinstance(part, ToolResult):
            return self._of_result(index, part)
        return message.role

    def _of_result(self, index: int, result: ToolResult) -> str:
        """A result stands behind its call: the nearest one of that id before it."""
        for before in range(index - 1, max(index - FARTHEST_CALL, 0) - 1, -1):
            for part in self._ask.messages[before].parts:
                if isinstance(part, ToolCall) and part.id == result.call_id:
                    return self._short(part)
        return "result"

    def _short(self, call: ToolCall) -> str:
        """The file of a call, or the program it runs; else the tool's name."""
        try:
            arguments = jsonio.decode(call.arguments) if len(call.arguments) <= LONGEST_TEXT else None
        except jsonio.NotJSON:
            arguments = None
        values = arguments if isinstance(arguments, dict) else {}
        for keys, told in ((PATH_KEYS, _file), (COMMAND_KEYS, _program), (OTHER_KEYS, _words)):
            key = next((key for key in keys if isinstance(values.get(key), str) and values[key].strip()), None)
            if key is not None:
                return told(self._ask.redact(values[key][:LONGEST_COMMAND]))
        return call.name[:LONGEST_ORIGIN]


def _file(path: str) -> str:
    return " ".join(path.split()).rstrip("/").rpartition("/")[2][-LONGEST_ORIGIN:]


def _program(command: str) -> str:
    """The file a command is about, or what is run."""
    found = _FILE.search(command)
    if found is not None:
        return _file(found.group())
    words = [word for word in command.split()[:12] if not word.startswith(("-", "cd", "/", "&"))]
    return f"$ {words[0][:LONGEST_ORIGIN]}" if words else "$"


def _words(text: str) -> str:
    return " ".join(text.split())[:LONGEST_ORIGIN].rstrip()
