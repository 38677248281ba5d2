"""Policies to compare: when to compact, what to prune, where to set breakpoints. Python values or small YAML files."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import msgspec
from msgspec import Meta

from midfold.cache.prices import Prices
from midfold.cache.schedule import CHEAP_SOFT_SHARE, LANDING, PATIENCE, Schedule, Writer
from midfold.compaction.assemble import assemble
from midfold.compaction.boundary import Protection
from midfold.compaction.budget import Budget, plan_budget
from midfold.compaction.context import CompactionContext
from midfold.compaction.finish import leave
from midfold.compaction.local.digest import PLACEHOLDER
from midfold.compaction.planner import plan_whole
from midfold.compaction.redact import redact
from midfold.compaction.request import (
    CompactionRequest,
    CompactionState,
    Flow,
    Options,
    Outcome,
    SummaryAnswer,
    SummaryRequest,
)
from midfold.decide import Decision
from midfold.engines import Compressor
from midfold.errors import ConfigError
from midfold.lab.message_text import change_results
from midfold.model import drive, local_summarizer
from midfold.transcript.message import Transcript
from midfold.transcript.tokens import Meter

Share = Annotated[float, Meta(gt=0.0, le=1.0)]


class ReplayPolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A way to run a session; the defaults are midfold's scheduler."""

    name: str
    markers: Literal["planned", "system_and_3", "none"] = "planned"
    ttl: Literal["5m", "1h"] = "5m"
    fold: Literal["never", "threshold", "auto", "scheduled"] = "scheduled"
    """When to compact; `auto` is the default of `prompt_caching.schedule` and ignores `soft`, `landing` and
    `patience`.
    """
    engine: Literal["midfold", "documented"] = "midfold"
    prune: Literal["digest", "placeholder", "off"] = "digest"
    prune_every_turn: bool = False
    threshold: Share = 0.85
    """HARD pressure, as a share of the window."""
    soft: Share = CHEAP_SOFT_SHARE
    """SOFT pressure, as a share of the threshold."""
    landing: Share = LANDING
    """Target size of a compaction, as a share of the threshold."""
    target_ratio: Share = 0.2
    protect_last_n: Annotated[int, Meta(ge=1)] = 20
    patience: Annotated[float, Meta(gt=0.0)] = PATIENCE
    summary: Literal["model", "limit", "local"] = "local"
    """Whether a summary is paid for (the fold as input, the summary as output), or only at the threshold (`limit`).
    Its text is always made locally.
    """


NO_COMPACTION = ReplayPolicy(name="no compaction", fold="never")
DOCUMENTED = ReplayPolicy(
    name="documented",
    markers="system_and_3",
    fold="threshold",
    engine="documented",
    prune="placeholder",
    threshold=0.5,
    summary="model",
)
"""The specification's policy: `system_and_3`, a model's summary at half of the window, 20 % or 20 messages as the
tail.
"""
PRUNE_EVERY_TURN = msgspec.structs.replace(
    DOCUMENTED, name="prune every turn", markers="planned", prune_every_turn=True
)
SCHEDULED = ReplayPolicy(name="scheduled")
"""`prompt_caching.schedule: cheapest` with a threshold of 0.85."""
THRESHOLD = ReplayPolicy(name="threshold", fold="threshold", threshold=0.5)
"""The default settings with `prompt_caching.schedule: threshold`."""
DEFAULT = ReplayPolicy(name="default", fold="auto", threshold=0.5)
"""The default settings."""
POLICIES: dict[str, ReplayPolicy] = {
    policy.name: policy for policy in (DOCUMENTED, NO_COMPACTION, PRUNE_EVERY_TURN, THRESHOLD, SCHEDULED, DEFAULT)
}


