"""Metrics per record and in total: counts that can be added in any order, and histograms with fixed bins."""

from __future__ import annotations

from collections import Counter
from typing import Any, Literal

import msgspec

Status = Literal["under_target", "compressed", "over_limit", "failed"]
STATUSES: tuple[Status, ...] = ("under_target", "compressed", "over_limit", "failed")
TOKEN_STEP, LOWEST_BIN = 1.25, -20
RATIO_BINS, RETENTION_BINS = 20, 20
LONGEST_REASON = 200
FINE = 10_000


class RecordMetrics(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One record. `over_limit` means compressed as far as the protected turns allow and still above the target."""

    file: str = ""
    line: int = 0
    id: str | None = None
    status: Status
    format: str = ""
    tokens_before: int = 0
    """Tokens before compression: exact for kept turns, estimated for folded ones."""
    tokens_after: int = 0
    turns_before: int = 0
    turns_after: int = 0
    fold: tuple[int, int] | None = None
    """Folded turns, first and one past the last; folded turns among the protected first ones are not included."""
    summary_tokens: int = 0
    summary_calls: int = 0
    summary_errors: int = 0
    summary_by: str = ""
    retention: float | None = None
    reason: str = ""


class Totals(msgspec.Struct, kw_only=True):
    """Sums over records. Addition is commutative, so the order of completion does not matter."""

    records: int = 0
    under_target: int = 0
    compressed: int = 0
    over_limit: int = 0
    failed: int = 0
    tokens_before: int = 0
    tokens_after: int = 0
    turns_before: int = 0
    turns_after: int = 0
    summary_calls: int = 0
    summary_errors: int = 0
    retention_sum: int = 0
    """Sum in ten-thousandths: integers add up to the same in any order."""
    retention_records: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    formats: dict[str, int] = {}
    reasons: dict[str, int] = {}
    before: dict[int, int] = {}
    after: dict[int, int] = {}
    ratios: dict[int, int] = {}
    retentions: dict[int, int] = {}

    def add(self, record: RecordMetrics, target: int) -> None:
        self.records += 1
        setattr(self, record.status, getattr(self, record.status) + 1)
        for name in ("tokens_before", "tokens_after", "turns_before", "turns_after", "summary_calls", "summary_errors"):
            setattr(self, name, getattr(self, name) + getattr(record, name))
        if record.reason:
            _count(self.reasons, record.reason[:LONGEST_REASON])
        if record.status == "failed":
            return
        _count(self.formats, record.format)
        _count(self.before, token_bin(record.tokens_before, target))
        _count(self.after, token_bin(record.tokens_after, target))
        if record.fold is not None:
            _count(self.ratios, _share_bin(record.tokens_after / max(record.tokens_before, 1), RATIO_BINS))
        if record.retention is not None:
            self.retention_sum += round(record.retention * FINE)
            self.retention_records += 1
            _count(self.retentions, _share_bin(record.retention, RETENTION_BINS))

    def merge(self, other: Totals) -> None:
        for name in self.__struct_fields__:
            mine, theirs = getattr(self, name), getattr(other, name)
            setattr(self, name, dict(Counter(mine) + Counter(theirs)) if isinstance(mine, dict) else mine + theirs)

    @property
    def retention(self) -> float | None:
        """The mean over the records that could be measured."""
        return round(self.retention_sum / self.retention_records / FINE, 4) if self.retention_records else None

    @property
    def saved_share(self) -> float:
        """The share of tokens saved."""
        return 1 - self.tokens_after / self.tokens_before if self.tokens_before else 0.0

    def plain(self, target: int) -> dict[str, Any]:
        """Return everything as JSON with keys in a fixed order, without message content."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__}
        del fields["retention_sum"]
        counted = {
            name: {key: value[key] for key in sorted(value)} if isinstance(value, dict) else value
            for name, value in fields.items()
        }
        bins = {name: counted.pop(name) for name in ("before", "after", "ratios", "retentions")}
        return {
            **counted,
            "retention": self.retention,
            "tokens_saved": self.tokens_before - self.tokens_after,
            "histograms": {
                "tokens_before": _by_edge(bins["before"], target),
                "tokens_after": _by_edge(bins["after"], target),
                "share_kept": _by_share(bins["ratios"], RATIO_BINS),
                "retention": _by_share(bins["retentions"], RETENTION_BINS),
            },
        }


def token_bin(tokens: int, target: int) -> int:
    """Return the bin of a token count; bins grow by a quarter, and bin 0 is the last one within the target."""
    edge, number = float(target), 0
    while tokens > edge:
        edge *= TOKEN_STEP
        number += 1
    while tokens <= edge / TOKEN_STEP and number > LOWEST_BIN:
        edge /= TOKEN_STEP
        number -= 1
    return number


def bin_edge(number: int, target: int) -> int:
    """Return the upper edge of a token bin."""
    return round(target * TOKEN_STEP**number)


def _share_bin(share: float, bins: int) -> int:
    return min(int(share * bins), bins)


def _by_edge(counts: dict[int, int], target: int) -> dict[str, int]:
    return {f"<={bin_edge(number, target)}": count for number, count in counts.items()}


def _by_share(counts: dict[int, int], bins: int) -> dict[str, int]:
    return {f">={number / bins:.2f}": count for number, count in counts.items()}


def _count(counts: dict[Any, int], key: Any) -> None:
    counts[key] = counts.get(key, 0) + 1
