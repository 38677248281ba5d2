"""Peers from their public packages, each in an environment of its own under .bench/."""

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


def environment(requirement: str) -> Path:
    """The interpreter of an environment that has the package; made on first use."""
    folder = HOME / requirement.replace("==", "-")
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
    subprocess.run([*install, requirement], check=True, stderr=subprocess.DEVNULL)
    ready.touch()
    return python


def ask(requirement: str, script: str, question: Any) -> Any:
    """Runs `script` in the peer's environment with a JSON question on standard input; its last line is the answer."""
    python = environment(requirement)
    done = subprocess.run(
        [str(python), "-c", script], input=json.dumps(question), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        sys.exit(f"the peer {requirement} failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])
