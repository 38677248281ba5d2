"""Web pages and a JSON API over the sessions of a store: `routes` for any Starlette application, `app` standalone.

Everything is imported on first use, to keep the gateway's start fast.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from midfold.errors import MissingExtra

if TYPE_CHECKING:
    from midfold.pages.lookup import Sees
    from midfold.pages.recorder import Recorder
    from midfold.pages.web import Access, Everything, Under, app, routes

__all__ = ["Access", "Everything", "Recorder", "Sees", "Under", "app", "routes"]

_HOMES = {name: "recorder" if name == "Recorder" else "web" for name in __all__}


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
