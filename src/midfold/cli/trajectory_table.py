"""The account of a run of `midfold trajectories compress`, for people."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

from rich.table import Table
from rich.text import Text

from midfold.cli.output import harmless_console
from midfold.cli.render import clean
from midfold.lab.trajectory_report import STATUSES
from midfold.lab.trajectory_run import TrajectoryAccount

COLOURS = {"calm": "bright_black", "good": "green", "warn": "yellow", "bad": "red"}


def show(finished: TrajectoryAccount, places: Iterable[tuple[str, Path]]) -> None:
    """On standard error if the records themselves went to standard output."""
    listed = list(places)
    out = harmless_console(stderr=not listed and not sys.stdout.isatty(), width=None if _seen() else 110)
    totals = finished.totals
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="bright_black")
    for status, (name, colour) in STATUSES.items():
        count = getattr(totals, status)
        share = f"{count / max(totals.records, 1):.1%}"
        table.add_row(Text(name, style=COLOURS[colour] if count else ""), f"{count:,}", share)
    saved = totals.saved
    table.add_row("tokens", f"{totals.tokens_before:,} → {totals.tokens_after:,}", f"{saved:.1%} fewer")
    table.add_row("turns", f"{totals.turns_before:,} → {totals.turns_after:,}", "")
    if totals.summary_calls or totals.summary_errors:
        table.add_row("summary calls", f"{totals.summary_calls:,}", f"{totals.summary_errors:,} failed")
    if totals.retention is not None:
        table.add_row("retention", f"{totals.retention:.1%}", f"mean of {totals.retention_records:,} folded records")
    rate = totals.records / max(finished.seconds, 0.001)
    again = ", resumed" if finished.resumed else ""
    took = f"in {finished.seconds:,.1f} s, {rate:,.0f}/s{again}"
    out.print(Text(f"{totals.records:,} records", style="bold"), Text(took))
    out.print(table)
    for reason, count in sorted(totals.reasons.items(), key=lambda item: -item[1])[:5]:
        out.print(Text(clean(f"{count:,} x {reason}"), style="yellow"))
    for item in finished.failed_files:
        out.print(Text(clean(f"no output for {item.file}: {item.reason}"), style="red"))
    for name, path in listed:
        out.print(Text(f"{name:8}", style="bright_black"), Text(str(path)), soft_wrap=True)


def _seen() -> bool:
    return sys.stdout.isatty()
