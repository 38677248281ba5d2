"""Which lines of a fold are told: the agent's findings and the user's words first, then what is worth most per token.

Rules of this file:
1. What the user asked for comes first, a line an ask; then what the agent found, decided or reported; both have a
   share of the budget, those of earlier folds included. Then calls and the lines of their results.
2. Under one step stand few lines, some more where everything else is included. A summary may be shorter than its
   budget.
3. Each name counts once. What says a name in words that explain it is worth more than the name alone, a field that
   is only handed on less. A sentence of the agent's counts by what it tells, too, less where its words are told
   already or said again later, where it only supposes something or goes on with another; one that only announces a
   call counts nothing.
4. The value of a constant, how a call failed, and what an edit put there are told before other lines: nobody can guess
   them.
5. No line is included twice, and few that differ from each other only in numbers and quoted strings.
6. What was looked at before the last change of a file comes last, but for constants, and so does a look of which
   nothing is told.
7. The same fold and budget give the same lines.
"""

from __future__ import annotations

import re
from collections import Counter
from heapq import heapify, heappop, heappush, heapreplace, nlargest
from itertools import islice
from math import exp

from midfold.compaction.injection import is_suspicious
from midfold.compaction.local.fold_reader import LOOKS, FoldReader, FoldStep, Kind, Line, sentences
from midfold.compaction.local.identifiers import NameCounts, binds, defines_constant, parts, subwords, worth
from midfold.compaction.local.outcome import NOT_RUN
from midfold.transcript.tokens import estimate_each, estimate_text

NAMED = 100.0
"""What the names of a line count beside what it says."""
SPEECH = (Kind.USER, Kind.SAID)
LINE_TOKENS = 1.0
"""A line break and what stands before a line."""
LEAST_LEFT = 3
"""Tokens; with no more left, nothing is told any more."""
UNBOUND = 0.4
MOST_ALIKE = 3
"""Lines that differ in nothing but their numbers."""
ASKS_SHARE, SPEECH_SHARE = 0.35, 0.6
"""Of the budget, for a line of each ask, and for that and what the agent said for its own sake; beyond that its
sentences count by their names."""
MOST_READ, MOST_LINES = 4, 8
"""Lines under a step that reads, and under another."""
MAX_READ_LINES, MAX_LINES = 16, 24
"""The same where everything else is included."""
OLDEST, NEWEST = 0.6, 1.4
OLDEST_SPEECH, NEWEST_SPEECH = 0.75, 1.3
"""What the age of a step makes of its worth; of what was said, less."""
SHORT_ASK = 600
"""Characters; a longer message of the user's is told by its beginning and by what it demands."""
LONGEST_CALL = 120
"""Characters of a sentence that announces a call."""
CANDIDATES_PER_TOKEN = 1.0
PER_TOKEN = {"ask": 2.0, "demand": 0.8, "other": 0.0}
"""What a token of the user's words is worth beside its names."""
SAID, FOUND, SAID_LATER = 4.0, 1.8, 1.0
"""What a token of the agent's words is worth beside its names; more where they tell what was found or done, less by how
much of them is said again later."""
DOUBTED = 0.5
"""Multiplier for hedged sentences."""
MIN_REMARK_WORDS = 9
"""Words of a remark between two calls that names nothing; a shorter one ("Found the issue.") says nothing alone."""
MAX_ANTECEDENTS = 3
"""Sentences before one that refers back which are included with it."""
NEW_WORDS = 0.5
"""How much it counts that a sentence has words which are not told yet."""
OF_READ_FILES, OF_STALE = 0.2, 0.03
"""What the names count that stand in a file which was read, of which there are very many; and in what is stale: so
little that they come last."""
HEADS = {
    "act": 90.0,
    "wrote": 0.35,
    "failed": 0.25,
    "ended": 10.0,
    "agent": 0.2,
    "other": 0.12,
    "shell": 0.1,
    "web": 0.06,
}
ADDED, ERROR, DEFINES, VALUE = 0.008, 0.05, 5.0, 0.02
MAX_CONSTANTS = 4
"""Constants in one result that are worth more than other lines; more of them are a list."""
EDITED, EDITED_SHARE = 1.0, 0.12
FAILED, FAILED_SHARE = 3.0, 0.25
"""What a token is worth of the lines that say most of an edit, and of a line on a call that failed, and how much of the
budget they may take for that."""
WORTH_A_RUN = 0.02
"""Of the budget: what must be free again so that lines are looked for once more."""
UNSEEN = 3.0
"""What a token is worth that says something of the newest results, where the messages that stay do not show it."""
ON_TOPIC = 100.0
"""For each token of a line that is about what was asked to be kept."""

