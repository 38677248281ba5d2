"""`midfold mcp`: the kept sessions as tools of the Model Context Protocol, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import click

from midfold.adapters.mcp_server import SessionTools, build_server, project_prefix, serve_stdio
from midfold.cli import signals
from midfold.cli.listening import listen
from midfold.cli.options import settings, with_config, with_url
from midfold.cli.terminal import notice
from midfold.config.load import store_url
from midfold.errors import ConfigError
from midfold.service import Sessions, open_sessions

PORT = 8789


@click.command(name="mcp")
@with_url
@with_config
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="The project's folder; default: the working directory.",
)
@click.option("--http", is_flag=True, help="Listen on this machine instead of standard input; needs a key.")
@click.option("--port", type=click.IntRange(0, 65_535), default=PORT, show_default=True, help="0 takes a free one.")
def command(url: str | None, config: str | None, project: Path, http: bool, port: int) -> None:
    """Offer kept sessions to an agent by MCP: search, unfold, describe, artifacts, compact, stats.

    Over standard input and output (the default) it sees the sessions of one project and reads transcripts in its
    folder. With --http it listens on 127.0.0.1 at /mcp, asks for a key of `midfold keys new`, checks Host and Origin,
    shows each key the sessions of its own, and reads no files. Summaries are made on this machine.
    """
    known = settings(config)
    address = url or store_url(known, os.environ)
    with open_sessions(address, config=known, lease_seconds=known.store.lease_seconds) as sessions:
        if http:
            _serve_http(sessions, port)
        else:
            tools = SessionTools(sessions, project_prefix(project), project)
            signal.signal(signal.SIGINT, signals.end_at_once)
            asyncio.run(serve_stdio(build_server(lambda request: tools)))


def _serve_http(sessions: Sessions, port: int) -> None:
    config = sessions.config
    if config is None or not config.keys:
        raise ConfigError("midfold mcp --http needs a key: `midfold keys new NAME` makes one for config.yaml")
    server = build_server(lambda request: SessionTools(sessions, f"{request.state.owner.name}/"))
    import uvicorn

    from midfold.gateway.admission import Admission, AdmissionLimits, GatewayKeys

    limits = AdmissionLimits()
    inner = server.streamable_http_app(
        json_response=True, stateless_http=True, max_request_body_size=limits.body_bytes, host="127.0.0.1"
    )
    keys = GatewayKeys({name: row.hash for name, row in config.keys.items()})
    [listening] = listen("127.0.0.1", port, hint="--port 0 takes a free one")
    with listening:
        notice(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp serves {sessions.store.where}; Ctrl-C ends it")
        door = Admission(inner, keys, limits)
        server_config = uvicorn.Config(door, log_level="warning", access_log=False)
        signals.serve(uvicorn.Server(server_config), [listening])
