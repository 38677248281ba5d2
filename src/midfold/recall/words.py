"""Tokenize messages and queries for search; the tokens are the same for every database."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any, NamedTuple

from midfold.compaction.redact import redact, redact_value
from midfold.transcript import jsonio

# Rules of the index:
# 1. Databases never tokenize. They get these tokens, so that SQLite and PostgreSQL find the same.
# 2. The index has no word frequencies: they are counted in the text itself when hits are ranked.
# 3. A compound identifier (`parse_url`, `parseUrl`) yields its parts and the whole; paths and dotted names are split
#    into their segments. A query uses the parts, so every spelling of a name finds every other.
# 4. Scripts without spaces yield pairs of adjacent characters, and the last character alone; a query of a single
#    character uses the pairs that begin with it.
# 5. Text is redacted before it is indexed, whatever the store keeps of originals: no index contains a credential.
# 6. Any change of these rules, including redaction, needs a new VERSION, and stores rebuild their index. Stemming
#    applies to queries only.


VERSION = 3
MIN_STEM_CHARS, MIN_PREFIX_CHARS = 4, 5
_ENDINGS = (
    *("izations", "ization", "ations", "ation", "ators", "ator", "ating", "ated", "ates", "ate", "ings", "ing", "ions"),
    *("ion", "ments", "ment", "ers", "ors", "or", "er", "ies", "ied", "ed", "es", "ly", "able", "s", "y", "e"),
)
_STOP_WORDS = (
    "a about after all also an and any are as at be because been before being between but by can could did do "
    "does doing done during each for from had has have having how if in into is it its itself just may me "
    "might more most my no nor not of off on once only or other our out over own same she he should so some "
    "such than that the their them then there these they this those through to too under until up us very was "
    "we were what when where whether which while who whom whose why will with would you your yet "
)
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Stop words."""
_VERBS = (
    "begin began begun,break broke broken,bring brought,build built,buy bought,catch caught,choose chose chosen",
    "drive drove driven,fall fell,find found,freeze froze frozen,hide hid hidden,hold held,keep kept,leave left",
    "lose lost,make made,rewrite rewrote rewritten,run ran,send sent,spend spent,steal stole,take took taken",
    "think thought,throw threw thrown,write wrote written",
)
_OTHER_FORMS = {
    form: tuple(other for other in forms.split() if other != form)
    for line in _VERBS
    for forms in line.split(",")
    for form in forms.split()
}
LONG_WORD_CHARS, MAX_NUMBER_DIGITS = 9, 15
MAX_COMPARED_WORDS = 5_000
"""Maximum words compared by edit distance with a missing one."""
MAX_TOKEN_CHARS = 255
"""Maximum characters of a token; longer ones are cut, in texts and queries alike. From 256 on they are blobs."""
MAX_CACHED_RUNS = 1 << 17

_RUN = re.compile(r"\w+")
_BLOB = re.compile(r"[A-Za-z0-9+/=]{256,}+")
"""Base64 of images and files, which would be most of an index."""
_UNSPACED = re.compile(
    "[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff"
    "\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+"
)
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+|[A-Z]")
_WORD_CLASS = bytes(code if code > 127 or chr(code).isalnum() or code == ord("_") else 32 for code in range(256))
_BLOB_CLASS = bytes(120 if code < 128 and (chr(code).isalnum() or chr(code) in "+/=") else 32 for code in range(256))
_LONG_BLOB = b"x" * 256
_AROUND = "*`'\"()[]{}<>,;:!?."
_WITH_SEPARATORS = re.compile(r"\d{1,3}(?:[,_']\d{3})+")
_SEPARATORS = re.compile(r"[,_']")
_PHRASE = re.compile(r'"([^"]*)"')
_IDS = ("id", "call_id", "tool_call_id", "tool_use_id", "signature", "encrypted_content")
_FORMS = ("type", "role", "media_type", "cache_control", "status", "detail", "object", "annotations", "logprobs")
SKIPPED_FIELDS = frozenset((*_IDS, *_FORMS, "data", "url", "image_url"))
"""Fields without searchable text."""


class Term(NamedTuple):
    """One search term."""

    text: str
    """Token or token prefix; a name with short parts (`module_7`) is also a whole token."""
    prefix: bool = False
    typed: str = ""
    """Word as typed, in lower case."""
    also: tuple[str, ...] = ()
    """Equivalent spellings."""

    def is_in(self, tokens: set[str]) -> bool:
        """Return whether a text with these tokens matches, for texts that are not indexed yet."""
        return any(token.startswith(self.text) for token in tokens) if self.prefix else self.text in tokens


