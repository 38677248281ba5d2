"""Replay every recording under every policy at every window, and summarize the results in totals and a chart.

On each recording, a policy is compared only with policies that never exceeded the window.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import cycle
from typing import NamedTuple

import msgspec

from midfold.cache.prices import Prices, prices_for
from midfold.drawing import COLOURS, Frame, Markup, document, rect, text, ticks
from midfold.errors import MidfoldError, TranscriptError
from midfold.lab.processes import Report, work_through
from midfold.lab.recorded_sessions import SessionSource, Split
from midfold.lab.replay_player import MOST_EXAMS, STATED_GAP, PlayedRecording, Player, Recording, load_recordings
from midfold.lab.replay_policies import POLICIES, ReplayPolicy

MODEL = "claude-sonnet-4-5"
WINDOWS = (32_000, 64_000, 128_000, 200_000)
CENTS_BELOW = 20


class PolicyTotal(msgspec.Struct, frozen=True, kw_only=True):
    """One policy at one window over all recordings. Costs are in tokens at the base input price, money in dollars."""

    policy: str
    window: int
    requests: int
    sent: int
    read: int
    written: int
    cost: float
    summary_cost: float
    money: float
    folds: int
    reasons: dict[str, int]
    retention: float | None
    exams: int
    overflows: int
    """Number of recordings with a request larger than the window."""

    @property
    def hit_rate(self) -> float:
        return self.read / self.sent if self.sent else 0.0


class PolicyComparison(msgspec.Struct, frozen=True, kw_only=True):
    """One policy on one recording, compared with the cheapest one that fits the window."""

    recording: str
    window: int
    policy: str
    best: str
    ratio: float
    cost: float
    folds: int


class RecordedBill(msgspec.Struct, frozen=True, kw_only=True):
    """Cost of the recorded requests by the providers' reported usage, at the prices of the replay."""

    requests: int = 0
    sent: int = 0
    read: int = 0
    written: int = 0
    cost: float = 0.0
    money: float = 0.0

    @classmethod
    def of(cls, recordings: Sequence[Recording], prices: Prices) -> RecordedBill:
        reported = [usage for recording in recordings for usage in recording.session.usage if usage is not None]
        cost = sum(usage.prompt_tokens - prices.saved_units(usage) for usage in reported)
        return cls(
            requests=len(reported),
            sent=sum(usage.prompt_tokens for usage in reported),
            read=sum(usage.cache_read_tokens for usage in reported),
            written=sum(usage.cache_write_tokens for usage in reported),
            cost=cost,
            money=prices.money(cost),
        )


class Replay:
    """All rows, and the figures computed from them."""

    def __init__(
        self, rows: Iterable[PlayedRecording], prices: Prices, model: str, timed: int, bill: RecordedBill
    ) -> None:
        self.rows = tuple(rows)
        self.prices, self.model, self.timed, self.bill = prices, model, timed, bill

    @property
    def recordings(self) -> int:
        return len({row.recording for row in self.rows})

    @cached_property
    def totals(self) -> list[PolicyTotal]:
        groups: dict[tuple[int, str], list[PlayedRecording]] = {}
        for row in self.rows:
            groups.setdefault((row.window, row.policy), []).append(row)
        return [self._total(rows) for _, rows in sorted(groups.items(), key=lambda item: item[0][0])]

    def total(self, policy: str, window: int) -> PolicyTotal:
        return next(total for total in self.totals if (total.policy, total.window) == (policy, window))

    def _total(self, rows: Sequence[PlayedRecording]) -> PolicyTotal:
        reasons: Counter[str] = Counter()
        for row in rows:
            reasons.update(row.reasons)
        exams = sum(row.exams for row in rows)
        kept = sum(row.retention * row.exams for row in rows if row.retention is not None)
        cost = sum(row.total for row in rows)
        return PolicyTotal(
            policy=rows[0].policy,
            window=rows[0].window,
            requests=sum(row.requests for row in rows),
            sent=sum(row.sent for row in rows),
            read=sum(row.read for row in rows),
            written=sum(row.written for row in rows),
            cost=cost,
            summary_cost=sum(row.summary_cost for row in rows),
            money=self.prices.money(cost),
            folds=sum(row.folds for row in rows),
            reasons=dict(reasons),
            retention=kept / exams if exams else None,
            exams=exams,
            overflows=sum(row.overflows > 0 for row in rows),
        )

    def against_best(self, policy: str) -> list[PolicyComparison]:
        """Return the recordings where this policy lost most, worst first, without those it could not serve."""
        found = []
        by_place: dict[tuple[int, str], list[PlayedRecording]] = {}
        for row in self.rows:
            by_place.setdefault((row.window, row.recording), []).append(row)
        for (window, recording), rows in by_place.items():
            mine = next((row for row in rows if row.policy == policy), None)
            others = [row for row in rows if row.policy != policy and not row.overflows]
            if mine is None or mine.overflows or not others:
                continue
            best = min(others, key=lambda row: row.total)
            ratio = mine.total / best.total if best.total else 1.0
            found.append(
                PolicyComparison(
                    recording=recording,
                    window=window,
                    policy=policy,
                    best=best.policy,
                    ratio=ratio,
                    cost=mine.total,
                    folds=mine.folds,
                )
            )
        return sorted(found, key=lambda row: -row.ratio)


