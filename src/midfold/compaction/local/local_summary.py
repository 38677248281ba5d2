"""A summary without a model: the state first, then what happened, in order, within its budget.

Rules of this file:
1. It says that it was made locally and may be incomplete.
2. What the user said is quoted before the summary (`user_record`), not repeated in it. A failure that was mended does
   not block; what was done is told as done.
3. What happened stands in order: sentences of the user and the agent as they are, calls in a line with their outcome,
   exact lines indented below the step they belong to. The newer, the fuller.
4. What an earlier summary knew is taken apart and carried forward: its state is brought up to date, its steps get
   shorter.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from itertools import pairwise
from operator import add
from typing import NamedTuple

import msgspec

from midfold.compaction.injection import TYPED
from midfold.compaction.local.fold_reader import FoldReader, FoldStep, Kind, is_statement, sentences
from midfold.compaction.local.headlines import TOOLS_USED, stated_blockers, tools_used
from midfold.compaction.local.identifiers import SAID, STOP, USER, subwords
from midfold.compaction.local.line_selection import DEMAND, LineSelection
from midfold.compaction.local.outcome import NOT_RUN
from midfold.compaction.request import SummaryRequest
from midfold.compaction.summary import FENCE, StructuredSummary, parse_summary, sections_text
from midfold.compaction.tracking import TrackedFile, missing_checks, render, without_stale_states, without_trail
from midfold.transcript.tokens import estimate_text

NOTICE = "Locally generated, may be incomplete (lower confidence)."
TERSE_NOTICE = "Made locally, incomplete."
LEFT_OUT = " […] "
ABOVE, BELOW = "(above) ", "(below) "
"""Before a call whose message stays, shortened."""
UNDER = ("  ", " …")
"""Before a line under its step; the second where it does not follow on the one before."""
STORY = "What happened, in order:"
UNCHECKED, MOST_MISSING = "- asked for, not run since the last change: ", 4
FRAME_TOKENS = 40
"""The notice and the headings."""
GOAL_SHARE, DEMANDS_SHARE, PLAN_SHARE, TRAIL_SHARE, OPEN_SHARE, INSTRUCTIONS_SHARE = 0.08, 0.15, 0.08, 0.2, 0.06, 0.1
"""Of the budget, at most; what they leave over is for what happened."""
NEXT, LEAST_ABOUT, ON_RECORD = 4, 0.45, ("commit", "commits", "stage", "staging", "push")
"""How much more a word of what comes next says about an instruction than one of what was last done."""
LEAST_ROOM, COMMAND_ROOM, LEAST_TRAIL = 16, 40, 400
"""Tokens of a section, of instructions that give a command, and of the trail, however small the budget."""
MOST_BLOCKERS, BLOCKED_BY = 2, 6
"""Open failures that are told, and among how many of the newest calls that do something they are looked for."""
SHORT_HEAD = 40
"""Characters of an act that stand in the line of its call."""
LOOKING = ("read", "search", "list", "plan")
RUNNERS = ("run", "exec")
FRESH_PLAN = 4
"""Steps after which a plan is told as one that may be out of date."""
OLD_PLAN = "(plan as last written; what was done later is not marked in it)"
NOT_SHOWN = "(other open steps are not shown)"
PLAN_KEYS = ("todos", "plan", "items", "steps", "tasks")
DONE = ("completed", "complete", "done", "finished")
SHORT_BAN, LONGEST_LIST = 90, 400
_BAN = re.compile(r"\b(?:never|do not|don['’]t|must not|mustn['’]t)\b", re.I)
_COMMAND = re.compile(
    r"^[ \t]{0,8}([^\s][^\n]{0,200}:)[ \t]{0,8}\n{1,2}```\w{0,12}\n([^\n`]{1,200})\n```", re.MULTILINE
)
"""A line that speaks of a command, and the command in a fence of its own below it."""
_FILE = re.compile(r"\b[\w-]{1,60}\.[a-z]{1,5}\b")
_ENDS_WITH_COMMAND = re.compile(r": `[^`\n]{1,200}`\Z")
_MARKS = re.compile(r"\A(?:[-*+#]{1,6} )+")
_QUOTES = re.compile(r"[\"']")
_TASK = re.compile(r"- \[([^\]\n]{1,40})\] (.+)")
_TASK_NUMBER = re.compile(r"#([0-9]{1,6})\b")


class Book(NamedTuple):
    """What a reader has of the names of a fold."""

    kept: int = 0
    """Names of the fold that are in the summary or in messages that stay."""
    recoverable: int = 0
    """Names that are only behind the fold's handle."""
    estimate: float = 1.0
    """The share of names likely to be needed that is kept, each weighted by how likely."""


