"""Find a query's words in a text, and cut the excerpt to show.

1. A word matches as typed in the query, alone, in another form, as the beginning of a longer word, or inside one, with
   decreasing weight.
2. An excerpt consists of whole lines around the passage with most of the words; only too long lines are cut. Blank
   lines and bare fences are omitted. Its position refers to the original.
3. Excerpts are redacted before they are cut: half a credential would not be recognized.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import NamedTuple

from midfold.recall.words import Query, Term, normalize_text, stem

Redact = Callable[[str], str]
TYPED, SAME, FORM, BEGINS, INSIDE = 1.1, 1.0, 0.9, 0.55, 0.25
MAX_OCCURRENCES = 1_000
"""Maximum occurrences of one word in one text."""
MIN_NAME_CHARS = 6
PASSAGE_CHARS = 300
"""Characters of a passage; words in two adjacent passages count as close together."""
MAX_LINE_CHARS = 320
REDACTION_MARGIN_CHARS = 4_000
"""Characters redacted on each side of an excerpt, for secrets that begin outside of it."""
ELLIPSIS = "…"
_FENCE = re.compile(r"\s*(?:```|~~~)[\w+-]{0,20}\s*")


class Occurrence(NamedTuple):
    """Match of a query word at a position of a text, and its quality."""

    place: int
    term: int
    fit: float


class Excerpt(NamedTuple):
    """Excerpt of a text, the character it starts at, and whether it is the whole text."""

    text: str
    start: int
    is_whole: bool


class Passage(NamedTuple):
    """Part of a text with most of the words: their total weight, positions and numbers."""

    weight: float
    first: int
    last: int
    terms: frozenset[int]


NO_PASSAGE = Passage(0.0, 0, 0, frozenset())


class Matcher:
    """Query prepared for matching against many texts."""

    def __init__(self, query: Query) -> None:
        self.query = query
        self.terms: tuple[Term, ...] = query.terms

    def occurrences(self, text: str, lowered: str = "") -> list[Occurrence]:
        """Return all query words in a text by position; `lowered` is the lowercase text, if available."""
        lowered = lowered or lowercase(text)
        found = [
            Occurrence(place, number, fit)
            for number, term in enumerate(self.terms)
            for place, fit in _places(term, text, lowered)
        ]
        found.sort()
        return self._raise_typed(found, text)

    def _raise_typed(self, found: list[Occurrence], text: str) -> list[Occurrence]:
        """Raise the weight of words that occur exactly as typed in the query."""
        size = len(self.query.typed)
        starts = islice(_places_alone(self.query.typed, text), MAX_OCCURRENCES) if size > 1 else ()
        typed = {one for place in starts for one in range(place, place + size)}
        if not typed:
            return found
        return [one._replace(fit=TYPED) if one.place in typed and one.fit >= FORM else one for one in found]

    def literal_share(self, texts: Sequence[str], lowered: Sequence[str]) -> float:
        """Return 2 if a text contains the query as typed, 1 if with other case or spacing, else 0."""
        if len(self.query.typed) < 2:
            return 0.0
        if any(any(True for _ in _places_alone(self.query.typed, text)) for text in texts):
            return 2.0
        return 1.0 if any(map(self._has_literal, lowered)) else 0.0

    def _has_literal(self, lowered: str) -> bool:
        words = self.query.literal.split()
        return all(word in lowered for word in words) and self.query.literal in " ".join(lowered.split())

    def has_phrases(self, texts: Iterable[str]) -> bool:
        if not self.query.phrases:
            return True
        whole = normalize_text("\n".join(texts))
        return all(phrase in whole for phrase in self.query.phrases)


def lowercase(text: str) -> str:
    """Return the normalized lowercase text with unchanged character positions."""
    if not text.isascii():
        others = text.encode("utf-8", "surrogatepass").translate(None, _ASCII).decode("utf-8", "surrogatepass")
        for letter in set(others):
            lowered = _lowercased_letter(letter)
            if lowered != letter.lower():
                text = text.replace(letter, lowered)
    return text.lower()


_ASCII = bytes(range(128))


@lru_cache(maxsize=1 << 14)
def _lowercased_letter(letter: str) -> str:
    """Normalize a letter; of one that would become several letters keep the first, or the letter itself."""
    lowered = unicodedata.normalize("NFKC", letter).lower()
    return lowered if len(lowered) == 1 else letter if len(letter.lower()) == 1 else lowered[0]


def _places(term: Term, text: str, lowered: str) -> Iterable[tuple[int, float]]:
    word = term.typed if "_" in term.typed else term.text
    found = list(_places_of(word, term, text, lowered))
    for other in term.also:
        found += [(place, min(fit, FORM)) for place, fit in _places_of(other, Term(other, typed=other), text, lowered)]
    return found or _place_in_name(word, lowered)


def _place_in_name(word: str, lowered: str) -> Iterable[tuple[int, float]]:
    """Yield the position of a name that is written with underscores in the text only."""
    if len(word) < MIN_NAME_CHARS or "_" not in lowered:
        return
    place = lowered.replace("_", "").find(word)
    if place >= 0:
        letters = (at for at, letter in enumerate(lowered) if letter != "_")
        yield next(islice(letters, place, None)), FORM


def _places_of(word: str, term: Term, text: str, lowered: str) -> Iterable[tuple[int, float]]:
    size = len(word)
    place, count = lowered.find(word), 0
    while place >= 0 and count < MAX_OCCURRENCES:
        count += 1
        if not word.isascii():
            yield place, SAME
        elif place and text[place - 1].isalnum() and not (text[place].isupper() and text[place - 1].islower()):
            if text[place - 1].isalpha() == text[place].isalpha():
                yield place, INSIDE if size > 2 else 0.0
            else:
                yield place, BEGINS
        else:
            yield place, _fit(term, text, lowered, place, size)
        place = lowered.find(word, place + size)


def _fit(term: Term, text: str, lowered: str, place: int, size: int) -> float:
    end = place + size
    while end < len(lowered) and lowered[end].isalnum() and not (text[end].isupper() and text[end - 1].islower()):
        end += 1
    word = lowered[place:end]
    if word == term.typed:
        return SAME
    return FORM if stem(word) == term.text else BEGINS


def _places_alone(words: str, text: str) -> Iterator[int]:
    """Yield positions of these words that are not part of longer ones."""
    place = text.find(words) if words else -1
    while place >= 0:
        before, after = text[place - 1 : place], text[place + len(words) : place + len(words) + 1]
        if not (_is_of_name(before) and _is_of_name(words[0])) and not (_is_of_name(after) and _is_of_name(words[-1])):
            yield place
        place = text.find(words, place + len(words))


def _is_of_name(letter: str) -> bool:
    return letter.isalnum() or letter == "_"


def best_passage(found: Sequence[Occurrence], weights: Sequence[float], known: frozenset[int] = frozenset()) -> Passage:
    """Return the passage with the highest weight of words that are not in `known`."""
    if not found:
        return NO_PASSAGE
    passages: dict[int, dict[int, Occurrence]] = {}
    for one in found:
        if one.term not in known and one.fit:
            here = passages.setdefault(one.place // PASSAGE_CHARS, {})
            if one.term not in here or here[one.term].fit < one.fit:
                here[one.term] = one
    worth = {number: sum(weights[one.term] * one.fit for one in here.values()) for number, here in passages.items()}
    best = NO_PASSAGE
    for number, here in passages.items():
        if worth[number] + worth.get(number + 1, 0.0) <= best.weight:
            continue
        both = dict(here)
        for term, one in passages.get(number + 1, {}).items():
            if term not in both or both[term].fit < one.fit:
                both[term] = one
        weight = sum(weights[term] * one.fit for term, one in both.items())
        if weight > best.weight:
            places = [one.place for one in both.values()]
            best = Passage(weight, min(places), max(places), frozenset(both))
    return best


def excerpt(
    text: str, found: Sequence[Occurrence], weights: Sequence[float], redact: Redact, max_chars: int
) -> Excerpt:
    """Return an excerpt within `max_chars` characters: all of a short text, else the best passages."""
    if len(text) <= max_chars:
        return Excerpt(_tidy(_clean_lines(text, 0, len(text), redact), {}, max_chars), 0, True)
    best = best_passage(found, weights)
    start, end = _whole_lines(text, best.first, best.last, max_chars)
    pieces, known = [(start, end)], best.terms
    left = max_chars - (end - start)
    while left > MAX_LINE_CHARS // 2 and len(pieces) < 4:
        more = best_passage(found, weights, known)
        if not more.terms:
            break
        first, last = _line(text, more.first)
        known |= more.terms
        if not any(first < other_end and other_start < last for other_start, other_end in pieces):
            pieces.append((first, last))
            left -= min(last - first, MAX_LINE_CHARS)
    pieces.sort()
    where = {one.place: None for one in found if one.fit >= BEGINS} or {one.place: None for one in found}
    longest = _longest_line(text, pieces, max_chars)
    shown = []
    for first, last in pieces:
        marks = _marks(text, first, last, where, best.first)
        shown.append(_tidy(_clean_lines(text, first, last, redact), marks, longest))
    gap = f"\n{ELLIPSIS}\n"
    body = gap.join(filter(None, shown))
    before, after = ELLIPSIS + "\n" if pieces[0][0] else "", f"\n{ELLIPSIS}" if pieces[-1][1] < len(text) else ""
    return Excerpt(f"{before}{body}{after}", start, False)


def _longest_line(text: str, pieces: Sequence[tuple[int, int]], max_chars: int) -> int:
    """Return the characters shown of a long line: a share of what short lines leave."""
    sizes = [len(line) for first, last in pieces for line in text[first:last].split("\n")]
    long = sum(size > MAX_LINE_CHARS for size in sizes)
    left = max_chars - sum(size for size in sizes if size <= MAX_LINE_CHARS)
    return max(left // long, MAX_LINE_CHARS) if long else MAX_LINE_CHARS


def _marks(text: str, first: int, last: int, where: Mapping[int, None], best: int) -> dict[int, int]:
    """Return the column of the first word in each line by line number; in the best match's line, its column."""
    marks: dict[int, int] = {}
    for place in (*where, best):
        if first <= place < last:
            line = text.count("\n", first, place)
            column = place - (text.rfind("\n", 0, place) + 1)
            marks[line] = column if place == best else min(marks.get(line, column), column)
    return marks


