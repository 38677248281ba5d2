"""Named compactors to compare: common baselines, midfold, oracles, and user callables.

`Compactor` is the whole contract: messages as plain dicts and a token target in, messages (or a request body that
contains them) out. The system prompt is excluded and not counted. The output of a baseline need not be a valid
transcript. Oracles know what the future needs. `snippets`, an early version of keeping verbatim lines around
identifiers, finds names with its own pattern, so it does not select by the measure it is scored with.
"""

from __future__ import annotations

import importlib
import random
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache, partial
from itertools import accumulate
from math import log
from pathlib import Path
from typing import Any, NamedTuple

from midfold.errors import PluginError, TranscriptError
from midfold.lab.message_text import CHARACTERS_PER_TOKEN, change_results, join_texts, note, piece, size, text_of
from midfold.lab.recorded_sessions import Cut
from midfold.lab.retention_facts import facts_in, is_bound, places
from midfold.lab.retention_score import Need
from midfold.transcript.document import read
from midfold.transcript.message import Message, ToolResult, Transcript

HEAD_SHARE = 0.25
LEDGER_SHARE = 0.4
NEWEST_RESULTS_SHARE = 0.25
"""Maximum share of the budget for the newest tool results, which are not masked."""
CLIP = 400
MASK = "[old tool result masked]"


def sliding_window(past: Transcript, target: int) -> Transcript:
    """Keep the newest messages, and the end of the first one that no longer fits."""
    start, left = _tail(past, target)
    cut = piece(past[start - 1], left, end=True) if start else None
    return (*([cut] if cut else []), *past[start:])


def _tail(past: Transcript, target: int) -> tuple[int, int]:
    start, left = len(past), target
    while start and size(past[start - 1]) <= left:
        start -= 1
        left -= size(past[start])
    return start, left


def head_tail(past: Transcript, target: int) -> Transcript:
    """Keep the oldest messages in a quarter of the budget and the newest in the rest; drop the middle."""
    head, end = _head(past, int(target * HEAD_SHARE))
    rest = target - sum(map(size, head))
    return (*head, *sliding_window(past[end:], rest))


def _head(past: Transcript, target: int) -> tuple[list[Message], int]:
    head: list[Message] = []
    for message in past:
        cost = size(message)
        if cost > target:
            cut = piece(message, target, end=False)
            return [*head, *([cut] if cut else [])], len(head) + bool(cut)
        head.append(message)
        target -= cost
    return head, len(past)


def mask_results(past: Transcript, target: int) -> Transcript:
    """Mask old tool results, oldest first; then drop the oldest messages."""
    return _mask(past, target)


def clip_results(past: Transcript, target: int) -> Transcript:
    """Clip long tool results to their first and last 400 characters, then mask old ones."""
    return _mask(tuple(change_results(message, _clip) for message in past), target)


def _mask(past: Transcript, target: int) -> Transcript:
    sizes = list(map(size, past))
    excess = sum(sizes) - target
    messages = list(past)
    for index in _old_results(past, target):
        if excess <= 0:
            break
        bare = change_results(past[index], lambda _: MASK)
        saved = sizes[index] - size(bare)
        if saved > 0:
            messages[index] = bare
            excess -= saved
    return tuple(messages) if excess <= 0 else sliding_window(tuple(messages), target)


def _old_results(past: Transcript, target: int) -> list[int]:
    room = int(target * NEWEST_RESULTS_SHARE)
    results = [index for index, message in enumerate(past) if _has_result(message)]
    while results and (room := room - size(past[results[-1]])) >= 0:
        results.pop()
    return results


def _has_result(message: Message) -> bool:
    return any(isinstance(part, ToolResult) for part in message.parts)


def _clip(text: str) -> str:
    if len(text) <= 2 * CLIP:
        return text
    return f"{text[:CLIP]}\n[... {len(text) - 2 * CLIP} characters ...]\n{text[-CLIP:]}"


def random_messages(past: Transcript, target: int) -> Transcript:
    """Keep randomly drawn whole messages until nothing more fits; deterministic for the same past."""
    order = list(range(len(past)))
    random.Random(len(past)).shuffle(order)
    chosen = []
    for index in order:
        cost = size(past[index])
        if cost <= target:
            chosen.append(index)
            target -= cost
    return tuple(past[index] for index in sorted(chosen))


def ledger(past: Transcript, target: int) -> Transcript:
    """Keep a bare list of identifiers, newest first, in 40 % of the budget; head and tail in the rest."""
    listed = bare_list(past, int(target * LEDGER_SHARE))
    return (*listed, *head_tail(past, target - sum(map(size, listed))))


def bare_list(past: Transcript, target: int) -> Transcript:
    """Keep only identifiers, one per line."""
    names = dict.fromkeys(fact for message in reversed(past) for fact, _ in facts_in(text_of(message)))
    for share in (1.0, 0.8, 0.64, 0.5, 0.4, 0.3):
        made = note("\n".join(_up_to(names, int(target * share) * CHARACTERS_PER_TOKEN)))
        if size(made) <= target:
            return (made,)
    return ()


