"""`midfold trajectories`: compress recorded agent runs to a token target, from one file to a cluster."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec
from rich.text import Text

from midfold.cli.command_groups import HelpfulGroup
from midfold.cli.options import settings as load_config
from midfold.cli.signals import INTERRUPTED
from midfold.cli.terminal import emit_json, harmless_console, make_table, make_text, notice, visible
from midfold.lab.trajectory_files import STANDARD, replace_file
from midfold.lab.trajectory_metrics import RecordMetrics
from midfold.lab.trajectory_report import STATUSES, report_page
from midfold.lab.trajectory_run import TrajectoryAccount, TrajectoryJob, TrajectoryProgress, compress_trajectories
from midfold.lab.trajectory_settings import FIRSTS, TOKENIZERS, TrajectorySettings, TurnKind

if TYPE_CHECKING:
    from rich.progress import TaskID

MAX_REPORTED = 20
MAX_TROUBLED = 200
COLOURS = {"calm": "bright_black", "good": "green", "warn": "yellow", "bad": "red"}


@click.group(cls=HelpfulGroup, name="trajectories")
def command() -> None:
    """Compress recorded agent runs, for training and evaluation."""


def _kinds(context: click.Context, parameter: click.Parameter, value: str) -> tuple[TurnKind, ...]:
    names = [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in FIRSTS]
    if unknown:
        raise click.BadParameter(f"expected some of {', '.join(FIRSTS)}, found {', '.join(unknown)}")
    return tuple(kind for kind in FIRSTS if kind in names)


def _with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Build `TrajectorySettings` from the options."""

    @wraps(command)
    def run(
        target_tokens: int,
        summary_tokens: int,
        protect_last: int,
        protect_first: tuple[TurnKind, ...],
        turn_tokens: int,
        tokenizer: str,
        summarizer: str,
        model: str | None,
        calls: int,
        config: str | None,
        batch_kb: int,
        retention: bool,
        **rest: Any,
    ) -> None:
        chosen = TrajectorySettings(
            target_tokens=target_tokens,
            summary_tokens=summary_tokens,
            protect_last=protect_last,
            protect_first=protect_first,
            turn_tokens=turn_tokens,
            tokenizer=tokenizer,
            summarizer=summarizer,
            model=model,
            config=load_config(config) if summarizer != "local" and ":" not in summarizer else None,
            calls=calls,
            retention=retention,
            batch_bytes=batch_kb * 1024,
        )
        command(chosen, **rest)

    return run


