"""Create or refresh a virtual environment from a locked requirements file.

    python3 tools/bootstrap.py VENV LOCK

Runs on a bare python3: standard library only. Uses uv when it is on the PATH or can be installed into the
environment (it is several times faster), pip otherwise, and pip when uv fails: certificates, proxies and indexes
may be set up for pip alone. Every package is checked against its recorded hash.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)


def main(venv_dir: Path, lock: Path) -> None:
    if sys.version_info < OLDEST:
        sys.exit(f"midfold needs Python {OLDEST[0]}.{OLDEST[1]} or newer; {sys.executable} is {sys.version.split()[0]}")
    python = venv_dir / "bin" / "python"
    if not python.exists():
        create(venv_dir)
    commands = installers(python)
    for what in (["--require-hashes", "-r", str(lock)], ["--no-deps", "--no-build-isolation", "-e", str(ROOT)]):
        commands = install(commands, what)


def create(venv_dir: Path) -> None:
    print(f"creating {venv_dir}", flush=True)
    uv = shutil.which("uv")
    if uv:
        code = run([uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(venv_dir)])
        if code == 0:
            return
        print(f"uv could not create it (exit {code}); trying venv", flush=True)
        shutil.rmtree(venv_dir, ignore_errors=True)
    try:
        venv.create(venv_dir, with_pip=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(venv_dir, ignore_errors=True)
        sys.exit(
            "python3 has no working venv module: install it and run again "
            "(on Debian and Ubuntu: apt-get install python3-venv)"
        )


def installers(python: Path) -> list[list[str]]:
    """Return the install commands to try in order: uv if available or installable, then pip."""
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    uv = Path(shutil.which("uv") or python.with_name("uv"))
    if not uv.exists():
        lock = ROOT / "requirements" / "uv.txt"
        if run([*pip, "--require-hashes", "-r", str(lock)]) != 0:
            print("uv is not available here; installing with pip", flush=True)
            return [pip]
    return [[str(uv), "pip", "install", "--quiet", "--python", str(python)], pip]


def install(commands: list[list[str]], what: list[str]) -> list[list[str]]:
    """Install with the first command that works, and return it with those after it; exit if none works."""
    first, *others = commands
    code = run([*first, *what])
    if code == 0:
        return commands
    if not others:
        sys.exit(f"installing failed (exit {code}): {' '.join([*first, *what])}")
    print(f"uv could not install (exit {code}); trying pip", flush=True)
    return install(others, what)


def run(command: list[str]) -> int:
    """Run a command and return its exit code; 127, as in a shell, if it cannot be started."""
    try:
        return subprocess.run(command, check=False, env={**os.environ, "PIP_NO_INPUT": "1"}).returncode
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", file=sys.stderr, flush=True)
        return 127


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
