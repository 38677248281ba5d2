"""Select the lines of a fold for a summary: user requests and assistant findings first, then by value per token.

1. One line of each user message comes first, then the assistant's findings, decisions and reports, each within a share
   of the budget, earlier folds included. Calls and lines of their results follow.
2. The number of lines per step is limited, and less so in the last pass. A summary may be shorter than its budget.
3. Each name counts once. A line that explains its names is worth more, a field without a value less. Assistant
   sentences are also worth something for their text: less if their words are already included or repeated later, if
   they are hedged or refer back; nothing if they only announce a call.
4. Values of constants, reasons of failures and the text that edits insert precede other lines: they cannot be guessed.
5. No line is included twice; lines that differ only in numbers and quoted strings are limited.
6. Reads before the last file change come last, except constants; so do reads without an included line.
7. The result is deterministic.
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

NAME_WEIGHT = 100.0
"""Weight of a line's names relative to its text."""
SPEECH = (Kind.USER, Kind.SAID)
LINE_TOKENS = 1.0
"""Tokens of a line break and indentation."""
MIN_LEFT_TOKENS = 3
"""Minimum tokens left; below that the selection stops."""
UNEXPLAINED_FACTOR = 0.4
MAX_SIMILAR_LINES = 3
"""Maximum number of lines that differ only in numbers and quoted strings."""
USER_SHARE = 0.35
"""Share of the budget for the first line of each user message."""
SPEECH_SHARE = 0.6
"""Share of the budget for that and assistant sentences; beyond it, sentences count by their names only."""
FIRST_PASS_READ_LINES = 4
"""Maximum lines per step that reads."""
FIRST_PASS_LINES = 8
"""Maximum lines per other step."""
LAST_PASS_READ_LINES = 16
LAST_PASS_LINES = 24
"""The same limits in the last pass."""
OLDEST_FACTOR = 0.6
NEWEST_FACTOR = 1.4
"""Multipliers for the oldest and the newest step; others are interpolated."""
OLDEST_SPEECH_FACTOR = 0.75
NEWEST_SPEECH_FACTOR = 1.3
"""The same for user and assistant messages."""
MAX_SHORT_MESSAGE_CHARS = 600
"""Maximum characters of a user message whose lines all count; of a longer one its beginning and its demands do."""
MAX_INTENT_CHARS = 120
"""Maximum characters of a sentence that announces a call."""
CANDIDATES_PER_TOKEN = 1.0
USER_VALUES = {"ask": 2.0, "demand": 0.8, "other": 0.0}
"""Value of a token of the user's text, apart from names."""
SPEECH_VALUE = 4.0
"""Value of a token of the assistant's text, apart from names."""
FINDING_FACTOR = 1.8
"""Multiplier for sentences that state a finding or an action."""
REPEATED_DECAY = 1.0
"""Decay by the share of words that are repeated later."""
HEDGED_FACTOR = 0.5
"""Multiplier for hedged sentences."""
MIN_REMARK_WORDS = 9
"""Minimum words of a remark between two calls without names; shorter ones ("Found the issue.") mean nothing alone."""
MAX_ANTECEDENTS = 3
"""Maximum number of preceding sentences included with one that refers back."""
NEWNESS_EXPONENT = 0.5
"""Exponent of the share of new words in a sentence."""
READ_FILE_FACTOR = 0.2
"""Multiplier for names in files that were read, which are very many."""
STALE_FACTOR = 0.03
"""Multiplier for names in stale steps, so that they come last."""
HEADLINE_VALUES = {
    "act": 90.0,
    "wrote": 0.35,
    "failed": 0.25,
    "ended": 10.0,
    "agent": 0.2,
    "other": 0.12,
    "shell": 0.1,
    "web": 0.06,
}
ADDED_VALUE = 0.008
ERROR_VALUE = 0.05
CONSTANT_VALUE = 5.0
LITERAL_VALUE = 0.02
"""Values of a token of an added line, an error line, a constant definition, and a line with a literal."""
MAX_CONSTANTS = 4
"""Maximum constants of one result that get extra value; more of them are a list."""
EDIT_VALUE = 1.0
"""Value of a token of an edit's most informative lines."""
EDIT_SHARE = 0.12
"""Maximum share of the budget for these lines."""
FAILURE_VALUE = 3.0
"""Value of a token of a failure's headline."""
FAILURE_SHARE = 0.25
"""Maximum share of the budget for these headlines."""
MIN_FREED_SHARE = 0.02
"""Share of the budget that must be freed to justify another pass."""
UNSEEN_VALUE = 3.0
"""Value of a token about the outcome of a newest call whose result may be truncated."""
FOCUS_VALUE = 100.0
"""Value of a token in a line that matches the requested focus."""

