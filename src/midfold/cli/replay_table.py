"""What `midfold replay` shows: cost and retention by policy and window, then where the last policy lost most."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table
from rich.text import Text

from midfold.cli.render import clean
from midfold.lab.replays import PolicyTotal, Replay

MOST_WORST = 5
LEGEND = (
    "sent, read, written: million tokens; hit: share read from the cache; cost: with summaries, without answers",
    "kept: share of the facts that the rest of the transcript used and that the view held when it was asked",
    "over: transcripts in which a request was larger than the window, which a real provider refuses",
)


def basis(result: Replay) -> str:
    prices = result.prices
    what = f"{result.recordings:,} transcripts ({result.timed:,} with recorded times), {result.model}"
    return f"{what}: read {prices.read:g}x, write {prices.write:g}x, TTL {prices.ttl_seconds / 60:g} min"


def show(out: Console, result: Replay) -> None:
    out.print(Text(clean(basis(result)), style="bold"))
    for window in dict.fromkeys(total.window for total in result.totals):
        out.print()
        out.print(_window([total for total in result.totals if total.window == window], window))
    out.print()
    _worst(out, result)
    for line in LEGEND:
        out.print(Text(line, style="dim"))


def _window(totals: list[PolicyTotal], window: int) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column(f"{window:,} window")
    for name in ("sent", "read", "written", "hit", "cost", "against first", "folds", "kept", "over"):
        table.add_column(name, justify="right")
    first = totals[0]
    for total in totals:
        cost = f"${total.money:,.2f}" if total.money else f"{total.cost / 1e6:,.2f}M"
        change = "" if total is first or not first.cost else f"{total.cost / first.cost - 1:+.0%}"
        kept = "" if total.retention is None else f"{total.retention:.3f}"
        cells = [f"{amount / 1e6:,.1f}" for amount in (total.sent, total.read, total.written)]
        row = [*cells, f"{total.hit_rate:.0%}", cost, change, f"{total.folds:,}", kept, f"{total.overflows or ''}"]
        table.add_row(Text(clean(total.policy)), *row)
    return table


def _worst(out: Console, result: Replay) -> None:
    last = result.totals[-1].policy
    rows = result.against_best(last)
    if not rows:
        return
    worse = sum(row.ratio > 1.05 for row in rows)
    line = f"{last}: more than 5 % above the cheapest other policy on {worse} of {len(rows)} transcripts and windows"
    out.print(Text(clean(line), style="bold"))
    for row in rows[:MOST_WORST]:
        name = row.recording.rpartition("/")[2]
        text = f"  {row.ratio - 1:+.1%}  {row.window:,} window, {row.folds} folds, against {row.best}: {name}"
        out.print(Text(clean(text)))
    out.print()
