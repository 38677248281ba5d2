"""Makes a view as small as it should be: large results are spilled, in the order in which that hurts least.

To land, the largest old ones go, with a long preview. Only if the view would not get below the threshold otherwise do
shorter ones go too, with a short preview, and the newest batch, which nobody has worked with yet.
"""

from __future__ import annotations

from midfold.core.message import Message, Transcript
from midfold.core.report import Digest
from midfold.engines.job import Job
from midfold.engines.sizes import LONG, preview_for
from midfold.engines.spill import Spill
from midfold.engines.squeeze import squeeze


def landed(
    job: Job, messages: Transcript, view: Transcript, originals: dict[str, tuple[Message, ...]]
) -> tuple[Transcript, list[Digest], tuple[str, ...]]:
    """A view that lands, what was spilled, and what made landing below the threshold impossible."""
    limit = max(job.request.budget.threshold_tokens, job.landing) if job.request.target_tokens is None else job.landing
    work = Spill(job, messages, view)
    work.until(job.landing, LONG, newest=False)
    preview = preview_for(job.request.target_tokens)
    work.until(limit, preview, newest=False)
    work.until(limit, LONG, newest=True)
    work.until(limit, preview, newest=True)
    if job.request.target_tokens is not None:
        squeeze(work, limit)
    originals |= {digest.handle: (work.original(index),) for index, digest in work.spilled.items()}
    return tuple(work.out), list(work.spilled.values()), _impossible(job, tuple(work.out), work.total, limit)


def _impossible(job: Job, messages: Transcript, total: int, limit: int) -> tuple[str, ...]:
    if total <= limit:
        return ()
    largest = max(range(len(messages)), key=lambda index: job.size(messages[index]), default=None)
    reasons = [f"{job.fixed_tokens:,} tokens are system prompt and tools"] if job.fixed_tokens * 2 > limit else []
    if largest is not None:
        message = messages[largest]
        reasons.append(f"messages[{largest}] ({message.role}) alone has {job.size(message):,} tokens and must stay")
    return tuple(reasons)
