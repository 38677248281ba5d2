"""Tools with which a model searches and unfolds its history: definitions and answers.

1. Hits are redacted. Unfolded originals are exact: they were in the conversation before.
2. Every answer is limited in size, and says how to continue. A position in a hit can be unfolded from.
3. An answer without hits includes an overview of what there is.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, NamedTuple

from midfold.compaction.archive import PREFIX
from midfold.errors import MidfoldError, NotStored
from midfold.recall.excerpts import ELLIPSIS, Matcher, Redact, best_passage, lowercase
from midfold.recall.hits import Hit, HitPart, hits_for_model, hits_for_reader
from midfold.recall.patterns import HAS_RE2, FindLines, OutOfTime, PatternRefused, compile_pattern
from midfold.recall.ranking import ANY, CONSIDERED, MAX_CALLS_PER_MESSAGE, Filters, RankedSearch, SearchSource, rank
from midfold.recall.units import KINDS, Candidate, Unit, original, units
from midfold.recall.words import parse_query
from midfold.transcript.message import ToolCall, ToolResult
from midfold.transcript.tools import ToolSpec, arguments

MAX_HITS = 6
"""Maximum hits in an answer to a model."""
MAX_QUERIES = 5
MAX_HITS_CHARS = 6_000
"""Maximum characters of the hits for a model; several queries share twice as much."""
PAGE = 20_000
"""Maximum characters of originals in one answer."""
HITS_SHARE, ORIGINALS_SHARE = 0.025, 0.25
"""Share of the compaction threshold that an answer of hits, and one of originals, may use."""
CHARACTERS_PER_TOKEN = 4
MIN_ANSWER_CHARS = 800
AROUND_CHARS = 3_000
"""Characters shown around a text searched in an original."""
MAX_REPEATED_LINE_CHARS = 12
"""Maximum characters of a line that may be repeated, such as a bracket or the end of a block."""
STEPS, MAX_STEPS = 10, 40
OVERVIEW_MESSAGES = 400
"""Newest messages included in an overview."""
MAX_PATTERN_CHARS_SEARCHED = 4_000_000
"""Maximum characters searched for a pattern in one call."""
MAX_PATTERN_SECONDS = 2.0
"""Maximum seconds for a pattern in one call."""

FOUND = "Found in earlier messages:"
NEAREST = "None of these earlier messages has all of the words; they are the nearest:"
_NEAREST_BEFORE = "No earlier message has all of these words. The nearest:"
"""Beginning of such an answer in earlier versions; occurs in stored sessions."""
NOTHING = "nothing found: try fewer or other words, or a part of a name"
HANDLES = "Handles stand in the summary, in digests and in what context_search finds."
NOTHING_FOLDED = "Nothing of this conversation has been folded away yet: all of it is above."
ORIGINAL = "Original of"
CONTENTS = "Contents of"
TIMELINE = "Around"
_ANSWER_PREFIXES = (FOUND, NEAREST, _NEAREST_BEFORE, NOTHING, NOTHING_FOLDED, ORIGINAL, CONTENTS, TIMELINE)
NO_LINE = "(no line fits this pattern; looked for its words)"
TOO_SLOW = f"(stopped after {MAX_PATTERN_SECONDS:g} s: try a simpler pattern)"
NO_REGEX = "(google-re2 is not installed: the pattern was matched as plain text)"
_PATTERN_HELP = "a regular expression (RE2 syntax)" if HAS_RE2 else "plain text, without regular expressions,"
_WORDS_OF_PATTERN = re.compile(r"(?<!\\)\w{3,}")
_LINES = re.compile(r"\s*(\d{1,9})\s*(?:[-–:]\s*(\d{1,9})\s*)?")

SEARCH = ToolSpec(
    "context_search",
    "Search this conversation from its beginning, also what has been folded into a summary. The best hits come first; "
    "no word is required, parts of names count, and a call is found together with its result. Each hit has handles "
    "for context_unfold.",
    arguments(
        {
            "query": {"type": "string", "description": 'Words to look for; what stands "in quotes" must occur.'},
            "queries": {"type": "array", "items": {"type": "string"}, "description": "Several searches at once."},
            "pattern": {"type": "string", "description": f"Instead of words: {_PATTERN_HELP} for one line."},
            "tool": {"type": "string", "description": "Only calls of this tool."},
            "path": {"type": "string", "description": "Only calls that name this path or a part of it."},
            "role": {"type": "string", "enum": ["user", "assistant", "tool"]},
            "kind": {"type": "string", "enum": list(KINDS)},
            "before": {"type": "integer", "description": "Only messages before this number."},
            "after": {"type": "integer", "description": "Only messages after this number."},
        }
    ),
)
UNFOLD = ToolSpec(
    "context_unfold",
    "Show the original messages behind a handle (mf-...), as they were before they were folded or shortened. "
    "A fold of many messages shows its contents first, with a handle for each step.",
    arguments(
        {
            "handle": {"type": "string", "description": "The handle, as a summary, a digest or a search hit names it."},
            "around": {"type": "string", "description": "A text: show what stands around it."},
            "start": {"type": "integer", "description": "Character to start at."},
            "lines": {"type": "string", "description": 'Lines to show, such as "40-80".'},
        },
        "handle",
    ),
)
STEPS_AROUND = ToolSpec(
    "context_timeline",
    "What happened before and after the message behind a handle, a line for each step.",
    arguments(
        {
            "handle": {"type": "string", "description": "The handle."},
            "before": {"type": "integer", "description": f"How many messages before it (default {STEPS})."},
            "after": {"type": "integer", "description": f"How many messages after it (default {STEPS})."},
        },
        "handle",
    ),
)
TOOLS = (SEARCH, UNFOLD, STEPS_AROUND)
NAMES = frozenset(tool.name for tool in TOOLS)


def search(past: SearchSource, text: str, redact: Redact, limit: int, filters: Filters = ANY) -> list[Hit]:
    """Return the best hits for people, in the order a model would get them, without dropping any condition."""
    ranked, scored = rank(past, text, filters, limit, wanted=_is_not_recall, relaxed=False)
    return hits_for_reader(past, ranked, scored, redact, limit)


class ToolAnswer(NamedTuple):
    """Text of a tool result."""

    text: str
    is_error: bool = False


class AnswerBounds(NamedTuple):
    """Maximum characters of an answer of hits, and of originals."""

    hits: int = MAX_HITS_CHARS
    page: int = PAGE

    @classmethod
    def of(cls, threshold_tokens: int, page: int = PAGE) -> AnswerBounds:
        """Return bounds for a threshold, so that a dozen answers fit; originals have at most `page` characters."""
        characters = threshold_tokens * CHARACTERS_PER_TOKEN
        hits, originals = int(characters * HITS_SHARE), int(characters * ORIGINALS_SHARE)
        return cls(min(max(hits, MIN_ANSWER_CHARS), MAX_HITS_CHARS), min(max(originals, MIN_ANSWER_CHARS), PAGE, page))


UNBOUNDED = AnswerBounds()
"""Bounds for an unknown window."""


class Recall:
    """Tools of one conversation: `tools` are offered to its model, `run` answers a call."""

    tools = TOOLS

    def __init__(
        self,
        past: SearchSource,
        redact: Redact,
        *,
        seen: Collection[bytes] = (),
        bounds: AnswerBounds = UNBOUNDED,
        nothing: str = "",
        clock: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """Offer the tools over a source.

        `seen` are digests of messages still visible to the model; `nothing` is the answer without any message; `clock`
        limits the time of each call (this package reads no clock itself).
        """
        self._past, self._redact, self._seen, self._empty = past, redact, seen, nothing
        self._bounds, self._page, self._clock = bounds, bounds.page, clock

    def run(self, name: str, given: Any, is_cancelled: Callable[[], bool] = lambda: False) -> ToolAnswer:
        """Run a call and return its answer, which may be an error; stop early once `is_cancelled` returns True."""
        given = given if isinstance(given, Mapping) else {}
        if self._empty and name in NAMES and not self._past.size():
            return ToolAnswer(self._empty)
        try:
            if name == SEARCH.name:
                return self._search(given, is_cancelled)
            handle = _handle(given.get("handle"))
            if name == UNFOLD.name:
                return self._unfold(handle, given)
            if name == STEPS_AROUND.name:
                return self._timeline(handle, given)
        except NotStored as error:
            return self.refuse(str(error).partition(": ")[2] or str(error))
        except PatternRefused as error:
            return ToolAnswer(str(error), is_error=True)
        except MidfoldError as error:
            return ToolAnswer(f"the archive cannot be read now ({type(error).__name__})", is_error=True)
        names = ", ".join(tool.name for tool in TOOLS)
        return ToolAnswer(f"unknown tool {name[:80]!r}; there are {names}", is_error=True)

    def refuse(self, problem: str) -> ToolAnswer:
        """Return an error with an overview of what there is."""
        return ToolAnswer("\n".join([problem, HANDLES, *self._overview()]), is_error=True)

    # Search

    def hits(self, query: str, filters: Filters | None = None, limit: int = MAX_HITS) -> list[Hit]:
        """Return hits before they are rendered as text."""
        return self._rank(query, filters or Filters(), limit, self._bounds.hits)[1]

    def _rank(self, query: str, filters: Filters, limit: int, max_chars: int) -> tuple[RankedSearch, list[Hit]]:
        ranked, scored = rank(self._past, query, filters, CONSIDERED, wanted=_is_not_recall, seen=self._seen)
        return ranked, hits_for_model(self._past, ranked, scored, self._redact, limit, max_chars)

    def describe_hits(self, hits: Iterable[Hit], max_chars: int = MAX_HITS_CHARS) -> Iterator[str]:
        """Yield each hit as text without lines of earlier hits; a hit that adds nothing is omitted."""
        known: set[str] = {ELLIPSIS}
        for hit in hits:
            lines: list[str] = []
            is_new = False
            for part in (*hit.parts, *hit.beside):
                part_lines = [(line, line.strip()) for line in part.text.splitlines()]
                adds = any(text not in known for _, text in part_lines)
                if adds or part in hit.parts:
                    new = [
                        line for line, text in part_lines if text not in known or len(text) <= MAX_REPEATED_LINE_CHARS
                    ]
                    lines += [_heading(part), *new]
                is_new = is_new or adds
                known.update(text for _, text in part_lines)
            if is_new and max_chars > 0:
                beside = [f"before: {hit.before}"] * bool(hit.before) + [f"after: {hit.after}"] * bool(hit.after)
                copies = [f"the same {hit.copies} times before"] * bool(hit.copies)
                last = "; ".join([*copies, *beside])
                text = "\n".join([*lines, f"[{last}]"] if last else lines)
                max_chars -= len(text)
                yield text

    def _search(self, given: Mapping[str, Any], is_cancelled: Callable[[], bool]) -> ToolAnswer:
        filters = _filters(given)
        listed = given.get("queries")
        queries = [str(one) for one in listed if str(one or "").strip()] if isinstance(listed, list) else []
        query, pattern = str(given.get("query") or "").strip(), str(given.get("pattern") or "")
        left_out = queries[MAX_QUERIES:]
        queries = [query] * bool(query) + queries[:MAX_QUERIES]
        if pattern:
            return self._match(pattern, filters, is_cancelled)
        if not queries and not filters.are_narrow:
            return ToolAnswer("the query is empty", is_error=True)
        answers = [self._answer(one, filters, len(queries) or 1) for one in queries or [""]]
        if not any(answers):
            return ToolAnswer(self._nothing())
        if len(answers) == 1:
            return ToolAnswer(answers[0])
        sections = [f"# {one}\n{text or NOTHING}" for one, text in zip(queries, answers, strict=True)]
        if left_out:
            sections.append(
                f"Not looked for, at most {MAX_QUERIES} queries go in one call: {'; '.join(left_out)[:PAGE]}"
            )
        return ToolAnswer("\n\n".join(sections))

    def _answer(self, query: str, filters: Filters, count: int) -> str:
        max_chars = self._bounds.hits if count == 1 else 2 * self._bounds.hits // count
        ranked, hits = self._rank(query, filters, max(MAX_HITS // count, 2), max_chars)
        if not hits:
            return ""
        missing = [_missing(ranked)] * bool(ranked.missing)
        without = [f"(nothing with {'; '.join(ranked.left_out)}: left out)"] * bool(ranked.left_out)
        first = FOUND if any(hit.has_every_word for hit in hits) else NEAREST
        return "\n".join([first, *without, *missing, "\n\n".join(self.describe_hits(hits, max_chars))])

    def _match(self, text: str, filters: Filters, is_cancelled: Callable[[], bool]) -> ToolAnswer:
        """Return lines that match a pattern, newest messages first."""
        deadline = self._clock() + MAX_PATTERN_SECONDS
        find_lines = compile_pattern(text)
        lines, end, is_complete = self._matching_lines(
            find_lines, filters, lambda: is_cancelled() or self._clock() >= deadline
        )
        more = "" if HAS_RE2 else f"\n{NO_REGEX}"
        more += "" if is_complete else f"\n{TOO_SLOW}"
        more += f"\n[looked at messages from {end} on; go on with before={end}]" if end > 0 else ""
        if not lines:
            words = " ".join(_WORDS_OF_PATTERN.findall(text)) if is_complete else ""
            first, _, instead = self._answer(words, filters, 1).partition("\n") if words else ("", "", "")
            return ToolAnswer((f"{first}\n{NO_LINE}\n{instead}" if first else self._nothing()) + more)
        return ToolAnswer("\n".join([FOUND, *lines[: MAX_HITS * 3]])[: self._bounds.hits] + more)

    def _matching_lines(
        self, find_lines: FindLines, filters: Filters, is_over: Callable[[], bool]
    ) -> tuple[list[str], int, bool]:
        """Return the lines, the number of the oldest searched message, and whether the time sufficed."""
        session, end = self._past.newest()
        end = end if filters.before is None else min(end, filters.before)
        left, lines = MAX_PATTERN_CHARS_SEARCHED, list[str]()
        while end > 0 and left > 0 and len(lines) < MAX_HITS * 3:
            start = max(end - STEPS * 4, 0)
            found = self._past.messages({session: set(range(max(start - MAX_CALLS_PER_MESSAGE, 0), end))})
            chosen, batch = _allowed_positions(found, filters), [one for one in found if one.position >= start]
            for one, handle in reversed([*zip(batch, self._past.shorten(batch), strict=True)]):
                whole = original(one.message)
                left -= len(whole)
                if one.position not in chosen:
                    continue
                try:
                    for number, line in islice(find_lines(whole, is_over), MAX_HITS):
                        shown = self._redact(line)[:400]
                        lines.append(f"{handle} (message {one.position}, {one.role}) line {number}: {shown}")
                except OutOfTime:
                    return lines, one.position, False
            end = start
        return lines, end, True

    def _nothing(self) -> str:
        """Return the answer without hits, with an overview."""
        return "\n".join([NOTHING, *self._overview()])

    def _overview(self) -> list[str]:
        """Return the number of messages, the tools called and the files named."""
        session, end = self._past.newest()
        found = self._past.messages({session: set(range(max(end - OVERVIEW_MESSAGES, 0), end))})
        calls = [part for one in found for part in one.message.parts if isinstance(part, ToolCall)]
        tools = Counter(call.name for call in calls if call.name not in NAMES)
        actions = [unit.action for unit in units(found) if _is_not_recall(unit)]
        paths = Counter(path for action in actions if action is not None for path in action.paths)
        lines = [f"There are {self._past.size()} messages."] if found else []
        if tools:
            lines.append("Tools called: " + ", ".join(f"{name} {count}" for name, count in tools.most_common(12)))
        if paths:
            lines.append("Files: " + self._redact(", ".join(path for path, _ in paths.most_common(20))))
        return lines

    # Unfold

    def _unfold(self, handle: str, given: Mapping[str, Any]) -> ToolAnswer:
        messages = self._past.unfold(handle)
        around, lines = str(given.get("around") or ""), str(given.get("lines") or "")
        is_placed = around or lines or given.get("start") not in (None, "")
        if len(messages) > 1 and not is_placed:
            return self._contents(handle)
        head, text = f"{ORIGINAL} {handle}:", "\n\n".join(map(original, messages))
        start = _number(given.get("start"))
        if lines:
            return self._lines(head, text, lines)
        if around:
            place = _place_of(around, text)
            if place < 0:
                return ToolAnswer(f"{handle} has no {around[:80]!r} in its {len(text)} characters", is_error=True)
            start = max(place - min(AROUND_CHARS, self._page) // 2, 0)
            start = text.rfind("\n", 0, start) + 1 if place - text.rfind("\n", 0, start) < AROUND_CHARS else start
            return ToolAnswer(_page(head, text, start, min(2 * AROUND_CHARS, self._page)))
        if start and start >= len(text):
            return ToolAnswer(f"{handle} has {len(text)} characters", is_error=True)
        return ToolAnswer(_page(head, text, start, self._page))

    def _lines(self, head: str, text: str, lines: str) -> ToolAnswer:
        span, every = _LINES.fullmatch(lines), text.split("\n")
        first = max(int(span[1]), 1) if span else 0
        if span is None or first > len(every):
            return ToolAnswer(f'lines are given as "40-80"; there are {len(every)}', is_error=True)
        last = min(int(span[2] or first + 40), len(every))
        start = sum(map(len, every[: first - 1])) + first - 1
        size = sum(map(len, every[first - 1 : last])) + last - first
        return ToolAnswer(_page(head, text, start, min(size, self._page)))

    def _contents(self, handle: str) -> ToolAnswer:
        """List the steps of a fold, each with a handle."""
        session, first = self._past.place_of(handle)
        count = len(self._past.unfold(handle))
        lines = [f"{CONTENTS} {handle}: {count} messages. Unfold any of them, or this one from start=0 on."]
        lines += self._steps(session, first, first + count)
        text = "\n".join(lines)
        if len(text) <= self._page:
            return ToolAnswer(text)
        kept = text[: self._page].rpartition("\n")[0]
        last = kept.rpartition("\n")[2].split(" ", 1)[0]
        return ToolAnswer(f"{kept}\n[go on with context_timeline, handle={last}]")

    def _steps(self, session: str, first: int, stop: int) -> list[str]:
        found = self._past.messages({session: set(range(max(first, 0), stop))})
        short = {one.position: handle for one, handle in zip(found, self._past.shorten(found), strict=True)}
        lines = []
        for unit in units(found):
            if unit.pieces and not unit.is_aside and _is_not_recall(unit):
                places = sorted({piece.found.position for piece in unit.pieces})
                handles = " ".join(short[place] for place in places)
                who = "" if unit.action else f"{unit.pieces[0].found.role}: "
                lines.append((places[0], f"{handles} (message {places[0]}) {who}{self._redact(unit.line())}"))
        return [line for _, line in sorted(lines)]

    def _timeline(self, handle: str, given: Mapping[str, Any]) -> ToolAnswer:
        session, place = self._past.place_of(handle)
        before = min(_number(given.get("before"), STEPS), MAX_STEPS)
        after = min(_number(given.get("after"), STEPS), MAX_STEPS)
        lines = self._steps(session, place - before, place + after + 1)
        return ToolAnswer("\n".join([f"{TIMELINE} {handle} (message {place}):", *lines])[: self._page])


def _missing(ranked: RankedSearch) -> str:
    """Return the line about words that do not occur, and their replacements."""
    missing = [
        f"{word}, instead: {' '.join(ranked.instead[word])}" if word in ranked.instead else word
        for word in ranked.missing[:10]
    ]
    return f"(nowhere: {'; '.join(missing) if ranked.instead else ', '.join(missing)})"


def _place_of(around: str, text: str) -> int:
    """Return the position of a text in another, else of most of its words; -1 if none occurs."""
    lowered = lowercase(text)
    place = lowered.find(lowercase(around))
    if place >= 0:
        return place
    matcher = Matcher(parse_query(around))
    found = matcher.occurrences(text, lowered)
    counts = Counter(one.term for one in found)
    best = best_passage(found, [1 / (1 + counts[number]) for number in range(len(matcher.terms))])
    return best.first if best.terms else -1


def _page(head: str, text: str, start: int, size: int) -> str:
    page = text[start : start + size]
    end = start + len(page)
    more = "" if end >= len(text) else f"\n[characters {start} to {end} of {len(text)}; go on with start={end}]"
    return f"{head}\n\n{page}{more}"


def _heading(part: HitPart) -> str:
    place = "" if part.is_whole else f"; from line {part.line}, character {part.character}"
    return f"{part.handle} (message {part.position}, {part.what}; {part.length} characters{place}):"


def _is_not_recall(unit: Unit) -> bool:
    """Return whether a unit is not a recall call or its result."""
    if unit.call is not None and unit.call.name in NAMES:
        return False
    return unit.result is None or not unit.result.text.removeprefix('{"result":"').startswith(_ANSWER_PREFIXES)


def _is_recall(found: Candidate) -> bool:
    parts = found.message.parts
    results = [part.text for part in parts if isinstance(part, ToolResult)]
    if results and all(text.removeprefix('{"result":"').startswith(_ANSWER_PREFIXES) for text in results):
        return True
    calls = [part.name for part in parts if isinstance(part, ToolCall)]
    return bool(calls) and not found.message.text and NAMES.issuperset(calls)


def _allowed_positions(batch: Sequence[Candidate], filters: Filters) -> set[int]:
    """Return positions of messages that the filters allow, without recall calls and results."""
    allowed = {piece.found.position for unit in units(batch) if filters.allows(unit) for piece in unit.pieces}
    return {
        one.position
        for one in batch
        if one.position in allowed
        and filters.spans(one.position)
        and filters.role in ("", one.role)
        and not _is_recall(one)
    }


def _handle(given: Any) -> str:
    handle = str(given or "").strip("[]()`'\" \n")
    return handle if handle.startswith(PREFIX) else PREFIX + handle


def _filters(given: Mapping[str, Any]) -> Filters:
    kind = str(given.get("kind") or "")
    texts = {name: str(given.get(name) or "").strip() for name in ("tool", "path", "role")}
    before, after = (
        None if given.get(name) in (None, "") else _number(given.get(name)) for name in ("before", "after")
    )
    return Filters(
        tool=texts["tool"],
        path=texts["path"],
        role=texts["role"],
        kind=kind if kind in KINDS else "",
        before=before,
        after=after,
    )


def _number(value: Any, otherwise: int = 0) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return max(value, 0) if type(value) is int else otherwise
