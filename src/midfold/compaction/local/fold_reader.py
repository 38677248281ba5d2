"""Read a fold once into steps in order, each with the lines that a summary may include.

1. A step is a user message, an assistant message, or a tool call with its result. Lines and sentences are verbatim,
   without surrounding whitespace.
2. Every text is redacted before it is split into lines. In very long folds only the beginning and end of each text are
   read; if that is still too much, the newest messages and the older ones without tool calls.
3. Call arguments appear in the step's headline only; of written files the added lines are candidates.
4. Result lines that may be prompt injections are omitted.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from functools import cached_property, lru_cache, partial
from itertools import accumulate, chain, islice

import msgspec

from midfold.compaction.injection import is_suspicious
from midfold.compaction.local.digest import describe_call
from midfold.compaction.local.headlines import FileNames, call_headline, is_in_headline
from midfold.compaction.local.identifiers import CALLED, RESULT, SAID, USER, IdentifierCounts, NameCounts, subwords
from midfold.compaction.local.tool_actions import changes, editor, patch, shows_content, without_cd, write
from midfold.compaction.local.tool_call import Action, ToolCallRecord, identity, read_tool_call
from midfold.compaction.local.tool_kinds import recognise
from midfold.compaction.redact import redact as our_rules
from midfold.compaction.redact import with_credentials
from midfold.compaction.request import SummaryRequest
from midfold.compaction.truncate import ends_with, from_boundary, without_long_code
from midfold.transcript.message import CALL, Message, Text, ToolCall, ToolResult, Transcript
from midfold.transcript.message import RESULT as RESULT_PART
from midfold.transcript.task_reports import task_reports
from midfold.transcript.wrappers import read_user_text, reply_in_result, without_reminders

MAX_SCANNED_CHARS = 300_000
"""Approximate maximum of characters read."""
TEXT_LIMITS = (200_000, 20_000, 8_000, 4_000, 2_000, 1_000, 600, 300, 220, 150)
TEXT_OVERHEAD_CHARS = 80
"""Fixed cost of a text, in characters."""
REDACTION_MARGIN_CHARS = 256
"""Characters redacted beyond a cut: half of a credential would not be recognized."""
MAX_DESCRIBED_CALLS = 300
"""Maximum number of newest calls described with their outcome; older ones have no headline."""
REDACTION_CACHE_SIZE = 1_000
"""Maximum number of redacted call texts in the cache: each is used more than once."""
MAX_LINE_CHARS = 240
MAX_SENTENCE_CHARS = 600
LOOKS = ("read", "search", "list")
MAX_SHORT_RESULT_LINES = 4
"""Maximum lines of a result whose lines are all candidates, with or without names."""
RECENT_MESSAGES = 12
"""Number of newest messages that define the current topic."""
RECENT_CHARS = 2_000
"""Characters read for the topic at the beginning and at the end of each of their texts."""
INJECTION_WINDOW_CHARS = 500
"""Step in characters of the windows in which overlong lines are checked for prompt injections."""
GAP = "[… "
"""Marker for omitted output; it comes from the view, not from the tool."""

_SENTENCE = re.compile(r"[ \t](?:(?<=[\w)\]`*\"'][.!?].)(?=[ \tA-Z`*\"(])|(?<=[.!?。].)(?=[^\x00-\x7f]))")
_STOP = re.compile(r"[.!?。][ \t]")
_HIT, _AROUND = re.compile(r"(?:\S{1,200}:)?[0-9]{1,7}:"), re.compile(r"(?:\S{1,200}-)?[0-9]{1,7}-")
"""Matches that `grep` prints, and their context lines."""
MIN_SEARCH_SHARE = 0.6
"""Share of a result's lines that must be matches or context for it to count as search output."""
_NUMBERED = re.compile(r"^ {0,8}[0-9]{1,7}→", re.MULTILINE)
_SEAM = re.compile(r"(?<=[.,;!?]) |(?<=,)(?=[\"{])|&&|\|\|")
_FRAME = re.compile(
    r"\+ (?:[\])}>,;]|(?:else|try|pass|continue|break)\b|print\b|console\.|(?:import|from)\s|return;?$|#|//|/?\*|"
    r"if err != nil|\w+,$|expect\(|assert|</?[\w.]{1,60}[^>]{0,80}>?$|"
    r"[\w-]{1,40}=(?:\"[^\"]{0,240}\"|\{[^}]{0,240}\})/?>?$)"
)
"""An added line that is only boilerplate around a change."""
_IDLE = re.compile(
    r"=== [A-Z]{3,5} |--- (?:PASS|SKIP)|ok {1,4}\t?\S{1,200}\s|\? {1,4}\t?\S{1,200}\s{1,4}\[no test|PASS$|"
    r"\S{1,300} PASSED\b|[0-9]{1,7} {1,9}(?:[0-9]{1,7} {1,9})?│|\"\w{1,40}_url\":|For more information|"
    r"(?:Get|Hit|Ign):[0-9]|Successfully (?:un)?installed|Using cached |Requirement already|WARNING: Running pip|"
    r"Shell cwd was reset|[0-7]{6} (?:blob|tree) |(?:Author|Date): |Found [0-9]{1,9} files|diff --git |"
    r"index [0-9a-f]{6,40}\.\.|[0-9a-f]{7,12} Merge |File \"[^\"]{1,300}\", line [0-9]{1,9}(?:, in .{0,200})?$|"
    r"\"\w{0,40}(?:Id|At|By)\":|new file mode|@@ |--- a/|\+\+\+ b/|Traceback \(most recent|"
    r"(?:Collecting|Downloading|Obtaining|Installing|Building) \S|Preparing metadata|total [0-9]{1,9}$"
)
_IDLE_MARKS = (
    "=== ", "--- ", "ok ", "[no test", "PASS", "│", '_url":', "For more", "Get:", "Hit:", "Ign:", "installed",
    "cached ", "already", " pip", "Shell cwd", " blob ", " tree ", "Author: ", "Date: ", "Found ", "diff --git",
    "index ", " Merge ", 'File "', 'Id":', 'At":', 'By":', "new file", "@@ ", "+++ ", "Traceback ", "Collecting ",
    "Downloading ", "Obtaining ", "Installing ", "Building ", "Preparing ", "total ",
)  # fmt: skip
"""Lines without information, and substrings that any such line contains: passed tests, text around an error, links,
installation progress, traceback frames with their code, times and ids of records.
"""
FRAME = 'File "'
MAX_KEY_LINES = 2
_LISTED = re.compile(r"(?:[-*+>|#]|[0-9]{1,3}[.)]) ?")


