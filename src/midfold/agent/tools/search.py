"""Searching the files of the working directory for a regular expression, for a stated time and no longer.

The pattern is the model's, and the lines may be anybody's: together they can keep Python's engine busy for ever. They
meet in a process of their own (`matching.py`), which is killed when its time is over.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any

from midfold.agent.tools.base import Tool
from midfold.agent.tools.folder import LARGEST_FILE, Folder
from midfold.errors import ToolRefused
from midfold.transcript.tools import ToolSpec, arguments

SECONDS = 10
MOST_HITS = 100
MOST_FILES = 50_000
LONGEST_PATTERN = 1_000
LONGEST_LINE = 10_000
LONGEST_HIT = 200
MATCHING = Path(__file__).with_name("matching.py")
TOO_SLOW = (
    f"the search was given up after {SECONDS} s. Use a simpler pattern, without a repetition inside of a repetition "
    "such as (a+)+, or plain text, or search in fewer files"
)


class Search:
    """Searches one folder; `seconds` is for tests that cannot wait."""

    def __init__(self, folder: Folder, seconds: int = SECONDS) -> None:
        self.folder = folder
        self.seconds = seconds

    def tool(self) -> Tool:
        return Tool(spec=SPEC, run=self.run, told=lambda given: f"{given['pattern']} in {given.get('path', '.')}")

    def run(self, pattern: str, path: str = ".", files: str = "*") -> str:
        """Lines that match, as path:line: text; then what was not searched."""
        for name, given in (("pattern", pattern), ("files", files)):
            if len(given) > LONGEST_PATTERN:
                raise ToolRefused(f"`{name}` has {len(given):,} characters; at most {LONGEST_PATTERN:,} are taken")
        wanted = list(islice(self._files(self.folder.existing(path), files), MOST_FILES + 1))
        told = self._matched(pattern, wanted[:MOST_FILES])
        notes = [f"[more than {MOST_FILES:,} files; only the first were searched]"] if len(wanted) > MOST_FILES else []
        return _shown(told, notes)

    def _files(self, start: Path, files: str) -> Iterator[tuple[str, str]]:
        for file in self.folder.files(start):
            name = self.folder.name(file)
            if fnmatch(name, files) or fnmatch(file.name, files):
                yield name, str(file)

    def _matched(self, pattern: str, files: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """What the other process told until it was done, or until its time was over."""
        asked = {"pattern": pattern, "files": files, "seconds": self.seconds, "hits": MOST_HITS + 1}
        asked |= {"largest": LARGEST_FILE, "line": LONGEST_LINE, "shown": LONGEST_HIT}
        command = (sys.executable, "-I", "-S", "-X", "utf8", str(MATCHING))
        with subprocess.Popen(
            command,
            env={},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        ) as process:
            try:
                output, _ = process.communicate(json.dumps(asked).encode(), timeout=self.seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
            finally:
                process.kill()
        return [json.loads(line) for line in output.splitlines(keepends=True) if line.endswith(b"\n")]


def _shown(told: Iterable[dict[str, Any]], notes: list[str]) -> str:
    hits: list[str] = []
    unread: list[str] = []
    over = False
    for fact in told:
        if "problem" in fact:
            raise ToolRefused(f"the pattern is no regular expression: {fact['problem']}")
        if "hit" in fact:
            name, number, text = fact["hit"]
            hits.append(f"{name}:{number}: {text}")
        elif "unread" in fact:
            unread.append(fact["unread"])
        over = over or "done" in fact
    if len(hits) > MOST_HITS:
        more = f"[more than {MOST_HITS} hits; search for something rarer, or in fewer files]"
        return "\n".join([*hits[:MOST_HITS], more])
    if not over:
        raise ToolRefused("\n".join([TOO_SLOW, *(["found until then:", *hits] if hits else [])]))
    if unread:
        notes.append(f"[not searched, because they are large or no text: {_some(unread)}]")
    return "\n".join([*(hits or ["nothing found"]), *notes])


def _some(names: list[str], most: int = 5) -> str:
    more = f" and {len(names) - most:,} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{more}"


SPEC = ToolSpec(
    name="search",
    description=(
        f"Search files for a regular expression; gives path:line: text. Lines are matched up to {LONGEST_LINE:,} "
        f"characters, files up to {LARGEST_FILE:,} bytes; after {SECONDS} seconds the search is given up."
    ),
    parameters=arguments(
        {
            "pattern": {"type": "string", "description": "A regular expression, matched line by line."},
            "path": {"type": "string", "description": "File or directory to search in (default: everything)."},
            "files": {"type": "string", "description": "Only files whose name matches, such as *.py."},
        },
        "pattern",
    ),
)