_DEMANDS = r"must|never|always|don['’]t|do not|prefer|only|avoid|make sure"
DEMAND = re.compile(rf"\b(?:{_DEMANDS}|should not|shouldn['’]t|instead of|no need)\b", re.I)
"""A line of any text that demands something: documents are full of what somebody wants or needs."""
# The next eight are for text in small letters: to look for both is several times as slow.
WISH = re.compile(rf"\b(?:{_DEMANDS}|should|instead|need|want|please|without)\b")
"""A sentence that the user typed and that asks for something, however politely."""
_INTENT = re.compile(
    r"(?:(?:ok|okay|good|great|perfect|excellent|interesting|now|next|first|then|so|also|and)[,!.]? ){0,2}"
    r"(?:let me|let's|i'll|i will|i need to (?:see|check|look|find|read|understand|verify)|i'm going to|i am going to|"
    r"checking|looking|here's what i'll|i want to|i should|"
    r"(?<=now )(?:add|update|create|write|run|fix|check|verify|edit|change|remove|read|look|i need|for|the)|"
    r"(?<=next, )(?:add|update|create|write|run|fix|check|verify))\b"
)
_EMPTY = re.compile(
    r"(?:perfect|good|great|excellent|interesting|done|ok|okay|hmm|now|wait|no response requested)\W{0,3}|"
    r"(?:(?:now|good|great|perfect)\W{1,2})?i (?:now )?(?:have|understand) [^.]{0,40}\b"
    r"(?:understanding|picture|context|issues?)(?: of [^.]{0,40}| i need)?\W{0,2}|"
    r"(?:(?:now|good|great|perfect|so)\W{1,2})?(?:i (?:can |now )?see (?:the|what the) (?:issue|problem)|i need to|"
    r"that (?:should work|works)|(?:good|great) (?:question|point|idea|catch|call)|you're right|"
    r"we already have this|options|something like|would you like me to|"
    r"here(?:'s| is) (?:a|the) summary[^.:]{0,40})\W{0,3}"
)
_FINDING = re.compile(
    r"\b(?:found|find|issue|problem|cause|because|since|means|confirm\w*|turns out|fix(?:ed|es)?|works?|pass(?:es|ed)?|"
    r"fail(?:s|ed|ing)?|already|instead|decid\w+|chose|need(?:s|ed)?|does(?:n't| not)|did(?:n't| not)|is(?:n't| not)|"
    r"not|only|still|add(?:s|ed)?|removed?|replaced?|changed?|committed|pushed|created|updated|default|should|would|will|"
    r"expected|actually|however|but|so|same|both|all|no|never|returns?|uses?|called|missing|correct|wrong|left|"
    r"unrelated|skip\w*|verif\w+|remain\w*)\b|[0-9]"
)
_DOUBT = re.compile(
    r"\b(?:maybe|might|perhaps|i think|seems?|should work|let me|wait|hmm|probably|possibly|could be)\b|\?$"
)
_LEANS = re.compile(
    r"(?:(?:actually|wait|good|great|ok|okay|hmm|yes|no|now|perfect|right|well)[,!.:]? ){0,2}"
    r"(?:so|however|that|it(?! turns out)|but|this|these|those|still|which|they|also|and|because|then|both|same|here)\b"
)
"""How a sentence opens that refers to what stands before it."""
_PROSE = re.compile(r"\b[a-z']{2,30}+,? [a-z'`\"]{2,30}+")
"""What a bracket or a decorator has not: two words in a row."""
_ERROR = re.compile(r"error|fail|exception|denied|not found|no such|cannot|unable|fatal|panic|traceback")
_OUTCOME = re.compile(r"[0-9]|error|fail|pass|success|warn|expected|got|found|called|missing|not ")
_TWO_WORDS = re.compile(r"[A-Za-z]{3}(?![A-Za-z])[^\n]{0,80}?[^A-Za-z][A-Za-z]{3}")
_LITERAL = re.compile(r"[\"'`][^\"'`\n]{3,}[\"'`]|[=:(,] ?[0-9][0-9_.]*\b")
"""A value: what nobody can guess from the names around it."""
_IMPORTS = re.compile(
    r"(?:import|from|use|using|#include|require|export \* from)\b.*|[\w.]{0,20} ?[\"'][\w@./-]+[\"'][,;)]?"
)
_DIGITS = re.compile(r"[0-9]+")
_QUOTED = re.compile(r"\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|`[^`\n]{1,200}`")
_WORD = re.compile(r"[a-z_]\w{3,}+|[0-9]{2,}+")
_PLAIN_WORD = re.compile(r"[a-z_][a-z0-9_]{3,}+|[0-9]{2,}+")
"""The same for text in ASCII: faster by a quarter."""
_LINE_NUMBER = re.compile(r"[0-9]{1,7}(?:→|[:-])\s*")
_FIELD = re.compile(r"(?:\+ )?[\w$]{1,80}\??:\s{0,8}[A-Za-z_!$][\w.?!$]{0,120}[,;]|[-dl][-rwxst]{9}.{1,240}")
"""A field that hands something on or has a type (one with a value says more), or an entry of a folder."""
_READS = re.compile(
    r"(?:read|searched|listed|found|looked)\b|"
    r"\$ (?:cat (?!>)|sed -n|head|tail|grep|rg|ls|find|nl|git (?:show|diff|log))"
)


