"""`midfold trajectories`: fit recorded runs of agents into a token target, from one file to a cluster."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.table import Table
from rich.text import Text

from midfold.cli.terminal import clean, emit_json, harmless_console, notice
from midfold.trajectory.files import STANDARD, replacing
from midfold.trajectory.job import Finished, Job, Progress, run
from midfold.trajectory.metrics import RecordMetrics
from midfold.trajectory.report import STATUSES
from midfold.trajectory.settings import FIRSTS, TOKENIZERS, Kind, Settings

if TYPE_CHECKING:
    from rich.progress import TaskID


# What is seen of a run while it goes on: a bar on a terminal, and records that fail as they do.


MOST_TOLD = 20
MOST_TROUBLED = 200


class Onlooker:
    """Watches a run; `with` starts and stops the bar."""

    def __init__(self, records: Path | None) -> None:
        self._records = records
        self._told = 0
        self._bar: Any = None
        self._task: TaskID | None = None
        self._start = time.monotonic()
        self.troubled: list[RecordMetrics] = []
        """Records that failed or are still over the limit, as many as a page shows."""

    def __enter__(self) -> Onlooker:
        if sys.stderr.isatty():
            from rich.console import Console
            from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn

            columns = (BarColumn(), TaskProgressColumn(), TextColumn("{task.description}"), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._task = self._bar.add_task("reading", total=None)
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def progress(self, progress: Progress, /) -> None:
        if self._bar is None:
            return
        totals = progress.totals
        rate = totals.records / max(time.monotonic() - self._start, 0.001)
        failed = f", {totals.failed:,} failed" if totals.failed else ""
        told = f"{totals.records:,} records, {rate:,.0f}/s{failed}"
        self._bar.update(self._task, completed=progress.bytes_done, total=progress.bytes_all or None, description=told)

    def failed(self, record: RecordMetrics, /) -> None:
        self._told += 1
        if self._told <= MOST_TOLD:
            notice(clean(f"{record.file}, line {record.line}: {record.reason}"))
        elif self._told == MOST_TOLD + 1:
            notice("more records failed; the metrics list all of them")

    def record_lines(self, lines: Iterator[bytes], /) -> None:
        if self._records is None:
            return
        with replacing(self._records) as stream:
            for line in lines:
                stream.write(line)
                troubled = b'"status":"failed"' in line or b'"status":"over_limit"' in line
                if troubled and len(self.troubled) < MOST_TROUBLED:
                    self.troubled.append(msgspec.json.decode(line, type=RecordMetrics))


@click.group(name="trajectories")
def command() -> None:
    """Compress recorded runs of agents, for training and evaluation."""


def _kinds(context: click.Context, parameter: click.Parameter, value: str) -> tuple[Kind, ...]:
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
            finished = run(job, onlooker)
        except KeyboardInterrupt:
            onlooker.close()
            resumable = STANDARD not in (source, target)
            notice("interrupted; the same command goes on from here" if resumable else "interrupted")
            sys.exit(130)
    _write(finished, onlooker, places)
    shown = _plain(finished)
    if options["as_json"]:
        emit_json(shown)
    else:
        _show(finished, places.told())
    if finished.totals.failed or finished.failed_files:
        sys.exit(1)


def _job(source: str, target: str, options: dict[str, Any]) -> Job:
    chosen = {name: options[name] for name in Settings.__struct_fields__ if name not in ("config", "batch_bytes")}
    chosen["batch_bytes"] = options["batch_kb"] * 1024
    if options["summarizer"] != "local" and ":" not in options["summarizer"]:
        from midfold.cli.options import settings

        chosen["config"] = settings(options["config"])
    if options["ray_address"] and options["executor"] != "ray":
        raise click.UsageError("--ray-address needs --executor ray")
    on_ray = options["executor"] == "ray"
    return Job(
        source=source,
        target=target,
        settings=Settings(**chosen),
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


def _write(finished: Finished, onlooker: Onlooker, places: _Places) -> None:
    from midfold.trajectory.files import replacing
    from midfold.trajectory.report import page

    if places.metrics is not None:
        with replacing(places.metrics) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(_plain(finished)), indent=2) + b"\n")
    if places.report is not None:
        with replacing(places.report) as stream:
            stream.write(page(finished, onlooker.troubled).encode("utf-8", "replace"))


def _plain(finished: Finished) -> dict[str, Any]:
    """Everything that was counted, as plain values; no content of a record. Only `run` differs between equal runs."""
    target = finished.settings.target_tokens
    return {
        "settings": finished.settings.plain(),
        "totals": finished.totals.plain(target),
        "files": {name: totals.plain(target) for name, totals in finished.files.items()},
        "failed_files": msgspec.to_builtins(finished.failed_files),
        "run": {"seconds": round(finished.seconds, 3), "workers": finished.workers, "resumed": finished.resumed},
    }


# The account of a run of `midfold trajectories compress`, for people.


COLOURS = {"calm": "bright_black", "good": "green", "warn": "yellow", "bad": "red"}


def _show(finished: Finished, places: Iterable[tuple[str, Path]]) -> None:
    """On standard error if the records themselves went to standard output."""
    listed = list(places)
    out = harmless_console(stderr=not listed and not sys.stdout.isatty(), width=None if _is_seen() else 110)
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


def _is_seen() -> bool:
    return sys.stdout.isatty()