class Kind:
    """Kinds of steps. Plain integers, because enum member lookup is ten times slower."""

    USER, SAID, CALL, NOTE = range(4)


class Line(msgspec.Struct, eq=False):
    """Consecutive lines or a sentence of a step that a summary may include, with their names and value."""

    step: FoldStep
    first: int
    last: int
    """Indexes of the first and last line among the step's rows; -1 is the step's headline."""
    names: tuple[NameCounts, ...]
    base: float = 0.0
    """Value apart from its names; an upper bound until the line is judged."""
    binds: bool = True
    """Whether the text explains its names."""
    cost: float = 0.0
    is_intent: bool = False
    is_weighed: bool = False
    is_judged: bool = False
    words: frozenset[str] = frozenset()
    """Words of an assistant sentence that may be included."""

    @property
    def text(self) -> str:
        rows, first = self.step.rows, self.first
        if first == self.last:
            return rows[first] if first >= 0 else self.step.headline
        return "\n".join(rows[first : self.last + 1])


class FoldStep(msgspec.Struct, eq=False):
    """One event of the fold: a headline and the lines that can be included below it."""

    kind: int
    at: int
    call: ToolCall | None = None
    texts: tuple[str, ...] = ()
    is_end: bool = True
    """Whether the text that contains the step ends with it."""
    age: float = 1.0
    """Multiplier for the age of the step."""
    length: int = 0
    """Characters of the user's text."""
    headline: str = ""
    file: str = ""
    short_headline: str = ""
    """File that the headline names, and the headline for use after that file was already named."""
    headline_value: float = 0.0
    names_count: float = 1.0
    """Multiplier for the names in its lines."""
    is_stale: bool = False
    """Whether it shows file content from before a later change, or is behind the fold."""
    headline_cost: float = 0.0
    short_headline_cost: float = 0.0
    headline_names: tuple[NameCounts, ...] = ()
    rows: list[str] = []
    """All lines of the step that can be included, in order."""
    lines: list[Line] = []
    """Candidates among the rows."""
    key_lines: frozenset[int] = frozenset()
    """Indexes of the most informative lines of an edit."""
    gone: list[str] = []
    """Lines that an edit removed."""
    result: ToolResult | None = None
    action: Action | None = None
    record: ToolCallRecord | None = None
    is_answer: bool = False
    """Whether it ends the assistant's turn."""
    is_rule: bool = False
    """Whether a note is an instruction, not the output of a local command or the client's environment."""
    is_unseen: bool = False
    """Whether it did something in a message behind the handoff, where its result may be truncated."""
    has_reply: bool = False
    is_reply: bool = False
    """Whether its result contains a user reply, and whether the step is that reply."""

    @property
    def is_bare_look(self) -> bool:
        """Return whether the headline of a read, search or listing has no outcome."""
        return self.action is not None and self.action.family in LOOKS and " → " not in self.headline


