"""The engine that never folds: for measuring, and for hosts that want everything but compaction."""

from __future__ import annotations

from typing import ClassVar

from midfold.core.budget import Pressure
from midfold.core.compaction import CompactionRequest, Flow
from midfold.engines.base import ContextEngine
from midfold.engines.job import Job


class Noop(ContextEngine):
    name: ClassVar[str] = "noop"

    def should_compress(self, request: CompactionRequest) -> Pressure:
        return Pressure.NONE

    def compress(self, request: CompactionRequest) -> Flow:
        yield from ()
        return Job(request).unchanged("the engine never folds")
