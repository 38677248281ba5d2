"""Between the settings and the schedule: who writes summaries and at what price, and what a decision does to a request.

Rules of this file:
1. A compaction that somebody asked for is never scheduled.
2. A scheduled fold, also one that the threshold forces, lands where the schedule aims.
3. One that came to nothing is a strike. Two stop the cheap moments, four the threshold; a smaller prompt, or a fold
   that helps, begins anew.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from midfold.cache.prices import prices_for
from midfold.cache.schedule import Schedule, Writer
from midfold.fold.engine import MOST_STRIKES
from midfold.fold.receipt import Timing
from midfold.fold.request import CompactionRequest, Outcome, SummaryAsk
from midfold.summarize import Summarizer, local_summarizer
from midfold.summarize.endpoint import Endpoint

if TYPE_CHECKING:
    from midfold.config import Config

Step = TypeVar("Step", Outcome, SummaryAsk | Outcome)


def schedule_for(
    threshold_tokens: int, config: Config, model: str | None, summarizer: Callable[[], Summarizer]
) -> Schedule | None:
    """When folds are cheap; None where the settings fold at the threshold only, and then nobody is asked for prices."""
    settings = config.prompt_caching
    if settings.schedule != "cheapest" or not config.compression.enabled:
        return None
    return Schedule(
        threshold_tokens=threshold_tokens,
        prices=prices_for(model, settings.cache_ttl, config.models),
        writer=_writer(early_writer(summarizer(), config), config),
    )


def early_writer(summarizer: Summarizer, config: Config) -> Summarizer:
    """Who summarises folds that the threshold does not ask for."""
    return local_summarizer if config.prompt_caching.schedule_summary == "local" else summarizer


def _writer(summarizer: Summarizer, config: Config) -> Writer | None:
    """Who is paid for summaries: nobody, the model an endpoint names, or one of whom nothing is known."""
    if summarizer is local_summarizer:
        return None
    endpoint = getattr(summarizer, "endpoint", None)
    if not isinstance(endpoint, Endpoint):
        return Writer()
    return Writer(prices=prices_for(endpoint.model, overrides=config.models), reuses_prefix=endpoint.reuse_prefix)


def is_early(timing: Timing | None) -> bool:
    """Whether a fold was decided on that the threshold did not ask for."""
    return timing is not None and timing.fold and timing.reason != "hard"


def may_act(timing: Timing, strikes: int) -> bool:
    """Whether folds of this kind have not come to nothing too often."""
    return not timing.fold or strikes < (2 * MOST_STRIKES if timing.reason == "hard" else MOST_STRIKES)


def aimed(request: CompactionRequest, schedule: Schedule | None, timing: Timing | None) -> CompactionRequest:
    """What the engine is asked for."""
    if schedule is None or timing is None or not timing.fold:
        return request
    return msgspec.structs.replace(request, force=True, target_tokens=schedule.target(timing.prompt_tokens))


def asked_for(request: CompactionRequest) -> bool:
    """Whether somebody wants this compaction, whatever the size."""
    return request.force or request.target_tokens is not None or request.keep_last_exchanges is not None


def timed(step: Step, timing: Timing | None) -> Step:
    """An outcome with the reason why it came now; a question stays as it is."""
    if timing is None or not isinstance(step, Outcome):
        return step
    receipt = msgspec.structs.replace(step.receipt, timing=timing)
    state = step.state
    if timing.fold and step.changed:
        receipt = msgspec.structs.replace(receipt, reason=f"{timing.reason}: {timing.told}")
    elif timing.fold and receipt.status == "unchanged":
        state = msgspec.structs.replace(state, ineffective=state.ineffective + 1)
    return msgspec.structs.replace(step, receipt=receipt, state=state)
