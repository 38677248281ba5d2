"""`midfold replay`: replay recorded sessions under other policies and provider prices."""

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
from midfold.lab.recorded_sessions import Split, load_sessions
from midfold.lab.replay_player import MOST_EXAMS, STATED_GAP
from midfold.lab.replay_policies import POLICIES, ReplayPolicy, load_policy
from midfold.lab.replays import MODEL, WINDOWS, PolicyTotal, Replay, cost_chart, replay

MAX_WORST = 5
LEGEND = (
    "sent, read, written: million tokens; hit: share read from the cache; cost: with summaries, without responses",
    "kept: share of the facts used later in the transcript that were in view when needed",
    "over: transcripts with a request larger than the window, which a real provider rejects",
)


def _windows(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Parse comma-separated window sizes; 64k is 64,000."""
    try:
        return tuple(int(part[:-1]) * 1000 if part.lower().endswith("k") else int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"expected windows such as 32k,64k,200000, found {value}") from None


@click.command(name="replay")
@click.argument("files", nargs=-1, required=True, metavar="FILES...")
@click.option(
    "--policy",
    "policies",
    multiple=True,
    metavar="NAME|FILE.yaml",
    help=f"A built-in policy ({', '.join(name.replace(' ', '-') for name in POLICIES)}) or a YAML file; default: all "
    "built-in ones. Can be repeated; several YAML files may follow one --policy.",
)
@click.option(
    "--windows",
    callback=_windows,
    default=",".join(f"{window // 1000}k" for window in WINDOWS),
    show_default=True,
    metavar="LIST",
    help="Context windows to replay at.",
)
@click.option("--model", help=f"Model for tokens and prices; default: the model of the logs, else {MODEL}.")
@click.option("--gap", type=float, default=STATED_GAP, show_default=True, help="Seconds between unrecorded requests.")
@click.option(
    "--fixed-tokens",
    type=click.IntRange(min=0),
    help="Tokens of system prompt and tools per request; default: inferred from the usage in a log.",
)
@click.option(
    "--exams",
    type=click.IntRange(min=0),
    default=MOST_EXAMS,
    show_default=True,
    help="Retention checks per transcript; 0 for none.",
)
@click.option("--least-tokens", type=click.IntRange(min=0), default=0, help="Skip shorter transcripts.")
@with_split
@with_workers
@with_plot
@with_stored_config
@click.option("--json", "as_json", is_flag=True, help="Write JSON: every total and every transcript.")
def command(
    files: tuple[str, ...],
    policies: tuple[str, ...],
    windows: tuple[int, ...],
    model: str | None,
    gap: float,
    fixed_tokens: int | None,
    exams: int,
    least_tokens: int,
    split: Split,
    workers: int | None,
    plot: Path | None,
    config: str | None,
    as_json: bool,
) -> None:
    """Replay recorded sessions, request by request, under other policies and a provider's cache and prices.

    FILES are transcripts, coding agent logs, folders of them, or stored sessions (session:NAME). A policy decides
    when to compact, what to prune and where to put cache markers. The result shows what each policy would have
    sent, read, written and paid, and how many of the facts needed later were still in view. Usage recorded in a log
    is shown for comparison. Nothing is sent anywhere.
    """
    policies = (*policies, *(file for file in files if file.endswith((".yaml", ".yml"))))
    transcripts = tuple(file for file in files if file not in policies)
    if not transcripts:
        raise click.UsageError("no transcripts given, only policies")
    chosen: list[ReplayPolicy] = [load_policy(place) for place in policies] or list(POLICIES.values())
    check_picture(plot)
    with show_work("reading"):
        sessions = load_sessions(files_of(transcripts, config), tell=notice)
    with progress_bar("transcripts") as progress:
        result = replay(
            sessions,
            policies=chosen,
            windows=windows,
            model=model,
            gap=gap,
            fixed_tokens=fixed_tokens,
            exams=exams,
            least_tokens=least_tokens,
            split=split,
            workers=workers or os.cpu_count() or 1,
            progress=progress,
        )
    if plot is not None:
        write_picture(plot, cost_chart(result.totals, subtitle=_basis(result)))
        notice(f"chart written to {plot}")
    emit_json(_plain(result)) if as_json else _show(console(), result)


def _plain(result: Replay) -> dict[str, Any]:
    """Return all results as plain values, without message content."""
    return {
        "model": result.model,
        "prices": msgspec.to_builtins(result.prices),
        "recordings": result.recordings,
        "with_times": result.timed,
        "recorded": msgspec.to_builtins(result.bill),
        "totals": [msgspec.to_builtins(total) for total in result.totals],
        "rows": [msgspec.to_builtins(row) for row in result.rows],
    }


def _basis(result: Replay) -> str:
    prices = result.prices
    what = f"{result.recordings:,} transcripts ({result.timed:,} with recorded times), {result.model}"
    return f"{what}: read {prices.read:g}x, write {prices.write:g}x, TTL {prices.ttl_seconds / 60:g} min"


def _show(out: Console, result: Replay) -> None:
    out.print(make_text(_basis(result), "bold"))
    if (bill := result.bill).requests:
        sent, read, written = (f"{amount / 1e6:,.1f}" for amount in (bill.sent, bill.read, bill.written))
        cost = f"${bill.money:,.2f}" if bill.money else f"{bill.cost / 1e6:,.2f}M"
        out.print(f"as recorded: {bill.requests:,} requests, {sent} sent, {read} read, {written} written, cost {cost}")
    for window in dict.fromkeys(total.window for total in result.totals):
        out.print()
        out.print(_window([total for total in result.totals if total.window == window], window))
    out.print()
    _worst(out, result)
    for line in LEGEND:
        out.print(Text(line, style="dim"))


def _window(totals: list[PolicyTotal], window: int) -> Table:
    figures = ("sent", "read", "written", "hit", "cost", "vs first", "folds", "kept", "over")
    table = make_table(f"{window:,} window", *(f">{name}" for name in figures))
    first = totals[0]
    for total in totals:
        cost = f"${total.money:,.2f}" if total.money else f"{total.cost / 1e6:,.2f}M"
        change = "" if total is first or not first.cost else f"{total.cost / first.cost - 1:+.0%}"
        kept = "" if total.retention is None else f"{total.retention:.3f}"
        cells = [f"{amount / 1e6:,.1f}" for amount in (total.sent, total.read, total.written)]
        row = [*cells, f"{total.hit_rate:.0%}", cost, change, f"{total.folds:,}", kept, f"{total.overflows or ''}"]
        table.add_row(make_text(total.policy), *row)
    return table


def _worst(out: Console, result: Replay) -> None:
    last = result.totals[-1].policy
    rows = result.against_best(last)
    if not rows:
        return
    worse = sum(row.ratio > 1.05 for row in rows)
    line = f"{last}: more than 5 % above the cheapest other policy on {worse} of {len(rows)} transcripts and windows"
    out.print(make_text(line, "bold"))
    for row in rows[:MAX_WORST]:
        name = row.recording.rpartition("/")[2]
        text = f"  {row.ratio - 1:+.1%}  {row.window:,} window, {row.folds} folds, against {row.best}: {name}"
        out.print(make_text(text))
    out.print()