def _up_to(names: Iterable[str], characters: int) -> list[str]:
    named = list(names)
    lengths = accumulate(len(name) + 1 for name in named)
    return [name for name, length in zip(named, lengths, strict=True) if length <= characters]


WIDTHS = (30, 60, 100, 140)
PLACES_TRIED = 40


def oracle_snippets(past: Transcript, target: int, needs: Sequence[Need]) -> Transcript:
    """Keep the shortest binding snippet of each needed fact, cheapest first."""
    empty = size(note(""))
    room = target - empty
    kept: list[str] = []
    text = ""
    for snippet, need in best_snippets(past, tuple(needs)):
        cost = size(note(snippet)) - empty + 1
        if cost <= room and not is_bound(text, need.fact, need.near):
            kept.append(snippet)
            text = "\n".join(kept)
            room -= cost
    while kept and size(note("\n".join(kept))) > target:
        kept.pop()
    return (note("\n".join(kept)),) if kept else ()


@lru_cache(maxsize=2)
def best_snippets(past: Transcript, needs: tuple[Need, ...]) -> tuple[tuple[str, Need], ...]:
    text = join_texts(past)
    found = [(snippet, need) for need in needs if (snippet := _shortest(text, need))]
    return tuple(sorted(found, key=lambda item: (len(item[0]), item[1].fact)))


def _shortest(text: str, need: Need) -> str:
    places_of = list(places(text, need.fact))[-PLACES_TRIED:]
    for width in WIDTHS:
        options = []
        for at in places_of:
            snippet = text[max(at - width, 0) : at + len(need.fact) + width].strip()
            if is_bound(snippet, need.fact, need.near):
                options.append(snippet)
        if options:
            return min(options, key=lambda snippet: (size(note(snippet)), snippet))
    return ""


def oracle_messages(past: Transcript, target: int, needs: Sequence[Need]) -> Transcript:
    """Keep whole messages by needed facts per token, counting each fact once."""
    gains = _gains(past, tuple(needs))
    chosen: list[int] = []
    covered: set[int] = set()
    left = {index: (facts, size(past[index])) for index, facts in gains.items()}
    while left:
        best = max(left, key=lambda index: (len(left[index][0] - covered) / left[index][1], index))
        facts, cost = left.pop(best)
        if not facts - covered:
            break
        if cost <= target:
            chosen.append(best)
            covered |= facts
            target -= cost
    return tuple(past[index] for index in sorted(chosen))


@lru_cache(maxsize=2)
def _gains(past: Transcript, needs: tuple[Need, ...]) -> dict[int, frozenset[int]]:
    found: dict[int, frozenset[int]] = {}
    for index, message in enumerate(past):
        text = text_of(message)
        bound = [
            number for number, need in enumerate(needs) if need.fact in text and is_bound(text, need.fact, need.near)
        ]
        if bound:
            found[index] = frozenset(bound)
    return found


SNIPPET_SHARE = 0.4
SNIPPET_WIDTH = 70
_WORTH = {"user": 2.0, "assistant": 1.5, "tool": 0.0}
_NAME = re.compile(r"(?<![\w/.-])(?=[\w/.~-]{0,80}?(?:[_/\d]|[a-z][A-Z]|\w[.-]\w))[\w/~.-]{4,120}+")


class RankedName(NamedTuple):
    """A name and its best snippet."""

    name: str
    worth: float
    place: int
    snippet: str


def snippets(past: Transcript, target: int) -> Transcript:
    """Keep verbatim snippets around names in 40 % of the budget; head and tail in the rest."""
    ends = head_tail(past, target - int(target * SNIPPET_SHARE))
    room = target - sum(map(size, ends))
    kept = "\n".join(map(text_of, ends))
    chosen: list[RankedName] = []
    covered: set[str] = set()
    for found in rank_names(past):
        if room <= 0:
            break
        if found.name in covered or found.name in kept:
            continue
        cost = size(note(found.snippet)) - size(note(""))
        if cost <= room:
            chosen.append(found)
            covered.update(names_in(found.snippet))
            room -= cost + 1
    lines = "\n".join(found.snippet for found in sorted(chosen, key=lambda found: found.place))
    return _insert(ends, lines, target)


