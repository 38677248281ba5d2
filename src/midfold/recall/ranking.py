"""Which units of a conversation answer a query, and in which order.

Rules of this file:
1. Whoever keeps originals (`SearchSource`) says where each word is, and gives messages by their places. A store and an
   archive in memory do; everything else is decided here and in the modules beside, so every face finds the same.
2. No word is required. Units are ranked by BM25, a little by how near the words are to each other, and by what stands
   beside them; a unit with the query as it was typed comes before all others. What is "in quotes" is required. Who
   asks for what the user said finds users' words first; who asks for what is now, what is newer.
3. Only the most promising messages are read, those with the rarest words in them and beside them: the cost of a search
   grows with the places of rare words, not with the conversation.
4. Where nothing is found, what was asked for besides words is left out, one thing after the other, and that is told.
5. Asides come only if they are asked for; at the end if they have more of the words than anything else. A model's own
   searches and what they brought are never hits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import nlargest
from math import log
from typing import NamedTuple, Protocol

import msgspec

from midfold.recall.excerpts import Excerpt, Matcher, Occurrence, Passage, Redact, best_passage, excerpt, small_letters
from midfold.recall.units import Candidate, Unit, UnitPiece, units
from midfold.recall.words import Term, near_words, parse_query, search_tokens, words_like
from midfold.transcript.message import ToolCall, ToolResult, Transcript

CONSIDERED = 12
"""Units of which the best are told to a model; who wants more of them gets the same first."""
MOST_TERMS = 40
MOST_PLACES = 1_500
"""Places of rare words that are weighed; of commoner words only those at the same messages."""
READ_AT_ONCE, MOST_READ = 24, 400
"""Messages that are read with their neighbours, and how many at most where too few of them are hits."""
MOST_AT_ONCE = 8
"""Calls of one message whose results are looked for."""
MOST_MENDED, MOST_NEAR, SHORTEST_MENDED = 5, 3, 4
"""Words that are nowhere for which others are looked for; how many for each, and how long it must be."""
MOST_LOOKED_THROUGH = 100_000
"""Messages of a conversation whose words are all looked at where none of a query's is there."""
MOST_SCANNED = 3_000
"""Messages that are read where there is no word to go by."""
SATURATION, LENGTH_WEIGHT, USUAL_LENGTH = 2.0, 0.75, 1_500
NEAR, NAMED, LITERAL = 0.1, 1.0, 2.0
"""How much a passage with many of the words, a name in one piece, and the whole query count beside BM25."""
NEIGHBOUR = 0.15
"""How much of the score of what stands before and after counts."""
NEWER, NEWEST, OF_USER = 0.1, 0.6, 0.75
"""How much more the newest counts than the oldest, the same if it is asked for, and a user's words if asked for."""
QUOTES = 'these words "in quotes" as they stand'
WORTH = 0.05
"""Of the best score; less is no hit."""
_ASKED_ASIDES = (
    "todo todos plan task tasks checklist instruction instructions agents claude reminder guideline guidelines "
    "rule rules memory convention conventions environment "
)
ASKED_ASIDES = frozenset(_ASKED_ASIDES.split())
ASKED_USER = frozenset({"user", "users"})
_ASKED_NEWEST = "now current currently final finally last latest newest recent recently still remaining "
ASKED_NEWEST = frozenset(_ASKED_NEWEST.split())

Positions = Mapping[str, Collection[int]]
"""Positions of messages, by session."""


