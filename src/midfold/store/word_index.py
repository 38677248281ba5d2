"""Search index: the positions of each session's words, in compressed blocks, with the same rows in both databases.

1. A segment covers a run of a session's positions. Its words are sorted and split into blocks keyed by their first
   word. A lookup reads one block per segment, whatever the size of the store.
2. An append writes one segment. Eight small segments at the end are merged into one, so each word is rewritten only a
   few times and the cost of an append stays proportional to its size.
3. Each session has its own index, which is copied to branches and deleted with the session.
4. Older programs on the same database do not write segments. Messages without one are read at search time, and indexed
   by the next append or start.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from typing import Any, NamedTuple

from midfold.errors import StoreDamaged
from midfold.recall.words import VERSION, Term, index_text
from midfold.store.bodies import NewMessage, blob, inflate
from midfold.store.database import Database, Tx

MERGE_SEGMENTS = 8
"""Number of segments to merge into one."""
MERGE_LEVELS = ((0, 8), (0, 64), (0, 512), (512, 4_096))
"""Merge levels in messages, as (least, most).

Segments smaller than `most` are merged once MERGE_SEGMENTS of them have at least `least` messages.
"""
BLOCK_CHARACTERS = 4_000
"""Characters per block before compression."""
MAX_UNINDEXED_MESSAGES = 500
"""Maximum number of unindexed messages read at once."""
BROKEN = "the search index cannot be read; midfold store reindex rebuilds it"
LAST_CHARACTER = "\U0010ffff"
Postings = dict[str, list[int]]
"""Positions by word."""


class WordSegment(NamedTuple):
    """Range of indexed positions, and the tokenizer version used."""

    start: int
    stop: int
    version: int

    @property
    def messages(self) -> int:
        return self.stop - self.start


def add(tx: Tx, session: int, first: int, entries: Sequence[NewMessage]) -> None:
    """Index appended messages, and up to MAX_UNINDEXED_MESSAGES preceding ones that an older program left unindexed."""
    known = segments(tx, session)
    covered = known[-1].stop if known else 0
    if first - covered > MAX_UNINDEXED_MESSAGES:
        return
    postings = _read(tx, session, covered, first)
    _collect(postings, enumerate((entry.tokens for entry in entries), first))
    known.append(_write(tx, session, covered, first + len(entries), postings, VERSION))
    _merge(tx, session, known)


def segments(tx: Tx, session: int) -> list[WordSegment]:
    return [WordSegment(*map(_number, row)) for row in tx.all("word_segments", session=session)]


def _number(value: Any) -> int:
    """Return a row's value as an int; raise StoreDamaged if it has another type."""
    if not isinstance(value, int):
        raise StoreDamaged(BROKEN)
    return value


def _merge(tx: Tx, session: int, known: list[WordSegment]) -> None:
    for least, most in MERGE_LEVELS:
        run = counted = 0
        while run < len(known) and known[-1 - run].messages < most and known[-1 - run].version == VERSION:
            run += 1
            counted += known[-run].messages >= least
        if counted >= MERGE_SEGMENTS:
            postings: Postings = {}
            for one in known[-run:]:
                _extend(postings, _unpack_all(tx, session, one))
                _drop(tx, session, one)
            known[-run:] = [_write(tx, session, known[-run].start, known[-1].stop, postings, VERSION)]


def copy(tx: Tx, source: int, target: int, stop: int) -> None:
    """Copy the index of a session's first `stop` messages to another session."""
    for one in segments(tx, source):
        if one.stop <= stop:
            tx.run("copy_word_segment", source=source, target=target, start=one.start)
            tx.run("copy_word_blocks", source=source, target=target, start=one.start)
        elif one.start < stop:
            postings = {
                word: kept
                for word, places in _unpack_all(tx, source, one).items()
                if (kept := [place for place in places if place < stop])
            }
            _write(tx, target, one.start, stop, postings, one.version)


def renew(tx: Tx, session: int, count: int) -> int:
    """Index the next batch of messages that are unindexed or have another version; return their number."""
    known = segments(tx, session)
    old = next((one for one in known if one.version != VERSION), None)
    covered = known[-1].stop if known else 0
    if old is None and covered >= count:
        return 0
    one = old or WordSegment(covered, min(covered + MAX_UNINDEXED_MESSAGES, count), VERSION)
    postings = _read(tx, session, one.start, one.stop)
    if old is not None:
        _drop(tx, session, old)
    known.append(_write(tx, session, one.start, one.stop, postings, VERSION))
    if old is None:
        _merge(tx, session, known)
    return one.messages


