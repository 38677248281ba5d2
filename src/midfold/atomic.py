"""Replace files in one step, in folders whose other files may be hostile.

The author of a repository can prepare a symbolic link under any fixed temporary name, which would lead the writer to
another file of the user. So the temporary file gets a random name and is created exclusively, and the rename replaces
a link at the target instead of following it.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

NO_FOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | NO_FOLLOW | getattr(os, "O_BINARY", 0)


@contextmanager
def replace_file(path: Path, *, mode: int = 0o600, sync: bool = False) -> Iterator[BinaryIO]:
    """Yield a stream whose content appears at `path` when the block ends, or not at all.

    A regular file that is replaced keeps its permissions; a new file gets `mode`, reduced by the umask.
    """
    temporary = path.with_name(f".midfold-{secrets.token_hex(8)}.tmp")
    descriptor = os.open(temporary, _NEW_FILE, mode)
    try:
        with os.fdopen(descriptor, "wb") as stream:
            yield stream
            stream.flush()
            if sync:
                os.fsync(stream.fileno())
        if (kept := _permissions(path)) is not None:
            temporary.chmod(kept)
        temporary.replace(path)
    except BaseException:  # an interrupt, too: no partial file is left behind
        with suppress(OSError):
            temporary.unlink()
        raise


def _permissions(path: Path) -> int | None:
    """Return the permission bits of a regular file; None for a link and where there is no file."""
    try:
        known = path.lstat()
    except OSError:
        return None
    return stat.S_IMODE(known.st_mode) & 0o777 if stat.S_ISREG(known.st_mode) else None
