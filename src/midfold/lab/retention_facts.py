"""Find facts (meaningful identifiers) in text, the words that explain them, and generic ones.

Compactions are scored with this module. No compactor may import it, and it imports nothing that a compactor selects by.

A fact is a path, URL, hash, id, number of four or more digits, version, date, constant, flag, or a snake_case,
camelCase, dotted or kebab name; words of prose are not. It is bound if two content words or a label (`port: 8123`) that
were near it in the past are within `NEAR` characters of it. A content word has three or more letters and is not part of
an identifier, not an English function word and not a keyword of a programming language. A fact is generic if two
*other* evaluated projects have it, or if it is a name of the standard library or on the lists below.
"""

from __future__ import annotations

import builtins
import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal, NamedTuple

from midfold.lab.message_text import NEAR

FactKind = Literal["url", "path", "hash", "id", "number", "version", "date", "constant", "name", "flag"]

HARD: Final = frozenset({"url", "path", "hash", "id", "number"})
"""Kinds of facts that cannot be guessed or derived."""
SHORTEST, LONGEST = 4, 300
CHUNKS_REMEMBERED = 1 << 17

_CHUNK = re.compile(r"\\[A-Za-z]|https?://[^\s\"'`<>()\[\]{}\\,;|]++|[\w~/@.+\-]++")
_FILE_ENDINGS = (
    "bash bat c cc cfg cjs conf cpp cs css csv db diff env ex exs gif go gradle h hpp html ini ipynb java jpg js json"
    " jsonl jsx kt less lock log lua m md mdx mjs mod patch pdf php pl png proto ps1 py pyi pyx rb rs rst scala scss sh"
    " sql sqlite sum svelte svg swift tar tf tmpl toml ts tsv tsx txt vue whl xml yaml yml zip zsh"
)
_FILE = re.compile(r"\.?[\w@+-]+(?:\.[\w-]+)*\.(?:" + "|".join(_FILE_ENDINGS.split()) + ")")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_HASH = re.compile(r"(?=[0-9a-f]*[a-f])(?=[0-9a-f]*[0-9])[0-9a-f]{7,64}")
_TICKET = re.compile(r"[A-Z][A-Z0-9]+-\d+")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_VERSION = re.compile(r"v\d+(?:\.\d+)+(?:[-+]?[a-z]\w*)?|\d+(?:\.\d+){2,}(?:[-+.]?[a-z]\w*)?")
_NUMBER = re.compile(r"\d{4,}")
_FLAG = re.compile(r"--[A-Za-z][\w-]*[A-Za-z0-9]")
_PATH = re.compile(r"(?:~|\.{1,2})?/?[\w.@+-]+(?:/[\w.@+-]+)*")
_CONSTANT = re.compile(r"_*[A-Z][A-Z0-9]*(?:_+[A-Z0-9]+)+_*")
_SNAKE = re.compile(r"(?=\w++\Z)(?:\w*[A-Za-z0-9]_++[A-Za-z0-9]\w*|_++[A-Za-z]\w{2,})")
_DOTTED = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)+")
_KEBAB = re.compile(r"[A-Za-z][A-Za-z0-9]*(?:-[A-Za-z0-9]+)+")
_MIXED = re.compile(r"(?=[A-Za-z]*\d[A-Za-z]*\d)(?=\d*[A-Za-z])[A-Za-z0-9]{6,}")
_CAMEL = re.compile(r"(?=[A-Z]*[a-z0-9]+[A-Z])[A-Za-z][A-Za-z0-9]*")


def facts_in(text: str) -> Iterator[tuple[str, FactKind]]:
    """Yield every fact of a text, in order, with repetitions."""
    for match in _CHUNK.finditer(text):
        chunk = match.group()
        if SHORTEST <= len(chunk) <= LONGEST and (found := _classify(chunk)) is not None:
            yield found


