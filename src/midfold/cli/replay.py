"""`midfold replay`: recorded sessions under other policies and a provider's prices."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import click
import msgspec

from midfold.cli import replay_table
from midfold.cli.eval import files_of
from midfold.cli.output import console, emit_json, notice
from midfold.cli.progress import bar
from midfold.lab.recorded_sessions import Split
from midfold.lab.replay_player import MOST_EXAMS, STATED_GAP
from midfold.lab.replay_policies import POLICIES, ReplayPolicy, load_policy
from midfold.lab.replays import MODEL, WINDOWS, Replay, cost_chart, replay


def _windows(context: click.Context, parameter: click.Parameter, value: str) -> tuple[int, ...]:
    """Sizes of windows, separated by commas; 64k is 64,000."""
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
    "built-in ones. May be given several times; several YAML files may follow one --policy.",
)
@click.option(
    "--windows",
    callback=_windows,
    default=",".join(f"{window // 1000}k" for window in WINDOWS),
    show_default=True,
    metavar="LIST",
    help="Context windows to replay at.",
)
@click.option("--model", default=MODEL, show_default=True, help="Whose tokens and prices count.")
@click.option("--gap", type=float, default=STATED_GAP, show_default=True, help="Seconds between unrecorded requests.")
@click.option("--fixed-tokens", type=click.IntRange(min=0), default=0, help="System prompt and tools of each request.")
@click.option(
    "--exams",
    type=click.IntRange(min=0),
    default=MOST_EXAMS,
    show_default=True,
    help="Per transcript; 0: no retention.",
)
@click.option("--least-tokens", type=click.IntRange(min=0), default=0, help="Leave shorter transcripts out.")
@click.option("--split", type=click.Choice(["all", "train", "held"]), default="all", help="Half of the conversations.")
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Processes; default: the processors there are."
)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), metavar="OUT.svg", help="Draw a chart.")
@click.option("--json", "as_json", is_flag=True, help="Write JSON: every total and every transcript.")
def command(
    files: tuple[str, ...],
    policies: tuple[str, ...],
    windows: tuple[int, ...],
    model: str,
    gap: float,
    fixed_tokens: int,
    exams: int,
    least_tokens: int,
    split: Split,
    workers: int | None,
    plot: Path | None,
    as_json: bool,
) -> None:
    """Play recorded sessions again, request by request, under other policies and a provider's cache and prices.

    FILES are transcripts, or folders of them. Each policy says when to fold, what to prune and where to put cache
    markers; the result is what every policy would have sent, read, written and paid, and how much of what the
    session later needed it still had in view. Nothing is sent anywhere.
    """
    policies = (*policies, *(file for file in files if file.endswith((".yaml", ".yml"))))
    transcripts = tuple(file for file in files if file not in policies)
    if not transcripts:
        raise click.UsageError("no transcripts were given, only policies")
    chosen: list[ReplayPolicy] = [load_policy(place) for place in policies] or list(POLICIES.values())
    with bar("transcripts") as progress:
        result = replay(
            list(files_of(transcripts)),
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
        plot.write_text(cost_chart(result.totals, subtitle=replay_table.basis(result)), encoding="utf-8")
        notice(f"chart written to {plot}")
    emit_json(facts(result)) if as_json else replay_table.show(console(), result)


def facts(result: Replay) -> dict[str, Any]:
    """Everything that came out, as plain values; no message content."""
    return {
        "model": result.model,
        "prices": msgspec.to_builtins(result.prices),
        "recordings": result.recordings,
        "with_times": result.timed,
        "totals": [msgspec.to_builtins(total) for total in result.totals],
        "rows": [msgspec.to_builtins(row) for row in result.rows],
    }