class SearchSource(Protocol):
    """A past that can be searched."""

    def size(self) -> int:
        """How many messages it has, about."""

    def places(self, terms: Sequence[Term]) -> list[Mapping[str, Sequence[int]]]:
        """Where each of these is."""

    def messages(self, wanted: Positions) -> list[Candidate]:
        """Messages in their order; those that are not there are left out."""

    def newest(self) -> tuple[str, int]:
        """The one session it is of, and the position after its last message; no name if there are several."""

    def words(self, beginning: str) -> Iterable[str]:
        """Words in it that begin so; none where it is of several sessions."""

    def unfold(self, handle: str) -> Transcript:
        """The originals behind a handle."""

    def place_of(self, handle: str) -> tuple[str, int]:
        """Where the message, or the first one, behind a handle stands."""

    def shorten(self, found: Sequence[Candidate]) -> list[str]:
        """Handles of messages, short ones that keep their meaning."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Which units are looked at."""

    tool: str = ""
    path: str = ""
    role: str = ""
    kind: str = ""
    before: int | None = None
    after: int | None = None

    def allows(self, unit: Unit) -> bool:
        return (
            (not self.tool or unit.has_tool(self.tool))
            and (not self.path or unit.has_path(self.path))
            and (not self.role or any(piece.found.role == self.role for piece in unit.pieces))
            and (not self.kind or unit.is_kind(self.kind))
        )

    def spans(self, position: int) -> bool:
        return (self.before is None or position < self.before) and (self.after is None or position > self.after)

    @property
    def are_narrow(self) -> bool:
        return bool(self.tool or self.path or self.role or self.kind)

    def relax(self) -> Iterator[tuple[Filters, str]]:
        """With less and less of them, and what was left out: of a path at first its folders, the positions last."""
        kept, left = self, ""
        *folders, name = self.path.replace("\\", "/").rstrip("/").split("/")
        if folders and name:
            kept = msgspec.structs.replace(kept, path=name)
            yield kept, f"path={self.path}; looked for path={name}"
        for field in ("kind", "role", "tool", "path", "before", "after"):
            if (value := getattr(self, field)) not in ("", None):
                kept = msgspec.structs.replace(kept, **{field: getattr(ANY, field)})
                left += f"{', ' if left else ''}{field}={value}"
                yield kept, left


ANY = Filters()


class Scored(NamedTuple):
    """A unit, how well it answers, and where the words stand in each of its pieces."""

    score: float
    unit: Unit
    found: tuple[list[Occurrence], ...]
    best: int
    share: float
    """Of the weight of all words, what stands together."""
    has_every_word: bool

    @property
    def main(self) -> UnitPiece:
        return self.unit.pieces[self.best]


def rank(
    past: SearchSource,
    text: str,
    filters: Filters,
    limit: int,
    *,
    wanted: Callable[[Unit], bool],
    seen: Collection[bytes] = (),
    relaxed: bool = True,
) -> tuple[RankedSearch, list[Scored]]:
    """The best first, of what was asked for; if `relaxed`, else of the most of it with which anything is found."""
    asked = RankedSearch(past, text, filters, wanted=wanted, seen=seen)
    if not asked.query.terms and not asked.query.phrases and not filters.are_narrow:
        return asked, []
    found = asked.best(limit)
    if found or not relaxed:
        return asked, found
    quotes = (QUOTES,) if asked.query.phrases else ()
    plain = text.replace('"', " ") if quotes else text
    kept = [(filters, "")] if quotes else []
    for looser, left in (*kept, *filters.relax()) if plain.split() else ():
        again = RankedSearch(past, plain, looser, wanted=wanted, seen=seen, left_out=(*quotes, *filter(None, [left])))
        again.share_reading(asked)
        found = again.best(limit)
        if found:
            return again, found
    return asked, []


