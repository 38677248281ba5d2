"""The working directory, and the paths inside it.

Rules of this file:
1. A path is taken relative to the working directory, links are followed, and what it leads to must be inside.
2. This keeps a model's mistakes with files inside the folder. It is no wall: a command of the shell tool can do all
   that the user can, and another process may put a link where a folder was a moment ago.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from midfold.errors import ToolRefused

LARGEST_FILE = 2_000_000
"""Bytes of a file that is read or searched."""
SKIPPED = frozenset({".git", ".hg", ".svn", "node_modules", "__pycache__", ".venv", ".mypy_cache", ".ruff_cache"})


class Folder:
    """A directory that file tools stay in."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root).resolve()
        if not self.root.is_dir():
            raise ToolRefused(f"{root} is no directory")

    def path(self, given: str) -> Path:
        """The path inside the folder that `given` means."""
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
        """A path as the model should call it."""
        return str(path.relative_to(self.root)) if path != self.root else "."

    def existing(self, given: str) -> Path:
        path = self.path(given)
        if not path.exists():
            near = sorted(item.name for item in path.parent.iterdir())[:20] if path.parent.is_dir() else []
            there = f"; beside it there are {', '.join(near)}" if near else ""
            raise ToolRefused(f"{given} does not exist{there}")
        return path

    def files(self, start: Path) -> Iterator[Path]:
        """Every file below a path, in order; no version control, no caches, no links."""
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
    """Files and folders in a folder, in order, and which of them are folders; nothing of one that may not be read."""
    found: list[tuple[Path, bool]] = []
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            is_folder = entry.is_dir(follow_symlinks=False)
            if entry.name not in SKIPPED and (is_folder or entry.is_file(follow_symlinks=False)):
                found.append((Path(entry.path), is_folder))
    return sorted(found)
