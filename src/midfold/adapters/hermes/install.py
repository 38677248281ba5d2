"""Writes the folder that Hermes' plugin loader looks for. It holds a few lines that import midfold, and no code."""

from __future__ import annotations

import os
from pathlib import Path

import midfold

NAME = "midfold"
MODULE = '''"""midfold as a context engine; written by `python -m midfold.adapters.hermes install`."""

from midfold.adapters.hermes import register

__all__ = ["register"]
'''
MANIFEST = """name: {name}
version: {version}
description: "midfold: folds the middle of a conversation, keeps every original within reach of a tool."
"""


def install(plugins_dir: str | os.PathLike[str]) -> Path:
    """Makes `<plugins_dir>/midfold/`, or brings it up to date; returns it."""
    folder = Path(plugins_dir) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(MODULE, encoding="utf-8")
    (folder / "plugin.yaml").write_text(MANIFEST.format(name=NAME, version=midfold.__version__), encoding="utf-8")
    return folder
