"""`midfold eval`: what compactions keep, measured by the real future of transcripts."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from midfold.cli import eval_table
from midfold.cli.output import console, emit_json, notice
from midfold.cli.progress import bar
from midfold.errors import TranscriptError
from midfold.lab.compactors import DEFAULT_METHODS, METHODS, Compactor, load_compactor
from midfold.lab.exams import recall_search
from midfold.lab.recorded_sessions import LEAST_PAST, Places, Split
from midfold.lab.retention import Evaluation, evaluate, retention_chart


def _budgets(context: click.Context, parameter: click.Parameter, value: str) -> tuple[float, ...]:
    """Percentages, separated by commas, as shares."""
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
    "--budgets", callback=_budgets, default="5,10,20", show_default=True, metavar="LIST", help="Per cent of the past."
)
@click.option(
    "--methods", default=",".join(DEFAULT_METHODS), show_default=True, metavar="NAMES", help="Built-in methods, or all."
)
@click.option("--method", "plugged", multiple=True, metavar="NAME=MODULE:FUNCTION", help="A compactor of your own.")
@click.option("--split", type=click.Choice(["all", "train", "held"]), default="all", help="Half of the conversations.")
@click.option(
    "--at",
    type=click.Choice(["steps", "compactions"]),
    default="steps",
    help="Cut between steps, or where the agent itself compacted; there the method `recorded` is its own summary.",
)
@click.option(
    "--least-past", type=click.IntRange(min=1), default=LEAST_PAST, show_default=True, help="Tokens before a cut."
)
@click.option("--no-search", is_flag=True, help="Leave out the search over the past.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draws that make the intervals.")
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Processes; default: the processors there are."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="OUT.svg", help="Draw a chart.")
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
    as_json: bool,
) -> None:
    """Measure what compactions keep of the facts that the rest of a transcript really used.

    FILES are transcripts, or folders of them. Long sessions are cut at several places; each method compacts
    what stands before a cut to each budget, and is judged by what the assistant wrote after it. A compactor of your own
    is a function (messages, target_tokens) -> messages.
    """
    with bar("cuts") as progress:
        result = evaluate(
            list(files_of(files)),
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
        plot.write_text(retention_chart(result.figures, subtitle=eval_table.basis(result)), encoding="utf-8")
        notice(f"chart written to {plot}")
    if as_json:
        emit_json(facts(result, split=split, at=at, seed=seed))
    else:
        eval_table.show(console(), result)


def files_of(names: tuple[str, ...]) -> Iterator[str]:
    for name in names:
        if not Path(name).is_dir():
            yield name
            continue
        found = sorted(Path(name).rglob("*.jsonl")) or sorted(Path(name).rglob("*.json"))
        if not found:
            raise TranscriptError(f"{name} is a folder without .jsonl or .json files")
        yield from map(str, found)


def _methods(names: str, plugged: tuple[str, ...]) -> dict[str, str | Compactor]:
    listed = [name.strip() for name in names.split(",") if name.strip()]
    chosen: dict[str, str | Compactor] = {name: name for name in (METHODS if listed == ["all"] else listed)}
    chosen.update(load_compactor(text) for text in plugged)
    return chosen


def facts(result: Evaluation, *, split: str, at: str, seed: int) -> dict[str, Any]:
    """Everything that was measured, as plain values; no message content."""
    return {
        "conversations": result.conversations,
        "cuts": result.cuts,
        "needed_facts": result.needed,
        "split": split,
        "at": at,
        "seed": seed,
        "figures": [msgspec.to_builtins(figure) for figure in result.figures],
    }
