"""A summary without a model: filled from the raw fold by rules, readable, within its budget.

Rules of this file:
1. It says that it was made locally and may be incomplete.
2. What the user said is quoted, not paraphrased. Actions are told with their outcome; failures as failures.
3. What an earlier summary knew is carried forward, section by section; newer lines win where there is not enough room.
4. Everything passes through the redactor before it is cut, and once more before it is written.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from midfold.fold.boundary import speaks
from midfold.fold.digest.digest import describe
from midfold.fold.digest.look import Action
from midfold.fold.ledger import SCANNED, Book, ledger, seen_of
from midfold.fold.request import Redactor, SummaryAsk
from midfold.fold.summary import StructuredSummary, parse_summary
from midfold.fold.trail import render, without_trail
from midfold.transcript import jsonio
from midfold.transcript.laws import is_human, pair
from midfold.transcript.message import Message, Text, ToolCall, ToolResult, Transcript
from midfold.transcript.tokens import estimate_text

# What a summary has of the facts of its fold, and the ledger lines that fill its gaps.


def cover(
    ask: SummaryAsk, summary: StructuredSummary, room: int, scanned: int = SCANNED
) -> tuple[StructuredSummary, Book]:
    """The summary with verbatim lines for what it left out, as far as there is room."""
    book = ledger(ask, room, [summary.render()], scanned)
    lines = "\n\n".join(filter(None, [summary.critical.strip(), book.text]))
    return msgspec.structs.replace(summary, critical=lines), book


NOTICE = "Locally generated, may be incomplete (lower confidence)."
MOST_ACTIONS = 400
"""Older actions of a very long fold are counted, not told."""
LONGEST_REDACTED = 50_000
MOST_ANSWERS = 600
"""Messages at the end of the fold in which decisions are looked for."""
ASK_CHARACTERS = 700
NEWEST_ASK_CHARACTERS = 2_000
ANSWER_CHARACTERS = 500
LINE_CHARACTERS = 260
LONGEST_READ = 20_000
LONGEST_SENTENCE = 400
TERSE_NOTICE = "Made locally, may be incomplete."
TRAIL_TOKENS = 1_000
FRAME_TOKENS, TERSE_FRAME_TOKENS = 60, 20
"""The notice and the headings."""
ASKS_SHARE, RULES_SHARE, TIGHT_RULES_SHARE = 0.06, 0.3, 0.18
TIGHT = 500
SECTIONS_SHARE, DENSE_SECTIONS_SHARE = 0.5, 0.06
"""Of the budget: what was asked, what the user demanded word for word, and what was done, decided and left open. All
the rest, and what these leave over, is the ledger: verbatim lines of the fold. A size that was asked for is dense: the
ledger gets nearly all of it."""
SMALL, LARGE = 1_200, 4_000
LARGE_DENSE_SECTIONS_SHARE = 0.15
CHARACTERS_PER_TOKEN = 4
SHARES = {
    "next_steps": 0.14,
    "blocked": 0.14,
    "in_progress": 0.08,
    "active_state": 0.04,
    "pending": 0.16,
    "done": 0.15,
    "files": 0.10,
    "decisions": 0.08,
    "resolved": 0.03,
    "critical": 0.08,
}
"""How the sections divide their part."""

PATH_KEYS = ("path", "workdir", "file_path", "output_path")
PLAN_KEYS = ("todos", "plan", "items", "steps", "tasks")
_PLAN = re.compile(r"todo|plan|task", re.I)
MOST_READ = 100
"""Newest messages in which mentions and blockers are looked for."""
_PATH = re.compile(r"[\w./~-]{4,200}+")
_BLOCKER = re.compile(r"\b(blocked|blocker|cannot|can't|unable to|failed|failing|denied|timed? out|broken)\b", re.I)
CONSTRAINT = re.compile(r"\b(must|never|always|don't|do not|prefer|only|should not|avoid|make sure|instead of)\b", re.I)
_DECISION = re.compile(
    r"\b(decided|decision|instead|because|chose|will use|going with|root cause|the issue is)\b", re.I
)
_WORD = re.compile(r"\w+")
_BULLET = re.compile(r"^\s*(?:(?:[-*>#]{1,6}|[0-9]{1,3}[.)])\s+)?")
_BREAK = re.compile(r"(?<=[.!?])[ \t]+|\n+")


def local_summary(ask: SummaryAsk) -> tuple[str, Book]:
    """The body of a handoff for the fold, and what it keeps of it."""
    facts = Findings(ask)
    old = parse_summary(_unnoticed(ask.previous)) if ask.previous else StructuredSummary()
    room = _room(ask)
    asks = {"task_snapshot": facts.asks[-1] if facts.asks else old.task_snapshot.strip(), "goal": old.goal.strip()}
    asks["goal"] = asks["goal"] or (facts.asks[0] if len(facts.asks) > 1 else "")
    longest = _longest_ask(ask, room)
    sections = {key: clip(text, longest) for key, text in asks.items()}
    left = room - sum(map(estimate_text, sections.values()))
    topic = {word for word in _WORD.findall((ask.focus or "").lower()) if len(word) > 2}
    told = " ".join(sections.values()) if ask.dense else ""
    rules = [line for line in [*lines_of(old.constraints), *facts.lines("constraints")] if line[2:] not in told]
    sections["constraints"], used = fit(
        list(dict.fromkeys(rules)), int(room * (RULES_SHARE if room >= TIGHT else TIGHT_RULES_SHARE)), topic
    )
    left -= used
    for key, budget in _shares(int(room * _sections_share(ask, room))):
        carried = [] if key == "critical" else lines_of(without_trail(getattr(old, key)))
        known, spent = fit(carried, budget // 2, topic)
        new, used = fit(
            [line for line in dict.fromkeys(facts.lines(key)) if line not in carried], budget - spent, topic
        )
        sections[key] = "\n".join(filter(None, [known, new]))
        left -= spent + used
    body, book = cover(ask, StructuredSummary(**sections), max(left, 0))
    return f"{TERSE_NOTICE if ask.dense else NOTICE}\n\n{ask.redact(body.render())}", book


def _unnoticed(previous: str) -> str:
    return previous.replace(NOTICE, "").replace(TERSE_NOTICE, "")


def _room(ask: SummaryAsk) -> int:
    is_tight = ask.dense and ask.budget_tokens < SMALL
    return max(ask.budget_tokens - (TERSE_FRAME_TOKENS if is_tight else FRAME_TOKENS), 60)


def _longest_ask(ask: SummaryAsk, room: int) -> int:
    if not ask.dense:
        return ASK_CHARACTERS
    return max(int(room * ASKS_SHARE * CHARACTERS_PER_TOKEN) // 2, 80) if room >= SMALL else 80


def _sections_share(ask: SummaryAsk, room: int) -> float:
    if not ask.dense:
        return SECTIONS_SHARE
    return 0.0 if room < SMALL else DENSE_SECTIONS_SHARE if room < LARGE else LARGE_DENSE_SECTIONS_SHARE


def _shares(room: int) -> Iterator[tuple[str, int]]:
    for key, share in SHARES.items():
        yield key, int(room * share)


def fallback_summary(ask: SummaryAsk) -> str:
    """The body alone."""
    return local_summary(ask)[0]


class Findings:
    """What can be told about a fold, as lines per section, oldest first."""

    def __init__(self, ask: SummaryAsk) -> None:
        self.messages = ask.messages
        self.fold = ask.fold
        self.humans = [message for message in self.messages if speaks(message)]
        self.redact = ask.redact
        self.trail = ask.trail
        self.hidden = _hidden_demands(ask)
        self.asks = [text for message in self.humans if (text := clip(self.safe(message.text), ASK_CHARACTERS))]
        self.actions, self.untold = _actions(self.messages, self.safe)
        self.named_paths, self.tools = _from_calls(self.messages, self.safe)
        self.plan = [self.safe(step) for step in _newest_plan(self.messages)]
        said = (_said(message) for message in self.messages[-MOST_ANSWERS:] if message.role == "assistant")
        self.answers = [self.safe(text) for text in said if text]

    def safe(self, text: str) -> str:
        """Redacted before anything is cut: half of a credential is not recognised any more."""
        return self.redact(text) if len(text) <= LONGEST_REDACTED else text

    def lines(self, key: str) -> list[str]:
        lines: list[str] = getattr(self, f"_{key}")()
        return lines

    def _pending(self) -> list[str]:
        """Recent asks; the newest stands under Task Snapshot, the first under Goal."""
        return [f"- {ask}" for ask in self.asks[1:-1][-8:]]

    def _done(self) -> list[str]:
        told = [f"- {_told(action)}" for action in self.actions]
        if self.untold:
            told.insert(0, f"- ({self.untold:,} earlier actions are not listed; unfold mf-{self.fold})")
        return told

    def _files(self) -> list[str]:
        told = render(self.trail, TRAIL_TOKENS).get("files", [])
        paths = dict.fromkeys([*self.named_paths, *self._mentioned()])
        return [*(f"- {path}: mentioned" for path in paths if not any(path in line for line in told)), *reversed(told)]

    def _mentioned(self) -> list[str]:
        """Path-like words in what was run and said, not in tool output: those are many, and the tools name theirs."""
        commands = [action.did for action in self.actions[-MOST_READ:] if action.family == "shell"]
        texts = [*commands, *self.answers[-MOST_READ:], *self.asks[-MOST_READ:]]
        words = (word.strip(".") for text in texts for word in _PATH.findall(text[:4_000]))
        return list(dict.fromkeys(word for word in words if "/" in word and "." in word.rsplit("/", 1)[-1]))[-20:]

    def _constraints(self) -> list[str]:
        told = [message for message in self.messages if message.role == "system"]
        rules = [f"- (instructions) {clip(self.safe(message.text), LINE_CHARACTERS)}" for message in told[-8:]]
        said = [sentence for message in self.humans for sentence in sentences(message.text, CONSTRAINT)]
        return [*rules, *(f"- {sentence}" for sentence in [*self.hidden, *said])]

    def _blocked(self) -> list[str]:
        open_failures: dict[str, str] = {}
        for action in self.actions:
            open_failures.pop(action.did, None)
            if action.outcome == "failed":
                open_failures[action.did] = f"- {action.did}: {action.error or action.detail}"
        said = [f"- {sentence}" for text in self.answers[-MOST_READ:] for sentence in sentences(text, _BLOCKER)[:1]]
        return [*said[-4:], *[_line(line) for line in open_failures.values()][-12:]]

    def _decisions(self) -> list[str]:
        return [f"- {sentence}" for text in self.answers for sentence in sentences(text, _DECISION)[:2]][-30:]

    def _resolved(self) -> list[str]:
        found: list[str] = []
        for before, after in zip(self.messages, self.messages[1:], strict=False):
            asked = _question(before)
            if asked and after.role == "assistant" and (answer := _said(after)):
                found.append(_line(f"- {clip(asked, 120)} -> {clip(answer, 140)}"))
        return found[-6:]

    def _in_progress(self) -> list[str]:
        return [f"- {clip(self.answers[-1], ANSWER_CHARACTERS)}"] if self.answers else []

    def _active_state(self) -> list[str]:
        return [f"- Last action: {_told(self.actions[-1])}"] if self.actions else []

    def _next_steps(self) -> list[str]:
        return [f"- {step}" for step in self.plan]

    def _critical(self) -> list[str]:
        errors = [_line(f"- {action.error}") for action in self.actions if action.error][-10:]
        return [*errors, *self.tools]


def _hidden_demands(ask: SummaryAsk) -> list[str]:
    """What users demand in long messages that stay, where those are shown by their ends only."""
    found: list[str] = []
    for message in (*ask.before, *ask.after):
        text = message.text
        seen = seen_of(text, ask.shown_texts)
        if is_human(message) and seen is not text:
            found += [sentence for sentence in sentences(text, CONSTRAINT) if sentence not in seen]
    return found


def _actions(messages: Transcript, safe: Redactor) -> tuple[list[Action], int]:
    """The newest actions with their outcomes, in order, and how many older ones there are."""
    answers = list(pair(messages).answers.items())
    untold = max(len(answers) - MOST_ACTIONS, 0)
    found: list[Action] = []
    for call, result in sorted(answers)[untold:]:
        asked = messages[call.message].parts[call.part]
        given = messages[result.message].parts[result.part]
        if isinstance(asked, ToolCall) and isinstance(given, ToolResult):
            found.append(describe(_safe_call(asked, safe), _safe_result(given, safe)))
    return found, untold


def _from_calls(messages: Transcript, safe: Redactor) -> tuple[list[str], list[str]]:
    """Paths under the usual keys of any tool's arguments; which tools were used, and the ids of the newest calls."""
    calls = [part for message in messages[-MOST_ACTIONS:] for part in message.parts if isinstance(part, ToolCall)]
    paths: dict[str, None] = {}
    for call in calls:
        arguments = _decoded(call.arguments)
        values = [arguments.get(key) for key in PATH_KEYS] if isinstance(arguments, dict) else []
        paths.update((safe(value), None) for value in values if isinstance(value, str) and 0 < len(value) <= 300)
    if not calls:
        return [], []
    newest = {call.name: call.id for call in calls}
    counts = Counter(call.name for call in calls).most_common(8)
    used = ", ".join(
        f"{name} x{count}" + (f" (newest {newest[name]})" if newest[name] else "") for name, count in counts
    )
    return list(paths), [clip(f"- Tools used: {safe(used)}", 2 * LINE_CHARACTERS)]


