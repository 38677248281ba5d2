"""What is seen of a run while it goes on: a bar on a terminal, and records that fail as they do."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from midfold.cli.output import notice
from midfold.cli.render import clean
from midfold.lab.trajectory_files import replace_file
from midfold.lab.trajectory_metrics import RecordMetrics
from midfold.lab.trajectory_run import TrajectoryProgress

if TYPE_CHECKING:
    from rich.progress import TaskID

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

    def progress(self, progress: TrajectoryProgress, /) -> None:
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
        with replace_file(self._records) as stream:
            for line in lines:
                stream.write(line)
                troubled = b'"status":"failed"' in line or b'"status":"over_limit"' in line
                if troubled and len(self.troubled) < MOST_TROUBLED:
                    self.troubled.append(msgspec.json.decode(line, type=RecordMetrics))
