"""`midfold mcp`: stored sessions as Model Context Protocol tools, over stdio or HTTP."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import midfold
from midfold.adapters.mcp_tools import SPECS, SessionTools
from midfold.cli import signals
from midfold.cli.listening import listen
from midfold.cli.options import open_own, with_config, with_url
from midfold.cli.terminal import notice
from midfold.errors import ConfigError, MissingExtra
from midfold.session.sessions import Sessions, project_prefix

if TYPE_CHECKING:
    from mcp.server.lowlevel import Server

PORT = 8789
INSTRUCTIONS = (
    "What earlier and compacted sessions of this project really said: search it before you guess, unfold a handle "
    "(mf-...) for the exact original, and ask for artifacts to see what was changed, run and tested."
)


@click.command(name="mcp")
@with_url
@with_config
@click.option(
    "--project",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    default=Path(),
    help="Project folder; default: the working directory.",
)
@click.option("--http", is_flag=True, help="Serve over HTTP on 127.0.0.1 instead of standard input; requires a key.")
@click.option(
    "--port",
    type=click.IntRange(0, 65_535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 for a free one.",
)
def command(url: str | None, config: str | None, project: Path, http: bool, port: int) -> None:
    """Serve stored sessions to an agent over MCP: search, unfold, describe, artifacts, compact, stats.

    Over standard input and output (the default) it serves the sessions of one project and reads transcripts in its
    folder. With --http it listens on 127.0.0.1 at /mcp, requires a key from `midfold keys new`, checks Host and
    Origin, serves each key its own sessions, and reads no files. Summaries are built in, without an LLM.
    """
    with open_own(url, config) as sessions:
        if http:
            _serve_http(sessions, port)
        else:
            tools = SessionTools(sessions, project_prefix(project), project)
            signal.signal(signal.SIGINT, signals.end_at_once)
            asyncio.run(_serve_stdio(_build_server(lambda request: tools)))


def _serve_http(sessions: Sessions, port: int) -> None:
    config = sessions.config
    if config is None or not config.keys:
        raise ConfigError("midfold mcp --http requires a key in config.yaml; create one with `midfold keys new NAME`")
    server = _build_server(lambda request: SessionTools(sessions, f"{request.state.owner.name}/"))
    import uvicorn

    from midfold.gateway.admission import Admission, AdmissionLimits, GatewayKeys

    limits = AdmissionLimits()
    inner = server.streamable_http_app(
        json_response=True, stateless_http=True, max_request_body_size=limits.body_bytes, host="127.0.0.1"
    )
    keys = GatewayKeys({name: row.hash for name, row in config.keys.items()})
    [listening] = listen("127.0.0.1", port, hint="use --port 0 for a free port")
    with listening:
        notice(f"http://127.0.0.1:{listening.getsockname()[1]}/mcp serves {sessions.store.where}; stop with Ctrl-C")
        guarded = Admission(inner, keys, limits)
        server_config = uvicorn.Config(guarded, log_level="warning", access_log=False)
        signals.serve(uvicorn.Server(server_config), [listening])


def _build_server(tools_for: Callable[[Any], SessionTools]) -> Server[Any]:
    """Return an MCP server; `tools_for` maps an HTTP request (None over stdio) to its tools."""
    try:
        from mcp.server.lowlevel import Server
        from mcp.types import CallToolResult, ListToolsResult, TextContent, Tool
    except ModuleNotFoundError:
        raise MissingExtra("midfold mcp", "mcp") from None
    listed = [Tool(name=one.name, description=one.description, input_schema=dict(one.parameters)) for one in SPECS]

    async def list_tools(context: Any, params: Any) -> ListToolsResult:
        return ListToolsResult(tools=listed)

    async def call_tool(context: Any, params: Any) -> CallToolResult:
        answer = await asyncio.to_thread(tools_for(context.request).run, params.name, params.arguments)
        return CallToolResult(content=[TextContent(type="text", text=answer.text)], is_error=answer.is_error)

    return Server(
        "midfold",
        version=midfold.__version__,
        instructions=INSTRUCTIONS,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def _serve_stdio(server: Server[Any]) -> None:
    """Serve on standard input and output until the client closes them."""
    from mcp.server.stdio import stdio_server

    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())
