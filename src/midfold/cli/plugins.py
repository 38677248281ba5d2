"""`midfold plugins`: list context engines and choose one."""

from __future__ import annotations

import os
import sys
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.text import Text

from midfold import config
from midfold.cli.command_groups import HelpfulGroup
from midfold.cli.options import load_settings, locate_config, with_config_path, with_json
from midfold.cli.terminal import console, echo, emit_json, make_table, notice, pad_rows, visible
from midfold.errors import ConfigError, PluginError
from midfold.plugins import EngineInfo, engines_directory, list_engines, name_problem, resolve_engine

KEY = "context.engine"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """Configured engine and available engines."""

    configured: str
    origin: str
    folder: Path | None
    engines: list[EngineInfo]

    @property
    def active(self) -> str:
        return next(info.name for info in self.engines if info.active)

    def engines_of(self, name: str) -> list[EngineInfo]:
        return [info for info in self.engines if info.name == name]


@click.group(cls=HelpfulGroup, invoke_without_command=True)
@with_config_path("use")
@with_json
@click.pass_context
def command(context: click.Context, file: Path | None, as_json: bool) -> None:
    """List the context engines, show which one is active, and choose another.

    An engine is used only when context.engine in config.yaml names it. Search order: plugins/context_engine/NAME
    beside config.yaml, registered engines, entry points, built-ins.
    """
    context.obj = file
    if context.invoked_subcommand is None:
        _list(_state(file), as_json)
    elif as_json:
        raise click.UsageError("put --json after the subcommand")


def _state(file: Path | None) -> State:
    loaded = load_settings(file)
    folder = None if loaded.config.folder is None else Path(loaded.config.folder)
    configured = loaded.config.context.engine
    engines = list_engines(folder, configured=configured)
    return State(configured=configured, origin=loaded.origins[KEY], folder=folder, engines=engines)


def _list(state: State, as_json: bool) -> None:
    if as_json:
        emit_json(
            {
                "configured": state.configured,
                "origin": state.origin,
                "active": state.active,
                "directory": str(engines_directory(state.folder)) if state.folder else None,
                "engines": msgspec.to_builtins(state.engines),
            }
        )
    elif sys.stdout.isatty():
        _print_table(state)
    else:
        for line in pad_rows([_cells(info) for info in state.engines]):
            echo(line)
    _warn(state)


@command.command(name="list")
@with_config_path("use")
@with_json
@click.pass_obj
def list_(parent: Path | None, file: Path | None, as_json: bool) -> None:
    """List the engines and show which one is active; same as `midfold plugins` alone."""
    _list(_state(file or parent), as_json)


def _cells(info: EngineInfo) -> tuple[str, str, str, str]:
    problem = visible(f"({info.problem})") if info.problem else ""
    return ("*" if info.active else " ", visible(info.name), visible(info.source), problem)


def _print_table(state: State) -> None:
    table = make_table("", "engine", "from", "")
    for info in state.engines:
        style = "bold green" if info.active else "dim" if info.problem else ""
        mark, name, source, problem = _cells(info)
        table.add_row(Text(mark, style=style), Text(name, style=style), Text(source), Text(problem, style="yellow"))
    out = console()
    out.print(table)
    out.print()
    out.print(Text(f"* active; {KEY} is {visible(state.configured)} ({visible(state.origin)}).", style="dim"))


def _warn(state: State) -> None:
    if state.active == state.configured:
        return
    problems = [info.problem for info in state.engines_of(state.configured) if info.problem]
    why = problems[0] if problems else "no engine has that name"
    notice(f"{KEY} is {visible(state.configured)} ({state.origin}), but {why}; using the built-in {state.active}")


@command.command()
@click.argument("name")
@with_config_path("use")
@with_json
@click.option("--load", is_flag=True, help="Import the engine's code and check that it can be used.")
@click.pass_obj
def show(parent: Path | None, name: str, file: Path | None, as_json: bool, load: bool) -> None:
    """Show the source of engine NAME and whether it is active; its code runs only with --load."""
    state = _state(file or parent)
    rows = state.engines_of(name)
    if not rows and not load:
        raise PluginError(_why_unknown(name, state))
    shown: dict[str, Any] = {
        "name": name,
        "active": any(info.active for info in rows),
        "found": [{"source": info.source, "problem": info.problem} for info in rows],
    }
    if load:
        resolved = resolve_engine(name, config_dir=state.folder)
        shown["loaded"] = not resolved.fell_back
        shown["tools"] = [] if resolved.fell_back else [tool.name for tool in resolved.engine.tools()]
        for text in resolved.notices:
            notice(visible(text))
    emit_json(shown) if as_json else _print_engine(shown)
    if load and not shown["loaded"]:
        click.get_current_context().exit(1)


def _print_engine(shown: dict[str, Any]) -> None:
    echo(f"{visible(shown['name'])}: {'active' if shown['active'] else 'not active'}")
    for found in shown["found"]:
        problem = f" ({found['problem']})" if found["problem"] else ""
        echo(visible(f"  from {found['source']}{problem}"))
    if shown.get("loaded"):
        echo(visible(f"  loads; tools for the agent: {', '.join(shown['tools']) or 'none'}"))


@command.command()
@click.argument("name")
@with_config_path("use")
@click.option("--force", is_flag=True, help="Also accept a name that does not exist yet.")
@click.pass_obj
def use(parent: Path | None, name: str, file: Path | None, force: bool) -> None:
    """Make NAME the active engine: set context.engine in config.yaml and leave the rest of the file unchanged."""
    path = locate_config(file or parent)
    if problem := name_problem(name):
        raise PluginError(f'"{visible(name[:80])}" is not a valid engine name: {problem}')
    engines = list_engines(path.parent, configured=name)
    if not any(info.active and info.name == name for info in engines):
        state = State(configured=name, origin="", folder=path.parent, engines=engines)
        if not force:
            raise PluginError(f"{_why_unknown(name, state)}; use --force to set it anyway")
        notice(f"{_why_unknown(name, state)}; the built-in compressor is used until then")
    missing = config.is_missing(path)
    text = "" if missing else config.read_text(path)
    new_text = config.set_value(text, KEY, name, str(path))
    if new_text == text:
        echo(f"{path}: {KEY} is already {name}")
    else:
        if missing:
            _create(path)
        saved = config.write_text(path, new_text, backup=not missing)
        echo(f"{path}: {KEY} is now {name}" + (f"; the old file is {saved}" if saved else ""))
    _warn_if_overridden(path, name)


def _why_unknown(name: str, state: State) -> str:
    rows = state.engines_of(name)
    if rows:
        return f'engine "{name}" cannot be used: {rows[0].problem}'
    usable = list(dict.fromkeys(info.name for info in state.engines if not info.problem))
    close = get_close_matches(name[:80], usable, n=1)
    hint = f'; did you mean "{close[0]}"?' if close else ""
    return f'no engine "{visible(name[:80])}"{hint} (available: {", ".join(usable)})'


def _create(path: Path) -> None:
    """Create an empty file that only its owner can read."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600))
    except OSError as error:
        raise ConfigError(f"{path}: cannot write the configuration: {error.strerror or 'unknown reason'}") from None


def _warn_if_overridden(path: Path, name: str) -> None:
    try:
        loaded = config.load(path)
    except ConfigError as error:
        notice(str(error))
        return
    if loaded.config.context.engine != name:
        notice(f"{KEY} is still {visible(loaded.config.context.engine)}: {loaded.origins[KEY]} overrides the file")
