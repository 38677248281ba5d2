"""Create or refresh a virtual environment from a locked requirements file.

    python3 tools/bootstrap.py VENV LOCK

Runs on a bare python3: standard library only. Uses uv when it is on the PATH or can be installed into the
environment (it is several times faster), pip otherwise. Every package is checked against its recorded hash.
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
    install = installer(python)
    run([*install, "--require-hashes", "-r", str(lock)])
    run([*install, "--no-deps", "--no-build-isolation", "-e", str(ROOT)])


def create(venv_dir: Path) -> None:
    print(f"creating {venv_dir}", flush=True)
    uv = shutil.which("uv")
    if uv:
        run([uv, "venv", "--quiet", "--seed", "--python", sys.executable, str(venv_dir)])
        return
    try:
        venv.create(venv_dir, with_pip=True)
    except subprocess.CalledProcessError:
        shutil.rmtree(venv_dir, ignore_errors=True)
        sys.exit(
            "python3 has no working venv module: install it and run again "
            "(on Debian and Ubuntu: apt-get install python3-venv)"
        )


def installer(python: Path) -> list[str]:
    """The install command, with uv if there is one or one can be had."""
    pip = [str(python), "-m", "pip", "--quiet", "--disable-pip-version-check", "install"]
    uv = shutil.which("uv") or python.with_name("uv")
    if not Path(uv).exists():
        lock = ROOT / "requirements" / "uv.txt"
        if subprocess.run([*pip, "--require-hashes", "-r", str(lock)], check=False).returncode != 0:
            print("uv is not available here; installing with pip", flush=True)
            return pip
    return [str(uv), "pip", "install", "--quiet", "--python", str(python)]


def run(command: list[str]) -> None:
    result = subprocess.run(command, check=False, env={**os.environ, "PIP_NO_INPUT": "1"})
    if result.returncode != 0:
        sys.exit(f"installing failed (exit {result.returncode}): {' '.join(command)}")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
