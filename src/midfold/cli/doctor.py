"""`midfold doctor`: check the installation and settings, and show what midfold would do."""

from __future__ import annotations

import importlib.util
import os
import platform
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from midfold.cli.options import with_config
from midfold.config import Config
from midfold.errors import ConfigError, MidfoldError

if TYPE_CHECKING:
    from midfold.store.usage import WindowBounds

TIMEOUT_SECONDS = 10.0
EXTRAS = {"gateway": "starlette", "models": "httpx2", "postgres": "psycopg", "tokens": "splintr"}
MARKS = {"ok": "✓", "note": "•", "problem": "✗"}


@click.command(name="doctor")
@with_config
@click.option("--model", help="Model of the conversation.")
@click.option(
    "--probe",
    is_flag=True,
    help="Send a test request to the summary model, the upstreams and a running gateway.",
)
@click.option(
    "--client",
    type=click.Choice(["claude", "codex", "opencode"]),
    help="Start this client as `midfold run` does and check that its request arrives; nothing is forwarded.",
)
@click.option(
    "--forget-windows", is_flag=True, help="Delete the model windows that gateways learned from rejected requests."
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.pass_context
def command(
    context: click.Context,
    config: str | None,
    model: str | None,
    probe: bool,
    client: str | None,
    forget_windows: bool,
    as_json: bool,
) -> None:
    """Check settings, store and upstreams, show which summarizer is used, and test a compaction end to end.

    Without --probe nothing is sent; only the host names of upstreams are looked up. Exit code 1 if a check fails.
    """
    checked = _settings(config, model, probe=probe, forget_windows=forget_windows)
    found = [*_installation(), *checked, *_client(client, config)]
    if as_json:
        from midfold.cli.terminal import emit_json

        emit_json([finding._asdict() for finding in found])
    else:
        _show(found)
    if any(finding.status == "problem" for finding in found):
        context.exit(1)


def _show(found: list[Check]) -> None:
    from rich.text import Text

    from midfold.cli.terminal import console, visible

    colours = {"ok": "green", "note": "cyan", "problem": "red"}
    out = console()
    width = max(len(finding.what) for finding in found)
    for what, status, detail in found:
        named = Text(MARKS[status], style=colours[status]) + Text(f" {what:<{width}}", style="bold")
        out.print(named + Text(f"  {visible(detail)}", style="default"), soft_wrap=True)


def _installation() -> list[Check]:
    from midfold import __version__

    have = [name for name, package in EXTRAS.items() if importlib.util.find_spec(package)]
    missing = [name for name in EXTRAS if name not in have]
    detail = f"installed: {', '.join(have) or 'none'}"
    if missing:
        detail += f"; not installed: {', '.join(missing)} (pip install 'midfold[{','.join(missing)}]')"
    return [
        Check("midfold", "ok", f"{__version__} on Python {platform.python_version()}"),
        Check("extras", "ok" if not missing else "note", detail),
    ]


def _settings(path: str | None, model: str | None, *, probe: bool, forget_windows: bool) -> list[Check]:
    from midfold.config import load
    from midfold.errors import ConfigError

    try:
        loaded = load(path)
    except ConfigError as problem:
        return [Check("settings", "problem", str(problem)), _compaction(None)]
    source = str(loaded.path) if loaded.path is not None else "defaults; no file found"
    notes = [Check("settings", "note", text) for text in loaded.notices]
    found = [Check("settings", "ok", source), *notes, *_engine(loaded.config)]
    found += [*_summaries(loaded.config, model, probe=probe), *_server(loaded.config, probe=probe)]
    found += _windows(loaded.config, forget=forget_windows)
    return [*found, _compaction(loaded.config)]


def _engine(config: Config) -> list[Check]:
    from midfold.engines.engine_tools import EngineTools
    from midfold.plugins import configured_engine

    found = configured_engine(config)
    if found.fell_back:
        return [Check("engine", "problem", text) for text in found.notices]
    if faults := EngineTools(found.engine, ()).notices:
        return [Check("engine", "problem", text) for text in faults]
    notes = [Check("engine", "note", text) for text in found.notices]
    return [Check("engine", "ok", f"{config.context.engine} ({found.source})"), *notes]


def _summaries(config: Any, model: str | None, *, probe: bool) -> list[Check]:
    from midfold.errors import ConfigError
    from midfold.model.endpoint import resolve

    try:
        found = resolve(config, os.environ, model)
    except ConfigError as problem:
        return [Check("summaries", "problem", str(problem))]
    if (
        found.missing
        and config.auxiliary.compression.provider == "main"
        and (config.gateway.upstream or config.upstreams)
    ):
        detail = "in the gateway, the model of each conversation with the key of its requests"
        return [Check("summaries", "ok", f"{detail}; elsewhere: {found.description}")]
    if found.endpoint is None:
        status = "problem" if found.missing else "note" if found.unused else "ok"
        return [Check("summaries", status, found.description)]
    if importlib.util.find_spec("httpx2") is None:
        detail = f"{found.description}; the HTTP client is missing: pip install 'midfold[models]'"
        return [Check("summaries", "problem", detail)]
    window = f"window {found.endpoint.context_length:,} tokens, timeout {found.endpoint.timeout:g} s"
    main = f"; retries some failures once with {found.main.model}" if found.main is not None else ""
    findings = [Check("summaries", "ok", f"{found.description}; {window}{main}")]
    return [*findings, _probe(found.endpoint)] if probe else findings


def _probe(endpoint: Any) -> Check:
    from midfold.errors import ModelFailed
    from midfold.model.summarizer import ModelSummarizer
    from midfold.model.summary_call import SummaryCall

    question = SummaryCall(endpoint=endpoint, messages=(("user", "Answer with the word ready."),), max_tokens=64)
    try:
        answer = ModelSummarizer(endpoint).send(question)
    except ModelFailed as failed:
        return Check("probe", "problem", f"{failed.kind}: {failed}")
    return Check("probe", "ok", f"{endpoint.place} responded with {answer.tokens.completion_tokens} tokens")


def _client(name: str | None, path: str | None) -> Iterator[Check]:
    """Check that a client's requests reach a gateway started by `midfold run`."""
    if name is None:
        return
    from midfold.cli.client_probe import probe_client
    from midfold.config import load

    try:
        is_heard, detail = probe_client(name, load(path).config)
    except MidfoldError as error:
        is_heard, detail = False, str(error)
    yield Check("client", "ok" if is_heard else "problem", detail)


def _compaction(config: Config | None) -> Check:
    """Compact an example conversation without a model; check that the result is valid and every original unfolds."""
    from midfold.api import compact
    from midfold.engines.guard import ENGINE_FAILED
    from midfold.plugins import engine_for
    from midfold.transcript.laws import violations

    steps = [{"role": "user", "content": "Go."}]
    for number in range(60):
        steps += [
            {"role": "assistant", "content": f"Step {number}: I look at module {number}."},
            {"role": "user", "content": f"Result {number}: " + "all is well here. " * 30},
        ]
    engine = engine_for(config)
    when, result = (compact(steps, context_length=8_000, engine=engine, force=force) for force in (False, True))
    for detail in (*when.receipt.notices, *result.receipt.notices):
        if detail.startswith(ENGINE_FAILED):
            return Check("compaction", "problem", detail)
    if not result.changed and engine.name != "compressor":
        return Check("compaction", "note", f"engine {engine.name} compacted nothing: {result.receipt.reason}")
    if result.receipt.status != "compacted" or violations(result.transcript):
        return Check("compaction", "problem", f"the example conversation was not compacted: {result.receipt.reason}")
    folded = sum(len(result.archive.originals(handle)) for handle in result.receipt.handles)
    before, after = result.receipt.old_tokens, result.receipt.new_tokens
    return Check("compaction", "ok", f"{before:,} -> {after:,} tokens, {folded} originals unfold")


class Check(NamedTuple):
    """Result of one check."""

    what: str
    status: str
    told: str


def _server(config: Config, *, probe: bool) -> Iterator[Check]:
    """Check the configured store and gateway; send requests only with `probe`."""
    yield from _store(config)
    if config.gateway.upstream is not None or config.upstreams:
        yield from _upstreams(config, probe=probe)
        yield _door(config)
        if probe:
            yield _gateway(config)


def _store(config: Config) -> Iterator[Check]:
    """Check every invariant of an existing store; do not create one."""
    from midfold.config.load import store_url
    from midfold.session.sessions import open_sessions
    from midfold.store.sqlstore import file_of

    try:
        address = config.store.url or store_url(config, os.environ)
        file = file_of(address)
        if file is not None and not Path(file).exists():
            if config.store.url is not None:
                yield _new_store(Path(file))
            return
        with open_sessions(address, config=config) as sessions:
            broken = sessions.check()
            many = len(sessions.store.sessions(1_000))
    except MidfoldError as error:
        yield Check("store", "problem", str(error))
        return
    if broken:
        yield Check("store", "problem", f"{len(broken)} invariants violated; run midfold store check")
    else:
        yield Check("store", "ok", f"{sessions.store.where}: {many:,} sessions, all invariants hold")


def _new_store(file: Path) -> Check:
    """Check that the first session can create the store."""
    folder = next(folder for folder in file.absolute().parents if folder.exists())
    if folder.is_dir() and os.access(folder, os.W_OK):
        return Check("store", "note", f"{file} does not exist yet; the first session creates it")
    return Check("store", "problem", f"{file} cannot be created: no write permission for {folder}")


def _windows(config: Config, *, forget: bool) -> list[Check]:
    """List the model windows that gateways learned from rejected requests, if the store exists."""
    from midfold.config.load import store_url
    from midfold.session.sessions import open_sessions
    from midfold.store.sqlstore import file_of
    from midfold.store.usage import LearnedWindows

    url = store_url(config, os.environ)
    path = file_of(url)
    if path is not None and not Path(path).exists():
        return []
    try:
        with open_sessions(url, config=config) as sessions:
            learned = LearnedWindows(sessions.store.database)
            if forget:
                return [
                    Check("windows", "ok", f"{learned.forget():,} deleted; running gateways follow within a minute")
                ]
            return [Check("window", "note", _describe_window(one)) for one in learned.all(int(time.time() * 1_000))]
    except MidfoldError as error:
        return [Check("windows", "problem", str(error))]


def _describe_window(bounds: WindowBounds) -> str:
    key = f", key {bounds.owner}" if bounds.owner else ""
    beta = f", beta {bounds.beta}" if bounds.beta else ""
    detail = [
        f"an error named {bounds.named:,}" if bounds.named else "",
        f"{bounds.refused:,} was rejected" if bounds.refused else "",
        f"{bounds.fitted:,} was accepted" if bounds.fitted else "",
    ]
    until = datetime.fromtimestamp(bounds.ends / 1_000, UTC).strftime("%Y-%m-%d %H:%M UTC")
    return (
        f"{bounds.model or 'no model'} at {bounds.upstream}{key}{beta}: learned window {bounds.window:,} tokens "
        f"({', '.join(filter(None, detail))}) until {until}; delete with `midfold doctor --forget-windows`"
    )


def _upstreams(config: Config, *, probe: bool) -> Iterator[Check]:
    if importlib.util.find_spec("starlette") is None:
        yield Check("gateway", "problem", "packages are missing: pip install 'midfold[gateway]'")
        return
    from midfold.cli.listening import lookup_problem
    from midfold.gateway.upstream import Upstreams

    try:
        found = Upstreams(config, os.environ)
    except ConfigError as error:
        yield Check("upstreams", "problem", str(error))
        return
    for upstream in found.all():
        key = "the gateway's key" if upstream.key else "the client's own key"
        if probe:
            yield _reach(upstream.base, upstream.place)
        else:
            problem = lookup_problem(upstream.base)
            detail = problem or f"{upstream.place}, API {upstream.wire}, {key}"
            yield Check("upstream", "problem" if problem else "ok", detail)


def _door(config: Config) -> Check:
    from midfold.gateway.metrics import check_access

    try:
        check_access(config)
    except ConfigError as error:
        return Check("access", "problem", str(error))
    who = f"{len(config.keys)} keys" if config.keys else "local access only, no keys"
    return Check("access", "ok", f"{config.gateway.host}:{config.gateway.port}, {who}")


def _gateway(config: Config) -> Check:
    """Check that a gateway runs at the configured address and manages all requests."""
    import httpx2

    settings = config.gateway
    place = f"{'127.0.0.1' if settings.host in ('0.0.0.0', '::') else settings.host}:{settings.port}"
    try:
        detail = httpx2.get(f"http://{place}/readyz", timeout=TIMEOUT_SECONDS, follow_redirects=False).json()
        unmanaged, store = dict(detail.get("unmanaged", {})), detail["store"]
    except (httpx2.HTTPError, OSError):
        return Check("gateway", "note", f"not running at {place}")
    except (ValueError, LookupError, TypeError, AttributeError):
        return Check("gateway", "note", f"the server at {place} is not a midfold gateway")
    if unmanaged:
        return Check("gateway", "problem", _describe_unmanaged(place, unmanaged))
    if store != "ok":
        return Check("gateway", "problem", f"the gateway at {place} is not ready: store reports {store}")
    return Check("gateway", "ok", f"running at {place}, all requests managed")


def _describe_unmanaged(place: str, counts: dict[str, int]) -> str:
    kinds = ", ".join(f"{kind} {count}" for kind, count in sorted(counts.items()))
    return (
        f"the gateway at {place} forwarded {sum(counts.values()):,} requests unmanaged ({kinds}). "
        "If a kind begins with Store, run `midfold store check`; any other is a bug in midfold: please report "
        'it with the lines "a request was passed on as it was" of the gateway\'s log'
    )


def _reach(base: str, place: str) -> Check:
    """Check that an upstream responds; no key is sent, so any response counts."""
    import httpx2

    try:
        status = httpx2.get(base, timeout=TIMEOUT_SECONDS, follow_redirects=False).status_code
    except (httpx2.HTTPError, OSError) as error:
        return Check("upstream", "problem", f"{place} does not respond: {type(error).__name__}")
    return Check("upstream", "ok" if status < 500 else "problem", f"{place} responds ({status})")
