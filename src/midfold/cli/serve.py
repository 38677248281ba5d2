"""`midfold serve`: run the gateway between agents and providers."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import click

from midfold.cache.breakpoints import SIGN, caching_applies, provider_of, status_line
from midfold.cli import signals
from midfold.cli.listening import listen, lookup_problem
from midfold.cli.options import engine_settings, short_id, with_config
from midfold.cli.terminal import notice
from midfold.config import Config
from midfold.errors import MissingExtra, StoreError
from midfold.model.endpoint import resolve
from midfold.session.sessions import Sessions, open_sessions

if TYPE_CHECKING:
    import uvicorn

    from midfold.gateway.access import GuardedGateway
    from midfold.gateway.exchange import RequestAccount
    from midfold.pages import Recorder

FOLDS = frozenset(("compacted", "pruned", "recovered"))
OWN_PATHS = (
    "/",
    *("/api/cache", "/api/openapi.json", "/api/overview", "/api/search", "/api/sessions"),
    *("/assets", "/cache", "/metrics", "/readyz", "/search", "/sessions"),
)
"""Path prefixes of pages and metrics, which are created at the first request for one of them.

Other paths under /api belong to the provider.
"""
LATER_IMPORTED = ("aiohttp", "jinja2", "starlette")


@click.command()
@click.option("--upstream", metavar="URL", help="Base URL of the provider, such as https://api.openai.com.")
@click.option("--port", type=click.IntRange(1, 65_535), help="Port to listen on; default 8787.")
@click.option("--host", metavar="ADDRESS", help="Address to listen on; default 127.0.0.1.")
@click.option(
    "--mode",
    type=click.Choice(["hygiene", "manage", "passthrough"]),
    help="Compact at 85 % of the context length (the default), at compression.threshold, or never.",
)
@click.option(
    "--store", "url", metavar="URL", help="Store of compacted conversations: sqlite:///PATH, postgresql://..."
)
@click.option("-q", "--quiet", is_flag=True, help="Do not report each compaction.")
@with_config
def command(
    config: str | None,
    url: str | None,
    upstream: str | None,
    port: int | None,
    host: str | None,
    mode: str | None,
    quiet: bool,
) -> None:
    """Run the gateway: point OPENAI_BASE_URL or ANTHROPIC_BASE_URL at it.

    Requests are forwarded unchanged and responses are streamed. A conversation that comes near its model's context
    length is compacted before it is sent; later requests of the conversation reuse the result. Each compaction is
    reported in one line. Originals stay in the store: see `midfold sessions`.
    """
    given = {"gateway.upstream": upstream, "gateway.port": port, "gateway.host": host, "gateway.mode": mode}
    known = engine_settings(config, {key: value for key, value in given.items() if value is not None})
    try:
        from midfold.gateway.garbage import quiet_collections
        from midfold.gateway.metrics import check_access
        from midfold.pages import Recorder

        server_of = make_server(known)
    except ImportError:
        raise MissingExtra("midfold serve", "gateway") from None
    check_packages("midfold serve")
    check_access(known)
    sockets = listen(known.gateway.host, known.gateway.port)
    with open_sessions(url, config=known) as sessions:
        recorder = Recorder(sessions)
        app, door = guarded_gateway(known, sessions, recorder)
        reporter = FoldReporter(sessions)
        if not quiet:
            app.gateway.accountants.append(reporter)
        for text in app.gateway.recall.engine_tools.notices if app.gateway.recall is not None else ():
            notice(text)
        _greet(known, sessions)
        Thread(target=_warn_unknown_hosts, args=(known,), daemon=True).start()
        try:
            with quiet_collections(lambda: door.held.total):
                signals.serve(server_of(door), sockets)
        finally:
            recorder.close()
            reporter.close()


class FoldReporter:
    """Accountant that prints one line for each compaction, on its own thread because it reads the store."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self._thread = ThreadPoolExecutor(1, "midfold-folds")

    def __call__(self, account: RequestAccount) -> None:
        if account.action in FOLDS and account.session is not None:
            self._thread.submit(self._report, account.session, account.tokens_before, account.tokens_after)

    def close(self) -> None:
        """Print the remaining lines."""
        self._thread.shutdown()

    def _report(self, name: str, before: int | None, after: int | None) -> None:
        title, why = "", ""
        try:
            info = self.sessions.store.must(name)
            title = self.sessions.title(info)
            why = next(
                (row.receipt.reason for row in self.sessions.store.records(name) if row.seq == info.compaction), ""
            )
        except StoreError as error:
            why = type(error).__name__
        named = f"{short_id(name)} ({title})" if title else short_id(name)
        notice(f"compacted {named}: {before or 0:,} -> {after or 0:,} tokens{f'; {why}' if why else ''}")


