"""What a session notes about its requests: what the provider's cache did, and why a fold came when it did."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from midfold.api import overrides_of
from midfold.cache.health import Health, Seen
from midfold.cache.prices import prices_for
from midfold.core.compaction import CompactionRequest, Outcome, SummaryAsk
from midfold.core.report import Receipt, Status
from midfold.core.timing import Timing
from midfold.core.usage import Usage
from midfold.engines.job import Job
from midfold.host import EngineHost
from midfold.live import Live

Step = TypeVar("Step", Outcome, SummaryAsk | Outcome)


def observed(host: EngineHost, live: Live, usage: Usage, now: float) -> Health:
    """The health of the cache after one more answer."""
    known = live.memory.health
    seen = Seen.of(
        model=host.model,
        tools=host.tools,
        system=host.system,
        messages=host.measured,
        compaction=live.info.compaction,
    )
    prices = prices_for(host.model, host.config.prompt_caching.cache_ttl, overrides_of(host.config))
    continues = known.seen is None or host.starts_with(known.seen.messages)
    return known.observe(usage, seen, at=now, prices=prices, continues=continues)


def timed(step: Step, timing: Timing | None) -> Step:
    """An outcome with the reason why it came now; a question stays as it is."""
    if timing is None or not isinstance(step, Outcome):
        return step
    receipt = msgspec.structs.replace(step.receipt, timing=timing)
    return msgspec.structs.replace(step, receipt=receipt)


def asked_for(request: CompactionRequest) -> bool:
    return request.force or request.target_tokens is not None or request.keep_last_exchanges is not None


def unchanged(request: CompactionRequest, reason: str, status: Status = "unchanged") -> Receipt:
    """The receipt of a compaction that did not happen."""
    return msgspec.structs.replace(Job(request).unchanged(reason).receipt, status=status)