class _ReplayPlan(NamedTuple):
    recordings: Sequence[Recording]
    policies: Sequence[ReplayPolicy]
    windows: Sequence[int]
    model: str
    fixed_tokens: int | None


def replay(
    files: Iterable[SessionSource],
    *,
    policies: Iterable[ReplayPolicy] | None = None,
    windows: Sequence[int] = WINDOWS,
    model: str | None = None,
    gap: float = STATED_GAP,
    fixed_tokens: int | None = None,
    exams: int = MOST_EXAMS,
    least_tokens: int = 0,
    split: Split = "all",
    workers: int = 1,
    progress: Report | None = None,
) -> Replay:
    """Replay recorded conversations. `gap` is the time between requests if none was recorded.

    `model` defaults to that of the logs, else `MODEL`; `fixed_tokens` defaults to what the logs' usage implies.
    """
    chosen = tuple(POLICIES.values() if policies is None else policies)
    names = [policy.name for policy in chosen]
    if len(set(names)) != len(names):
        raise MidfoldError(f"two policies have the same name: {', '.join(names)}")
    recordings = load_recordings(files, gap=gap, split=split, least_tokens=least_tokens, exams=exams)
    recordings = [recording for recording in recordings if recording.requests]
    if not recordings:
        raise TranscriptError("nothing to replay: no conversation has a model response")
    logged = Counter(recording.session.model for recording in recordings if recording.session.model)
    whose = model or (logged.most_common(1)[0][0] if logged else MODEL)
    plan = _ReplayPlan(recordings, chosen, tuple(windows), whose, fixed_tokens)
    rows = work_through(_play, plan, len(recordings), workers, progress)
    prices = prices_for(whose)
    timed = sum(recording.timed for recording in recordings)
    return Replay(rows, prices, whose, timed, RecordedBill.of(recordings, prices))


def _play(plan: _ReplayPlan, number: int) -> list[PlayedRecording]:
    recording = plan.recordings[number]
    return [
        Player(recording, policy, window, plan.model, plan.fixed_tokens).play()
        for window in plan.windows
        for policy in plan.policies
    ]


def cost_chart(
    totals: Sequence[PolicyTotal], *, title: str = "Cost of the sessions by policy", subtitle: str = ""
) -> str:
    """Return an SVG with one group of bars per window, each labelled with the share of needed facts in the view."""
    windows = list(dict.fromkeys(total.window for total in totals))
    colours = dict(zip(dict.fromkeys(total.policy for total in totals), cycle(COLOURS), strict=False))
    frame = Frame(860, 460, max(map(_height, totals), default=0) or 1.0, left=64, right=20, top=92, bottom=60)
    dollars = "${:,.2f}" if frame.most < CENTS_BELOW else "${:,.0f}"
    label = dollars.format if any(total.money for total in totals) else _millions
    note = "above each bar: share of needed facts in view; hollow: some requests were larger than the window"
    body = [
        text(frame.left, 28, title, "ink title"),
        text(frame.left, 47, subtitle, "faint"),
        *_legend(colours, frame.left),
        *frame.scale(ticks(frame.most, 5), label, "faint"),
        text(frame.left, frame.height - 12, note, "faint small"),
    ]
    for number, window in enumerate(windows):
        group = [total for total in totals if total.window == window]
        body += _bars(frame, group, colours, frame.x(number / len(windows)), frame.x(1 / len(windows)) - frame.left)
        middle = frame.x((number + 0.5) / len(windows))
        body.append(text(middle, frame.height - 34, f"{window // 1000}k window", "ink", "middle"))
    return document(frame.width, frame.height, title, body)


def _height(total: PolicyTotal) -> float:
    return total.money or total.cost


def _millions(value: float) -> str:
    return f"{value / 1e6:,.1f}M"


def _legend(colours: Mapping[str, str], x: float) -> Iterator[Markup]:
    for policy, colour in colours.items():
        yield rect(x, 60, 12, 12, rx=2, fill=colour)
        yield text(x + 18, 71, policy, "ink")
        x += 36 + 7.2 * len(policy)


def _bars(
    frame: Frame, group: Sequence[PolicyTotal], colours: Mapping[str, str], left: float, width: float
) -> Iterator[Markup]:
    bar = width * 0.84 / len(colours)
    for total in group:
        x, y = left + width * 0.08 + list(colours).index(total.policy) * bar, frame.y(_height(total))
        colour = colours[total.policy]
        fill, stroke = ("none", colour) if total.overflows else (colour, None)
        yield rect(x, y, bar * 0.86, frame.y(0) - y, fill=fill, stroke=stroke, stroke_width=2 if stroke else None)
        if total.retention is not None:
            yield text(x + bar * 0.43, y - 5, f"{total.retention:.2f}".lstrip("0"), "faint small", "middle")