def local_summary(ask: SummaryRequest) -> tuple[str, Book]:
    """Return the body of a handoff for the fold, and what it keeps of it; the least there is where that fails."""
    attempt, nothing_kept = ask.omissions.attempt, Book(estimate=0.0)
    made = attempt("local summary", lambda: _local_summary(ask), None)
    return made or (attempt("local summary", lambda: _least_summary(ask), NOTICE), nothing_kept)


def _least_summary(ask: SummaryRequest) -> str:
    """Return the previous summary and what is known of files."""
    return "\n\n".join(filter(None, (NOTICE, ask.previous, sections_text(ask.trail_lines))))


def _local_summary(ask: SummaryRequest) -> tuple[str, Book]:
    with closing(FoldReader(ask)) as reading:
        carried = without_stale_states(_without_frame(ask.previous), ask.trail)
        old = parse_summary(carried) if ask.previous else StructuredSummary()
        room = max(ask.budget_tokens - FRAME_TOKENS - ask.handle_tokens, 60)
        state = WorkState(reading, old, room).sections()
        rendered = state.render(terse=ask.dense)
        tools = "" if ask.dense else tools_used(ask.messages, ask.budget_tokens)
        steps = [*old_steps(old.critical, reading), *(step for step in reading.steps if not state_only(step, reading))]
        steps = [step for step in steps if not _is_quoted(step, ask.words.text)]
        told = "\n".join(filter(None, [ask.words.text, rendered]))
        choice = LineSelection(reading, steps, room - estimate_text(rendered) - estimate_text(tools), told)
        told_in_order = without_stale_states(story(steps, choice), ask.trail)
        happened = [STORY if choice.chosen and not ask.dense else "", told_in_order, tools]
        body = msgspec.structs.replace(state, critical="\n".join(filter(None, happened))).render(terse=ask.dense)
        parts = (TERSE_NOTICE, ask.redact(body)) if ask.dense else (NOTICE, "", ask.redact(body))
        return "\n".join(parts), book_of(choice)


def _is_quoted(step: FoldStep, words: str) -> bool:
    """Return whether the handoff quotes all that the user said in a step."""
    return step.kind == Kind.USER and all(row in words for row in step.rows)


def count_names(ask: SummaryRequest, text: str, scanned: int) -> Book:
    """How much of what the fold says a reader of this text, and of what stays, has."""
    with closing(FoldReader(ask, scanned, only_names=True)) as reading:
        return book_of(LineSelection(reading, reading.steps, 0, text, only_names=True))


def state_only(step: FoldStep, reading: FoldReader) -> bool:
    """Whether a step is told in the state alone: what the user asks for in a message that stays, and instructions."""
    return step.kind == Kind.NOTE or (step.kind == Kind.USER and step.at not in reading.fold)


def book_of(choice: LineSelection) -> Book:
    inside, worths = choice.reading.inside, choice.worths
    kept = inside & choice.covered
    total = sum(worths[entry] for entry in inside)
    share = sum(worths[entry] for entry in kept) / total if total else 1.0
    return Book(len(kept), len(inside) - len(kept), round(share, 3))


