"""Hits of a search with their excerpts.

1. Equal texts are one hit, at the newest position.
2. For a model the first hit gets most of the budget. Characters left over go to the messages right after and before it,
   first to the agent's own text, which says what it concluded from a result.
3. Handles are shortened, and those of the neighbours are included.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import msgspec

from midfold.compaction.archive import DIGITS, PREFIX
from midfold.recall.excerpts import Excerpt, Redact
from midfold.recall.ranking import RankedSearch, Scored, SearchSource
from midfold.recall.units import UnitPiece, original

MAX_FIRST_HIT_CHARS, MAX_HIT_CHARS = 3_000, 550
"""Maximum characters of the first hit and of others; at most half and a quarter of the whole budget."""
MAX_FIRST_HIT_CHARS_FOR_PEOPLE = 1_000
"""Characters of the first hit for people: the next hits are on the same screen."""
NEIGHBOURS_AFTER, NEIGHBOURS_BEFORE = 6, 3
"""Messages after and before the first hit that are shown if they fit."""
MAX_NEIGHBOUR_CHARS, MIN_NEIGHBOUR_CHARS = 500, 160
"""Maximum characters of each neighbour, and the remaining budget below which it is omitted."""


class HitPart(msgspec.Struct, frozen=True, kw_only=True):
    """Excerpt of one message of a hit, and its position there. `text` is redacted."""

    handle: str
    position: int
    what: str
    text: str
    character: int
    line: int
    length: int
    is_whole: bool


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """Tool call with its result, or user message with its answer. `handle` unfolds to the best matching message."""

    session: str
    position: int
    role: str
    at: int
    handle: str
    score: float
    text: str
    has_every_word: bool = True
    parts: tuple[HitPart, ...] = ()
    copies: int = 0
    """Number of earlier copies."""
    before: str = ""
    """Handle of the message before it."""
    after: str = ""
    beside: tuple[HitPart, ...] = ()
    """Excerpts of the messages right after and before it, if they fit."""


def hits_for_reader(
    past: SearchSource, ranked: RankedSearch, scored: Iterable[Scored], redact: Redact, limit: int
) -> list[Hit]:
    """Return hits of scored units for a person."""
    return _with_handles(
        past, ranked, _hits(ranked, scored, redact, limit, MAX_FIRST_HIT_CHARS_FOR_PEOPLE, MAX_HIT_CHARS)
    )


def hits_for_model(
    past: SearchSource, ranked: RankedSearch, scored: Iterable[Scored], redact: Redact, limit: int, whole: int
) -> list[Hit]:
    """Return hits of scored units within `whole` characters, the first one with its neighbours."""
    max_chars = min(MAX_FIRST_HIT_CHARS, whole // 2)
    made = _hits(ranked, scored, redact, limit, max_chars, min(MAX_HIT_CHARS, whole // 4))
    wanted: dict[str, set[int]] = {}
    for number, hit in enumerate(made):
        low, high = _span(hit)
        before, after = (1, 1) if number else (NEIGHBOURS_BEFORE, NEIGHBOURS_AFTER)
        wanted.setdefault(hit.session, set()).update(range(max(low - before, 0), high + after + 1))
    ranked.messages(wanted)
    return _with_handles(past, ranked, _with_neighbours(ranked, made, redact, max_chars))


class _Duplicates(NamedTuple):
    """Units with equal text: the newest of them, the best score, and the number of copies."""

    one: Scored
    score: float
    copies: int
    parts: list[ShownPiece]

    def merge(self, other: Scored, parts: list[ShownPiece]) -> _Duplicates:
        if other.main.found.position > self.one.main.found.position:
            return _Duplicates(other, self.score, self.copies + 1, parts)
        return self._replace(copies=self.copies + 1)


def _hits(
    ranked: RankedSearch, scored: Iterable[Scored], redact: Redact, limit: int, first_max_chars: int, max_chars: int
) -> list[Hit]:
    """Return hits without duplicates."""
    groups: dict[tuple[str, str], _Duplicates] = {}
    for one in scored:
        parts = _parts(ranked, one, redact, max_chars)
        key = (one.main.found.session, _comparison_text(parts))
        if key in groups:
            groups[key] = groups[key].merge(one, parts)
        elif len(groups) < limit:
            groups[key] = _Duplicates(one, one.score, 0, parts)
        else:
            break
    made = list(groups.values())
    if made:
        made[0] = made[0]._replace(parts=_parts(ranked, made[0].one, redact, first_max_chars))
    return [*map(_hit, made)]


def _with_neighbours(ranked: RankedSearch, hits: list[Hit], redact: Redact, max_chars: int) -> list[Hit]:
    """Add excerpts of the neighbouring messages to the first hit, as far as they fit."""
    if not hits:
        return []
    first, *others = hits
    low, high = _span(first)
    around = (*range(high + 1, high + 1 + NEIGHBOURS_AFTER), *range(low - 1, low - 1 - NEIGHBOURS_BEFORE, -1))
    more: list[HitPart] = []
    left = max_chars - len(first.text)
    for piece in sorted(ranked.neighbours(first.session, around), key=_is_not_agent_text):
        if left > MIN_NEIGHBOUR_CHARS:
            shown = ranked.excerpt(piece.text, redact, min(left, MAX_NEIGHBOUR_CHARS))
            left -= len(shown.text)
            where = "before" if piece.found.position < low else "then"
            more += [_part(piece, shown, f"{where} {piece.name}")] if shown.text else []
    more.sort(key=lambda part: (part.position < low, part.position))
    return [msgspec.structs.replace(first, beside=tuple(more)), *others]


def _is_not_agent_text(piece: UnitPiece) -> bool:
    return piece.found.role != "assistant" or piece.what.startswith("call")


ShownPiece = tuple[UnitPiece, Excerpt]


def _parts(ranked: RankedSearch, one: Scored, redact: Redact, max_chars: int) -> list[ShownPiece]:
    """Return an excerpt of each piece; the best matching piece gets most of the budget."""
    others = len(one.unit.pieces) - 1
    side = max(max_chars // 3 // max(others, 1), 120)
    used, shown = 0, {}
    for number, piece in enumerate(one.unit.pieces):
        if number != one.best:
            shown[number] = ranked.excerpt(piece.text, redact, side, one.found[number])
            used += len(shown[number].text)
    main = ranked.excerpt(one.main.text, redact, max(max_chars - used, max_chars // 2), one.found[one.best])
    shown[one.best] = main
    return [(piece, shown[number]) for number, piece in enumerate(one.unit.pieces) if shown[number].text]


def _comparison_text(parts: list[ShownPiece]) -> str:
    """Return the text by which two hits are compared: of the results, if long enough, else of all pieces."""
    results = [shown.text for piece, shown in parts if piece.what == "its result"]
    return "\n".join(results) if sum(map(len, results)) > 60 else "\n".join(shown.text for _, shown in parts)


def _hit(duplicates: _Duplicates) -> Hit:
    main = duplicates.one.main.found
    return Hit(
        session=main.session,
        position=main.position,
        role=main.role,
        at=main.at,
        handle=full_handle(main.digest),
        score=round(duplicates.score, 3),
        text="\n".join(shown.text for _, shown in duplicates.parts).replace("…\n…", "…"),
        has_every_word=duplicates.one.has_every_word,
        parts=tuple(_part(piece, shown, piece.name) for piece, shown in duplicates.parts),
        copies=duplicates.copies,
    )


def _part(piece: UnitPiece, shown: Excerpt, what: str) -> HitPart:
    whole, place = original(piece.found.message), piece.start + shown.start
    return HitPart(
        handle=full_handle(piece.found.digest),
        position=piece.found.position,
        what=what,
        text=shown.text,
        character=place,
        line=whole.count("\n", 0, place) + 1,
        length=len(whole),
        is_whole=shown.is_whole,
    )


def _span(hit: Hit) -> tuple[int, int]:
    """Return the positions of the first and last message."""
    places = [part.position for part in hit.parts] or [hit.position]
    return min(places), max(places)


def full_handle(digest: bytes) -> str:
    return PREFIX + digest.hex()[:DIGITS]


def _with_handles(past: SearchSource, ranked: RankedSearch, hits: list[Hit]) -> list[Hit]:
    """Shorten all handles, and add those of the messages before and after each hit."""
    wanted: dict[str, set[int]] = {}
    for hit in hits:
        low, high = _span(hit)
        places = {part.position for part in (*hit.parts, *hit.beside)}
        wanted.setdefault(hit.session, set()).update(places, {max(low - 1, 0), high + 1})
    found = ranked.messages(wanted)
    short = {(one.session, one.position): handle for one, handle in zip(found, past.shorten(found), strict=True)}

    def shorten(session: str, parts: Iterable[HitPart]) -> tuple[HitPart, ...]:
        return tuple(msgspec.structs.replace(one, handle=short[session, one.position]) for one in parts)

    made = []
    for hit in hits:
        low, high = _span(hit)
        made.append(
            msgspec.structs.replace(
                hit,
                handle=short[hit.session, hit.position],
                parts=shorten(hit.session, hit.parts),
                beside=shorten(hit.session, hit.beside),
                before=short.get((hit.session, low - 1), ""),
                after=short.get((hit.session, high + 1), ""),
            )
        )
    return made