@lru_cache(maxsize=CHUNKS_REMEMBERED)
def _classify(chunk: str) -> tuple[str, FactKind] | None:
    fact = _bare(chunk)
    if len(fact) < SHORTEST:
        return None
    kind = _kind(fact)
    return None if kind is None else (fact, kind)


def _bare(chunk: str) -> str:
    """Strip the punctuation of a surrounding sentence, list or diff."""
    if chunk.startswith("http"):
        return chunk.rstrip(".:!?*_~")
    fact = chunk.rstrip(".-+/@~")
    if not fact.startswith("--") or fact.startswith("---"):
        fact = fact.lstrip("+-@")
    if fact.startswith(".") and not fact.startswith(("./", "../")):
        fact = fact.lstrip(".") if fact.startswith("..") else fact
    return fact


def _kind(fact: str) -> FactKind | None:
    if fact.startswith(("http://", "https://")):
        return "url" if len(fact) > len("https://a.b") else None
    if fact[0] == "-":
        return "flag" if _FLAG.fullmatch(fact) else None
    if "/" in fact:
        return "path" if _is_path(fact) else None
    if _FILE.fullmatch(fact):
        return "path"
    if fact[0].isdigit():
        return _number_kind(fact)
    if _UUID.fullmatch(fact) or _TICKET.fullmatch(fact):
        return "id"
    if _HASH.fullmatch(fact):
        return "hash"
    return _name_kind(fact)


def _number_kind(fact: str) -> FactKind | None:
    if _NUMBER.fullmatch(fact):
        return "number"
    if _DATE.fullmatch(fact):
        return "date"
    if _VERSION.fullmatch(fact):
        return "version"
    if _UUID.fullmatch(fact):
        return "id"
    if _HASH.fullmatch(fact):
        return "hash"
    if _MIXED.fullmatch(fact):
        return "id"
    return "name" if "_" in fact and _SNAKE.fullmatch(fact) else None


def _name_kind(fact: str) -> FactKind | None:
    if "_" in fact:
        if _CONSTANT.fullmatch(fact):
            return "constant"
        if _SNAKE.fullmatch(fact):
            return "id" if sum(map(str.isdigit, fact)) >= 6 else "name"
    if _VERSION.fullmatch(fact):
        return "version"
    if "." in fact:
        return "name" if _DOTTED.fullmatch(fact) else None
    if "-" in fact:
        return "name" if _KEBAB.fullmatch(fact) else None
    if _MIXED.fullmatch(fact):
        return "id"
    return "name" if _CAMEL.fullmatch(fact) else None


def _is_path(fact: str) -> bool:
    """Return whether it is a path: `and/or` and `3/4` are not; it needs a root, two slashes, or a non-word segment."""
    if not _PATH.fullmatch(fact) or not any(map(str.isalpha, fact)):
        return False
    if fact.startswith(("/", "~", "./", "../")) or fact.count("/") >= 2:
        return True
    return any(mark in fact for mark in "._-@") or bool(re.search(r"[A-Za-z]\d|\d[A-Za-z]", fact))


def places(text: str, fact: str) -> Iterator[int]:
    """Yield the positions of a fact in a text, except as a part of a longer word."""
    at = text.find(fact)
    while at >= 0:
        end = at + len(fact)
        escaped = text[max(at - 2, 0) : at - 1] == "\\"
        if (escaped or not _is_wordy(text[at - 1 : at])) and not _is_wordy(text[end : end + 1]):
            yield at
            at = text.find(fact, end)
        else:
            at = text.find(fact, at + 1)


def _is_wordy(character: str) -> bool:
    return character.isalnum() or character == "_"


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


