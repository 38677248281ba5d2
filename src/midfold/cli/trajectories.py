"""`midfold trajectories`: fit recorded runs of agents into a token target, from one file to a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import msgspec

from midfold.cli.output import emit_json, notice
from midfold.cli.trajectory_progress import Onlooker
from midfold.lab.trajectory_files import STANDARD
from midfold.lab.trajectory_run import TrajectoryAccount, TrajectoryJob, compress_trajectories
from midfold.lab.trajectory_settings import FIRSTS, TOKENIZERS, TrajectorySettings, TurnKind


@click.group(name="trajectories")
def command() -> None:
    """Compress recorded runs of agents, for training and evaluation."""


def _kinds(context: click.Context, parameter: click.Parameter, value: str) -> tuple[TurnKind, ...]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in FIRSTS]
    if unknown:
        raise click.BadParameter(f"expected some of {', '.join(FIRSTS)}, found {', '.join(unknown)}")
    return tuple(kind for kind in FIRSTS if kind in names)


@command.command(name="compress")
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--target-tokens", type=click.IntRange(min=100), default=15_250, show_default=True, metavar="N")
@click.option(
    "--summary-tokens", type=click.IntRange(min=50), default=750, show_default=True, metavar="N", help="At most."
)
@click.option(
    "--protect-last", type=click.IntRange(min=0), default=4, show_default=True, metavar="N", help="Turns that stay."
)
@click.option(
    "--protect-first",
    callback=_kinds,
    default=",".join(FIRSTS),
    show_default=True,
    metavar="KINDS",
    help="Kinds whose first turn stays.",
)
@click.option("--turn-tokens", type=click.IntRange(min=0), default=4, show_default=True, help="A chat template's part.")
@click.option("--tokenizer", type=click.Choice(TOKENIZERS), default="auto", show_default=True)
@click.option(
    "--summarizer",
    default="local",
    show_default=True,
    metavar="WHO",
    help="local, model (as configured), a provider's name, or package.module:function.",
)
@click.option("--model", help="The summary model.")
@click.option("--calls", type=click.IntRange(min=1), default=8, show_default=True, help="Summary calls at a time.")
@click.option("--config", metavar="FILE", help="Read settings for a summary model from this file.")
@click.option("--workers", type=click.IntRange(min=1), metavar="N", help="Processes; default: one per processor.")
@click.option("--executor", type=click.Choice(["pool", "ray"]), default="pool", show_default=True)
@click.option("--ray-address", metavar="ADDRESS", help="The cluster: host:port of its head, or auto.")
@click.option(
    "--batch-kb",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    metavar="N",
    help="Work is given out, and kept when interrupted, in batches of this size.",
)
@click.option("--retention", is_flag=True, help="Measure what each record keeps of what its later turns use (slower).")
@click.option("--strict", is_flag=True, help="Stop at the first record that fails.")
@click.option("--restart", is_flag=True, help="Forget what an interrupted run has finished.")
@click.option("--report", metavar="FILE", help="The page with histograms; default: OUT.report.html.")
@click.option("--metrics", metavar="FILE", help="All counts as JSON; default: OUT.metrics.json.")
@click.option("--records", metavar="FILE", help="A JSON line for each record; default: OUT.records.jsonl.")
@click.option("--json", "as_json", is_flag=True, help="Write the counts to standard output as JSON.")
def compress(source: str, target: str, **options: Any) -> None:
    """Fit every trajectory of IN into a token target; the result has the same format, order and file names.

    IN is a file or a folder of JSON or JSON lines (plain, .gz or .zst) in ShareGPT, OpenAI chat, OpenAI Responses or
    Anthropic shape; - is standard input or output. The first and last turns stay as they are, and only as much of the
    middle as needed becomes one summary turn. An interrupted run goes on where it was. Records that fail stay as they
    are and are reported with file and line; then the exit code is 1.
    """
    job = _job(source, target, options)
    places = _Places(target, options)
    if options["as_json"] and target == STANDARD:
        raise click.UsageError("--json and OUT - both write to standard output; use --metrics FILE")
    with Onlooker(places.records) as onlooker:
        try:
            finished = compress_trajectories(job, onlooker)
        except KeyboardInterrupt:
            onlooker.close()
            resumable = STANDARD not in (source, target)
            notice("interrupted; the same command goes on from here" if resumable else "interrupted")
            sys.exit(130)
    _write(finished, onlooker, places)
    shown = facts(finished)
    if options["as_json"]:
        emit_json(shown)
    else:
        from midfold.cli.trajectory_table import show

        show(finished, places.told())
    if finished.totals.failed or finished.failed_files:
        sys.exit(1)


def _job(source: str, target: str, options: dict[str, Any]) -> TrajectoryJob:
    chosen = {
        name: options[name] for name in TrajectorySettings.__struct_fields__ if name not in ("config", "batch_bytes")
    }
    chosen["batch_bytes"] = options["batch_kb"] * 1024
    if options["summarizer"] != "local" and ":" not in options["summarizer"]:
        from midfold.cli.settings import settings

        chosen["config"] = settings(options["config"])
    if options["ray_address"] and options["executor"] != "ray":
        raise click.UsageError("--ray-address needs --executor ray")
    on_ray = options["executor"] == "ray"
    return TrajectoryJob(
        source=source,
        target=target,
        settings=TrajectorySettings(**chosen),
        workers=options["workers"] or (0 if on_ray else os.cpu_count() or 1),
        executor=options["executor"],
        ray_address=options["ray_address"],
        strict=options["strict"],
        restart=options["restart"],
    )


class _Places:
    """Where the account of a run goes: beside OUT, or where it was asked for; nowhere for a pipe unless asked."""

    def __init__(self, target: str, options: dict[str, Any]) -> None:
        beside = None if target == STANDARD else target.rstrip(f"/{os.sep}")
        self.metrics = self._place(options["metrics"], beside, ".metrics.json")
        self.records = self._place(options["records"], beside, ".records.jsonl")
        self.report = self._place(options["report"], beside, ".report.html")

    @staticmethod
    def _place(given: str | None, beside: str | None, suffix: str) -> Path | None:
        if given is not None:
            return Path(given)
        return None if beside is None else Path(f"{beside}{suffix}")

    def told(self) -> Iterator[tuple[str, Path]]:
        for name in ("report", "metrics", "records"):
            path: Path | None = getattr(self, name)
            if path is not None and path.exists():
                yield name, path


def _write(finished: TrajectoryAccount, onlooker: Onlooker, places: _Places) -> None:
    from midfold.lab.trajectory_files import replace_file
    from midfold.lab.trajectory_report import report_page

    if places.metrics is not None:
        with replace_file(places.metrics) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(facts(finished)), indent=2) + b"\n")
    if places.report is not None:
        with replace_file(places.report) as stream:
            stream.write(report_page(finished, onlooker.troubled).encode("utf-8", "replace"))


def facts(finished: TrajectoryAccount) -> dict[str, Any]:
    """Everything that was counted, as plain values; no content of a record. Only `run` differs between equal runs."""
    target = finished.settings.target_tokens
    return {
        "settings": finished.settings.plain(),
        "totals": finished.totals.plain(target),
        "files": {name: totals.plain(target) for name, totals in finished.files.items()},
        "failed_files": msgspec.to_builtins(finished.failed_files),
        "run": {"seconds": round(finished.seconds, 3), "workers": finished.workers, "resumed": finished.resumed},
    }
