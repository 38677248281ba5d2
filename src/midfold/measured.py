"""What a session notes about its requests: what the provider's cache did, and why nothing was folded."""

from __future__ import annotations

import msgspec

from midfold.cache.health import Health
from midfold.fold.job import Job
from midfold.fold.receipt import Receipt, Status
from midfold.fold.request import CompactionRequest
from midfold.host import EngineHost
from midfold.live import Live
from midfold.transcript.message import Usage


def observed(host: EngineHost, live: Live, usage: Usage, now: float) -> Health:
    """The health of the cache after one more answer."""
    return host.health_after(live.memory.health, usage, now, live.info.compaction)


def unchanged(request: CompactionRequest, reason: str, status: Status = "unchanged") -> Receipt:
    """The receipt of a compaction that did not happen."""
    return msgspec.structs.replace(Job(request).unchanged(reason).receipt, status=status)