class FoldReader:
    """Steps of a fold and the counts of its names."""

    def __init__(self, request: SummaryRequest, scanned: int = MAX_SCANNED_CHARS, *, only_names: bool = False) -> None:
        self.request = request
        self._only_names = only_names
        """Whether to count names only, without collecting lines."""
        self._redact = lru_cache(REDACTION_CACHE_SIZE)(request.redact)
        messages = (*request.before, *request.messages, *request.after)
        self.length = len(messages)
        self.fold = range(len(request.before), len(request.before) + len(request.messages))
        self.root = f"{request.trail.root.rstrip('/')}/" if request.trail.root else ""
        """Working directory; paths are written relative to it."""
        places = places_to_read(messages, scanned)
        self.text_limit = text_limit_for(places.values(), scanned)
        self.max_whole_chars = self.text_limit + 2 * REDACTION_MARGIN_CHARS
        """Maximum characters of a text that is read whole."""
        self.census = IdentifierCounts()
        self._names: dict[str, tuple[NameCounts, ...]] = {}
        """Cache of the names in each line: many lines occur more than once."""
        self.inside: set[NameCounts] = set()
        """Names in the fold."""
        self.seen: set[NameCounts] = set()
        """Names visible in messages that stay."""
        self.staying: set[str] = set()
        """Sentences and lines of texts that stay whole."""
        self.recent: set[str] = set()
        self.steps = sorted(steps_of(messages, places), key=lambda step: self._when(step.at))
        attempt = request.omissions.attempt
        self._dirty = attempt("redaction", self._with_credentials, set(self.steps))
        described = [step for step in self.steps if step.kind == Kind.CALL][-MAX_DESCRIBED_CALLS:]
        for step in described:
            attempt("tool headline", partial(self._describe, step), None)
        acted = (path for step in described if step.action is not None for path in step.action.paths)
        known = (*(file.path for file in request.trail.files), *(read.path for read in request.trail.reads))
        self.files = FileNames(self.root, (*known, *acted))
        for step in self.steps:
            attempt("tool headline", partial(self._read, step), None)
        if not only_names:
            attempt("tool headline", self._drop_stale, None)
            for step in described:
                if step.action is not None and (step.action.family == "search" or "grep " in step.headline):
                    step.lines = _without_context(step)

    def close(self) -> None:
        """Drop the lines of all steps: they refer to each other, and only a full garbage collection would free them."""
        for step in self.steps:
            step.lines = []

    def _drop_stale(self) -> None:
        """Drop lines that a later edit removed, lines of scratch files, and output of successful checks and commits.

        Mark reads before the last file change, and reads behind the fold, as stale.
        """
        gone_of: dict[str, set[str]] = {}
        is_changed = False
        for step in reversed(self.steps):
            action, record = step.action, step.record
            if record is None or action is None:
                continue
            path = action.paths[0] if action.paths else ""
            gone = gone_of.setdefault(path, set())
            if step.lines and is_in_headline(action, record):
                step.lines = []
            if action.family in LOOKS or (not action.wrote and shows_content(without_cd(record.command))):
                step.lines = [line for line in step.lines if step.rows[line.first] not in gone]
                step.is_stale = is_changed or step.at >= self.fold.stop
            is_changed = is_changed or (step.at in self.fold and self._is_change(action, record))
            if action.wrote:
                lines = [line for line in step.lines if step.rows[line.first][2:] not in gone]
                step.lines = lines if path not in self._scratch else [line for line in lines if not _is_added(line)]
                gone.update(map(str.strip, step.gone))
                places = (line.first for line in step.lines if not _FRAME.match(step.rows[line.first]))
                step.key_lines = frozenset(islice(places, MAX_KEY_LINES))

    def _is_change(self, action: Action, record: ToolCallRecord) -> bool:
        """Return whether a call changes a file of the task, directly or by a script."""
        path = action.paths[0] if action.paths else ""
        is_written = action.wrote and path and action.family != "other" and path not in self._scratch
        return bool(is_written) or (action.family == "shell" and any(map(record.command.__contains__, self._scripts)))

    @cached_property
    def _scratch(self) -> set[str]:
        files = [file.path for file in self.request.trail.files if file.state == "scratch"]
        return {*files, *(f"{self.root}{path}" for path in files)}

    @cached_property
    def _scripts(self) -> set[str]:
        return {file.by for file in self.request.trail.files if file.by and file.state != "scratch"}

    def is_below(self, at: int) -> bool:
        """Return whether a message is behind the handoff."""
        return at >= self.fold.stop + len(self.request.pinned)

    def may_be_cut(self, at: int) -> bool:
        """Return whether a size-limited compaction may truncate results of this message behind the handoff."""
        return self.request.dense and self.is_below(at)

    def _when(self, at: int) -> float:
        """Return the position of a message in the original order."""
        behind, pinned = at - self.fold.stop, self.request.pinned
        return self.fold.start + pinned[behind] - 0.5 if 0 <= behind < len(pinned) else at

    def _with_credentials(self) -> set[FoldStep]:
        """Return the steps whose texts contain credentials; all steps if the redactor is not the built-in one.

        Return no steps when names are only counted, because no text is included then.
        """
        if self._only_names:
            return set()
        if self.request.redact is not our_rules:
            return set(self.steps)
        pieces: list[str] = []
        owners: list[FoldStep] = []
        for step in self.steps:
            for text in _texts(step):
                if len(text) <= self.max_whole_chars:
                    pieces.append(text)
                    owners.append(step)
                else:
                    pieces += self._ends(text)
                    owners += (step, step)
        return {owners[place] for place in with_credentials(pieces)}

    def _ends(self, text: str) -> tuple[str, str]:
        """Return the beginning and end of a long text, each with a margin."""
        return text[: self.text_limit * 2 // 3 + REDACTION_MARGIN_CHARS], text[
            len(text) - self.text_limit // 3 - REDACTION_MARGIN_CHARS :
        ]

    def safe(self, step: FoldStep, text: str) -> str:
        """Return the part of a text that is read: redacted first, then truncated at a line break."""
        redact = self.request.redact if step in self._dirty else identity
        if len(text) <= self.max_whole_chars:
            return redact(text)
        first, last = map(redact, self._ends(text))
        first, last = first[:-REDACTION_MARGIN_CHARS], last[REDACTION_MARGIN_CHARS:]
        return f"{first[: first.rfind(chr(10)) + 1]}\n{from_boundary(last)}"

    def _describe(self, step: FoldStep) -> None:
        call, result = step.call, step.result or ToolResult("", (), False, None)
        max_whole_chars = max(len(call.arguments) if call is not None else 0, len(result.text))
        is_safe = self._only_names or (max_whole_chars <= self.max_whole_chars and step not in self._dirty)
        record = read_tool_call(call, result, identity if is_safe else self._redact)
        step.record = record
        if not self._only_names or recognise(record) in (editor, patch, write):
            step.action = describe_call(record, call, result)

    def _read(self, step: FoldStep) -> None:
        """Count the names in a step's texts and split the texts into lines."""
        if not self._only_names:
            step.headline = self._headline(step)
            step.file, step.short_headline = self.files.short_headline(step.action, step.headline)
            step.headline_names = self.names(step.headline)
        for who, text in self._texts(step):
            shown = text if step.at in self.fold else self._visible(step, text)
            entries = set(self.names(text)) if who == CALLED else self._cut(step, who, text, shown)
            self.census.count(entries, step.at, who)
            if step.at in self.fold:
                self.inside |= entries
            else:
                self.seen.update(entries if shown is text else self.names(shown))
            if step.at >= self.length - RECENT_MESSAGES:
                self.recent.update(subwords(text[:RECENT_CHARS] + text[-RECENT_CHARS:]))
        if step.record is not None and step.action is not None and not self._only_names:
            added, step.gone = changes(step.record) if step.action.outcome != "failed" else ([], [])
            lines = rows(self.files.inside(self.safe(step, "\n".join(added)))) if step.at in self.fold else ()
            for line in list(lines):
                if line not in self._names:
                    is_key = len(step.lines) < 2 * MAX_KEY_LINES and not _FRAME.match(f"+ {line}")
                    self.add(step, f"+ {line}", self.names(line), keep=is_key)
                elif step.rows and step.rows[-1]:
                    step.rows.append("")

    def _headline(self, step: FoldStep) -> str:
        if step.action is not None and step.record is not None:
            return call_headline(step.action, step.record, self.files)
        return ""

    def _cut(self, step: FoldStep, who: int, text: str, shown: str) -> set[NameCounts]:
        """Split a text into lines and return its names."""
        if self._only_names and not _is_cut_into_pieces(text, who):
            return set(self.names(text))
        entries: set[NameCounts] = set()
        keeps_all = who != RESULT or self.may_be_cut(step.at) or text.count("\n") <= MAX_SHORT_RESULT_LINES
        is_whole = shown is text and step.at not in self.fold
        is_candidate = not is_whole and not self._only_names
        may_idle = is_candidate and who == RESULT and any(map(text.__contains__, _IDLE_MARKS))
        is_frame = False
        seen = shown if shown is not text and (who != USER or self.request.shown_user_words > 0) else ""
        spoken = without_long_code(text) if who == SAID and is_candidate else text
        for unit in rows(_without_numbers(step, text)) if who == RESULT else sentences(spoken):
            found = self.names(unit)
            entries.update(found)
            if is_whole:
                self.staying.add(unit.lstrip("-*# "))
            is_new = is_candidate and unit not in seen and unit not in step.headline
            if is_new and "  " in unit and " ".join(unit.split()) in step.headline:
                continue
            is_idle = may_idle and (is_frame or _IDLE.match(unit))
            is_frame = may_idle and unit.startswith(FRAME) and not is_frame
            if is_new and not is_idle and not (step.kind == Kind.CALL and step.record is None):
                self.add(step, unit, found, keep=keeps_all)
        return entries

    def add(self, step: FoldStep, text: str, found: tuple[NameCounts, ...], *, keep: bool = False) -> None:
        """Add a line to a step; without names it is no candidate and only accompanies its neighbors."""
        place = len(step.rows)
        step.rows.append(text)
        if found or keep:
            step.lines.append(Line(step, place, place, found))

    def names(self, text: str) -> tuple[NameCounts, ...]:
        entries = self._names.get(text)
        if entries is None:
            entries = self._names[text] = self.census.find(text)
        return entries

    def _texts(self, step: FoldStep) -> Iterator[tuple[int, str]]:
        """Yield the texts of a step with their speakers."""
        for text in step.texts:
            safe = self.safe(step, text)
            yield (USER, SAID, CALLED, RESULT)[step.kind], self.files.inside(safe) if step.kind == Kind.SAID else safe
        if step.call is not None:
            given = step.record.given if step.record is not None else {}
            arguments = "\n".join(map(str, given.values())) or step.call.arguments.replace("\\n", "\n")
            yield CALLED, self.files.inside(self.safe(step, arguments))
        if step.result is not None and not step.has_reply and not _is_echo(step):
            text = step.record.body.text if step.record is not None else step.result.text
            yield RESULT, self.files.inside(self.safe(step, without_reminders(text)))

    def _visible(self, step: FoldStep, text: str) -> str:
        """Return the part of a text that stays visible."""
        request = self.request
        if step.kind == Kind.CALL:
            return text if request.shows_result(text) else "\n".join(request.visible_result(text))
        if request.shows_text(text, step.at):
            return text
        head, tail = request.visible_text(text, "user" if step.kind == Kind.USER else "assistant", step.at)
        if step.kind == Kind.NOTE and request.shown_user_words:
            head = ""
        return f"{head}\n{tail}" if step.is_end else head


