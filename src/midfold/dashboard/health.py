"""What deserves a look in a session, worst first."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from midfold.dashboard.facts import CacheUse, CauseFacts, Finding, Level, Saved, Size
from midfold.dashboard.sizes import in_force
from midfold.dashboard.wording import percent
from midfold.decide import MOST_STRIKES
from midfold.session import memory_of
from midfold.store.protocol import CompactionRecord, SessionInfo

NEARLY_FULL = 0.95
FEWEST_REQUESTS = 5
POOR_HIT_RATE = 0.5
FEWEST_UNEXPECTED, MANY_UNEXPECTED = 3, 0.05
LEVELS: tuple[Level, ...] = ("problem", "warning", "note")


def findings(
    info: SessionInfo,
    records: Sequence[CompactionRecord],
    size: Size,
    saved: Saved,
    cache: CacheUse,
    causes: Sequence[CauseFacts],
    now_ms: int,
) -> tuple[Finding, ...]:
    """Sorted by level."""
    found = [
        *_fullness(info, size),
        *_folding(info, now_ms),
        *_summary(in_force(info, records)),
        *_caching(cache, causes),
        *_money(saved),
    ]
    found.sort(key=lambda item: LEVELS.index(item[0]))
    return tuple(Finding(level=level, what=what, session=info.name) for level, what in found)


Found = Iterator[tuple[Level, str]]


def _fullness(info: SessionInfo, size: Size) -> Found:
    if info.ended is not None:
        return
    if size.share >= NEARLY_FULL:
        yield "problem", f"{percent(size.share)} of its window is full"
    elif size.tokens >= size.threshold:
        yield "warning", f"{size.tokens:,} tokens, above the {size.threshold:,} at which it should be folded"


def _folding(info: SessionInfo, now_ms: int) -> Found:
    memory = memory_of(info)
    if memory.state.ineffective >= MOST_STRIKES:
        yield "problem", f"folding did not help {memory.state.ineffective} times in a row and has stopped"
    cooling = int(memory.state.cooldown_until * 1000)
    if cooling > now_ms:
        yield "warning", f"no summary is asked for during the next {(cooling - now_ms) // 1000 + 1} s after a failure"


def _summary(record: CompactionRecord | None) -> Found:
    if record is None:
        return
    receipt, summary = record.receipt, record.receipt.summary
    if not receipt.recoverable:
        yield "problem", f"compaction {record.seq} cannot be unfolded"
    if summary.facts_lost:
        yield "problem", f"compaction {record.seq} lost {summary.facts_lost:,} facts"
    if summary.failure:
        yield "warning", f"compaction {record.seq} had no model for its summary: {summary.failure}"
    if summary.unverified:
        yield (
            "note",
            f"{summary.unverified:,} names in the summary of compaction {record.seq} are not in what it folded",
        )


def _caching(cache: CacheUse, causes: Sequence[CauseFacts]) -> Found:
    uses = cache.read_tokens or cache.written_tokens
    if uses and cache.requests >= FEWEST_REQUESTS and cache.hit_rate is not None and cache.hit_rate < POOR_HIT_RATE:
        yield "warning", f"only {percent(cache.hit_rate)} of its prompt tokens came from the cache"
    unexpected = next((one for one in causes if one.cause == "unexpected"), None)
    if unexpected is not None and unexpected.requests >= max(FEWEST_UNEXPECTED, MANY_UNEXPECTED * cache.requests):
        yield "warning", f"{unexpected.requests:,} requests missed the cache for no reason that is known"


def _money(saved: Saved) -> Found:
    if saved.net is not None and saved.net <= -0.01:
        yield "note", f"folding has cost ${-saved.net:,.2f} more than it saved so far"