def _newest_plan(messages: Transcript) -> list[str]:
    """The steps of the newest to-do list or plan that a call wrote, with their status."""
    for message in reversed(messages):
        for part in message.parts:
            steps = _steps(part) if isinstance(part, ToolCall) and _PLAN.search(part.name) else []
            if steps:
                return [_step(step) for step in steps[:30]]
    return []


def _steps(call: ToolCall) -> list[object]:
    arguments = _decoded(call.arguments)
    lists = [arguments.get(key) for key in PLAN_KEYS] if isinstance(arguments, dict) else []
    return next((steps for steps in lists if isinstance(steps, list) and steps), [])


def _step(step: object) -> str:
    if not isinstance(step, dict):
        return _line(str(step))
    text = next((str(step[key]) for key in ("content", "step", "title", "description", "task") if step.get(key)), "")
    return _line(f"[{step.get('status', 'open')}] {text}")


def _decoded(arguments: str) -> object:
    if len(arguments) > LONGEST_REDACTED:
        return None
    try:
        return jsonio.decode(arguments)
    except jsonio.NotJSON:
        return None


def _safe_call(call: ToolCall, safe: Redactor) -> ToolCall:
    return ToolCall(call.id, call.name, safe(call.arguments))


def _safe_result(result: ToolResult, safe: Redactor) -> ToolResult:
    parts = tuple(Text(safe(part.text)) if isinstance(part, Text) else part for part in result.parts)
    return ToolResult(result.call_id, parts, result.is_error, result.name)


