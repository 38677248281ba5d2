"""Fit the constants of `midfold.compaction.local.identifiers` to the real future of recorded conversations.

    python -m bench.fit_ledger            print the constants, and how well they rank on the held-out half

A name in the past is needed if the retention measure (midfold.lab) says so. The fit is a logistic regression over
the
features of `worth`, by gradient descent on the training half; all cuts have equal weight. Requires only
../shared/data.
"""

from __future__ import annotations

import sys
from math import exp, log1p

from bench.workload import LONG_SOURCES, SHARED
from midfold.compaction.local.fold_reader import FoldReader
from midfold.compaction.local.identifiers import CALLED, RESULT, SAID, USER, NameCounts, Shape, subwords
from midfold.compaction.redact import redact
from midfold.compaction.request import SummaryRequest
from midfold.lab.recorded_sessions import all_cuts, half_of, load_sessions
from midfold.lab.retention import facts_by_project
from midfold.lab.retention_facts import shared_facts
from midfold.lab.retention_score import needs_at

FEATURES = (
    "SINCE_LAST", "NEVER_BY_ASSISTANT", "MORE_MESSAGES", "USER", "SAID", "CALLED", "RESULT", "BY_USER", "IN_RESULT",
    "TOPICAL", "LENGTH", "REPEATED", *(f"Shape.{shape.name}" for shape in Shape), "INTERCEPT",
)  # fmt: skip
ROUNDS, RATE, DECAY = 12, 0.5, 1e-5
SHARES = (0.05, 0.1, 0.2)


class Cut:
    """Names of one past as features, with labels for the needed ones."""

    def __init__(self, rows: list[list[float]], needed: list[bool], half: str) -> None:
        self.rows, self.needed, self.half = rows, needed, half


def main() -> None:
    if not SHARED.is_dir():
        sys.exit("the shared transcripts (../shared/data) are not here")
    cuts = list(_cuts())
    train = [cut for cut in cuts if cut.half == "train"]
    weights = fitted(train)
    for name, weight in zip(FEATURES, weights, strict=True):
        print(f"  {name:22} {weight:6.2f}")
    for half in ("train", "held"):
        chosen = [cut for cut in cuts if cut.half == half]
        shares = ", ".join(f"{recall(chosen, weights, share):.3f} in the best {share:.0%}" for share in SHARES)
        print(f"  {half}: {len(chosen)} cuts, needed names found: {shares}")


def _cuts() -> list[Cut]:
    sessions = load_sessions([SHARED / source / "conversations.jsonl" for source in LONG_SOURCES])
    generic = shared_facts(facts_by_project(sessions))
    found = []
    for cut in all_cuts(sessions):
        needed = {need.fact for need in needs_at(cut.past, cut.future, generic)}
        if needed:
            reading = FoldReader(SummaryRequest(messages=cut.past, budget_tokens=0, fold="", redact=redact))
            entries = {name: entry for name, entry in reading.census.entries.items() if entry.messages}
            rows = [features(name, entry, reading) for name, entry in entries.items()]
            marks = [name in needed for name in entries]
            found.append(Cut(rows, marks, half_of(cut.session.conversation)))
    return found


def features(name: str, entry: NameCounts, reading: FoldReader) -> list[float]:
    counts = entry.counts
    values = [
        log1p(reading.length - entry.last),
        float(entry.assistant < 0),
        log1p(entry.messages - 1),
        *(log1p(counts[who]) for who in (USER, SAID, CALLED, RESULT)),
        float(counts[USER] > 0),
        float(counts[RESULT] > 0),
        float(reading.recent.issuperset(subwords(name))),
        log1p(len(name)),
        float(entry.messages > 1),
    ]
    return [*values, *(float(entry.shape == shape) for shape in Shape), 1.0]


def fitted(cuts: list[Cut]) -> list[float]:
    """Fit weights by gradient descent with a decreasing step; deterministic."""
    weights = [0.0] * len(FEATURES)
    weights[-1] = -3.0
    for number in range(ROUNDS):
        step = RATE / (1 + number / 20)
        for cut in cuts:
            gradient = [0.0] * len(weights)
            for row, needed in zip(cut.rows, cut.needed, strict=True):
                error = probability(row, weights) - needed
                for place, value in enumerate(row):
                    if value:
                        gradient[place] += error * value
            scale = step / max(sum(cut.needed), 1) / 10
            weights = [weight * (1 - DECAY) - scale * slope for weight, slope in zip(weights, gradient, strict=True)]
    return weights


def probability(row: list[float], weights: list[float]) -> float:
    score = sum(value * weight for value, weight in zip(row, weights, strict=True) if value)
    return 1 / (1 + exp(-max(min(score, 30.0), -30.0)))


def recall(cuts: list[Cut], weights: list[float], share: float) -> float:
    """Return the mean share of needed names among the best of each cut."""
    found = []
    for cut in cuts:
        order = sorted(range(len(cut.rows)), key=lambda place: -probability(cut.rows[place], weights))
        best = order[: max(int(len(order) * share), 1)]
        if any(cut.needed):
            found.append(sum(cut.needed[place] for place in best) / sum(cut.needed))
    return sum(found) / len(found)


if __name__ == "__main__":
    main()