def _is_work(file: TrackedFile) -> bool:
    return file.state != "scratch"


def _makes_what(rows: Sequence[str], commands: Sequence[str]) -> Iterable[str]:
    """Lines with a command that makes a file which others need."""
    files = {file for command in commands for file in _FILE.findall(command)}
    return (line for line in rows if any(f"> {file}`" in line for file in files))


def _without_frame(previous: str) -> str:
    bare = previous.replace(NOTICE, "").replace(TERSE_NOTICE, "").replace(f"{STORY}\n", "")
    return "\n".join(line for line in bare.split("\n") if not line.startswith((TOOLS_USED, UNCHECKED)))


# What happened.


def story(steps: Sequence[FoldStep], choice: LineSelection) -> str:
    """The chosen lines under their steps, in order; calls of which nothing else is told share a line.

    A call whose message stays is marked, so that nobody takes it for another.
    """
    out: list[str] = []
    bare: dict[str, str] = {}
    calls: Counter[str] = Counter()
    files: set[str] = set()
    for step in steps:
        chosen = choice.chosen.get(step)
        is_bare = step.kind == Kind.CALL and not chosen
        if is_bare and step.at in choice.reading.fold:
            calls[step.head] += 1
        if chosen is None:
            continue
        places = sorted(chosen)
        lines = [step.rows[place] for place in places]
        head = step.again if step.file in files else step.head
        files |= {step.file} if step.file else set()
        if is_bare:
            bare.setdefault(step.head, head)
            continue
        out += _together(bare, calls)
        bare, calls = {}, Counter()
        if step.kind == Kind.CALL:
            stays = "" if step.at in choice.reading.fold else BELOW if choice.reading.is_below(step.at) else ABOVE
            marks = (UNDER[place - before > 1] for before, place in pairwise([places[0] - 1, *places]))
            out += [f"- {stays}{head}", *map(add, marks, lines)]
        else:
            out.append(_user_line(step, places) if step.kind == Kind.USER else _paragraph(step, places))
    out += _together(bare, calls)
    return "\n".join(out)


def _together(heads: Mapping[str, str], calls: Counter[str]) -> list[str]:
    """Calls in one line, each once, with how often it was made here."""
    told = (f"{told} ({calls[head]}x)" if calls[head] > 1 else told for head, told in heads.items())
    return [f"- {'; '.join(told)}"] if heads else []


def _user_line(step: FoldStep, places: list[int]) -> str:
    """What the user said, in one line that shows where something is left out."""
    text = ""
    for before, place in zip([-1, *places], places, strict=False):
        text += (LEFT_OUT if place > before + 1 else " ") + step.rows[place].lstrip("#").strip()
    return TYPED + text.strip()


def _paragraph(step: FoldStep, places: Sequence[int]) -> str:
    """What the agent said, sentences that follow on each other in a line; an item of its lists begins with a star, as
    calls begin with a dash."""
    text = ""
    for before, place in pairwise([places[0], *places]):
        line = step.rows[place]
        goes_on = text[-1:] in (".", "!", "?", ":") and line[:1].isalpha() and place - before == 1
        gap = "" if not text else " " if goes_on else "\n"
        bare = line.lstrip("#").lstrip()
        text += gap + (f"* {bare[2:]}" if bare.startswith("- ") else bare)
    return text


