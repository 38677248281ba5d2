"""midfold as a context engine of hermes-agent.

    python -m midfold.adapters.hermes install DIR     # DIR: Hermes' plugins/context_engine folder, or ~/.hermes/plugins

Hermes' loader imports the installed folder and calls `register`. Its package is looked for only then: importing this
one needs no Hermes.
"""

from __future__ import annotations

from typing import Any

from midfold.adapters.hermes.engine import HermesEngine, create_engine, engine_class, install

__all__ = ["HermesEngine", "create_engine", "engine_class", "install", "register"]


def register(context: Any) -> None:
    """What Hermes' plugin loader calls."""
    context.register_context_engine(create_engine())
