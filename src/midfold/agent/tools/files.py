"""Tools that read, write, patch and search files of the working directory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from fnmatch import fnmatch
from itertools import islice
from pathlib import Path
from typing import Any

from midfold.agent.tools.base import AgentTool
from midfold.errors import ToolRefused
from midfold.transcript.tools import ToolSpec, arguments

# The working directory and paths inside it.
#
# Paths are relative to the working directory; links are followed and the target must be inside. This protects against a
# model's mistakes and is not a sandbox: a shell command can do all that the user can, and another process may replace a
# directory by a link at any time.


LARGEST_FILE = 2_000_000
"""Maximum bytes of a file that is read or searched."""
SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"})


class Folder:
    """Directory that the file tools are confined to."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise ToolRefused(f"{root} is not a directory")

    def path(self, given: str) -> Path:
        """Resolve a path inside the directory; refuse one outside."""
        if "\x00" in given or not given.strip():
            raise ToolRefused("a path must not be empty")
        try:
            path = (self.root / given).resolve()
        except RuntimeError:
            raise ToolRefused(f"{given} is a link that leads to itself") from None
        if path != self.root and self.root not in path.parents:
            raise ToolRefused(f"{given} is outside of the working directory")
        return path

    def name(self, path: Path) -> str:
        """Return a path relative to the directory, as shown to the model."""
        return str(path.relative_to(self.root)) if path != self.root else "."

    def existing(self, given: str) -> Path:
        path = self.path(given)
        if not path.exists():
            near = sorted(item.name for item in path.parent.iterdir())[:20] if path.parent.is_dir() else []
            there = f"; beside it there are {', '.join(near)}" if near else ""
            raise ToolRefused(f"{given} does not exist{there}")
        return path

    def files(self, start: Path) -> Iterator[Path]:
        """Yield every file below a path in order, skipping version control, caches and links."""
        if start.is_file():
            yield start
        left = [(start, True)] if start.is_dir() else []
        while left:
            item, is_folder = left.pop()
            if is_folder:
                left += reversed(_children(item))
            else:
                yield item