def _line(text: str, place: int) -> tuple[int, int]:
    end = text.find("\n", place)
    return text.rfind("\n", 0, place) + 1, len(text) if end < 0 else end


def _whole_lines(text: str, first: int, last: int, max_chars: int) -> tuple[int, int]:
    """Return the span of the lines between two positions, extended to `max_chars`, more after than before."""
    start, end = _line(text, first)[0], _line(text, last)[1]
    size = _shown_size(text, start, end)
    while size < max_chars:
        after = _line(text, end + 1)[1] if end < len(text) else end
        grown = min(after - end, MAX_LINE_CHARS)
        can_follow = after > end and size + grown <= max_chars
        if can_follow:
            end, size = after, size + grown
        before = _line(text, start - 1)[0] if start else 0
        grown = min(start - before, MAX_LINE_CHARS)
        can_lead = before < start and size + grown <= max_chars and start > _line(text, first)[0] - max_chars // 4
        if can_lead:
            start, size = before, size + grown
        if not can_follow and not can_lead:
            break
    return start, end


def _shown_size(text: str, start: int, end: int) -> int:
    if end - start <= MAX_LINE_CHARS:
        return end - start
    return sum(min(len(line) + 1, MAX_LINE_CHARS) for line in text[start:end].split("\n"))


def _clean_lines(text: str, start: int, end: int, redact: Redact) -> list[str]:
    """Return lines of a text, redacted together with their surroundings."""
    low, high = max(start - REDACTION_MARGIN_CHARS, 0), end + REDACTION_MARGIN_CHARS
    while low > 0 and not text[low - 1].isspace() and start - low < 2 * REDACTION_MARGIN_CHARS:
        low -= 1
    region = text[low:high]
    clean = redact(region)
    if clean == region:
        return text[start:end].split("\n")
    lines, before = clean.split("\n"), region.count("\n", 0, start - low)
    if len(lines) == region.count("\n") + 1:
        return lines[before : before + text.count("\n", start, end) + 1]
    known = set(region.split("\n"))
    wanted = set(text[start:end].split("\n"))
    return [line for line in lines if line in wanted or line not in known]


def _tidy(lines: list[str], marks: Mapping[int, int], longest: int) -> str:
    shown = []
    for number, line in enumerate(lines):
        if line.strip() and not _FENCE.fullmatch(line):
            shown.append(_cut(line.rstrip(), marks.get(number, 0), longest))
    return "\n".join(shown)


def _cut(line: str, column: int, longest: int) -> str:
    """Cut a line around a column to the maximum length."""
    line = line.expandtabs(4)
    if len(line) <= longest:
        return line
    first = max(min(column - longest // 3, len(line) - longest), 0)
    last = first + longest
    return f"{ELLIPSIS if first else ''}{line[first:last].strip()}{ELLIPSIS if last < len(line) else ''}"
