"""`midfold serve`: the gateway between agents and providers."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from functools import partial
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

import click

from midfold.cache.breakpoints import SIGN, caching_applies, provider_of, status_line
from midfold.cli.options import engine_settings, with_config
from midfold.cli.terminal import notice
from midfold.config import Config
from midfold.config.load import store_url
from midfold.errors import MissingExtra
from midfold.model.endpoint import resolve
from midfold.service import Sessions, open_sessions

OWN_PATHS = (
    "/",
    *("/api/cache", "/api/openapi.json", "/api/overview", "/api/search", "/api/sessions"),
    *("/assets", "/cache", "/metrics", "/readyz", "/search", "/sessions"),
)
"""What the paths of pages and figures begin with; they are made when one of them is first asked for.

Other paths under /api are a provider's."""
LATER_IMPORTED = ("aiohttp", "jinja2", "starlette")


@click.command()
@click.option("--upstream", metavar="URL", help="Address of the provider, such as https://api.openai.com.")
@click.option("--port", type=click.IntRange(1, 65_535), help="Port to listen on; default 8787.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on; default 127.0.0.1.")
@click.option(
    "--mode",
    type=click.Choice(["hygiene", "manage", "passthrough"]),
    help="Compact at 85 % of the context length (the default), at compression.threshold, or never.",
)
@click.option(
    "--store", "url", metavar="URL", help="Where folded conversations are kept: sqlite:///PATH, postgresql://..."
)
@with_config
def command(
    config: str | None, url: str | None, upstream: str | None, port: int | None, host: str | None, mode: str | None
) -> None:
    """Run the gateway: point OPENAI_BASE_URL or ANTHROPIC_BASE_URL at it.

    Requests are passed to the upstream as they are, and answers as they arrive. A conversation that comes near its
    model's context length is folded before it is sent; the next request of the same conversation gets the same fold.
    Originals stay in the store: `midfold sessions` shows them.
    """
    given = {"gateway.upstream": upstream, "gateway.port": port, "gateway.host": host, "gateway.mode": mode}
    known = engine_settings(config, {key: value for key, value in given.items() if value is not None})
    try:
        from midfold.gateway import create_app
        from midfold.gateway.operating import Operations, check_door
        from midfold.gateway.server import LateRoutes
        from midfold.pages import Recorder

        run = make_server(known)
    except ImportError:
        raise MissingExtra("midfold serve", "gateway") from None
    if any(find_spec(name) is None for name in LATER_IMPORTED):
        raise MissingExtra("midfold serve", "gateway")
    check_door(known)
    address = url or store_url(known, os.environ)
    with open_sessions(address, config=known, lease_seconds=known.store.lease_seconds) as sessions:
        operations, recorder = Operations(known, sessions), Recorder(sessions)
        told = "Requests that the pages lack, because the store was too slow."
        operations.figures.gauge("midfold_unrecorded_requests", told, lambda: recorder.dropped)
        pages = LateRoutes(OWN_PATHS, lambda: [*operations.routes(), *_pages(known, sessions)])
        app = create_app(known, sessions=sessions, later=pages)
        if known.gateway.record == "all":
            app.gateway.watchers.append(recorder.see)
        else:
            app.gateway.accountants.append(recorder)
        for text in app.gateway.recall.engine_tools.notices if app.gateway.recall is not None else ():
            notice(text)
        _greet(known, sessions)
        # uvicorn finishes its streams on SIGTERM and then sends itself the signal again: that one is ours to ignore.
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        try:
            run(operations.around(app))
        finally:
            recorder.close()


def make_server(config: Config) -> Callable[[Any], None]:
    """How uvicorn runs the gateway: headers are the upstream's own, and nothing is logged that was said."""
    import uvicorn

    from midfold.gateway.server import PatientProtocol

    return partial(
        uvicorn.run,
        http=PatientProtocol,
        host=config.gateway.host,
        port=config.gateway.port,
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=30,
    )


def _pages(config: Config, sessions: Sessions) -> list[Any]:
    """Pages and /api; with keys, everybody sees their own sessions."""
    from midfold.gateway.browsers import Browsers
    from midfold.pages import Everything, Under, routes

    if config.keys:
        return list(routes(sessions, config=config, access=Under(lambda request: _own(request.scope["state"]))))
    return list(routes(sessions, config=config, access=Everything(Browsers.of(config).hosts)))


def _own(state: Any) -> str:
    """What the names of a caller's sessions begin with."""
    return f"{state['owner'].name}/"


def _writer(config: Config) -> str:
    """Who writes summaries: with `main` that is another model for each conversation."""
    task = config.auxiliary.compression
    if task.provider == "main":
        return f"{task.model or 'the model of each conversation'} (auxiliary.compression.provider is main)"
    return resolve(config, os.environ, None).description


def _caching_lines(config: Config) -> Iterator[str]:
    """Whether requests are marked for the caches of the upstreams, and why or why not: each line once."""
    settings = config.prompt_caching
    bases = [config.gateway.upstream, *(row.base_url for row in config.upstreams.values())]
    passed = config.gateway.mode == "passthrough"
    lines: dict[str, None] = {}
    for base in filter(None, bases):
        provider = provider_of(base)
        dialect = "" if provider else "anthropic"
        # Which models will be asked for is not known yet: Claude where it would be marked.
        known = "claude" if caching_applies(provider, "claude", settings.enabled, dialect) else None
        named = provider or urlsplit(base).netloc.rpartition("@")[2]
        lines[status_line(named, known, settings.cache_ttl, settings.enabled, dialect)] = None
    sign = SIGN if (sys.stderr.encoding or "").lower().startswith("utf") else ""
    if passed:
        yield f"{sign}Prompt caching: DISABLED (gateway.mode is passthrough)"
        return
    yield from (f"{sign}{line.removeprefix(SIGN)}" for line in lines)


def _greet(config: Config, sessions: Sessions) -> None:
    gateway = config.gateway
    place = f"http://{gateway.host}:{gateway.port}"
    targets = [gateway.upstream] if gateway.upstream else []
    targets += [f"{pattern} -> {row.base_url}" for pattern, row in config.upstreams.items()]
    notice(f"listening on {place}, mode {gateway.mode}; upstream: {', '.join(map(str, targets))}")
    notice(f"folded conversations are kept in {sessions.store.where}")
    notice(f"summaries by {_writer(config)}")
    for line in _caching_lines(config):
        notice(line)
    notice(f"pages: {place}/  figures: {place}/metrics")
    notice(f"OPENAI_BASE_URL={place}/v1  ANTHROPIC_BASE_URL={place}")