def _insert(ends: Transcript, lines: str, target: int) -> Transcript:
    """Insert the note between head and tail, shortened to fit the budget."""
    room = target - sum(map(size, ends))
    while lines and size(note(lines)) > room:
        lines = lines[: len(lines) * 19 // 20].rpartition("\n")[0]
    return (*ends[:1], note(lines), *ends[1:]) if lines else ends


@lru_cache(maxsize=2)
def rank_names(past: Transcript) -> tuple[RankedName, ...]:
    """Rank names by frequency, recency and author."""
    count: dict[str, int] = {}
    worth: dict[str, float] = {}
    best: dict[str, tuple[float, int, str]] = {}
    for place, message in enumerate(past):
        text = text_of(message)
        role = _WORTH.get(message.role, 0.0)
        for name, at in dict(_find_names(text)).items():
            count[name] = count.get(name, 0) + 1
            worth[name] = max(worth.get(name, 0.0), role)
            if name not in best or role >= best[name][0]:
                best[name] = (role, place, _around(text, at, len(name)))
    length = max(len(past), 1)
    found = [
        RankedName(name, worth[name] + log(1 + count[name]) + best[name][1] / length, best[name][1], best[name][2])
        for name in count
    ]
    return tuple(sorted(found, key=lambda item: (-item.worth, item.place, item.name)))


def names_in(text: str) -> Iterator[str]:
    for name, _ in _find_names(text):
        yield name


def _find_names(text: str) -> Iterator[tuple[str, int]]:
    for match in _NAME.finditer(text):
        yield match.group().rstrip(".-"), match.start()


def _around(text: str, at: int, length: int) -> str:
    start = max(text.rfind("\n", 0, at) + 1, at - SNIPPET_WIDTH)
    stop = text.find("\n", at)
    end = min(len(text) if stop < 0 else stop, at + length + SNIPPET_WIDTH)
    return text[start:end].strip()


Compactor = Callable[[list[Any], int], Any]
Method = Callable[[Cut, int, Sequence[Need]], Transcript]


def compact_by_midfold(messages: list[Any], target_tokens: int) -> Any:
    """Compact with the installed midfold, without an LLM."""
    from midfold.api import compact

    return compact(messages, target_tokens=target_tokens, force=True).messages


def _on_past(function: Callable[[Transcript, int], Transcript], cut: Cut, target: int, _: Sequence[Need]) -> Transcript:
    return function(cut.past, target)


def _on_past_and_needs(
    function: Callable[[Transcript, int, Sequence[Need]], Transcript], cut: Cut, target: int, needs: Sequence[Need]
) -> Transcript:
    return function(cut.past, target, needs)


def _recorded_summary(cut: Cut, target: int, _: Sequence[Need]) -> Transcript:
    if cut.session.summary is None:
        raise PluginError("the method `recorded` works only at recorded compactions")
    return (cut.session.summary,)


def _call_plugged(name: str, function: Compactor, cut: Cut, target: int, _: Sequence[Need]) -> Transcript:
    where = f"the method {name} on {cut.session.conversation} before message {cut.at}"
    try:
        kept = function(cut.session.values(cut.at), target)
    except Exception as error:  # a third-party compactor may raise anything; the error needs its name
        raise PluginError(f"{where} failed: {type(error).__name__}: {error}") from error
    if isinstance(kept, Iterable) and not isinstance(kept, Mapping | str | bytes):
        kept = list(kept)
    if not kept:
        return ()
    try:
        return read(kept, dialect=cut.session.dialect).messages
    except TranscriptError as error:
        raise PluginError(f"{where} returned no messages: {error}") from None


METHODS: Mapping[str, Method] = {
    "window": partial(_on_past, sliding_window),
    "head-tail": partial(_on_past, head_tail),
    "masked": partial(_on_past, mask_results),
    "clipped": partial(_on_past, clip_results),
    "random": partial(_on_past, random_messages),
    "ledger": partial(_on_past, ledger),
    "snippets": partial(_on_past, snippets),
    "midfold": partial(_call_plugged, "midfold", compact_by_midfold),
    "oracle-messages": partial(_on_past_and_needs, oracle_messages),
    "oracle-snippets": partial(_on_past_and_needs, oracle_snippets),
}
RECORDED = "recorded"
"""The agent's own summary, at any size; only at recorded compactions."""
DEFAULT_METHODS = ("window", "head-tail", "masked", "random", "midfold", "oracle-snippets")


def plug(name: str, function: Compactor) -> Method:
    """Wrap a callable as a method."""
    return partial(_call_plugged, name, function)


def choose_methods(methods: Iterable[str] | Mapping[str, str | Compactor]) -> dict[str, Method]:
    """Return methods by name: built-in ones, or a mapping from names to built-in ones and callables."""
    if isinstance(methods, Mapping):
        return {
            name: find_method(method) if isinstance(method, str) else plug(name, method)
            for name, method in methods.items()
        }
    names = [methods] if isinstance(methods, str) else list(methods)
    return {name: find_method(name) for name in (METHODS if names == ["all"] else names)}


def find_method(name: str) -> Method:
    if name == RECORDED:
        return _recorded_summary
    if name not in METHODS:
        raise PluginError(f"there is no method {name}; built in: {', '.join(METHODS)}")
    return METHODS[name]


def load_compactor(text: str) -> tuple[str, Compactor]:
    """Load a callable from `name=package.module:function`; modules in the working directory are found, too."""
    name, equals, place = text.partition("=")
    module, colon, attribute = place.partition(":")
    if not (equals and colon and name and module and attribute):
        raise PluginError(f"expected name=package.module:function, found {text}")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)
    try:
        function: Any = importlib.import_module(module)
        for part in attribute.split("."):
            function = getattr(function, part)
    except (ImportError, AttributeError) as error:
        raise PluginError(f"the method {name} could not be loaded: {error}") from None
    if not callable(function):
        raise PluginError(f"the method {name} could not be loaded: {place} is not callable")
    return name, function
