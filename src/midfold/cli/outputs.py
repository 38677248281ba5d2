"""Output files of commands: checked before the work starts, and written atomically."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import click

from midfold.atomic import replace_file
from midfold.errors import MidfoldError

STANDARD = "-"
with_overwrite = click.option("--overwrite", is_flag=True, help="Replace an existing file.")


def check_output(output: str | Path, *, overwrite: bool = False) -> Path:
    """Return the path of an output file; raise if it cannot be written."""
    target = Path(output)
    folder = target.parent
    if not folder.is_dir():
        raise MidfoldError(f"cannot write {output}: there is no folder {folder}")
    if target.is_dir():
        raise MidfoldError(f"cannot write {output}: it is a folder")
    if not os.access(folder, os.W_OK):
        raise MidfoldError(f"cannot write {output}: no write permission for {folder}")
    if os.path.lexists(target) and not overwrite:
        raise MidfoldError(f"{output} already exists; use --overwrite to replace it")
    return target


def check_picture(picture: str | Path | None) -> None:
    """Check that a picture can be written; it may replace an existing one."""
    if picture is not None:
        check_output(picture, overwrite=True)


def write_output(path: Path, pieces: Iterable[bytes]) -> None:
    """Replace a file atomically; a new file is readable by its owner only, because originals may hold secrets."""
    with replace_file(path) as stream:
        stream.writelines(pieces)


def write_picture(path: Path, text: str) -> None:
    """Replace a picture atomically."""
    with replace_file(path, mode=0o666) as stream:
        stream.write(text.encode())