class LineSelection:
    """Lines within a budget, and the names that a reader has with them."""

    def __init__(
        self, reading: FoldReader, steps: list[FoldStep], budget: int, told: str = "", *, only_names: bool = False
    ) -> None:
        self.reading = reading
        self.left = float(budget)
        self._only_names = only_names
        self._speech_left = budget * SPEECH_SHARE
        recent = frozenset(reading.recent)
        self.worths = {entry: worth(entry, reading.length, recent) for entry in reading.census.entries.values()}
        self.covered: set[NameCounts] = set()
        self._cover(reading.seen)
        self._cover(reading.names(told))
        self.chosen: dict[FoldStep, set[int]] = {}
        """The lines of each step that is told."""
        self._told = Counter(key for line in told.split("\n") for key in {line.lstrip("-*# "), _skeleton(line)})
        self._told.update(sentence.lstrip("-*# ") for sentence in sentences(told))
        self._files: set[str] = set()
        """Those that steps which are told name."""
        self._topic = frozenset(subwords(reading.ask.focus or ""))
        self._last_said = {} if only_names else _last_said(steps)
        self._told_words = set() if only_names else set(_words(told))
        lines = self._candidates(steps, budget) if budget > LEAST_LEFT else []
        if not only_names:
            self._run([line for line in lines if line.step.kind == Kind.USER and line.first == 0], budget * ASKS_SHARE)
            said = [line for line in lines if line.step.kind in SPEECH]
            self._weigh(said)
            self._run(said, self._speech_left)
        self._run(lines, self.left)
        self._run(lines, self.left, is_last=True)
        if not only_names and self._drop_leads(lines) > budget * WORTH_A_RUN:
            self._run(lines, self.left, is_last=True)

    def _drop_leads(self, lines: list[Line]) -> float:
        """Takes back what the agent said to lead over to lines that are not told: their room is free again."""
        leads = [line for line in lines if line.step in self.chosen and _leads_over(line)]
        left = self.left
        for line in leads:
            places = self.chosen.get(line.step, set())
            if line.first in places and line.last + 1 not in places:
                places.remove(line.first)
                self.left += line.cost
                line.base, line.is_intent, line.is_weighed = 0.0, True, True
                if not places:
                    del self.chosen[line.step]
        return self.left - left

    def _cover(self, entries: set[NameCounts] | tuple[NameCounts, ...]) -> None:
        known = self.reading.census.entries
        for entry in entries:
            if entry not in self.covered:
                self.covered.update(found for part in parts(entry.text) if (found := known.get(part)) is not None)

    def _candidates(self, steps: list[FoldStep], budget: int) -> list[Line]:
        """The lines that can be told. Where that is too many, they are judged here, else when one may be next."""
        found: list[Line] = []
        last = max(len(steps) - 1, 1)
        _price_heads(steps)
        failures = _newest_failures(steps, budget * FAILED_SHARE)
        _limit_edits(steps, budget * EDITED_SHARE)
        for number, step in enumerate(steps):
            oldest, newest = (OLDEST_SPEECH, NEWEST_SPEECH) if step.kind in SPEECH else (OLDEST, NEWEST)
            step.age = oldest + (newest - oldest) * number / last
            if step.head:
                head = Line(step, -1, -1, step.head_names)
                step.head_base = _head_base(step, step in failures)
                head.base = step.head_base * step.age
                head.cost = step.head_cost
                head.is_judged = True
                if step.at in self.reading.fold:
                    found.append(head)
            is_read = step.action is not None and step.action.family == "read"
            is_look = step.action is not None and step.action.family in LOOKS
            step.is_unseen = step.kind == Kind.CALL and self.reading.may_be_cut(step.at) and not is_look
            if not self._only_names:
                step.names_count = OF_STALE if step.is_stale else OF_READ_FILES if is_read else 1.0
            step.length = sum(map(len, step.rows)) if step.kind == Kind.USER else 0
            found += step.lines
        if self._topic or len(found) > budget * CANDIDATES_PER_TOKEN:
            return self._judge_all(found, budget)
        lines = [line for line in found if line.first >= 0]
        texts = [line.step.rows[line.first] for line in lines]
        for line, text, tokens in zip(lines, texts, estimate_each(texts), strict=True):
            line.cost = tokens + LINE_TOKENS
            line.base = _most_per_token(line, text) * (len(text) / 4) * line.step.age
        return found

    def _judge_all(self, found: list[Line], budget: int) -> list[Line]:
        """The lines that are worth most, judged."""
        lines = [line for line in found if not line.is_judged]
        for line in lines:
            line.base = self._base(line)
        most = int(budget * CANDIDATES_PER_TOKEN) + 50
        if len(found) > most and not self._topic:
            worthy = [line for line in found if self._gain(line) > 0]
            found = worthy if len(worthy) > most else found
        unpriced = [line for line in found if not line.cost]
        for line, tokens in zip(unpriced, estimate_each([line.text for line in unpriced]), strict=True):
            line.cost = tokens + LINE_TOKENS
        for line in found:
            if self._topic and not self._topic.isdisjoint(subwords(line.text)):
                line.base += ON_TOPIC * line.cost
        if len(found) > budget * CANDIDATES_PER_TOKEN:
            said = [line for line in found if line.step.kind in SPEECH]
            rest = (line for line in found if line.step.kind not in SPEECH)
            found = said + nlargest(most, rest, key=lambda line: self._gain(line) / line.cost)
        for line in found:
            self._bind(line)
        return found

    def _judge(self, line: Line) -> None:
        """Weighs a line; where it may be next even so, finds out whether it says what its names are."""
        if line.is_weighed:
            self._bind(line)
        else:
            self._weigh([line])

    def _weigh(self, lines: list[Line]) -> None:
        for line in lines:
            if not line.is_weighed and not line.is_judged:
                line.base = self._base(line)
                line.is_weighed = True

    def _base(self, line: Line) -> float:
        """What a line is worth beside its names."""
        return (self._said_worth(line) if line.step.kind == Kind.SAID else _worth(line)) * line.step.age

    def _said_worth(self, line: Line) -> float:
        """What a sentence of the agent's is worth beside its names: nothing where it only announces a call."""
        step, text = line.step, line.text
        low = text.lower()
        line.is_intent = _is_intent(line, low) or _lacks_referent(line, low)
        if line.is_intent or _EMPTY.fullmatch(low) or not _PROSE.search(low):
            return 0.0
        worth = SAID * len(text) / 4 * (FOUND if _FINDING.search(low) else 1.0)
        worth *= DOUBTED if _DOUBT.search(low) and not step.is_answer else 1.0
        last, at, words = self._last_said, step.at, line.words
        later = sum([last[word] > at for word in words]) / max(len(words), 1)
        return worth * exp(-SAID_LATER * later)

    def _newness(self, line: Line) -> float:
        """How much of a sentence has words that are not told yet."""
        new = len(line.words - self._told_words)
        return float(((new + 0.3) / (len(line.words) + 0.3)) ** NEW_WORDS)

    def _bind(self, line: Line) -> None:
        """Whether a line says what its names are, if need be with the one before or behind it."""
        line.is_judged = True
        if line.step.kind == Kind.CALL and line.first >= 0:
            self._widen(line)
        elif line.step.kind == Kind.SAID:
            line.binds = not line.is_intent
            self._include_antecedents(line)
        elif line.step.kind == Kind.USER:
            line.binds = binds(line.text) and not _FIELD.fullmatch(line.text)

    def _include_antecedents(self, line: Line) -> None:
        """Extend a sentence that refers back to the sentences before it."""
        first = line.first
        while first > 0 and line.last - first < MAX_ANTECEDENTS and _refers_back(line.step.rows[first]):
            first -= 1
        if first < line.first:
            line.first = first
            line.cost = estimate_text(line.text) + LINE_TOKENS

    def _widen(self, line: Line) -> None:
        """Takes the line before or behind along where a line does not say what its names are."""
        rows, place = line.step.rows, line.first
        bare = _without_number(rows[place])
        if _FIELD.fullmatch(bare) or _IMPORTS.fullmatch(bare.removeprefix("+ ")):
            line.base, line.is_intent = 0.0, True
            return
        if not line.binds or binds(rows[place]):
            return
        for first, last in ((place - 1, place), (place, place + 1)):
            if first >= 0 and last < len(rows) and binds("\n".join(rows[first : last + 1])):
                line.first, line.last = first, last
                line.cost = estimate_text(line.text) + LINE_TOKENS
                return
        line.binds = False

    def _names_worth(self, line: Line) -> float:
        """What the names of a line are worth that a reader does not have yet."""
        covered, worths, named = self.covered, self.worths, 0.0
        for entry in line.names:
            if entry not in covered:
                named += worths[entry]
        return named

    def _gain(self, line: Line) -> float:
        return self._price(line, self._names_worth(line), self._speech_left > 0, is_told=True)[0]

    def _price(self, line: Line, named: float, has_speech: bool, *, is_told: bool) -> tuple[float, float]:
        """What a line adds and what it costs, with the line of its step where that is not told yet."""
        step = line.step
        if (line.is_intent or (line.first < 0 and step.is_bare_look)) and not self._only_names:
            return line.base, line.cost
        if step.kind == Kind.SAID and has_speech and not self._only_names:
            return (line.base + NAMED * named) * (self._newness(line) if line.is_judged else 1.0), line.cost
        base = 0.0 if step.kind == Kind.SAID or self._only_names else line.base
        named *= 1.0 if line.first < 0 else step.names_count
        gain, cost = base + NAMED * (named if line.binds else named * UNBOUND), line.cost
        if line.first >= 0 and (is_told or not step.head):
            return gain, cost
        head_cost = step.again_cost if step.file in self._files else step.head_cost
        if line.first < 0:
            return gain, head_cost
        return gain if self._only_names else gain + step.head_base, cost + head_cost

    def _run(self, lines: list[Line], room: float, *, is_last: bool = False) -> None:
        """Include what is worth most per token, within a part of the budget."""
        named = [self._names_worth(line) if line.names else 0.0 for line in lines]
        told, has_speech = set(self.chosen), self._speech_left > 0
        heap: list[tuple[float, int]] = []
        """What each line would add for each token before this run, at most; exact where it is judged."""

        def judge_first() -> None:
            while heap and not (line := lines[number := heap[0][1]]).is_judged:
                self._judge(line)
                gain, cost = self._price(line, named[number], has_speech, is_told=line.step in told)
                heapreplace(heap, (-gain / cost, number))

        for number, line in enumerate(lines):
            gain, cost = self._price(line, named[number], has_speech, is_told=line.step in told)
            heap.append((-gain / cost, number))
        heapify(heap)
        end = max(self.left - room, 0.0)
        while heap and self.left > end + LEAST_LEFT:
            judge_first()
            promised, number = heappop(heap)
            line = lines[number]
            gain, cost = self._price(
                line, self._names_worth(line), self._speech_left > 0, is_told=line.step in self.chosen
            )
            if gain <= 0 or cost > self.left - end or (line.first < 0 and line.step in self.chosen):
                continue
            if -gain / cost > promised + 1e-12:
                judge_first()
                if heap and -gain / cost > heap[0][0]:
                    heappush(heap, (-gain / cost, number))
                    continue
            if self._is_full(line.step, is_last=is_last):
                continue
            self._take(line, cost)

    def _is_full(self, step: FoldStep, *, is_last: bool) -> bool:
        if step.kind != Kind.CALL or self._only_names:
            return False
        most = (MAX_READ_LINES, MAX_LINES) if is_last else (MOST_READ, MOST_LINES)
        return len(self.chosen.get(step, ())) >= most[not _READS.match(step.head)]

    def _key(self, line: Line, row: str) -> str:
        """By what a line is known again: of tool output, without its numbers."""
        return _skeleton(row) if line.step.kind == Kind.CALL else row.lstrip("-*# ")

    def _take(self, line: Line, cost: float) -> None:
        rows = line.step.rows[line.first : line.last + 1] if line.first >= 0 else []
        places = self.chosen.get(line.step, set())
        if rows and places.issuperset(range(line.first, line.last + 1)):
            return
        keys = [self._key(line, row) for row in rows]
        often = min(map(self._told.__getitem__, keys), default=0)
        if often >= MOST_ALIKE or (often and self.covered.issuperset(line.names)):
            return
        if line.step.kind in (Kind.CALL, Kind.NOTE) and is_suspicious(line.text):
            return
        self.left -= cost
        if line.step.kind in SPEECH:
            self._speech_left -= cost
        for key in keys:
            self._told[key] += 1
        if not self._only_names:
            self._told_words |= line.words or _words(line.text)
            self._told_words |= _words(line.step.head) if line.step not in self.chosen else frozenset()
        self._cover(line.names)
        self._cover(line.step.head_names)
        self._files |= {line.step.file} if line.step.file else set()
        places = self.chosen.setdefault(line.step, set())
        places.update(range(line.first, line.last + 1) if line.first >= 0 else ())