def _told(action: Action) -> str:
    detail = f" -> {action.detail}" if action.detail else ""
    return _line(f"{action.did}{detail}")


def _said(message: Message) -> str:
    return "\n".join(part.text for part in message.parts if isinstance(part, Text)).strip()


def _question(message: Message) -> str:
    """The first question of a short human turn."""
    if not is_human(message) or "?" not in message.text[:ASK_CHARACTERS]:
        return ""
    pieces = _BREAK.split(message.text[:ASK_CHARACTERS])
    return next((piece.strip() for piece in pieces if piece.rstrip().endswith("?")), "")


def sentences(text: str, telling: re.Pattern[str]) -> list[str]:
    """The short sentences of a text that match; long texts are pasted material and are read only at their start."""
    found = (_BULLET.sub("", piece).strip() for piece in _BREAK.split(text[:LONGEST_READ]))
    return [sentence for sentence in found if 8 <= len(sentence) <= LONGEST_SENTENCE and telling.search(sentence)]


def clip(text: str, limit: int) -> str:
    """One line of a text, its middle left out where it is long."""
    flat = " ".join(text[: limit * 4].split()) if len(text) <= limit * 4 else f"{text[: limit * 2]} {text[-limit:]}"
    flat = " ".join(flat.split())
    if len(flat) <= limit:
        return flat
    return f"{flat[: limit * 3 // 4].rstrip()} […] {flat[-limit // 5 :].lstrip()}"


