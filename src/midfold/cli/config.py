"""`midfold config`: show, check and migrate the configuration."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from midfold import config
from midfold.cli.command_groups import HelpfulGroup
from midfold.cli.options import load_settings, locate_config, with_config_path
from midfold.cli.terminal import console, echo, emit_json, make_table, notice, pad_rows, visible
from midfold.config.fields import field_at, render, split
from midfold.config.schema import SECTIONS
from midfold.errors import ConfigError

WIDE = 120
WIDEST_KEY = 54
with_flags = click.option(
    "--set",
    "flags",
    metavar="KEY=VALUE",
    multiple=True,
    help="Set a key, as in compression.threshold=0.6; overrides file and environment. Can be repeated.",
)


@click.group(cls=HelpfulGroup)
def command() -> None:
    """Show, check and migrate the configuration.

    Precedence, lowest first: defaults, config.yaml, environment variables such as MIDFOLD_COMPRESSION__THRESHOLD,
    and command-line flags.
    """


@command.command()
@with_config_path("read")
@with_flags
@click.option("--json", "as_json", is_flag=True, help="Print JSON: path, notices, values and origins.")
def show(file: Path | None, flags: tuple[str, ...], as_json: bool) -> None:
    """Show every effective value and its origin."""
    loaded = load_settings(file, _overrides(flags))
    if as_json:
        emit_json(
            {
                "path": str(loaded.path) if loaded.path else None,
                "notices": list(loaded.notices),
                "values": loaded.config.values(),
                "origins": dict(loaded.origins),
            }
        )
        return
    rows = _rows(loaded)
    if sys.stdout.isatty():
        _print_table(rows)
        return
    for line in pad_rows([(*cells, f"# {meaning}") for *cells, meaning in rows]):
        echo(line)


def _overrides(flags: Iterable[str]) -> dict[str, config.FlagText]:
    given = {}
    for flag in flags:
        key, equals, value = flag.partition("=")
        if not equals:
            raise ConfigError("flag --set: found text without =; allowed: KEY=VALUE, as in compression.threshold=0.6")
        given[key.strip()] = config.FlagText(value, "flag --set")
    return given


def _print_table(rows: list[tuple[str, str, str, str]]) -> None:
    """Print a table without truncating: long cells wrap, and the meaning column needs a wide terminal."""
    out = console()
    longest = max(len(key) for key, *_ in rows)
    table = make_table()
    table.add_column("key", overflow="fold", width=min(longest, WIDEST_KEY))
    columns = ["value", "from", "meaning"][: 3 if out.width >= WIDE else 2]
    for name in columns:
        table.add_column(name, overflow="fold")
    for key, value, origin, meaning in rows:
        style = "dim" if origin == "default" else ""
        cells = (Text(value, style="bold"), Text(origin, style=style), Text(meaning, style="dim"))
        table.add_row(Text(key), *cells[: len(columns)])
    out.print(table)


def _rows(loaded: config.Loaded) -> list[tuple[str, str, str, str]]:
    values = loaded.config.values()
    rows = []
    for key, origin in sorted(loaded.origins.items(), key=lambda item: _section(item[0])):
        path = split(key)
        value: Any = values
        for name in path:
            value = value[name]
        field = field_at(path)
        rows.append((key, render(value), origin, field.description if field else ""))
    return rows


def _section(key: str) -> int:
    return SECTIONS.index(split(key)[0])


@command.command()
def schema() -> None:
    """Print a JSON Schema of config.yaml, for editors and validators."""
    emit_json(config.json_schema())


@command.command()
@with_config_path("read")
@with_flags
def check(file: Path | None, flags: tuple[str, ...]) -> None:
    """Check the file, the environment and the flags; print every problem and exit with code 2."""
    loaded = load_settings(file, _overrides(flags))
    echo(f"{loaded.path or 'no configuration file; environment'}: no problems")


@command.command()
@with_config_path("read")
def path(file: Path | None) -> None:
    """Print the path of the configuration file in use."""
    found = locate_config(file)
    echo(str(found))
    if config.is_missing(found):
        notice("this file does not exist")


@command.command()
@with_config_path("read")
@click.option("--dry-run", is_flag=True, help="Show what would change; write nothing.")
@click.option("--no-backup", is_flag=True, help="Do not keep the old file as config.yaml.bak.")
def migrate(file: Path | None, dry_run: bool, no_backup: bool) -> None:
    """Rewrite deprecated keys in the file; comments, order and everything else stay.

    Prints a diff. The file is replaced atomically and keeps its mode.
    """
    found = config.locate(file)
    named = file is not None or config.read_environment().path is not None
    if found is None or (not named and config.is_missing(found)):
        echo("no configuration file: nothing to migrate")
        return
    text = config.read_text(found)
    new_text, notices = config.migrate(text, str(found))
    if new_text == text:
        echo(f"{found}: nothing to migrate")
        return
    for line in notices:
        notice(line)
    _print_diff(text, new_text, found)
    if dry_run:
        notice("dry run: nothing written")
        return
    saved = config.write_text(found, new_text, backup=not no_backup)
    notice(f"{found} rewritten" + (f"; the old file is {saved}" if saved else ""))


def _print_diff(old: str, new: str, file: Path) -> None:
    before, after = (text.splitlines() for text in (old, new))
    for line in difflib.unified_diff(before, after, f"{file} (before)", f"{file} (after)", lineterm=""):
        colour = {"-": "red", "+": "green", "@": "cyan"}.get(line[:1])
        click.echo(click.style(visible(line), fg=colour) if colour else visible(line))
