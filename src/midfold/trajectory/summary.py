"""The one turn that stands for a fold: made here by rules, or by a model.

    [CONTEXT SUMMARY]: 96 turns of this run are folded into this; what follows continues from there.
    Asked:
    - ...
    Known, verbatim:
    - ...
    Done:
    - ...

Rules of this file:
1. What the turns below need comes first; what was asked and done fills the rest of the budget.
2. Nothing is invented: lines are verbatim, actions are told by the digests of core.
3. A summary is never longer than its budget, whoever wrote it: what does not fit is left out, from the end.
4. Texts pass through the redactor before they are cut: half of a credential is not recognised any more.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import NamedTuple

from midfold.errors import FailureKind, SummaryFailed
from midfold.fold.digest.digest import describe_with
from midfold.fold.handoff import unwrapped
from midfold.fold.receipt import KEEPS_HISTORY
from midfold.fold.redact import redact
from midfold.fold.request import SummaryAnswer, SummaryAsk
from midfold.model import Summarizer
from midfold.model.drive import as_answer
from midfold.trajectory.foresight import Fold, lines, needed
from midfold.trajectory.plan import Plan
from midfold.trajectory.records import Record
from midfold.transcript.laws import pair
from midfold.transcript.message import ToolCall, ToolResult

MARKER = "[CONTEXT SUMMARY]:"
FRAME_TOKENS = 48
ASKED_SHARE, KNOWN_SHARE = 0.16, 0.8
"""Of the budget: at most so much for what people asked in folded turns, and so much for what later turns need."""
LONGEST_ASK, LONGEST_DEED, LONGEST_READ = 240, 140, 20_000
MOST_ASKS, NEWEST_TURNS = 4, 16

Count = Callable[[str], int]


class Summary(NamedTuple):
    """The text of a summary turn, and what it took to get it."""

    text: str
    calls: int = 0
    errors: int = 0
    failure: FailureKind = ""
    by: str = "local"


def summarise(record: Record, plan: Plan, budget: int, summarizer: Summarizer | None) -> Summary:
    """The summary of a fold in at most `budget` tokens; without text if a model's failure says: leave it alone."""
    if summarizer is None:
        return Summary(local(record, plan, budget))
    answer = _asked(record, plan, budget, summarizer)
    if answer.failure:
        text = "" if answer.failure in KEEPS_HISTORY else local(record, plan, budget)
        return Summary(text, answer.calls, 1, answer.failure)
    body = unwrapped(redact(answer.text)).removeprefix(MARKER).strip()
    text = fitted(f"{opening(plan)}\n{body}", budget, record.summary_tokens)
    return Summary(text, max(answer.calls, 1), by=answer.model or "model")


def _asked(record: Record, plan: Plan, budget: int, summarizer: Summarizer) -> SummaryAnswer:
    messages = tuple(record.document.messages[place] for place in plan.folded)
    ends = (str(plan.spans).encode(), messages[0].digest, messages[-1].digest)
    digest = blake2b(b"".join(ends), digest_size=6).hexdigest()
    head = record.messages(range(plan.spans[0].start))
    ask = SummaryAsk(messages=messages, budget_tokens=budget - FRAME_TOKENS, fold=digest, redact=redact, before=head)
    try:
        return as_answer(summarizer(ask))
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
    gone = frozenset(folded)
    before = [place for place in range(plan.spans[-1].start) if place not in gone]
    wanted = needed(record, before, after)
    chosen = lines(Fold(record, folded), wanted, int(room * KNOWN_SHARE))
    known = [f"- {line.text.replace(chr(10), chr(10) + '  ')}" for line in chosen]
    left = room - sum(line.cost for line in chosen)
    asked = _asks(record, folded, min(int(room * ASKED_SHARE), left), count)
    left -= sum(map(count, asked))
    done = _deeds(record, folded, left, count)
    pieces = [opening(plan)]
    for title, told in (("Asked:", asked), ("Known, verbatim:", known), ("Done:", done)):
        pieces += [title, *told] if told else []
    return fitted("\n".join(pieces), budget, count)


def opening(plan: Plan) -> str:
    turns = len(plan.folded)
    told = f"{turns} turns of this run are" if turns > 1 else "a turn of this run is"
    return f"{MARKER} {told} folded into this; what follows continues from there."


def _asks(record: Record, folded: list[int], room: int, count: Count) -> list[str]:
    """What people said in folded turns: the first and the newest, each by its beginning."""
    kinds = record.kinds
    people = [place for place in folded if kinds[place] == "human"]
    told: list[str] = []
    for place in dict.fromkeys([*people[:1], *people[1 - MOST_ASKS :]]):
        text = _flat(redact(record.document.messages[place].text[:LONGEST_READ]), LONGEST_ASK)
        line = f"- {text}"
        if text and (cost := count(line)) <= room:
            room -= cost
            told.append(line)
    return told


def _deeds(record: Record, folded: list[int], room: int, count: Count) -> list[str]:
    """The newest actions with their outcome, as many as there is room for."""
    newest = [place for place in folded if record.kinds[place] in ("gpt", "tool")][-NEWEST_TURNS:]
    messages = tuple(record.document.messages[place] for place in newest)
    told: list[str] = []
    answers = sorted(pair(messages).answers.items(), reverse=True)
    for call, result in answers:
        asked, given = messages[call.message].parts[call.part], messages[result.message].parts[result.part]
        if not isinstance(asked, ToolCall) or not isinstance(given, ToolResult):
            continue
        action = describe_with(asked, given, redact)
        line = f"- {_flat(redact(' -> '.join(filter(None, [action.did, action.detail]))), LONGEST_DEED)}"
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
