"""The turn that replaces a fold, written by rules or by a model.

    [CONTEXT SUMMARY]: 96 turns of this run are folded into this; what follows continues from there.
    Asked:
    - ...
    Known, verbatim:
    - ...
    Done:
    - ...

A live agent has to guess what its future will need; here it is recorded. An assistant's turn that uses a name mentioned
nowhere before teaches a model to invent names, so those names come first, each in a verbatim line that explains it. No
line comes from near a credential, and none from a tool's output that could be taken for an instruction. User messages
and actions fill the rest. A summary never exceeds its budget. Texts are redacted before they are cut, because half of a
credential is not recognized.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from hashlib import blake2b
from heapq import heapify, heappop, heappush
from itertools import accumulate, islice
from typing import NamedTuple

from midfold.compaction.handoff import bare_summary
from midfold.compaction.local.digest import describe_with
from midfold.compaction.local.identifiers import RESULT, names
from midfold.compaction.receipt import KEEPS_HISTORY
from midfold.compaction.redact import redact
from midfold.compaction.request import SummaryAnswer, SummaryRequest
from midfold.errors import FailureKind, SummaryFailed
from midfold.lab.snippets import may_be_order, snippet
from midfold.lab.trajectory_plan import TrajectoryPlan, TurnTexts
from midfold.lab.trajectory_records import TrajectoryRecord
from midfold.model import Summarizer
from midfold.model.run import as_answer
from midfold.transcript import jsonio
from midfold.transcript.laws import pair
from midfold.transcript.message import Text, ToolCall, ToolResult
from midfold.transcript.tokens import estimate_text

MOST_NAMES = 80
HORIZON = 60
"""Number of turns after the fold that are searched."""
PLACES = 2
"""Maximum mentions of a name that are considered, newest first."""
NEAR = 600
"""Characters on either side of a name that must be free of credentials."""
LINE_TOKENS = 2
ACTION = 2
"""Weight of a name in call arguments, relative to one in a reply."""
UNBOUND = 0.3


class VerbatimLine(NamedTuple):
    """A verbatim line of the fold."""

    text: str
    turn: int
    number: int
    """Number of the text in the turn."""
    at: int
    """Position of the name in that text."""
    cost: int
    names: frozenset[str]
    bound: bool


def needed_names(record: TrajectoryRecord, before: list[int], after: range) -> dict[str, int]:
    """Return the names that the kept turns need, with their weights, in order of use."""
    after = after[:HORIZON]
    found: dict[str, int] = {}
    judged: set[str] = set()
    texts = ["\n".join(record.raw(place) for place in before), *(record.raw(place) for place in after)]
    kept = "\n".join(texts)
    starts = accumulate(len(text) + 1 for text in texts[:-1])
    for place, start in zip(after, starts, strict=True):
        if record.kinds[place] != "gpt":
            continue
        for weight, text in _written_texts(record, place):
            for name, _ in names(text):
                if name not in judged:
                    judged.add(name)
                    if kept.find(name, 0, start) < 0:
                        found[name] = weight
        if len(found) >= MOST_NAMES:
            break
    return found


def _written_texts(record: TrajectoryRecord, place: int) -> Iterator[tuple[int, str]]:
    """Yield the texts that the assistant writes in a turn, without the names of tools and arguments."""
    for part in record.document.messages[place].parts:
        if isinstance(part, ToolCall):
            yield ACTION, _values(part.arguments)
    for part in record.document.messages[place].parts:
        if isinstance(part, Text):
            yield 1, part.text


def _values(arguments: str) -> str:
    try:
        value = jsonio.decode(arguments)
    except jsonio.NotJSON:
        return arguments
    leaves = value.values() if isinstance(value, dict) else [value]
    return "\n".join(leaf if isinstance(leaf, str) else jsonio.text_of(leaf) for leaf in leaves)


class FoldedTurns:
    """The folded turns; each is read when one of its names is needed."""

    def __init__(self, record: TrajectoryRecord, places: list[int]) -> None:
        self._record = record
        self._texts = TurnTexts(record, places)
        self._spoken: dict[int, list[tuple[int, str]]] = {}

    def turns_with(self, name: str) -> Iterator[int]:
        """Yield the newest turns that mention a name."""
        return islice(self._texts.newest(name), PLACES)

    def texts_of(self, turn: int) -> list[tuple[int, str]]:
        if turn not in self._spoken:
            self._spoken[turn] = self._record.texts(turn)
        return self._spoken[turn]

    def is_clean(self, line: VerbatimLine) -> bool:
        """Return whether neither the line nor its surroundings have a credential or a possible instruction."""
        who, text = self.texts_of(line.turn)[line.number]
        if who == RESULT and may_be_order(line.text, text, line.at):
            return False
        around = text[max(line.at - NEAR, 0) : line.at + NEAR]
        return redact(around) == around


def choose_lines(fold: FoldedTurns, wanted: dict[str, int], budget: int) -> list[VerbatimLine]:
    """Choose lines of at most `budget` tokens that cover most of what is wanted, in the order of the fold."""
    candidates = _candidates(fold, wanted)
    covered: dict[str, float] = {}
    heap = [(-_gain(line, wanted, covered) / line.cost, number) for number, line in enumerate(candidates)]
    heapify(heap)
    chosen: list[VerbatimLine] = []
    left = budget
    while heap:
        promised, number = heappop(heap)
        line = candidates[number]
        gain = _gain(line, wanted, covered) / line.cost
        if gain <= 0 or line.cost > left:
            continue
        if gain < -promised and heap and gain < -heap[0][0]:
            heappush(heap, (-gain, number))
            continue
        if not fold.is_clean(line):
            continue
        left -= line.cost
        chosen.append(line)
        for name in line.names:
            covered[name] = max(covered.get(name, 0.0), 1.0 if line.bound else UNBOUND)
    return sorted(chosen, key=lambda line: line.turn)


def _gain(line: VerbatimLine, wanted: dict[str, int], covered: dict[str, float]) -> float:
    worth = 1.0 if line.bound else UNBOUND
    return sum(wanted[name] * max(worth - covered.get(name, 0.0), 0.0) for name in line.names)


def _candidates(fold: FoldedTurns, wanted: dict[str, int]) -> list[VerbatimLine]:
    found: dict[str, VerbatimLine] = {}
    for name in wanted:
        for turn in fold.turns_with(name):
            line = _line(fold, turn, name, wanted)
            if line is not None and line.text not in found:
                found[line.text] = line
            if line is not None and line.bound:
                break
    return list(found.values())


def _line(fold: FoldedTurns, turn: int, name: str, wanted: dict[str, int]) -> VerbatimLine | None:
    for number, (_, text) in enumerate(fold.texts_of(turn)):
        at = text.find(name)
        if at >= 0:
            piece = snippet(text, at, len(name))
            inside = frozenset(other for other, _ in names(piece.text) if other in wanted) | {name}
            cost = estimate_text(piece.text) + LINE_TOKENS
            return VerbatimLine(piece.text, turn, number, at, cost, inside, piece.bound)
    return None


MARKER = "[CONTEXT SUMMARY]:"
FRAME_TOKENS = 48
ASKED_SHARE, KNOWN_SHARE = 0.16, 0.8
"""Maximum shares of the budget for user messages in folded turns and for facts that later turns need."""
MAX_MESSAGE_CHARS, MAX_ACTION_CHARS, LONGEST_READ = 240, 140, 20_000
MAX_MESSAGES, NEWEST_TURNS = 4, 16

Count = Callable[[str], int]


class TrajectorySummary(NamedTuple):
    """Text of a summary turn, with the calls and errors it took."""

    text: str
    calls: int = 0
    errors: int = 0
    failure: FailureKind = ""
    by: str = "local"


def summarise(
    record: TrajectoryRecord, plan: TrajectoryPlan, budget: int, summarizer: Summarizer | None
) -> TrajectorySummary:
    """Summarize a fold in at most `budget` tokens; the text is empty if a model's failure means to keep the history."""
    if summarizer is None:
        return TrajectorySummary(summarise_locally(record, plan, budget))
    answer = _ask(record, plan, budget, summarizer)
    if answer.failure:
        text = "" if answer.failure in KEEPS_HISTORY else summarise_locally(record, plan, budget)
        return TrajectorySummary(text, answer.calls, 1, answer.failure)
    body = bare_summary(redact(answer.text)).removeprefix(MARKER).strip()
    text = fit_lines(f"{opening(plan)}\n{body}", budget, record.summary_tokens)
    return TrajectorySummary(text, max(answer.calls, 1), by=answer.model or "model")


