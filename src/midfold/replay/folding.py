"""How a policy shortens a view: midfold's engine, the documented one, and pruning at every turn."""

from __future__ import annotations

from typing import ClassVar

import msgspec

from midfold.cache.prices import Prices
from midfold.cache.schedule import Schedule, Writer
from midfold.engine import Compressor
from midfold.engine.assemble import assemble
from midfold.engine.job import Job
from midfold.fold.boundary import Protection
from midfold.fold.budget import Budget, plan_budget
from midfold.fold.digest.digest import PLACEHOLDER
from midfold.fold.redact import redact
from midfold.fold.request import CompactionRequest, CompactionState, Flow, Options, Outcome, SummaryAnswer, SummaryAsk
from midfold.model import drive, local_summarizer
from midfold.replay.policy import Policy
from midfold.transcript.message import Message, Text, ToolResult, Transcript
from midfold.transcript.tokens import Meter

SMALLEST_RESULT = 200


class Documented(Compressor):
    """The four documented phases and nothing else: head, fold with a summary, tail by budget or by 20 messages."""

    name: ClassVar[str] = "documented"

    def compress(self, request: CompactionRequest) -> Flow:
        job = Job(request)
        plan = job.plan()
        new = job.new_turns(plan)
        if not new:
            return job.unchanged("there is nothing between head and tail to fold", plan, strike=True)
        ask = job.ask(plan, new)
        answer = yield ask
        return assemble(job, plan, ask, answer)


class Folded:
    """A fold, and what its summary would have cost: tokens a model reads, and tokens it writes."""

    def __init__(self, outcome: Outcome, read: int, written: int) -> None:
        self.outcome, self.read, self.written = outcome, read, written


class Folder:
    """A policy's engine at one window."""

    def __init__(self, policy: Policy, window: int, meter: Meter, prices: Prices) -> None:
        self.policy, self.meter = policy, meter
        self.engine = Documented() if policy.engine == "documented" else Compressor()
        budget = plan_budget(window, ratio=policy.threshold, target_ratio=policy.target_ratio)
        aimed = int(budget.threshold_tokens * policy.landing)
        self.budget: Budget = msgspec.structs.replace(budget, landing_tokens=max(aimed, 1))
        self.state = CompactionState()
        self.schedule = Schedule(
            threshold_tokens=budget.threshold_tokens,
            prices=prices,
            soft=policy.soft,
            share=policy.landing,
            patience=policy.patience,
            writer=None if policy.summary != "model" else Writer(reuses_prefix=self.reuses_prefix),
        )

    @property
    def reuses_prefix(self) -> bool:
        """midfold asks the same model with the prefix it has cached."""
        return self.policy.engine == "midfold" and self.policy.markers != "none"

    def request(self, messages: Transcript, prompt_tokens: int) -> CompactionRequest:
        options = Options(
            prune="digest" if self.policy.engine == "documented" else self.policy.prune,
            protection=Protection(protect_last_n=self.policy.protect_last_n),
        )
        return CompactionRequest(
            messages=messages,
            budget=self.budget,
            meter=self.meter,
            redact=redact,
            prompt_tokens=prompt_tokens,
            state=self.state,
            options=options,
            force=True,
            target_tokens=self.schedule.target(prompt_tokens) if self.policy.dense else None,
        )

    def fold(self, messages: Transcript, prompt_tokens: int) -> Folded | None:
        """The view after a fold; None if there was nothing to do."""
        asks: list[SummaryAsk] = []

        def summarize(ask: SummaryAsk) -> SummaryAnswer:
            asks.append(ask)
            return local_summarizer(ask)

        outcome = drive(self.engine.compress(self.request(messages, prompt_tokens)), summarize)
        read = self._read_by_model(asks[0]) if asks else 0
        asked = asks[0].asked_tokens if asks else 0
        self.state = outcome.state
        if not outcome.changed:
            return None
        return Folded(outcome, read, min(outcome.receipt.summary.tokens, asked))

    def _read_by_model(self, ask: SummaryAsk) -> int:
        sent = pruned(ask.messages, len(ask.messages)) if self.policy.prune == "placeholder" else ask.messages
        tokens = self.meter.tokens(sum(map(self.meter.units, sent)), len(sent))
        return tokens + self.meter.counter.count(ask.previous)


def pruned(messages: Transcript, upto: int) -> Transcript:
    """The messages with the results of the first `upto` cleared, as the documents have it."""
    return (*map(_cleared, messages[:upto]), *messages[upto:])


def _cleared(message: Message) -> Message:
    if not any(isinstance(part, ToolResult) and len(part.text) > SMALLEST_RESULT for part in message.parts):
        return message
    parts = tuple(
        ToolResult(part.call_id, (Text(PLACEHOLDER),), part.is_error, part.name, wire=part.wire)
        if isinstance(part, ToolResult) and len(part.text) > SMALLEST_RESULT
        else part
        for part in message.parts
    )
    return message.with_parts(parts)