class RankedSearch:
    """One query over one past."""

    def __init__(
        self,
        past: SearchSource,
        text: str,
        filters: Filters = ANY,
        *,
        wanted: Callable[[Unit], bool] = lambda unit: True,
        seen: Collection[bytes] = (),
        left_out: tuple[str, ...] = (),
    ) -> None:
        self.left_out = left_out
        """What was asked for, and is not, because nothing was found with it."""
        query = parse_query(text)
        query = query._replace(terms=tuple(nlargest(MOST_TERMS, query.terms, key=_length)))
        self.query, self.filters, self._past = query, filters, past
        self._wanted, self._seen = wanted, seen
        self._matcher = Matcher(query)
        self._weights: list[float] = []
        self._read: dict[tuple[str, int], Candidate] = {}
        self._known: set[tuple[str, int, int]] = set()
        self.missing: tuple[str, ...] = ()
        """Words that are nowhere."""
        self.instead: dict[str, tuple[str, ...]] = {}
        """Words that were looked for instead of some of them."""

    def best(self, limit: int) -> list[Scored]:
        """The best first; what the model still sees only if there is nothing else.

        How many are wanted changes nothing about the first of them: what is read for more of them comes behind.
        """
        batches = self._batches()
        found = self._rank(batches, CONSIDERED, 0.0)
        if limit > CONSIDERED:
            found += self._rank(batches, limit - len(found), max((one.score for one in found), default=0.0))
        hidden = [one for one in found if not self._is_seen(one)]
        return hidden or found

    def _rank(self, batches: Iterator[Mapping[str, set[int]]], count: int, best: float) -> list[Scored]:
        """What the next messages bring, so many units or a few more."""
        scored: list[Scored] = []
        for batch in batches:
            scored += [one for unit in self._units(batch) if (one := self._score(unit)) is not None]
            if len(scored) >= count:
                break
        least = WORTH * max([best, *(one.score for one in scored)])
        scored = _beside([one for one in scored if one.score >= least])
        scored.sort(key=lambda one: (-one.score, -one.main.found.position))
        others = [one for one in scored if not one.unit.is_aside or self._asks_for_asides]
        most = max((one.share for one in others), default=0.0)
        asides = [one for one in scored if one.unit.is_aside and not self._asks_for_asides and one.share > most]
        return [*others, *asides]

    def share_reading(self, other: RankedSearch) -> None:
        """What either has read, the other need not read."""
        self._read = other._read

    def neighbours(self, session: str, positions: Iterable[int]) -> list[UnitPiece]:
        """Pieces of messages that the model no longer sees, in the order of these positions."""
        wanted = [position for position in positions if position >= 0 and self.filters.spans(position)]
        found = {one.position: one for one in self.messages({session: wanted})}
        return [
            piece
            for position in wanted
            if position in found and found[position].digest not in self._seen
            for unit in units([found[position]])
            if not unit.is_aside and self._wanted(unit)
            for piece in unit.pieces
        ]

    def excerpt(self, text: str, redact: Redact, room: int, found: Sequence[Occurrence] | None = None) -> Excerpt:
        """What is shown of a text."""
        found = self._matcher.occurrences(text) if found is None else found
        return excerpt(text, found, self._weights, redact, room)

    @property
    def _asks_for_asides(self) -> bool:
        return self._asks(ASKED_ASIDES)

    def _asks(self, words: frozenset[str]) -> bool:
        return not words.isdisjoint(self.query.literal.split())

    def _is_seen(self, one: Scored) -> bool:
        return one.main.found.digest in self._seen

    @cached_property
    def _every_word(self) -> list[str]:
        return sorted(self._past.words(""), key=_short_first)

    @cached_property
    def _size(self) -> int:
        return max(self._past.size(), 1)

    # Which messages are read

    def _batches(self) -> Iterator[dict[str, set[int]]]:
        guide = parse_query(f"{self.filters.path} {self.filters.tool}").terms if self.filters.are_narrow else ()
        terms = [*self.query.terms, *guide]
        if not terms:
            yield from self._backwards()
            return
        where = self._places(terms)
        counts = [sum(map(len, one.values())) for one in where]
        weights = [log(1 + (max(self._size - count, 0) + 0.5) / (count + 0.5)) for count in counts]
        self._weights = weights[: len(self.query.terms)]
        chosen = sorted(_promising(where, weights, counts, self.filters), reverse=True)[:MOST_READ]
        for start in range(0, len(chosen), READ_AT_ONCE):
            batch: dict[str, set[int]] = {}
            for _, position, session in chosen[start : start + READ_AT_ONCE]:
                batch.setdefault(session, set()).add(position)
            yield batch

    def _places(self, terms: Sequence[Term]) -> list[Mapping[str, Sequence[int]]]:
        """Where each word is, in any of its spellings; instead of one that is nowhere, those that are nearly it."""
        where, asked = self._in_any_spelling(terms), [*self.query.terms]
        self.missing = tuple(term.typed for term, found in zip(asked, where, strict=False) if not found)
        for number in [number for number in range(len(asked)) if not where[number]][:MOST_MENDED]:
            near = self._near(asked[number].typed, is_alone=not any(where))
            if near:
                where[number] = _union([*near.values()])
                asked[number] = asked[number]._replace(also=tuple(near))
        if self.instead:
            self.query = self.query._replace(terms=tuple(asked))
            self._matcher = Matcher(self.query)
        return where

    def _near(self, typed: str, *, is_alone: bool) -> dict[str, Mapping[str, Sequence[int]]]:
        """Where words are that may have been meant; if there is no other word to go by, every one is looked at."""
        if len(typed) < SHORTEST_MENDED or not typed.isalpha():
            return {}
        words = near_words(typed, self._past.words(typed[:2]))[:MOST_NEAR]
        if not words and is_alone and self._size <= MOST_LOOKED_THROUGH:
            words = words_like(typed, self._every_word)[:MOST_NEAR]
        found = self._past.places([Term(word, True, word) for word in words]) if words else []
        near = {word: places for word, places in zip(words, found, strict=True) if places}
        if near:
            self.instead[typed] = tuple(near)
        return near

    def _in_any_spelling(self, terms: Sequence[Term]) -> list[Mapping[str, Sequence[int]]]:
        spellings = [(number, sorted(search_tokens(word))) for number, term in enumerate(terms) for word in term.also]
        tokens = [Term(token, typed=token) for _, words in spellings for token in words]
        where = self._past.places([*terms, *tokens])
        made, rest = where[: len(terms)], iter(where[len(terms) :])
        for number, words in spellings:
            made[number] = _union([made[number], _intersection([next(rest) for _ in words])])
        return made

    def _backwards(self) -> Iterator[dict[str, set[int]]]:
        """Without words, everything is looked at, the newest first."""
        session, end = self._past.newest()
        if not session and not end:
            return
        end = end if self.filters.before is None else min(end, self.filters.before)
        low = max(end - MOST_SCANNED, 0 if self.filters.after is None else self.filters.after + 1)
        while end > low:
            start = max(end - READ_AT_ONCE, low)
            yield {session: set(range(start, end))}
            end = start

    def _units(self, batch: Mapping[str, set[int]]) -> list[Unit]:
        """The units that these messages are in; nearly always their neighbours are all that is needed beside them."""
        around = {session: {one + step for one in places for step in (-1, 0, 1)} for session, places in batch.items()}
        self.messages({session: places - {-1} for session, places in around.items()})
        reach = {session: set(places) for session, places in batch.items()}
        for one in self.messages(batch):
            reach[one.session].update(self._belonging(one))
        made = units(self.messages(reach))
        chosen = [
            unit
            for unit in made
            if any(piece.found.position in batch[piece.found.session] for piece in unit.pieces)
            and any(self.filters.spans(piece.found.position) for piece in unit.pieces)
            and self.filters.allows(unit)
            and self._wanted(unit)
            and unit.place not in self._known
        ]
        self._known.update(unit.place for unit in chosen)
        return chosen

    def messages(self, wanted: Positions) -> list[Candidate]:
        """Messages in their order; each is read once."""
        places = [(session, position) for session in sorted(wanted) for position in sorted(wanted[session])]
        missing: dict[str, set[int]] = {}
        for session, position in places:
            if (session, position) not in self._read:
                missing.setdefault(session, set()).add(position)
        for one in self._past.messages(missing) if missing else ():
            self._read[one.session, one.position] = one
        return [self._read[place] for place in places if place in self._read]

    def _belonging(self, one: Candidate) -> Iterable[int]:
        """Where the call of a result, the results of calls, an answer or what was asked may be."""
        calls = sum(isinstance(part, ToolCall) for part in one.message.parts)
        if calls:
            return range(one.position + 1, one.position + 1 + min(calls, MOST_AT_ONCE))
        before = self._read.get((one.session, one.position - 1))
        if _is_result(one) and before is not None and _is_result(before):
            return range(max(one.position - MOST_AT_ONCE, 0), one.position)
        is_ask = one.role == "user" and not _is_result(one)
        return (one.position + 1,) if is_ask else (max(one.position - 1, 0),)

    # How well a unit answers

    def _score(self, unit: Unit) -> Scored | None:
        texts = [piece.text for piece in unit.pieces]
        if not self._matcher.has_phrases(texts):
            return None
        if not self.query.terms:
            return Scored(1.0, unit, tuple([] for _ in texts), len(texts) - 1, 1.0, True)
        small = [*map(small_letters, texts)]
        found = tuple(map(self._matcher.occurrences, texts, small))
        fits, counts = [0.0] * len(self._weights), [0] * len(self._weights)
        for one in (one for each in found for one in each):
            fits[one.term] = max(fits[one.term], one.fit)
            counts[one.term] += 1
        whole = sum(self._weights) or 1.0
        if not any(fits):
            return None
        norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * min(sum(map(len, texts)) / USUAL_LENGTH, 10))
        score = sum(
            weight * fit * count * (SATURATION + 1) / (count + norm)
            for weight, fit, count in zip(self._weights, fits, counts, strict=True)
        )
        passages = [best_passage(each, self._weights) for each in found]
        best = max(range(len(texts)), key=lambda number: (self._is_asked(unit.pieces[number]), passages[number].weight))
        together = self._together(passages)
        score += NEAR * together + NAMED * self._names(small)
        if any(len(passage.terms) == len(self._weights) for passage in passages):
            score += LITERAL * whole * self._matcher.literal_share(texts, small)
        first = unit.pieces[0].found
        newer = NEWEST + NEWER if self._asks(ASKED_NEWEST) else NEWER
        score *= 1 + newer * first.position / self._size
        if first.role == "user" and self._asks(ASKED_USER):
            score *= 1 + OF_USER
        has_every_word = all(fits) and not self.instead and QUOTES not in self.left_out
        return Scored(score, unit, found, best, together / whole, has_every_word)

    def _is_asked(self, piece: UnitPiece) -> bool:
        return not self.filters.role or piece.found.role == self.filters.role

    def _together(self, passages: list[Passage]) -> float:
        """The best passages of all pieces: a call and its result stand together."""
        known: set[int] = set()
        total = 0.0
        for passage in sorted(passages, reverse=True):
            fresh = sum(self._weights[term] for term in passage.terms - known)
            every = sum(self._weights[term] for term in passage.terms) or 1.0
            total += passage.weight * fresh / every
            known |= passage.terms
        return total

    def _names(self, small: list[str]) -> float:
        if not self.query.names:
            return 0.0
        heaviest = max(self._weights, default=0.0)
        return heaviest * sum(any(name in text for text in small) for name in self.query.names)


