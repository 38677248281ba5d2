"""Replay one recorded conversation under one policy at one window, request by request.

Sessions that the agent's own compactions split are joined again. Every model response is one request, at the time of
the message it answers, or a fixed gap after the previous one. At a few requests, evenly spread, the view is scored:
does it contain the facts that the rest of the transcript uses?

The simulated provider: a breakpoint finds an entry at most `POSITIONS` blocks back; the longest live entry is read and
refreshed; tokens between it and the last breakpoint are written; the rest is sent at the base price. Prefixes below the
minimum are neither read nor written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from itertools import groupby
from typing import NamedTuple

import msgspec

from midfold.cache.breakpoints import plan
from midfold.cache.health import Health, RequestHashes
from midfold.cache.markers import block_count
from midfold.cache.prices import Prices, prices_for
from midfold.cache.schedule import summary_price
from midfold.decide import Decision, Situation, decide
from midfold.lab.message_text import size
from midfold.lab.recorded_sessions import (
    LEAST_FUTURE,
    LEAST_PAST,
    Cut,
    RecordedSession,
    SessionSource,
    Split,
    in_split,
    load_sessions,
    measurable,
    spread,
)
from midfold.lab.replay_policies import PaidFold, PolicyFolder, ReplayPolicy, prune_results
from midfold.lab.retention import facts_by_project
from midfold.lab.retention_facts import shared_facts
from midfold.lab.retention_score import Case, case_at, score
from midfold.models import Model, look_up
from midfold.transcript.message import Message, Transcript, Usage
from midfold.transcript.tokens import Meter

POSITIONS = 20


class SentView:
    """Messages to send with running totals, so that appending costs only the new messages."""

    def __init__(self, meter: Meter, messages: Iterable[Message] = (), *, fixed_tokens: int = 0) -> None:
        self.meter = meter
        self.messages: list[Message] = []
        self.tokens = [fixed_tokens]
        self.blocks = [1]
        self.chain = [b"fixed"]
        self.extend(messages)

    def extend(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self.messages.append(message)
            self.tokens.append(self.tokens[-1] + self.meter.tokens(self.meter.units(message), 1))
            self.blocks.append(self.blocks[-1] + block_count(message))
            self.chain.append(blake2b(self.chain[-1] + message.digest, digest_size=16).digest())

    @property
    def transcript(self) -> Transcript:
        return tuple(self.messages)

    @property
    def prompt_tokens(self) -> int:
        return self.tokens[-1]

    def common(self, other: SentView) -> int:
        """Return the number of messages in the common prefix of two views."""
        most = min(len(self.messages), len(other.messages))
        return bisect_left(range(1, most + 1), True, key=lambda count: self.chain[count] != other.chain[count])


class SimulatedCache:
    """Provider-side prompt cache of one session."""

    def __init__(self, prices: Prices, minimum: int = 0, positions: int = POSITIONS) -> None:
        self.prices, self.minimum, self.positions = prices, minimum, positions
        self._entries: dict[bytes, float] = {}

    def send(self, view: SentView, breakpoints: Sequence[int], now: float) -> Usage:
        """Simulate a request with breakpoints after these messages (-1: after the fixed prefix)."""
        places = sorted({index + 1 for index in breakpoints if view.tokens[index + 1] >= self.minimum})
        hit = self._longest(view, places, now)
        last = max([place for place in places if place > hit], default=hit)
        for place in places:
            if place > hit or self._is_live(view.chain[place], now):
                self._entries[view.chain[place]] = now + self.prices.ttl_seconds
        read = view.tokens[hit] if hit >= 0 else 0
        written = view.tokens[last] - read if last >= 0 else 0
        return Usage(prompt_tokens=view.prompt_tokens, cache_read_tokens=read, cache_write_tokens=written)

    def _longest(self, view: SentView, places: Sequence[int], now: float) -> int:
        best = -1
        for place in places:
            at = place
            while at > best and view.blocks[place] - view.blocks[at] < self.positions:
                if view.tokens[at] >= self.minimum and self._is_live(view.chain[at], now):
                    best = at
                    break
                at -= 1
        if best >= 0:
            self._entries[view.chain[best]] = now + self.prices.ttl_seconds
        return best

    def _is_live(self, key: bytes, now: float) -> bool:
        return self._entries.get(key, -1.0) >= now


STATED_GAP = 20.0
"""Seconds between two requests if no times were recorded."""
MOST_EXAMS = 6


class Recording(NamedTuple):
    """A conversation: `requests` are the indexes before which the model was called, `seconds` their times."""

    name: str
    session: RecordedSession
    requests: tuple[int, ...]
    seconds: tuple[float, ...]
    timed: bool
    exams: dict[int, Case]

    def fixed_tokens(self, meter: Meter) -> int:
        """Return the tokens a client sends besides the messages, from the first prompt size in its log."""
        if not self.session.model:
            return 0
        for place, usage in enumerate(self.session.usage):
            if usage is not None:
                before = self.session.messages[:place]
                return max(usage.prompt_tokens - meter.tokens(sum(map(meter.units, before)), len(before)), 0)
        return 0


def load_recordings(
    files: Iterable[SessionSource],
    *,
    gap: float = STATED_GAP,
    split: Split = "all",
    least_tokens: int = 0,
    exams: int = MOST_EXAMS,
) -> list[Recording]:
    """Load the conversations of transcript files, or of one half of them."""
    sessions = load_sessions(files)
    generic = shared_facts(facts_by_project(sessions)) if exams else frozenset()
    joined = [_join(list(group)) for _, group in groupby(sessions, key=lambda session: session.conversation)]
    return [
        _make_recording(session, gap, generic, exams)
        for session in joined
        if in_split(session, split) and sum(map(size, session.messages)) >= least_tokens
    ]


def _join(sessions: Sequence[RecordedSession]) -> RecordedSession:
    first, *rest = sessions
    return msgspec.structs.replace(
        first,
        messages=sum((later.messages[1:] for later in rest), first.messages),
        human=sum((later.human[1:] for later in rest), first.human),
        times=sum((later.times[1:] for later in rest), first.times),
        usage=sum((later.usage[1:] for later in rest), first.usage),
    )


def _make_recording(session: RecordedSession, gap: float, generic: frozenset[str], exams: int) -> Recording:
    messages = session.messages
    requests = [
        at
        for at in range(1, len(messages))
        if messages[at].role == "assistant" and messages[at - 1].role != "assistant"
    ]
    seconds: list[float] = []
    for at in requests:
        recorded = session.times[at - 1]
        earliest = seconds[-1] if seconds else 0.0
        seconds.append(max(recorded, earliest) if recorded is not None else earliest + (gap if seconds else 0.0))
    places = spread(measurable(session, requests, LEAST_PAST, LEAST_FUTURE), exams)
    taken = {at: case_at(Cut(session, at), generic) for at in places}
    timed = any(time is not None for time in session.times)
    return Recording(
        session.conversation,
        session,
        tuple(requests),
        tuple(seconds),
        timed,
        {at: e for at, e in taken.items() if e.needs},
    )


class PlayedRecording(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one recording; costs are in tokens at the base input price, without those of responses."""

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
    """Mean share of needed facts in the view at the scored requests."""
    exams: int = 0
    overflows: int = 0
    """Number of requests larger than the window, which a real provider would have refused."""

    @property
    def total(self) -> float:
        return self.cost + self.summary_cost