class Query(NamedTuple):
    """Parsed query."""

    terms: tuple[Term, ...]
    phrases: tuple[str, ...]
    """Quoted texts that a hit must contain literally, ignoring case."""
    names: tuple[str, ...]
    """Words of several terms as typed: paths, compound identifiers, numbers with points."""
    literal: str
    """Normalized query as one text; hits that contain it come first."""
    typed: str = ""
    """Query as one text with its original case."""


def searchable(data: bytes) -> str:
    """Return all searchable text of a message, without credentials, images, ids and signatures.

    It depends only on the bytes, not on the dialect: bodies are shared, and indexed text must be reproducible to be
    removed from the index.
    """
    try:
        return "\n".join(_texts(redact_value(jsonio.decode(data))))
    except jsonio.NotJSON:
        return redact(data.decode("utf-8", "replace"))


def _texts(value: Any) -> list[str]:
    found: list[str] = []
    todo = [value]
    while todo:
        item = todo.pop()
        kind = type(item)
        if kind is str:
            found.append(item)
        elif kind is list:
            todo += reversed(item)
        elif kind is dict:
            todo += [
                item[key] if key != "arguments" else _inside(item[key])
                for key in reversed(item)
                if key not in SKIPPED_FIELDS
            ]
    return found


def _inside(value: Any) -> Any:
    """Decode JSON arguments; an escaped line break would be joined with the next word."""
    if not isinstance(value, str) or "\\" not in value:
        return value
    try:
        return jsonio.decode(value)
    except jsonio.NotJSON:
        return value


def index_text(data: bytes) -> str:
    """Return the index tokens of a message."""
    return search_text(searchable(data))


def search_text(text: str) -> str:
    """Return the tokens of a text separated by spaces, possibly with duplicates.

    Most text is ASCII, and translating bytes to classes is faster than a regular expression. Non-ASCII text is first
    joined with its neighbours and split when its tokens are made, which is cached for most runs.
    """
    data = text.encode("utf-8", "replace")
    if _LONG_BLOB in data.translate(_BLOB_CLASS):
        data = _BLOB.sub(" ", text).encode("utf-8", "replace")
    return " ".join(map(_memory.__getitem__, set(data.translate(_WORD_CLASS).decode().split())))


def search_tokens(text: str) -> set[str]:
    """Return all tokens of a text."""
    return set(search_text(text).split())


def parse_query(text: str) -> Query:
    """Parse words, `prefixes*` and "exact phrases". Stop words count only if there are no other words."""
    phrases = tuple(normalize_text(phrase) for phrase in _PHRASE.findall(text) if phrase.strip())
    plain = text.replace('"', " ")
    terms: dict[str, Term] = {}
    names: dict[str, None] = {}
    for word in plain.split():
        number = _WITH_SEPARATORS.fullmatch(word.strip(_AROUND))
        runs = list(_RUN.findall(_nfkc(_SEPARATORS.sub("", word) if number else word)))
        made = [
            term
            for place, run in enumerate(runs)
            for term in _terms(run, word.endswith("*") and place == len(runs) - 1)
        ]
        for term in made:
            terms.setdefault(term.text, term)
        if len(made) > 1:
            names[normalize_text(word.strip(_AROUND))] = None
    telling = {key: term for key, term in terms.items() if term.typed not in STOP_WORDS}
    typed = " ".join(plain.replace("*", " ").split())
    return Query(tuple((telling or terms).values()), phrases, tuple(names), normalize_text(typed), typed)


@lru_cache(maxsize=1 << 14)
def stem(word: str) -> str:
    """Return the common prefix of a word's forms: iterate, iterator and iterating yield iter."""
    if len(word) < MIN_STEM_CHARS or not (word.isascii() and word.isalpha()):
        return word
    for ending in _ENDINGS:
        rest = word[: -len(ending)]
        if len(rest) >= MIN_STEM_CHARS and word.endswith(ending) and not (ending == "s" and rest.endswith("s")):
            is_doubled = ending in ("ing", "ed", "er") and rest[-1] == rest[-2] and rest[-1] not in "sle"
            return rest[:-1] if is_doubled else rest
    return word


def normalize_text(text: str) -> str:
    """Normalize a text for comparison: NFKC, lower case, single spaces."""
    return " ".join(_nfkc(text).lower().split())


def _nfkc(text: str) -> str:
    return text if text.isascii() else unicodedata.normalize("NFKC", text)


class _Memory(dict[str, str]):
    """Cache of the tokens of every run; cleared when full."""

    def __missing__(self, run: str) -> str:
        if len(self) >= MAX_CACHED_RUNS:
            self.clear()
        words = (run,) if run.isascii() else _RUN.findall(_nfkc(run))
        self[run] = found = " ".join(token for word in words for token in _tokens(word))
        return found


