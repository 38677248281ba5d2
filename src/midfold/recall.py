"""Searching and unfolding what was folded: the one search, its tools for models, and the words of their answers.

Rules of this file:
1. Whoever keeps originals gives candidates (`Find`) and messages by handle; an archive in memory (`Memory`) and a store
   do. Everything else is decided here: which candidates are hits, their order, what is shown of them, what is said.
2. A hit has every word of the query. One that holds the query as it was typed comes before one that holds it in other
   letters or inside of words, and that before one that only has its words; then the denser one, then the newer one.
3. Where no message has every word, the nearest ones are hits: those with the passage that has most of the rare words.
4. What is shown of a hit is redacted before it is cut: half a credential is not recognised as one. What is unfolded is
   the original, exactly: it was in the conversation before.
5. A model is not told what it still sees, unless there is nothing else; nor its own searches and what they brought,
   which would soon be most of what is found. Every answer is bounded, and says how to go on.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from heapq import nlargest
from itertools import pairwise
from math import log
from typing import Any, NamedTuple, Protocol

import msgspec

from midfold.errors import MidfoldError, NotStored
from midfold.fold.archive import DIGITS, PREFIX, handle_of
from midfold.fold.digest.digest import is_digest
from midfold.fold.handoff import recognise
from midfold.fold.names import arguments_text
from midfold.fold.words import Query, fold, parse_query, search_tokens, searchable
from midfold.transcript.message import Message, Opaque, Text, Thinking, ToolCall, ToolResult, Transcript
from midfold.transcript.tools import ToolSpec, arguments

FEWEST_CANDIDATES, MOST_CANDIDATES = 200, 5_000
MOST_HITS, CONSIDERED = 6, 24
"""Hits a model is told of, and those they are chosen from."""
MOST_CHARACTERS = 4_000
"""Of the hits a model is told of."""
PAGE = 20_000
"""Characters of originals in one answer."""

AS_TYPED, EXACT, EXACT_WORD = 20_000.0, 10_000.0, 100.0
PASSAGE, NEIGHBOURS = 350, 3
"""Characters of a passage, and how many passages together are weighed and shown where no message has every word."""
MOST_ASKED, MOST_TERMS, MOST_WEIGHED, FEWEST_WORDS = 300, 30, 60, 3
"""Of the nearest: words of the query that are looked for, the longest, and that count, the rarest; messages whose
passages are weighed; words a window has at least."""
SATURATION, LENGTH_WEIGHT, NEWER = 1.2, 0.75, 0.5
"""BM25; and how much more the newest message counts than the oldest."""

REDACTED_AROUND = 4_000
"""Characters redacted on each side of a place: a secret that begins outside of what is shown is still one."""
SCANNED = 200_000
"""Characters of a text in which the best line is looked for."""
MOST_LINES, LONGEST_LINE = 3, 240
ROOM = 160
"""Characters that lines with the query may leave to their neighbours."""
ELLIPSIS = "…"

FOUND = "Found in earlier messages:"
NEAREST = "No earlier message has all of these words. The nearest:"
NOTHING = "nothing found: try fewer or other words, or a part of a name"
NOTHING_FOLDED = "Nothing of this conversation has been folded away yet: all of it is above."
ORIGINAL = "Original of"
_SAID = (FOUND, NEAREST, NOTHING, NOTHING_FOLDED, ORIGINAL)

SEARCH = ToolSpec(
    "context_search",
    "Search this conversation from its beginning, also what has been folded into a summary. Messages with all of the "
    "words come first; parts of names count. Each hit has a handle for context_unfold.",
    arguments({"query": {"type": "string", "description": "Words to look for."}}, "query"),
)
UNFOLD = ToolSpec(
    "context_unfold",
    "Show the original messages behind a handle (mf-...), as they were before they were folded, digested or spilled.",
    arguments(
        {
            "handle": {"type": "string", "description": "The handle, as a summary, a digest or a search hit names it."},
            "start": {"type": "integer", "description": "Character to start at (default 0)."},
        },
        "handle",
    ),
)
TOOLS = (SEARCH, UNFOLD)
NAMES = frozenset(tool.name for tool in TOOLS)


class Candidate(NamedTuple):
    """A message that may be a hit, and where it is from."""

    session: str
    position: int
    role: str
    at: int
    digest: bytes
    message: Message


class FindCandidates(Protocol):
    """Gives the candidates for a query, the newest first: messages with every word of it, or with any."""

    def __call__(self, text: str, *, every: bool, most: int) -> Sequence[Candidate]: ...


class Hit(msgspec.Struct, frozen=True, kw_only=True):
    """One message that was found. `handle` unfolds to it, `text` is a redacted excerpt."""

    session: str
    position: int
    role: str
    at: int
    handle: str
    score: float
    text: str
    has_every_word: bool = True


class ToolAnswer(NamedTuple):
    """What a tool says."""

    text: str
    is_error: bool = False


Redact = Callable[[str], str]
Wanted = Callable[[Candidate], bool]


def search(find: FindCandidates, text: str, redact: Redact, limit: int, wanted: Wanted | None = None) -> list[Hit]:
    """The best hits first; with `wanted`, only such messages. One that a session has twice is one hit, the newest."""
    return _matching(find, text, redact, limit, wanted) or _nearest(find, text, redact, limit, wanted)


class Recall:
    """The tools of one conversation: `tools` are offered to its model, `run` answers a call."""

    tools = TOOLS

    def __init__(
        self,
        find: FindCandidates,
        unfold: Callable[[str], Transcript],
        redact: Redact,
        *,
        wanted: Wanted = lambda found: True,
        seen: Collection[str] = (),
        page: int = PAGE,
    ) -> None:
        """`wanted` messages are all there are for these tools; `seen` are handles of those the model still sees."""
        self._find, self._unfold, self._redact = find, unfold, redact
        self._wanted, self._seen, self._page = wanted, seen, page

    def run(self, name: str, given: Any) -> ToolAnswer:
        """Runs a call; an error is an answer, too."""
        given = given if isinstance(given, Mapping) else {}
        try:
            if name == SEARCH.name:
                return self._search(str(given.get("query") or "").strip())
            if name == UNFOLD.name:
                return self._page_of(str(given.get("handle") or "").strip("[]()`'\" \n"), _number(given.get("start")))
        except NotStored as error:
            return ToolAnswer(str(error).partition(": ")[2] or str(error), is_error=True)
        except MidfoldError as error:
            return ToolAnswer(f"the archive cannot be read now ({type(error).__name__})", is_error=True)
        return ToolAnswer(f"unknown tool {name[:80]!r}; there are {SEARCH.name} and {UNFOLD.name}", is_error=True)

    def hits(self, query: str) -> list[Hit]:
        """What a search brings, before it is put into words."""

        def is_folded(found: Candidate) -> bool:
            return _handle(found.digest) not in self._seen and is_wanted(found)

        def is_wanted(found: Candidate) -> bool:
            return self._wanted(found) and not _is_own(found.message)

        asked = (self._find, query, self._redact, CONSIDERED)
        return _matching(*asked, is_folded) or _matching(*asked, is_wanted) or _nearest(*asked, is_folded)

    def describe_hits(self, hits: Iterable[Hit]) -> Iterator[str]:
        """Each hit with the lines that no hit before it had; one that adds nothing is left out."""
        known: set[str] = set()
        room, left = MOST_CHARACTERS, MOST_HITS
        for hit in hits:
            new = {line: None for line in hit.text.splitlines() if line.strip() not in known}
            new.pop(ELLIPSIS, None)
            if room <= 0 or not left:
                return
            if any(line.strip() for line in new):
                known.update(line.strip() for line in new)
                lines = "\n".join(new)[:room]
                room, left = room - len(lines), left - 1
                yield f"{hit.handle} (message {hit.position}, {hit.role}):\n{lines}"

    def _search(self, query: str) -> ToolAnswer:
        if not query:
            return ToolAnswer("the query is empty", is_error=True)
        hits = self.hits(query)
        if not hits:
            return ToolAnswer(NOTHING)
        return ToolAnswer("\n".join([FOUND if hits[0].has_every_word else NEAREST, *self.describe_hits(hits)]))

    def _page_of(self, handle: str, start: int) -> ToolAnswer:
        """The originals as text, from a character on; with a last line that says how to go on."""
        full = handle if handle.startswith(PREFIX) else PREFIX + handle
        text = "\n\n".join([f"{ORIGINAL} {full}:", *map(original, self._unfold(full))])
        if start and start >= len(text):
            return ToolAnswer(f"{full} has {len(text)} characters", is_error=True)
        page = text[start : start + self._page]
        end = start + len(page)
        more = "" if end >= len(text) else f"\n[characters {start} to {end} of {len(text)}; go on with start={end}]"
        return ToolAnswer(page + more)


class Memory:
    """Originals in memory, by handle: an archive, or a whole past. What midfold wrote itself is not searched."""

    def __init__(self, archive: Mapping[str, Transcript]) -> None:
        self._archive = archive

    @cached_property
    def _candidates(self) -> list[Candidate]:
        """The newest first; a message stands where it was last."""
        last: dict[bytes, Message] = {}
        for message in (one for messages in self._archive.values() for one in messages):
            if recognise(message) is None and not _is_stand_in(message):
                last.pop(message.digest, None)
                last[message.digest] = message
        numbered = [Candidate("", place, one.role, 0, digest, one) for place, (digest, one) in enumerate(last.items())]
        return numbered[::-1]

    @cached_property
    def _tokens(self) -> list[set[str]]:
        return [search_tokens(readable(one.message)) for one in self._candidates]

    def find(self, text: str, *, every: bool, most: int) -> list[Candidate]:
        query = parse_query(text, every=every)
        if not query.terms:
            return []
        pairs = zip(self._candidates, self._tokens, strict=True)
        return [one for one, tokens in pairs if query.matches(tokens)][:most]

    def unfold(self, handle: str) -> Transcript:
        """The originals behind a handle, or the beginning of one."""
        exact = self._archive.get(handle)
        if exact is not None:
            return exact
        found = [messages for name, messages in self._archive.items() if name.startswith(handle)]
        found = found or [(one.message,) for one in self._candidates if handle_of(one.message).startswith(handle)]
        if not found or len(handle) < len(PREFIX) + 4:
            raise NotStored(f"there is no handle {handle[:80]}")
        if len(found) > 1:
            raise NotStored(f"several handles begin with {handle[:80]}")
        return found[0]

    def recall(self, redact: Redact) -> Recall:
        """The tools over these originals."""
        return Recall(self.find, self.unfold, redact)


# Texts of messages


def original(message: Message) -> str:
    """A message as it was: who spoke, what was said, called and answered."""
    calls = [f"{part.name} {part.arguments}" for part in message.parts if isinstance(part, ToolCall)]
    return "\n".join(filter(None, [f"[{message.role}]", message.text, *calls]))


def readable(message: Message) -> str:
    """Everything in a message that hits are ranked by and shown of, calls with a line for each argument."""
    texts = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            texts.append(f"{part.name}\n{arguments_text(part.arguments)}")
        elif isinstance(part, Text | ToolResult | Thinking):
            texts.append(part.text)
        elif isinstance(part, Opaque):
            texts.append(searchable(part.body.encode("utf-8", "surrogatepass")))
    return "\n".join(texts)


def _is_stand_in(message: Message) -> bool:
    """Whether a message is only the digests of others, which are in the archive themselves."""
    results = [part for part in message.parts if isinstance(part, ToolResult)]
    return bool(results) and len(results) == len(message.parts) and all(is_digest(part.text) for part in results)


def _is_own(message: Message) -> bool:
    """Whether a message is nothing but a search or an unfolding, or what came of one."""
    results = [part.text for part in message.parts if isinstance(part, ToolResult)]
    if results and all(text.removeprefix('{"result":"').startswith(_SAID) for text in results):
        return True
    calls = [part.name for part in message.parts if isinstance(part, ToolCall)]
    return bool(calls) and not message.text and NAMES.issuperset(calls)


def _number(value: Any) -> int:
    if isinstance(value, str) and value.strip().isdecimal():
        return int(value)
    return max(value, 0) if type(value) is int else 0


# Messages that have every word


class Scored(NamedTuple):
    """A candidate that is a hit, what is read of it, and between which characters of that the excerpt is taken."""

    score: float
    found: Candidate
    text: str
    window: tuple[int, int] | None = None


def _matching(find: FindCandidates, text: str, redact: Redact, limit: int, wanted: Wanted | None) -> list[Hit]:
    """More candidates are asked for while too few of them are left."""
    matcher = Matcher(parse_query(text))
    most = FEWEST_CANDIDATES
    while True:
        found = find(text, every=True, most=most)
        scored = [item for one in _newest(found, wanted) if (item := _score(one, matcher)) is not None]
        if len(scored) >= limit or len(found) < most or most >= MOST_CANDIDATES:
            scored.sort(key=lambda item: -item.score)
            return [_hit(item, matcher, redact) for item in scored[:limit]]
        most *= 5


def _newest(found: Iterable[Candidate], wanted: Wanted | None) -> list[Candidate]:
    """The wanted ones; of those of a session with the same bytes the first, which is the newest."""
    kept: dict[tuple[str, bytes], Candidate] = {}
    for one in found:
        if wanted is None or wanted(one):
            kept.setdefault((one.session, one.digest), one)
    return list(kept.values())


def _score(found: Candidate, matcher: Matcher) -> Scored | None:
    query = matcher.query
    text = readable(found.message)
    plain = text.lower()
    spaced = fold(text) if query.phrases or " " in query.literal else plain
    if any(phrase not in spaced for phrase in query.phrases):
        return None
    exact = plain.find(query.literal) if query.literal else -1
    whole = plain.count(query.literal) if exact >= 0 else 0
    counts = [whole or plain.count(term.text) for term in query.terms]
    score = sum(min(count, 20) for count in counts) / (1 + len(plain) / 2_000) ** 0.5
    if exact >= 0 or query.literal in spaced:
        score += EXACT
    if exact >= 0 and matcher.as_typed(text) >= 0:
        score += AS_TYPED - EXACT
    score += EXACT_WORD * sum(word in plain for word in set(query.literal.split()))
    return Scored(score, found, text)


def _hit(item: Scored, matcher: Matcher, redact: Redact) -> Hit:
    found = item.found
    return Hit(
        session=found.session,
        position=found.position,
        role=found.role,
        at=found.at,
        handle=_handle(found.digest),
        score=round(item.score, 3),
        text=excerpt(item.text, matcher, redact, item.window),
        has_every_word=item.window is None,
    )


def _handle(digest: bytes) -> str:
    return PREFIX + digest.hex()[:DIGITS]


# Messages that have some of the words


class _Text(NamedTuple):
    found: Candidate
    text: str
    plain: str


class _Window(NamedTuple):
    """Neighbouring passages of a text: between which characters, and in how many of them each word is."""

    place: int
    start: int
    end: int
    counts: dict[str, int]


def _nearest(find: FindCandidates, text: str, redact: Redact, limit: int, wanted: Wanted | None) -> list[Hit]:
    """The windows with most of the rare words; a message may have several. None if something had to occur literally."""
    query = parse_query(text)
    words = list(dict.fromkeys(term.text for term in query.terms))
    if query.phrases or len(words) < 2:
        return []
    asked = " ".join(sorted(words, key=len)[-MOST_ASKED:])
    texts = _with_what_follows(_newest(find(asked, every=False, most=MOST_CANDIDATES), wanted)[::-1])
    rarity = _rarest(words, texts)
    weights = [sum(weight for word, weight in rarity.items() if word in one.plain) for one in texts]
    best = nlargest(MOST_WEIGHED, range(len(texts)), key=lambda place: (weights[place], place))
    fewest = max(2, min((len(words) + 1) // 2, FEWEST_WORDS))
    windows = [one for place in best for one in _windows(place, texts[place].text, rarity) if len(one.counts) >= fewest]
    mean = sum(one.end - one.start for one in windows) / max(len(windows), 1)
    newer = NEWER / max(len(texts), 1)
    scores = {
        number: _bm25(one.counts, rarity, (one.end - one.start) / mean) * (1 + newer * one.place)
        for number, one in enumerate(windows)
    }
    matcher = Matcher(query)
    taken: list[_Window] = []
    hits: list[Hit] = []
    for number in sorted(scores, key=lambda number: (scores[number], windows[number].place), reverse=True):
        place, start, end, _ = one = windows[number]
        if len(hits) < limit and not any(
            other.place == place and other.start < end and start < other.end for other in taken
        ):
            taken.append(one)
            item = Scored(scores[number], texts[place].found, texts[place].text, (start, end))
            hits.append(_hit(item, matcher, redact))
    return hits


def _with_what_follows(ordered: list[Candidate]) -> list[_Text]:
    """Texts of messages, each with the beginning of the one that comes next: a call with its result."""
    texts = [readable(one.message) for one in ordered]
    made = []
    for place, (one, text) in enumerate(zip(ordered, texts, strict=True)):
        after = ordered[place + 1] if place + 1 < len(ordered) else None
        if after is not None and (after.session, after.position) == (one.session, one.position + 1):
            text = f"{text}\n[{after.role}] {texts[place + 1][: PASSAGE * (NEIGHBOURS - 1)]}"  # noqa: PLW2901
        made.append(_Text(one, text, text.lower()))
    return made


def _rarest(words: list[str], texts: list[_Text]) -> dict[str, float]:
    """The rarest words that occur at all, and how much each counts."""
    having = {word: sum(word in one.plain for one in texts) for word in words}
    weights = {word: log(1 + (len(texts) - count + 0.5) / (count + 0.5)) for word, count in having.items() if count}
    return {word: weights[word] for word in nlargest(MOST_TERMS, weights, key=lambda word: weights[word])}


def _windows(place: int, text: str, rarity: Mapping[str, float]) -> Iterator[_Window]:
    ends = [0, *_passage_ends(text)]
    having = [rarity.keys() & search_tokens(text[start:end]) for start, end in pairwise(ends)]
    for first in range(max(len(having) - NEIGHBOURS + 1, 1)):
        passages = having[first : first + NEIGHBOURS]
        counts = {word: sum(word in one for one in passages) for word in set().union(*passages)}
        yield _Window(place, ends[first], ends[first + len(passages)], counts)


def _passage_ends(text: str) -> Iterator[int]:
    """Where passages of about `PASSAGE` characters end: at line ends, where there are any."""
    start = 0
    while len(text) - start > PASSAGE:
        start = text.rfind("\n", start + PASSAGE // 2, start + PASSAGE) + 1 or start + PASSAGE
        yield start
    yield len(text)


def _bm25(counts: Mapping[str, int], rarity: Mapping[str, float], length: float) -> float:
    norm = SATURATION * (1 - LENGTH_WEIGHT + LENGTH_WEIGHT * length)
    return sum(rarity[word] * count * (SATURATION + 1) / (count + norm) for word, count in counts.items())


# What is shown of a hit


class QueryFit(NamedTuple):
    """How well a text answers a query; the greater, the better."""

    as_typed: bool
    """Whether it has the query letter by letter, as words of its own."""
    literal: bool
    words: int
    """How many of its words are there with the same letters."""
    terms: int


NO_FIT = QueryFit(False, False, 0, 0)


class Matcher:
    """A query, ready to be compared with many texts."""

    def __init__(self, query: Query) -> None:
        self.query = query
        before = r"(?<!\w)" if re.match(r"\w", query.typed) else ""
        after = r"(?!\w)" if re.match(r"\w", query.typed[-1:]) else ""
        self._words = set(query.typed.split())
        self._any = re.compile("|".join(re.escape(text) for text in {term.text for term in query.terms}) or r"(?!)")
        self._typed = re.compile(before + re.escape(query.typed) + after) if query.typed else None

    def as_typed(self, text: str) -> int:
        """Where the query stands in a text as it was typed; -1 if it does not."""
        if self._typed is None or self.query.typed not in text:
            return -1
        found = self._typed.search(text)
        return found.start() if found else -1

    def fit(self, line: str) -> QueryFit:
        plain = line.lower()
        if self._any.search(plain) is None:
            return NO_FIT
        literal = bool(self.query.literal) and self.query.literal in plain
        words = sum(word in line for word in self._words)
        return QueryFit(self.as_typed(line) >= 0, literal, words, sum(term.text in plain for term in self.query.terms))

    def place(self, text: str) -> int:
        """Where the query stands in a text, or the first of its words."""
        typed, plain = self.as_typed(text), text.lower()
        if typed >= 0:
            return typed
        found = [plain.find(word) for word in (self.query.literal, *(term.text for term in self.query.terms)) if word]
        return next((place for place in found if place >= 0), 0)

    def best(self, text: str) -> int:
        """Where it is best to look at a long text: at the query, or at the line with most of its words."""
        place = self.place(text)
        if self.query.literal and text[place : place + len(self.query.literal)].lower() == self.query.literal:
            return place
        lines = text[:SCANNED].split("\n")
        fits = list(map(self.fit, lines))
        number = fits.index(max(fits))
        return sum(map(len, lines[:number])) + number


def excerpt(text: str, matcher: Matcher, redact: Redact, window: tuple[int, int] | None = None) -> str:
    """The lines that answer a query best, whole unless they are too long; or all of a window that holds no secret.

    Lines with the query as it was typed come first, then those with most of its words; they keep their order. Where
    something is left out stands an ellipsis.
    """
    place, until = window or (matcher.best(text),) * 2
    start, end = max(place - REDACTED_AROUND, 0), until + REDACTED_AROUND
    while start > 0 and not text[start - 1].isspace() and place - start < 2 * REDACTED_AROUND:
        start -= 1
    clean = redact(text[start:end])
    if window and clean == text[start:end]:
        return "\n".join([ELLIPSIS] * (place > 0) + [text[place:until].strip("\n")] + [ELLIPSIS] * (until < len(text)))
    lines = [line.expandtabs(4).rstrip() for line in clean.splitlines()] or [""]
    shown = _with_neighbours(_choose_lines(lines, matcher, text.count("\n", start, place)), lines)
    pieces = [ELLIPSIS] if start or shown[0] else []
    for number, after in pairwise([*shown, len(lines)]):
        pieces.append(_cut(lines[number], matcher))
        if after > number + 1 or (after == len(lines) and end < len(text)):
            pieces.append(ELLIPSIS)
    return "\n".join(pieces)


def _choose_lines(lines: list[str], matcher: Matcher, place: int) -> list[int]:
    """Numbers of the lines to show; the line of the place where redacting took away what was looked for."""
    fits = [matcher.fit(line) for line in lines]
    best = max(fits)
    if not any(best):
        return [min(place, len(lines) - 1)]
    words = {term.text for term in matcher.query.terms}
    shown: list[int] = []
    for number in sorted(range(len(lines)), key=fits.__getitem__, reverse=True):
        there = {word for word in words if word in lines[number].lower()}
        if fits[number] == best or there:
            shown.append(number)
            words -= there
        if len(shown) == MOST_LINES:
            break
    return shown


def _with_neighbours(shown: list[int], lines: list[str]) -> list[int]:
    """The lines beside short ones come along: they often say what it is about."""
    room = ROOM - sum(len(lines[number]) for number in shown)
    for number in [beside for one in shown for beside in (one + 1, one - 1)]:
        length = len(lines[number].strip()) if 0 <= number < len(lines) else 0
        if number not in shown and 0 < length <= room:
            shown = [*shown, number]
            room -= length
    return sorted(shown)


def _cut(line: str, matcher: Matcher) -> str:
    """A line, or as much of it around what was looked for as may be shown."""
    if len(line) <= LONGEST_LINE:
        return line
    first = max(min(matcher.place(line) - LONGEST_LINE // 3, len(line) - LONGEST_LINE), 0)
    last = first + LONGEST_LINE
    return f"{ELLIPSIS if first else ''}{line[first:last].strip()}{ELLIPSIS if last < len(line) else ''}"