def _ask(record: TrajectoryRecord, plan: TrajectoryPlan, budget: int, summarizer: Summarizer) -> SummaryAnswer:
    messages = tuple(record.document.messages[place] for place in plan.folded_turns)
    ends = (str(plan.spans).encode(), messages[0].digest, messages[-1].digest)
    digest = blake2b(b"".join(ends), digest_size=6).hexdigest()
    head = record.messages(range(plan.spans[0].start))
    ask = SummaryRequest(
        messages=messages, budget_tokens=budget - FRAME_TOKENS, fold=digest, redact=redact, before=head
    )
    try:
        return as_answer(summarizer(ask))
    except SummaryFailed as failed:
        return SummaryAnswer(failure=failed.kind, calls=failed.calls)
    except Exception:  # noqa: BLE001 - whatever a caller's summarizer raises must not lose the record
        return SummaryAnswer(failure="other")


def summarise_locally(record: TrajectoryRecord, plan: TrajectoryPlan, budget: int) -> str:
    """Summarize by rules; deterministic for the same record and budget."""
    count = record.summary_tokens
    room = max(budget - FRAME_TOKENS, 0)
    folded = plan.folded_turns
    after = range(plan.spans[-1].stop, len(record))
    gone = frozenset(folded)
    before = [place for place in range(plan.spans[-1].start) if place not in gone]
    wanted = needed_names(record, before, after)
    chosen = choose_lines(FoldedTurns(record, folded), wanted, int(room * KNOWN_SHARE))
    known = [f"- {line.text.replace(chr(10), chr(10) + '  ')}" for line in chosen]
    left = room - sum(line.cost for line in chosen)
    asked = _user_messages(record, folded, min(int(room * ASKED_SHARE), left), count)
    left -= sum(map(count, asked))
    done = _actions(record, folded, left, count)
    pieces = [opening(plan)]
    for title, lines in (("Asked:", asked), ("Known, verbatim:", known), ("Done:", done)):
        pieces += [title, *lines] if lines else []
    return fit_lines("\n".join(pieces), budget, count)