def find(database: Database, terms: Sequence[Term], session: int | None, count: int) -> list[dict[int, list[int]]]:
    """Return the positions of each term by session, in one session of `count` messages or in all."""
    places: list[dict[int, set[int]]] = [{} for _ in terms]
    covered = 0
    for number, owner, start, stop, data in _blocks_with(database, session, terms):
        covered = max(covered, _number(stop))
        places[number].setdefault(owner, set()).update(*_places(_unpack(data), terms[number], _number(start)))
    if session is not None and covered < count:
        late = database.read(lambda tx: _read(tx, session, max(covered, count - MAX_UNINDEXED_MESSAGES), count))
        for term, found in zip(terms, places, strict=True):
            more = (late[word] for word in late if term.is_in({word}))
            found.setdefault(session, set()).update(place for each in more for place in each)
    return [{owner: sorted(each) for owner, each in found.items() if each} for found in places]


def _blocks_with(database: Database, session: int | None, terms: Iterable[Term]) -> list[tuple[Any, ...]]:
    """Return the blocks that may contain each term, in one statement."""
    wanted = json.dumps([(term.text, term.text + LAST_CHARACTER if term.prefix else term.text) for term in terms])
    if session is None:
        return database.rows("all_word_blocks", words=wanted)
    return database.rows("word_blocks", session=session, words=wanted)


def words(database: Database, session: int, beginning: str) -> set[str]:
    """Return all words of a session that start with `beginning`."""
    blocks = _blocks_with(database, session, [Term(beginning, prefix=True)])
    lines = (line for *_, data in blocks for line in _unpack(data).split("\n")[1:])
    return {word for line in lines if (word := line.partition(" ")[0]).startswith(beginning)}


def _places(block: str, term: Term, start: int) -> Iterator[list[int]]:
    wanted = f"\n{term.text}" if term.prefix else f"\n{term.text} "
    place = block.find(wanted)
    while place >= 0 and block.startswith(wanted, place):
        end = block.find("\n", place + 1)
        line = block[place : end if end >= 0 else len(block)]
        yield _positions(line[line.index(" ") :], start)
        place = end


def _positions(deltas: str, start: int) -> list[int]:
    try:
        return [*islice(accumulate(map(int, deltas.split()), initial=start), 1, None)]
    except ValueError:
        raise StoreDamaged(BROKEN) from None


def _read(tx: Tx, session: int, start: int, stop: int) -> Postings:
    """Return the words of unindexed messages."""
    postings: Postings = {}
    if start < stop:
        rows = tx.all("messages", session=session, start=start, stop=stop, most=stop - start)
        _collect(postings, ((row[0], index_text(inflate(*row[-3:]))) for row in rows))
    return postings


def _collect(postings: Postings, texts: Iterable[tuple[int, str]]) -> None:
    for place, tokens in texts:
        for word in set(tokens.split()):
            postings.setdefault(word, []).append(place)


def _extend(postings: Postings, more: Postings) -> None:
    for word, places in more.items():
        if word in postings:
            postings[word] += places
        else:
            postings[word] = places


def _write(tx: Tx, session: int, start: int, stop: int, postings: Postings, version: int) -> WordSegment:
    tx.run("add_word_segment", session=session, start=start, stop=stop, version=version)
    rows = [{"session": session, "start": start, "word": word, "data": data} for word, data in _blocks(postings, start)]
    tx.many("add_word_block", rows)
    return WordSegment(start, stop, version)


def _blocks(postings: Postings, start: int) -> Iterator[tuple[str, bytes]]:
    """Yield each block with its key. The first key is empty, so that it also matches words before the first one."""
    key, size = "", 0
    lines: list[str] = []
    for word in sorted(postings):
        if size > BLOCK_CHARACTERS:
            yield key, _pack(lines)
            key, lines, size = word, [], 0
        places = postings[word]
        line = f"\n{word} {places[0] - start}" + "".join(f" {after - before}" for before, after in pairwise(places))
        lines.append(line)
        size += len(line)
    yield key, _pack(lines)


def _pack(lines: list[str]) -> bytes:
    return zlib.compress("".join(lines).encode())


def _unpack(data: Any) -> str:
    try:
        return zlib.decompress(blob(data)).decode()
    except (zlib.error, UnicodeDecodeError):
        raise StoreDamaged(BROKEN) from None


def _unpack_all(tx: Tx, session: int, one: WordSegment) -> Postings:
    postings: Postings = {}
    for (data,) in tx.all("blocks_of_segment", session=session, start=one.start):
        for line in _unpack(data).split("\n")[1:]:
            word, _, deltas = line.partition(" ")
            postings[word] = _positions(deltas, one.start)
    return postings


def _drop(tx: Tx, session: int, one: WordSegment) -> None:
    tx.run("delete_word_blocks_of", session=session, start=one.start)
    tx.run("delete_word_segment", session=session, start=one.start)
