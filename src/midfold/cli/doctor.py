"""`midfold doctor`: what midfold would do here, and why; and whether it works."""

from __future__ import annotations

import importlib.util
import os
import platform
from typing import TYPE_CHECKING, Any

import click

from midfold.cli.doctor_server import Finding, findings

if TYPE_CHECKING:
    from midfold.config import Config

EXTRAS = {"gateway": "starlette", "models": "httpx2", "postgres": "psycopg", "tokens": "splintr"}
MARKS = {"ok": "✓", "note": "•", "problem": "✗"}


@click.command(name="doctor")
@click.option("--config", metavar="FILE", help="Read settings from this file.")
@click.option("--model", help="The conversation's own model.")
@click.option(
    "--probe",
    is_flag=True,
    help="Ask the summary model for a few words, upstreams whether they answer, and a running gateway how it is.",
)
@click.option("--json", "as_json", is_flag=True, help="Write JSON.")
@click.pass_context
def command(context: click.Context, config: str | None, model: str | None, probe: bool, as_json: bool) -> None:
    """Check settings, store and upstreams, say who would summarise, and prove a compaction from end to end.

    Nothing is sent anywhere without --probe. Exit code 1 if something is wrong.
    """
    found = [*_installation(), *_settings(config, model, probe=probe)]
    if as_json:
        from midfold.cli.output import emit_json

        emit_json([finding._asdict() for finding in found])
    else:
        _show(found)
    if any(finding.status == "problem" for finding in found):
        context.exit(1)


def _show(found: list[Finding]) -> None:
    from rich.text import Text

    from midfold.cli.output import console
    from midfold.cli.render import clean

    colours = {"ok": "green", "note": "cyan", "problem": "red"}
    out = console()
    width = max(len(finding.what) for finding in found)
    for what, status, told in found:
        named = Text(MARKS[status], style=colours[status]) + Text(f" {what:<{width}}", style="bold")
        out.print(named + Text(f"  {clean(told)}", style="default"), soft_wrap=True)


def _installation() -> list[Finding]:
    from midfold import __version__

    have = [name for name, package in EXTRAS.items() if importlib.util.find_spec(package)]
    missing = [name for name in EXTRAS if name not in have]
    told = f"installed: {', '.join(have) or 'none'}"
    if missing:
        told += f"; not installed: {', '.join(missing)} (pip install 'midfold[{','.join(missing)}]')"
    return [
        Finding("midfold", "ok", f"{__version__} on Python {platform.python_version()}"),
        Finding("extras", "ok" if not missing else "note", told),
    ]


def _settings(path: str | None, model: str | None, *, probe: bool) -> list[Finding]:
    from midfold.config import load
    from midfold.errors import ConfigError

    try:
        loaded = load(path)
    except ConfigError as problem:
        return [Finding("settings", "problem", str(problem)), _compaction(None)]
    source = str(loaded.path) if loaded.path is not None else "defaults; no file was found"
    notes = [Finding("settings", "note", text) for text in loaded.notices]
    found = [Finding("settings", "ok", source), *notes, *_engine(loaded.config)]
    found += [*_summaries(loaded.config, model, probe=probe), *findings(loaded.config, probe=probe)]
    return [*found, _compaction(loaded.config)]


def _engine(config: Config) -> list[Finding]:
    from midfold.plugins import configured_engine

    found = configured_engine(config)
    if found.fell_back:
        return [Finding("engine", "problem", text) for text in found.notices]
    notes = [Finding("engine", "note", text) for text in found.notices]
    return [Finding("engine", "ok", f"{config.context.engine} ({found.source})"), *notes]


def _summaries(config: Any, model: str | None, *, probe: bool) -> list[Finding]:
    from midfold.errors import ConfigError
    from midfold.model.endpoint import resolve

    try:
        found = resolve(config, os.environ, model)
    except ConfigError as problem:
        return [Finding("summaries", "problem", str(problem))]
    if found.endpoint is None:
        status = "problem" if found.missing else "note" if found.unused else "ok"
        return [Finding("summaries", status, found.description)]
    if importlib.util.find_spec("httpx2") is None:
        told = f"{found.description}, but the HTTP client is missing: pip install 'midfold[models]'"
        return [Finding("summaries", "problem", told)]
    window = f"window {found.endpoint.context_length:,} tokens, timeout {found.endpoint.timeout:g} s"
    main = f"; after some failures {found.main.model} once" if found.main is not None else ""
    findings = [Finding("summaries", "ok", f"{found.description}; {window}{main}")]
    return [*findings, _probed(found.endpoint)] if probe else findings


def _probed(endpoint: Any) -> Finding:
    from midfold.errors import ModelFailed
    from midfold.model.summaries import ModelSummarizer, SummaryCall

    question = SummaryCall(endpoint=endpoint, messages=(("user", "Answer with the word ready."),), max_tokens=64)
    try:
        answer = ModelSummarizer(endpoint).send(question)
    except ModelFailed as failed:
        return Finding("probe", "problem", f"{failed.kind}: {failed}")
    return Finding("probe", "ok", f"{endpoint.place} answered, {answer.tokens.completion_tokens} tokens")


def _compaction(config: Config | None) -> Finding:
    """A fold of a made-up conversation: legal, smaller, and every original can be unfolded. No model is asked."""
    from midfold.api import compact
    from midfold.fold.redact import redact
    from midfold.plugins import engine_for
    from midfold.transcript.laws import violations

    steps = [{"role": "user", "content": "Go."}]
    for number in range(60):
        steps += [
            {"role": "assistant", "content": f"Step {number}: I look at module {number}."},
            {"role": "user", "content": f"Result {number}: " + "all is well here. " * 30},
        ]
    engine = engine_for(config)
    try:
        result = compact(steps, context_length=8_000, engine=engine)
    except Exception as error:  # noqa: BLE001 - a plugin may raise anything; that is what is asked here
        told = f"the engine {engine.name} failed: {type(error).__name__}: {redact(str(error))[:300]}"
        return Finding("compaction", "problem", told)
    if not result.changed and engine.name != "compressor":
        return Finding("compaction", "note", f"the engine {engine.name} folded nothing: {result.receipt.reason}")
    if result.receipt.status != "compacted" or violations(result.transcript):
        return Finding("compaction", "problem", f"a made-up conversation was not folded: {result.receipt.reason}")
    folded = sum(len(result.archive.originals(handle)) for handle in result.receipt.handles)
    before, after = result.receipt.old_tokens, result.receipt.new_tokens
    return Finding("compaction", "ok", f"{before:,} -> {after:,} tokens, {folded} originals can be unfolded")
