"""The one turn that stands for a fold: made here by rules, or by a model.

    [CONTEXT SUMMARY]: 96 turns with 48 tool calls are folded into this. The turns below continue from here.
    Asked: ...
    Done: ...
    Known, verbatim:
    - ...

Rules of this file:
1. What the turns below need comes first; what was asked and done fills the rest of the budget.
2. Nothing is invented: lines are verbatim, actions are told by the digests of core.
3. A summary is never longer than its budget, whoever wrote it: what does not fit is left out line by line.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from midfold.core.compaction import SummaryAnswer, SummaryAsk
from midfold.core.digest import describe
from midfold.core.failures import KEEPS_HISTORY
from midfold.core.handoff import unwrapped
from midfold.core.message import ToolCall, ToolResult
from midfold.core.pairing import pair
from midfold.core.redact import redact
from midfold.errors import FailureKind, SummaryFailed
from midfold.summarize import Summarizer
from midfold.summarize.drivers import coerced
from midfold.trajectory.foresight import Fold, lines, needed
from midfold.trajectory.plan import Plan
from midfold.trajectory.records import Record

MARKER = "[CONTEXT SUMMARY]:"
FRAME_TOKENS = 48
ASKED_SHARE, KNOWN_SHARE = 0.16, 0.8
"""Of the budget: at most so much for what people asked in folded turns, and so much for what later turns need."""
LONGEST_ASK, LONGEST_DEED = 240, 140
MOST_ASKS, NEWEST_TURNS = 4, 16
TOOLS_NAMED = 4

Count = Callable[[str], int]


class Summary(NamedTuple):
    """The text of a summary turn, and what it took to get it."""

    text: str
    calls: int = 0
    errors: int = 0
    failure: FailureKind = ""
    by: str = "local"


def summarise(record: Record, plan: Plan, budget: int, summarizer: Summarizer | None) -> Summary | None:
    """The summary of a fold in at most `budget` tokens; None if a model failed in a way that says: leave it alone."""
    count = record.summary_tokens
    if summarizer is None:
        return Summary(local(record, plan, budget))
    answer = _asked(record, plan, budget, summarizer)
    if answer.failure:
        if answer.failure in KEEPS_HISTORY:
            return None if not answer.calls else Summary("", answer.calls, 1, answer.failure)
        return Summary(local(record, plan, budget), answer.calls, 1, answer.failure)
    body = unwrapped(redact(answer.text)).removeprefix(MARKER).strip()
    text = fitted(f"{opening(record, plan)}\n{body}", budget, count)
    return Summary(text, max(answer.calls, 1), by=answer.model or "model")


def _asked(record: Record, plan: Plan, budget: int, summarizer: Summarizer) -> SummaryAnswer:
    messages = tuple(record.document.messages[place] for place in plan.folded)
    ends = (str(plan.spans).encode(), messages[0].digest, messages[-1].digest)
    digest = blake2b(b"".join(ends), digest_size=6).hexdigest()
    head = record.messages(range(plan.spans[0].start))
    ask = SummaryAsk(messages=messages, budget_tokens=budget - FRAME_TOKENS, fold=digest, redact=redact, before=head)
    try:
        return coerced(summarizer(ask))
    except SummaryFailed as failed:
        return SummaryAnswer(failure=failed.kind, calls=failed.calls)
    except Exception:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the record
        return SummaryAnswer(failure="other")


def local(record: Record, plan: Plan, budget: int) -> str:
    """A summary by rules, the same for the same record and budget."""
    count = record.summary_tokens
    room = max(budget - FRAME_TOKENS, 0)
    folded = plan.folded
    after = range(plan.spans[-1].stop, len(record))
    before = [place for place in range(plan.spans[-1].start) if place not in set(folded)]
    wanted = needed(record, before, after)
    chosen = lines(Fold(record, folded), wanted, int(room * KNOWN_SHARE))
    known = [f"- {line.text.replace(chr(10), chr(10) + '  ')}" for line in chosen]
    left = room - sum(line.cost for line in chosen)
    asked = _asks(record, folded, min(int(room * ASKED_SHARE), left), count)
    left -= sum(map(count, asked))
    done = _deeds(record, folded, left, count)
    pieces = [opening(record, plan)]
    for title, told in (("Asked:", asked), ("Done:", done), ("Known, verbatim:", known)):
        pieces += [title, *told] if told else []
    return fitted("\n".join(pieces), budget, count)


def opening(record: Record, plan: Plan) -> str:
    turns = len(plan.folded)
    return f"{MARKER} {turns} turn{'s' if turns > 1 else ''} of this run are folded into this; what follows continues from them."  # noqa: E501


def _asks(record: Record, folded: list[int], room: int, count: Count) -> list[str]:
    """What people said in folded turns: the first and the newest, each by its beginning."""
    kinds = record.kinds
    people = [place for place in folded if kinds[place] == "human"]
    told: list[str] = []
    for place in dict.fromkeys([*people[:1], *people[:-MOST_ASKS:-1]]):
        text = redact(_flat(record.messages(range(place, place + 1))[0].text, LONGEST_ASK))
        line = f"- {text}"
        if text and (cost := count(line)) <= room:
            room -= cost
            told.append(line)
    return told


def _deeds(record: Record, folded: list[int], room: int, count: Count) -> list[str]:
    """Which tools were called how often, and the newest actions with their outcome."""
    newest = [place for place in folded if record.kinds[place] in ("gpt", "tool")][-NEWEST_TURNS:]
    messages = tuple(record.document.messages[place] for place in newest)
    told: list[str] = []
    answers = sorted(pair(messages).answers.items(), reverse=True)
    for call, result in answers:
        asked, given = messages[call.message].parts[call.part], messages[result.message].parts[result.part]
        if not isinstance(asked, ToolCall) or not isinstance(given, ToolResult):
            continue
        action = describe(asked, given)
        line = f"- {redact(_flat(' -> '.join(filter(None, [action.did, action.detail])), LONGEST_DEED))}"
        cost = count(line)
        if cost > room:
            break
        room -= cost
        told.append(line)
    return told[::-1]


def _flat(text: str, limit: int) -> str:
    flat = " ".join(text[: limit * 4].split())
    return flat if len(flat) <= limit else f"{flat[:limit].rstrip()} […]"


def fitted(text: str, budget: int, count: Count) -> str:
    """As many lines of a text as its budget allows; the first line always stays."""
    if count(text) <= budget:
        return text
    pieces = text.split("\n")
    low, high = 1, len(pieces)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count("\n".join(pieces[:middle])) <= budget else (low, middle - 1)
    return "\n".join(pieces[:low])


def tools_used(record: Record, folded: list[int]) -> Counter[str]:
    """How often each tool was called in folded turns."""
    calls = (part for place in folded for part in record.document.messages[place].parts if isinstance(part, ToolCall))
    return Counter(call.name for call in calls)
