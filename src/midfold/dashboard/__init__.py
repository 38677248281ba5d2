"""Pages and a JSON API over the sessions of a store: `routes` for any Starlette application, `app` for them alone."""

from midfold.errors import MissingExtra

try:
    from midfold.dashboard.access import Access, Everything, Sees, Under
    from midfold.dashboard.recorder import Recorder
    from midfold.dashboard.server import app, routes
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] not in ("jinja2", "starlette", "markupsafe", "anyio"):
        raise
    raise MissingExtra("the pages", "gateway") from error

__all__ = ["Access", "Everything", "Recorder", "Sees", "Under", "app", "routes"]