def _children(folder: Path) -> list[tuple[Path, bool]]:
    """Return the sorted entries of a directory, each with whether it is a directory; empty if it is unreadable."""
    found: list[tuple[Path, bool]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name not in SKIPPED and (is_folder or entry.is_file(follow_symlinks=False)):
                found.append((Path(entry.path), is_folder))
    return sorted(found)


MOST_LINES = 600
KEPT = "surrogateescape"
"""Error handler that keeps bytes that are not UTF-8 unchanged through a patch."""
PATH = {"type": "string", "description": "Path relative to the working directory."}


def file_tools(folder: Folder) -> list[AgentTool]:
    """Return the four file tools."""
    files = Files(folder)
    return [
        AgentTool(spec=READ, run=files.read, label=lambda given: given["path"]),
        AgentTool(
            spec=WRITE, run=files.write, changes=True, label=lambda given: _size(given["path"], given["content"])
        ),
        AgentTool(spec=PATCH, run=files.patch, changes=True, label=lambda given: given["path"]),
        Search(folder).tool(),
    ]


class Files:
    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def read(self, path: str, start: int = 1, lines: int = MOST_LINES) -> str:
        """Return lines of a file and a note on what remains, or the names in a directory."""
        found = self.folder.existing(path)
        if found.is_dir():
            return "\n".join(f"{item.name}/" if item.is_dir() else item.name for item in sorted(found.iterdir()))
        text = _text(found).splitlines()
        first = max(start, 1)
        if first > max(len(text), 1):
            raise ToolRefused(f"{path} has {len(text)} lines; line {first} is behind its end")
        shown = text[first - 1 : first - 1 + max(min(lines, MOST_LINES), 1)]
        last = first - 1 + len(shown)
        rest = f"\n[lines {first} to {last} of {len(text)}]" if first > 1 or last < len(text) else ""
        return "\n".join(shown) + rest

    def write(self, path: str, content: str) -> str:
        target = self.folder.path(path)
        if target.is_dir():
            raise ToolRefused(f"{path} is a directory")
        if target.exists() and not target.is_file():
            raise ToolRefused(f"{path} is no ordinary file")
        before = "replaced" if target.exists() else "created"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(content, encoding="utf-8")
        return f"{before} {self.folder.name(target)}: {_plural(_count(content), 'line')}"

    def patch(self, path: str, old: str, new: str, all: bool = False) -> str:  # noqa: A002 - the model's word
        """Replace exact text, which must occur once unless `all` is set."""
        target = self.folder.existing(path)
        if target.is_dir():
            raise ToolRefused(f"{path} is a directory")
        text = _text(target, KEPT)
        count = text.count(old) if old else 0
        if not old or count == 0:
            raise ToolRefused(f"`old` is not in {path}{_nearest(text, old)}")
        if count > 1 and not all:
            raise ToolRefused(f"`old` is in {path} {count} times; give more of its surroundings, or set `all`")
        target.write_bytes(text.replace(old, new).encode("utf-8", KEPT))
        line = text[: text.index(old)].count("\n") + 1
        return f"patched {self.folder.name(target)}: {_plural(count, 'place')}, the first in line {line}"


def _text(path: Path, errors: str = "replace") -> str:
    if not path.is_file():
        raise ToolRefused(f"{path.name} is no ordinary file; reading it might never end")
    size = path.stat().st_size
    if size > LARGEST_FILE:
        raise ToolRefused(f"{path.name} has {size:,} bytes, more than the {LARGEST_FILE:,} that are read")
    data = path.read_bytes()
    if b"\x00" in data[:8_000]:
        raise ToolRefused(f"{path.name} is no text file")
    return data.decode("utf-8", errors)


def _nearest(text: str, old: str) -> str:
    """Return where the first line of the missing text does occur; the usual mistake is white space."""
    first = next((line.strip() for line in old.splitlines() if line.strip()), "")
    for number, line in enumerate(text.splitlines(), 1):
        if first and first == line.strip():
            return f"; its first line occurs in line {number} with other white space or another continuation"
    return "; read the file again"


def _count(content: str) -> int:
    return len(content.splitlines())


def _plural(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def _size(path: str, content: str) -> str:
    return f"{path} ({_plural(_count(content), 'line')})"


READ = ToolSpec(
    name="read_file",
    description=f"Read a text file, at most {MOST_LINES} lines at once, or list a directory.",
    parameters=arguments(
        {
            "path": PATH,
            "start": {"type": "integer", "description": "First line (default 1)."},
            "lines": {"type": "integer", "description": f"How many lines (default {MOST_LINES})."},
        },
        "path",
    ),
)
WRITE = ToolSpec(
    name="write_file",
    description="Create or replace a text file.",
    parameters=arguments(
        {"path": PATH, "content": {"type": "string", "description": "The whole new content."}}, "path", "content"
    ),
)
PATCH = ToolSpec(
    name="patch",
    description="Replace text in a file. `old` must occur exactly as given, and once unless `all` is set.",
    parameters=arguments(
        {
            "path": PATH,
            "old": {"type": "string", "description": "The text to replace, with enough around it to be unique."},
            "new": {"type": "string", "description": "What stands there afterwards."},
            "all": {"type": "boolean", "description": "Replace every occurrence."},
        },
        "path",
        "old",
        "new",
    ),
)


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
    """Regular expression search in one directory; `seconds` is the time limit."""

    def __init__(self, folder: Folder, seconds: int = SECONDS) -> None:
        self.folder = folder
        self.seconds = seconds

    def tool(self) -> AgentTool:
        return AgentTool(spec=SPEC, run=self.run, label=lambda given: f"{given['pattern']} in {given.get('path', '.')}")

    def run(self, pattern: str, path: str = ".", files: str = "*") -> str:
        """Return matching lines as `path:line: text`, then notes on what was not searched."""
        for name, given in (("pattern", pattern), ("files", files)):
            if len(given) > LONGEST_PATTERN:
                raise ToolRefused(f"`{name}` has {len(given):,} characters; at most {LONGEST_PATTERN:,} are taken")
        wanted = list(islice(self._files(self.folder.existing(path), files), MOST_FILES + 1))
        facts = self._match(pattern, wanted[:MOST_FILES])
        notes = [f"[more than {MOST_FILES:,} files; only the first were searched]"] if len(wanted) > MOST_FILES else []
        return _describe_hits(facts, notes)

    def _files(self, start: Path, files: str) -> Iterator[tuple[str, str]]:
        for file in self.folder.files(start):
            name = self.folder.name(file)
            if fnmatch(name, files) or fnmatch(file.name, files):
                yield name, str(file)

    def _match(self, pattern: str, files: list[tuple[str, str]]) -> list[dict[str, Any]]:
        """Run the search process and return what it reported until it finished or timed out."""
        job = {"pattern": pattern, "files": files, "seconds": self.seconds, "hits": MOST_HITS + 1}
        job |= {"largest": LARGEST_FILE, "line": LONGEST_LINE, "shown": LONGEST_HIT}
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
                output, _ = process.communicate(json.dumps(job).encode(), timeout=self.seconds)
            except subprocess.TimeoutExpired:
                process.kill()
                output, _ = process.communicate()
            finally:
                process.kill()
        return [json.loads(line) for line in output.splitlines(keepends=True) if line.endswith(b"\n")]


def _describe_hits(facts: Iterable[dict[str, Any]], notes: list[str]) -> str:
    hits: list[str] = []
    unread: list[str] = []
    over = False
    for fact in facts:
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
