"""What a script prints in processes whose sets and dicts of strings are ordered otherwise."""

from __future__ import annotations

import os
import subprocess
import sys


def outputs_under_hash_seeds(script: str, *seeds: str) -> set[str]:
    """The different outputs of a script under these seeds: one, where nothing depends on them."""
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
