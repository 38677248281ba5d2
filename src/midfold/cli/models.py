"""`midfold models [NAME]`: show the facts known about models and their source."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import groupby

import click
import msgspec
from rich.console import Console
from rich.text import Text

from midfold.cli.options import settings, with_json
from midfold.cli.terminal import console, echo, emit_json, make_table
from midfold.models import DEFAULT, FIELDS, TABLE, Belief, Model, ModelOverride, look_up

LABELS = {
    "context_window": "context window",
    "max_output": "maximum output",
    "max_input": "maximum input, if below the window",
    "tokenizer": "tokenizer",
    "factor": "tokens relative to o200k",
    "message_overhead": "added per message",
    "cache_minimum": "shortest cached prefix",
    "input_price": "input, $ per million",
    "output_price": "output, $ per million",
    "cache_read": "cache read, x input",
    "cache_write_5m": "cache write 5m, x input",
    "cache_write_1h": "cache write 1h, x input",
}
FITTING = ((86, 8), (66, 6), (0, 5))
"""Minimum terminal width and number of columns to show; cache prices are dropped first."""
COLUMNS = ("pattern", "window", "output", "$ in", "$ out", "read x", "write x", "1h x")


@click.command()
@click.argument("name", required=False)
@click.option("--filter", "part", metavar="TEXT", default="", help="Only rows whose pattern or source contains TEXT.")
@click.option("--config", "path", metavar="FILE", help="Read overrides from FILE instead of the usual config.yaml.")
@with_json
def command(name: str | None, part: str, path: str | None, as_json: bool) -> None:
    """List known models: context window, tokenizer, prices. With NAME, show one model and the source of each value."""
    if name is not None and part:
        raise click.UsageError("NAME and --filter cannot be combined")
    overrides = settings(path).models
    if name is None:
        _show_table(overrides, part.casefold(), as_json)
        return
    belief = look_up(name, overrides)
    if as_json:
        emit_json(msgspec.to_builtins(belief))
        return
    _show_belief(belief)


def number(value: int | float | str | None) -> str:
    """Format a value for people: 1,050,000, 0.1, unknown."""
    if value is None:
        return "unknown"
    if isinstance(value, int):
        return f"{value:,}"
    return value if isinstance(value, str) else f"{value:g}"


def heading(model: Model) -> tuple[str, str]:
    """Return source and tokenizer facts, which the rows of a group share."""
    cached = f"cached from {model.cache_minimum:,}" if model.cache_minimum else "shortest cached prefix unknown"
    assumed = f"; assumed: {', '.join(model.assumed)}" if model.assumed else ""
    tokens = f"tokenizer {model.tokenizer} x{model.factor:g}, +{model.message_overhead} per message, {cached}"
    return f"{model.source}, {model.as_of}", f"{tokens}{assumed}"


def groups(part: str = "") -> Iterator[tuple[str, str, list[Model]]]:
    """Yield the table in groups; `part` filters rows by pattern or source."""
    for (source, tokens), rows in groupby((row for row in TABLE if _has(row, part)), heading):
        yield source, tokens, list(rows)


def _has(model: Model, part: str) -> bool:
    return part in model.pattern.casefold() or part in model.source.casefold()


def cells(model: Model) -> tuple[str, ...]:
    """Return one row for `COLUMNS`; unknown values are dashes."""
    values = (
        model.context_window,
        model.max_output,
        model.input_price,
        model.output_price,
        model.cache_read,
        model.cache_write_5m,
        model.cache_write_1h,
    )
    return (model.pattern, *("-" if value is None else number(value) for value in values))


def _show_table(overrides: Mapping[str, ModelOverride], part: str, as_json: bool) -> None:
    overrides = {pattern: override for pattern, override in overrides.items() if part in pattern.casefold()}
    if as_json:
        emit_json(
            {
                "models": msgspec.to_builtins([row for row in TABLE if _has(row, part)]),
                "default": msgspec.to_builtins(DEFAULT),
                "overrides": {pattern: set_fields(override) for pattern, override in overrides.items()},
            }
        )
        return
    out = console()
    for source, tokens, rows in groups(part):
        table = make_table(header_style="dim")
        shown = COLUMNS[: next(count for width, count in FITTING if out.width >= width)]
        for index, column in enumerate(shown):
            roomy = 26 if shown == COLUMNS else 0
            table.add_column(column, justify="right" if index else "left", min_width=0 if index else roomy)
        for row in rows:
            table.add_row(*map(Text, cells(row)[: len(shown)]))
        out.print(Text(source, style="bold"))
        out.print(Text(tokens, style="dim"))
        out.print(table)
        out.print()
    _show_overrides(out, overrides)
    stated = f"{DEFAULT.context_window:,} tokens of context, {DEFAULT.max_output:,} of output"
    out.print(Text(f"Any other model: {stated} (default; see `midfold models NAME`)."))


def set_fields(override: ModelOverride) -> dict[str, int | float | str]:
    """Return the fields that an override sets."""
    values = {field: getattr(override, field) for field in ModelOverride.__struct_fields__}
    return {field: value for field, value in values.items() if value is not None}


def _show_overrides(out: Console, overrides: Mapping[str, ModelOverride]) -> None:
    if not overrides:
        return
    out.print(Text("Overrides from your configuration", style="bold"))
    table = make_table(header_style="dim")
    table.add_column("pattern", overflow="fold", min_width=26)
    table.add_column("sets", overflow="fold")
    for pattern, override in overrides.items():
        settings = ", ".join(f"{field} {number(value)}" for field, value in set_fields(override).items())
        table.add_row(Text(pattern), Text(settings or "nothing"))
    out.print(table)
    out.print()


def _show_belief(belief: Belief) -> None:
    out = console()
    table = make_table("", "", "", show_header=False)
    for field in FIELDS:
        value = number(getattr(belief.model, field))
        table.add_row(Text(LABELS[field]), Text(value), Text(belief.fields[field], style="dim"))
    out.print(Text(belief.name, style="bold"))
    out.print(table)
    out.print()
    out.print(Text(belief.why))
    if not belief.known:
        out.print(Text("To override, set in config.yaml:"))
        pattern = json.dumps(belief.name, ensure_ascii=False)
        echo(f"\nmodels:\n  {pattern}:\n    context_window: {belief.model.context_window}")