def _without_number(text: str) -> str:
    text = text.strip()
    number = _LINE_NUMBER.match(text)
    return text[number.end() :] if number else text


def _skeleton(text: str) -> str:
    """Return the shape of a line of output: without its numbers and what it quotes."""
    return _DIGITS.sub("0", _QUOTED.sub("''", _without_number(text)))


def _leads_over(line: Line) -> bool:
    step = line.step
    return step.kind == Kind.SAID and line.first >= 0 and step.rows[line.last].rstrip("*_ ").endswith(":")


def _is_intent(line: Line, low: str) -> bool:
    """Whether a sentence, in small letters, only announces the call behind it."""
    is_last = line.last == len(line.step.rows) - 1 and not line.step.is_answer
    return _INTENT.match(low) is not None or (is_last and low.endswith(":") and len(low) < LONGEST_CALL)


def _refers_back(row: str) -> bool:
    """Return whether a sentence, or a line of code among sentences, needs the one before it."""
    low = row.lower()
    return _LEANS.match(low) is not None or (not _PROSE.search(low) and not row.startswith(("-", "*", "|", "#")))


def _lacks_referent(line: Line, low: str) -> bool:
    """Return whether a sentence means nothing alone: it opens by referring to a result, or is a short remark."""
    if line.step.is_answer or line.names:
        return False
    return len(low.split()) < MIN_REMARK_WORDS or (line.first == 0 and _refers_back(line.text))