def old_steps(old: str, reading: FoldReader) -> list[FoldStep]:
    """The steps of an earlier story; calls that stayed behind it are told anew."""
    steps: list[FoldStep] = []
    is_again = False
    for raw in old.split("\n"):
        text = raw.removeprefix("- ").removeprefix(TYPED).removeprefix(UNDER[1]).strip()
        is_again = raw.startswith((f"- {ABOVE}", f"- {BELOW}")) or (is_again and raw.startswith(UNDER))
        if not text or is_again:
            continue
        if not raw.startswith(UNDER) or not steps:
            kind = Kind.USER if raw.startswith(TYPED) else Kind.CALL if raw.startswith("- ") else Kind.SAID
            steps.append(FoldStep(kind, reading.fold.start))
        step = steps[-1]
        names = reading.names(text)
        reading.census.count(set(names), reading.fold.start, USER if step.kind == Kind.USER else SAID)
        reading.inside.update(names)
        if step.kind == Kind.CALL and raw.startswith("- "):
            step.head, step.head_names = text, names
        elif step.kind == Kind.CALL:
            step.rows += [""] if raw.startswith(UNDER[1]) else []
            reading.add(step, text, names)
        else:
            for unit in sentences(text.replace(LEFT_OUT, "\n")):
                reading.add(step, unit, reading.names(unit), keep=True)
    return steps


# The state.


