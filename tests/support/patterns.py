"""Collect every regular expression of midfold, and generate texts that would make a bad one slow.

Patterns are taken from the imported modules and from `re` calls in their source. For every repetition in a pattern
a
text is generated that matches it many times and then fails: a prefix, many repetitions, and a mismatch.
"""

from __future__ import annotations

import ast
import importlib
import math
import pkgutil
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from re import _constants as codes  # type: ignore[attr-defined]
from re import _parser  # type: ignore[attr-defined]
from typing import Any, NamedTuple

import midfold

FUNCTIONS = frozenset(("search", "match", "fullmatch", "sub", "subn", "split", "findall", "finditer"))
ANCHORED = frozenset(("match", "fullmatch"))
HELD = {"midfold.compaction.redact._KINDS": "match"}
"""Methods used for patterns in lists: `_kind_at` tries each at one position."""
OTHERS = "\x01"
"""Character that few patterns match."""


class Found(NamedTuple):
    """Pattern, its location, and its use there: searching a text or matching at one position."""

    where: str
    pattern: re.Pattern[Any]
    method: str


def modules() -> list[str]:
    names = (info.name for info in pkgutil.walk_packages(midfold.__path__, "midfold."))
    return sorted(name for name in names if not name.endswith("__main__"))


def census() -> list[Found]:
    """Return each pattern once, in its widest use."""
    found: dict[tuple[Any, int], Found] = {}
    for name in modules():
        try:
            module = importlib.import_module(name)
        except ImportError:
            continue
        tree = ast.parse(Path(str(module.__file__)).read_text())
        uses = _uses(tree)
        for own in _assigned(tree):
            uses.setdefault(own, {"search"})
        for one in (*_held(vars(module), name, uses), *_written(tree, name)):
            key = (one.pattern.pattern, one.pattern.flags)
            if key not in found or one.method == "search":
                found[key] = one
    return list(found.values())


def _assigned(tree: ast.Module) -> list[str]:
    targets = (target for node in tree.body if isinstance(node, ast.Assign) for target in node.targets)
    return [target.id for target in targets if isinstance(target, ast.Name)]