COMMON_FLAGS: Final = _words(
    """
    --all --amend --author --base --body --branch --build --cached --check --color --config --count --debug --delete
    --depth --dev --diff --dry-run --exclude --exit-code --fix --force --format --global --grep --hard --head --help
    --html --ignore --include --init --input --install --json --limit --line-number --list --local --message --mode
    --name --name-only --name-status --no-cache --no-color --no-edit --no-pager --no-verify --numstat --oneline
    --only --output --parents --path --port --porcelain --prefix --pretty --progress --prune --quiet --raw
    --recursive --remote --repo --reporter --reverse --run --save --save-dev --set --short --show-toplevel --silent
    --since --soft --sort --source --staged --stat --stdin --strict --tags --target --test --tests --timeout --title
    --type --update --upgrade --user --verbose --version --watch --workspace --write --yes
    """
)
"""Flags common to all tools."""
COMMON_NAMES: Final = _words(
    """
    GitHub GitLab JavaScript TypeScript OpenAI PostgreSQL MySQL SQLite MongoDB GraphQL WebSocket YouTube LinkedIn
    macOS iOS DevOps README.md package.json tsconfig.json pyproject.toml setup.py setup.cfg go.mod go.sum CLAUDE.md
    AGENTS.md LICENSE.md CHANGELOG.md index.html index.ts index.js main.go main.py conftest.py requirements.txt
    package-lock.json pnpm-lock.yaml yarn.lock .gitignore Cargo.toml __init__.py __init__ __main__ __name__ __file__
    node_modules /dev/null /tmp /bin/bash /usr/bin /bin/sh 1000 1024 2048 4096 8080 3000 5000 8000 10000 file_path
    old_string new_string exec_command apply_patch exit_code return_code tool_use tool_result tool_calls
    """
)
"""Names common to all projects."""
FIRST_OF_COMPOUNDS: Final = _words(
    """
    all anti auto best co cross end ex first follow full half hard high in inter ill last left long low multi never
    non off on one out over part post pre read real right second self semi short side single so sub third three to
    top two under up user well worst zero
    """
)
"""First parts of hyphenated English words, as in `read-only`."""
LAST_OF_COMPOUNDS: Final = _words(
    """
    based by case date effort end free friendly from in kind known level line like made off only on one out over
    party point ready related safe side specific style the time to type up ups wide wise word
    """
)
"""Last parts of hyphenated English words, as in `line-by-line`."""
LIBRARIES: Final = _words(
    """
    atomic bufio bytes cmp context embed errors exec filepath flag fmt fs http httptest io ioutil json log maps math
    net os path rand reflect regexp runtime signal slices slog sort sql strconv strings sync syscall template
    testing time unicode url utf8 assert require Array Buffer Date Error JSON Map Math Number Object Promise RegExp
    Set String Symbol console document expect global globalThis jest module process vi window
    """
)
"""Go packages, JavaScript globals, and common test imports."""
FILE_ENDINGS: Final = _words(
    """
    go js json md py rs sh sql toml ts tsx txt yaml yml
    """
)
"""Endings of dotted names that are files of the project."""
FUNCTION_WORDS: Final = _words(
    """
    the and for are but not you all any can had her was one our out has him his how its may new now old see two way
    who did get let put say she too use that with have this will your from they know want been good much some time
    very when come here just like long make many more only over such take than them well were what which their there
    these those then also into about after again before because being between both could does doing down during each
    few further having itself most other should would under until where while whom why through same own off once nor
    yourself need yes okay sure def class return import else elif pass none true false self null undefined const var
    function func type struct interface package public private static void string int bool float char async await
    export default try catch except finally raise throw throws break continue switch case end begin fi do done echo
    nil err error ctx args kwargs str list dict set tuple map append range len print println printf http https www
    com org file line
    """
)
"""English function words and keywords of programming languages."""
METHOD_NAMES: Final = _words(
    """
    Error Errorf Fatal Fatalf Helper Log Logf Parallel Run Skip TempDir Cleanup length push map filter
    """
)
"""Common methods of Go tests and JavaScript arrays."""


WORDS_NEEDED = 2

_WORD = re.compile(r"(?<![\w./\\@#$%&=~-])[^\W\d_]{3,40}+(?![\w/\\(]|[.@=-]\w)")
_LABEL = re.compile(r"(?<![\w./-])([A-Za-z][\w-]{2,40}+)[\"'`*]{0,3}+:(?=[\s\"'`\[({*])")