class WorkState:
    """What a fold says about where the work stands."""

    def __init__(self, reading: FoldReader, old: StructuredSummary, room: int) -> None:
        self.reading = reading
        self.old = old
        self.room = room

    def sections(self) -> StructuredSummary:
        trail = render(self.reading.ask.trail, int(max(self.room * TRAIL_SHARE, min(LEAST_TRAIL, self.room * 0.4))))
        return StructuredSummary(
            task_snapshot=self._fit(_lines(self.old.task_snapshot), GOAL_SHARE),
            goal=self._fit(_lines(self.old.goal), GOAL_SHARE),
            constraints=self._constraints(),
            done=self._section("done", trail),
            blocked="\n".join(filter(None, [*trail.get("blocked", []), self._fit(self._blockers(), OPEN_SHARE)])),
            active_state="\n".join(filter(None, [self._section("active_state", trail), self._checks_to_run()])),
            decisions=self._fit(_lines(self.old.decisions), OPEN_SHARE),
            resolved=self._fit(_lines(self.old.resolved), OPEN_SHARE),
            files=self._section("files", trail),
            next_steps=self._plan(),
        )

    def _section(self, key: str, trail: dict[str, list[str]]) -> str:
        """The trail's lines of a section, and what else an earlier summary has there."""
        carried = self._fit(_lines(without_trail(getattr(self.old, key))), OPEN_SHARE / 2)
        return "\n".join(filter(None, [*trail.get(key, []), carried]))

    def _checks_to_run(self) -> str:
        """Checks that the user asked for and that were not run since the last change."""
        trail = self.reading.ask.trail
        asks = ("\n".join(step.texts) for step in reversed(self.reading.steps) if step.kind == Kind.USER)
        asked = next((ask for ask in asks if "`" in ask), "") if any(map(_is_work, trail.files)) else ""
        missing = missing_checks(trail, asked)
        return f"{UNCHECKED}{', '.join(f'`{command}`' for command in missing[:MOST_MISSING])}" if missing else ""

    def _fit(
        self, lines: Iterable[str], share: float, first: Callable[[str], bool] = bool, least: int = LEAST_ROOM
    ) -> str:
        """The newest lines that fit, those before others that come first, in their order."""
        left = max(self.room * share, least)
        every = list(dict.fromkeys(lines))
        kept: set[int] = set()
        for place in sorted(range(len(every)), key=lambda place: (not first(every[place]), -place)):
            cost = estimate_text(every[place]) + 1
            if cost <= left:
                kept.add(place)
                left -= cost
        return "\n".join(every[place] for place in sorted(kept))

    def _constraints(self) -> str:
        """Return the constraints of an earlier summary, and what instructions around the user's words demand."""
        notes = [step for step in self.reading.steps if step.kind == Kind.NOTE and step.is_rule]
        commands = [_item(line) for step in notes for line in self._commands(step).values()]
        first = [_item(line) for step in notes for line in _makes_what(step.rows, commands)]
        others = (line for line in self._instructions(notes) if line not in first)
        instructions = [*others, *first, *commands]
        parts = (
            self._fit(_lines(self.old.constraints), DEMANDS_SHARE, _is_worth_its_size),
            self._fit(instructions, INSTRUCTIONS_SHARE, least=COMMAND_ROOM if commands else LEAST_ROOM),
        )
        return "\n".join(dict.fromkeys(line for part in parts for line in _lines(part)))

    def _commands(self, step: FoldStep) -> dict[str, str]:
        """Lines that demand a command, and the same with the command, as far as no message that stays shows it."""
        fenced = (self.reading.safe(step, text) for text in step.texts if "```" in text)
        found = (pair for text in fenced for pair in _COMMAND.findall(text))
        untold = set(step.rows)
        return {
            line: f"{line} `{code.strip()}`" for line, code in found if code.strip() in untold and DEMAND.search(line)
        }

    def _instructions(self, notes: Iterable[FoldStep]) -> list[str]:
        """Lines of instructions around the user's words: those last, and kept first, that are about what is being done
        now."""
        recent, next_up = self.reading.recent, self._next_words()
        ranked: list[tuple[float, str]] = []
        for line in (line for step in notes for line in _unwrap(step.rows)):
            words = set(subwords(line))
            if len(words) > 3 and is_statement(line) and not line.startswith(("#", "--")):
                told = words - STOP
                about = (len(told & recent) + NEXT * len(told & next_up)) / len(words)
                weight = 3.0 if _is_worth_its_size(line) else 1.5 if DEMAND.search(line) else 0.7
                ranked.append((about * weight, _item(line)))
        least = max(ranked, default=(0.0, ""))[0] * LEAST_ABOUT
        return [line for about, line in sorted(ranked, key=lambda pair: pair[0]) if about > least]

    def _next_words(self) -> set[str]:
        """Words of what comes next: of the newest ask, and of how changes are put on record where some are not."""
        asks = [text for step in self.reading.steps if step.kind == Kind.USER for text in step.texts]
        return {*subwords(asks[-1] if asks else ""), *(ON_RECORD if self.reading.ask.trail.git.is_dirty else ())}

    def _plan(self) -> str:
        """The steps of the newest plan, unless a message that stays shows it; done ones are counted where all are."""
        tasks, written = _old_tasks(self.old.next_steps), -FRESH_PLAN
        carried = [] if tasks else _lines(self.old.next_steps)
        lacks = NOT_SHOWN in self.old.next_steps
        for place, step in enumerate(self.reading.steps):
            look = step.look
            if look is None or step.action is None or step.action.family != "plan":
                continue
            items = next((value for key in PLAN_KEYS if isinstance(value := look.get(key), list)), None)
            if items is not None:
                is_folded = step.at in self.reading.fold
                tasks = {str(number): _task(item) for number, item in enumerate(items)} if is_folded else {}
                lacks = False
            elif look.text("subject"):
                number = match[1] if (match := _TASK_NUMBER.search(look.body.text)) else str(len(tasks) + 1)
                tasks[number] = ["pending", f"#{number} {look.text('subject', 'title')}"]
            elif look.text("taskid") in tasks and look.text("status"):
                tasks[look.text("taskid")][0] = look.text("status")
            else:
                continue
            carried, written = [], place
        if tasks and not lacks and all(state in DONE for state, _ in tasks.values()):
            done = "- all steps of the plan are done"
            return self._fit([f"{done}: {'; '.join(text for _, text in tasks.values())}"], PLAN_SHARE) or done
        if carried or not tasks:
            return self._fit(carried, PLAN_SHARE)
        done_first = sorted(tasks.items(), key=lambda task: (task[1][0] not in DONE, int(task[0])))
        told = self._fit([f"- [{state}] {text}" for _, (state, text) in done_first], PLAN_SHARE)
        lacks = lacks or any(state not in DONE and text not in told for state, text in tasks.values())
        is_old = len(self.reading.steps) - written > FRESH_PLAN
        return "\n".join(filter(None, [OLD_PLAN if is_old else "", told, NOT_SHOWN if lacks else ""]))

    def _blockers(self) -> list[str]:
        """Return failures among the newest calls that nothing mended, and blockers that the assistant stated."""
        mended: set[str] = set()
        found: list[str] = []
        doing = [step for step in self.reading.steps if step.action is not None and step.action.family not in LOOKING]
        for step in reversed(doing[-BLOCKED_BY:]):
            keys = _targets(step)
            is_failure = step.action is not None and step.action.outcome == "failed" and not step.head.endswith(NOT_RUN)
            if is_failure and step.at in self.reading.fold and not keys & mended and not self._is_tracked(step):
                found.append(f"- {step.head}")
            mended |= keys
        said = (text for step in self.reading.steps if step.kind == Kind.SAID for text in self._rows_in_fold(step))
        return [*reversed(found[:MOST_BLOCKERS]), *stated_blockers(said, _lines(self.old.blocked))]

    def _rows_in_fold(self, step: FoldStep) -> Iterable[str]:
        """Return the sentences of the assistant's own words in the fold."""
        return step.rows if step.at in self.reading.fold else ()

    def _is_tracked(self, step: FoldStep) -> bool:
        """Whether the trail tells of it: as an act that failed, or as a check, with what came of it last."""
        trail, root = self.reading.ask.trail, self.reading.root or chr(0)
        told = [*(act.text for act in trail.acts if not act.ok), *(check.command for check in trail.checks)]
        head = _QUOTES.sub("", step.head)
        return any(text and _QUOTES.sub("", text.replace(root, ""))[:SHORT_HEAD] in head for text in told)


