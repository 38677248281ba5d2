"""`midfold eval`: measure what compactions keep, against what the rest of the transcript used."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from midfold.cli.options import files_of, with_plot, with_split, with_stored_config, with_workers
from midfold.cli.outputs import check_picture, write_picture
from midfold.cli.terminal import console, emit_json, make_table, make_text, notice, progress_bar, show_work
from midfold.lab.compactors import DEFAULT_METHODS, METHODS, Compactor, load_compactor
from midfold.lab.recorded_sessions import LEAST_PAST, Places, Split, load_sessions
from midfold.lab.retention import Evaluation, Figure, evaluate, retention_chart
from midfold.lab.retention_score import recall_search

DETAILS = {"hard": "hard", "far": "far", "action": "action", "searched": "+ search", "demands": "demands"}
LEGEND = (
    "bound: needed facts kept together with words that identify them; 95 % intervals over conversations in brackets",
    "hard: paths, ids, hashes, URLs, numbers   far: last mentioned in the first 70 % of the past",
    "action: used in tool calls   + search: with one search per step that needs facts",
    "demands: user sentences with must, never, always, don't, prefer or only that were kept verbatim",
)


def _budgets(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    """Parse comma-separated percentages into fractions."""
    try:
        budgets = {float(part) / 100 for part in value.split(",")}
    except ValueError:
        raise click.BadParameter(f"expected percentages such as 5,10,20, found {value}") from None
    if not all(0 < budget <= 1 for budget in budgets):
        raise click.BadParameter(f"expected percentages above 0 and up to 100, found {value}")
    return tuple(sorted(budgets))


@click.command(name="eval")
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option(
    "--budgets",
    callback=_budgets,
    default="5,10,20",
    show_default=True,
    metavar="LIST",
    help="Budgets in percent of the past.",
)
@click.option(
    "--methods", default=",".join(DEFAULT_METHODS), show_default=True, metavar="NAMES", help="Built-in methods, or all."
)
@click.option("--method", "plugged", multiple=True, metavar="NAME=MODULE:FUNCTION", help="Custom compactor.")
@with_split
@click.option(
    "--at",
    type=click.Choice(["steps", "compactions"]),
    default="steps",
    help="Cut between steps, or where the agent compacted; there the method `recorded` is the agent's own summary.",
)
@click.option(
    "--least-past",
    type=click.IntRange(min=1),
    default=LEAST_PAST,
    show_default=True,
    help="Minimum tokens before a cut.",
)
@click.option("--no-search", is_flag=True, help="Skip the search over the past.")
@click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the intervals.")
@with_workers
@with_plot
@with_stored_config
@click.option("--json", "as_json", is_flag=True, help="Write JSON: every figure with its interval.")
def command(
    files: tuple[str, ...],
    budgets: tuple[float, ...],
    methods: str,
    plugged: tuple[str, ...],
    split: Split,
    at: Places,
    least_past: int,
    no_search: bool,
    seed: int,
    workers: int | None,
    plot: Path | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Measure how many of the facts used later in a transcript a compaction keeps.

    FILES are transcripts, coding agent logs, folders of them, or stored sessions (session:NAME). Long sessions are
    cut at several places; each method compacts the part before a cut to each budget and is scored against what the
    assistant wrote after it. A custom compactor is a function (messages, target_tokens) -> messages.
    """
    check_picture(plot)
    with show_work("reading"):
        sessions = load_sessions(files_of(files, config), tell=notice)
    with progress_bar("cuts") as progress:
        result = evaluate(
            sessions,
            methods=_methods(methods, plugged),
            budgets=budgets,
            split=split,
            at=at,
            least_past=least_past,
            search=None if no_search else recall_search,
            seed=seed,
            workers=workers or os.cpu_count() or 1,
            progress=progress,
        )
    if plot is not None:
        write_picture(plot, retention_chart(result.figures, subtitle=_basis(result)))
        notice(f"chart written to {plot}")
    if as_json:
        emit_json(_plain(result, split=split, at=at, seed=seed))
    else:
        _show(console(), result)


def _methods(names: str, plugged: tuple[str, ...]) -> dict[str, str | Compactor]:
    listed = [name.strip() for name in names.split(",") if name.strip()]
    chosen: dict[str, str | Compactor] = {name: name for name in (METHODS if listed == ["all"] else listed)}
    chosen.update(load_compactor(text) for text in plugged)
    return chosen


def _plain(result: Evaluation, *, split: str, at: str, seed: int) -> dict[str, Any]:
    """Return all measurements as plain values, without message content."""
    return {
        "conversations": result.conversations,
        "cuts": result.cuts,
        "needed_facts": result.need_count,
        "split": split,
        "at": at,
        "seed": seed,
        "figures": [msgspec.to_builtins(figure) for figure in result.figures],
    }


def _basis(result: Evaluation) -> str:
    counts = {"cut": result.cuts, "conversation": result.conversations, "needed fact": result.need_count}
    cuts, conversations, needed = (f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
    return f"{cuts} of {conversations}, {needed}"


def _show(out: Console, result: Evaluation) -> None:
    out.print(Text(_basis(result), style="bold"))
    out.print()
    out.print(_headline(result.figures))
    out.print()
    out.print(_details(result.figures))
    out.print()
    for line in LEGEND:
        out.print(Text(line, style="dim"))
    over = sum(figure.over for figure in result.figures)
    if over:
        text = f"{over:,} outputs exceed their budget by more than 5 %; their scores are not comparable with the rest."
        out.print(Text(text, style="yellow"))


def _headline(figures: list[Figure]) -> Table:
    budgets = sorted({figure.budget for figure in figures})
    table = make_table("bound recall at", *(f">{budget * 100:g} %" for budget in budgets))
    best = {budget: max(_mean(figure) for figure in figures if figure.budget == budget) for budget in budgets}
    for method in dict.fromkeys(figure.method for figure in figures):
        cells = [
            _cell(figure, best=_mean(figure) == best[figure.budget]) for figure in figures if figure.method == method
        ]
        table.add_row(make_text(method), *cells)
    return table


def _mean(figure: Figure) -> float:
    return figure.measures["bound"].mean


def _cell(figure: Figure, *, best: bool) -> Text:
    bound = figure.measures["bound"]
    cell = Text(f"{bound.mean:.3f}", style="bold green" if best else "bold")
    if bound.low is not None and bound.high is not None:
        cell.append(f" [{bound.low:.3f}-{bound.high:.3f}]", style="dim")
    return cell


def _details(figures: list[Figure]) -> Table:
    columns = ("budget", "used", "over", "bound", *DETAILS.values())
    table = make_table("method", *(f">{name}" for name in columns), keys=2)
    for figure in figures:
        over = Text(f"{figure.over} of {figure.cuts}" if figure.over else "-", style="yellow" if figure.over else "dim")
        shown = [figure.measures.get(name) for name in ("bound", *DETAILS)]
        marks = ["-" if mark is None else f"{mark.mean:.3f}" for mark in shown]
        percent = f"{figure.budget * 100:g} %"
        table.add_row(make_text(figure.method), percent, f"{figure.share:.1%}", over, *marks)
    return table
