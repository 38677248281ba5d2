"""What a summary has of the facts of its fold, and the ledger lines that fill its gaps."""

from __future__ import annotations

import msgspec

from midfold.core.compaction import SummaryAsk
from midfold.core.ledger.book import SCANNED, Book, ledger
from midfold.core.summary import StructuredSummary


def cover(
    ask: SummaryAsk, summary: StructuredSummary, room: int, scanned: int = SCANNED
) -> tuple[StructuredSummary, Book]:
    """The summary with verbatim lines for what it left out, as far as there is room."""
    book = ledger(ask, room, [summary.render()], scanned)
    lines = "\n\n".join(filter(None, [summary.critical.strip(), book.text]))
    return msgspec.structs.replace(summary, critical=lines), book
