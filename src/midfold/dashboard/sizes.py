"""How large a session is now, without reading all of it.

What the provider counted last is exact, and so nearly is what the last compaction left; only what came after either is
counted here. Where that is very much, some of it is counted and the rest inferred.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache

from midfold.api import believe, budget_for, meter_for
from midfold.config import Config
from midfold.dashboard.facts import Share, Size, SizeBasis
from midfold.dashboard.places import Place, Places, Shelf
from midfold.models import Model
from midfold.session import memory_of
from midfold.store.intake import values_of
from midfold.store.protocol import CompactionRecord, SessionInfo, ViewPiece
from midfold.store.usage import LastRequest, ReportedTurn
from midfold.transcript.breakdown import by_kind
from midfold.transcript.document import tool_of
from midfold.transcript.message import Message
from midfold.transcript.tokens import Meter

MOST_COUNTED = 400
"""Messages that are counted for one answer."""
MOST_MODELS = 256
"""Names of models that are looked up once only."""
BLOCK = 40
"""Messages of a sample are neighbours, so that it takes few queries."""


def _is_now(count: int, compaction: int, info: SessionInfo) -> bool:
    """Whether a request of so many messages is no older than what is stored."""
    return count >= info.count and compaction == info.compaction


def in_force(info: SessionInfo, records: Sequence[CompactionRecord]) -> CompactionRecord | None:
    return next((record for record in records if record.seq == info.compaction), None)


class Gauge:
    """Measures sessions."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.belief = lru_cache(maxsize=MOST_MODELS)(lambda name: believe(name, config))

    def model(self, name: str | None) -> Model:
        return self.belief(name).model

    def meter(self, model: str | None) -> Meter:
        return meter_for(self.belief(model))

    def size(
        self,
        shelf: Shelf,
        records: Sequence[CompactionRecord],
        newest: ReportedTurn | None = None,
        sketch: LastRequest | None = None,
    ) -> Size:
        """A gateway notes its last request, in a sketch or a turn, long before it stores what was said."""
        info = shelf.info
        tokens, basis = self._noted(info, newest, sketch) or self._tokens(shelf, records)
        window, threshold = self._limits(info, records)
        if sketch is not None:
            window, threshold = sketch.window, sketch.threshold
        return Size(tokens=tokens, basis=basis, window=window, threshold=threshold, share=round(tokens / window, 4))

    def _noted(
        self, info: SessionInfo, newest: ReportedTurn | None, sketch: LastRequest | None
    ) -> tuple[int, SizeBasis] | None:
        if sketch is not None and _is_now(sketch.count, sketch.compaction, info):
            return sketch.tokens, "reported" if sketch.reported else "estimated"
        if newest is not None and _is_now(newest.count, newest.compaction, info):
            return newest.usage.prompt_tokens, "reported"
        return None

    def _limits(self, info: SessionInfo, records: Sequence[CompactionRecord]) -> tuple[int, int]:
        """A host may know better than the table of models how large its window is; receipts say what it knew."""
        if records:
            receipt = records[-1].receipt
            return receipt.context_length, receipt.threshold_tokens
        window = self.model(info.model).context_window
        return window, budget_for(window, self.config.compression.output_reservation, self.config).threshold_tokens

    def _tokens(self, shelf: Shelf, records: Sequence[CompactionRecord]) -> tuple[int, SizeBasis]:
        info, memory, record = shelf.info, memory_of(shelf.info), in_force(shelf.info, records)
        view = shelf.now(records)
        start = 0
        basis: SizeBasis = "estimated"
        if memory.anchor is not None and 0 < memory.anchor.count <= len(view):
            known, start, basis = memory.anchor_tokens, memory.anchor.count, "reported"
        elif record is not None:
            known, start = record.receipt.new_tokens, len(view) - (info.count - record.upto)
            basis = "calibrated" if memory.samples else record.receipt.token_basis
        else:
            known = round(sum(self._beside(shelf).values()) * memory.ratio)
        new = len(view) - start
        if not new:
            return known, basis
        places, scale = sample(view, start)
        meter = self.meter(info.model)
        found = shelf.read(places)
        units = sum(meter.units(item.message) for item in found)
        counted = round(meter.tokens(units, len(found)) * scale * memory.ratio)
        after: SizeBasis = "sampled" if scale > 1 else "calibrated" if memory.samples else "estimated"
        return known + counted, after

    def _beside(self, shelf: Shelf) -> dict[str, int]:
        """The system prompt and the tools that are stored beside the messages: reports and receipts include them."""
        system, tools = values_of(shelf.store.prompt(shelf.info))
        message = None if system is None else Message.over(system, shelf.dialect.read_system)
        return by_kind((), self.meter(shelf.info.model), system=message, tools=tuple(map(tool_of, tools)))

    def kinds(self, shelf: Shelf, records: Sequence[CompactionRecord]) -> tuple[tuple[Share, ...], bool]:
        """Where the tokens of the view go, the most expensive first, and whether that was inferred from a sample."""
        places, scale = sample(shelf.now(records), 0)
        messages = tuple(item.message for item in shelf.read(places))
        sizes = Counter(self._beside(shelf))
        for name, tokens in by_kind(messages, self.meter(shelf.info.model)).items():
            sizes[name] += round(tokens * scale)
        kinds = [Share(name=name, tokens=tokens) for name, tokens in sizes.items() if tokens > 0]
        return tuple(sorted(kinds, key=lambda kind: -kind.tokens)), scale > 1


def sample(view: Places, start: int) -> tuple[list[Place], float]:
    """The places from `start` on, or blocks of them evenly spread, and by how much the whole is more."""
    total = len(view) - start
    if total <= MOST_COUNTED:
        return view.between(start, start + total), 1.0
    blocks = MOST_COUNTED // BLOCK
    step = (total - BLOCK) / (blocks - 1)
    starts = [start + round(number * step) for number in range(blocks)]
    chosen = [place for first in starts for place in view.between(first, first + BLOCK)]
    return chosen, total / len(chosen)


def run(first: int, count: int) -> Places:
    return Places([ViewPiece(first, count)])
