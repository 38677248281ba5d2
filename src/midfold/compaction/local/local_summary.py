"""Write a summary without an LLM: the state of the work, then the events in order, within a budget.

1. The summary states that it was made locally and may be incomplete.
2. User messages are quoted before the summary (`user_record`), not in it. A failure that was fixed later is no blocker.
3. Events are in order: verbatim sentences of the user and the assistant, one line per call with its outcome, and
   verbatim lines indented below their step. Newer events get more lines.
4. An earlier summary is parsed and carried forward: its state is updated, its steps are shortened.
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
"""Prefixes of a call whose message stays, shortened."""
UNDER = ("  ", " …")
"""Prefixes of a line under its step; the second one marks a gap before the line."""
STORY = "What happened, in order:"
UNCHECKED = "- asked for, not run since the last change: "
MAX_MISSING_CHECKS = 4
FRAME_TOKENS = 40
"""Tokens of the notice and the headings."""
GOAL_SHARE = 0.08
DEMANDS_SHARE = 0.15
PLAN_SHARE = 0.08
TRAIL_SHARE = 0.2
OPEN_SHARE = 0.06
INSTRUCTIONS_SHARE = 0.1
"""Maximum shares of the budget; the remainder is for the events."""
NEXT_STEP_WEIGHT = 4
"""Weight of a word about the next steps relative to one about the latest work."""
MIN_RELEVANCE = 0.45
"""Minimum relevance of an instruction relative to the best one."""
COMMIT_WORDS = ("commit", "commits", "stage", "staging", "push")
MIN_SECTION_TOKENS = 16
MIN_COMMAND_TOKENS = 40
"""Minimum tokens of instructions with a command."""
MIN_TRAIL_TOKENS = 400
"""Minimum tokens of the tracked work, if the budget allows."""
MAX_BLOCKERS = 2
"""Maximum number of open failures."""
BLOCKER_CALLS = 6
"""Number of newest acting calls searched for open failures."""
HEADLINE_PREFIX_CHARS = 40
"""Characters of a side effect that identify its call's headline."""
LOOKING = ("read", "search", "list", "plan")
RUNNERS = ("run", "exec")
MAX_PLAN_AGE_STEPS = 4
"""Maximum steps since a plan was written; an older plan is marked as possibly outdated."""
OLD_PLAN = "(plan as last written; what was done later is not marked in it)"
NOT_SHOWN = "(other open steps are not shown)"
PLAN_KEYS = ("todos", "plan", "items", "steps", "tasks")
DONE = ("completed", "complete", "done", "finished")
MAX_BAN_CHARS = 90
"""Maximum characters of a short prohibition."""
MAX_LIST_CHARS = 400
"""Maximum characters of a demand joined with its list."""
_BAN = re.compile(r"\b(?:never|do not|don['’]t|must not|mustn['’]t)\b", re.I)
_COMMAND = re.compile(
    r"^[ \t]{0,8}([^\s][^\n]{0,200}:)[ \t]{0,8}\n{1,2}```\w{0,12}\n([^\n`]{1,200})\n```", re.MULTILINE
)
"""A line that introduces a command, and the command in a code fence below it."""
_FILE = re.compile(r"\b[\w-]{1,60}\.[a-z]{1,5}\b")
_ENDS_WITH_COMMAND = re.compile(r": `[^`\n]{1,200}`\Z")
_MARKS = re.compile(r"\A(?:[-*+#]{1,6} )+")
_QUOTES = re.compile(r"[\"']")
_TASK = re.compile(r"- \[([^\]\n]{1,40})\] (.+)")
_TASK_NUMBER = re.compile(r"#([0-9]{1,6})\b")


class KeptNames(NamedTuple):
    """Counts of the fold's names that are kept."""

    kept: int = 0
    """Names of the fold that are in the summary or in messages that stay."""
    recoverable: int = 0
    """Names available only through the fold's handle."""
    estimate: float = 1.0
    """Kept share of all names, weighted by the probability that they are needed."""


def local_summary(request: SummaryRequest) -> tuple[str, KeptNames]:
    """Return the body of a handoff for the fold and its name counts; fall back to a minimal summary on failure."""
    attempt, nothing_kept = request.omissions.attempt, KeptNames(estimate=0.0)
    made = attempt("local summary", lambda: _local_summary(request), None)
    return made or (attempt("local summary", lambda: _minimal_summary(request), NOTICE), nothing_kept)