class Player:
    """Replay of one recording."""

    def __init__(
        self, recording: Recording, policy: ReplayPolicy, window: int, model: str, fixed_tokens: int | None = None
    ) -> None:
        self.recording, self.policy, self.window, self.model = recording, policy, window, model
        self.row: Model = look_up(model).model
        self.prices: Prices = prices_for(model, policy.ttl)
        self.meter = Meter(factor=self.row.factor, message_overhead=self.row.message_overhead)
        self.folder = PolicyFolder(policy, window, self.meter, self.prices)
        self.cache = SimulatedCache(self.prices, self.row.cache_minimum or 0)
        self.fixed = recording.fixed_tokens(self.meter) if fixed_tokens is None else fixed_tokens
        self.view = SentView(self.meter, fixed_tokens=self.fixed)
        self.reasons: dict[str, int] = {}
        self.summary_cost = 0.0
        self.health = Health()
        self.folds = 0

    def play(self) -> PlayedRecording:
        messages = self.recording.session.messages
        totals = {"sent": 0, "read": 0, "written": 0, "overflows": 0}
        marks: list[float] = []
        done = 0
        for at, now in zip(self.recording.requests, self.recording.seconds, strict=True):
            self.view.extend(messages[done:at])
            done = at
            self._shorten(now)
            usage = self.cache.send(self.view, self._breakpoints(), now)
            seen = RequestHashes(compaction=self.folds)
            self.health = self.health.observe(usage, seen, at=now, prices=self.prices)
            totals["sent"] += usage.prompt_tokens
            totals["read"] += usage.cache_read_tokens
            totals["written"] += usage.cache_write_tokens
            totals["overflows"] += usage.prompt_tokens > self.window
            if at in self.recording.exams:
                marks.append(score(self.view.transcript, self.recording.exams[at]).bound)
        return PlayedRecording(
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
            self._show(prune_results(self.view.transcript, tail))
        if self.policy.fold == "never":
            return
        tokens = self.view.prompt_tokens
        decision = self._decide(tokens, now)
        if not decision.fold:
            return
        reason = "hard" if decision.timing is None else decision.timing.reason
        folded = self.folder.fold(self.view.transcript, tokens, decision)
        if folded is not None:
            if self.policy.summary == "model" or (self.policy.summary == "limit" and reason == "hard"):
                self._pay(folded, tokens, now)
            self.reasons[reason] = self.reasons.get(reason, 0) + 1
            self._show(folded.outcome.messages)
            self.folds += 1

    def _decide(self, tokens: int, now: float) -> Decision:
        situation = Situation(
            prompt_tokens=tokens,
            threshold_tokens=self.folder.budget.threshold_tokens,
            schedule=self.folder.schedule,
            health=self.health,
            now=now,
            fixed_tokens=self.fixed,
            model=self.health.seen.model if self.health.seen is not None else None,
        )
        return decide(situation)

    def _pay(self, folded: PaidFold, tokens: int, now: float) -> None:
        """Charge for the summary request, using the cached prefix while it is alive."""
        if not folded.read:
            return
        last = self.health.last
        warm = last is not None and now - last.at < self.prices.ttl_seconds
        reused = self.folder.reuses_prefix and warm
        self.summary_cost += summary_price(
            folded=folded.read, prompt=tokens, written=folded.written, prices=self.prices, reused=reused
        )

    def _show(self, messages: tuple[object, ...]) -> None:
        self.view = SentView(self.meter, messages, fixed_tokens=self.fixed)  # type: ignore[arg-type]