_DEMANDS = r"must|never|always|don['’]t|do not|prefer|only|avoid|make sure"
DEMAND = re.compile(rf"\b(?:{_DEMANDS}|should not|shouldn['’]t|instead of|no need)\b", re.I)
"""A demand in any text; "want" and "need" are left out because documents often contain them."""
# The patterns below expect lower-case text: ignoring case is several times slower.
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
_HEDGE = re.compile(
    r"\b(?:maybe|might|perhaps|i think|seems?|should work|let me|wait|hmm|probably|possibly|could be)\b|\?$"
)
_REFERS_BACK = re.compile(
    r"(?:(?:actually|wait|good|great|ok|okay|hmm|yes|no|now|perfect|right|well)[,!.:]? ){0,2}"
    r"(?:so|however|that|it(?! turns out)|but|this|these|those|still|which|they|also|and|because|then|both|same|here)\b"
)
"""The opening of a sentence that refers back to the one before it."""
_PROSE = re.compile(r"\b[a-z']{2,30}+,? [a-z'`\"]{2,30}+")
"""Two words in a row, which brackets and decorators do not have."""
_ERROR = re.compile(r"error|fail|exception|denied|not found|no such|cannot|unable|fatal|panic|traceback")
_OUTCOME = re.compile(r"[0-9]|error|fail|pass|success|warn|expected|got|found|called|missing|not ")
_TWO_WORDS = re.compile(r"[A-Za-z]{3}(?![A-Za-z])[^\n]{0,80}?[^A-Za-z][A-Za-z]{3}")
_LITERAL = re.compile(r"[\"'`][^\"'`\n]{3,}[\"'`]|[=:(,] ?[0-9][0-9_.]*\b")
"""A value, which cannot be guessed from the names around it."""
_IMPORTS = re.compile(
    r"(?:import|from|use|using|#include|require|export \* from)\b.*|[\w.]{0,20} ?[\"'][\w@./-]+[\"'][,;)]?"
)
_DIGITS = re.compile(r"[0-9]+")
_QUOTED = re.compile(r"\"[^\"\n]{1,200}\"|'[^'\n]{1,200}'|`[^`\n]{1,200}`")
_WORD = re.compile(r"[a-z_]\w{3,}+|[0-9]{2,}+")
_PLAIN_WORD = re.compile(r"[a-z_][a-z0-9_]{3,}+|[0-9]{2,}+")
"""The same for ASCII text: a quarter faster."""
_LINE_NUMBER = re.compile(r"[0-9]{1,7}(?:→|[:-])\s*")
_FIELD = re.compile(r"(?:\+ )?[\w$]{1,80}\??:\s{0,8}[A-Za-z_!$][\w.?!$]{0,120}[,;]|[-dl][-rwxst]{9}.{1,240}")
"""A field without a literal value, or a directory entry."""
_READS = re.compile(
    r"(?:read|searched|listed|found|looked)\b|"
    r"\$ (?:cat (?!>)|sed -n|head|tail|grep|rg|ls|find|nl|git (?:show|diff|log))"
)


