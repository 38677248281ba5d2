"""Peers from their public packages, each in its own environment under .bench/."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".bench"
HERMES = "hermes-agent==0.19.0"
LITELLM = "litellm[proxy]==1.106.2"
HEADROOM = "headroom-ai[proxy]==0.42.0"


def environment(requirement: str, *more: str) -> Path:
    """Return the interpreter of an environment with the package and `more`; create it on first use."""
    folder = HOME / "-with-".join([requirement, *more]).replace("==", "-")
    python = folder / "bin" / "python"
    ready = folder / ".ready"
    if ready.exists():
        return python
    print(f"  installing {requirement} into {folder.relative_to(ROOT)}", flush=True)
    shutil.rmtree(folder, ignore_errors=True)
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    subprocess.run([sys.executable, "-m", "venv", *(["--without-pip"] if uv else []), str(folder)], check=True)
    install = (
        [uv, "pip", "install", "-q", "--python", str(python)] if uv else [str(python), "-m", "pip", "-q", "install"]
    )
    subprocess.run([*install, requirement, *more], check=True, stderr=subprocess.DEVNULL)
    ready.touch()
    return python


def ask(requirement: str, script: str, question: Any, *more: str) -> Any:
    """Run `script` in the peer's environment with a JSON question on standard input; return its last line, parsed."""
    python = environment(requirement, *more)
    done = subprocess.run(
        [str(python), "-c", script], input=json.dumps(question), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"the peer {requirement} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
