"""Makes a view as small as it should be: large results are spilled, in the order in which that hurts least.

To land, the largest old ones go, with a long preview. Only if the view would not get below the threshold otherwise do
shorter ones go too, with a short preview, and the newest batch, which nobody has worked with yet.
"""

from __future__ import annotations

from midfold.core.archive import Archive, fold_id
from midfold.core.boundary import Plan
from midfold.core.compaction import Outcome
from midfold.core.message import Message, Transcript
from midfold.core.report import Digest
from midfold.engines.job import Job
from midfold.engines.sizes import LONG, SHORT
from midfold.engines.spill import Spill
from midfold.engines.squeeze import squeeze


def landed(
    job: Job, plan: Plan, messages: Transcript, view: Transcript, originals: dict[str, tuple[Message, ...]]
) -> tuple[Transcript, list[Digest], tuple[str, ...]]:
    """A view that lands, what was spilled, and what made landing below the threshold impossible."""
    limit = max(job.request.budget.threshold_tokens, job.landing) if job.request.target_tokens is None else job.landing
    work = Spill(job, messages, view)
    work.until(job.landing, LONG, newest=False)
    ends = job.ends(plan)
    preview = SHORT if ends is None else ends.results
    work.until(limit, preview, newest=False)
    work.until(limit, LONG, newest=True)
    work.until(limit, preview, newest=True)
    if ends is not None:
        squeeze(work, limit, ends)
    originals |= {digest.handle: (work.original(index),) for index, digest in work.spilled.items()}
    return tuple(work.out), list(work.spilled.values()), _impossible(job, tuple(work.out), work.total, limit)


def without_fold(job: Job, plan: Plan) -> Outcome:
    """The outcome where nothing stands between what must stay, and that is too large: long parts by their ends.

    Results alone, unless a size was asked for.
    """
    reason = "there is nothing between head and tail to fold"
    messages, repairs = job.sanitized(job.messages, job.messages)
    messages, repairs = job.user_first(messages, repairs, fold_id(job.messages))
    originals: dict[str, tuple[Message, ...]] = {}
    messages, spilled, impossible = landed(job, plan, messages, job.messages, originals)
    if not spilled or job.total(messages) >= job.prompt_tokens:
        return job.unchanged(reason, plan)
    originals |= job.missing(messages, ())
    receipt = job.receipt(
        status="pruned",
        reason=f"{reason}: what is long is shown by its ends",
        plan=plan,
        new=messages,
        digests=tuple(spilled),
        repairs=repairs,
        handles=tuple(originals),
        impossible=impossible,
        persistence="in_place_archive",
    )
    return job.outcome(messages, receipt, job.state, Archive(originals))


def _impossible(job: Job, messages: Transcript, total: int, limit: int) -> tuple[str, ...]:
    if total <= limit:
        return ()
    largest = max(range(len(messages)), key=lambda index: job.size(messages[index]), default=None)
    reasons = [f"{job.fixed_tokens:,} tokens are system prompt and tools"] if job.fixed_tokens * 2 > limit else []
    if largest is not None:
        message = messages[largest]
        reasons.append(f"messages[{largest}] ({message.role}) alone has {job.size(message):,} tokens and must stay")
    return tuple(reasons)