def _minimal_summary(request: SummaryRequest) -> str:
    """Return the previous summary and the tracked files."""
    return "\n\n".join(filter(None, (NOTICE, request.previous, sections_text(request.trail_lines))))


def _local_summary(request: SummaryRequest) -> tuple[str, KeptNames]:
    with closing(FoldReader(request)) as reader:
        carried = without_stale_states(_without_frame(request.previous), request.trail)
        old = parse_summary(carried) if request.previous else StructuredSummary()
        budget = max(request.budget_tokens - FRAME_TOKENS - request.handle_tokens, 60)
        state = WorkState(reader, old, budget).sections()
        rendered = state.render(terse=request.dense)
        tools = "" if request.dense else tools_used(request.messages, request.budget_tokens)
        steps = [*old_steps(old.critical, reader), *(step for step in reader.steps if not state_only(step, reader))]
        steps = [step for step in steps if not _is_quoted(step, request.words.text)]
        included = "\n".join(filter(None, [request.words.text, rendered]))
        selection = LineSelection(reader, steps, budget - estimate_text(rendered) - estimate_text(tools), included)
        events = without_stale_states(story(steps, selection), request.trail)
        happened = [STORY if selection.chosen and not request.dense else "", events, tools]
        body = msgspec.structs.replace(state, critical="\n".join(filter(None, happened))).render(terse=request.dense)
        parts = (TERSE_NOTICE, request.redact(body)) if request.dense else (NOTICE, "", request.redact(body))
        return "\n".join(parts), name_counts(selection)


def _is_quoted(step: FoldStep, words: str) -> bool:
    """Return whether the handoff quotes the whole user message of a step."""
    return step.kind == Kind.USER and all(row in words for row in step.rows)


def count_names(request: SummaryRequest, text: str, scanned: int) -> KeptNames:
    """Return the name counts of a text together with the messages that stay."""
    with closing(FoldReader(request, scanned, only_names=True)) as reader:
        return name_counts(LineSelection(reader, reader.steps, 0, text, only_names=True))


def state_only(step: FoldStep, reader: FoldReader) -> bool:
    """Return whether a step appears in the state only: instructions, and user messages that stay."""
    return step.kind == Kind.NOTE or (step.kind == Kind.USER and step.at not in reader.fold)


def name_counts(selection: LineSelection) -> KeptNames:
    inside, worths = selection.reader.inside, selection.worths
    kept = inside & selection.covered
    total = sum(worths[entry] for entry in inside)
    share = sum(worths[entry] for entry in kept) / total if total else 1.0
    return KeptNames(len(kept), len(inside) - len(kept), round(share, 3))


def _is_work(file: TrackedFile) -> bool:
    return file.state != "scratch"


def _required_files(rows: Sequence[str], commands: Sequence[str]) -> Iterable[str]:
    """Return lines with a command that creates a file which the other commands need."""
    files = {file for command in commands for file in _FILE.findall(command)}
    return (line for line in rows if any(f"> {file}`" in line for file in files))


def _without_frame(previous: str) -> str:
    bare = previous.replace(NOTICE, "").replace(TERSE_NOTICE, "").replace(f"{STORY}\n", "")
    return "\n".join(line for line in bare.split("\n") if not line.startswith((TOOLS_USED, UNCHECKED)))


# Events.


def story(steps: Sequence[FoldStep], selection: LineSelection) -> str:
    """Return the selected lines under their steps, in order; calls without further lines share a line.

    A call whose message stays is marked, so that it is not taken for another call.
    """
    out: list[str] = []
    bare: dict[str, str] = {}
    calls: Counter[str] = Counter()
    files: set[str] = set()
    for step in steps:
        chosen = selection.chosen.get(step)
        is_bare = step.kind == Kind.CALL and not chosen
        if is_bare and step.at in selection.reader.fold:
            calls[step.headline] += 1
        if chosen is None:
            continue
        places = sorted(chosen)
        lines = [step.rows[place] for place in places]
        headline = step.short_headline if step.file in files else step.headline
        files |= {step.file} if step.file else set()
        if is_bare:
            bare.setdefault(step.headline, headline)
            continue
        out += _joined_calls(bare, calls)
        bare, calls = {}, Counter()
        if step.kind == Kind.CALL:
            stays = "" if step.at in selection.reader.fold else BELOW if selection.reader.is_below(step.at) else ABOVE
            marks = (UNDER[place - before > 1] for before, place in pairwise([places[0] - 1, *places]))
            out += [f"- {stays}{headline}", *map(add, marks, lines)]
        else:
            out.append(_user_line(step, places) if step.kind == Kind.USER else _paragraph(step, places))
    out += _joined_calls(bare, calls)
    return "\n".join(out)


