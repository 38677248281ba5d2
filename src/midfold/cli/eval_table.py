"""What `midfold eval` shows: recall by method and budget, then everything else that was measured."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from midfold.cli.render import clean
from midfold.lab.retention import Evaluation, Figure

DETAILS = {"hard": "hard", "far": "far", "action": "action", "searched": "+ search", "demands": "demands"}
LEGEND = (
    "bound: needed facts kept with words that say what they are; in brackets 95 % intervals over conversations",
    "hard: paths, ids, hashes, URLs, numbers   far: last mentioned more than 30 % of the past ago",
    "action: used in tool calls   + search: with one search by each step that needs facts",
    "demands: sentences of the user with must, never, always, don't, prefer, only that were kept word for word",
)


def basis(result: Evaluation) -> str:
    counts = {"cut": result.cuts, "conversation": result.conversations, "needed fact": result.needed}
    cuts, conversations, needed = (f"{count:,} {name}{'' if count == 1 else 's'}" for name, count in counts.items())
    return f"{cuts} of {conversations}, {needed}"


def show(out: Console, result: Evaluation) -> None:
    out.print(Text(basis(result), style="bold"))
    out.print()
    out.print(_headline(result.figures))
    out.print()
    out.print(_details(result.figures))
    out.print()
    for line in LEGEND:
        out.print(Text(line, style="dim"))
    over = sum(figure.over for figure in result.figures)
    if over:
        text = (
            f"{over:,} outputs are above their budget by more than 5 %: what they keep does not compare with the rest."
        )
        out.print(Text(text, style="yellow"))


def _headline(figures: list[Figure]) -> Table:
    budgets = sorted({figure.budget for figure in figures})
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("bound recall at")
    for budget in budgets:
        table.add_column(f"{budget * 100:g} %", justify="right")
    best = {budget: max(_mean(figure) for figure in figures if figure.budget == budget) for budget in budgets}
    for method in dict.fromkeys(figure.method for figure in figures):
        cells = [
            _cell(figure, best=_mean(figure) == best[figure.budget]) for figure in figures if figure.method == method
        ]
        table.add_row(Text(clean(method)), *cells)
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
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("method")
    for name in ("budget", "used", "over", "bound", *DETAILS.values()):
        table.add_column(name, justify="right")
    for figure in figures:
        over = Text(f"{figure.over} of {figure.cuts}" if figure.over else "-", style="yellow" if figure.over else "dim")
        shown = [figure.measures.get(name) for name in ("bound", *DETAILS)]
        marks = ["-" if mark is None else f"{mark.mean:.3f}" for mark in shown]
        percent = f"{figure.budget * 100:g} %"
        table.add_row(Text(clean(figure.method)), percent, f"{figure.share:.1%}", over, *marks)
    return table