def _line(text: str) -> str:
    return clip(text, LINE_CHARACTERS)


def lines_of(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip() and not line.startswith("- (")]


def fit(lines: list[str], budget: int, topic: set[str]) -> tuple[str, int]:
    """The lines that fit, in their order, and what they cost: those on the topic first, then the newest."""
    order = sorted(range(len(lines)), key=lambda place: (not _concerns(lines[place], topic), -place))
    kept: list[int] = []
    used = 0
    for place in order:
        cost = estimate_text(lines[place]) + 1
        if used + cost <= budget:
            kept.append(place)
            used += cost
    return "\n".join(lines[place] for place in sorted(kept)), used


def _concerns(line: str, topic: set[str]) -> bool:
    return bool(topic) and not topic.isdisjoint(_WORD.findall(line.lower()))


# What the user said, word for word, beside a summary that a model wrote: asks and demands are not left to it.


SHORTEST_TASK, MOST_ASKS, EARLIER_SHARE = 300, 8, 0.2
"""Characters of the newest ask however small the budget, earlier asks, and their share of the budget."""


class UserWords(NamedTuple):
    """The newest ask, those before it, and what was demanded."""

    task: str
    asks: list[str]
    demands: list[str]


def said_by_user(ask: SummaryAsk) -> UserWords:
    """Asks and demands of the fold and of the summary before it, each within its share of the budget."""
    old = parse_summary(ask.previous) if ask.previous else StructuredSummary()
    said = [text for message in ask.messages if speaks(message) and (text := ask.redact(message.text)).strip()]
    asks = [*lines_of(old.pending), *([f"- {clip(old.task_snapshot, ASK_CHARACTERS)}"] if old.task_snapshot else [])]
    asks += [f"- {clip(text, ASK_CHARACTERS)}" for text in said]
    newest = said[-1] if said else old.task_snapshot
    longest = min(max(ask.budget_tokens, SHORTEST_TASK), NEWEST_ASK_CHARACTERS)
    earlier = list(dict.fromkeys(asks[:-1]))[-MOST_ASKS:]
    demanded = [f"- {sentence}" for text in said for sentence in sentences(text, CONSTRAINT)]
    demands = list(dict.fromkeys([*lines_of(old.constraints), *demanded]))
    return UserWords(
        clip(newest, longest),
        _within(earlier, ask.budget_tokens * EARLIER_SHARE),
        _within(demands, ask.budget_tokens * RULES_SHARE),
    )


def _within(lines: list[str], tokens: float) -> list[str]:
    return fit(lines, int(tokens), set())[0].splitlines()