def _joined_calls(headlines: Mapping[str, str], calls: Counter[str]) -> list[str]:
    """Join calls into one line, each once, with its count."""
    shown = (f"{shown} ({calls[headline]}x)" if calls[headline] > 1 else shown for headline, shown in headlines.items())
    return [f"- {'; '.join(shown)}"] if headlines else []


def _user_line(step: FoldStep, places: list[int]) -> str:
    """Return the user's text in one line, with gaps marked."""
    text = ""
    for before, place in zip([-1, *places], places, strict=False):
        text += (LEFT_OUT if place > before + 1 else " ") + step.rows[place].lstrip("#").strip()
    return TYPED + text.strip()


def _paragraph(step: FoldStep, places: Sequence[int]) -> str:
    """Join assistant sentences into a paragraph; list items begin with a star, because calls begin with a dash."""
    text = ""
    for before, place in pairwise([places[0], *places]):
        line = step.rows[place]
        goes_on = text[-1:] in (".", "!", "?", ":") and line[:1].isalpha() and place - before == 1
        gap = "" if not text else " " if goes_on else "\n"
        bare = line.lstrip("#").lstrip()
        text += gap + (f"* {bare[2:]}" if bare.startswith("- ") else bare)
    return text


def old_steps(old: str, reader: FoldReader) -> list[FoldStep]:
    """Parse the steps of an earlier summary, except calls whose messages stayed: these are read again."""
    steps: list[FoldStep] = []
    is_again = False
    for raw in old.split("\n"):
        text = raw.removeprefix("- ").removeprefix(TYPED).removeprefix(UNDER[1]).strip()
        is_again = raw.startswith((f"- {ABOVE}", f"- {BELOW}")) or (is_again and raw.startswith(UNDER))
        if not text or is_again:
            continue
        if not raw.startswith(UNDER) or not steps:
            kind = Kind.USER if raw.startswith(TYPED) else Kind.CALL if raw.startswith("- ") else Kind.SAID
            steps.append(FoldStep(kind, reader.fold.start))
        step = steps[-1]
        names = reader.names(text)
        reader.census.count(set(names), reader.fold.start, USER if step.kind == Kind.USER else SAID)
        reader.inside.update(names)
        if step.kind == Kind.CALL and raw.startswith("- "):
            step.headline, step.headline_names = text, names
        elif step.kind == Kind.CALL:
            step.rows += [""] if raw.startswith(UNDER[1]) else []
            reader.add(step, text, names)
        else:
            for unit in sentences(text.replace(LEFT_OUT, "\n")):
                reader.add(step, unit, reader.names(unit), keep=True)
    return steps


# State.