class LineSelection:
    """Lines selected within a budget, and the names they cover."""

    def __init__(
        self, reader: FoldReader, steps: list[FoldStep], budget: int, included: str = "", *, only_names: bool = False
    ) -> None:
        self.reader = reader
        self.left = float(budget)
        self._only_names = only_names
        self._speech_left = budget * SPEECH_SHARE
        recent = frozenset(reader.recent)
        self.worths = {entry: worth(entry, reader.length, recent) for entry in reader.census.entries.values()}
        self.covered: set[NameCounts] = set()
        self._cover(reader.seen)
        self._cover(reader.names(included))
        self.chosen: dict[FoldStep, set[int]] = {}
        """Indexes of the included lines of each included step."""
        self._included = Counter(key for line in included.split("\n") for key in {line.lstrip("-*# "), _skeleton(line)})
        self._included.update(sentence.lstrip("-*# ") for sentence in sentences(included))
        self._files: set[str] = set()
        """Files named by included steps."""
        self._topic = frozenset(subwords(reader.request.focus or ""))
        self._last_said = {} if only_names else _last_said(steps)
        self._included_words = set() if only_names else set(_words(included))
        lines = self._candidates(steps, budget) if budget > MIN_LEFT_TOKENS else []
        if not only_names:
            self._run([line for line in lines if line.step.kind == Kind.USER and line.first == 0], budget * USER_SHARE)
            said = [line for line in lines if line.step.kind in SPEECH]
            self._weigh(said)
            self._run(said, self._speech_left)
        self._run(lines, self.left)
        self._run(lines, self.left, is_last=True)
        if not only_names and self._drop_lead_ins(lines) > budget * MIN_FREED_SHARE:
            self._run(lines, self.left, is_last=True)

    def _drop_lead_ins(self, lines: list[Line]) -> float:
        """Remove lead-in sentences whose following line is not included; return the tokens freed."""
        lead_ins = [line for line in lines if line.step in self.chosen and _is_lead_in(line)]
        left = self.left
        for line in lead_ins:
            places = self.chosen.get(line.step, set())
            if line.first in places and line.last + 1 not in places:
                places.remove(line.first)
                self.left += line.cost
                line.base, line.is_intent, line.is_weighed = 0.0, True, True
                if not places:
                    del self.chosen[line.step]
        return self.left - left

    def _cover(self, entries: set[NameCounts] | tuple[NameCounts, ...]) -> None:
        known = self.reader.census.entries
        for entry in entries:
            if entry not in self.covered:
                self.covered.update(found for part in parts(entry.text) if (found := known.get(part)) is not None)

    def _candidates(self, steps: list[FoldStep], budget: int) -> list[Line]:
        """Return the candidate lines. Judge them here if they are too many, otherwise later, on demand."""
        found: list[Line] = []
        last = max(len(steps) - 1, 1)
        _price_headlines(steps)
        failures = _newest_failures(steps, budget * FAILURE_SHARE)
        _limit_edits(steps, budget * EDIT_SHARE)
        for number, step in enumerate(steps):
            oldest, newest = (
                (OLDEST_SPEECH_FACTOR, NEWEST_SPEECH_FACTOR) if step.kind in SPEECH else (OLDEST_FACTOR, NEWEST_FACTOR)
            )
            step.age = oldest + (newest - oldest) * number / last
            if step.headline:
                headline = Line(step, -1, -1, step.headline_names)
                step.headline_value = _headline_value(step, step in failures)
                headline.base = step.headline_value * step.age
                headline.cost = step.headline_cost
                headline.is_judged = True
                if step.at in self.reader.fold:
                    found.append(headline)
            is_read = step.action is not None and step.action.family == "read"
            is_look = step.action is not None and step.action.family in LOOKS
            step.is_unseen = step.kind == Kind.CALL and self.reader.may_be_cut(step.at) and not is_look
            if not self._only_names:
                step.names_count = STALE_FACTOR if step.is_stale else READ_FILE_FACTOR if is_read else 1.0
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
        """Judge all lines and return the most valuable ones."""
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
                line.base += FOCUS_VALUE * line.cost
        if len(found) > budget * CANDIDATES_PER_TOKEN:
            said = [line for line in found if line.step.kind in SPEECH]
            rest = (line for line in found if line.step.kind not in SPEECH)
            found = said + nlargest(most, rest, key=lambda line: self._gain(line) / line.cost)
        for line in found:
            self._bind(line)
        return found

    def _judge(self, line: Line) -> None:
        """Compute the value of a line; on the second call, find out whether it explains its names."""
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
        """Return the value of a line apart from its names."""
        return (self._said_worth(line) if line.step.kind == Kind.SAID else _worth(line)) * line.step.age

    def _said_worth(self, line: Line) -> float:
        """Return the value of an assistant sentence apart from its names; zero if it only announces a call."""
        step, text = line.step, line.text
        low = text.lower()
        line.is_intent = _is_intent(line, low) or _lacks_referent(line, low)
        if line.is_intent or _EMPTY.fullmatch(low) or not _PROSE.search(low):
            return 0.0
        worth = SPEECH_VALUE * len(text) / 4 * (FINDING_FACTOR if _FINDING.search(low) else 1.0)
        worth *= HEDGED_FACTOR if _HEDGE.search(low) and not step.is_answer else 1.0
        last, at, words = self._last_said, step.at, line.words
        later = sum([last[word] > at for word in words]) / max(len(words), 1)
        return worth * exp(-REPEATED_DECAY * later)

    def _newness(self, line: Line) -> float:
        """Return a multiplier for the share of words in a sentence that are not included yet."""
        new = len(line.words - self._included_words)
        return float(((new + 0.3) / (len(line.words) + 0.3)) ** NEWNESS_EXPONENT)

    def _bind(self, line: Line) -> None:
        """Find out whether a line explains its names, extending it by a neighboring line if necessary."""
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
        """Extend a line that does not explain its names by the line before or after it."""
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
        """Return the value of the line's names that are not covered yet."""
        covered, worths, named = self.covered, self.worths, 0.0
        for entry in line.names:
            if entry not in covered:
                named += worths[entry]
        return named

    def _gain(self, line: Line) -> float:
        return self._price(line, self._names_worth(line), self._speech_left > 0, is_included=True)[0]

    def _price(self, line: Line, named: float, has_speech: bool, *, is_included: bool) -> tuple[float, float]:
        """Return the value and cost of a line, with its step's headline if that is not included yet."""
        step = line.step
        if (line.is_intent or (line.first < 0 and step.is_bare_look)) and not self._only_names:
            return line.base, line.cost
        if step.kind == Kind.SAID and has_speech and not self._only_names:
            return (line.base + NAME_WEIGHT * named) * (self._newness(line) if line.is_judged else 1.0), line.cost
        base = 0.0 if step.kind == Kind.SAID or self._only_names else line.base
        named *= 1.0 if line.first < 0 else step.names_count
        gain, cost = base + NAME_WEIGHT * (named if line.binds else named * UNEXPLAINED_FACTOR), line.cost
        if line.first >= 0 and (is_included or not step.headline):
            return gain, cost
        headline_cost = step.short_headline_cost if step.file in self._files else step.headline_cost
        if line.first < 0:
            return gain, headline_cost
        return gain if self._only_names else gain + step.headline_value, cost + headline_cost

    def _run(self, lines: list[Line], budget: float, *, is_last: bool = False) -> None:
        """Include the most valuable lines per token, within a part of the budget."""
        named = [self._names_worth(line) if line.names else 0.0 for line in lines]
        included, has_speech = set(self.chosen), self._speech_left > 0
        heap: list[tuple[float, int]] = []
        """Value per token of each line before this run: exact for judged lines, an upper bound for others."""

        def judge_first() -> None:
            while heap and not (line := lines[number := heap[0][1]]).is_judged:
                self._judge(line)
                gain, cost = self._price(line, named[number], has_speech, is_included=line.step in included)
                heapreplace(heap, (-gain / cost, number))

        for number, line in enumerate(lines):
            gain, cost = self._price(line, named[number], has_speech, is_included=line.step in included)
            heap.append((-gain / cost, number))
        heapify(heap)
        end = max(self.left - budget, 0.0)
        while heap and self.left > end + MIN_LEFT_TOKENS:
            judge_first()
            promised, number = heappop(heap)
            line = lines[number]
            gain, cost = self._price(
                line, self._names_worth(line), self._speech_left > 0, is_included=line.step in self.chosen
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
        most = (LAST_PASS_READ_LINES, LAST_PASS_LINES) if is_last else (FIRST_PASS_READ_LINES, FIRST_PASS_LINES)
        return len(self.chosen.get(step, ())) >= most[not _READS.match(step.headline)]

    def _key(self, line: Line, row: str) -> str:
        """Return the key that identifies repeated lines; for tool output, without numbers."""
        return _skeleton(row) if line.step.kind == Kind.CALL else row.lstrip("-*# ")

    def _take(self, line: Line, cost: float) -> None:
        rows = line.step.rows[line.first : line.last + 1] if line.first >= 0 else []
        places = self.chosen.get(line.step, set())
        if rows and places.issuperset(range(line.first, line.last + 1)):
            return
        keys = [self._key(line, row) for row in rows]
        often = min(map(self._included.__getitem__, keys), default=0)
        if often >= MAX_SIMILAR_LINES or (often and self.covered.issuperset(line.names)):
            return
        if line.step.kind in (Kind.CALL, Kind.NOTE) and is_suspicious(line.text):
            return
        self.left -= cost
        if line.step.kind in SPEECH:
            self._speech_left -= cost
        for key in keys:
            self._included[key] += 1
        if not self._only_names:
            self._included_words |= line.words or _words(line.text)
            self._included_words |= _words(line.step.headline) if line.step not in self.chosen else frozenset()
        self._cover(line.names)
        self._cover(line.step.headline_names)
        self._files |= {line.step.file} if line.step.file else set()
        places = self.chosen.setdefault(line.step, set())
        places.update(range(line.first, line.last + 1) if line.first >= 0 else ())


def _without_number(text: str) -> str:
    text = text.strip()
    number = _LINE_NUMBER.match(text)
    return text[number.end() :] if number else text


def _skeleton(text: str) -> str:
    """Return the shape of an output line: without its numbers and quoted strings."""
    return _DIGITS.sub("0", _QUOTED.sub("''", _without_number(text)))


def _is_lead_in(line: Line) -> bool:
    step = line.step
    return step.kind == Kind.SAID and line.first >= 0 and step.rows[line.last].rstrip("*_ ").endswith(":")


def _is_intent(line: Line, low: str) -> bool:
    """Return whether a lower-case sentence only announces the call after it."""
    is_last = line.last == len(line.step.rows) - 1 and not line.step.is_answer
    return _INTENT.match(low) is not None or (is_last and low.endswith(":") and len(low) < MAX_INTENT_CHARS)


def _refers_back(row: str) -> bool:
    """Return whether a sentence, or a line of code among sentences, needs the one before it."""
    low = row.lower()
    return _REFERS_BACK.match(low) is not None or (not _PROSE.search(low) and not row.startswith(("-", "*", "|", "#")))


def _lacks_referent(line: Line, low: str) -> bool:
    """Return whether a sentence means nothing alone: it opens by referring to a result, or is a short remark."""
    if line.step.is_answer or line.names:
        return False
    return len(low.split()) < MIN_REMARK_WORDS or (line.first == 0 and _refers_back(line.text))


def _headline_value(step: FoldStep, fits: bool) -> float:
    action = step.action
    if action is None:
        return 0.0
    if action.family == "plan":
        return -1.0
    if action.outcome == "failed" and not step.headline.endswith(NOT_RUN):
        return FAILURE_VALUE * len(step.headline) / 4 if fits else HEADLINE_VALUES["failed"]
    if action.wrote:
        return HEADLINE_VALUES["act" if action.family == "other" else "wrote"]
    if " → " in step.headline and action.family == "shell":
        return HEADLINE_VALUES["ended"]
    return HEADLINE_VALUES.get(action.family, 0.01)


def _price_headlines(steps: list[FoldStep]) -> None:
    """Set the cost of each headline, with the full and with the short file name."""
    for step, tokens in zip(steps, estimate_each([step.headline for step in steps]), strict=True):
        step.headline_cost = step.short_headline_cost = tokens + LINE_TOKENS
    with_file = [step for step in steps if step.file]
    for step, tokens in zip(with_file, estimate_each([step.short_headline for step in with_file]), strict=True):
        step.short_headline_cost = tokens + LINE_TOKENS


def _newest_failures(steps: list[FoldStep], budget: float) -> set[FoldStep]:
    """Return the newest failed calls that fit the budget, one for each reason."""
    found: dict[str, FoldStep] = {}
    for step in reversed(steps):
        reason = step.headline.rpartition(" → ")[2]
        if step.action is not None and step.action.outcome == "failed" and reason not in found:
            budget -= step.headline_cost
            if budget < 0:
                break
            found[reason] = step
    return set(found.values())


def _limit_edits(steps: list[FoldStep], budget: float) -> None:
    """Unmark the informative lines of older edits that exceed the budget."""
    for step in reversed(steps):
        budget -= sum(estimate_text(step.rows[place]) + LINE_TOKENS for place in step.key_lines)
        if budget < 0:
            step.key_lines = frozenset()


def _most_per_token(line: Line, text: str) -> float:
    """Return an upper bound for the value of a token, apart from names, without a regex search."""
    step = line.step
    if step.kind in SPEECH:
        return USER_VALUES["ask"] if step.kind == Kind.USER else SPEECH_VALUE * FINDING_FACTOR
    if text.startswith("+ "):
        return EDIT_VALUE if line.first in step.key_lines else ADDED_VALUE
    if defines_constant(text):
        return CONSTANT_VALUE
    if step.is_unseen:
        return UNSEEN_VALUE
    return ERROR_VALUE if step.action is not None and step.action.outcome == "failed" else LITERAL_VALUE


def _is_constant_list(step: FoldStep) -> bool:
    """Return whether a result defines so many constants that no single one stands out."""
    return len(list(islice(filter(defines_constant, step.rows), MAX_CONSTANTS + 1))) > MAX_CONSTANTS


def _words(text: str) -> frozenset[str]:
    pattern = _PLAIN_WORD if text.isascii() else _WORD
    return frozenset(pattern.findall(text.lower()))


def _last_said(steps: list[FoldStep]) -> dict[str, int]:
    """Set the words of each assistant sentence; return the last message of each word."""
    last: dict[str, int] = {}
    for step in steps:
        if step.kind == Kind.SAID:
            for line in step.lines:
                line.words = _words(step.rows[line.first])
                last.update(dict.fromkeys(line.words, step.at))
    return last


def _worth(line: Line) -> float:
    """Return the value of a line from the user, a call or a result, apart from its names."""
    step, text = line.step, line.text
    tokens = len(text) / 4
    if step.kind == Kind.USER:
        key = (
            "ask"
            if step.length <= MAX_SHORT_MESSAGE_CHARS or line.first < 2
            else "demand"
            if DEMAND.search(text)
            else "other"
        )
        return USER_VALUES[key] * tokens
    if text.startswith("+ "):
        if line.first in step.key_lines:
            return EDIT_VALUE * tokens
        is_patch = step.action is not None and step.action.family == "patch"
        return ADDED_VALUE * tokens if is_patch and _TWO_WORDS.search(text) else 0.0
    if defines_constant(text) and not _is_constant_list(step):
        return CONSTANT_VALUE * tokens
    if step.is_unseen and _OUTCOME.search(text.lower()) and not _LINE_NUMBER.match(text):
        return UNSEEN_VALUE * tokens
    if step.action is not None and step.action.outcome == "failed" and _ERROR.search(text.lower()):
        return ERROR_VALUE * tokens
    is_value = line.names and _LITERAL.search(text) and not _IMPORTS.fullmatch(_without_number(text))
    return LITERAL_VALUE * tokens if is_value else 0.0
