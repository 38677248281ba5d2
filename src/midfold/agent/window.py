"""Decide when the agent compacts its own session, and do it.

1. Before each request the size is estimated from the last reported usage; at `compression.threshold` the session is
   compacted. Slightly below it, the compaction is prepared in the background and swapped in when due.
2. A request that was too large is never sent again, only a smaller one, at most `MOST_RECOVERIES` times.
3. The plan survives every compaction. So do the newest user messages: the engine never folds them.
4. The model sees only the summary. Warnings about the window make models give up early.
5. Behind a midfold gateway, the first request of a turn is left to the gateway. Tokens that it folds are not counted
   here, so that one conversation is never compacted twice.
"""

from __future__ import annotations

from typing import Unpack

from midfold.agent import shapes
from midfold.agent.events import EngineFault, Folded, Overflowed, Preparing, Watch
from midfold.agent.tools import base as plan
from midfold.compaction.budget import Pressure
from midfold.decide import Decision
from midfold.errors import ModelFailed
from midfold.session.conversation import CompactArguments, Compacted, PreparedFold
from midfold.session.host import BackgroundFold
from midfold.session.session import Session
from midfold.store.usage import Turns
from midfold.transcript.message import ToolCall, Usage, read_usage
from midfold.transcript.replies import ModelAnswer
from midfold.transcript.tokens import Count

MOST_RECOVERIES = 3
GATEWAY_HEADER = "x-midfold-action"
FOLDED = frozenset(("compacted", "pruned", "checkpoint", "recovered"))
"""Values of the gateway's header for requests that it sent in a compacted form."""


class AgentWindow:
    """Window management of one session."""

    def __init__(
        self, session: Session, watch: Watch, *, background: bool = True, behind_gateway: bool = False
    ) -> None:
        self.session = session
        self.watch = watch
        self.background = background
        self.behind_gateway = behind_gateway
        self.relief = 0
        """Tokens of this session that a gateway does not send to the provider."""
        self._ahead = BackgroundFold()
        self._fault = ""
        self._plan = plan.newest(reversed(session.history().transcript)) if session.info is not None else None

    @property
    def size(self) -> Count:
        """Return the size of the next request as the provider will see it."""
        size = self.session.size
        return Count(max(size.tokens - self.relief, 0), size.basis) if self.relief else size

    def decide(self) -> Decision:
        """Decide whether to compact before the next request, not counting tokens that a gateway drops."""
        return self.session.decide(self.size.tokens if self.relief else None)

    def before(self, *, first: bool) -> None:
        """Compact if it is due before a request, or prepare a compaction if it soon will be."""
        self.keep_pause()
        decision = self.decide()
        if decision.fault and decision.fault != self._fault:
            self._fault = decision.fault
            self.watch(EngineFault(why=decision.fault))
        if decision.pressure is Pressure.HARD:
            if decision.fold and not (first and self.behind_gateway):
                self._fold()
        elif decision.fold and not self.relief:
            self.fold("cheap moment")
        elif decision.pressure is Pressure.SOFT:
            self.prepare()

    def prepare(self) -> None:
        """Prepare a compaction in the background if it will soon be needed."""
        self.keep_pause()
        if not self.background or self._ahead.has_begun or self.decide().pressure is Pressure.NONE:
            return
        size, threshold = self.size.tokens, self.session.setup.budget.threshold_tokens
        if self._ahead.start(self.session):
            self.watch(Preparing(tokens=size, threshold=threshold))

    def keep_pause(self) -> None:
        """Store the cooldown after a failed background summary, for the next process that opens the session."""
        failed = self._ahead.take_failed()
        if failed is not None:
            self.session.swap(failed)

    def after(self, answer: ModelAnswer) -> None:
        """Record the usage of a response as the session's size, unless a gateway compacted the request."""
        usage = read_usage(answer.usage)
        action = answer.headers.get(GATEWAY_HEADER)
        self.behind_gateway = self.behind_gateway or action is not None
        if usage is None:
            return
        if action in FOLDED:
            self.relief = max(self.session.size.tokens - usage.prompt_tokens, 0)
            self._count(usage)
            return
        self.relief = 0
        self.session.observe(usage)

    def _count(self, usage: Usage) -> None:
        """Count the usage of a request that a gateway compacted; it measures another prompt than the session's."""
        info, setup = self.session.info, self.session.setup
        if info is not None:
            at = int(setup.clock() * 1000)
            Turns(self.session.store).record(info, usage, at=at, model=setup.model)

    def _fold(self) -> None:
        ready = self._ahead.take()
        if self.fold("threshold", ready).changed and ready is not None and self.decide().pressure is Pressure.HARD:
            self.fold("threshold")

    def fold(
        self, trigger: str, ready: PreparedFold | None = None, **options: Unpack[CompactArguments]
    ) -> Compacted[Session]:
        """Compact the session, report it to the observer, and restore the plan if it was folded."""
        done = self.session.compact(ahead=ready, **options)
        swapped = ready is not None and done.receipt is ready.outcome.receipt
        self.watch(Folded.of(done.receipt, trigger, prepared=swapped))
        if done.changed:
            self.relief = 0
            self._ahead.drop()
            self._restore_plan()
        return done

    def shrink(self, failed: ModelFailed, attempt: int) -> bool:
        """Compact after an overflow and return whether there is a smaller request to send."""
        setup = self.session.setup
        if attempt > MOST_RECOVERIES or not setup.config.compression.enabled:
            return False
        self.watch(Overflowed(size=self.size.tokens, limit=failed.limit))
        setup.correct_window(failed.limit or None)
        if attempt == 1:
            return self.fold("overflow", force=True, overflowed=True).changed
        target = min(self.session.size.tokens, setup.budget.threshold_tokens) // 2**attempt
        return self.fold("overflow", target_tokens=max(target, 500), overflowed=True).changed

    def wrote_plan(self, call: ToolCall) -> None:
        self._plan = call

    def _restore_plan(self) -> None:
        if self._plan is None:
            return
        view = self.session.view().transcript
        shown, notice = plan.newest(reversed(view)), plan.snapshot(self._plan)
        if (shown is None or shown.arguments != self._plan.arguments) and all(notice != item.text for item in view):
            self.session.append(shapes.user(notice))