def check_packages(command: str) -> None:
    """Raise if a package that is imported later is missing, before anything listens."""
    if any(find_spec(name) is None for name in LATER_IMPORTED):
        raise MissingExtra(command, "gateway")


def guarded_gateway(config: Config, sessions: Sessions, recorder: Recorder) -> GuardedGateway:
    """Return a gateway with pages, metrics and recorder, behind access control."""
    from midfold.gateway import create_app
    from midfold.gateway.access import GuardedGateway
    from midfold.gateway.metrics import Operations
    from midfold.gateway.server import LateRoutes

    operations = Operations(config, sessions)
    help_text = "Requests missing from the pages because the store was too slow."
    operations.figures.gauge("midfold_unrecorded_requests", help_text, lambda: recorder.dropped)
    pages = LateRoutes(OWN_PATHS, lambda: [*operations.routes(), *_pages(config, sessions)])
    app = create_app(config, sessions=sessions, later=pages)
    if config.gateway.record == "all":
        app.gateway.watchers.append(recorder.see)
    else:
        app.gateway.accountants.append(recorder)
    return GuardedGateway(app, operations.around(app))


def make_server(config: Config) -> Callable[[Any], uvicorn.Server]:
    """Return a factory of uvicorn servers that add no headers and log no content."""
    import uvicorn

    from midfold.gateway.server import PatientProtocol

    def server_of(app: Any) -> uvicorn.Server:
        settings = uvicorn.Config(
            app,
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
        return uvicorn.Server(settings)

    return server_of


def _pages(config: Config, sessions: Sessions) -> list[Any]:
    """Return the routes of pages and /api; with keys, each key sees only its own sessions."""
    from midfold.gateway.browsers import Browsers
    from midfold.pages import Everything, Under, routes

    if config.keys:
        return list(routes(sessions, config=config, access=Under(lambda request: _own(request.scope["state"]))))
    return list(routes(sessions, config=config, access=Everything(Browsers.of(config).hosts)))


def _own(state: Any) -> str:
    """Return the name prefix of a caller's sessions."""
    return f"{state['owner'].name}/"


def _writer(config: Config) -> str:
    """Describe the summarizer; with `main` it is the model of each conversation."""
    task = config.auxiliary.compression
    if task.provider == "main":
        return f"{task.model or 'the model of each conversation'} (auxiliary.compression.provider is main)"
    return resolve(config, os.environ, None).description


def _caching_lines(config: Config) -> Iterator[str]:
    """Yield the distinct prompt-caching status lines of the upstreams."""
    settings = config.prompt_caching
    passed = config.gateway.mode == "passthrough"
    lines: dict[str, None] = {}
    for base in _bases(config):
        provider = provider_of(base)
        dialect = "" if provider else "anthropic"
        # The models are not known yet; assume Claude if it would be marked.
        known = "claude" if caching_applies(provider, "claude", settings.enabled, dialect) else None
        named = provider or urlsplit(base).netloc.rpartition("@")[2]
        lines[status_line(named, known, settings.cache_ttl, settings.enabled, dialect)] = None
    sign = SIGN if (sys.stderr.encoding or "").lower().startswith("utf") else ""
    if passed:
        yield f"{sign}Prompt caching: DISABLED (gateway.mode is passthrough)"
        return
    yield from (f"{sign}{line.removeprefix(SIGN)}" for line in lines)


def _warn_unknown_hosts(config: Config) -> None:
    """Print upstream host names that cannot be resolved; they may become valid later, so the gateway keeps running."""
    for base in _bases(config):
        if problem := lookup_problem(base):
            notice(f"upstream {base}: {problem}; requests to it will fail")


def _bases(config: Config) -> list[str]:
    return [*filter(None, [config.gateway.upstream, *(row.base_url for row in config.upstreams.values())])]


def _greet(config: Config, sessions: Sessions) -> None:
    gateway = config.gateway
    place = f"http://{gateway.host}:{gateway.port}"
    targets = [gateway.upstream] if gateway.upstream else []
    targets += [f"{pattern} -> {row.base_url}" for pattern, row in config.upstreams.items()]
    notice(f"listening on {place}, mode {gateway.mode}; upstream: {', '.join(map(str, targets))}")
    notice(f"store of compacted conversations: {sessions.store.where}")
    notice(f"summaries: {_writer(config)}")
    for line in _caching_lines(config):
        notice(line)
    notice(f"pages: {place}/  metrics: {place}/metrics")
    notice(f"OPENAI_BASE_URL={place}/v1  ANTHROPIC_BASE_URL={place}")