def _is_result(one: Candidate) -> bool:
    return any(isinstance(part, ToolResult) for part in one.message.parts)


def _beside(scored: list[Scored]) -> list[Scored]:
    """With some of what the messages before and after them are worth."""
    worth: dict[tuple[str, int], float] = {}
    for one in scored:
        for piece in one.unit.pieces:
            place = (piece.found.session, piece.found.position)
            worth[place] = max(worth.get(place, 0.0), one.score)
    made = []
    for one in scored:
        session, places = one.main.found.session, [piece.found.position for piece in one.unit.pieces]
        beside = worth.get((session, min(places) - 1), 0.0) + worth.get((session, max(places) + 1), 0.0)
        made.append(one._replace(score=one.score + NEIGHBOUR * beside))
    return made


def _union(found: Sequence[Mapping[str, Sequence[int]]]) -> Mapping[str, Sequence[int]]:
    names = {name for one in found for name in one}
    return {name: sorted({place for one in found for place in one.get(name, ())}) for name in names}


def _intersection(found: Sequence[Mapping[str, Sequence[int]]]) -> Mapping[str, Sequence[int]]:
    first, *others = found
    both = {name: set(places).intersection(*(one.get(name, ()) for one in others)) for name, places in first.items()}
    return {name: sorted(places) for name, places in both.items() if places}


