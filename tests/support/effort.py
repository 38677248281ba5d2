"""Amount of work of a test: little in `make test`, more in `make test-all`, everything in `make soak`."""

from __future__ import annotations

import os


def effort(test: int, everything: int, soak: int | None = None) -> int:
    """Return the number for this kind of run."""
    if os.environ.get("MIDFOLD_SOAK"):
        return everything if soak is None else soak
    return everything if os.environ.get("MIDFOLD_REQUIRE_ALL") else test