class WorkState:
    """State of the work according to a fold."""

    def __init__(self, reader: FoldReader, old: StructuredSummary, budget: int) -> None:
        self.reader = reader
        self.old = old
        self.budget = budget

    def sections(self) -> StructuredSummary:
        trail = render(
            self.reader.request.trail, int(max(self.budget * TRAIL_SHARE, min(MIN_TRAIL_TOKENS, self.budget * 0.4)))
        )
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
        """Return the tracked lines of a section and the other lines of an earlier summary."""
        carried = self._fit(_lines(without_trail(getattr(self.old, key))), OPEN_SHARE / 2)
        return "\n".join(filter(None, [*trail.get(key, []), carried]))

    def _checks_to_run(self) -> str:
        """Return the checks that the user requested and that did not run since the last change."""
        trail = self.reader.request.trail
        user_texts = ("\n".join(step.texts) for step in reversed(self.reader.steps) if step.kind == Kind.USER)
        requested = next((text for text in user_texts if "`" in text), "") if any(map(_is_work, trail.files)) else ""
        missing = missing_checks(trail, requested)
        return f"{UNCHECKED}{', '.join(f'`{command}`' for command in missing[:MAX_MISSING_CHECKS])}" if missing else ""

    def _fit(
        self,
        lines: Iterable[str],
        share: float,
        first: Callable[[str], bool] = bool,
        min_tokens: int = MIN_SECTION_TOKENS,
    ) -> str:
        """Return the newest lines that fit, in order; lines for which `first` is true have priority."""
        left = max(self.budget * share, min_tokens)
        every = list(dict.fromkeys(lines))
        kept: set[int] = set()
        for place in sorted(range(len(every)), key=lambda place: (not first(every[place]), -place)):
            cost = estimate_text(every[place]) + 1
            if cost <= left:
                kept.add(place)
                left -= cost
        return "\n".join(every[place] for place in sorted(kept))

    def _constraints(self) -> str:
        """Return the constraints of an earlier summary, and demands of the client's instructions."""
        notes = [step for step in self.reader.steps if step.kind == Kind.NOTE and step.is_rule]
        commands = [_item(line) for step in notes for line in self._commands(step).values()]
        first = [_item(line) for step in notes for line in _required_files(step.rows, commands)]
        others = (line for line in self._instructions(notes) if line not in first)
        instructions = [*others, *first, *commands]
        parts = (
            self._fit(_lines(self.old.constraints), DEMANDS_SHARE, _is_worth_its_size),
            self._fit(
                instructions, INSTRUCTIONS_SHARE, min_tokens=MIN_COMMAND_TOKENS if commands else MIN_SECTION_TOKENS
            ),
        )
        return "\n".join(dict.fromkeys(line for part in parts for line in _lines(part)))

    def _commands(self, step: FoldStep) -> dict[str, str]:
        """Map lines that introduce a command to the same with the command, unless a message that stays shows it."""
        fenced = (self.reader.safe(step, text) for text in step.texts if "```" in text)
        found = (pair for text in fenced for pair in _COMMAND.findall(text))
        rows = set(step.rows)
        return {
            line: f"{line} `{code.strip()}`" for line, code in found if code.strip() in rows and DEMAND.search(line)
        }

    def _instructions(self, notes: Iterable[FoldStep]) -> list[str]:
        """Return relevant instruction lines, the most relevant last: `_fit` keeps the last ones."""
        recent, next_up = self.reader.recent, self._next_words()
        ranked: list[tuple[float, str]] = []
        for line in (line for step in notes for line in _unwrap(step.rows)):
            words = set(subwords(line))
            if len(words) > 3 and is_statement(line) and not line.startswith(("#", "--")):
                topic = words - STOP
                relevance = (len(topic & recent) + NEXT_STEP_WEIGHT * len(topic & next_up)) / len(words)
                weight = 3.0 if _is_worth_its_size(line) else 1.5 if DEMAND.search(line) else 0.7
                ranked.append((relevance * weight, _item(line)))
        threshold = max(ranked, default=(0.0, ""))[0] * MIN_RELEVANCE
        return [line for relevance, line in sorted(ranked, key=lambda pair: pair[0]) if relevance > threshold]

    def _next_words(self) -> set[str]:
        """Return words about the next steps: of the newest user message, and about committing if changes are
        uncommitted.
        """
        user_texts = [text for step in self.reader.steps if step.kind == Kind.USER for text in step.texts]
        return {
            *subwords(user_texts[-1] if user_texts else ""),
            *(COMMIT_WORDS if self.reader.request.trail.git.is_dirty else ()),
        }

    def _plan(self) -> str:
        """Return the steps of the newest plan, unless a message that stays shows it; one line if all are done."""
        tasks, written = _old_tasks(self.old.next_steps), -MAX_PLAN_AGE_STEPS
        carried = [] if tasks else _lines(self.old.next_steps)
        lacks = NOT_SHOWN in self.old.next_steps
        for place, step in enumerate(self.reader.steps):
            record = step.record
            if record is None or step.action is None or step.action.family != "plan":
                continue
            items = next((value for key in PLAN_KEYS if isinstance(value := record.get(key), list)), None)
            if items is not None:
                is_folded = step.at in self.reader.fold
                tasks = {str(number): _task(item) for number, item in enumerate(items)} if is_folded else {}
                lacks = False
            elif record.text("subject"):
                number = match[1] if (match := _TASK_NUMBER.search(record.body.text)) else str(len(tasks) + 1)
                tasks[number] = ["pending", f"#{number} {record.text('subject', 'title')}"]
            elif record.text("taskid") in tasks and record.text("status"):
                tasks[record.text("taskid")][0] = record.text("status")
            else:
                continue
            carried, written = [], place
        if tasks and not lacks and all(state in DONE for state, _ in tasks.values()):
            done = "- all steps of the plan are done"
            return self._fit([f"{done}: {'; '.join(text for _, text in tasks.values())}"], PLAN_SHARE) or done
        if carried or not tasks:
            return self._fit(carried, PLAN_SHARE)
        done_first = sorted(tasks.items(), key=lambda task: (task[1][0] not in DONE, int(task[0])))
        shown = self._fit([f"- [{state}] {text}" for _, (state, text) in done_first], PLAN_SHARE)
        lacks = lacks or any(state not in DONE and text not in shown for state, text in tasks.values())
        is_old = len(self.reader.steps) - written > MAX_PLAN_AGE_STEPS
        return "\n".join(filter(None, [OLD_PLAN if is_old else "", shown, NOT_SHOWN if lacks else ""]))

    def _blockers(self) -> list[str]:
        """Return unresolved failures among the newest calls, and blockers that the assistant stated."""
        mended: set[str] = set()
        found: list[str] = []
        doing = [step for step in self.reader.steps if step.action is not None and step.action.family not in LOOKING]
        for step in reversed(doing[-BLOCKER_CALLS:]):
            keys = _targets(step)
            is_failure = (
                step.action is not None and step.action.outcome == "failed" and not step.headline.endswith(NOT_RUN)
            )
            if is_failure and step.at in self.reader.fold and not keys & mended and not self._is_tracked(step):
                found.append(f"- {step.headline}")
            mended |= keys
        said = (text for step in self.reader.steps if step.kind == Kind.SAID for text in self._rows_in_fold(step))
        return [*reversed(found[:MAX_BLOCKERS]), *stated_blockers(said, _lines(self.old.blocked))]

    def _rows_in_fold(self, step: FoldStep) -> Iterable[str]:
        """Return the assistant's sentences in the fold."""
        return step.rows if step.at in self.reader.fold else ()

    def _is_tracked(self, step: FoldStep) -> bool:
        """Return whether the tracked work includes the step, as a failed side effect or as a check."""
        trail, root = self.reader.request.trail, self.reader.root or chr(0)
        tracked = [*(act.text for act in trail.acts if not act.ok), *(check.command for check in trail.checks)]
        headline = _QUOTES.sub("", step.headline)
        return any(
            text and _QUOTES.sub("", text.replace(root, ""))[:HEADLINE_PREFIX_CHARS] in headline for text in tracked
        )