def _head_base(step: FoldStep, has_room: bool) -> float:
    action = step.action
    if action is None:
        return 0.0
    if action.family == "plan":
        return -1.0
    if action.outcome == "failed" and not step.head.endswith(NOT_RUN):
        return FAILED * len(step.head) / 4 if has_room else HEADS["failed"]
    if action.wrote:
        return HEADS["act" if action.family == "other" else "wrote"]
    if " → " in step.head and action.family == "shell":
        return HEADS["ended"]
    return HEADS.get(action.family, 0.01)


def _price_heads(steps: list[FoldStep]) -> None:
    """What the line of each step costs, and what it does where its file was told before."""
    for step, tokens in zip(steps, estimate_each([step.head for step in steps]), strict=True):
        step.head_cost = step.again_cost = tokens + LINE_TOKENS
    again = [step for step in steps if step.file]
    for step, tokens in zip(again, estimate_each([step.again for step in again]), strict=True):
        step.again_cost = tokens + LINE_TOKENS


def _newest_failures(steps: list[FoldStep], room: float) -> set[FoldStep]:
    """The newest calls that failed, of those that failed alike the last, as many as there is room to tell."""
    found: dict[str, FoldStep] = {}
    for step in reversed(steps):
        reason = step.head.rpartition(" → ")[2]
        if step.action is not None and step.action.outcome == "failed" and reason not in found:
            room -= step.head_cost
            if room < 0:
                break
            found[reason] = step
    return set(found.values())