def _short_first(word: str) -> tuple[int, str]:
    return len(word), word


def _length(term: Term) -> int:
    return len(term.typed)


def _promising(
    where: Sequence[Mapping[str, Sequence[int]]], weights: Sequence[float], counts: Sequence[int], filters: Filters
) -> Iterator[tuple[float, int, str]]:
    """How much the words in and beside each message weigh."""
    order = sorted((number for number in range(len(where)) if counts[number]), key=counts.__getitem__)
    is_open = filters.before is None and filters.after is None
    worth: dict[tuple[int, int], float] = {}

    def value(mask: int) -> float:
        return sum(weight for number, weight in enumerate(weights) if mask >> number & 1)

    for session in dict.fromkeys(name for number in order for name in where[number]):
        masks: dict[int, int] = {}
        for number in order:
            positions, bit = where[number].get(session, ()), 1 << number
            if masks and len(masks) + len(positions) > MOST_PLACES:
                there = set(positions)
                masks = {place: mask | bit if place in there else mask for place, mask in masks.items()}
            else:
                for place in positions:
                    masks[place] = masks.get(place, 0) | bit
        get = masks.get
        for place, mask in masks.items():
            if is_open or filters.spans(place):
                both = mask, mask | get(place - 1, 0) | get(place + 1, 0) | get(place - 2, 0) | get(place + 2, 0)
                if both not in worth:
                    worth[both] = 0.4 * value(mask) + 0.6 * value(both[1])
                yield worth[both], place, session
