"""A summary is checked against its source before it is trusted.

    rejection(text, ask)    why a text is no summary at all, or ""
    audited(ask, text)      the summary with its asks verbatim, its claims grounded, its gaps filled, its orders quoted

Rules of this file:
1. Refusals, error pages, empty texts and summaries longer than their source are failures, never summaries.
2. What the user asked for is written from what the user wrote. Nobody paraphrases an ask.
3. Facts of the fold that the summary leaves out are added while there is room; the receipt counts all of them.
4. Whatever comes out is redacted, within its budget, and cannot be taken for an order.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import msgspec

from midfold.errors import FailureKind
from midfold.fold.handoff import bare_summary
from midfold.fold.hostile import Source, ground, harmless, quote_orders
from midfold.fold.local import Book, cover, user_demands
from midfold.fold.request import SummaryAnswer, SummaryAsk
from midfold.fold.summary import StructuredSummary, parse_summary
from midfold.transcript.message import TEXT, Text, ToolCall, ToolResult
from midfold.transcript.tokens import estimate_text

SCANNED_FOR_MODEL = 150_000
"""Characters read for what a model's summary left out; fewer than for a summary made without one."""
FEWEST_READ = 150
"""Characters of a text that are read at least; where that is too much in all, older messages are not read."""
SHORTEST_SOURCE = 400
"""Tokens; a shorter fold may well have a summary as long as itself."""
_REFUSAL = re.compile(
    r"\s*(?:i['’]?m sorry|i am sorry|sorry,|i apologi[sz]e|i can(?:no|['’])t|i am unable|i['’]m unable|i won['’]t|"
    r"as an ai\b|unfortunately, i\b|i must decline|my apologies)",
    re.I,
)
_PAGE = re.compile(r"\s*(?:<!doctype|<html|<\?xml|<head|<body)", re.I)
_ERROR = re.compile(
    r"\s*(?:\{\s*\"(?:error|detail|message)\"|(?:error|exception)\b[: ]|(?:http )?[45][0-9]{2}\b|"
    r"(?:internal server error|bad gateway|service unavailable|gateway time-?out|too many requests|rate limit))",
    re.I,
)
_TOOL_CALL = re.compile(r"\s*(?:<(?:tool_call|function_calls?|invoke)\b|\{\s*\"(?:name|tool|function)\"\s*:)")


class Audit(NamedTuple):
    """A summary that was checked, and what the check found."""

    text: str
    unverified: int = 0
    removed: int = 0
    quoted: int = 0
    book: Book = Book()


def rejection(text: str, ask: SummaryAsk) -> FailureKind:
    """Why this is no summary; empty if it may be one."""
    body = bare_summary(text)
    if not body or _PAGE.match(body) or _TOOL_CALL.match(body):
        return "malformed"
    headings = body.count("\n#") + body.startswith("#")
    if not headings and len(body) < 2_000 and _ERROR.match(body):
        return "malformed"
    if not headings and _REFUSAL.match(body):
        return "filtered"
    enough = max(estimate_text(body), SHORTEST_SOURCE + 1)
    source = source_tokens(ask, enough)
    return "ineffective" if SHORTEST_SOURCE < source < enough else ""


def source_tokens(ask: SummaryAsk, enough: int) -> int:
    """About how many tokens the summary stands for; counted up to what is enough to know."""
    length = len(ask.previous)
    for message in ask.messages:
        if length // 4 >= enough:
            break
        for part in message.parts:
            if isinstance(part, Text | ToolResult):
                length += len(part.text)
            elif isinstance(part, ToolCall):
                length += len(part.arguments) + len(part.name)
    return length // 4


def audited(ask: SummaryAsk, text: str) -> Audit:
    """The summary as it may be trusted."""
    source = Source(ask.messages, ask.previous, ask.focus or "")
    checked = ground(ask.redact(bare_summary(text)), source)
    summary = _with_asks(parse_summary(checked.text), ask)
    left = ask.budget_tokens - estimate_text(summary.render())
    room = max(left, ask.budget_tokens // 6)
    body, book = cover(_newest(ask), summary, room, SCANNED_FOR_MODEL)
    quiet = quote_orders(body.render(), ask.messages, ask.redact)
    return Audit(ask.redact(harmless(quiet.text)), checked.marked, checked.removed, quiet.lines, book)


def _newest(ask: SummaryAsk) -> SummaryAsk:
    """The part of a very long fold that is read for facts: its newest messages, and whatever a user said."""
    left = SCANNED_FOR_MODEL
    start = len(ask.messages)
    while start and left > 0:
        start -= 1
        left -= FEWEST_READ * max(len(ask.messages[start].parts), 1)
    if start == 0:
        return ask
    users = (message for message in ask.messages[:start] if message.role == "user" and message.kinds & TEXT)
    return msgspec.structs.replace(ask, messages=(*users, *ask.messages[start:]))


def trusted(ask: SummaryAsk, text: str) -> Audit:
    """A summary as its author wrote it, for callers who check their summaries themselves."""
    return Audit(ask.redact(harmless(bare_summary(text))))


def local_audit(ask: SummaryAsk, answer: SummaryAnswer) -> Audit:
    """A summary that was made by rules says nothing of its own; what it quotes is made harmless all the same."""
    quiet = quote_orders(bare_summary(answer.text), ask.messages, ask.redact)
    kept, recoverable, estimate = answer.facts or (0, 0, 1.0)
    book = Book(kept=kept, recoverable=recoverable, estimate=estimate)
    return Audit(ask.redact(harmless(quiet.text)), quoted=quiet.lines, book=book)


def _with_asks(summary: StructuredSummary, ask: SummaryAsk) -> StructuredSummary:
    """The task, the open asks and the demands in the user's own words, earlier ones included.

    An earlier summary has them word for word: what a model leaves out of its update is not forgotten.
    """
    said = user_demands(ask)
    known = summary.render()
    demands = [line for line in said.demands if line.removeprefix("- ") not in known]
    return msgspec.structs.replace(
        summary,
        task_snapshot=said.task or summary.task_snapshot,
        pending="\n".join(said.asks) or summary.pending,
        constraints="\n".join(filter(None, [summary.constraints.strip(), *demands])),
    )