def steps_of(messages: Transcript, places: Iterable[int]) -> list[FoldStep]:
    """Return the steps of the messages at these indexes, in order; a result joins its call."""
    steps: list[FoldStep] = []
    calls: dict[str, FoldStep] = {}
    for at in places:
        message = messages[at]
        for part in message.parts:
            if type(part) is ToolCall:
                steps.append(FoldStep(Kind.CALL, at, part))
                calls[part.id] = steps[-1]
            elif type(part) is ToolResult:
                call_step = calls.pop(part.call_id, None)
                if call_step is None:
                    steps.append(call_step := FoldStep(Kind.CALL, at))
                call_step.result = part
                tool, arguments = (
                    (call_step.call.name, call_step.call.arguments) if call_step.call is not None else ("", "{}")
                )
                if reply := reply_in_result(tool, part, arguments):
                    steps.append(FoldStep(Kind.USER, at, texts=(reply,)))
                    call_step.has_reply = steps[-1].is_reply = True
            elif type(part) is Text and part.text.strip():
                steps += _speech_steps(part.text, message.role, at)
        if steps and steps[-1].at == at and steps[-1].kind == Kind.SAID:
            steps[-1].is_answer = True
    return steps


def _speech_steps(text: str, role: str, at: int) -> Iterator[FoldStep]:
    """Yield the steps of a text; in a user message, the user's own words and the client's wrappers as notes."""
    if role != "user":
        yield FoldStep(Kind.SAID if role == "assistant" else Kind.NOTE, at, texts=(text,), is_rule=role != "assistant")
        return
    read = read_user_text(text)
    for block in read.all_of("instructions", "environment", "output", "summary"):
        is_rule = block.wrapper.meaning == "instructions"
        yield FoldStep(Kind.NOTE, at, texts=(block.inside,), is_end=ends_with(text, block.text), is_rule=is_rule)
    for block in read.all_of("report"):
        for report in task_reports(block.text):
            yield FoldStep(Kind.SAID, at, texts=(report.full_text,), is_end=ends_with(text, block.text))
    for block in read.all_of("observation"):
        yield FoldStep(Kind.CALL, at, result=ToolResult("", (Text(block.inside),), is_error=False, name=None))
    if read.words:
        yield FoldStep(Kind.USER, at, texts=(read.words,), is_end=ends_with(text, read.words))


