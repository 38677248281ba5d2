"""Run a script under several hash seeds, which change the order of sets of strings."""

from __future__ import annotations

import os
import subprocess
import sys


def outputs_under_hash_seeds(script: str, *seeds: str) -> set[str]:
    """Return the distinct outputs of a script under these seeds; one if it does not depend on them."""
    return {
        subprocess.run(
            [sys.executable, "-c", script],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in seeds
    }