class Surroundings(NamedTuple):
    """Words and labels near a fact, over all of its positions."""

    words: frozenset[str]
    labels: frozenset[str]


def surroundings(text: str, fact: str, at: Sequence[int]) -> Surroundings:
    """Collect words and labels near any position of a fact; overlapping surroundings are read once."""
    found: set[str] = set()
    labels: set[str] = set()
    for start, end in _merge(at, len(fact)):
        found.update(words_of(text[start:end]))
    for place in at:
        labels.update(labels_of(text[_line(text, place) : place]))
    return Surroundings(frozenset(found), frozenset(labels))


def _merge(at: Iterable[int], length: int) -> Iterator[tuple[int, int]]:
    open_at, open_end = -1, -1
    for place in at:
        start, end = max(place - NEAR, 0), place + length + NEAR
        if start > open_end:
            if open_at >= 0:
                yield open_at, open_end
            open_at = start
        open_end = end
    if open_at >= 0:
        yield open_at, open_end


def _line(text: str, at: int) -> int:
    """Return the start of the line at a position, within `NEAR`."""
    near = max(at - NEAR, 0)
    return max(text.rfind("\n", near, at) + 1, near)


def words_of(text: str) -> Iterator[str]:
    for match in _WORD.finditer(text):
        word = match.group()
        rest = word[1:]
        if rest == rest.lower():
            lowered = word.lower()
            if lowered not in FUNCTION_WORDS:
                yield lowered


def labels_of(text: str) -> Iterator[str]:
    for match in _LABEL.finditer(text):
        label = match.group(1).lower()
        if label not in FUNCTION_WORDS:
            yield label


def is_bound(text: str, fact: str, near: Surroundings) -> bool:
    """Return whether a text contains the fact together with words that explain it."""
    for at in places(text, fact):
        if near.labels and not near.labels.isdisjoint(labels_of(text[_line(text, at) : at])):
            return True
        window = text[max(at - NEAR, 0) : at + len(fact) + NEAR]
        if len(near.words.intersection(words_of(window))) >= WORDS_NEEDED:
            return True
    return False


OTHER_PROJECTS = 2

_METHODS: Final = METHOD_NAMES | frozenset(
    name for kind in (str, bytes, list, dict, set, int, float) for name in dir(kind) if not name.startswith("_")
)
_STANDARD: Final = frozenset(sys.stdlib_module_names) | frozenset(dir(builtins))


def shared_facts(projects: Mapping[str, Iterable[str]]) -> frozenset[str]:
    """Return the facts that are generic in every project because two other projects have them."""
    count = Counter(fact for facts in projects.values() for fact in set(facts))
    return frozenset(fact for fact, seen in count.items() if seen > OTHER_PROJECTS)


def is_common(fact: str) -> bool:
    """Return whether a fact is generic regardless of the project."""
    if fact in COMMON_FLAGS or fact in COMMON_NAMES or fact in _STANDARD:
        return True
    if fact.startswith("--"):
        return False
    if "/" not in fact and "." in fact:
        return _is_library(*fact.split("."))
    return "-" in fact and _is_compound(fact)


def _is_library(first: str, *rest: str) -> bool:
    """Return whether a name is from a library, like `os.path.join` or `line.strip`; a file like `time.py` is not."""
    if rest[-1] in FILE_ENDINGS:
        return False
    return first in _STANDARD or first in LIBRARIES or (len(rest) == 1 and rest[0] in _METHODS)


def _is_compound(fact: str) -> bool:
    """Return whether it is hyphenated English, such as `read-only`, which is spelled like a kebab name."""
    parts = fact.lower().split("-")
    if not all(map(str.isalpha, parts)):
        return False
    last = parts[-1]
    return parts[0] in FIRST_OF_COMPOUNDS or last in LAST_OF_COMPOUNDS or last.endswith(("ed", "ing", "able", "ly"))