def _is_worth_its_size(line: str) -> bool:
    """Whether a demand forbids something in a few words, or gives the very command: hardly anything is worth more."""
    return (len(line) <= SHORT_BAN and _BAN.search(line) is not None) or _ENDS_WITH_COMMAND.search(line) is not None


def _unwrap(rows: Iterable[str]) -> list[str]:
    """Lines of a text, those together over which a sentence goes on, or a demand and what it lists."""
    lines: list[str] = []
    is_list = False
    for row in rows:
        last = lines[-1] if lines else ""
        is_list = row.startswith("- ") and (is_list or (last.endswith(":") and DEMAND.search(last) is not None))
        if is_list and len(last) + len(row) <= LONGEST_LIST:
            lines[-1] = f"{_item(last)}{'' if last.endswith(':') else ';'} {row[2:]}"
        elif last and row[:1].islower() and last[-1:] not in ".:!?" and not last.startswith(FENCE):
            lines[-1] += f" {row}"
        else:
            lines.append(row)
    return lines


def _item(line: str) -> str:
    return f"- {_MARKS.sub('', line)}"


def _old_tasks(text: str) -> dict[str, list[str]]:
    """The steps of a plan as an earlier summary told them, by their numbers."""
    tasks: dict[str, list[str]] = {}
    for line in _lines(text):
        if match := _TASK.fullmatch(line):
            number = _TASK_NUMBER.match(match[2])
            tasks[number[1] if number else str(len(tasks))] = [match[1], match[2]]
    return tasks


def _task(item: object) -> list[str]:
    if not isinstance(item, dict):
        return ["pending", str(item)]
    text = next((str(item[key]) for key in ("content", "step", "title", "subject", "description") if item.get(key)), "")
    return [str(item.get("status", "pending")), " ".join(text.split())]


def _targets(step: FoldStep) -> set[str]:
    """What a later success must be about, to mend a failure: the same file or the same command."""
    action = step.action
    if action is None:
        return set()
    if action.family != "shell":
        return {*action.paths, action.tool}
    command = step.head.partition(" → ")[0].partition("|")[0].partition("2>")[0]
    words = [word for word in command.split() if word[0].isalnum() and word not in RUNNERS]
    return {*action.paths, " ".join(words[:2])}


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
