"""midfold as a context engine of hermes-agent.

    python -m midfold.adapters.hermes install DIR     # DIR: Hermes' plugins/context_engine folder, or ~/.hermes/plugins

Hermes' loader imports the installed folder and calls `register`. Its package is looked for only then: importing this
one needs no Hermes.
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
description: "midfold: folds the middle of a conversation, keeps every original within reach of a tool."
"""


def register(context: Any) -> None:
    """What Hermes' plugin loader calls."""
    context.register_context_engine(create_engine())


def engine_class() -> type[HermesEngine]:
    """The engine as a subclass of Hermes' own base class; the plain class where there is no Hermes."""
    try:
        base = getattr(importlib.import_module("agent.context_engine"), "ContextEngine", None)
    except ImportError:
        base = None
    if not isinstance(base, type):
        return HermesEngine
    return type("MidfoldContextEngine", (HermesEngine, base), {"__doc__": HermesEngine.__doc__, "__module__": __name__})


def create_engine(**settings: Any) -> HermesEngine:
    """An engine for one agent, with midfold's own configuration unless another is given."""
    return engine_class()(**settings)


def install(plugins_dir: str | os.PathLike[str]) -> Path:
    """Makes `<plugins_dir>/midfold/`, or brings it up to date; returns it."""
    folder = Path(plugins_dir) / NAME
    folder.mkdir(parents=True, exist_ok=True)
    manifest = MANIFEST.format(name=NAME, version=__version__)
    for name, text in (("__init__.py", PLUGIN), ("plugin.yaml", manifest)):
        with replace_file(folder / name, mode=0o666) as stream:
            stream.write(text.encode())
    return folder
