"""Writing a configuration file so that a reader sees the old text or the new one, never half of one."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
import tempfile
from pathlib import Path

from midfold.config.table import printable
from midfold.errors import ConfigError


def write_text(path: Path, text: str, *, backup: bool = True) -> Path | None:
    """Replaces the file in one step, its mode kept; a link keeps pointing to it. Returns where the old text went.

    The old text is kept beside it as config.yaml.bak, or config.yaml.bak.2 and so on: no earlier copy is overwritten.
    """
    try:
        target = path.resolve(strict=True)
        saved = _back_up(target) if backup else None
        _replace(target, text.encode("utf-8"))
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise ConfigError(f"{printable(str(path), 300)}: cannot write the configuration: {reason}") from None
    return saved


def _back_up(target: Path) -> Path:
    number = 1
    while True:
        saved = target.with_name(f"{target.name}.bak" + (f".{number}" if number > 1 else ""))
        try:
            handle = os.open(saved, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            number += 1
            continue
        with os.fdopen(handle, "wb") as file:
            file.write(target.read_bytes())
        shutil.copystat(target, saved)
        return saved


def _replace(target: Path, data: bytes) -> None:
    handle, temporary = tempfile.mkstemp(prefix=f".{target.name}.", dir=target.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        Path(temporary).chmod(stat.S_IMODE(target.stat().st_mode))
        Path(temporary).replace(target)
    except OSError:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
