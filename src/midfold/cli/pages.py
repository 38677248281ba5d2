"""`midfold pages`: view the sessions of a store in a browser."""

from __future__ import annotations

import click

from midfold.cli import signals
from midfold.cli.listening import listen
from midfold.cli.options import with_store
from midfold.cli.terminal import notice
from midfold.errors import MissingExtra
from midfold.session.sessions import Sessions

PORT = 8788


@click.command(name="pages")
@with_store
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 for a free one.",
)
def command(sessions: Sessions, port: int) -> None:
    """Serve web pages about the sessions of a store, on this machine only.

    Shows how full each session is, what compactions saved, each compaction before and after, search and unfold; the
    same data as JSON under /api. The store is not changed. Stop with Ctrl-C.
    """
    try:
        import uvicorn
    except ModuleNotFoundError:
        raise MissingExtra("midfold pages", "gateway") from None
    from midfold.pages import app

    [listening] = listen("127.0.0.1", port, hint="use --port 0 for a free port")
    config = uvicorn.Config(app(sessions, config=sessions.config), log_level="warning", access_log=False)
    with listening:
        notice(f"http://127.0.0.1:{listening.getsockname()[1]}/ shows {sessions.store.where}; stop with Ctrl-C")
        signals.serve(uvicorn.Server(config), [listening])