_memory = _Memory()


def _tokens(run: str) -> tuple[str, ...]:
    """Return the tokens of one run of letters, digits and underscores."""
    if run.isascii():
        return _identifier(run)
    found: list[str] = []
    place = 0
    for match in _UNSPACED.finditer(run):
        found += _identifier(run[place : match.start()])
        found += _pairs(match.group())
        place = match.end()
    return (*found, *_identifier(run[place:]))


def _pairs(text: str) -> list[str]:
    return [text[index : index + 2] for index in range(len(text))]


def _identifier(run: str) -> tuple[str, ...]:
    whole = run.lower()
    if run == whole and "_" not in run:
        return (whole[:MAX_TOKEN_CHARS],) if whole else ()
    joined = whole.replace("_", "")
    return tuple(part for part in (*_parts(run), joined[:MAX_TOKEN_CHARS]) if part)


def _parts(run: str) -> list[str]:
    """Return the words of a compound identifier, without single letters."""
    found = _PARTS.findall(run) if run.isascii() else run.split("_")
    parts = [part.lower()[:MAX_TOKEN_CHARS] for part in found if part]
    return [part for part in parts if len(part) > 1] if len(parts) > 1 else parts


def _terms(run: str, open_end: bool) -> list[Term]:
    found: list[Term] = []
    place = 0
    for match in [*_UNSPACED.finditer(run), None]:
        name = run[place : match.start() if match else len(run)]
        parts = _parts(name) or list(_identifier(name)[:1])
        found += [_term(part) for part in parts]
        if parts and "_" in name and len(parts) < len(name.strip("_").split("_")):
            found.append(Term(_identifier(name)[-1], typed=name.lower()))
        if match:
            pairs = _pairs(match.group())
            found += [Term(pair, typed=pair) for pair in pairs[:-1]] or [Term(pairs[0], prefix=True, typed=pairs[0])]
            place = match.end()
    if open_end and found:
        found[-1] = Term(found[-1].typed, prefix=True, typed=found[-1].typed)
    return found


def _term(word: str) -> Term:
    """Stem words; search ids by prefix."""
    root = stem(word)
    is_open = root != word or (len(word) >= MIN_STEM_CHARS and not (word.isdecimal() and len(word) == MIN_STEM_CHARS))
    return Term(root, is_open, word, _with_separators(word) if word.isdecimal() else ())


def _with_separators(number: str) -> tuple[str, ...]:
    """Return a number's spellings with thousands separators."""
    if not MIN_STEM_CHARS <= len(number) <= MAX_NUMBER_DIGITS:
        return ()
    return tuple(f"{int(number):,}".replace(",", separator) for separator in ",_")


def near_words(word: str, words: Iterable[str]) -> list[str]:
    """Return other forms of an irregular verb, and words within a small edit distance, nearest first."""
    most = 2 if len(word) >= LONG_WORD_CHARS else 1
    compared = islice((other for other in words if abs(len(other) - len(word)) <= most), MAX_COMPARED_WORDS)
    found = [(distance, other) for other in compared if (distance := _distance(word, other, most)) <= most]
    forms = (form for base in (word, word.removesuffix("s"), stem(word)) for form in _OTHER_FORMS.get(base, ()))
    return [*dict.fromkeys((*forms, *(other for _, other in sorted(found))))]


def words_like(word: str, words: Sequence[str]) -> list[str]:
    """Return words that contain this one, else similar ones, else those with the longest common prefix."""
    inside = [one for one in words if word in one]
    if inside:
        return inside
    near = near_words(word, (one for one in words if one[-2:] == word[-2:]))
    shortest = max(MIN_PREFIX_CHARS, len(word) // 2 - 1)
    beginnings = (word[:size] for size in range(len(word) - 1, shortest - 1, -1))
    alike = ([one for one in words if one.startswith(beginning)] for beginning in beginnings)
    return near or next(filter(None, alike), [])


def _distance(one: str, other: str, most: int) -> int:
    """Return the edit distance with transpositions; not exact above `most`."""
    before: list[int] = []
    last = list(range(len(other) + 1))
    for row, letter in enumerate(one, 1):
        now = [row]
        for column, another in enumerate(other, 1):
            cost = min(last[column] + 1, now[-1] + 1, last[column - 1] + (letter != another))
            if row > 1 and column > 1 and letter == other[column - 2] and one[row - 2] == another:
                cost = min(cost, before[column - 2] + 1)
            now.append(cost)
        if min(now) > most:
            return most + 1
        before, last = last, now
    return last[-1]
