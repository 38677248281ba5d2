"""Rank the units of a conversation for a query.

1. A `SearchSource` returns the positions of each word and messages by position. A store and an archive in memory
   implement it; everything else is decided in this package, so that all searches find the same.
2. No word is required. Units are ranked by BM25, slightly by the proximity of the words, and by their neighbours; a
   unit with the query as typed comes first. Text "in quotes" is required. A query about the user prefers user messages;
   a query about the current state prefers newer messages.
3. Only the most promising messages are read, those with the rarest words in or next to them: the cost of a search grows
   with the number of positions of rare words, not with the conversation.
4. If nothing is found, filters are dropped one by one, and the answer says so.
5. Asides are included only if the query asks for them, or last if they have more of the words than anything else. A
   model's own searches and their results are never hits.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import nlargest
from math import log
from typing import NamedTuple, Protocol

import msgspec

from midfold.recall.excerpts import Excerpt, Matcher, Occurrence, Passage, Redact, best_passage, excerpt, lowercase
from midfold.recall.units import Candidate, Unit, UnitPiece, units
from midfold.recall.words import Term, near_words, parse_query, search_tokens, words_like
from midfold.transcript.message import ToolCall, ToolResult, Transcript

CONSIDERED = 12
"""Units ranked for a model; a larger limit does not change the order of these."""
MAX_TERMS = 40
MAX_POSITIONS = 1_500
"""Maximum positions of rare words that are weighed; of more frequent words only those at the same messages."""
MESSAGES_PER_BATCH, MAX_MESSAGES_READ = 24, 400
"""Messages read at once with their neighbours, and the maximum if too few of them are hits."""
MAX_CALLS_PER_MESSAGE = 8
"""Maximum calls of one message whose results are looked up."""
MAX_CORRECTED_WORDS, MAX_SIMILAR_WORDS, MIN_CORRECTED_CHARS = 5, 3, 4
"""Missing words that are corrected, candidates for each, and the minimum length."""
MAX_VOCABULARY_MESSAGES = 100_000
"""Maximum messages of a conversation whose vocabulary is searched if no query word occurs."""
MAX_MESSAGES_SCANNED = 3_000
"""Maximum messages read for a query without words."""
SATURATION, LENGTH_WEIGHT, USUAL_LENGTH = 2.0, 0.75, 1_500
NEAR, NAMED, LITERAL = 0.1, 1.0, 2.0
"""Weights beside BM25 of proximity, of an unbroken name, and of the whole query."""
NEIGHBOUR = 0.15
"""Share of the neighbours' scores that is added."""
NEWER, NEWEST, OF_USER = 0.1, 0.6, 0.75
"""Bonus of the newest over the oldest message, the same if requested, and of user messages if requested."""
QUOTES = 'these words "in quotes" as they stand'
MIN_SCORE_SHARE = 0.05
"""Minimum share of the best score for a hit."""
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
    """Searchable history."""

    def size(self) -> int:
        """Return the approximate number of messages."""

    def places(self, terms: Sequence[Term]) -> list[Mapping[str, Sequence[int]]]:
        """Return the positions of each term, by session."""

    def messages(self, wanted: Positions) -> list[Candidate]:
        """Return messages in order; missing ones are omitted."""

    def newest(self) -> tuple[str, int]:
        """Return its session and the position after its last message; "" if there are several sessions."""

    def words(self, beginning: str) -> Iterable[str]:
        """Return the words with this prefix; none if there are several sessions."""

    def unfold(self, handle: str) -> Transcript:
        """Return the originals of a handle."""

    def place_of(self, handle: str) -> tuple[str, int]:
        """Return session and position of the first message of a handle."""

    def shorten(self, found: Sequence[Candidate]) -> list[str]:
        """Return shortened handles of messages that stay unambiguous."""