def _texts(step: FoldStep) -> Iterator[str]:
    yield from step.texts
    if step.call is not None:
        yield step.call.arguments
    if step.result is not None:
        yield step.result.text


def _is_added(line: Line) -> bool:
    return line.step.rows[line.first].startswith("+ ")


def _without_context(step: FoldStep) -> list[Line]:
    """Return the lines of a step, without the context lines of search output."""
    around = {place for place, row in enumerate(step.rows) if row[:1] != "+" and _AROUND.match(row)}
    hits = sum(_HIT.match(row) is not None for row in step.rows) if around else 0
    is_search = hits and len(around) + hits > MIN_SEARCH_SHARE * len(step.rows)
    return [line for line in step.lines if line.first not in around] if is_search else step.lines


def _is_echo(step: FoldStep) -> bool:
    """Return whether a result only confirms a write or shows the written content."""
    action = step.action
    return action is not None and action.outcome != "failed" and action.family in ("patch", "write")


def sentences(text: str) -> Iterator[str]:
    """Yield lines of lists and code, and sentences of prose."""
    is_code = False
    for raw in text.split("\n"):
        line = raw.strip()
        if line.startswith("```"):
            is_code = not is_code
        elif not line or line.strip("|-=_* :") == "":
            continue
        elif is_code or (len(line) <= MAX_SENTENCE_CHARS and _LISTED.match(line)):
            yield line
        elif _STOP.search(line):
            pieces = map(str.strip, _SENTENCE.split(line))
            yield from (piece for piece in pieces if 0 < len(piece) <= MAX_SENTENCE_CHARS)
        elif len(line) <= MAX_SENTENCE_CHARS:
            yield line


