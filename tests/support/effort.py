"""Scale test effort: small in `make test`, larger in `make test-all`, full in `make soak`."""

from __future__ import annotations

import os


def effort(test: int, everything: int, soak: int | None = None) -> int:
    """Return the number that applies to the current run."""
    if os.environ.get("MIDFOLD_SOAK"):
        return everything if soak is None else soak
    return everything if os.environ.get("MIDFOLD_REQUIRE_ALL") else test