class Filters(msgspec.Struct, frozen=True, kw_only=True):
    """Filters on the units to search."""

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
        """Yield ever fewer conditions, with the dropped ones: a path's folders first, positions last."""
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
    """Unit with its score, and the matches in each of its pieces."""

    score: float
    unit: Unit
    found: tuple[list[Occurrence], ...]
    best: int
    share: float
    """Share of the weight of all words that occurs close together."""
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
    """Return the best units first; if `relaxed` and nothing is found, drop conditions until something is."""
    ranked = RankedSearch(past, text, filters, wanted=wanted, seen=seen)
    if not ranked.query.terms and not ranked.query.phrases and not filters.are_narrow:
        return ranked, []
    found = ranked.best(limit)
    if found or not relaxed:
        return ranked, found
    quotes = (QUOTES,) if ranked.query.phrases else ()
    plain = text.replace('"', " ") if quotes else text
    kept = [(filters, "")] if quotes else []
    for looser, left in (*kept, *filters.relax()) if plain.split() else ():
        again = RankedSearch(past, plain, looser, wanted=wanted, seen=seen, left_out=(*quotes, *filter(None, [left])))
        again.share_reading(ranked)
        found = again.best(limit)
        if found:
            return again, found
    return ranked, []


class RankedSearch:
    """One query over one source."""

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
        """Conditions dropped because nothing was found with them."""
        query = parse_query(text)
        query = query._replace(terms=tuple(nlargest(MAX_TERMS, query.terms, key=_length)))
        self.query, self.filters, self._past = query, filters, past
        self._wanted, self._seen = wanted, seen
        self._matcher = Matcher(query)
        self._weights: list[float] = []
        self._read: dict[tuple[str, int], Candidate] = {}
        self._known: set[tuple[str, int, int]] = set()
        self.missing: tuple[str, ...] = ()
        """Query words that do not occur."""
        self.instead: dict[str, tuple[str, ...]] = {}
        """Words searched for instead of missing ones."""

    def best(self, limit: int) -> list[Scored]:
        """Return the best units first; messages still visible to the model only if there is nothing else.

        The limit does not change the order of the first ones: messages read for more units are ranked after them.
        """
        batches = self._batches()
        found = self._rank(batches, CONSIDERED, 0.0)
        if limit > CONSIDERED:
            found += self._rank(batches, limit - len(found), max((one.score for one in found), default=0.0))
        hidden = [one for one in found if not self._is_seen(one)]
        return hidden or found

    def _rank(self, batches: Iterator[Mapping[str, set[int]]], count: int, best: float) -> list[Scored]:
        """Rank units of the next batches until there are at least `count`."""
        scored: list[Scored] = []
        for batch in batches:
            scored += [one for unit in self._units(batch) if (one := self._score(unit)) is not None]
            if len(scored) >= count:
                break
        least = MIN_SCORE_SHARE * max([best, *(one.score for one in scored)])
        scored = _add_neighbour_scores([one for one in scored if one.score >= least])
        scored.sort(key=lambda one: (-one.score, -one.main.found.position))
        others = [one for one in scored if not one.unit.is_aside or self._asks_for_asides]
        most = max((one.share for one in others), default=0.0)
        asides = [one for one in scored if one.unit.is_aside and not self._asks_for_asides and one.share > most]
        return [*others, *asides]

    def share_reading(self, other: RankedSearch) -> None:
        """Share the messages already read with another search."""
        self._read = other._read

    def neighbours(self, session: str, positions: Iterable[int]) -> list[UnitPiece]:
        """Return pieces of messages no longer visible to the model, in the order of these positions."""
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

    def excerpt(self, text: str, redact: Redact, max_chars: int, found: Sequence[Occurrence] | None = None) -> Excerpt:
        """Return the excerpt of a text."""
        found = self._matcher.occurrences(text) if found is None else found
        return excerpt(text, found, self._weights, redact, max_chars)

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

    # Selection of messages to read

    def _batches(self) -> Iterator[dict[str, set[int]]]:
        guide = parse_query(f"{self.filters.path} {self.filters.tool}").terms if self.filters.are_narrow else ()
        terms = [*self.query.terms, *guide]
        if not terms:
            yield from self._newest_first()
            return
        where = self._term_positions(terms)
        counts = [sum(map(len, one.values())) for one in where]
        weights = [log(1 + (max(self._size - count, 0) + 0.5) / (count + 0.5)) for count in counts]
        self._weights = weights[: len(self.query.terms)]
        chosen = sorted(_message_weights(where, weights, counts, self.filters), reverse=True)[:MAX_MESSAGES_READ]
        for start in range(0, len(chosen), MESSAGES_PER_BATCH):
            batch: dict[str, set[int]] = {}
            for _, position, session in chosen[start : start + MESSAGES_PER_BATCH]:
                batch.setdefault(session, set()).add(position)
            yield batch

    def _term_positions(self, terms: Sequence[Term]) -> list[Mapping[str, Sequence[int]]]:
        """Return the positions of each word in any spelling; for a missing word, those of similar words."""
        where, query_terms = self._positions_of_spellings(terms), [*self.query.terms]
        self.missing = tuple(term.typed for term, found in zip(query_terms, where, strict=False) if not found)
        for number in [number for number in range(len(query_terms)) if not where[number]][:MAX_CORRECTED_WORDS]:
            near = self._similar_words(query_terms[number].typed, is_alone=not any(where))
            if near:
                where[number] = _union([*near.values()])
                query_terms[number] = query_terms[number]._replace(also=tuple(near))
        if self.instead:
            self.query = self.query._replace(terms=tuple(query_terms))
            self._matcher = Matcher(self.query)
        return where

    def _similar_words(self, typed: str, *, is_alone: bool) -> dict[str, Mapping[str, Sequence[int]]]:
        """Return positions of similar words; without any other word, search the whole vocabulary."""
        if len(typed) < MIN_CORRECTED_CHARS or not typed.isalpha():
            return {}
        words = near_words(typed, self._past.words(typed[:2]))[:MAX_SIMILAR_WORDS]
        if not words and is_alone and self._size <= MAX_VOCABULARY_MESSAGES:
            words = words_like(typed, self._every_word)[:MAX_SIMILAR_WORDS]
        found = self._past.places([Term(word, True, word) for word in words]) if words else []
        near = {word: places for word, places in zip(words, found, strict=True) if places}
        if near:
            self.instead[typed] = tuple(near)
        return near

    def _positions_of_spellings(self, terms: Sequence[Term]) -> list[Mapping[str, Sequence[int]]]:
        spellings = [(number, sorted(search_tokens(word))) for number, term in enumerate(terms) for word in term.also]
        tokens = [Term(token, typed=token) for _, words in spellings for token in words]
        where = self._past.places([*terms, *tokens])
        made, rest = where[: len(terms)], iter(where[len(terms) :])
        for number, words in spellings:
            made[number] = _union([made[number], _intersection([next(rest) for _ in words])])
        return made

    def _newest_first(self) -> Iterator[dict[str, set[int]]]:
        """Yield batches of all messages, newest first, for a query without words."""
        session, end = self._past.newest()
        if not session and not end:
            return
        end = end if self.filters.before is None else min(end, self.filters.before)
        low = max(end - MAX_MESSAGES_SCANNED, 0 if self.filters.after is None else self.filters.after + 1)
        while end > low:
            start = max(end - MESSAGES_PER_BATCH, low)
            yield {session: set(range(start, end))}
            end = start

    def _units(self, batch: Mapping[str, set[int]]) -> list[Unit]:
        """Return the units that contain these messages; usually only their neighbours must be read, too."""
        around = {session: {one + step for one in places for step in (-1, 0, 1)} for session, places in batch.items()}
        self.messages({session: places - {-1} for session, places in around.items()})
        reach = {session: set(places) for session, places in batch.items()}
        for one in self.messages(batch):
            reach[one.session].update(self._related_positions(one))
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
        """Return messages in order; each is read from the source once."""
        places = [(session, position) for session in sorted(wanted) for position in sorted(wanted[session])]
        missing: dict[str, set[int]] = {}
        for session, position in places:
            if (session, position) not in self._read:
                missing.setdefault(session, set()).add(position)
        for one in self._past.messages(missing) if missing else ():
            self._read[one.session, one.position] = one
        return [self._read[place] for place in places if place in self._read]

    def _related_positions(self, one: Candidate) -> Iterable[int]:
        """Return positions where the call, the results, the answer or the user message belonging to it may be."""
        calls = sum(isinstance(part, ToolCall) for part in one.message.parts)
        if calls:
            return range(one.position + 1, one.position + 1 + min(calls, MAX_CALLS_PER_MESSAGE))
        before = self._read.get((one.session, one.position - 1))
        if _is_result(one) and before is not None and _is_result(before):
            return range(max(one.position - MAX_CALLS_PER_MESSAGE, 0), one.position)
        is_ask = one.role == "user" and not _is_result(one)
        return (one.position + 1,) if is_ask else (max(one.position - 1, 0),)

    # Scoring

    def _score(self, unit: Unit) -> Scored | None:
        texts = [piece.text for piece in unit.pieces]
        if not self._matcher.has_phrases(texts):
            return None
        if not self.query.terms:
            return Scored(1.0, unit, tuple([] for _ in texts), len(texts) - 1, 1.0, True)
        lowered = [*map(lowercase, texts)]
        found = tuple(map(self._matcher.occurrences, texts, lowered))
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
        proximity = self._proximity(passages)
        score += NEAR * proximity + NAMED * self._name_score(lowered)
        if any(len(passage.terms) == len(self._weights) for passage in passages):
            score += LITERAL * whole * self._matcher.literal_share(texts, lowered)
        first = unit.pieces[0].found
        newer = NEWEST + NEWER if self._asks(ASKED_NEWEST) else NEWER
        score *= 1 + newer * first.position / self._size
        if first.role == "user" and self._asks(ASKED_USER):
            score *= 1 + OF_USER
        has_every_word = all(fits) and not self.instead and QUOTES not in self.left_out
        return Scored(score, unit, found, best, proximity / whole, has_every_word)

    def _is_asked(self, piece: UnitPiece) -> bool:
        return not self.filters.role or piece.found.role == self.filters.role

    def _proximity(self, passages: list[Passage]) -> float:
        """Return the combined weight of the best passages of all pieces, which count as close together."""
        known: set[int] = set()
        total = 0.0
        for passage in sorted(passages, reverse=True):
            fresh = sum(self._weights[term] for term in passage.terms - known)
            every = sum(self._weights[term] for term in passage.terms) or 1.0
            total += passage.weight * fresh / every
            known |= passage.terms
        return total

    def _name_score(self, lowered: list[str]) -> float:
        if not self.query.names:
            return 0.0
        heaviest = max(self._weights, default=0.0)
        return heaviest * sum(any(name in text for text in lowered) for name in self.query.names)


def _is_result(one: Candidate) -> bool:
    return any(isinstance(part, ToolResult) for part in one.message.parts)


def _add_neighbour_scores(scored: list[Scored]) -> list[Scored]:
    """Add a share of the neighbours' scores."""
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


def _message_weights(
    where: Sequence[Mapping[str, Sequence[int]]], weights: Sequence[float], counts: Sequence[int], filters: Filters
) -> Iterator[tuple[float, int, str]]:
    """Yield the weight of the words in and next to each message, with its position and session."""
    order = sorted((number for number in range(len(where)) if counts[number]), key=counts.__getitem__)
    is_open = filters.before is None and filters.after is None
    worth: dict[tuple[int, int], float] = {}

    def value(mask: int) -> float:
        return sum(weight for number, weight in enumerate(weights) if mask >> number & 1)

    for session in dict.fromkeys(name for number in order for name in where[number]):
        masks: dict[int, int] = {}
        for number in order:
            positions, bit = where[number].get(session, ()), 1 << number
            if masks and len(masks) + len(positions) > MAX_POSITIONS:
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
