"""Match a model's regular expression in a separate process, which can be killed.

Run as a script with only the standard library. Standard input is one JSON object; each hit is written to standard
output as one JSON line when found. Python's engine cannot be interrupted, so the parent kills this process on timeout.

1. Only regular files are read, and links are not followed.
2. Lines are matched up to a limit, so that a harmless pattern stays harmless on any file.
3. Kernel limits on CPU time and memory end the process even if the parent is gone.
"""

from __future__ import annotations

import json
import os
import re
import resource
import stat
import sys
from typing import Any

MEMORY = 1_000_000_000


def main() -> None:
    job: dict[str, Any] = json.load(sys.stdin)
    resource.setrlimit(resource.RLIMIT_CPU, (job["seconds"] + 1,) * 2)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    try:
        wanted = re.compile(job["pattern"])
    except (re.error, OverflowError, RecursionError, MemoryError) as problem:
        _emit({"problem": f"{problem}" or type(problem).__name__})
        return
    left = job["hits"]
    for name, path in job["files"]:
        text = _text(path, job["largest"])
        if text is None:
            _emit({"unread": name})
            continue
        for number, line in enumerate(text.splitlines(), 1):
            if wanted.search(line[: job["line"]]):
                _emit({"hit": [name, number, line.strip()[: job["shown"]]]})
                left -= 1
                if not left:
                    return
    _emit({"done": True})


def _text(path: str, largest: int) -> str | None:
    """Return the text of a regular text file, or None."""
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:
        return None
    with os.fdopen(handle, "rb") as file:
        about = os.fstat(handle)
        if not stat.S_ISREG(about.st_mode) or about.st_size > largest:
            return None
        data = file.read(largest)
    return None if b"\x00" in data[:8_000] else data.decode("utf-8", "replace")


def _emit(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