def is_statement(line: str) -> bool:
    """Return whether a line is a list item or a full sentence, not code or a fragment."""
    return bool(_LISTED.match(line)) or line[-1:] in (".", "!", "?")


def rows(text: str) -> Iterator[str]:
    """Yield the lines of an output, splitting overlong ones into fields or clauses."""
    for raw in text.split("\n"):
        line = raw.strip().rstrip("━─═ ")
        length = len(line)
        if length <= 2 or line.startswith(GAP):
            continue
        if length <= MAX_LINE_CHARS:
            yield line
        elif not _may_hold_injection(line):
            for part in line.replace("\\t", " ").replace('\\"', '"').split("\\n") if "\\n" in line else (line,):
                pieces = map(str.strip, (part,) if len(part) <= MAX_LINE_CHARS else _SEAM.split(part))
                yield from (piece for piece in pieces if 8 < len(piece) <= MAX_LINE_CHARS)


def _is_cut_into_pieces(text: str, who: int) -> bool:
    """Return whether splitting into lines or sentences omits part of a text, so that the whole may have more names."""
    mark, most = (GAP, MAX_LINE_CHARS) if who == RESULT else ("```", MAX_SENTENCE_CHARS)
    return mark in text or (len(text) > most and max(map(len, text.split("\n"))) > most)