def _is_worth_its_size(line: str) -> bool:
    """Return whether a demand is a short prohibition or contains the exact command."""
    return (len(line) <= MAX_BAN_CHARS and _BAN.search(line) is not None) or _ENDS_WITH_COMMAND.search(line) is not None


def _unwrap(rows: Iterable[str]) -> list[str]:
    """Join wrapped sentences, and demands with the lists they introduce."""
    lines: list[str] = []
    is_list = False
    for row in rows:
        last = lines[-1] if lines else ""
        is_list = row.startswith("- ") and (is_list or (last.endswith(":") and DEMAND.search(last) is not None))
        if is_list and len(last) + len(row) <= MAX_LIST_CHARS:
            lines[-1] = f"{_item(last)}{'' if last.endswith(':') else ';'} {row[2:]}"
        elif last and row[:1].islower() and last[-1:] not in ".:!?" and not last.startswith(FENCE):
            lines[-1] += f" {row}"
        else:
            lines.append(row)
    return lines


def _item(line: str) -> str:
    return f"- {_MARKS.sub('', line)}"


def _old_tasks(text: str) -> dict[str, list[str]]:
    """Parse the plan steps of an earlier summary, by their numbers."""
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
    """Return the files or command that a later success must share to resolve a failure."""
    action = step.action
    if action is None:
        return set()
    if action.family != "shell":
        return {*action.paths, action.tool}
    command = step.headline.partition(" → ")[0].partition("|")[0].partition("2>")[0]
    words = [word for word in command.split() if word[0].isalnum() and word not in RUNNERS]
    return {*action.paths, " ".join(words[:2])}


def _lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.strip()]