def _limit_edits(steps: list[FoldStep], room: float) -> None:
    """Of older edits nothing counts as telling: there is no room for all of them."""
    for step in reversed(steps):
        room -= sum(estimate_text(step.rows[place]) + LINE_TOKENS for place in step.telling)
        if room < 0:
            step.telling = frozenset()


def _most_per_token(line: Line, text: str) -> float:
    """What a token of a line is worth beside its names, at most: what can be told without a search."""
    step = line.step
    if step.kind in SPEECH:
        return PER_TOKEN["ask"] if step.kind == Kind.USER else SAID * FOUND
    if text.startswith("+ "):
        return EDITED if line.first in step.telling else ADDED
    if defines_constant(text):
        return DEFINES
    if step.is_unseen:
        return UNSEEN
    return ERROR if step.action is not None and step.action.outcome == "failed" else VALUE


def _is_constant_list(step: FoldStep) -> bool:
    """Return whether a result defines many constants, so that no single one stands out."""
    return len(list(islice(filter(defines_constant, step.rows), MAX_CONSTANTS + 1))) > MAX_CONSTANTS


def _words(text: str) -> frozenset[str]:
    pattern = _PLAIN_WORD if text.isascii() else _WORD
    return frozenset(pattern.findall(text.lower()))


def _last_said(steps: list[FoldStep]) -> dict[str, int]:
    """In which message each word of the agent's was last said; every sentence of it gets its words."""
    last: dict[str, int] = {}
    for step in steps:
        if step.kind == Kind.SAID:
            for line in step.lines:
                line.words = _words(step.rows[line.first])
                last.update(dict.fromkeys(line.words, step.at))
    return last


def _worth(line: Line) -> float:
    """What a line of the user's, of a call or of its result is worth beside its names."""
    step, text = line.step, line.text
    tokens = len(text) / 4
    if step.kind == Kind.USER:
        key = "ask" if step.length <= SHORT_ASK or line.first < 2 else "demand" if DEMAND.search(text) else "other"
        return PER_TOKEN[key] * tokens
    if text.startswith("+ "):
        if line.first in step.telling:
            return EDITED * tokens
        is_patch = step.action is not None and step.action.family == "patch"
        return ADDED * tokens if is_patch and _TWO_WORDS.search(text) else 0.0
    if defines_constant(text) and not _is_constant_list(step):
        return DEFINES * tokens
    if step.is_unseen and _OUTCOME.search(text.lower()) and not _LINE_NUMBER.match(text):
        return UNSEEN * tokens
    if step.action is not None and step.action.outcome == "failed" and _ERROR.search(text.lower()):
        return ERROR * tokens
    is_value = line.names and _LITERAL.search(text) and not _IMPORTS.fullmatch(_without_number(text))
    return VALUE * tokens if is_value else 0.0
