"""What providers reported for requests: the size of the next one is that, and an estimate of what is new.

Rules of this file:
1. A report is bound to the chain of the messages it measured and to the checkpoint that stood for some of them.
2. A report that is far from the estimate measured something else, and is not believed.
3. Without a report the estimate counts alone.
"""

from __future__ import annotations

from typing import NamedTuple

from midfold.lru import LRU
from midfold.transcript.tokens import HIGHEST_BELIEVED, LOWEST_BELIEVED, MOST_UNSEEN, Count

MOST = 20_000
LOWEST_RATIO, HIGHEST_RATIO = 0.5, 2.0

Key = tuple[bytes, bytes]
"""The chain of all messages, and that of the checkpoint; the latter is empty without one."""


class Report(NamedTuple):
    """Tokens of one prompt."""

    reported: int
    estimated: int


class Anchors:
    """The newest reports."""

    def __init__(self) -> None:
        self._known: LRU[Key, Report] = LRU(MOST)

    def observe(self, key: Key, reported: int, estimated: int) -> None:
        if not LOWEST_BELIEVED * estimated <= reported <= HIGHEST_BELIEVED * estimated + MOST_UNSEEN:
            return
        self._known.put(key, Report(reported, estimated))

    def size(self, chains: list[bytes], checkpoint: bytes, estimated: int) -> Count:
        """How large a request is whose own estimate is this."""
        for chain in reversed(chains):
            report = self._known.peek((chain, checkpoint))
            if report is not None:
                ratio = min(max(report.reported / max(report.estimated, 1), LOWEST_RATIO), HIGHEST_RATIO)
                new = round((estimated - report.estimated) * ratio)
                return Count(report.reported + new, "calibrated" if new else "reported")
        return Count(estimated, "estimated")