def opening(plan: TrajectoryPlan) -> str:
    turns = len(plan.folded_turns)
    subject = f"{turns} turns of this run are" if turns > 1 else "a turn of this run is"
    return f"{MARKER} {subject} folded into this; what follows continues from there."


def _user_messages(record: TrajectoryRecord, folded: list[int], room: int, count: Count) -> list[str]:
    """Return the first and the newest user messages in folded turns, truncated."""
    kinds = record.kinds
    people = [place for place in folded if kinds[place] == "human"]
    lines: list[str] = []
    for place in dict.fromkeys([*people[:1], *people[1 - MAX_MESSAGES :]]):
        text = _flat(redact(record.document.messages[place].text[:LONGEST_READ]), MAX_MESSAGE_CHARS)
        line = f"- {text}"
        if text and (cost := count(line)) <= room:
            room -= cost
            lines.append(line)
    return lines


def _actions(record: TrajectoryRecord, folded: list[int], room: int, count: Count) -> list[str]:
    """Return the newest actions with their outcome, as many as fit."""
    newest = [place for place in folded if record.kinds[place] in ("gpt", "tool")][-NEWEST_TURNS:]
    messages = tuple(record.document.messages[place] for place in newest)
    lines: list[str] = []
    answers = sorted(pair(messages).answers.items(), reverse=True)
    for call, result in answers:
        asked, given = messages[call.message].parts[call.part], messages[result.message].parts[result.part]
        if not isinstance(asked, ToolCall) or not isinstance(given, ToolResult):
            continue
        action = describe_with(asked, given, redact)
        line = f"- {_flat(redact(' -> '.join(filter(None, [action.did, action.detail]))), MAX_ACTION_CHARS)}"
        cost = count(line)
        if cost > room:
            break
        room -= cost
        lines.append(line)
    return lines[::-1]


def _flat(text: str, limit: int) -> str:
    flat = " ".join(text[: limit * 4].split())
    return flat if len(flat) <= limit else f"{flat[:limit].rstrip()} […]"


def fit_lines(text: str, budget: int, count: Count) -> str:
    """Return as many lines as the budget allows; the first line is always kept."""
    if count(text) <= budget:
        return text
    pieces = text.split("\n")
    low, high = 1, len(pieces)
    while low < high:
        middle = (low + high + 1) // 2
        low, high = (middle, high) if count("\n".join(pieces[:middle])) <= budget else (low, middle - 1)
    return "\n".join(pieces[:low])