def _may_hold_injection(line: str) -> bool:
    """Return whether an overlong line may contain a prompt injection, which its pieces would hide."""
    return any(
        is_suspicious(line[at : at + 2 * INJECTION_WINDOW_CHARS]) for at in range(0, len(line), INJECTION_WINDOW_CHARS)
    )


def _without_numbers(step: FoldStep, text: str) -> str:
    """Remove line numbers from file content: the headline has the range."""
    is_file = step.action is not None and step.action.family == "read"
    return _NUMBERED.sub("", text) if is_file else text


def places_to_read(messages: Transcript, scanned: int) -> dict[int, list[int]]:
    """Return the indexes of the messages to read, with the lengths of their texts.

    All messages if the ends of each text fit; otherwise the newest and the older ones without tool calls.
    """
    left, least = scanned, TEXT_LIMITS[-1]
    found: dict[int, list[int]] = {}
    for at, message in enumerate(messages):
        lengths = found[at] = _text_lengths(message)
        for length in lengths:
            left -= (length if length < least else least) + TEXT_OVERHEAD_CHARS
        if left < 0:
            break
    else:
        return found
    found = {}
    for at in range(len(messages) - 1, -1, -1):
        if scanned <= 0 and messages[at].kinds & (CALL | RESULT_PART):
            continue
        lengths = found[at] = _text_lengths(messages[at])
        for length in lengths:
            scanned -= (length if length <= least + 2 * REDACTION_MARGIN_CHARS else least) + TEXT_OVERHEAD_CHARS
    return dict(reversed(found.items()))


def text_limit_for(texts: Iterable[list[int]], scanned: int) -> int:
    """Return the maximum characters to read of each text so that all of them fit together."""
    lengths = sorted(chain.from_iterable(texts))
    scanned -= TEXT_OVERHEAD_CHARS * len(lengths)
    before = list(accumulate(lengths, initial=0))
    for text_limit in TEXT_LIMITS:
        short = bisect_right(lengths, text_limit)
        if before[-1] <= scanned or before[short] + text_limit * (len(lengths) - short) <= scanned:
            return text_limit
    return TEXT_LIMITS[-1]


def _text_lengths(message: Message) -> list[int]:
    found: list[int] = []
    for part in message.parts:
        if type(part) is ToolCall:
            found.append(len(part.arguments))
        elif type(part) is Text or type(part) is ToolResult:
            found.append(len(part.text))
    return found
