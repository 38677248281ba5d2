"""One recording under one policy at one window, request by request."""

from __future__ import annotations

import msgspec

from midfold.cache.breakpoints import plan
from midfold.cache.health import Health, Seen
from midfold.cache.prices import Prices, prices_for
from midfold.cache.schedule import summary_price
from midfold.decide import Situation, decide
from midfold.eval.score import score
from midfold.models import Model, look_up
from midfold.replay.folding import Folded, Folder, pruned
from midfold.replay.policy import Policy
from midfold.replay.provider import Cache, View
from midfold.replay.transcripts import Recording
from midfold.transcript.tokens import Meter


class Played(msgspec.Struct, frozen=True, kw_only=True):
    """What one recording came to. Costs are tokens at the base input price; answers cost the same everywhere."""

    recording: str
    policy: str
    window: int
    requests: int = 0
    sent: int = 0
    read: int = 0
    written: int = 0
    cost: float = 0.0
    summary_cost: float = 0.0
    folds: int = 0
    reasons: dict[str, int] = {}
    retention: float | None = None
    """The mean share of needed facts that the view held at the exams."""
    exams: int = 0
    overflows: int = 0
    """Requests larger than the window: a real provider would have refused them."""

    @property
    def total(self) -> float:
        return self.cost + self.summary_cost


class Player:
    """A recording being played."""

    def __init__(self, recording: Recording, policy: Policy, window: int, model: str, fixed_tokens: int) -> None:
        self.recording, self.policy, self.window, self.model = recording, policy, window, model
        self.row: Model = look_up(model).model
        self.prices: Prices = prices_for(model, policy.ttl)
        self.meter = Meter(factor=self.row.factor, message_overhead=self.row.message_overhead)
        self.folder = Folder(policy, window, self.meter, self.prices)
        self.cache = Cache(self.prices, self.row.cache_minimum or 0)
        self.view = View(self.meter, fixed_tokens=fixed_tokens)
        self.fixed = fixed_tokens
        self.reasons: dict[str, int] = {}
        self.summary_cost = 0.0
        self.health = Health()
        self.folds = 0

    def play(self) -> Played:
        messages = self.recording.session.messages
        totals = {"sent": 0, "read": 0, "written": 0, "overflows": 0}
        marks: list[float] = []
        done = 0
        for at, now in zip(self.recording.requests, self.recording.seconds, strict=True):
            self.view.extend(messages[done:at])
            done = at
            self._shorten(now)
            usage = self.cache.send(self.view, self._breakpoints(), now)
            seen = Seen(compaction=self.folds)
            self.health = self.health.observe(usage, seen, at=now, prices=self.prices)
            totals["sent"] += usage.prompt_tokens
            totals["read"] += usage.cache_read_tokens
            totals["written"] += usage.cache_write_tokens
            totals["overflows"] += usage.prompt_tokens > self.window
            if at in self.recording.exams:
                marks.append(score(self.view.transcript, self.recording.exams[at]).bound)
        return Played(
            recording=self.recording.name,
            policy=self.policy.name,
            window=self.window,
            requests=self.health.turns,
            cost=self.health.prompt_tokens - self.health.saved_units,
            summary_cost=self.summary_cost,
            folds=self.folds,
            reasons=self.reasons,
            retention=sum(marks) / len(marks) if marks else None,
            exams=len(marks),
            **totals,
        )

    def _breakpoints(self) -> list[int]:
        if self.policy.markers == "none":
            return []
        hints = plan(
            self.view.transcript,
            provider="anthropic",
            model=self.model,
            dialect="anthropic",
            ttl=self.policy.ttl,
            strategy=self.policy.markers,
            setting="on",
        )
        fixed = [-1] if self.fixed else []
        return [*fixed, *(hint.message_index for hint in hints if hint.placement != "request")][-4:]

    def _shorten(self, now: float) -> None:
        if self.policy.prune_every_turn:
            tail = max(len(self.view.messages) - self.policy.protect_last_n, 0)
            self._show(pruned(self.view.transcript, tail))
        if self.policy.fold == "never":
            return
        tokens = self.view.prompt_tokens
        reason = self._reason(tokens, now)
        if not reason:
            return
        folded = self.folder.fold(self.view.transcript, tokens)
        if folded is not None:
            if self.policy.summary == "model" or (self.policy.summary == "limit" and reason == "hard"):
                self._pay(folded, tokens, now)
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
            self._show(folded.outcome.messages)
            self.folds += 1

    def _reason(self, tokens: int, now: float) -> str:
        """Why to fold now; empty if not."""
        by_price = self.policy.fold != "threshold"
        situation = Situation(
            prompt_tokens=tokens,
            threshold_tokens=self.folder.budget.threshold_tokens,
            schedule=self.folder.schedule if by_price else None,
            health=self.health,
            now=now,
            fixed_tokens=self.fixed,
            model=self.health.seen.model if self.health.seen is not None else None,
        )
        decision = decide(situation)
        if not decision.fold:
            return ""
        return "hard" if decision.timing is None else decision.timing.reason

    def _pay(self, folded: Folded, tokens: int, now: float) -> None:
        """A model that is asked for the summary, with the prefix that is cached while it is warm."""
        if not folded.read:
            return
        last = self.health.last
        warm = last is not None and now - last.at < self.prices.ttl_seconds
        reused = self.folder.reuses_prefix and warm
        self.summary_cost += summary_price(
            folded=folded.read, prompt=tokens, written=folded.written, prices=self.prices, reused=reused
        )

    def _show(self, messages: tuple[object, ...]) -> None:
        self.view = View(self.meter, messages, fixed_tokens=self.fixed)  # type: ignore[arg-type]
