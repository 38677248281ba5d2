"""Locate the shared transcripts, or skip the test with a reason."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
SHARED = Path(os.environ.get("MIDFOLD_SHARED", ROOT.parent / "shared")) / "data"


def need(condition: object, reason: str) -> None:
    """Skip with a reason, or fail when all data is required (make test-all)."""
    if condition:
        return
    if os.environ.get("MIDFOLD_REQUIRE_ALL"):
        pytest.fail(reason)
    pytest.skip(reason)


def lines(source: str | None = None) -> Iterator[bytes]:
    """Yield the raw lines of the shared conversations, one conversation each."""
    need(SHARED.is_dir(), "the shared transcripts (../shared/data) are not here")
    for path in sorted(SHARED.glob(f"{source or '*'}/conversations.jsonl")):
        yield from path.read_bytes().splitlines()


def conversations(source: str | None = None) -> Iterator[dict[str, Any]]:
    for line in lines(source):
        yield json.loads(line)