def load_policy(place: str) -> ReplayPolicy:
    """Load a built-in policy by name, or one from a YAML file."""
    named = place.replace("-", " ").replace("_", " ")
    if named in POLICIES:
        return POLICIES[named]
    import yaml

    path = Path(place)
    try:
        value: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        known = ", ".join(name.replace(" ", "-") for name in POLICIES)
        why = (error.strerror or str(error)).lower()
        raise ConfigError(f"policy {place}: {why}; expected a YAML file, or one of {known}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError(f"policy {place} is not YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(value, dict):
        raise ConfigError(f"policy {place}: expected a mapping of settings such as fold: scheduled")
    try:
        return msgspec.convert({"name": path.stem, **value, **_words(value)}, ReplayPolicy)
    except msgspec.ValidationError as error:
        fields = ", ".join(ReplayPolicy.__struct_fields__)
        raise ConfigError(f"policy {place}: {error} (settings: {fields})") from None


def _words(value: dict[str, Any]) -> dict[str, Any]:
    """Restore `off`, which YAML 1.1 reads as false."""
    return {"prune": "off"} if value.get("prune") is False else {}


SMALLEST_RESULT = 200


class DocumentedEngine(Compressor):
    """Engine with only the four documented phases: head, fold with a summary, tail by budget or by 20 messages."""

    name: ClassVar[str] = "documented"

    def compress(self, request: CompactionRequest) -> Flow:
        job = CompactionContext(request)
        plan = plan_whole(job)
        new = job.new_turns(plan)
        if not new:
            return leave(job, "there is nothing between head and tail to fold", plan, strike=True)
        ask = job.ask(plan, new)
        answer = yield ask
        return assemble(job, plan, ask, answer)


class PaidFold:
    """A compaction and the cost of its summary: tokens a model reads, and tokens it writes."""

    def __init__(self, outcome: Outcome, read: int, written: int) -> None:
        self.outcome, self.read, self.written = outcome, read, written


class PolicyFolder:
    """A policy's engine at one window."""

    def __init__(self, policy: ReplayPolicy, window: int, meter: Meter, prices: Prices) -> None:
        self.policy, self.meter = policy, meter
        self.engine = DocumentedEngine() if policy.engine == "documented" else Compressor()
        self.budget: Budget = plan_budget(window, ratio=policy.threshold, target_ratio=policy.target_ratio)
        self.state = CompactionState()
        self.schedule = self._schedule(prices)

    def _schedule(self, prices: Prices) -> Schedule | None:
        policy = self.policy
        if policy.fold in ("never", "threshold"):
            return None
        writer = None if policy.summary != "model" else Writer(reuses_prefix=self.reuses_prefix)
        if policy.fold == "auto":
            return Schedule.automatic_for(self.budget, prices, writer)
        return Schedule(
            threshold_tokens=self.budget.threshold_tokens,
            prices=prices,
            soft=policy.soft,
            share=policy.landing,
            patience=policy.patience,
            writer=writer,
        )

    @property
    def reuses_prefix(self) -> bool:
        """Return whether summary requests go to the same model with its cached prefix."""
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
        )

    def fold(self, messages: Transcript, prompt_tokens: int, decision: Decision) -> PaidFold | None:
        """Compact and return the result, or None if there was nothing to do."""
        asks: list[SummaryRequest] = []

        def summarize(ask: SummaryRequest) -> SummaryAnswer:
            asks.append(ask)
            return local_summarizer(ask)

        outcome = drive(self.engine.compress(decision.apply(self.request(messages, prompt_tokens))), summarize)
        read = self._read_by_model(asks[0]) if asks else 0
        asked = asks[0].asked_tokens if asks else 0
        self.state = outcome.state
        if not outcome.changed:
            return None
        return PaidFold(outcome, read, min(outcome.receipt.summary.tokens, asked))

    def _read_by_model(self, ask: SummaryRequest) -> int:
        sent = prune_results(ask.messages, len(ask.messages)) if self.policy.prune == "placeholder" else ask.messages
        tokens = self.meter.tokens(sum(map(self.meter.units, sent)), len(sent))
        return tokens + self.meter.counter.count(ask.previous)


def prune_results(messages: Transcript, upto: int) -> Transcript:
    """Clear the tool results of the first `upto` messages, as documented."""
    return (*(change_results(message, _clear) for message in messages[:upto]), *messages[upto:])


def _clear(result: str) -> str:
    return PLACEHOLDER if len(result) > SMALLEST_RESULT else result
