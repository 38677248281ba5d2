"""Reading, writing and patching files of the working directory; searching them is next door."""

from __future__ import annotations

from pathlib import Path

from midfold.agent.tools.base import Tool
from midfold.agent.tools.folder import LARGEST_FILE, Folder
from midfold.agent.tools.search import Search
from midfold.errors import ToolRefused
from midfold.transcript.tools import ToolSpec, arguments

MOST_LINES = 600
KEPT = "surrogateescape"
"""How bytes that are no UTF-8 get through a patch unchanged."""
PATH = {"type": "string", "description": "Path relative to the working directory."}


def file_tools(folder: Folder) -> list[Tool]:
    """The four tools for files."""
    files = Files(folder)
    return [
        Tool(spec=READ, run=files.read, told=lambda given: given["path"]),
        Tool(spec=WRITE, run=files.write, changes=True, told=lambda given: _size(given["path"], given["content"])),
        Tool(spec=PATCH, run=files.patch, changes=True, told=lambda given: given["path"]),
        Search(folder).tool(),
    ]


class Files:
    def __init__(self, folder: Folder) -> None:
        self.folder = folder

    def read(self, path: str, start: int = 1, lines: int = MOST_LINES) -> str:
        """Lines of a file, with a last line that says what is left; or the names in a directory."""
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
        """Exact text for other text; it must be there once, or be meant everywhere."""
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
    """Where the first line of what was looked for does occur: the usual mistake is white space."""
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