@command.command(name="compress")
@click.argument("source", metavar="IN")
@click.argument("target", metavar="OUT")
@click.option("--target-tokens", type=click.IntRange(min=100), default=15_250, show_default=True, metavar="N")
@click.option(
    "--summary-tokens",
    type=click.IntRange(min=50),
    default=750,
    show_default=True,
    metavar="N",
    help="Maximum size of a summary.",
)
@click.option(
    "--protect-last", type=click.IntRange(min=0), default=4, show_default=True, metavar="N", help="Last turns to keep."
)
@click.option(
    "--protect-first",
    callback=_kinds,
    default=",".join(FIRSTS),
    show_default=True,
    metavar="KINDS",
    help="Kinds whose first turn is kept.",
)
@click.option(
    "--turn-tokens",
    type=click.IntRange(min=0),
    default=4,
    show_default=True,
    help="Tokens per turn added by the chat template.",
)
@click.option("--tokenizer", type=click.Choice(TOKENIZERS), default="auto", show_default=True)
@click.option(
    "--summarizer",
    default="local",
    show_default=True,
    metavar="WHO",
    help="local, model (as configured), a provider's name, or package.module:function.",
)
@click.option("--model", help="Summary model.")
@click.option("--calls", type=click.IntRange(min=1), default=8, show_default=True, help="Concurrent summary requests.")
@click.option("--config", metavar="FILE", help="Read settings for a summary model from this file.")
@click.option(
    "--workers", type=click.IntRange(min=1), metavar="N", help="Number of processes; default: one per processor."
)
@click.option("--executor", type=click.Choice(["pool", "ray"]), default="pool", show_default=True)
@click.option("--ray-address", metavar="ADDRESS", help="Address of the cluster's head node (host:port), or auto.")
@click.option(
    "--batch-kb",
    type=click.IntRange(min=1),
    default=4096,
    show_default=True,
    metavar="N",
    help="Batch size; finished batches survive an interruption.",
)
@click.option("--retention", is_flag=True, help="Measure how much of what later turns use each record keeps (slower).")
@click.option("--strict", is_flag=True, help="Stop at the first record that fails.")
@click.option("--restart", is_flag=True, help="Discard the finished batches of an interrupted run.")
@click.option("--report", metavar="FILE", help="HTML report with histograms; default: OUT.report.html.")
@click.option("--metrics", metavar="FILE", help="Counts as JSON; default: OUT.metrics.json.")
@click.option("--records", metavar="FILE", help="One JSON line per record; default: OUT.records.jsonl.")
@click.option("--json", "as_json", is_flag=True, help="Print the counts as JSON.")
@_with_settings
def compress(
    settings: TrajectorySettings,
    source: str,
    target: str,
    workers: int | None,
    executor: str,
    ray_address: str | None,
    strict: bool,
    restart: bool,
    report: str | None,
    metrics: str | None,
    records: str | None,
    as_json: bool,
) -> None:
    """Compress every trajectory of IN to a token target; the output has the same format, order and file names.

    IN is a file or a folder of JSON or JSON lines (plain, .gz or .zst) in ShareGPT, OpenAI chat, OpenAI Responses
    or Anthropic format; - is standard input or output. The first and last turns are kept; only as much of the
    middle as needed is replaced by one summary turn. An interrupted run can be resumed. Records that fail are
    copied unchanged and reported with file and line; the exit code is then 1.
    """
    if ray_address and executor != "ray":
        raise click.UsageError("--ray-address needs --executor ray")
    if as_json and target == STANDARD:
        raise click.UsageError("--json and OUT - both write to standard output; use --metrics FILE")
    job = TrajectoryJob(
        source=source,
        target=target,
        settings=settings,
        workers=workers or (0 if executor == "ray" else os.cpu_count() or 1),
        executor=executor,
        ray_address=ray_address,
        strict=strict,
        restart=restart,
    )
    finished = _run(job, _Reports(target, metrics, records, report), as_json=as_json)
    if finished.totals.failed or finished.failed_files:
        sys.exit(1)


def _run(job: TrajectoryJob, reports: _Reports, *, as_json: bool) -> TrajectoryAccount:
    with ProgressBar(reports.records) as onlooker:
        try:
            finished = compress_trajectories(job, onlooker)
        except KeyboardInterrupt:
            onlooker.close()
            resumable = STANDARD not in (job.source, job.target)
            notice("interrupted; run the same command to resume" if resumable else "interrupted")
            sys.exit(INTERRUPTED)
    _write(finished, onlooker, reports)
    emit_json(_plain(finished)) if as_json else _show(finished, reports.existing())
    return finished


class _Reports:
    """Paths of a run's reports: as given, or beside OUT; none for a pipe unless given."""

    def __init__(self, target: str, metrics: str | None, records: str | None, report: str | None) -> None:
        beside = "" if target == STANDARD else target.rstrip(f"/{os.sep}")
        self.metrics = _path(metrics, beside, ".metrics.json")
        self.records = _path(records, beside, ".records.jsonl")
        self.report = _path(report, beside, ".report.html")

    def existing(self) -> list[tuple[str, Path]]:
        """Return the reports that were written."""
        all_of_them = (("report", self.report), ("metrics", self.metrics), ("records", self.records))
        return [(name, path) for name, path in all_of_them if path is not None and path.exists()]


