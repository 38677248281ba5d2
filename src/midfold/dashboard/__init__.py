"""Pages and a JSON API over the sessions of a store: `routes` for any Starlette application, `app` for them alone.

Nothing is imported before it is asked for: a gateway that shows no pages does not pay for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from midfold.errors import MissingExtra

if TYPE_CHECKING:
    from midfold.dashboard.access import Access, Everything, Sees, Under
    from midfold.dashboard.recorder import Recorder
    from midfold.dashboard.server import app, routes

__all__ = ["Access", "Everything", "Recorder", "Sees", "Under", "app", "routes"]

_HOMES = {
    "Access": "access",
    "Everything": "access",
    "Recorder": "recorder",
    "Sees": "access",
    "Under": "access",
    "app": "server",
    "routes": "server",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    try:
        return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("jinja2", "starlette", "markupsafe", "anyio"):
            raise
        raise MissingExtra("the pages", "gateway") from error