def _uses(tree: ast.AST) -> dict[str, set[str]]:
    """Return the methods called on each name; a name used in any other way may be used in every way."""
    uses: dict[str, set[str]] = {}
    called = [node.value for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            uses.setdefault(node.value.id, set()).add(node.attr)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node not in called:
            uses.setdefault(node.id, set()).add("search")
    return uses


def _held(value: Any, where: str, uses: dict[str, set[str]], name: str = "", depth: int = 0) -> Iterator[Found]:
    """Yield patterns in a module's names, and in the containers these refer to."""
    if isinstance(value, re.Pattern):
        methods = uses.get(name, set()) if depth == 1 else {HELD.get(where, "search")}
        # A module that only re-exports the name does not use it.
        if methods:
            yield Found(where, value, next(iter(methods)) if methods <= ANCHORED and len(methods) == 1 else "search")
    elif isinstance(value, dict) and depth < 4:
        for key, item in value.items():
            own = name or (key if isinstance(key, str) else "")
            yield from _held(item, f"{where}.{key}" if isinstance(key, str) else where, uses, own, depth + 1)
    elif isinstance(value, list | tuple | set | frozenset) and depth < 4:
        for item in value:
            yield from _held(item, where, uses, name, depth + 1)
    elif hasattr(value, "cache_info") and getattr(value, "__module__", "").startswith("midfold") and depth < 2:
        try:
            yield from _held(value(), where, uses, name, depth + 1)
        except TypeError:
            return


def _written(tree: ast.AST, name: str) -> Iterator[Found]:
    """Yield patterns passed to `re` calls, except those a module stores."""
    for node in ast.walk(tree):
        if not (isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.args):
            continue
        owner, method = node.func.value, node.func.attr
        called = isinstance(owner, ast.Name) and owner.id == "re" and method in FUNCTIONS
        if called and isinstance(node.args[0], ast.Constant):
            use = method if method in ANCHORED else "search"
            yield Found(f"{name}:{node.lineno}", re.compile(node.args[0].value), use)


class Pump(NamedTuple):
    """Text from a pattern's own characters: `before`, then `again` any number of times, then `after`."""

    before: str
    again: str
    after: str

    def text(self, size: int) -> str:
        return self.before + self.again * max(size // len(self.again), 1) + self.after


def pumps(pattern: re.Pattern[Any]) -> list[Pump]:
    """Return texts for each repetition, with and without its prefix, and for each two adjacent repetitions."""
    text = pattern.pattern if isinstance(pattern.pattern, str) else pattern.pattern.decode("latin-1")
    tree = _parser.parse(text, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags)
    flags = tree.state.flags
    found: list[Pump] = []
    _walk(list(tree), "", flags, found)
    ends = ("", OTHERS[0])
    made = (Pump(before, one.again, after) for one in found for before in {"", one.before} for after in ends)
    return [pump for pump in dict.fromkeys(made) if pump.again]


def _walk(items: list[Any], before: str, flags: int, found: list[Pump]) -> str:
    """Add the texts for these items, and return a text that they match."""
    so_far = before
    repeated: list[str] = []
    for code, value in items:
        if code in (codes.MAX_REPEAT, codes.MIN_REPEAT, codes.POSSESSIVE_REPEAT):
            low, high, inner = value
            one = _walk(list(inner), so_far, flags, found)[len(so_far) :]
            if high is codes.MAXREPEAT or high > 4:
                others = _characters(list(inner), flags)
                found += [Pump(so_far, again, OTHERS[0]) for again in dict.fromkeys((one, *others)) if again]
                repeated += [again for again in (one, *others[:1]) if again]
                found += [Pump("", so_far, OTHERS[0])] if so_far else []
            so_far += one * max(low, 1 if low else 0)
        elif code is codes.BRANCH:
            texts = [_walk(list(branch), so_far, flags, found)[len(so_far) :] for branch in value[1]]
            found += [Pump(so_far, text, OTHERS[0]) for text in texts if text]
            so_far += texts[0] if texts else ""
        elif code is codes.SUBPATTERN:
            so_far = _walk(list(value[3]), so_far, flags, found)
        elif code is codes.ATOMIC_GROUP:
            so_far = _walk(list(value), so_far, flags, found)
        elif code in (codes.ASSERT, codes.ASSERT_NOT):
            inner = _walk(list(value[1]), so_far, flags, found)
            if code is codes.ASSERT and value[0] < 0:
                so_far = inner
        else:
            so_far += _sample(code, value)
    whole = so_far[len(before) :]
    if whole:
        found.append(Pump(before, whole, OTHERS[0]))
        found.append(Pump(before, whole[:-1] or whole, OTHERS[0]))
    found += [Pump(before, first + second, OTHERS[0]) for first in repeated[:4] for second in repeated[:4]]
    return so_far


def _characters(items: list[Any], flags: int) -> list[str]:
    """Return single characters in a repeated class."""
    if len(items) != 1:
        return []
    code, value = items[0]
    if code is codes.IN:
        return [one for one in (_member(part) for part in value) if one]
    return [_sample(code, value)]


CATEGORIES = {
    codes.CATEGORY_DIGIT: "7",
    codes.CATEGORY_SPACE: " ",
    codes.CATEGORY_WORD: "w",
    codes.CATEGORY_NOT_DIGIT: "x",
    codes.CATEGORY_NOT_SPACE: "s",
    codes.CATEGORY_NOT_WORD: "-",
}


def _member(part: tuple[Any, Any]) -> str:
    code, value = part
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.RANGE:
        return chr(value[0])
    return CATEGORIES.get(value, "") if code is codes.CATEGORY else ""


def _sample(code: Any, value: Any) -> str:
    """Return one character that an item matches, or an empty string for a zero-width item."""
    if code is codes.LITERAL:
        return chr(value)
    if code is codes.NOT_LITERAL:
        return next(one for one in "ab" if ord(one) != value)
    if code is codes.ANY:
        return "a"
    if code is codes.IN:
        return _of_class(value)
    return ""


def _of_class(parts: list[Any]) -> str:
    if parts[0][0] is not codes.NEGATE:
        return next((one for one in map(_member, parts) if one), "")
    text = "[^" + "".join(_escaped(part) for part in parts[1:]) + "]"
    fits = re.compile(text)
    return next((one for one in "a 1-.x_,\n" if fits.fullmatch(one)), "")


def _escaped(part: tuple[Any, Any]) -> str:
    code, value = part
    if code is codes.LITERAL:
        return re.escape(chr(value))
    if code is codes.RANGE:
        return f"{re.escape(chr(value[0]))}-{re.escape(chr(value[1]))}"
    names = {codes.CATEGORY_DIGIT: r"\d", codes.CATEGORY_SPACE: r"\s", codes.CATEGORY_WORD: r"\w"}
    names |= {codes.CATEGORY_NOT_DIGIT: r"\D", codes.CATEGORY_NOT_SPACE: r"\S", codes.CATEGORY_NOT_WORD: r"\W"}
    return names.get(value, "")


TOO_LONG = 2.0
"""Timeout in seconds; no text here is long enough to need it."""


def seconds(found: Found, text: str) -> float:
    """Return the time to find all matches in the way the pattern is used; infinity after the timeout."""
    data: Any = text if isinstance(found.pattern.pattern, str) else text.encode("utf-8", "replace")
    before = signal.signal(signal.SIGALRM, _give_up)
    signal.setitimer(signal.ITIMER_REAL, TOO_LONG)
    begun = time.process_time()
    try:
        if found.method in ANCHORED:
            getattr(found.pattern, found.method)(data)
        else:
            for _ in found.pattern.finditer(data):
                pass
        return time.process_time() - begun
    except TimeoutError:
        return math.inf
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def _give_up(number: int, frame: Any) -> None:
    raise TimeoutError


if __name__ == "__main__":
    for one in census():
        print(f"{one.where:60} {one.method:10} {one.pattern.pattern!r}")  # noqa: T201