def _path(given: str | None, beside: str, suffix: str) -> Path | None:
    return Path(given) if given is not None else Path(f"{beside}{suffix}") if beside else None


def _write(finished: TrajectoryAccount, onlooker: ProgressBar, reports: _Reports) -> None:
    if reports.metrics is not None:
        with replace_file(reports.metrics) as stream:
            stream.write(msgspec.json.format(msgspec.json.encode(_plain(finished)), indent=2) + b"\n")
    if reports.report is not None:
        with replace_file(reports.report) as stream:
            stream.write(report_page(finished, onlooker.troubled).encode("utf-8", "replace"))


def _plain(finished: TrajectoryAccount) -> dict[str, Any]:
    """Return all counts as plain values, without record content. Only `run` differs between equal runs."""
    target = finished.settings.target_tokens
    return {
        "settings": finished.settings.plain(),
        "totals": finished.totals.plain(target),
        "files": {name: totals.plain(target) for name, totals in finished.files.items()},
        "failed_files": msgspec.to_builtins(finished.failed_files),
        "run": {"seconds": round(finished.seconds, 3), "workers": finished.workers, "resumed": finished.resumed},
    }


def _show(finished: TrajectoryAccount, written: list[tuple[str, Path]]) -> None:
    """Print the counts, on standard error if the records went to standard output."""
    is_seen = sys.stdout.isatty()
    out = harmless_console(stderr=not written and not is_seen, width=None if is_seen else 110)
    totals = finished.totals
    table = make_table("", ">", show_header=False)
    table.add_column(style="bright_black")
    for status, (name, colour) in STATUSES.items():
        count = getattr(totals, status)
        share = f"{count / max(totals.records, 1):.1%}"
        table.add_row(Text(name, style=COLOURS[colour] if count else ""), f"{count:,}", share)
    table.add_row("tokens", f"{totals.tokens_before:,} → {totals.tokens_after:,}", f"{totals.saved_share:.1%} fewer")
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
        out.print(make_text(f"{count:,} x {reason}", "yellow"))
    for item in finished.failed_files:
        out.print(make_text(f"no output for {item.file}: {item.reason}", "red"))
    for name, path in written:
        out.print(Text(f"{name:8}", style="bright_black"), Text(str(path)), soft_wrap=True)


class ProgressBar:
    """Progress display of a run; a context manager that starts and stops the bar."""

    def __init__(self, records: Path | None) -> None:
        self._records = records
        self._reported = 0
        self._bar: Any = None
        self._task: TaskID | None = None
        self._start = time.monotonic()
        self.troubled: list[RecordMetrics] = []
        """Records that failed or are over the limit, up to the number that the report shows."""

    def __enter__(self) -> ProgressBar:
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

    def progress(self, progress: TrajectoryProgress, /) -> None:
        if self._bar is None:
            return
        totals = progress.totals
        rate = totals.records / max(time.monotonic() - self._start, 0.001)
        failed = f", {totals.failed:,} failed" if totals.failed else ""
        description = f"{totals.records:,} records, {rate:,.0f}/s{failed}"
        self._bar.update(
            self._task, completed=progress.bytes_done, total=progress.bytes_all or None, description=description
        )

    def report_failure(self, record: RecordMetrics, /) -> None:
        self._reported += 1
        if self._reported <= MAX_REPORTED:
            notice(visible(f"{record.file}, line {record.line}: {record.reason}"))
        elif self._reported == MAX_REPORTED + 1:
            notice("more records failed; see the metrics for all of them")

    def record_lines(self, lines: Iterator[bytes], /) -> None:
        if self._records is None:
            return
        with replace_file(self._records) as stream:
            for line in lines:
                stream.write(line)
                troubled = b'"status":"failed"' in line or b'"status":"over_limit"' in line
                if troubled and len(self.troubled) < MAX_TROUBLED:
                    self.troubled.append(msgspec.json.decode(line, type=RecordMetrics))
