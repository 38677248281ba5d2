"""Run a script with a released framework from an environment under .bench, created when everything is required."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from bench.peers import HOME, environment
from support.data import ROOT, need

ADK = ("google-adk==2.13.0", "litellm==1.106.2", "mcp>=1.20")
AGENTS = ("openai-agents==0.24.0",)
CREWAI = ("crewai==1.15.30",)
LANGCHAIN = ("langchain==1.4.7", "langchain-openai==1.7.3")
LITELLM = ("litellm[proxy]==1.106.2",)
PYDANTIC_AI = ("pydantic-ai-slim[openai]==2.66.0",)
SMOLAGENTS = ("smolagents[openai]==1.26.0",)
STRANDS = ("strands-agents[openai]==1.62.0",)
MIDFOLD_NEEDS = ("msgspec>=0.19", "PyYAML>=6.0.1", "click>=8.1", "rich>=13.7")


def run_in(packages: tuple[str, ...], script: str, question: Any, folder: Path) -> Any:
    """Return the last line the script prints, parsed as JSON; skip with a reason if the framework is not installed."""
    first, *more = packages
    place = HOME / "-with-".join([first, *more, *MIDFOLD_NEEDS]).replace("==", "-")
    ready = (place / ".ready").exists()
    required = os.environ.get("MIDFOLD_REQUIRE_ALL")
    need(ready or required, f"{first} is not installed under .bench (make test-all does it)")
    here = f"python{sys.version_info.major}.{sys.version_info.minor}"
    need(not ready or (place / "lib" / here).is_dir(), f"{first} under .bench was not made with {here}")
    done = subprocess.run(
        [str(environment(first, *more, *MIDFOLD_NEEDS)), "-c", script],
        input=json.dumps(question),
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), "PYTHONPATH": str(ROOT / "src")},
        timeout=400,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    # Frameworks print lines on exit, from their own threads.
    return next(found for line in reversed(done.stdout.splitlines()) for found in _decode(line))


def _decode(line: str) -> Iterator[Any]:
    try:
        yield json.loads(line)
    except ValueError:
        return
