"""midfold as a context engine of hermes-agent.

    python -m midfold.adapters.hermes install DIR     # DIR: Hermes' plugins/context_engine folder, or
    ~/.hermes/plugins

Hermes' loader imports the installed folder and calls `register`. Hermes is imported only then, so this package can be
imported without it.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

from midfold import __version__
from midfold.adapters.hermes.engine import NAME, HermesEngine
from midfold.atomic import replace_file

__all__ = ["HermesEngine", "create_engine", "engine_class", "install", "register"]

PLUGIN = '''"""midfold as a context engine; written by `python -m midfold.adapters.hermes install`."""

from midfold.adapters.hermes import register

__all__ = ["register"]
'''
MANIFEST = """name: {name}
version: {version}
description: "midfold: compacts the middle of a conversation; every original can be retrieved with a tool."
"""


def register(context: Any) -> None:
    """Register the engine; called by Hermes' plugin loader."""
    context.register_context_engine(create_engine())


def engine_class() -> type[HermesEngine]:
    """Return the engine as a subclass of Hermes' base class, or the plain class if Hermes is not installed."""
    try:
        base = getattr(importlib.import_module("agent.context_engine"), "ContextEngine", None)
    except ImportError:
        base = None
    if not isinstance(base, type):
        return HermesEngine
    return type("MidfoldContextEngine", (HermesEngine, base), {"__doc__": HermesEngine.__doc__, "__module__": __name__})


def create_engine(**settings: Any) -> HermesEngine:
    """Create an engine for one agent, with midfold's own configuration by default."""
    return engine_class()(**settings)


def install(plugins_dir: str | os.PathLike[str]) -> Path:
    """Create or update `<plugins_dir>/midfold/` and return its path."""
    folder = Path(plugins_dir) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    manifest = MANIFEST.format(name=NAME, version=__version__)
    for name, text in (("__init__.py", PLUGIN), ("plugin.yaml", manifest)):
        with replace_file(folder / name, mode=0o666) as stream:
            stream.write(text.encode())
    return folder
